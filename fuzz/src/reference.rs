//! BSON's order and MongoDB's hash a second time: slow, over decoded values, and without anything of the code they check.

use std::cmp::Ordering;

use bson::spec::BinarySubtype;
use bson::{Bson, Document};
use md5::{Digest, Md5};

/// MongoDB's type order; also the first thing hashed.
fn canonical(value: &Bson) -> i32 {
    match value {
        Bson::MinKey => -1,
        Bson::Undefined => 0,
        Bson::Null => 5,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => 10,
        Bson::String(_) | Bson::Symbol(_) => 15,
        Bson::Document(_) => 20,
        Bson::Array(_) => 25,
        Bson::Binary(_) => 30,
        Bson::ObjectId(_) => 35,
        Bson::Boolean(_) => 40,
        Bson::DateTime(_) => 45,
        Bson::Timestamp(_) => 47,
        Bson::RegularExpression(_) => 50,
        Bson::DbPointer(_) => 55,
        Bson::JavaScriptCode(_) => 60,
        Bson::JavaScriptCodeWithScope(_) => 65,
        Bson::MaxKey => 127,
    }
}

/// The order of two values under simple collation; `None` for DBPointers, whose parts the library hides.
pub fn compare(a: &Bson, b: &Bson) -> Option<Ordering> {
    let by_type = canonical(a).cmp(&canonical(b));
    if by_type.is_ne() {
        return Some(by_type);
    }
    let text = |v: &Bson| match v {
        Bson::String(s) | Bson::Symbol(s) | Bson::JavaScriptCode(s) => s.clone().into_bytes(),
        _ => Vec::new(),
    };
    Some(match (a, b) {
        (Bson::Document(x), Bson::Document(y)) => return compare_documents(x, y),
        (Bson::Array(x), Bson::Array(y)) => {
            for (x, y) in x.iter().zip(y) {
                let order = compare(x, y)?;
                if order.is_ne() {
                    return Some(order);
                }
            }
            x.len().cmp(&y.len())
        }
        (Bson::Binary(x), Bson::Binary(y)) => {
            let stored = |v: &bson::Binary| {
                let inner = (v.subtype == BinarySubtype::BinaryOld).then(|| (v.bytes.len() as u32).to_le_bytes());
                [inner.as_ref().map_or(&[][..], |i| &i[..]), &v.bytes].concat()
            };
            let (p, q) = (stored(x), stored(y));
            p.len().cmp(&q.len()).then(u8::from(x.subtype).cmp(&u8::from(y.subtype))).then(p.cmp(&q))
        }
        (Bson::ObjectId(x), Bson::ObjectId(y)) => x.bytes().cmp(&y.bytes()),
        (Bson::Boolean(x), Bson::Boolean(y)) => x.cmp(y),
        (Bson::DateTime(x), Bson::DateTime(y)) => x.timestamp_millis().cmp(&y.timestamp_millis()),
        (Bson::Timestamp(x), Bson::Timestamp(y)) => (x.time, x.increment).cmp(&(y.time, y.increment)),
        (Bson::RegularExpression(x), Bson::RegularExpression(y)) => {
            let parts = |r: &bson::Regex| (r.pattern.as_str().to_owned(), r.options.as_str().to_owned());
            parts(x).cmp(&parts(y))
        }
        (Bson::JavaScriptCodeWithScope(x), Bson::JavaScriptCodeWithScope(y)) => match x.code.cmp(&y.code) {
            Ordering::Equal => return compare_documents(&x.scope, &y.scope),
            order => order,
        },
        (Bson::DbPointer(_), _) => return None,
        _ if canonical(a) == 10 => compare_numbers(&Number::of(a), &Number::of(b)),
        _ => text(a).cmp(&text(b)),
    })
}

fn compare_documents(a: &Document, b: &Document) -> Option<Ordering> {
    for ((n, x), (m, y)) in a.iter().zip(b) {
        let order = match canonical(x).cmp(&canonical(y)).then(n.cmp(m)) {
            Ordering::Equal => compare(x, y)?,
            order => order,
        };
        if order.is_ne() {
            return Some(order);
        }
    }
    Some(a.len().cmp(&b.len()))
}

/// A number as decimal digits.
enum Number {
    NaN,
    Infinite {
        negative: bool,
    },
    /// Without leading zeros before the point nor trailing ones behind it.
    Finite {
        negative: bool,
        whole: String,
        fraction: String,
    },
}

