//! The arguments that every command may carry, read in one scan and checked as a server checks them.

use std::collections::HashSet;

use bson::RawDocument;
use bson::raw::RawBsonRef;

use super::read::numbers::{whole, wrong_type};
use super::read::stages;
use super::{Access, CommandSpec, concern};
use crate::bsonx::{self, kind};
use crate::error::{Code, Error, Result};
use crate::router::clock;
use crate::session::SessionId;
use crate::shard::ReadPreference;

/// The arguments every command may carry. Offsets point into the body, nothing is copied.
#[derive(Clone, Debug, Default)]
pub struct Generic {
    /// Where the name of `$db` lies in the body: offset and length.
    pub(super) db: (usize, usize),
    /// Milliseconds; 0 or missing means no limit.
    pub max_time_ms: Option<u64>,
    pub has_lsid: bool,
    /// The logical session that `lsid` names.
    pub session: Option<SessionId>,
    pub txn_number: Option<i64>,
    /// `autocommit: false` marks a statement of a multi-document transaction.
    pub in_transaction: bool,
    autocommit: Option<bool>,
    start_transaction: Option<bool>,
    pub has_write_concern: bool,
    pub has_read_concern: bool,
    pub read_preference: ReadPreference,
    pub has_comment: bool,
    /// `help: true`: what the command is for is asked, nothing is to be done.
    pub help: bool,
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
                        return Err(no_string_db(value()?));
                    };
                    // Before a string's text stands its length.
                    generic.db = (field.value + 4, db.len());
                    has_db = true;
                }
                b"maxTimeMS" => generic.max_time_ms = max_time(value()?, body)?,
                b"lsid" => {
                    let given = session_field(value()?, "lsid", "object", |v| v.as_document())?;
                    generic.session = given.map(SessionId::parse).transpose()?;
                    generic.has_lsid = given.is_some();
                }
                b"txnNumber" => generic.txn_number = session_field(value()?, "txnNumber", "long", |v| v.as_i64())?,
                b"autocommit" => generic.autocommit = session_field(value()?, "autocommit", "bool", |v| v.as_bool())?,
                b"startTransaction" => {
                    generic.start_transaction = session_field(value()?, "startTransaction", "bool", |v| v.as_bool())?;
                }
                b"$clusterTime" => clock::check_gossip(value()?)?,
                b"writeConcern" => generic.has_write_concern = true,
                b"readConcern" => {
                    generic.has_read_concern = true;
                    refuse_after_op_time(value()?)?;
                }
                b"pipeline" if field.kind == bsonx::kind::ARRAY => refuse_internal_stages(value()?)?,
                b"$readPreference" => generic.read_preference = ReadPreference::from_value(value()?)?,
                b"runtimeConstants" if field.kind != kind::NULL => refuse_runtime_constants(body)?,
                b"comment" => generic.has_comment = true,
                b"help" => generic.help = matches!(value()?, RawBsonRef::Boolean(true)),
                key if is_internal(key) => return Err(internal_field(key)),
                _ => {}
            }
        }
        if !has_db {
            return Err(no_db());
        }
        generic.in_transaction = generic.autocommit == Some(false);
        Ok(generic)
    }

    /// Checks what depends on the command or on several fields together.
    ///
    /// # Errors
    /// As a server has them: InvalidOptions (72), OperationNotSupportedInTransaction (263), NotARetryableWriteCommand
    /// (50768), 40415 for fields that a command does not know, and those of [`concern`].
    pub fn check(&self, spec: &CommandSpec, body: &RawDocument) -> Result<()> {
        if self.txn_number.is_some() || self.autocommit.is_some() || self.start_transaction.is_some() {
            self.check_transaction(spec)?;
        }
        if let Some(known) = spec.fields {
            refuse_unknown(spec.name, known, body)?;
        }
        if self.has_write_concern {
            concern::check_write(spec, body)?;
        }
        if self.has_read_concern {
            concern::check_read(spec, body)?;
        }
        Ok(())
    }

    fn check_transaction(&self, spec: &CommandSpec) -> Result<()> {
        let invalid = |text: &'static str| Err(Error::new(Code::InvalidOptions, text));
        if spec.access == Access::Open && self.autocommit.is_some() {
            let text = "This command is not supported in transactions";
            return Err(Error::new(Code::OperationNotSupportedInTransaction, text));
        }
        if spec.access == Access::Open && self.txn_number.is_some() {
            return Err(Error::with_code(50889, "It is illegal to provide a txnNumber for this command"));
        }
        if self.txn_number.is_some() && !self.has_lsid {
            return invalid("Transaction number requires a session ID to also be specified");
        }
        if self.txn_number.is_some_and(|n| n < 0) {
            return invalid("Transaction number cannot be negative");
        }
        match (self.autocommit, self.start_transaction) {
            (Some(_), _) if self.txn_number.is_none() => {
                return invalid("'autocommit' field requires a transaction number to also be specified");
            }
            (Some(true), _) => return invalid("Specifying autocommit=true is not allowed."),
            (None, Some(_)) => {
                return invalid("'startTransaction' field requires 'autocommit' field to also be specified");
            }
            (_, Some(false)) => return invalid("Specifying startTransaction=false is not allowed."),
            _ => {}
        }
        if self.txn_number.is_some() && self.autocommit.is_none() && !RETRYABLE_WRITES.contains(&spec.name) {
            let text = format!(
                "txnNumber may only be provided for multi-document transactions and retryable write commands. \
                 autocommit:false was not provided, and {} is not a retryable write command.",
                spec.name
            );
            return Err(Error::new(Code::NotARetryableWriteCommand, text));
        }
        Ok(())
    }

    pub fn start_transaction(&self) -> bool {
        self.start_transaction == Some(true)
    }
}

