//! A client's command with its generic arguments read in one scan.

use std::collections::HashSet;

use bson::raw::RawBsonRef;
use bson::{RawArray, RawDocument};

use super::CommandSpec;
use super::read::stages;
use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::error::{Code, Error, Result};
use crate::session::SessionId;
use crate::wire::Message;

/// The arguments every command may carry. Offsets point into the body, nothing is copied.
#[derive(Clone, Debug, Default)]
pub struct Generic {
    db: (usize, usize),
    /// Milliseconds; 0 or missing means no limit.
    pub max_time_ms: Option<u64>,
    pub has_lsid: bool,
    /// The logical session that `lsid` names.
    pub session: Option<SessionId>,
    pub txn_number: Option<i64>,
    /// `autocommit: false` marks a statement of a multi-document transaction.
    pub in_transaction: bool,
    pub start_transaction: bool,
    pub has_write_concern: bool,
    pub has_read_concern: bool,
    pub has_read_preference: bool,
    pub has_comment: bool,
    /// `help: true`: what the command is for is asked, nothing is to be done.
    pub help: bool,
}

/// One command of a client.
pub struct Request {
    pub message: Message,
    pub spec: &'static CommandSpec,
    pub generic: Generic,
}

impl Generic {
    /// Reads the generic arguments of `body` in one pass.
    ///
    /// # Errors
    /// InvalidBSON for a malformed body, FailedToParse/BadValue/TypeMismatch for bad generic arguments, 40571 without `$db`.
    pub fn scan(body: &RawDocument) -> Result<Generic> {
        let mut generic = Generic::default();
        let bytes = body.as_bytes();
        let mut has_db = false;
        let mut seen = Seen::default();
        for (index, field) in bsonx::fields(bytes).enumerate() {
            if seen.is_second(bytes, index, field.key) {
                let name = String::from_utf8_lossy(field.key);
                let text = format!("BSON field '{name}' is a duplicate field of the command");
                return Err(Error::with_code(40413, text));
            }
            let value = || field.decode(bytes).ok_or_else(|| bad_value(field.key));
            match field.key {
                b"$db" => {
                    let RawBsonRef::String(db) = value()? else {
                        return Err(Error::new(Code::TypeMismatch, "Field '$db' must be a string"));
                    };
                    // Before a string's text stands its length.
                    generic.db = (field.value + 4, db.len());
                    has_db = true;
                }
                b"maxTimeMS" => generic.max_time_ms = max_time(value()?)?,
                b"lsid" => {
                    let RawBsonRef::Document(lsid) = value()? else {
                        return Err(Error::new(Code::TypeMismatch, "Field 'lsid' must be a document"));
                    };
                    generic.session = Some(SessionId::parse(lsid)?);
                    generic.has_lsid = true;
                }
                b"txnNumber" => generic.txn_number = bsonx::as_int(value()?),
                b"autocommit" => generic.in_transaction = !bsonx::is_true(value()?),
                b"startTransaction" => generic.start_transaction = bsonx::is_true(value()?),
                b"writeConcern" => generic.has_write_concern = true,
                b"readConcern" => {
                    generic.has_read_concern = true;
                    refuse_after_op_time(value()?)?;
                }
                b"pipeline" if field.kind == bsonx::kind::ARRAY => refuse_internal_stages(value()?)?,
                b"$readPreference" => generic.has_read_preference = true,
                b"comment" => generic.has_comment = true,
                b"help" => generic.help = matches!(value()?, RawBsonRef::Boolean(true)),
                key if is_internal(key) => return Err(internal_field(key)),
                _ => {}
            }
        }
        if !has_db {
            return Err(Error::with_code(40571, "OP_MSG requests require a $db argument"));
        }
        Ok(generic)
    }
}

/// The names of a command that were met so far.
#[derive(Default)]
struct Seen<'a> {
    /// A bit for each name. Nearly always the bits differ; where two agree, the few names before are compared.
    marks: u64,
    /// All names, where there are more than any command has: comparing each with all before would take for ever.
    many: HashSet<&'a [u8]>,
}

impl<'a> Seen<'a> {
    /// Names up to which comparing is cheaper than a set.
    const FEW: usize = 32;

