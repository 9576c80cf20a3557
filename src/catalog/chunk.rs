//! Documents of `config.chunks`.

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, Timestamp, Uuid, cstr, rawdoc};

use super::model::{ChunkVersion, ShardId, collection, malformed, timestamp, unknown_fields, uuid, uuid_bson};
use super::table::ChunkInfo;
use crate::bsonx;
use crate::error::Result;

/// Where a chunk was, newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEntry {
    pub valid_after: Timestamp,
    pub shard: ShardId,
}

/// One chunk with everything its document holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkDoc {
    pub uuid: Uuid,
    pub info: ChunkInfo,
    pub history: Vec<HistoryEntry>,
    pub rest: RawDocumentBuf,
}

const KNOWN: &[&str] = &["_id", "uuid", "min", "max", "shard", "lastmod", "jumbo", "onCurrentShardSince", "history"];

impl ChunkDoc {
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field| malformed(collection::CHUNKS, field, doc);
        let history = bsonx::array(doc, "history").map(|entries| {
            let parse = |e: &RawDocument| {
                Some(HistoryEntry {
                    valid_after: timestamp(bsonx::get(e, "validAfter"))?,
                    shard: bsonx::str(e, "shard")?.into(),
                })
            };
            entries.into_iter().flatten().filter_map(|v| v.as_document().and_then(parse)).collect()
        });
        Ok(ChunkDoc {
            uuid: uuid(bsonx::get(doc, "uuid")).ok_or_else(|| bad("uuid"))?,
            info: chunk_info(doc)?,
            history: history.unwrap_or_default(),
            rest: unknown_fields(doc, KNOWN)?,
        })
    }

    pub fn to_doc(&self) -> RawDocumentBuf {
        let c = &self.info;
        let mut doc = rawdoc! {
            "_id": c.id,
            "uuid": uuid_bson(self.uuid),
            "min": c.min.clone(),
            "max": c.max.clone(),
            "shard": &*c.shard,
            "lastmod": ChunkVersion::from(c.lastmod).timestamp(),
        };
        if c.jumbo {
            doc.append(cstr!("jumbo"), true);
        }
        if let Some(since) = c.since {
            doc.append(cstr!("onCurrentShardSince"), since);
        }
        let mut history = RawArrayBuf::new();
        for entry in &self.history {
            history.push(rawdoc! { "validAfter": entry.valid_after, "shard": &*entry.shard });
        }
        doc.append(cstr!("history"), history);
        for (key, value) in self.rest.iter().flatten() {
            doc.append(key, value);
        }
        doc
    }
}

/// What routing needs of a chunk's document.
pub fn chunk_info(doc: &RawDocument) -> Result<ChunkInfo> {
    let bad = |field| malformed(collection::CHUNKS, field, doc);
    let lastmod = timestamp(bsonx::get(doc, "lastmod")).ok_or_else(|| bad("lastmod"))?;
    Ok(ChunkInfo {
        id: bsonx::get(doc, "_id").and_then(|v| v.as_object_id()).ok_or_else(|| bad("_id"))?,
        min: bsonx::doc(doc, "min").ok_or_else(|| bad("min"))?.to_owned(),
        max: bsonx::doc(doc, "max").ok_or_else(|| bad("max"))?.to_owned(),
        shard: bsonx::str(doc, "shard").ok_or_else(|| bad("shard"))?.into(),
        lastmod: (lastmod.time, lastmod.increment),
        jumbo: bsonx::truthy(doc, "jumbo").unwrap_or(false),
        since: timestamp(bsonx::get(doc, "onCurrentShardSince")),
    })
}
