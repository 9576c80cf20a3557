//! Raw BSON: typed look-ups by name that never decode what they do not need, fields by offset, structural checks,
//! patching in place and copying with changes.

mod brief;
mod edit;
mod scan;
mod value;

pub use brief::{brief, quote};
pub use edit::{Writer, set_int64, with_int64};
pub use scan::{Field, Fields, MAX_DEPTH, check, fields, find, find_path, int32, int64, kind};

use bson::spec::ElementType;
use bson::{RawArray, RawBsonRef, RawDocument};

/// The first field called `key`, if the document is well-formed up to it.
pub fn get<'a>(doc: &'a RawDocument, key: &str) -> Option<RawBsonRef<'a>> {
    find(doc.as_bytes(), key)?.decode(doc.as_bytes())
}

/// A string field.
pub fn str<'a>(doc: &'a RawDocument, key: &str) -> Option<&'a str> {
    get(doc, key).and_then(|v| v.as_str())
}

/// A sub-document field.
pub fn doc<'a>(doc: &'a RawDocument, key: &str) -> Option<&'a RawDocument> {
    get(doc, key).and_then(|v| v.as_document())
}

/// An array field.
pub fn array<'a>(doc: &'a RawDocument, key: &str) -> Option<&'a RawArray> {
    get(doc, key).and_then(|v| v.as_array())
}

/// A number field as an integer; doubles are truncated, other types give `None`.
pub fn int(doc: &RawDocument, key: &str) -> Option<i64> {
    get(doc, key).and_then(as_int)
}

/// Any BSON number as an integer (doubles truncated and clamped).
pub fn as_int(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(n) => Some(i64::from(n)),
        RawBsonRef::Int64(n) => Some(n),
        RawBsonRef::Double(n) => Some(n as i64),
        _ => None,
    }
}

/// MongoDB's truthiness: numbers other than 0 and `true`; `None` where the field is missing.
pub fn truthy(doc: &RawDocument, key: &str) -> Option<bool> {
    get(doc, key).map(is_true)
}

/// MongoDB's truthiness of one value: 0, `false`, null and undefined are false.
pub fn is_true(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(b) => b,
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        RawBsonRef::Int32(n) => n != 0,
        RawBsonRef::Int64(n) => n != 0,
        RawBsonRef::Double(n) => n != 0.0,
        _ => true,
    }
}

/// Bytes seen as a document. Bytes that cannot be one (wrong length or end) give the empty document, so use it only
/// where that has been checked, as the wire codec does for everything in a message.
pub fn view(bytes: &[u8]) -> &RawDocument {
    const EMPTY: &[u8] = &[5, 0, 0, 0, 0];
    match RawDocument::from_bytes(bytes) {
        Ok(doc) => doc,
        Err(_) => RawDocument::from_bytes(EMPTY).unwrap_or_else(|_| unreachable!("five bytes are an empty document")),
    }
}

/// The name of a document's first field.
pub fn first_key(bytes: &[u8]) -> Option<&str> {
    let rest = bytes.get(4..)?;
    if *rest.first()? == 0 {
        return None;
    }
    let name = &rest[1..];
    std::str::from_utf8(&name[..name.iter().position(|b| *b == 0)?]).ok()
}

/// The name of a BSON type in MongoDB's error messages (`int`, `objectId`, …).
pub fn type_name(kind: ElementType) -> &'static str {
    match kind {
        ElementType::Double => "double",
        ElementType::String => "string",
        ElementType::EmbeddedDocument => "object",
        ElementType::Array => "array",
        ElementType::Binary => "binData",
        ElementType::Undefined => "undefined",
        ElementType::ObjectId => "objectId",
        ElementType::Boolean => "bool",
        ElementType::DateTime => "date",
        ElementType::Null => "null",
        ElementType::RegularExpression => "regex",
        ElementType::DbPointer => "dbPointer",
        ElementType::JavaScriptCode => "javascript",
        ElementType::Symbol => "symbol",
        ElementType::JavaScriptCodeWithScope => "javascriptWithScope",
        ElementType::Int32 => "int",
        ElementType::Timestamp => "timestamp",
        ElementType::Int64 => "long",
        ElementType::Decimal128 => "decimal",
        ElementType::MaxKey => "maxKey",
        ElementType::MinKey => "minKey",
    }
}
