//! A document as one line of extended JSON for people: long values are cut, so that a log line stays a line.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument};

/// Bytes of a string that are shown.
const TEXT: usize = 256;
/// Elements of an array that are shown.
const ELEMENTS: usize = 32;
/// Bytes of a binary value that are shown.
const BINARY: usize = 64;
/// Levels of nesting that are shown.
const DEPTH: usize = 16;

/// Appends `doc` to `out` as relaxed extended JSON. Once `out` has grown by `limit` bytes, what follows is left out.
pub fn brief(out: &mut String, doc: &RawDocument, limit: usize) {
    let end = out.len() + limit;
    document(out, doc, end, 0);
}

/// Appends a JSON string.
pub fn quote(out: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = write!(out, "{}", serde_json::Value::from(text));
}

fn document(out: &mut String, doc: &RawDocument, end: usize, depth: usize) {
    out.push('{');
    for (i, element) in doc.iter_elements().map_while(Result::ok).enumerate() {
        if i > 0 {
            out.push(',');
        }
        if out.len() > end {
            out.push_str("\"…\":\"cut\"");
            break;
        }
        text(out, element.key().as_str());
        out.push(':');
        match element.value() {
            Ok(v) => value(out, v, end, depth),
            Err(_) => out.push_str("\"?\""),
        }
    }
    out.push('}');
}

