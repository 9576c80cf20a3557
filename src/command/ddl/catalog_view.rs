//! `listCollections` and `listIndexes` of the database `config`, which is the catalog.

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use futures_util::future::BoxFuture;

use super::list_indexes::name_only;
use crate::catalog::model::Namespace;
use crate::catalog::store::ConfigReads;
use crate::command::read::config::{renamed, with_db};
use crate::command::{Ctx, Reply, Request, documents};
use crate::error::{Code, Error, Result};
use crate::router::CONFIG_SHARD;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

const LISTING: &str = "config.$cmd.listCollections";

pub fn list_collections<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        if let ConfigReads::Forward { db } = ctx.router.catalog.store().config_reads() {
            return forward(ctx, request, &db, LISTING).await;
        }
        let mut docs: Vec<RawDocumentBuf> = Vec::new();
        for name in ctx.router.catalog.store().collections().await? {
            docs.push(rawdoc! {
                "name": name.as_str(),
                "type": "collection",
                "options": {},
                "info": { "readOnly": false },
                "idIndex": id_index(),
            });
        }
        if let Some(filter) = request.doc_arg("filter")?.filter(|f| !f.is_empty()) {
            docs = documents::matching(ctx, docs, filter).await?;
        }
        let mut batch = RawArrayBuf::new();
        for doc in docs {
            match crate::bsonx::str(&doc, "name") {
                Some(name) if name_only(request) => batch.push(rawdoc! { "name": name, "type": "collection" }),
                _ => batch.push(doc),
            }
        }
        Ok(cursor(LISTING, batch))
    })
}

pub async fn list_indexes(ctx: &Ctx, request: &Request, ns: &Namespace) -> Result<Reply> {
    if let ConfigReads::Forward { db } = ctx.router.catalog.store().config_reads() {
        return forward(ctx, request, &db, ns.as_str()).await;
    }
    if !ctx.router.catalog.store().collections().await?.iter().any(|name| name == ns.coll()) {
        return Err(Error::new(Code::NamespaceNotFound, format!("ns does not exist: {ns}")));
    }
    let mut batch = RawArrayBuf::new();
    batch.push(id_index());
    Ok(cursor(ns.as_str(), batch))
}

fn id_index() -> RawDocumentBuf {
    rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" }
}

fn cursor(ns: &str, batch: RawArrayBuf) -> Reply {
    Reply::ok(rawdoc! { "cursor": { "id": 0_i64, "ns": ns, "firstBatch": batch } })
}

/// From the catalog's replica set, where the database has another name. The lists are short: one batch holds them.
async fn forward(ctx: &Ctx, request: &Request, db: &str, ns: &str) -> Result<Reply> {
    let pref = ReadPreference::from_command(request.body())?;
    let msg = OutMsg::new(with_db(request.body(), db));
    let reply = ctx.send(CONFIG_SHARD, &pref, Retryable::Read, &msg).await?.into_result()?;
    Ok(Reply::raw(renamed(&reply.body, ns)?))
}
