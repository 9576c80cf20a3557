//! What one shard has of a collection: its entry in `listCollections`, its indexes.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Uuid, cstr, rawdoc};

use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::command::Ctx;
use crate::error::{Code, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// More indexes than a collection can have: one batch holds all.
const BATCH: i32 = 1_000;

/// The shard's entry for the collection or view: `{name, type, options, info, idIndex}`.
pub async fn collection(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<Option<RawDocumentBuf>> {
    let mut command = rawdoc! { "listCollections": 1, "filter": { "name": ns.coll() } };
    command.append(cstr!("$db"), ns.db());
    let reply = ctx.send_primary(shard, Retryable::Read, &OutMsg::from_doc(command)).await?;
    Ok(reply.batch().next().map(RawDocument::to_owned))
}

/// The uuid of the collection on this shard.
pub async fn uuid_of(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<Option<Uuid>> {
    Ok(collection(ctx, shard, ns).await?.as_deref().and_then(uuid_in))
}

/// The uuid in an entry of `listCollections`; views and time series have none.
pub fn uuid_in(entry: &RawDocument) -> Option<Uuid> {
    match bsonx::doc(entry, "info").and_then(|info| bsonx::get(info, "uuid")) {
        Some(RawBsonRef::Binary(b)) => b.bytes.try_into().ok().map(Uuid::from_bytes),
        _ => None,
    }
}

/// The specifications of the collection's indexes on this shard, those being built included; none without the
/// collection.
pub async fn indexes(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<Vec<RawDocumentBuf>> {
    let mut command = rawdoc! { "listIndexes": ns.coll(), "cursor": { "batchSize": BATCH } };
    command.append(cstr!("$db"), ns.db());
    let reply = ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Read, &OutMsg::from_doc(command)).await?;
    match reply.into_result() {
        Ok(reply) => Ok(reply.batch().map(RawDocument::to_owned).collect()),
        Err(e) if e.is(Code::NamespaceNotFound) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// The names of indexes.
pub fn names(indexes: &[RawDocumentBuf]) -> Vec<String> {
    indexes.iter().filter_map(|spec| bsonx::str(spec, "name").map(str::to_owned)).collect()
}
