//! BSON as the short text that MongoDB's error messages use: `{ a: 1, b: "x" }`, `MinKey`, `new Date(0)`.

use std::fmt::{self, Write};

use bson::RawDocument;

use super::number::Decimal;
use super::value::{Elements, MAX_DEPTH, Value};

/// A document as text. Malformed parts show as `?`.
pub fn document(doc: &RawDocument) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_doc(&mut out, doc.as_bytes(), 0);
    out
}

/// One value as text.
pub fn value(value: Value<'_>) -> String {
    let mut out = String::new();
    let _ = write_value(&mut out, value, 0);
    out
}

/// The same for a value as the bson crate shows it; `?` if it is malformed.
pub fn raw_value(raw: bson::RawBsonRef<'_>) -> String {
    super::value::with(raw, |v| Ok(value(v))).unwrap_or_else(|_| "?".to_owned())
}

/// A range of shard keys as mongos writes it: `[{ a: MinKey },{ a: 5 })`.
pub fn range(min: &RawDocument, max: &RawDocument) -> String {
    format!("[{},{})", document(min), document(max))
}

fn write_doc(out: &mut String, doc: &[u8], depth: usize) -> fmt::Result {
    let Ok(elements) = Elements::new(doc) else { return out.write_char('?') };
    let mut first = true;
    for elem in elements {
        out.write_str(if first { "{ " } else { ", " })?;
        first = false;
        match elem.and_then(|e| Ok((e.name, e.value()?))) {
            Ok((name, value)) => {
                write!(out, "{}: ", String::from_utf8_lossy(name))?;
                write_value(out, value, depth + 1)?;
            }
            Err(_) => out.write_char('?')?,
        }
    }
    out.write_str(if first { "{}" } else { " }" })
}

fn write_array(out: &mut String, doc: &[u8], depth: usize) -> fmt::Result {
    let Ok(elements) = Elements::new(doc) else { return out.write_char('?') };
    let mut first = true;
    for elem in elements {
        out.write_str(if first { "[ " } else { ", " })?;
        first = false;
        match elem.and_then(|e| e.value()) {
            Ok(value) => write_value(out, value, depth + 1)?,
            Err(_) => out.write_char('?')?,
        }
    }
    out.write_str(if first { "[]" } else { " ]" })
}

fn write_value(out: &mut String, value: Value<'_>, depth: usize) -> fmt::Result {
    if depth > MAX_DEPTH {
        return out.write_str("...");
    }
    match value {
        Value::MinKey => out.write_str("MinKey"),
        Value::MaxKey => out.write_str("MaxKey"),
        Value::Undefined => out.write_str("undefined"),
        Value::Null => out.write_str("null"),
        Value::Int32(v) => write!(out, "{v}"),
        Value::Int64(v) => write!(out, "{v}"),
        Value::Double(v) => write_double(out, v),
        Value::Decimal(bytes) => write_decimal(out, bytes),
        Value::Str(text) | Value::Symbol(text) => write_quoted(out, text),
        Value::Code(text) => out.write_str(&String::from_utf8_lossy(text)),
        Value::Doc(doc) => write_doc(out, doc, depth),
        Value::Array(doc) => write_array(out, doc, depth),
        Value::Binary { subtype: 4, data, .. } if data.len() == 16 => {
            out.write_str("UUID(\"")?;
            for (i, byte) in data.iter().enumerate() {
                out.write_str(if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" })?;
                write!(out, "{byte:02x}")?;
            }
            out.write_str("\")")
        }
        Value::Binary { subtype, head, data } => {
            write!(out, "BinData({subtype}, ")?;
            for byte in head.iter().flatten().chain(data) {
                write!(out, "{byte:02X}")?;
            }
            out.write_char(')')
        }
        Value::ObjectId(id) => write!(out, "ObjectId('{}')", bson::oid::ObjectId::from_bytes(id).to_hex()),
        Value::Bool(v) => write!(out, "{v}"),
        Value::Date(ms) => write!(out, "new Date({ms})"),
        Value::Timestamp(v) => write!(out, "Timestamp({}, {})", v >> 32, v & 0xFFFF_FFFF),
        Value::Regex { pattern, flags } => {
            write!(out, "/{}/{}", String::from_utf8_lossy(pattern), String::from_utf8_lossy(flags))
        }
        Value::DbPointer { ns, id } => {
            write!(out, "DBRef('{}',{})", String::from_utf8_lossy(ns), bson::oid::ObjectId::from_bytes(id).to_hex())
        }
        Value::CodeWithScope { code, scope } => {
            write!(out, "CodeWScope( {}, ", String::from_utf8_lossy(code))?;
            write_doc(out, scope, depth)?;
            out.write_char(')')
        }
    }
}

fn write_quoted(out: &mut String, text: &[u8]) -> fmt::Result {
    out.write_char('"')?;
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c.is_control() => write!(out, "\\u{:04x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

fn write_double(out: &mut String, v: f64) -> fmt::Result {
    if v.is_nan() {
        out.write_str("nan.0")
    } else if v.is_infinite() {
        out.write_str(if v < 0.0 { "-inf.0" } else { "inf.0" })
    } else if v == v.trunc() && v.abs() < 1e15 {
        write!(out, "{v:.1}")
    } else if v.abs() >= 1e15 || v.abs() < 1e-5 {
        write!(out, "{v:e}")
    } else {
        write!(out, "{v}")
    }
}

fn write_decimal(out: &mut String, bytes: [u8; 16]) -> fmt::Result {
    match Decimal::from_bytes(bytes) {
        Decimal::NaN => out.write_str("NaN"),
        Decimal::Infinity { negative } => out.write_str(if negative { "-Infinity" } else { "Infinity" }),
        Decimal::Finite { .. } => write!(out, "{}", bson::Decimal128::from_bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bson::{RawBson, rawdoc};

    use super::*;

    #[test]
    fn looks_like_the_servers_messages() {
        let doc = rawdoc! {
            "u": 10, "t": 1.0, "s": "a\"b", "min": RawBson::MinKey, "max": RawBson::MaxKey, "n": null,
            "d": bson::DateTime::from_millis(-5), "ts": bson::Timestamp { time: 3, increment: 4 },
            "sub": { "x": ["y", 2i64] }, "e": {}, "a": [], "f": 0.25, "dec": "1.50".parse::<bson::Decimal128>().unwrap(),
        };
        assert_eq!(
            document(&doc),
            "{ u: 10, t: 1.0, s: \"a\\\"b\", min: MinKey, max: MaxKey, n: null, d: new Date(-5), ts: Timestamp(3, 4), \
             sub: { x: [ \"y\", 2 ] }, e: {}, a: [], f: 0.25, dec: 1.50 }"
        );
        assert_eq!(range(&rawdoc! {"u": RawBson::MinKey}, &rawdoc! {"u": 5}), "[{ u: MinKey },{ u: 5 })");
    }
}
