//! Numbers in commands, read as a server reads them.

use bson::RawBsonRef;

use crate::error::{Code, Error, Result};

/// A whole number from any BSON number, as servers read `limit`, `skip` and `batchSize`: doubles are truncated and
/// clamped, NaN is 0, decimals are rounded half to even. `None` for everything else.
pub fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(n) => Some(i64::from(n)),
        RawBsonRef::Int64(n) => Some(n),
        RawBsonRef::Double(n) => Some(n as i64),
        RawBsonRef::Decimal128(n) => n.to_string().parse::<f64>().ok().map(|n| n.round_ties_even() as i64),
        _ => None,
    }
}

/// [`whole`], at least 0; null is as good as missing.
///
/// # Errors
/// 51024 for negative numbers; TypeMismatch (14).
pub fn not_negative(command: &str, field: &str, value: RawBsonRef<'_>) -> Result<Option<i64>> {
    match whole(value) {
        Some(n) if n >= 0 => Ok(Some(n)),
        Some(n) => Err(Error::with_code(51024, format!("BSON field '{field}' value must be >= 0, actual value '{n}'"))),
        None if value == RawBsonRef::Null => Ok(None),
        None => Err(wrong_type(command, field, value, "number")),
    }
}

/// TypeMismatch (14) in a server's words.
pub fn wrong_type(command: &str, field: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    let found = crate::bsonx::type_name(value.element_type());
    let expected = match expected {
        "number" => "types '[long, int, decimal, double']".to_owned(),
        "bool or number" => "types '[bool, long, int, decimal, double']".to_owned(),
        one => format!("type '{one}'"),
    };
    Error::new(
        Code::TypeMismatch,
        format!("BSON field '{command}.{field}' is the wrong type '{found}', expected {expected}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn as_a_server_reads_them() {
        let decimal = |s: &str| whole(RawBsonRef::Decimal128(s.parse().unwrap()));
        assert_eq!(whole(RawBsonRef::Double(1.9)), Some(1));
        assert_eq!(whole(RawBsonRef::Double(f64::NAN)), Some(0));
        assert_eq!(whole(RawBsonRef::Double(1e30)), Some(i64::MAX));
        assert_eq!((decimal("2.5"), decimal("2.7"), decimal("3.5")), (Some(2), Some(3), Some(4)));
        assert_eq!(whole(RawBsonRef::Boolean(true)), None);
        assert_eq!(not_negative("find", "limit", RawBsonRef::Null).unwrap(), None);
        assert_eq!(not_negative("find", "limit", RawBsonRef::Int32(-1)).unwrap_err().code(), 51024);
        let error = not_negative("getMore", "batchSize", RawBsonRef::String("x")).unwrap_err();
        assert_eq!(
            error.message(),
            "BSON field 'getMore.batchSize' is the wrong type 'string', expected types '[long, int, decimal, double']"
        );
    }
}
