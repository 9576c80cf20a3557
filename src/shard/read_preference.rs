//! `$readPreference`: which member of each shard may serve a command.

use std::fmt;
use std::time::Duration;

use bson::{RawBsonRef, RawDocument};

use crate::bsonx;
use crate::error::{Code, Error, Result};

/// The smallest `maxStalenessSeconds` that makes sense (server selection specification).
pub const MIN_MAX_STALENESS: Duration = Duration::from_secs(90);

/// The five modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Primary => "primary",
            Mode::PrimaryPreferred => "primaryPreferred",
            Mode::Secondary => "secondary",
            Mode::SecondaryPreferred => "secondaryPreferred",
            Mode::Nearest => "nearest",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "primary" => Mode::Primary,
            "primaryPreferred" => Mode::PrimaryPreferred,
            "secondary" => Mode::Secondary,
            "secondaryPreferred" => Mode::SecondaryPreferred,
            "nearest" => Mode::Nearest,
            _ => return None,
        })
    }
}

/// A set of `name: value` pairs that a member must carry all of; the empty set is carried by every member.
pub type TagSet = Vec<(String, String)>;

/// A parsed read preference. `Default` is `primary`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReadPreference {
    pub mode: Mode,
    /// Tried in order; the first that any eligible member carries decides. Empty = any member.
    pub tag_sets: Vec<TagSet>,
    pub max_staleness: Option<Duration>,
}

impl ReadPreference {
    pub const PRIMARY: ReadPreference =
        ReadPreference { mode: Mode::Primary, tag_sets: Vec::new(), max_staleness: None };

    /// A preference of `mode` alone.
    pub const fn mode(mode: Mode) -> Self {
        ReadPreference { mode, tag_sets: Vec::new(), max_staleness: None }
    }

    pub fn is_primary(&self) -> bool {
        self.mode == Mode::Primary
    }

    /// The `$readPreference` of a command's body; `primary` where it has none.
    pub fn from_command(body: &RawDocument) -> Result<Self> {
        match bsonx::get(body, "$readPreference") {
            None => Ok(Self::PRIMARY),
            Some(value) => Self::from_value(value),
        }
    }

    /// The value of `$readPreference`.
    ///
    /// # Errors
    /// As a server: TypeMismatch (14), NoSuchKey (4), BadValue (2), MaxStalenessOutOfRange (160), InvalidOptions (72),
    /// 40415.
    pub fn from_value(value: RawBsonRef<'_>) -> Result<Self> {
        match value {
            RawBsonRef::Document(doc) => Self::parse(doc),
            other => {
                let found = bsonx::type_name(other.element_type());
                let text = format!("$readPreference has incorrect type: expected object but got {found}");
                Err(Error::new(Code::TypeMismatch, text))
            }
        }
    }

    /// Parses `{mode, tags?, maxStalenessSeconds?, hedge?}`; `hedge` is checked and ignored.
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let text = match bsonx::get(doc, "mode") {
            Some(RawBsonRef::String(text)) => text,
            Some(other) => return Err(Error::wrong_kind("mode", other.element_type(), "string")),
            None => return Err(Error::new(Code::NoSuchKey, "Missing expected field \"mode\"")),
        };
        let mode = Mode::parse(text).ok_or_else(|| {
            let text = format!(
                "Could not parse $readPreference mode '{text}'. Only the modes 'primary', 'primaryPreferred', \
                 'secondary', 'secondaryPreferred', and 'nearest' are supported"
            );
            Error::new(Code::BadValue, text)
        })?;
        let tag_sets = match bsonx::get(doc, "tags") {
            None => Vec::new(),
            Some(RawBsonRef::Array(list)) => {
                let mut sets = Vec::new();
                for set in list.into_iter() {
                    let Some(set) = set?.as_document() else {
                        return Err(Error::new(
                            Code::TypeMismatch,
                            "each entry of $readPreference.tags has to be a document",
                        ));
                    };
                    sets.push(parse_tag_set(set)?);
                }
                sets
            }
            Some(other) => return Err(Error::wrong_kind("tags", other.element_type(), "array")),
        };
        let max_staleness = match bsonx::get(doc, "maxStalenessSeconds") {
            None => None,
            Some(value) => parse_staleness(value)?,
        };
        if mode == Mode::Primary && tag_sets.iter().any(|set| !set.is_empty()) {
            return Err(Error::new(Code::BadValue, "Only empty tags are allowed with primary read preference"));
        }
        if mode == Mode::Primary && max_staleness.is_some() {
            return Err(Error::new(Code::BadValue, "maxStalenessSeconds can not be set for the primary mode"));
        }
        if let Some(hedge) = bsonx::get(doc, "hedge") {
            check_hedge(hedge, mode)?;
        }
        Ok(ReadPreference { mode, tag_sets: if mode == Mode::Primary { Vec::new() } else { tag_sets }, max_staleness })
    }
}

