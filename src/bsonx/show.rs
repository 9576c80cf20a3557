//! BSON as the server prints it in error messages: `{ u: 10, t: MinKey }`.

use std::fmt::Write as _;

use bson::{RawArray, RawBsonRef, RawDocument};

/// Longest text produced, in bytes; what is longer is cut off with `...`.
const LIMIT: usize = 4096;
/// Nesting beyond this is not followed.
const MAX_DEPTH: usize = 64;

/// A document: `{ a: 1, b: "x" }`; empty: `{}`.
pub fn document(doc: &RawDocument) -> String {
    let mut out = String::new();
    push_document(&mut out, doc, 0);
    cut(out)
}

/// One value.
pub fn value(value: RawBsonRef<'_>) -> String {
    let mut out = String::new();
    push_value(&mut out, value, 0);
    cut(out)
}

fn cut(mut out: String) -> String {
    if out.len() > LIMIT {
        let mut end = LIMIT;
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push_str("...");
    }
    out
}

fn push_document(out: &mut String, doc: &RawDocument, depth: usize) {
    let mut first = true;
    for (key, value) in doc.iter().map_while(Result::ok) {
        let _ = write!(out, "{}{}: ", if first { "{ " } else { ", " }, key);
        first = false;
        push_value(out, value, depth + 1);
        if out.len() > LIMIT {
            break;
        }
    }
    out.push_str(if first { "{}" } else { " }" });
}

fn push_array(out: &mut String, array: &RawArray, depth: usize) {
    let mut first = true;
    for value in array.into_iter().map_while(Result::ok) {
        out.push_str(if first { "[ " } else { ", " });
        first = false;
        push_value(out, value, depth + 1);
        if out.len() > LIMIT {
            break;
        }
    }
    out.push_str(if first { "[]" } else { " ]" });
}

fn push_value(out: &mut String, value: RawBsonRef<'_>, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    // Writing to a String cannot fail.
    let _ = match value {
        RawBsonRef::Document(d) => {
            push_document(out, d, depth);
            Ok(())
        }
        RawBsonRef::Array(a) => {
            push_array(out, a, depth);
            Ok(())
        }
        RawBsonRef::Double(d) if d.is_nan() => write!(out, "nan.0"),
        RawBsonRef::Double(d) if d.is_infinite() => write!(out, "{}", if d > 0.0 { "inf" } else { "-inf" }),
        RawBsonRef::Double(d) if d.fract() == 0.0 && d.abs() < 1e16 => write!(out, "{d:.1}"),
        RawBsonRef::Double(d) => write!(out, "{d}"),
        RawBsonRef::String(s) => write!(out, "\"{s}\""),
        RawBsonRef::Boolean(b) => write!(out, "{b}"),
        RawBsonRef::Null => write!(out, "null"),
        RawBsonRef::Int32(n) => write!(out, "{n}"),
        RawBsonRef::Int64(n) => write!(out, "{n}"),
        RawBsonRef::Timestamp(t) => write!(out, "Timestamp({}, {})", t.time, t.increment),
        RawBsonRef::ObjectId(id) => write!(out, "ObjectId('{id}')"),
        RawBsonRef::DateTime(d) => write!(out, "new Date({})", d.timestamp_millis()),
        RawBsonRef::Symbol(s) => write!(out, "\"{s}\""),
        RawBsonRef::Decimal128(d) => write!(out, "{d}"),
        RawBsonRef::RegularExpression(r) => write!(out, "/{}/{}", r.pattern, r.options),
        RawBsonRef::JavaScriptCode(c) => write!(out, "{c}"),
        RawBsonRef::Undefined => write!(out, "undefined"),
        RawBsonRef::MinKey => write!(out, "MinKey"),
        RawBsonRef::MaxKey => write!(out, "MaxKey"),
        RawBsonRef::Binary(b) => push_binary(out, b.subtype.into(), b.bytes),
        other => write!(out, "{other:?}"),
    };
}

fn push_binary(out: &mut String, subtype: u8, bytes: &[u8]) -> std::fmt::Result {
    if subtype == 4 && bytes.len() == 16 {
        out.push_str("UUID(\"");
        for (i, byte) in bytes.iter().enumerate() {
            write!(out, "{}{byte:02x}", if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" })?;
        }
        out.push_str("\")");
        return Ok(());
    }
    write!(out, "BinData({subtype}, ")?;
    bytes.iter().take(LIMIT / 2).try_for_each(|byte| write!(out, "{byte:02X}"))?;
    out.push(')');
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bson::{Bson, rawdoc};

    use super::*;

    #[test]
    fn prints_as_the_server_does() {
        let doc = rawdoc! { "u": 10, "t": bson::RawBson::MinKey, "d": 1.0, "s": "text", "n": { "a": [1, 2.5] } };
        assert_eq!(document(&doc), "{ u: 10, t: MinKey, d: 1.0, s: \"text\", n: { a: [ 1, 2.5 ] } }");
        assert_eq!(document(&rawdoc! {}), "{}");
        assert_eq!(document(&rawdoc! { "a": [] }), "{ a: [] }");
        let uuid = bson::Uuid::parse_str("b089bf0c-b6ae-42c8-97c2-b26927b32327").unwrap();
        let raw = bson::RawBson::try_from(Bson::from(uuid)).unwrap();
        assert_eq!(value(raw.as_raw_bson_ref()), "UUID(\"b089bf0c-b6ae-42c8-97c2-b26927b32327\")");
    }

    #[test]
    fn long_text_is_cut() {
        let doc = rawdoc! { "a": "x".repeat(10_000) };
        assert!(document(&doc).len() <= LIMIT + 3);
    }
}
