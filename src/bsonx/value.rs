//! A field's bytes as a typed value, without walking the document again.

use bson::raw::RawBsonRef;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawDocument};

use super::scan::{Field, fields, int32, int64, kind};

/// A binary subtype whose value repeats its length inside.
const OLD_BINARY: u8 = 2;

impl Field<'_> {
    /// The value of this field of `doc`; `None` where its bytes are no value of its type (text that is not UTF-8, say).
    ///
    /// On the way of every request: the `bson` crate's iterator checks and decodes every name it passes.
    pub fn decode<'d>(&self, doc: &'d [u8]) -> Option<RawBsonRef<'d>> {
        let bytes = doc.get(self.range())?;
        Some(match self.kind {
            kind::DOUBLE => RawBsonRef::Double(f64::from_bits(int64(bytes, 0)? as u64)),
            kind::STRING => RawBsonRef::String(text(bytes)?),
            kind::DOCUMENT => RawBsonRef::Document(RawDocument::from_bytes(bytes).ok()?),
            kind::BINARY if bytes.get(4) != Some(&OLD_BINARY) => RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::from(*bytes.get(4)?),
                bytes: bytes.get(5..)?,
            }),
            kind::OBJECT_ID => RawBsonRef::ObjectId(bson::oid::ObjectId::from_bytes(bytes.try_into().ok()?)),
            kind::BOOL => RawBsonRef::Boolean(*bytes.first()? != 0),
            kind::DATE => RawBsonRef::DateTime(bson::DateTime::from_millis(int64(bytes, 0)?)),
            kind::NULL => RawBsonRef::Null,
            kind::UNDEFINED => RawBsonRef::Undefined,
            kind::INT32 => RawBsonRef::Int32(int32(bytes, 0)?),
            kind::INT64 => RawBsonRef::Int64(int64(bytes, 0)?),
            kind::TIMESTAMP => RawBsonRef::Timestamp(bson::Timestamp {
                increment: int32(bytes, 0)? as u32,
                time: int32(bytes, 4)? as u32,
            }),
            kind::DECIMAL128 => RawBsonRef::Decimal128(bson::Decimal128::from_bytes(bytes.try_into().ok()?)),
            kind::MIN_KEY => RawBsonRef::MinKey,
            kind::MAX_KEY => RawBsonRef::MaxKey,
            _ => return self.decode_rare(doc),
        })
    }

    /// Types whose views only the crate can make: found at the same place by its own iterator.
    fn decode_rare<'d>(&self, doc: &'d [u8]) -> Option<RawBsonRef<'d>> {
        let at = fields(doc).position(|f| f.start == self.start)?;
        RawDocument::from_bytes(doc).ok()?.iter_elements().nth(at)?.ok()?.value().ok()
    }
}

/// The text of a string value: length, bytes, NUL.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.get(4..bytes.len().checked_sub(1)?)?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use bson::{Binary, rawdoc};

    use super::*;

    #[test]
    fn values_are_what_the_crate_reads() {
        let old = Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2] };
        let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] };
        let doc = rawdoc! {
            "double": -1.5, "string": "text ä", "empty": "", "doc": {"a": 1}, "array": [1, "b"], "old": old, "uuid": uuid,
            "undefined": bson::RawBson::Undefined, "id": bson::oid::ObjectId::new(), "yes": true, "no": false,
            "date": bson::DateTime::from_millis(-5), "null": bson::RawBson::Null,
            "regex": bson::Regex { pattern: bson::cstr!("^a").into(), options: bson::cstr!("im").into() },
            "code": bson::RawBson::JavaScriptCode("f()".to_owned()), "symbol": bson::RawBson::Symbol("s".to_owned()),
            "scoped": bson::RawJavaScriptCodeWithScope { code: "g()".to_owned(), scope: rawdoc! {"x": 1} },
            "int": -7, "time": bson::Timestamp { time: u32::MAX, increment: 3 }, "long": i64::MIN,
            "decimal": "1.50".parse::<bson::Decimal128>().unwrap(), "min": bson::RawBson::MinKey, "max": bson::RawBson::MaxKey,
        };
        let bytes = doc.as_bytes();
        let ours: Vec<_> = fields(bytes).map(|f| f.decode(bytes).expect("a value")).collect();
        let theirs: Vec<_> = doc.iter_elements().map(|e| e.unwrap().value().unwrap()).collect();
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 23);
    }

    #[test]
    fn what_is_no_value_is_none() {
        let doc = rawdoc! {"s": "ab", "t": 1};
        let mut bytes = doc.as_bytes().to_vec();
        let at = bytes.windows(2).position(|w| w == b"ab").unwrap();
        bytes[at] = 0xff;
        let of = |name: &str| super::super::find(&bytes, name).unwrap().decode(&bytes);
        assert_eq!(of("s"), None);
        assert_eq!(of("t"), Some(RawBsonRef::Int32(1)));
    }
}