/// As the server prints it: `{ mode: "nearest", tags: [ { dc: "a" } ], maxStalenessSeconds: 90 }`.
impl fmt::Display for ReadPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ mode: \"{}\"", self.mode.as_str())?;
        if !self.tag_sets.is_empty() {
            let set = |tags: &TagSet| match tags.is_empty() {
                true => "{}".to_owned(),
                false => format!(
                    "{{ {} }}",
                    tags.iter().map(|(k, v)| format!("{k}: \"{v}\"")).collect::<Vec<_>>().join(", ")
                ),
            };
            write!(f, ", tags: [ {} ]", self.tag_sets.iter().map(set).collect::<Vec<_>>().join(", "))?;
        }
        if let Some(limit) = self.max_staleness {
            write!(f, ", maxStalenessSeconds: {}", limit.as_secs())?;
        }
        f.write_str(" }")
    }
}

fn parse_tag_set(set: &RawDocument) -> Result<TagSet> {
    let mut tags = TagSet::new();
    for entry in set.iter() {
        let (key, value) = entry?;
        let Some(value) = value.as_str() else {
            return Err(Error::new(Code::TypeMismatch, "the values of $readPreference.tags have to be strings"));
        };
        tags.push((key.as_str().to_owned(), value.to_owned()));
    }
    Ok(tags)
}

fn parse_staleness(value: RawBsonRef<'_>) -> Result<Option<Duration>> {
    let Some(seconds) = bsonx::as_int(value) else {
        let found = bsonx::type_name(value.element_type());
        let text = format!("Expected field \"maxStalenessSeconds\" to have numeric type, but found {found}");
        return Err(Error::new(Code::TypeMismatch, text));
    };
    if let RawBsonRef::Double(exact) = value
        && exact.fract() != 0.0
    {
        let text = format!(
            "Expected field \"maxStalenessSeconds\" to have a value exactly representable as a 64-bit integer, \
             but found maxStalenessSeconds: {exact}"
        );
        return Err(Error::new(Code::BadValue, text));
    }
    match seconds {
        // As good as none.
        0 => Ok(None),
        ..0 => Err(Error::new(Code::BadValue, "maxStalenessSeconds must be a non-negative integer")),
        n if n >= MIN_MAX_STALENESS.as_secs() as i64 => Ok(Some(Duration::from_secs(n as u64))),
        _ => Err(Error::new(
            Code::MaxStalenessOutOfRange,
            format!("maxStalenessSeconds value can not be less than {}", MIN_MAX_STALENESS.as_secs()),
        )),
    }
}