/// The commands that may have a `txnNumber` outside of transactions.
const RETRYABLE_WRITES: &[&str] =
    &["insert", "update", "delete", "findAndModify", "commitTransaction", "abortTransaction"];

/// A field that says which session or transaction the command belongs to; null is as good as missing.
fn session_field<'a, T>(
    value: RawBsonRef<'a>,
    name: &str,
    expected: &str,
    get: impl Fn(RawBsonRef<'a>) -> Option<T>,
) -> Result<Option<T>> {
    match get(value) {
        Some(found) => Ok(Some(found)),
        None if matches!(value, RawBsonRef::Null | RawBsonRef::Undefined) => Ok(None),
        None => {
            let found = bsonx::type_name(value.element_type());
            let text = format!(
                "BSON field 'OperationSessionInfo.{name}' is the wrong type '{found}', expected type '{expected}'"
            );
            Err(Error::new(Code::TypeMismatch, text))
        }
    }
}

/// Refuses fields that are neither generic nor among `known`, for commands that no shard judges.
fn refuse_unknown(name: &str, known: &[&str], body: &RawDocument) -> Result<()> {
    let unknown = |key: &&[u8]| !is_generic(key) && !known.iter().any(|k| k.as_bytes() == *key);
    match bsonx::fields(body.as_bytes()).skip(1).map(|f| f.key).find(unknown) {
        None => Ok(()),
        Some(key) => {
            let key = String::from_utf8_lossy(key);
            Err(Error::with_code(40415, format!("BSON field '{name}.{key}' is an unknown field.")))
        }
    }
}

/// Whether a server takes the field with every command.
fn is_generic(key: &[u8]) -> bool {
    matches!(
        key,
        b"$db"
            | b"lsid"
            | b"$clusterTime"
            | b"$readPreference"
            | b"$queryOptions"
            | b"comment"
            | b"maxTimeMS"
            | b"readConcern"
            | b"writeConcern"
            | b"txnNumber"
            | b"autocommit"
            | b"startTransaction"
            | b"apiVersion"
            | b"apiStrict"
            | b"apiDeprecationErrors"
            | b"allowImplicitCollectionCreation"
            | b"help"
    )
}

/// The time at which a command's variables stand still is told by routers to shards, and by nobody to routers.
fn refuse_runtime_constants(command: &RawDocument) -> Result<()> {
    let code = match bsonx::first_key(command.as_bytes()) {
        Some("find") => 51202,
        Some("aggregate") => 51143,
        Some("findAndModify" | "findandmodify") => 51196,
        Some("update" | "delete") => 51195,
        // The others do not know it.
        _ => return Ok(()),
    };
    Err(Error::with_code(code, "Cannot specify runtime constants option to a mongos"))
}

/// Checks that a command that is not known names a database: that is said first.
///
/// # Errors
/// 40571, 13111.
pub fn check_db(body: &RawDocument) -> Result<()> {
    match bsonx::get(body, "$db") {
        Some(RawBsonRef::String(_)) => Ok(()),
        Some(other) => Err(no_string_db(other)),
        None => Err(no_db()),
    }
}

