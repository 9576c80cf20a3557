//! `insert`: each document goes to the shard that owns its shard key.

use bson::RawDocument;
use bson::oid::ObjectId;

use super::batch::Batch;
use super::effect::has_empty_timestamp;
use super::envelope::Envelope;
use super::ops::Ops;
use super::plan::{Place, Shards};
use crate::bsonx::{self, Writer, kind};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::Result;
use crate::key::ShardKeyPattern;
use crate::stats::Hosts;

pub const PAYLOAD: &str = "documents";

pub async fn run(ctx: &Ctx, request: &Request, coll: &CollectionRouting) -> Result<Reply> {
    let mut ops = Ops::new(request, PAYLOAD)?;
    let (shards, places) = place_all(&mut ops, coll);
    super::count_hosts(ctx, request, Hosts::of(shards.len(), Some(coll.table.owners().len())));
    if shards.len() == 1 && !ops.any_changed() && places.iter().all(|p| matches!(p, Place::One(_))) {
        return super::forward(ctx, request, shards.id(0)).await;
    }
    let envelope = Envelope::new(request, PAYLOAD)?;
    envelope.check_count(ops.len())?;
    // Boxed: the usual insert's future stays small.
    Box::pin(Batch { ctx, coll, payload: PAYLOAD, envelope, ops, shards, places }.run()).await
}

/// Finds each document's shard. What the shard would add to a document's shard key by itself is added here.
fn place_all(ops: &mut Ops, coll: &CollectionRouting) -> (Shards, Vec<Place>) {
    let id_in_key = coll.key.paths().any(|p| p == "_id" || p.starts_with("_id."));
    let mut shards = Shards::default();
    let mut places = Vec::with_capacity(ops.len());
    let mut key = Vec::with_capacity(64);
    for index in 0..ops.len() as u32 {
        let doc = ops.get(index);
        if let Some(complete) = completed(doc, &coll.key, id_in_key) {
            ops.replace(index, complete);
        }
        key.clear();
        places.push(match coll.key.encode_document(ops.get(index), &mut key) {
            Ok(()) => Place::One(shards.number(coll.table.chunk_for(&key).shard())),
            Err(error) => Place::Failed(Box::new(error)),
        });
    }
    (shards, places)
}

/// The document with what a server would fill into its shard key: an `_id`, the time for `Timestamp(0, 0)`.
/// `None` if there is nothing to fill in.
fn completed(doc: &RawDocument, key: &ShardKeyPattern, id_in_key: bool) -> Option<Vec<u8>> {
    let bytes = doc.as_bytes();
    let no_id = id_in_key && bsonx::find(bytes, "_id").is_none();
    let empty_time = has_empty_timestamp(doc, key);
    if !no_id && !empty_time {
        return None;
    }
    let mut out = Writer::with_capacity(bytes.len() + 32);
    if no_id {
        out.raw("_id", kind::OBJECT_ID, &ObjectId::new().bytes());
    }
    for field in bsonx::fields(bytes) {
        let empty = field.kind == kind::TIMESTAMP && bytes[field.range()].iter().all(|b| *b == 0);
        match std::str::from_utf8(field.key) {
            Ok(name) if empty && name != "_id" && key.paths().any(|p| p == name) => {
                out.timestamp(name, fresh_timestamp())
            }
            _ => out.raw_fields(&bytes[field.whole()]),
        };
    }
    Some(out.finish())
}

/// Now, with a counter that tells this router's timestamps of one second apart.
fn fresh_timestamp() -> bson::Timestamp {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let time = (bson::DateTime::now().timestamp_millis() / 1000) as u32;
    bson::Timestamp { time, increment: NEXT.fetch_add(1, Ordering::Relaxed).max(1) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::rawdoc;

    use super::*;

    #[test]
    fn ids_and_times_are_filled_in_only_where_they_route() {
        let on_id = ShardKeyPattern::parse(&rawdoc! { "_id": "hashed" }).unwrap();
        let on_time = ShardKeyPattern::parse(&rawdoc! { "t": 1 }).unwrap();
        let zero = bson::Timestamp { time: 0, increment: 0 };
        let complete = |doc: bson::RawDocumentBuf, key: &ShardKeyPattern, id: bool| {
            completed(&doc, key, id).map(|b| bsonx::view(&b).to_owned())
        };
        assert_eq!(complete(rawdoc! { "_id": 1, "a": zero }, &on_id, true), None);
        let with_id = complete(rawdoc! { "a": zero, "b": "x" }, &on_id, true).unwrap();
        assert_eq!(bsonx::first_key(with_id.as_bytes()), Some("_id"));
        assert_eq!(bsonx::str(&with_id, "b"), Some("x"));
        assert!(bsonx::get(&with_id, "a").unwrap().as_timestamp().unwrap() == zero);
        let with_time = complete(rawdoc! { "t": zero, "u": zero }, &on_time, false).unwrap();
        assert!(bsonx::get(&with_time, "t").unwrap().as_timestamp().unwrap() > zero);
        assert!(bsonx::get(&with_time, "u").unwrap().as_timestamp().unwrap() == zero);
        assert_eq!(complete(rawdoc! { "x": 1 }, &on_time, false), None);
    }
}
