//! The arguments of a write command as a whole (`ordered`, `lsid`, `writeConcern`, `let`…), ready to be put on the
//! commands that are made from it for the shards.

use bson::{RawBsonRef, RawDocument};
use bytes::Bytes;

use crate::bsonx::{self, Writer};
use crate::command::Request;
use crate::error::{Code, Error, Result};

/// The statement numbers that retries are recognised by.
#[derive(Clone, Debug, PartialEq)]
enum StmtIds {
    /// The statement at index `i` has number `first + i`.
    From(i32),
    Listed(Vec<i32>),
}

/// What every command made from one client command has in common.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The client's command without its operations and without statement numbers.
    base: Vec<u8>,
    txn_number: Option<i64>,
    stmt_ids: StmtIds,
    /// Stop at the first statement that fails.
    pub ordered: bool,
    /// The client asks for no acknowledgement: whether and what was done is not told.
    pub quiet: bool,
}

impl Envelope {
    /// Reads the arguments of a write command whose operations are in the field `payload`.
    ///
    /// # Errors
    /// TypeMismatch (14) for `ordered`, `stmtId` or `stmtIds` of a wrong type, InvalidOptions (72) where both of
    /// the latter are given.
    pub fn new(request: &Request, payload: &str) -> Result<Self> {
        // As on a server, null is as good as nothing.
        let given = |name: &str| !matches!(request.get(name), None | Some(RawBsonRef::Null));
        let first = if given("stmtId") { request.int_arg("stmtId")? } else { None };
        let ordered = if given("ordered") { request.bool_arg("ordered")? } else { None };
        let stmt_ids = match (request.array_arg("stmtIds")?, first) {
            (Some(_), Some(_)) => {
                return Err(Error::new(
                    Code::InvalidOptions,
                    "May not specify both stmtId and stmtIds in write command",
                ));
            }
            (Some(ids), None) => StmtIds::Listed(
                ids.into_iter()
                    .map(|id| bsonx::as_int(id?).map(|id| id as i32).ok_or_else(bad_stmt_id))
                    .collect::<Result<_>>()?,
            ),
            (None, first) => StmtIds::From(first.unwrap_or(0) as i32),
        };
        // A reply is always wanted from the shards: what comes next depends on it.
        let quiet = request.generic.has_write_concern
            && bsonx::doc(request.body(), "writeConcern").is_some_and(|w| bsonx::int(w, "w") == Some(0));
        let base = Writer::copy_without(request.body().as_bytes(), |key| {
            key == payload.as_bytes() || matches!(key, b"stmtId" | b"stmtIds") || quiet && key == b"writeConcern"
        });
        Ok(Envelope {
            base: base.finish(),
            txn_number: request.generic.txn_number,
            stmt_ids,
            ordered: ordered.unwrap_or(true),
            quiet,
        })
    }

    /// The body of a command for the statements at `items` of the client's batch.
    pub fn command(&self, items: &[u32]) -> Bytes {
        let mut body = Writer::copy(&self.base);
        if self.txn_number.is_some() {
            body.open_array("stmtIds");
            for (at, item) in items.iter().enumerate() {
                body.int32(&at.to_string(), self.stmt_id(*item));
            }
            body.close();
        }
        body.finish().into()
    }

    /// The same, to be acknowledged by the primary alone.
    pub fn weak_command(&self, items: &[u32]) -> Bytes {
        let mut body = Writer::copy_without(&self.command(items), |key| key == b"writeConcern");
        body.open_doc("writeConcern").int32("w", 1).close();
        body.finish().into()
    }

    /// The number that a retry of the statement at `index` is recognised by.
    pub fn stmt_id(&self, index: u32) -> i32 {
        match &self.stmt_ids {
            StmtIds::From(first) => first.wrapping_add(index as i32),
            StmtIds::Listed(ids) => ids.get(index as usize).copied().unwrap_or(-1),
        }
    }

    /// The number of the retryable write that the command is; `None` if the client will not retry it.
    pub fn txn_number(&self) -> Option<i64> {
        self.txn_number
    }

    /// The client's session.
    pub fn lsid(&self) -> Option<&RawDocument> {
        bsonx::doc(self.document(), "lsid")
    }

    pub fn document(&self) -> &RawDocument {
        bsonx::view(&self.base)
    }

    /// One of the arguments.
    pub fn get(&self, key: &str) -> Option<RawBsonRef<'_>> {
        bsonx::get(self.document(), key)
    }

    /// Bytes that a command made from this takes besides its operations, at most.
    pub fn overhead(&self, statements: usize) -> usize {
        // Each statement number: type, up to six digits of name, NUL, four bytes.
        self.base.len() + 1024 + if self.txn_number.is_some() { statements * 12 } else { 0 }
    }

    /// Checks that there is a statement number for each of `count` statements.
    pub fn check_count(&self, count: usize) -> Result<()> {
        match &self.stmt_ids {
            StmtIds::Listed(ids) if ids.len() != count => Err(Error::new(
                Code::InvalidLength,
                "Number of statement ids must match the number of batch entries. Got ".to_owned()
                    + &format!("{} statement ids but {count} operations.", ids.len()),
            )),
            _ => Ok(()),
        }
    }
}

fn bad_stmt_id() -> Error {
    Error::new(Code::TypeMismatch, "The elements of 'stmtIds' must be numbers")
}