/// `hedge` has no effect here, but what is wrong with it is said.
fn check_hedge(hedge: RawBsonRef<'_>, mode: Mode) -> Result<()> {
    let RawBsonRef::Document(hedge) = hedge else {
        let found = bsonx::type_name(hedge.element_type());
        let text = format!("hedge field must be of type object if provided; found {found}");
        return Err(Error::new(Code::TypeMismatch, text));
    };
    let mut enabled = true;
    for entry in hedge.iter() {
        match entry? {
            (key, RawBsonRef::Boolean(given)) if key == "enabled" => enabled = given,
            (key, RawBsonRef::Null) if key == "enabled" => {}
            (key, other) if key == "enabled" => {
                let found = bsonx::type_name(other.element_type());
                let text = format!("BSON field 'hedge.enabled' is the wrong type '{found}', expected type 'bool'");
                return Err(Error::new(Code::TypeMismatch, text));
            }
            (key, _) => {
                return Err(Error::with_code(40415, format!("BSON field 'hedge.{key}' is an unknown field.")));
            }
        }
    }
    match enabled && mode == Mode::Primary {
        true => Err(Error::new(Code::InvalidOptions, "cannot enable hedging for $readPreference mode \"primaryOnly\"")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    fn code(doc: bson::RawDocumentBuf) -> i32 {
        ReadPreference::parse(&doc).unwrap_err().code()
    }

    #[test]
    fn parses_modes_tags_and_staleness() {
        let p = ReadPreference::parse(
            &rawdoc! {"mode": "nearest", "tags": [{"dc": "a", "use": "x"}, {}], "maxStalenessSeconds": 120},
        )
        .unwrap();
        assert_eq!(p.mode, Mode::Nearest);
        assert_eq!(p.tag_sets, vec![vec![("dc".into(), "a".into()), ("use".into(), "x".into())], vec![]]);
        assert_eq!(p.max_staleness, Some(Duration::from_secs(120)));
        let body = rawdoc! {"find": "c", "$db": "d"};
        assert_eq!(ReadPreference::from_command(&body).unwrap(), ReadPreference::PRIMARY);
        let body =
            rawdoc! {"find": "c", "$db": "d", "$readPreference": {"mode": "secondary", "hedge": {"enabled": true}}};
        assert_eq!(ReadPreference::from_command(&body).unwrap(), ReadPreference::mode(Mode::Secondary));
    }

    #[test]
    fn prints_as_the_server_does() {
        assert_eq!(ReadPreference::PRIMARY.to_string(), "{ mode: \"primary\" }");
        let p = rawdoc! {"mode": "nearest", "tags": [{"dc": "a", "x": "y"}, {}], "maxStalenessSeconds": 90};
        assert_eq!(
            ReadPreference::parse(&p).unwrap().to_string(),
            "{ mode: \"nearest\", tags: [ { dc: \"a\", x: \"y\" }, {} ], maxStalenessSeconds: 90 }"
        );
    }

    #[test]
    fn refuses_nonsense() {
        assert_eq!(code(rawdoc! {"mode": "first"}), 2);
        assert_eq!(code(rawdoc! {"mode": 1}), 14);
        assert_eq!(code(rawdoc! {}), 4);
        assert_eq!(code(rawdoc! {"mode": "nearest", "maxStalenessSeconds": 89}), 160);
        assert_eq!(code(rawdoc! {"mode": "nearest", "maxStalenessSeconds": -1}), 2);
        assert_eq!(code(rawdoc! {"mode": "nearest", "maxStalenessSeconds": 90.5}), 2);
        assert_eq!(code(rawdoc! {"mode": "nearest", "hedge": {"a": 1}}), 40415);
        assert_eq!(code(rawdoc! {"mode": "primary", "hedge": {}}), 72);
        assert_eq!(code(rawdoc! {"mode": "nearest", "tags": {}}), 14);
        assert_eq!(code(rawdoc! {"mode": "primary", "tags": [{"a": "b"}]}), 2);
        assert_eq!(code(rawdoc! {"mode": "primary", "maxStalenessSeconds": 100}), 2);
        assert!(ReadPreference::parse(&rawdoc! {"mode": "primary", "tags": [{}]}).is_ok());
        assert!(
            ReadPreference::parse(&rawdoc! {"mode": "secondary", "maxStalenessSeconds": 0})
                .unwrap()
                .max_staleness
                .is_none()
        );
    }
}