    /// Whether a field before number `index` of `body` has this name.
    fn is_second(&mut self, body: &'a [u8], index: usize, name: &'a [u8]) -> bool {
        if index > Self::FEW {
            return !self.many.insert(name);
        }
        if index == Self::FEW {
            self.many.extend(bsonx::fields(body).take(index).map(|f| f.key));
            return !self.many.insert(name);
        }
        let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
        let mark = 1 << ((name.len() ^ (usize::from(first) * 7) ^ (usize::from(last) * 29)) & 63);
        let second = self.marks & mark != 0 && bsonx::fields(body).take(index).any(|f| f.key == name);
        self.marks |= mark;
        second
    }
}

/// Fields by which the servers of a set and of a cluster talk to each other. A shard obeys them: a `term` from a stranger
/// makes its primary step down, and ends the process for good where the number is too large.
fn is_internal(key: &[u8]) -> bool {
    matches!(
        key,
        b"term"
            | b"lastKnownCommittedOpTime"
            | b"shardVersion"
            | b"databaseVersion"
            | b"$replData"
            | b"$oplogQueryData"
            | b"$configServerState"
            | b"$configTime"
            | b"$topologyTime"
            | b"$audit"
            | b"$client"
            | b"tracking_info"
            | b"mayBypassWriteBlocking"
            | b"coordinator"
            | b"clientOperationKey"
            | b"isMapReduceCommand"
    )
}

fn internal_field(key: &[u8]) -> Error {
    let name = String::from_utf8_lossy(key);
    Error::with_code(40415, format!("BSON field '{name}' is an unknown field: it is for servers among themselves"))
}

fn refuse_after_op_time(read_concern: RawBsonRef<'_>) -> Result<()> {
    match read_concern {
        RawBsonRef::Document(concern) if bsonx::get(concern, "afterOpTime").is_some() => {
            Err(internal_field(b"readConcern.afterOpTime"))
        }
        _ => Ok(()),
    }
}

fn refuse_internal_stages(pipeline: RawBsonRef<'_>) -> Result<()> {
    pipeline.as_array().map_or(Ok(()), stages::refuse_internal)
}

/// Refuses what servers alone may say in a command inside another one (explain).
///
/// # Errors
/// 40415, naming the field; 5491300, naming the stage.
pub fn refuse_internal(command: &RawDocument) -> Result<()> {
    if let Some(field) = bsonx::fields(command.as_bytes()).find(|f| is_internal(f.key)) {
        return Err(internal_field(field.key));
    }
    bsonx::get(command, "readConcern").map_or(Ok(()), refuse_after_op_time)?;
    bsonx::get(command, "pipeline").map_or(Ok(()), refuse_internal_stages)
}

fn bad_value(key: &[u8]) -> Error {
    Error::new(Code::InvalidBSON, format!("The value of '{}' is malformed", String::from_utf8_lossy(key)))
}

fn max_time(value: RawBsonRef<'_>) -> Result<Option<u64>> {
    let n = match value {
        RawBsonRef::Double(d) if d.fract() != 0.0 => {
            return Err(Error::new(Code::BadValue, "maxTimeMS has non-integral value"));
        }
        other => bsonx::as_int(other).ok_or_else(|| Error::new(Code::BadValue, "maxTimeMS must be a number"))?,
    };
    match n {
        0 => Ok(None),
        1..=2_147_483_647 => Ok(Some(n as u64)),
        _ => Err(Error::new(Code::BadValue, format!("{n} value for maxTimeMS is out of range"))),
    }
}

impl Request {
    pub fn body(&self) -> &RawDocument {
        self.message.document()
    }

    pub fn db(&self) -> &str {
        let (start, len) = self.generic.db;
        // The range was taken from a checked string of this very body.
        std::str::from_utf8(&self.message.body[start..start + len]).unwrap_or("")
    }

    /// How many documents, updates or deletes a write command carries; 1 for every other command.
    pub fn statements(&self) -> u64 {
        let field = match self.spec.name {
            "insert" => "documents",
            "update" => "updates",
            "delete" => "deletes",
            _ => return 1,
        };
        self.message.document_count(field).unwrap_or(1) as u64
    }

