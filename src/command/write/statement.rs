//! One statement of an `update` or `delete` command: its parts, seen in place.

use bson::RawDocument;
use bson::raw::RawBsonRef;

use crate::bsonx;
use crate::error::{Code, Error, Result};

/// How an update says what to change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change<'a> {
    /// The whole new document.
    Replacement(&'a RawDocument),
    /// `{$set: …}`.
    Operators(&'a RawDocument),
    /// An aggregation pipeline (the array, as a document).
    Pipeline(&'a RawDocument),
}

/// What to change, however many documents it applies to.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    pub raw: &'a RawDocument,
    pub filter: &'a RawDocument,
    pub change: Change<'a>,
    pub multi: bool,
    pub upsert: bool,
    pub collation: Option<&'a RawDocument>,
}

#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    pub raw: &'a RawDocument,
    pub filter: &'a RawDocument,
    /// `limit: 1`.
    pub single: bool,
    pub collation: Option<&'a RawDocument>,
}

impl<'a> Change<'a> {
    /// Reads the `u` of an update or the `update` of a findAndModify.
    ///
    /// # Errors
    /// FailedToParse (9) for anything but a document or an array.
    pub fn parse(value: RawBsonRef<'a>) -> Result<Self> {
        match value {
            RawBsonRef::Array(stages) => Ok(Change::Pipeline(bsonx::view(stages.as_bytes()))),
            RawBsonRef::Document(doc) if bsonx::first_key(doc.as_bytes()).is_some_and(|k| k.starts_with('$')) => {
                Ok(Change::Operators(doc))
            }
            RawBsonRef::Document(doc) => Ok(Change::Replacement(doc)),
            _ => Err(Error::new(Code::FailedToParse, "Update argument must be either an object or an array")),
        }
    }

    /// Whether operators and plain fields stand side by side.
    pub fn is_mixed(&self) -> bool {
        let starts = |doc: &RawDocument, wanted: bool| {
            bsonx::fields(doc.as_bytes()).any(|f| (f.key.first() == Some(&b'$')) == wanted)
        };
        match self {
            Change::Replacement(doc) => starts(doc, true),
            Change::Operators(doc) => starts(doc, false),
            Change::Pipeline(_) => false,
        }
    }
}

impl<'a> Update<'a> {
    /// # Errors
    /// 40414 for missing fields, TypeMismatch (14) or FailedToParse (9) for wrong types. Such an error fails the whole
    /// command, as on a server.
    pub fn parse(raw: &'a RawDocument) -> Result<Self> {
        let (mut filter, mut change, mut multi, mut upsert, mut collation) = (None, None, false, false, None);
        for field in bsonx::fields(raw.as_bytes()) {
            let value = value_of(field, raw)?;
            if is_nothing(field.key, value) {
                continue;
            }
            match field.key {
                b"q" => filter = Some(document("update.updates.q", value)?),
                b"u" => change = Some(Change::parse(value)?),
                b"multi" => multi = boolean("update.updates.multi", value)?,
                b"upsert" => upsert = boolean("update.updates.upsert", value)?,
                b"collation" => collation = Some(document("update.updates.collation", value)?),
                b"hint" => check_hint(value)?,
                _ => {}
            }
        }
        Ok(Update {
            raw,
            filter: filter.ok_or_else(|| missing("update.updates.q"))?,
            change: change.ok_or_else(|| missing("update.updates.u"))?,
            multi,
            upsert,
            collation: collation.filter(|c| !c.is_empty()),
        })
    }

    /// What is wrong with the statement by itself; such an error concerns this statement only.
    pub fn check(&self) -> Result<()> {
        if self.change.is_mixed() {
            return Err(Error::new(
                Code::UnsupportedFormat,
                "An update cannot have both operators and plain fields; use operators only, or a whole new document",
            ));
        }
        if self.multi && matches!(self.change, Change::Replacement(_)) {
            return Err(Error::new(Code::InvalidOptions, "multi update is not supported for replacement-style update"));
        }
        Ok(())
    }
}

impl<'a> Delete<'a> {
    /// # Errors
    /// As [`Update::parse`].
    pub fn parse(raw: &'a RawDocument) -> Result<Self> {
        let (mut filter, mut limit, mut collation) = (None, None, None);
        for field in bsonx::fields(raw.as_bytes()) {
            let value = value_of(field, raw)?;
            if is_nothing(field.key, value) {
                continue;
            }
            match field.key {
                b"q" => filter = Some(document("delete.deletes.q", value)?),
                // Anything but a number counts as 0, as on a server.
                b"limit" => limit = Some(bsonx::as_int(value).unwrap_or(0)),
                b"collation" => collation = Some(document("delete.deletes.collation", value)?),
                b"hint" => check_hint(value)?,
                _ => {}
            }
        }
        let single = match limit.ok_or_else(|| missing("delete.deletes.limit"))? {
            0 => false,
            1 => true,
            other => {
                return Err(Error::new(
                    Code::FailedToParse,
                    format!("The limit field in delete objects must be 0 or 1. Got {other}"),
                ));
            }
        };
        let filter = filter.ok_or_else(|| missing("delete.deletes.q"))?;
        Ok(Delete { raw, filter, single, collation: collation.filter(|c| !c.is_empty()) })
    }
}

