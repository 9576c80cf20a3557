//! `writeConcern` and `readConcern`, checked as a server checks them: not every command passes them on to one.

use bson::RawDocument;
use bson::raw::RawBsonRef;

use super::read::numbers::whole;
use super::{Access, CommandSpec};
use crate::bsonx;
use crate::error::{Code, Error, Result};

/// The most members a write concern may ask for.
const MAX_MEMBERS: i64 = 50;

/// Who set a concern.
const PROVENANCES: &[&str] =
    &["clientSupplied", "implicitDefault", "customDefault", "getLastErrorDefaults", "internalWriteDefault"];

/// # Errors
/// InvalidOptions (72) where the command takes none; TypeMismatch (14), FailedToParse (9), 40415, BadValue (2).
pub fn check_write(spec: &CommandSpec, body: &RawDocument) -> Result<()> {
    let Some(value) = bsonx::get(body, "writeConcern") else { return Ok(()) };
    if spec.access == Access::Open || (spec.access == Access::Read && spec.name != "aggregate") {
        return Err(Error::new(Code::InvalidOptions, "Command does not support writeConcern"));
    }
    let RawBsonRef::Document(concern) = value else { return Err(wrong_type("writeConcern", value, "object")) };
    let (mut journal, mut fsync) = (false, false);
    for element in concern.iter() {
        let (key, value) = element?;
        match key.as_str() {
            "w" => check_w(value)?,
            "j" => journal = flag("j", value)?,
            "fsync" => fsync = flag("fsync", value)?,
            // Only what is a number and too large is refused.
            "wtimeout" if whole(value).is_some_and(|n| i32::try_from(n).is_err()) => {
                return Err(Error::new(Code::FailedToParse, "wtimeout must be a 32-bit integer"));
            }
            "wtimeout" | "wElectionId" | "wOpTime" | "getLastError" | "getlasterror" => {}
            "provenance" => check_provenance("WriteConcernOptions", value)?,
            key => {
                let text = format!("BSON field 'WriteConcernOptions.{key}' is an unknown field.");
                return Err(Error::with_code(40415, text));
            }
        }
    }
    match journal && fsync {
        true => Err(Error::new(Code::FailedToParse, "fsync and j options cannot be used together")),
        false => Ok(()),
    }
}

fn check_w(value: RawBsonRef<'_>) -> Result<()> {
    let failed = |text: String| Err(Error::new(Code::FailedToParse, text));
    match value {
        RawBsonRef::String(_) | RawBsonRef::Null => Ok(()),
        RawBsonRef::Document(tags) if tags.is_empty() => failed("tagged write concern requires tags".to_owned()),
        RawBsonRef::Document(tags) => match tags.iter().flatten().find(|(_, v)| whole(*v).is_none()) {
            None => Ok(()),
            Some((key, _)) => {
                failed(format!("tags must be a single level document with only number values; found: {key}"))
            }
        },
        other => match whole(other) {
            Some(0..=MAX_MEMBERS) => Ok(()),
            Some(n) => {
                failed(format!("w has to be a non-negative number and not greater than {MAX_MEMBERS}; found: {n}"))
            }
            None => failed(format!("w has to be a number, string, or object; found: {}", name(other))),
        },
    }
}

fn flag(field: &str, value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(_) | RawBsonRef::Null => {}
        other if whole(other).is_some() => {}
        other => {
            let text = format!(
                "BSON field 'WriteConcernOptions.{field}' is the wrong type '{}', \
                 expected types '[bool, long, int, decimal, double']",
                name(other)
            );
            return Err(Error::new(Code::TypeMismatch, text));
        }
    }
    Ok(bsonx::is_true(value))
}

/// # Errors
/// FailedToParse (9), TypeMismatch (14), InvalidOptions (72), BadValue (2).
pub fn check_read(spec: &CommandSpec, body: &RawDocument) -> Result<()> {
    let invalid = |text: String| Err(Error::new(Code::InvalidOptions, text));
    let Some(value) = bsonx::get(body, "readConcern") else { return Ok(()) };
    let RawBsonRef::Document(concern) = value else {
        return Err(match value {
            // Declared by this command, so that the type is looked at first.
            other if spec.name == "aggregate" && other != RawBsonRef::Null => {
                super::read::numbers::wrong_type("aggregate", "readConcern", other, "object")
            }
            _ => Error::new(Code::FailedToParse, "readConcern field should be an object"),
        });
    };
    let (mut level, mut after, mut at) = (None, false, false);
    for element in concern.iter() {
        let (key, value) = element?;
        match (key.as_str(), value) {
            ("level", RawBsonRef::String(text)) => level = Some(checked_level(text)?),
            ("level", other) => return Err(wrong_type("level", other, "string")),
            ("afterClusterTime" | "atClusterTime", RawBsonRef::Timestamp(time)) => {
                if (time.time, time.increment) == (0, 0) {
                    return invalid(format!("{key} cannot be a null timestamp"));
                }
                after |= key == "afterClusterTime";
                at |= key == "atClusterTime";
            }
            ("afterClusterTime" | "atClusterTime", other) => return Err(wrong_type(key.as_str(), other, "timestamp")),
            ("provenance", value) => check_provenance("ReadConcernArgs::parse", value)?,
            // Refused before.
            ("afterOpTime", _) => {}
            (key, _) => return invalid(format!("Unrecognized option in readConcern: {key}")),
        }
    }
    if after && at {
        return invalid(
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed.".into(),
        );
    }
    if after && matches!(level, Some("linearizable" | "available")) {
        return invalid(
            "afterClusterTime field can be set only if level is equal to majority, local, or snapshot".into(),
        );
    }
    if at && level != Some("snapshot") {
        return invalid("atClusterTime field can be set only if level is equal to snapshot".into());
    }
    // Whether the other commands support a level, a shard says.
    let answered_here = spec.access == Access::Open;
    let unsupported = if answered_here {
        level.is_some_and(|l| l != "local")
    } else {
        spec.name == "explain" && matches!(level, Some("linearizable" | "snapshot"))
    };
    match level {
        Some(level) if unsupported => invalid(format!(
            "Command {} does not support {{ readConcern: {{ level: \"{level}\", provenance: \"clientSupplied\" }} }} \
             :: caused by :: read concern not supported",
            spec.name
        )),
        _ if answered_here && after => invalid("afterClusterTime is not allowed for this command".into()),
        _ => Ok(()),
    }
}

