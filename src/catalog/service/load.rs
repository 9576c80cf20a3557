//! Building a snapshot from the store: whole the first time, then only what changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bson::{Bson, RawDocument, RawDocumentBuf};

use crate::bsonx;
use crate::catalog::chunk::chunk_info;
use crate::catalog::model::{
    ChunkVersion, CollectionInfo, DatabaseInfo, ShardInfo, TagInfo, collection, malformed, uuid_of,
};
use crate::catalog::snapshot::{CollectionRouting, Snapshot, TagMap};
use crate::catalog::store::{Scan, Touch, View};
use crate::catalog::table::{ChunkInfo, RoutingTable};
use crate::error::Result;
use crate::key::{ShardKeyPattern, order};

/// Topics changed since a version; `None`: everything is to be loaded.
type Changes = Option<HashSet<String>>;

fn changed(changes: &Changes, topic: &str) -> bool {
    changes.as_ref().is_none_or(|c| c.contains(topic))
}

/// The snapshot that `view` shows, sharing with `old` whatever did not change.
pub(super) async fn load(view: &mut dyn View, old: &Snapshot) -> Result<Snapshot> {
    let mut next = Snapshot { version: view.version(), ..old.clone() };
    let changes = if old.version == 0 { None } else { changes_since(view, old.version).await? };
    if changes.is_none() {
        let doc = view.get(collection::VERSION, &Bson::Int32(1)).await?;
        let id = doc.as_deref().and_then(|d| bsonx::get(d, "clusterId")).and_then(|v| v.as_object_id());
        next.cluster_id = id.unwrap_or(old.cluster_id);
    }
    if changed(&changes, collection::SHARDS) {
        next.shards = shards(view).await?;
    }
    if changed(&changes, collection::DATABASES) {
        next.databases = databases(view).await?;
    }
    if changed(&changes, collection::SETTINGS) {
        next.settings = settings(view).await?;
    }
    if changed(&changes, collection::DDL) {
        next.closed = closed(view).await?;
    }
    let tags_changed = changed(&changes, collection::TAGS);
    if tags_changed {
        next.tags = tags(view).await?;
    }
    collections(view, old, &mut next, &changes, tags_changed).await?;
    Ok(next)
}

async fn scan(view: &mut dyn View, collection: &str, scan: &Scan) -> Result<Vec<RawDocumentBuf>> {
    let mut docs = Vec::new();
    view.scan(collection, scan, &mut |doc| {
        docs.push(doc);
        Ok(())
    })
    .await?;
    Ok(docs)
}

async fn changes_since(view: &mut dyn View, version: u64) -> Result<Changes> {
    let docs = scan(view, collection::CHANGES, &Scan::Greater("version".into(), version as i64)).await?;
    let topics: HashSet<String> = docs.iter().filter_map(|d| bsonx::str(d, "_id").map(str::to_owned)).collect();
    Ok((!topics.contains(Touch::EVERYTHING)).then_some(topics))
}

async fn shards(view: &mut dyn View) -> Result<BTreeMap<Arc<str>, Arc<ShardInfo>>> {
    let docs = scan(view, collection::SHARDS, &Scan::All).await?;
    docs.iter().map(|d| ShardInfo::parse(d).map(|s| (s.id.clone(), Arc::new(s)))).collect()
}

async fn databases(view: &mut dyn View) -> Result<HashMap<String, Arc<DatabaseInfo>>> {
    let docs = scan(view, collection::DATABASES, &Scan::All).await?;
    docs.iter().map(|d| DatabaseInfo::parse(d).map(|d| (d.name.clone(), Arc::new(d)))).collect()
}

async fn settings(view: &mut dyn View) -> Result<HashMap<String, RawDocumentBuf>> {
    let docs = scan(view, collection::SETTINGS, &Scan::All).await?;
    Ok(docs.into_iter().filter_map(|d| bsonx::str(&d, "_id").map(str::to_owned).map(|id| (id, d))).collect())
}

/// The names of intents that are marked `closed`.
async fn closed(view: &mut dyn View) -> Result<HashMap<String, String>> {
    let docs = scan(view, collection::DDL, &Scan::ByField("closed".into(), true.into())).await?;
    let named = docs.iter().flat_map(|doc| {
        let op = bsonx::str(doc, "op").unwrap_or_default();
        let names = bsonx::array(doc, "names").into_iter().flatten().flatten();
        names.filter_map(|name| name.as_str().map(|name| (name.to_owned(), op.to_owned())))
    });
    Ok(named.collect())
}