fn no_db() -> Error {
    Error::with_code(40571, "OP_MSG requests require a $db argument")
}

fn no_string_db(value: RawBsonRef<'_>) -> Error {
    let found = bsonx::type_name(value.element_type());
    Error::with_code(13111, format!("wrong type for field ($db) {found} != string"))
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
    if bsonx::get(command, "runtimeConstants").is_some_and(|value| value != RawBsonRef::Null) {
        refuse_runtime_constants(command)?;
    }
    bsonx::get(command, "readConcern").map_or(Ok(()), refuse_after_op_time)?;
    bsonx::get(command, "pipeline").map_or(Ok(()), refuse_internal_stages)
}

pub(super) fn bad_value(key: &[u8]) -> Error {
    Error::new(Code::InvalidBSON, format!("The value of '{}' is malformed", String::from_utf8_lossy(key)))
}

/// Any number; decimals are rounded, other fractions refused. Commands that declare the field have an error of their own
/// for other types.
fn max_time(value: RawBsonRef<'_>, body: &RawDocument) -> Result<Option<u64>> {
    let bad = |text: String| Err(Error::new(Code::BadValue, text));
    let command = bsonx::first_key(body.as_bytes()).unwrap_or_default();
    match (whole(value), value) {
        (None, value) if value != RawBsonRef::Null && matches!(command, "aggregate" | "getMore") => {
            Err(wrong_type(command, "maxTimeMS", value, "number"))
        }
        (None, _) => bad("maxTimeMS must be a number".to_owned()),
        (Some(n), _) if n < 0 && command == "aggregate" => {
            let text = format!("BSON field 'maxTimeMS' value must be >= 0, actual value '{n}'");
            Err(Error::with_code(51024, text))
        }
        (Some(n), _) if !(0..=2_147_483_647).contains(&n) => bad(format!("{n} value for maxTimeMS is out of range")),
        (Some(_), RawBsonRef::Double(d)) if d.fract() != 0.0 => bad("maxTimeMS has non-integral value".to_owned()),
        (Some(n), _) => Ok((n > 0).then_some(n as u64)),
    }
}
#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bson::rawdoc;

    #[test]
    fn times() {
        let code = |body: bson::RawDocumentBuf| Generic::scan(&body).map(|g| g.max_time_ms).map_err(|e| e.code());
        let decimal = |text: &str| text.parse::<bson::Decimal128>().unwrap();
        assert_eq!(code(rawdoc! { "ping": 1, "maxTimeMS": decimal("9.5"), "$db": "d" }), Ok(Some(10)));
        assert_eq!(code(rawdoc! { "ping": 1, "maxTimeMS": decimal("NaN"), "$db": "d" }), Ok(None));
        assert_eq!(code(rawdoc! { "ping": 1, "maxTimeMS": 5.0, "$db": "d" }), Ok(Some(5)));
        assert_eq!(code(rawdoc! { "ping": 1, "maxTimeMS": 5.5, "$db": "d" }), Err(2));
        assert_eq!(code(rawdoc! { "ping": 1, "maxTimeMS": 1_i64 << 31, "$db": "d" }), Err(2));
        assert_eq!(code(rawdoc! { "aggregate": 1, "maxTimeMS": -1, "$db": "d" }), Err(51024));
        assert_eq!(code(rawdoc! { "aggregate": 1, "maxTimeMS": "x", "$db": "d" }), Err(14));
        assert_eq!(code(rawdoc! { "find": "c", "maxTimeMS": "x", "$db": "d" }), Err(2));
    }

    #[test]
    fn internal_fields_are_refused() {
        for (name, code) in [("find", 51202), ("aggregate", 51143), ("update", 51195), ("findandmodify", 51196)] {
            let mut body = bsonx::Writer::new();
            body.str(name, "c").doc("runtimeConstants", &rawdoc! {}).str("$db", "d");
            let error = Generic::scan(bsonx::view(&body.finish())).map(|_| ()).map_err(|e| e.code());
            assert_eq!(error, Err(code), "{name}");
        }
        assert!(Generic::scan(&rawdoc! { "find": "c", "runtimeConstants": bson::RawBson::Null, "$db": "d" }).is_ok());
    }

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
        for name in ["insert", "ordered", "lsid2", "txnNumber2", "filter", "sort", "limit", "a", "b", "c", "comment"] {
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
