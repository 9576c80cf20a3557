//! Making shards' commands out of a client's.

use bson::{RawDocument, RawDocumentBuf, rawdoc};

use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::Retryable;
use crate::wire::OutMsg;

/// How long a shard may take to make a change of structure known to a majority, in milliseconds.
const MAJORITY_TIMEOUT: i64 = 60_000;

/// Generic fields of a client's command that mean nothing when the router works on its own behalf: in the background,
/// on several shards, beyond the end of the client's operation.
const PERSONAL: &[&[u8]] = &[
    b"lsid",
    b"txnNumber",
    b"autocommit",
    b"startTransaction",
    b"$clusterTime",
    b"$readPreference",
    b"$db",
    b"readConcern",
    b"writeConcern",
    b"apiVersion",
    b"apiStrict",
    b"apiDeprecationErrors",
];

/// `{w: "majority", wtimeout}`, whatever the client asks for: changes of structure are never acknowledged before a
/// majority has them, and a number of members may be less.
pub fn write_concern(request: &Request) -> Result<RawDocumentBuf> {
    let given = request.doc_arg("writeConcern")?;
    let timeout = given.and_then(|g| bsonx::int(g, "wtimeout")).filter(|t| *t > 0).unwrap_or(MAJORITY_TIMEOUT);
    Ok(rawdoc! { "w": "majority", "wtimeout": timeout })
}

/// The client's command as it came, with majority write concern.
pub fn as_it_came(request: &Request) -> Result<OutMsg> {
    let mut body = Writer::copy_without(request.body().as_bytes(), |key| key == b"writeConcern");
    if !request.generic.in_transaction {
        body.doc("writeConcern", &write_concern(request)?);
    }
    Ok(OutMsg { body: body.finish().into(), ..OutMsg::forward(&request.message) })
}

/// The client's command on the router's own behalf: without session, times and preferences, with majority write
/// concern. `omit` names further fields to leave out; `more` adds some.
pub fn on_own_behalf(request: &Request, omit: &[&str], more: &RawDocument) -> Result<RawDocumentBuf> {
    let dropped = |key: &[u8]| PERSONAL.contains(&key) || omit.iter().any(|name| name.as_bytes() == key);
    let mut body = Writer::copy_without(request.body().as_bytes(), dropped);
    body.raw_fields(&more.as_bytes()[4..more.as_bytes().len() - 1]);
    body.doc("writeConcern", &write_concern(request)?);
    body.str("$db", request.db());
    Ok(RawDocumentBuf::from_bytes(body.finish())?)
}

/// Sends the client's command to one shard's primary and passes its reply on.
pub async fn to_shard(ctx: &Ctx, request: &Request, shard: &ShardId) -> Result<Reply> {
    let reply = ctx.send_primary(shard, Retryable::No, &as_it_came(request)?).await?;
    Ok(Reply::pass(reply))
}

/// The catalog's own database takes no collections, and shards' local databases are their own.
pub fn check_writable(db: &str, what: &str) -> Result<()> {
    match db {
        "config" => Err(Error::new(
            Code::IllegalOperation,
            format!("{what} is not allowed in the 'config' database: it holds the router's catalog"),
        )),
        "local" => Err(Error::new(
            Code::IllegalOperation,
            format!("{what} is not allowed in the 'local' database through the router; connect to the shard itself"),
        )),
        _ => Ok(()),
    }
}