async fn tags(view: &mut dyn View) -> Result<TagMap> {
    let mut by_ns: HashMap<String, Vec<TagInfo>> = HashMap::new();
    for doc in scan(view, collection::TAGS, &Scan::All).await? {
        let tag = TagInfo::parse(&doc)?;
        by_ns.entry(tag.ns.as_str().to_owned()).or_default().push(tag);
    }
    let sorted = by_ns.into_iter().map(|(ns, mut tags)| {
        tags.sort_by(|a, b| compare_docs(&a.min, &b.min));
        (ns, tags.into())
    });
    Ok(sorted.collect())
}

fn compare_docs(a: &RawDocument, b: &RawDocument) -> std::cmp::Ordering {
    order::compare(bson::RawBsonRef::Document(a), bson::RawBsonRef::Document(b))
}

async fn collections(
    view: &mut dyn View,
    old: &Snapshot,
    next: &mut Snapshot,
    changes: &Changes,
    tags_changed: bool,
) -> Result<()> {
    let listed = changed(changes, collection::COLLECTIONS);
    let infos: Vec<Arc<CollectionInfo>> = if listed {
        let docs = scan(view, collection::COLLECTIONS, &Scan::All).await?;
        docs.iter().filter(|d| is_live(d)).map(|d| CollectionInfo::parse(d).map(Arc::new)).collect::<Result<_>>()?
    } else {
        old.collections.values().map(|c| c.info.clone()).collect()
    };
    if listed {
        let live: HashSet<&str> = infos.iter().map(|i| i.ns.as_str()).collect();
        next.collections.retain(|ns, _| live.contains(ns.as_str()));
    }
    for info in infos {
        // Where everything is to be loaded, what is known does not count.
        let known = old.collections.get(info.ns.as_str()).filter(|c| changes.is_some() && is_same(c, &info));
        let chunks_changed = known.is_none() || changed(changes, &Touch::chunks(info.uuid));
        let tags = next.tags.get(info.ns.as_str()).cloned();
        if !chunks_changed && !tags_changed && known.is_some_and(|k| *k.info == *info) {
            continue;
        }
        let table = match known {
            Some(known) if !chunks_changed => known.table.clone(),
            known => table(view, known.map(|c| &**c), &info).await?,
        };
        let routing = CollectionRouting {
            ns: info.ns.clone(),
            uuid: info.uuid,
            epoch: info.epoch,
            timestamp: info.timestamp,
            last_mod: info.last_mod,
            key: ShardKeyPattern::parse(&info.key)?,
            unique: info.unique,
            default_collation: info.default_collation.clone(),
            no_balance: info.no_balance,
            table,
            tags: tags.unwrap_or_else(|| Arc::from(Vec::new())),
            info: info.clone(),
        };
        next.collections.insert(info.ns.as_str().to_owned(), Arc::new(routing));
    }
    Ok(())
}

/// Old releases marked dropped collections; newer ones list unsharded collections with `unsplittable`.
fn is_live(doc: &RawDocument) -> bool {
    !bsonx::truthy(doc, "dropped").unwrap_or(false) && !bsonx::truthy(doc, "unsplittable").unwrap_or(false)
}

fn is_same(known: &CollectionRouting, info: &CollectionInfo) -> bool {
    known.uuid == info.uuid && known.epoch == info.epoch && known.timestamp == info.timestamp
}

async fn chunks(view: &mut dyn View, info: &CollectionInfo, since: ChunkVersion) -> Result<Vec<ChunkInfo>> {
    let mut chunks = Vec::new();
    view.scan(collection::CHUNKS, &Scan::ChunksSince { uuid: info.uuid, lastmod: since }, &mut |doc| {
        if uuid_of(&doc) != Some(info.uuid) {
            return Err(malformed(collection::CHUNKS, "uuid", &doc));
        }
        chunks.push(chunk_info(&doc)?);
        Ok(())
    })
    .await?;
    Ok(chunks)
}

/// The routing table: `known` with what changed after its version, or all chunks where that does not fit together.
async fn table(view: &mut dyn View, known: Option<&CollectionRouting>, info: &CollectionInfo) -> Result<RoutingTable> {
    if let Some(known) = known {
        let changed = chunks(view, info, known.version()).await?;
        match known.table.with_changes(changed) {
            Ok(table) => return Ok(table),
            Err(error) => tracing::info!(ns = %info.ns, %error, "loading all chunks: the changes do not fit"),
        }
    }
    let all = chunks(view, info, ChunkVersion::default()).await?;
    let key = ShardKeyPattern::parse(&info.key)?;
    RoutingTable::build(&key, all).map_err(|e| e.context(format!("The chunks of {} are inconsistent", info.ns)))
}