fn value(out: &mut String, value: RawBsonRef<'_>, end: usize, depth: usize) {
    let written = match value {
        RawBsonRef::Document(_) | RawBsonRef::Array(_) if depth >= DEPTH => {
            out.push_str("\"…\"");
            Ok(())
        }
        RawBsonRef::Document(d) => {
            document(out, d, end, depth + 1);
            Ok(())
        }
        RawBsonRef::Array(elements) => {
            array(out, elements, end, depth + 1);
            Ok(())
        }
        RawBsonRef::String(s) | RawBsonRef::Symbol(s) => {
            text(out, s);
            Ok(())
        }
        RawBsonRef::Double(d) if d.is_finite() => write!(out, "{d:?}"),
        RawBsonRef::Double(d) => write!(out, r#"{{"$numberDouble":"{d}"}}"#),
        RawBsonRef::Boolean(b) => write!(out, "{b}"),
        RawBsonRef::Null => write!(out, "null"),
        RawBsonRef::Undefined => write!(out, r#"{{"$undefined":true}}"#),
        RawBsonRef::Int32(n) => write!(out, "{n}"),
        RawBsonRef::Int64(n) => write!(out, "{n}"),
        RawBsonRef::ObjectId(id) => write!(out, r#"{{"$oid":"{id}"}}"#),
        RawBsonRef::DateTime(at) => match at.try_to_rfc3339_string() {
            Ok(text) => write!(out, r#"{{"$date":"{text}"}}"#),
            Err(_) => write!(out, r#"{{"$date":{{"$numberLong":"{}"}}}}"#, at.timestamp_millis()),
        },
        RawBsonRef::Timestamp(ts) => write!(out, r#"{{"$timestamp":{{"t":{},"i":{}}}}}"#, ts.time, ts.increment),
        RawBsonRef::Decimal128(d) => write!(out, r#"{{"$numberDecimal":"{d}"}}"#),
        RawBsonRef::MinKey => write!(out, r#"{{"$minKey":1}}"#),
        RawBsonRef::MaxKey => write!(out, r#"{{"$maxKey":1}}"#),
        RawBsonRef::RegularExpression(r) => {
            out.push_str(r#"{"$regularExpression":{"pattern":"#);
            text(out, r.pattern.as_str());
            out.push_str(r#","options":"#);
            text(out, r.options.as_str());
            write!(out, "}}}}")
        }
        RawBsonRef::Binary(b) => binary(out, b.subtype, b.bytes),
        RawBsonRef::JavaScriptCode(code) => {
            out.push_str(r#"{"$code":"#);
            text(out, code);
            write!(out, "}}")
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            out.push_str(r#"{"$code":"#);
            text(out, code.code);
            write!(out, "}}")
        }
        RawBsonRef::DbPointer(_) => write!(out, r#""DBPointer""#),
    };
    // Writing to a string does not fail.
    let _ = written;
}

fn array(out: &mut String, elements: &bson::RawArray, end: usize, depth: usize) {
    out.push('[');
    for (i, element) in elements.into_iter().map_while(Result::ok).enumerate() {
        if i > 0 {
            out.push(',');
        }
        if i == ELEMENTS || out.len() > end {
            let more = elements.into_iter().count() - i;
            let _ = write!(out, "\"… {more} more\"");
            break;
        }
        value(out, element, end, depth);
    }
    out.push(']');
}

fn text(out: &mut String, text: &str) {
    if text.len() <= TEXT {
        return quote(out, text);
    }
    let mut end = TEXT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    quote(out, &format!("{}… ({} bytes)", &text[..end], text.len()));
}

fn binary(out: &mut String, subtype: BinarySubtype, bytes: &[u8]) -> std::fmt::Result {
    if let (BinarySubtype::Uuid, Ok(id)) = (subtype, uuid::Uuid::from_slice(bytes)) {
        return write!(out, r#"{{"$uuid":"{id}"}}"#);
    }
    let shown = STANDARD.encode(&bytes[..bytes.len().min(BINARY)]);
    let more = if bytes.len() > BINARY { format!("… ({} bytes)", bytes.len()) } else { String::new() };
    write!(out, r#"{{"$binary":{{"base64":"{shown}{more}","subType":"{:02x}"}}}}"#, u8::from(subtype))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bson::{Bson, rawdoc};

    fn json(doc: &RawDocument, limit: usize) -> serde_json::Value {
        let mut out = String::new();
        brief(&mut out, doc, limit);
        serde_json::from_str(&out).unwrap_or_else(|e| unreachable!("{e} in {out}"))
    }

    #[test]
    fn every_type_is_valid_json() {
        let doc = bson::doc! {
            "d": 1.0, "nan": f64::NAN, "big": 1e300, "s": "a\"\\\n\u{1}é", "n": Bson::Null, "i": 5, "l": 5_i64,
            "oid": bson::oid::ObjectId::new(), "at": bson::DateTime::from_millis(0), "far": bson::DateTime::MAX,
            "ts": bson::Timestamp { time: 1, increment: 2 }, "min": Bson::MinKey, "max": Bson::MaxKey,
            "re": Bson::RegularExpression(bson::Regex { pattern: bson::raw::CString::try_from("a/\"b").unwrap(), options: bson::raw::CString::try_from("i").unwrap() }),
            "bin": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![1; 100] },
            "code": Bson::JavaScriptCode("x".into()), "u": Bson::Undefined, "dec": "1.5".parse::<bson::Decimal128>().unwrap(),
            "uuid": bson::Binary { subtype: BinarySubtype::Uuid, bytes: vec![0xab; 16] }, "b": true, "a": [1, [2, {}]],
        };
        let json = json(&bson::RawDocumentBuf::try_from(&doc).unwrap(), 10_000);
        assert_eq!(json["s"], "a\"\\\n\u{1}é");
        assert_eq!(json["uuid"]["$uuid"], "abababab-abab-abab-abab-abababababab");
        assert_eq!(json["a"][1][0], 2);
        assert!(json["bin"]["$binary"]["base64"].as_str().unwrap().ends_with("(100 bytes)"));
    }

    #[test]
    fn long_values_are_cut() {
        let mut doc = rawdoc! { "s": "é".repeat(1000) };
        let many: bson::RawArrayBuf = (0..1000).collect();
        doc.append(bson::cstr!("a"), many);
        let mut deep = rawdoc! {};
        for _ in 0..100 {
            deep = rawdoc! { "x": deep };
        }
        doc.append(bson::cstr!("deep"), deep);
        doc.append(bson::cstr!("last"), 1);
        let whole = json(&doc, 100_000);
        assert!(whole["s"].as_str().unwrap().ends_with("… (2000 bytes)"));
        assert_eq!(whole["a"].as_array().unwrap().len(), ELEMENTS + 1);
        assert_eq!(whole["a"][ELEMENTS], "… 968 more");
        assert_eq!(whole["last"], 1);
        assert_eq!(json(&doc, 100)["…"], "cut");
    }
}