fn checked_level(text: &str) -> Result<&str> {
    match text {
        "local" | "majority" | "linearizable" | "available" | "snapshot" => Ok(text),
        _ => Err(Error::new(
            Code::FailedToParse,
            "readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or 'snapshot'",
        )),
    }
}

fn check_provenance(place: &str, value: RawBsonRef<'_>) -> Result<()> {
    match value {
        RawBsonRef::Null => Ok(()),
        RawBsonRef::String(text) if PROVENANCES.contains(&text) => Ok(()),
        RawBsonRef::String(text) => {
            let text = format!("Enumeration value '{text}' for field '{place}.provenance' is not a valid value.");
            Err(Error::new(Code::BadValue, text))
        }
        other => {
            let text =
                format!("BSON field '{place}.provenance' is the wrong type '{}', expected type 'string'", name(other));
            Err(Error::new(Code::TypeMismatch, text))
        }
    }
}

fn name(value: RawBsonRef<'_>) -> &'static str {
    bsonx::type_name(value.element_type())
}

fn wrong_type(field: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    Error::wrong_kind(field, value.element_type(), expected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::command::lookup;
    use bson::{Timestamp, rawdoc};

    /// As a mongod 6.0 answers.
    #[test]
    fn write_concerns() {
        let check = |command: &str, concern: bson::RawDocumentBuf| {
            check_write(lookup(command).unwrap(), &rawdoc! { "writeConcern": concern }).map_err(|e| e.code())
        };
        for good in [
            rawdoc! {},
            rawdoc! { "w": "majority", "wtimeout": 5, "j": 1 },
            rawdoc! { "w": 1.5 },
            rawdoc! { "w": { "dc": 2 } },
            rawdoc! { "wtimeout": "x", "provenance": "clientSupplied" },
        ] {
            assert_eq!(check("insert", good.clone()), Ok(()), "{good:?}");
            assert_eq!(check("ping", good), Err(72));
        }
        for (bad, code) in [
            (rawdoc! { "w": -1 }, 9),
            (rawdoc! { "w": 51 }, 9),
            (rawdoc! { "w": true }, 9),
            (rawdoc! { "w": {} }, 9),
            (rawdoc! { "wtimeout": 1_i64 << 40 }, 9),
            (rawdoc! { "j": true, "fsync": true }, 9),
            (rawdoc! { "j": "x" }, 14),
            (rawdoc! { "a": 1 }, 40415),
            (rawdoc! { "provenance": "x" }, 2),
        ] {
            assert_eq!(check("insert", bad.clone()), Err(code), "{bad:?}");
        }
    }

    #[test]
    fn read_concerns() {
        let check = |command: &str, concern: bson::RawDocumentBuf| {
            check_read(lookup(command).unwrap(), &rawdoc! { "readConcern": concern }).map_err(|e| e.code())
        };
        let time = Timestamp { time: 5, increment: 1 };
        assert_eq!(check("find", rawdoc! { "level": "snapshot", "atClusterTime": time }), Ok(()));
        assert_eq!(check("find", rawdoc! { "level": "majority", "afterClusterTime": time }), Ok(()));
        assert_eq!(check("ping", rawdoc! { "level": "local" }), Ok(()));
        for (bad, code) in [
            (rawdoc! { "level": "x" }, 9),
            (rawdoc! { "level": 1 }, 14),
            (rawdoc! { "atClusterTime": time }, 72),
            (rawdoc! { "afterClusterTime": 5 }, 14),
            (rawdoc! { "afterClusterTime": Timestamp { time: 0, increment: 0 } }, 72),
            (rawdoc! { "level": "available", "afterClusterTime": time }, 72),
            (rawdoc! { "a": 1 }, 72),
        ] {
            assert_eq!(check("find", bad.clone()), Err(code), "{bad:?}");
        }
        assert_eq!(check("ping", rawdoc! { "level": "majority" }), Err(72));
        assert_eq!(check("explain", rawdoc! { "level": "snapshot" }), Err(72));
    }
}
