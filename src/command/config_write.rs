//! Clients' writes to the database `config`, which is the catalog: balancer settings, zones, `noBalance`.
//!
//! On a replica set the command goes there; afterwards the catalog's version is raised, so that every router loads what
//! changed. On the embedded store the command runs on a copy of the collection on a shard, and the difference is one
//! commit: what operators mean is decided by a server.

use std::collections::HashMap;

use bson::{Bson, RawArrayBuf, RawDocument, RawDocumentBuf};
use bytes::Bytes;

use super::read::scratch::Scratch;
use super::{Ctx, Reply, Request};
use crate::bsonx::{self, Writer};
use crate::catalog::model::{Namespace, collection};
use crate::catalog::store::{CatalogTxn, ConfigReads, Scan, Touch};
use crate::error::{Code, Error, Result};
use crate::key::order;
use crate::router::CONFIG_SHARD;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// How often a write is made again because another operation changed the collection meanwhile.
const ATTEMPTS: usize = 5;

impl Ctx {
    /// insert, update, delete or findAndModify on a collection of `config`.
    pub async fn write_config(&self, request: &Request, ns: &Namespace) -> Result<Reply> {
        if ns.coll() == collection::VERSION || ns.coll().starts_with("mosaic.") {
            return Err(Error::new(
                Code::IllegalOperation,
                format!("{ns} is maintained by the router and cannot be written by clients"),
            ));
        }
        match self.router.catalog.store().config_reads() {
            ConfigReads::Forward { db } => self.forward_config_write(request, ns, &db).await,
            ConfigReads::Local => self.write_stored(request, ns).await,
        }
    }

    async fn forward_config_write(&self, request: &Request, ns: &Namespace, db: &str) -> Result<Reply> {
        let mut msg = OutMsg::forward(&request.message);
        msg.flags = Default::default();
        let mut body = Writer::copy_without(request.body().as_bytes(), |key| matches!(key, b"$db" | b"writeConcern"));
        body.open_doc("writeConcern").str("w", "majority").close().str("$db", db);
        msg.body = body.finish().into();
        let retry = if request.generic.txn_number.is_some() { Retryable::Write } else { Retryable::No };
        let reply = self.send(CONFIG_SHARD, &ReadPreference::PRIMARY, retry, &msg).await?.into_result()?;
        let version = self.router.catalog.store().commit(&self.touched(CatalogTxn::new(), ns)).await?;
        self.router.catalog.refresh_to(version).await?;
        Ok(Reply::raw(reply.body))
    }

    /// Marks what a write to `ns` changed. Chunks may have been removed or set back: everything is loaded anew.
    fn touched(&self, txn: CatalogTxn, ns: &Namespace) -> CatalogTxn {
        let txn = txn.touch(ns.coll());
        if !matches!(ns.coll(), collection::CHUNKS | collection::COLLECTIONS) {
            return txn;
        }
        let chunks = self.snapshot.collections.values().map(|c| Touch::chunks(c.uuid));
        chunks.fold(txn.touch(Touch::EVERYTHING), CatalogTxn::touch)
    }

    async fn write_stored(&self, request: &Request, ns: &Namespace) -> Result<Reply> {
        let catalog = &self.router.catalog;
        for _ in 0..ATTEMPTS {
            let mut view = catalog.store().view(0).await?;
            let version = view.version();
            let mut before = Vec::new();
            let mut keep = |doc: RawDocumentBuf| {
                before.push(Bytes::from(doc.into_bytes()));
                Ok(())
            };
            view.scan(ns.coll(), &Scan::All, &mut keep).await?;
            drop(view);
            let scratch = Scratch::filled(self, &before).await?;
            let reply = scratch.send(&on_scratch(request, scratch.name())).await?;
            let after = scratch.aggregate(RawArrayBuf::new(), RawDocumentBuf::new()).await?;
            let Some(txn) = difference(ns.coll(), &before, &after)? else { return Ok(Reply::raw(reply.body)) };
            let txn = self.touched(txn.unchanged(ns.coll(), version), ns);
            match catalog.store().commit(&txn).await {
                Ok(version) => {
                    catalog.refresh_to(version).await?;
                    return Ok(Reply::raw(reply.body));
                }
                Err(e) if e.is(Code::ConflictingOperationInProgress) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::new(Code::ConflictingOperationInProgress, format!("{ns} keeps changing; try again")))
    }
}

/// The client's command on another collection, without its session: the copy is for this once.
fn on_scratch(request: &Request, name: &str) -> OutMsg {
    let bytes = request.body().as_bytes();
    let mut body = Writer::with_capacity(bytes.len() + name.len());
    for (i, field) in bsonx::fields(bytes).enumerate() {
        match field.key {
            _ if i == 0 => {
                body.str(request.spec.name, name);
            }
            b"$db" | b"lsid" | b"txnNumber" | b"writeConcern" | b"stmtId" | b"stmtIds" | b"$clusterTime" => {}
            _ => {
                body.raw_fields(&bytes[field.whole()]);
            }
        }
    }
    body.str("$db", crate::cursor::TempCollection::DB);
    let mut msg = OutMsg::forward(&request.message);
    msg.flags = Default::default();
    msg.body = body.finish().into();
    msg
}

/// What makes `before` into `after`; `None` where nothing does.
fn difference(name: &str, before: &[Bytes], after: &[Bytes]) -> Result<Option<CatalogTxn>> {
    let mut old: HashMap<Vec<u8>, &Bytes> = HashMap::new();
    for doc in before {
        old.insert(id_key(bsonx::view(doc))?, doc);
    }
    let mut txn = CatalogTxn::new();
    for doc in after {
        let known = old.remove(&id_key(bsonx::view(doc))?);
        if known != Some(doc) {
            txn = txn.put(name, bsonx::view(doc).to_owned());
        }
    }
    for doc in old.values() {
        let id = bsonx::get(bsonx::view(doc), "_id").map(Bson::try_from).transpose()?.unwrap_or(Bson::Null);
        txn = txn.delete(name, id);
    }
    Ok((!txn.writes.is_empty()).then_some(txn))
}

fn id_key(doc: &RawDocument) -> Result<Vec<u8>> {
    let mut key = Vec::new();
    order::push_value(&mut key, bsonx::get(doc, "_id").unwrap_or(bson::RawBsonRef::Null))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bson::rawdoc;

    use super::*;
    use crate::catalog::store::Write;

    #[test]
    fn differences() {
        let docs = |list: &[RawDocumentBuf]| -> Vec<Bytes> {
            list.iter().map(|d| Bytes::copy_from_slice(d.as_bytes())).collect()
        };
        let before = docs(&[rawdoc! { "_id": "a", "n": 1 }, rawdoc! { "_id": "b", "n": 1 }, rawdoc! { "_id": 3 }]);
        assert!(difference("settings", &before, &before).unwrap().is_none());
        let after = docs(&[rawdoc! { "_id": "b", "n": 2 }, rawdoc! { "_id": "a", "n": 1 }, rawdoc! { "_id": "new" }]);
        let txn = difference("settings", &before, &after).unwrap().unwrap();
        let puts = txn.writes.iter().filter(|w| matches!(w, Write::Put { .. })).count();
        let deletes = txn.writes.iter().filter(|w| matches!(w, Write::Delete { id: Bson::Int32(3), .. })).count();
        assert_eq!((puts, deletes, txn.writes.len()), (2, 1, 3));
    }
}
