//! `listDatabases`: every shard's, with the sizes added up.

use std::collections::BTreeMap;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::documents;
use crate::command::{Access, CatalogUse, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::router::CONFIG_SHARD;
use crate::scatter::ShardOutcome;
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("listDatabases", Access::Read, "the databases of the cluster", list_databases)
        .aliases(&["listdatabases"])
        .catalog(CatalogUse::Newest)
        .admin()
        .fields(&["filter", "nameOnly", "authorizedDatabases"])
        .secondary_ok()];

fn list_databases<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let name_only = request.bool_arg("nameOnly")?.unwrap_or(false);
        let filter = request.doc_arg("filter")?;
        let mut shards: Vec<ShardId> = ctx.snapshot.shards.keys().cloned().collect();
        let home = ctx.router.home_of_admin(&ctx.snapshot);
        if home.as_deref() == Some(CONFIG_SHARD) {
            shards.push(CONFIG_SHARD.into());
        }
        let msg = OutMsg::from_doc(rawdoc! { "listDatabases": 1, "$db": "admin" });
        let outcomes = ctx.broadcast(&shards, Retryable::Read, &msg).await;
        let mut docs: Vec<RawDocumentBuf> = Vec::new();
        for doc in sum(&outcomes, home.as_deref())? {
            let shown = if name_only {
                doc! { "name": doc.get("name").cloned() }
            } else {
                doc
            };
            docs.push(RawDocumentBuf::try_from(&shown)?);
        }
        if let Some(filter) = filter.filter(|f| !f.is_empty()) {
            docs = documents::matching(ctx, docs, filter).await?;
        }
        Ok(Reply::ok(joined(&docs, name_only)))
    })
}

/// What is added up for one database.
#[derive(Default)]
struct Sizes {
    total: i64,
    not_empty: bool,
    shards: Document,
}

/// One document for each database, by name: `{name, sizeOnDisk, empty, shards: {<shard>: size}}`.
///
/// `admin` is where the catalog's replica set (or the first shard) has it; other shards' copies are their own, as every
/// shard's `local` is. `config` is there even where no server has one.
fn sum(outcomes: &[ShardOutcome], home: Option<&str>) -> Result<Vec<Document>> {
    let mut found: BTreeMap<String, Sizes> = BTreeMap::new();
    found.insert("config".to_owned(), Sizes { not_empty: true, ..Sizes::default() });
    for (shard, outcome) in outcomes {
        let reply = outcome.clone()?.into_result()?;
        let list = bsonx::array(reply.doc(), "databases").ok_or_else(|| {
            Error::new(Code::CommandResultSchemaViolation, format!("shard {shard} sent no list of databases"))
        })?;
        for entry in list.into_iter().flatten().filter_map(|v| v.as_document()) {
            let Some(name) = bsonx::str(entry, "name") else { continue };
            let hidden = match name {
                "local" => true,
                "admin" => home != Some(&**shard),
                // The catalog's own database on its replica set is shown as `config`.
                "mosaic" => &**shard == CONFIG_SHARD,
                "config" => false,
                _ => &**shard == CONFIG_SHARD,
            };
            let name = if hidden && name == "mosaic" { "config" } else { name };
            if hidden && name != "config" {
                continue;
            }
            add(found.entry(name.to_owned()).or_default(), shard, entry);
        }
    }
    let documents = found.into_iter().map(|(name, sizes)| {
        doc! { "name": name, "sizeOnDisk": sizes.total, "empty": !sizes.not_empty, "shards": sizes.shards }
    });
    Ok(documents.collect())
}

fn add(sizes: &mut Sizes, shard: &str, entry: &RawDocument) {
    let size = bsonx::int(entry, "sizeOnDisk").unwrap_or(0);
    sizes.total += size;
    sizes.not_empty |= bsonx::truthy(entry, "empty") != Some(true);
    let before = sizes.shards.get_i64(shard).unwrap_or(0);
    sizes.shards.insert(shard, Bson::Int64(before + size));
}

fn joined(docs: &[RawDocumentBuf], name_only: bool) -> RawDocumentBuf {
    let mut list = bson::RawArrayBuf::new();
    let mut total = 0;
    for doc in docs {
        total += bsonx::int(doc, "sizeOnDisk").unwrap_or(0);
        list.push(doc.clone());
    }
    let mut reply = RawDocumentBuf::new();
    reply.append(bson::cstr!("databases"), list);
    if !name_only {
        reply.append(bson::cstr!("totalSize"), total);
        reply.append(bson::cstr!("totalSizeMb"), total / (1024 * 1024));
    }
    reply
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::shard::ShardReply;

    fn answered(shard: &str, databases: &[(&str, i64)]) -> ShardOutcome {
        let mut list = bson::RawArrayBuf::new();
        for (name, size) in databases {
            list.push(rawdoc! { "name": *name, "sizeOnDisk": *size, "empty": false });
        }
        let body = rawdoc! { "databases": list, "ok": 1.0 }.into_bytes().into();
        (shard.into(), Ok(ShardReply::new(shard.into(), "h:1".into(), body)))
    }

    #[test]
    fn sizes_are_added_and_own_databases_hidden() {
        let outcomes = [
            answered("a", &[("admin", 1), ("local", 5), ("config", 10), ("x", 100)]),
            answered("b", &[("admin", 2), ("local", 5), ("x", 200), ("y", 3)]),
            answered("config", &[("admin", 7), ("mosaic", 20), ("config", 30), ("local", 1)]),
        ];
        let docs = sum(&outcomes, Some("config")).unwrap();
        let shown: Vec<_> =
            docs.iter().map(|d| (d.get_str("name").unwrap(), d.get_i64("sizeOnDisk").unwrap())).collect();
        assert_eq!(shown, [("admin", 7), ("config", 60), ("x", 300), ("y", 3)]);
        assert_eq!(docs[1].get_document("shards").unwrap(), &doc! { "a": 10_i64, "config": 50_i64 });
        let docs = sum(&outcomes[..2], Some("a")).unwrap();
        assert_eq!(docs[0], doc! { "name": "admin", "sizeOnDisk": 1_i64, "empty": false, "shards": { "a": 1_i64 } });
        let raw: Vec<_> = docs.iter().map(|d| RawDocumentBuf::try_from(d).unwrap()).collect();
        assert_eq!(bsonx::int(&joined(&raw, false), "totalSize"), Some(314));
        assert_eq!(bsonx::get(&joined(&raw, true), "totalSize"), None);
    }
}