    /// The value of the command's own field (`{find: <this>, …}`).
    pub fn argument(&self) -> Result<RawBsonRef<'_>> {
        let body = &self.message.body;
        match bsonx::fields(body).next() {
            Some(field) => field.decode(body).ok_or_else(|| bad_value(field.key)),
            None => Err(Error::new(Code::FailedToParse, "The command is empty")),
        }
    }

    /// The namespace of a command on a collection: `$db` and the command's own string.
    ///
    /// # Errors
    /// InvalidNamespace (73) where the name is empty or not a legal collection name, BadValue (2) where it is no string.
    pub fn namespace(&self) -> Result<Namespace> {
        match self.argument()? {
            RawBsonRef::String(coll) => Namespace::new(self.db(), coll),
            other => {
                // The server's older commands have another code for this.
                let code = match self.spec.name {
                    "collStats" | "validate" | "convertToCapped" => Code::InvalidNamespace,
                    _ => Code::BadValue,
                };
                let kind = bsonx::type_name(other.element_type());
                Err(Error::new(code, format!("collection name has invalid type {kind}")))
            }
        }
    }

    /// The full name that an admin command names in its own field (`{shardCollection: "db.coll"}`).
    pub fn full_namespace(&self) -> Result<Namespace> {
        match self.argument()? {
            RawBsonRef::String(full) => Namespace::parse(full),
            other => Err(Error::new(
                Code::TypeMismatch,
                format!(
                    "The '{}' command takes a namespace string, not {}",
                    self.spec.name,
                    bsonx::type_name(other.element_type())
                ),
            )),
        }
    }

    pub fn get(&self, key: &str) -> Option<RawBsonRef<'_>> {
        bsonx::get(self.body(), key)
    }

    /// A sub-document argument; TypeMismatch (14) if it is something else.
    pub fn doc_arg(&self, key: &str) -> Result<Option<&RawDocument>> {
        match self.get(key) {
            None | Some(RawBsonRef::Null) => Ok(None),
            Some(RawBsonRef::Document(d)) => Ok(Some(d)),
            Some(other) => Err(self.wrong_type(key, other, "object")),
        }
    }

    pub fn array_arg(&self, key: &str) -> Result<Option<&RawArray>> {
        match self.get(key) {
            None => Ok(None),
            Some(RawBsonRef::Array(a)) => Ok(Some(a)),
            Some(other) => Err(self.wrong_type(key, other, "array")),
        }
    }

    pub fn str_arg(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(RawBsonRef::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong_type(key, other, "string")),
        }
    }

    pub fn bool_arg(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(
                v @ (RawBsonRef::Boolean(_) | RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_)),
            ) => Ok(Some(bsonx::is_true(v))),
            Some(other) => Err(self.wrong_type(key, other, "bool")),
        }
    }

    pub fn int_arg(&self, key: &str) -> Result<Option<i64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => bsonx::as_int(v).map(Some).ok_or_else(|| self.wrong_type(key, v, "number")),
        }
    }

    fn wrong_type(&self, key: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
        Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field '{}.{key}' is the wrong type '{}', expected type '{expected}'",
                self.spec.name,
                bsonx::type_name(value.element_type())
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_field_stands_once() {
        let twice = |name: &str| {
            let mut body = bsonx::Writer::new();
            body.str("find", "c").int32(name, 1).int32("other", 1).int32(name, 1).str("$db", "d");
            Generic::scan(bsonx::view(&body.finish())).map(|_| ()).map_err(|e| e.code())
        };
        assert_eq!(twice("filter"), Err(40413));
        assert_eq!(twice("maxTimeMS"), Err(40413));
        assert_eq!(twice("$db").map_err(|_| ()), Err(()));
        let mut many = bsonx::Writer::new();
        for name in ["insert", "ordered", "lsid2", "txnNumber", "filter", "sort", "limit", "a", "b", "c", "comment"] {
            many.int32(name, 1);
        }
        many.str("$db", "d");
        let many = many.finish();
        assert!(Generic::scan(bsonx::view(&many)).is_ok());
        assert!(Generic::scan(&rawdoc! { "ping": 1 }).is_err());
    }

    #[test]
    fn many_fields_cost_no_more_than_their_number() {
        let body = |last: &str| {
            let mut body = bsonx::Writer::new();
            body.str("ping", "").str("$db", "d");
            for n in 0..500_000 {
                body.int32(&format!("f{n:06}"), 1);
            }
            body.int32(last, 1);
            body.finish()
        };
        let started = std::time::Instant::now();
        assert!(Generic::scan(bsonx::view(&body("g"))).is_ok());
        for twice in ["ping", "f000000", "f000029", "f000030", "f000031", "f499999"] {
            let error = Generic::scan(bsonx::view(&body(twice))).map(|_| ()).map_err(|e| e.code());
            assert_eq!(error, Err(40413), "{twice}");
        }
        assert!(started.elapsed().as_secs() < 30);
    }
}
