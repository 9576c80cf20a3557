//! The commands that a [`Single`] write sends: the client's own with another filter, and what goes with it.

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use smallvec::smallvec;

use super::single::{Single, Verb, never};
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::txn::Participant;
use crate::wire::{OutMsg, OutSequence};

/// Arguments that a statement inside a transaction must not have, or that the transaction sets itself.
const OUTSIDE_ONLY: &[&str] = &["lsid", "txnNumber", "autocommit", "startTransaction", "writeConcern", "readConcern"];

/// Arguments that describe the client rather than the command; they go on everything that is sent for it.
const COMMON: &[&str] = &["comment", "apiVersion", "apiStrict", "apiDeprecationErrors", "$clusterTime"];

impl<'a> Single<'a> {
    /// The write as a command of its own, with another filter where one is given.
    pub fn command(&self, filter: Option<&RawDocument>, upsert: bool) -> OutMsg {
        let (mut body, docs) = self.parts(filter, upsert, &[]);
        self.number(&mut body);
        message(body, docs)
    }

    /// The same as a statement of a transaction.
    pub fn statement(&self, filter: Option<&RawDocument>, upsert: bool) -> (Writer, Option<(&'static str, Bytes)>) {
        let (mut body, docs) = self.parts(filter, upsert, OUTSIDE_ONLY);
        self.number(&mut body);
        (body, docs)
    }

    /// Body without statement number, and the statement where it does not stand in the body itself.
    fn parts(
        &self,
        filter: Option<&RawDocument>,
        upsert: bool,
        without: &[&str],
    ) -> (Writer, Option<(&'static str, Bytes)>) {
        let base = self.envelope.document().as_bytes();
        let dropped = |key: &[u8], names: &[&str]| names.iter().any(|n| n.as_bytes() == key);
        // A filter that names the document needs neither order nor hint; what is no hint is the shard's to refuse.
        let legal_hint =
            matches!(bsonx::get(self.options(), "hint"), Some(RawBsonRef::String(_) | RawBsonRef::Document(_)));
        let replaced = |own: &'static str| match filter {
            Some(_) if legal_hint => vec![own, "sort", "upsert", "hint"],
            Some(_) => vec![own, "sort", "upsert"],
            None => vec!["upsert"],
        };
        let finish = |mut out: Writer, own: &str| {
            if let Some(filter) = filter {
                out.doc(own, filter);
            }
            if upsert {
                out.bool("upsert", true);
            }
            out
        };
        let (raw, payload) = match self.verb {
            Verb::Update(u) => (u.raw, "updates"),
            Verb::Delete(d) => (d.raw, "deletes"),
            Verb::FindAndModify(_) => {
                let drop = replaced("query");
                let body = Writer::copy_without(base, |key| dropped(key, without) || dropped(key, &drop));
                return (finish(body, "query"), None);
            }
        };
        let drop = replaced("q");
        let statement = finish(Writer::copy_without(raw.as_bytes(), |key| dropped(key, &drop)), "q");
        let body = Writer::copy_without(base, |key| dropped(key, without));
        (body, Some((payload, statement.finish().into())))
    }

    /// The statement number, as the client's own kind of command has it.
    fn number(&self, body: &mut Writer) {
        self.number_as(body, matches!(self.verb, Verb::FindAndModify(_)));
    }

    /// The same in another command: a findAndModify has it by itself, a batch in a list.
    fn number_as(&self, body: &mut Writer, find_and_modify: bool) {
        match self.stmt_id() {
            Some(id) if find_and_modify => body.int32("stmtId", id),
            Some(id) => body.open_array("stmtIds").int32("0", id).close(),
            None => body,
        };
    }

    /// A new command on the collection with what the client's command says of the client.
    pub fn other(&self, name: &str) -> Writer {
        let mut body = Writer::with_capacity(512);
        body.str(name, self.coll.ns.coll()).str("$db", self.coll.ns.db());
        self.copy_args(&mut body, COMMON);
        body
    }

    fn copy_args(&self, body: &mut Writer, names: &[&str]) {
        let base = self.envelope.document().as_bytes();
        for field in bsonx::fields(base).filter(|f| names.iter().any(|n| n.as_bytes() == f.key)) {
            body.raw_fields(&base[field.whole()]);
        }
    }

    /// A `find` for one document by the write's own filter. With `sorted`, the client's order decides and its `$sortKey`
    /// is asked for.
    pub fn find(&self, projection: &RawDocument, sorted: bool) -> Writer {
        let mut body = self.find_matching(self.filter());
        self.hint(&mut body);
        body.int32("limit", 1);
        match self.sort().filter(|_| sorted) {
            Some(sort) => {
                body.doc("sort", sort).open_doc("projection").raw_fields(inside(projection));
                body.open_doc("$sortKey").str("$meta", "sortKey").close().close();
            }
            None => {
                body.doc("projection", projection);
            }
        }
        body
    }

    /// A `find` by a filter that contains the write's own, so that its collation and variables count.
    pub fn find_matching(&self, filter: &RawDocument) -> Writer {
        let mut body = self.other("find");
        body.doc("filter", filter).bool("singleBatch", true);
        if let Some(collation) = self.collation() {
            body.doc("collation", collation);
        }
        self.copy_args(&mut body, &["let", "maxTimeMS"]);
        body
    }

    /// A `find` of the document with this `_id`, whatever the write's own filter is.
    pub fn find_id(&self, id: RawBsonRef<'_>) -> Writer {
        let mut body = self.other("find");
        body.doc("filter", &rawdoc! { "_id": { "$eq": RawBson::from(id) } })
            .bool("singleBatch", true)
            .int32("limit", 1);
        body
    }

    /// Where the options of the write stand.
    fn options(&self) -> &RawDocument {
        match self.verb {
            Verb::Update(u) => u.raw,
            Verb::Delete(d) => d.raw,
            Verb::FindAndModify(_) => self.envelope.document(),
        }
    }

    /// The client's hint, wherever it stands.
    fn hint(&self, body: &mut Writer) {
        match bsonx::get(self.options(), "hint") {
            Some(RawBsonRef::String(name)) if !name.is_empty() => body.str("hint", name),
            Some(RawBsonRef::Document(key)) if !key.is_empty() => body.doc("hint", key),
            _ => body,
        };
    }

    /// A write that matches nothing but has this write's statement number: the shard answers whether it has executed it.
    pub fn question(&self) -> OutMsg {
        let mut body = self.other("delete");
        self.copy_args(&mut body, &["lsid", "txnNumber"]);
        self.number_as(&mut body, false);
        let mut statement = Writer::new();
        statement.doc("q", &never()).int32("limit", 1);
        message(body, Some(("deletes", statement.finish().into())))
    }

    /// Inserts `doc` in this write's name.
    pub fn insertion(&self, doc: &RawDocument) -> OutMsg {
        let mut body = self.other("insert");
        self.copy_args(&mut body, &["lsid", "txnNumber", "writeConcern", "bypassDocumentValidation", "maxTimeMS"]);
        self.number_as(&mut body, false);
        message(body, Some(("documents", doc.as_bytes().to_vec().into())))
    }

    /// The same as a statement of a transaction.
    pub fn insertion_statement(&self, doc: &RawDocument) -> (Writer, Option<(&'static str, Bytes)>) {
        let mut body = self.other("insert");
        self.copy_args(&mut body, &["bypassDocumentValidation"]);
        self.number_as(&mut body, false);
        (body, Some(("documents", doc.as_bytes().to_vec().into())))
    }

    /// Removes the document with this `_id`, in a transaction; the reply has it.
    pub fn removal_statement(&self, filter: &RawDocument) -> Writer {
        let mut body = self.other("findAndModify");
        body.doc("query", filter).bool("remove", true);
        self.number_as(&mut body, true);
        body
    }

    /// Asks for what a findAndModify left for retries, in another form than the client's.
    pub fn image_question(&self, removed: bool) -> OutMsg {
        let mut body = self.other("findAndModify");
        self.copy_args(&mut body, &["lsid", "txnNumber"]);
        body.doc("query", &never());
        if removed {
            body.bool("remove", true);
        } else {
            // It was executed there, so nothing is inserted.
            body.doc("update", &RawDocumentBuf::new()).bool("upsert", true).bool("new", true);
        }
        self.number_as(&mut body, true);
        OutMsg::new(body.finish())
    }

    /// A transaction for this write on `shard`, whose statements the shard recognises when the client retries.
    pub fn transaction(&self, shard: &ShardId) -> Participant {
        self.part_of_move(shard).with_api_of(self.envelope.document())
    }

    /// The same as a part of a transaction over several shards.
    pub fn part_of_move(&self, shard: &ShardId) -> Participant {
        let router = &self.ctx.router;
        match (self.envelope.lsid(), self.envelope.txn_number()) {
            (Some(lsid), Some(number)) => Participant::for_retryable_write(router, shard.clone(), lsid, number),
            _ => Participant::new(router, shard.clone()),
        }
    }

    pub fn write_concern(&self) -> Option<&RawDocument> {
        bsonx::doc(self.envelope.document(), "writeConcern")
    }
}

fn message(body: Writer, docs: Option<(&'static str, Bytes)>) -> OutMsg {
    let mut msg = OutMsg::new(body.finish());
    msg.sequences = docs.into_iter().map(|(id, docs)| OutSequence { id: id.into(), docs: smallvec![docs] }).collect();
    msg
}

/// A document's fields without its frame.
fn inside(doc: &RawDocument) -> &[u8] {
    let bytes = doc.as_bytes();
    bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default()
}