impl Number {
    fn of(value: &Bson) -> Self {
        let text = match value {
            Bson::Int32(v) => v.to_string(),
            Bson::Int64(v) => v.to_string(),
            // Exact: no double has more digits behind the point.
            Bson::Double(v) => format!("{v:.1080}"),
            Bson::Decimal128(v) => v.to_string(),
            _ => unreachable!("only numbers are asked for"),
        };
        let (negative, text) = text.strip_prefix('-').map_or((false, text.as_str()), |rest| (true, rest));
        match text.to_ascii_lowercase().as_str() {
            "nan" => return Number::NaN,
            "inf" | "infinity" => return Number::Infinite { negative },
            _ => {}
        }
        let (mantissa, exponent) = text.split_once(['E', 'e']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.trim_start_matches('+').parse().expect("an exponent is a number");
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        // Where the point is among the digits.
        let point = whole.len() as i64 + exponent;
        let padded = match usize::try_from(point) {
            Ok(point) => format!("{digits}{}", "0".repeat(point.saturating_sub(digits.len()))),
            Err(_) => format!("{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
        };
        let (whole, fraction) = padded.split_at(point.max(0) as usize);
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        let zero = whole.is_empty() && fraction.is_empty();
        Number::Finite { negative: negative && !zero, whole: whole.to_owned(), fraction: fraction.to_owned() }
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    // NaN is the smallest, and equal to itself.
    let class = |n: &Number| match n {
        Number::NaN => 0,
        Number::Infinite { negative: true } => 1,
        Number::Finite { negative: true, .. } => 2,
        Number::Finite { negative: false, .. } => 3,
        Number::Infinite { negative: false } => 4,
    };
    match (a, b) {
        (Number::Finite { negative, whole, fraction }, Number::Finite { whole: w, fraction: f, .. })
            if class(a) == class(b) =>
        {
            let size = whole.len().cmp(&w.len()).then_with(|| whole.cmp(w)).then_with(|| fraction.cmp(f));
            if *negative { size.reverse() } else { size }
        }
        _ => class(a).cmp(&class(b)),
    }
}

/// MongoDB's hash of a value; `None` for DBPointers.
pub fn hash(value: &Bson, seed: i32) -> Option<i64> {
    let mut md5 = Md5::new();
    md5.update(seed.to_le_bytes());
    feed(&mut md5, None, value)?;
    let digest = md5.finalize();
    Some(i64::from_le_bytes(*digest.first_chunk().expect("MD5 gives 16 bytes")))
}

fn feed(md5: &mut Md5, name: Option<&str>, value: &Bson) -> Option<()> {
    md5.update(canonical(value).to_le_bytes());
    if let Some(name) = name {
        md5.update([name.as_bytes(), &[0]].concat());
    }
    match value {
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => {
            md5.update(integer(value).to_le_bytes());
        }
        Bson::String(s) | Bson::Symbol(s) | Bson::JavaScriptCode(s) => {
            md5.update((s.len() as u32 + 1).to_le_bytes());
            md5.update([s.as_bytes(), &[0]].concat());
        }
        Bson::Document(doc) => feed_all(md5, doc.iter().map(|(name, value)| (name.clone(), value)))?,
        Bson::Array(list) => feed_all(md5, list.iter().enumerate().map(|(i, value)| (i.to_string(), value)))?,
        Bson::JavaScriptCodeWithScope(v) => {
            md5.update([v.code.as_bytes(), &[0]].concat());
            feed_all(md5, v.scope.iter().map(|(name, value)| (name.clone(), value)))?;
        }
        Bson::Binary(v) => {
            let inner = (v.subtype == BinarySubtype::BinaryOld).then(|| (v.bytes.len() as u32).to_le_bytes().to_vec());
            let stored = [inner.unwrap_or_default(), v.bytes.clone()].concat();
            md5.update((stored.len() as u32).to_le_bytes());
            md5.update([u8::from(v.subtype)]);
            md5.update(stored);
        }
        Bson::ObjectId(v) => md5.update(v.bytes()),
        Bson::Boolean(v) => md5.update([u8::from(*v)]),
        Bson::DateTime(v) => md5.update(v.timestamp_millis().to_le_bytes()),
        Bson::Timestamp(v) => md5.update([v.increment.to_le_bytes(), v.time.to_le_bytes()].concat()),
        Bson::RegularExpression(v) => {
            md5.update([v.pattern.as_str().as_bytes(), &[0], v.options.as_str().as_bytes(), &[0]].concat());
        }
        Bson::DbPointer(_) => return None,
        Bson::MinKey | Bson::MaxKey | Bson::Null | Bson::Undefined => {}
    }
    Some(())
}

fn feed_all<'v>(md5: &mut Md5, elements: impl Iterator<Item = (String, &'v Bson)>) -> Option<()> {
    for (name, value) in elements {
        feed(md5, Some(&name), value)?;
    }
    md5.update(0_i32.to_le_bytes());
    Some(())
}

/// The integer that a number is hashed as: a double is cut off, a decimal rounded to even, both clamped; exactly 2^63
/// as a double wraps around.
fn integer(value: &Bson) -> i64 {
    if let Bson::Double(v) = value
        && *v == 2_f64.powi(63)
    {
        return i64::MIN;
    }
    let (negative, whole, fraction) = match Number::of(value) {
        Number::NaN => return 0,
        Number::Infinite { negative } => return if negative { i64::MIN } else { i64::MAX },
        Number::Finite { negative, whole, fraction } => (negative, whole, fraction),
    };
    if whole.len() > 30 {
        return if negative { i64::MIN } else { i64::MAX };
    }
    let mut size: i128 = whole.parse().unwrap_or(0);
    if matches!(value, Bson::Decimal128(_)) {
        let half = fraction.as_str().cmp("5");
        size += i128::from(half.is_gt() || (half.is_eq() && size % 2 == 1));
    }
    let signed = if negative { -size } else { size };
    signed.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