pub(super) fn missing(field: &str) -> Error {
    Error::with_code(40414, format!("BSON field '{field}' is missing but a required field"))
}

fn document<'a>(field: &str, value: RawBsonRef<'a>) -> Result<&'a RawDocument> {
    match value {
        RawBsonRef::Document(doc) => Ok(doc),
        other => Err(wrong_type(field, other, "object")),
    }
}

/// As on a server, null is as good as nothing, but for the fields that must be there or are looked at in any case.
fn is_nothing(name: &[u8], value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Null) && !matches!(name, b"u" | b"limit" | b"hint")
}

fn value_of<'a>(field: bsonx::Field<'_>, statement: &'a RawDocument) -> Result<RawBsonRef<'a>> {
    field.decode(statement.as_bytes()).ok_or_else(|| {
        Error::new(Code::InvalidBSON, format!("'{}' has no valid value", String::from_utf8_lossy(field.key)))
    })
}

fn check_hint(value: RawBsonRef<'_>) -> Result<()> {
    match value {
        RawBsonRef::String(_) | RawBsonRef::Document(_) => Ok(()),
        _ => Err(Error::new(Code::FailedToParse, "Hint must be a string or an object")),
    }
}

fn boolean(field: &str, value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(b) => Ok(b),
        other => Err(wrong_type(field, other, "bool")),
    }
}

fn wrong_type(field: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    Error::new(
        Code::TypeMismatch,
        format!(
            "BSON field '{field}' is the wrong type '{}', expected type '{expected}'",
            bsonx::type_name(value.element_type())
        ),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::rawdoc;

    use super::*;

    #[test]
    fn styles_are_told_apart() {
        let style = |doc: bson::RawDocumentBuf| {
            let doc = rawdoc! { "q": {}, "u": doc };
            let update = Update::parse(&doc).unwrap();
            (format!("{:?}", update.change).split('(').next().unwrap().to_owned(), update.change.is_mixed())
        };
        assert_eq!(style(rawdoc! {}), ("Replacement".into(), false));
        assert_eq!(style(rawdoc! { "a": 1 }), ("Replacement".into(), false));
        assert_eq!(style(rawdoc! { "$set": { "a": 1 } }), ("Operators".into(), false));
        assert_eq!(style(rawdoc! { "$set": {}, "a": 1 }), ("Operators".into(), true));
        assert_eq!(style(rawdoc! { "a": 1, "$set": {} }), ("Replacement".into(), true));
    }

    #[test]
    fn malformed_statements_have_a_servers_codes() {
        let code = |doc: bson::RawDocumentBuf| Update::parse(&doc).unwrap_err().code();
        assert_eq!(code(rawdoc! { "q": {} }), 40414);
        assert_eq!(code(rawdoc! { "u": {} }), 40414);
        assert_eq!(code(rawdoc! { "q": 5, "u": {} }), 14);
        assert_eq!(code(rawdoc! { "q": {}, "u": 5 }), 9);
        assert_eq!(code(rawdoc! { "q": {}, "u": null }), 9);
        assert_eq!(code(rawdoc! { "q": null, "u": {} }), 40414);
        assert_eq!(code(rawdoc! { "q": {}, "u": {}, "multi": 1 }), 14);
        assert_eq!(code(rawdoc! { "q": {}, "u": {}, "hint": null }), 9);
        assert_eq!(Delete::parse(&rawdoc! { "q": {}, "limit": 1, "hint": 5 }).unwrap_err().code(), 9);
        assert_eq!(Delete::parse(&rawdoc! { "q": {} }).unwrap_err().code(), 40414);
        assert_eq!(Delete::parse(&rawdoc! { "q": {}, "limit": 2 }).unwrap_err().code(), 9);
        assert!(!Delete::parse(&rawdoc! { "q": {}, "limit": true }).unwrap().single);
        assert!(Delete::parse(&rawdoc! { "q": {}, "limit": 1.0 }).unwrap().single);
    }

    #[test]
    fn null_is_as_good_as_nothing() {
        let doc = rawdoc! { "q": {}, "u": {}, "multi": null, "upsert": null, "collation": null };
        let update = Update::parse(&doc).unwrap();
        assert_eq!((update.multi, update.upsert, update.collation), (false, false, None));
        let doc = rawdoc! { "q": {}, "limit": null, "collation": null };
        let delete = Delete::parse(&doc).unwrap();
        assert_eq!((delete.single, delete.collation), (false, None));
    }

    #[test]
    fn a_replacement_of_many_is_refused() {
        let doc = rawdoc! { "q": {}, "u": { "a": 1 }, "multi": true };
        assert!(Update::parse(&doc).unwrap().check().unwrap_err().is(Code::InvalidOptions));
    }
}
