//! The replica set store: the catalog's collections in the database `mosaic` of a mongod replica set.
//!
//! (Servers refuse transactions on their own `config` database; clients of the router see the collections as `config.*`
//! all the same.) A commit is one multi-document transaction at majority that begins by raising the version document, so
//! commits are serialised by the server and checks see the state they will change. A view is a snapshot session: all its
//! reads are at one majority-committed time.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bson::oid::ObjectId;
use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;
use mongodb::options::{
    Acknowledgment, ReadConcern, ReturnDocument, SelectionCriteria, TransactionOptions, WriteConcern,
};
use mongodb::{ClientSession, Collection, Database};
use tokio::sync::watch;

use super::driver::{self, Target};
use super::model::collection;
use super::replset_apply as apply;
use super::store::{CatalogTxn, ConfigReads, Scan, Store, View, Visit};
use crate::bsonx;
use crate::error::{Code, Error, Result, Retry};

/// The database on the replica set that holds the catalog.
pub const DATABASE: &str = "mosaic";

/// Between two looks at the version document, in case the change stream on it is broken.
const POLL: Duration = Duration::from_millis(250);
/// How long the change stream waits for a change before it asks again.
const STREAM_WAIT: Duration = Duration::from_secs(5);
/// Between two attempts to open the change stream.
const STREAM_PAUSE: Duration = Duration::from_secs(1);
/// How long one look at the version may take.
const LOOK_TIME: Duration = Duration::from_secs(3);
/// How long the primary may take to tell the version: a connection to a server that stalls is not waited for forever.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a commit that loses against others, or whose outcome is unknown, is tried again.
const COMMIT_TIME: Duration = Duration::from_secs(30);
/// How long a view waits for a version that was committed already.
const VIEW_TIME: Duration = Duration::from_secs(10);
const SELECTION_TIME: Duration = Duration::from_secs(10);
/// Sizes MongoDB gives the two logs, in bytes.
const CHANGELOG_SIZE: i64 = 200 << 20;
const ACTIONLOG_SIZE: i64 = 20 << 20;

/// The store.
pub struct ReplsetStore {
    db: Database,
    host: String,
    version: watch::Sender<u64>,
    following: tokio::task::AbortHandle,
}

impl Drop for ReplsetStore {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// How to reach the replica set.
#[derive(Clone, Debug)]
pub struct ReplsetOptions {
    pub set_name: String,
    /// `host:port` of some members.
    pub hosts: Vec<String>,
    /// The content of the keyFile, where the set requires authentication.
    pub key_file: Option<String>,
}

/// A driver's error in the terms of this router's clients.
pub(super) fn store_error(error: mongodb::error::Error) -> Error {
    driver::error(error, "config")
}

impl ReplsetStore {
    /// Connects, and makes what every catalog has if this is the first router.
    pub async fn open(options: &ReplsetOptions) -> Result<Self> {
        let target = Target {
            hosts: &options.hosts,
            set: Some(&options.set_name),
            key_file: options.key_file.as_deref(),
            selection: SELECTION_TIME,
        };
        let db = driver::client(&target)?.database(DATABASE);
        initialise(&db).await?;
        let first = read_version(&db, ReadConcern::majority()).await?;
        let version = watch::Sender::new(first);
        let follow = follow(db.clone(), version.clone());
        let following = tokio::spawn(follow).abort_handle();
        Ok(ReplsetStore { db, host: format!("{}/{}", options.set_name, options.hosts.join(",")), version, following })
    }

    fn raw(&self, name: &str) -> Collection<RawDocumentBuf> {
        self.db.collection(name)
    }

    async fn try_commit(&self, txn: &CatalogTxn, session: &mut ClientSession) -> Result<u64, apply::Failure> {
        let options = TransactionOptions::builder()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary))
            .build();
        session.start_transaction().with_options(options).await?;
        match apply::apply(&self.db, session, txn).await {
            Ok(version) => {
                apply::commit(session, COMMIT_TIME).await?;
                Ok(version)
            }
            Err(failure) => {
                // The server aborts it by itself too; this only frees its locks earlier.
                let _ = session.abort_transaction().await;
                Err(failure)
            }
        }
    }
}

async fn initialise(db: &Database) -> Result<()> {
    let exists = |e: &mongodb::error::Error| matches!(&*e.kind, mongodb::error::ErrorKind::Command(c) if c.code == 48);
    for name in [
        collection::SHARDS,
        collection::DATABASES,
        collection::COLLECTIONS,
        collection::CHUNKS,
        collection::TAGS,
        collection::SETTINGS,
        collection::MONGOS,
        collection::VERSION,
        collection::LOCKS,
        collection::LOCKPINGS,
        collection::MIGRATIONS,
        collection::CATALOG,
        collection::CHANGES,
        // A collection that is made by its first document cannot be read by views of a moment before.
        collection::DDL,
        collection::TXNS,
    ] {
        db.create_collection(name).await.or_else(|e| if exists(&e) { Ok(()) } else { Err(store_error(e)) })?;
    }
    for (name, size) in [(collection::CHANGELOG, CHANGELOG_SIZE), (collection::ACTIONLOG, ACTIONLOG_SIZE)] {
        let made = db.create_collection(name).capped(true).size(size as u64).await;
        made.or_else(|e| if exists(&e) { Ok(()) } else { Err(store_error(e)) })?;
    }
    let index = |keys: Document| mongodb::IndexModel::builder().keys(keys).build();
    let chunks = db.collection::<Document>(collection::CHUNKS);
    chunks.create_index(index(doc! { "uuid": 1, "lastmod": 1 })).await.map_err(store_error)?;
    chunks.create_index(index(doc! { "uuid": 1, "shard": 1, "min": 1 })).await.map_err(store_error)?;
    let tags = db.collection::<Document>(collection::TAGS);
    tags.create_index(index(doc! { "ns": 1, "min": 1 })).await.map_err(store_error)?;
    let first = [
        (collection::CATALOG, Bson::from("version"), doc! { "version": 1_i64, "format": 1_i64 }),
        (collection::CATALOG, Bson::from("clock"), doc! { "time": 0_i64 }),
        (
            collection::VERSION,
            Bson::from(1),
            doc! { "minCompatibleVersion": 5, "currentVersion": 6, "clusterId": ObjectId::new() },
        ),
    ];
    for (name, id, fields) in first {
        let update = doc! { "$setOnInsert": fields };
        let done = db.collection::<Document>(name).update_one(doc! { "_id": id }, update).upsert(true).await;
        // Two routers may be the first at once.
        match done {
            Err(e) if !apply::is_duplicate(&e) => return Err(store_error(e)),
            _ => {}
        }
    }
    Ok(())
}

fn no_answer() -> Error {
    let text = "The catalog's replica set does not answer".to_owned();
    Error::new(Code::FailedToSatisfyReadPreference, text).from_shard("config").retry(Retry::Safe)
}

async fn read_version(db: &Database, concern: ReadConcern) -> Result<u64> {
    let catalog = db.collection::<Document>(collection::CATALOG);
    let find = catalog.find_one(doc! { "_id": "version" }).read_concern(concern).max_time(SELECTION_TIME);
    let found = tokio::time::timeout(SELECTION_TIME + ANSWER_TIME, find).await;
    let found = found.map_err(|_| no_answer())?.map_err(store_error)?;
    match found.and_then(|d| d.get_i64("version").ok()) {
        Some(version) => Ok(version as u64),
        None => Err(Error::new(
            Code::NoSuchKey,
            format!("The catalog has lost its version document ({DATABASE}.{})", collection::CATALOG),
        )
        .from_shard("config")),
    }
}

/// Notices other routers' commits: at once by a change stream, and by looking where that does not work.
async fn follow(db: Database, version: watch::Sender<u64>) {
    tokio::join!(poll(db.clone(), version.clone()), listen(db, version));
}

/// A change stream on the version document; opened again when it ends.
async fn listen(db: Database, version: watch::Sender<u64>) {
    let catalog = db.collection::<Document>(collection::CATALOG);
    let only = [doc! { "$match": { "documentKey._id": "version" } }];
    loop {
        let stream = catalog.watch().pipeline(only.clone()).max_await_time(STREAM_WAIT).await;
        let failed = match stream {
            Err(error) => Some(error),
            Ok(mut stream) => loop {
                // A server that stalls is left to the poll and to another stream.
                match tokio::time::timeout(STREAM_WAIT + ANSWER_TIME, stream.next_if_any()).await {
                    Ok(Ok(Some(event))) => {
                        let fields = event.update_description.map(|change| change.updated_fields);
                        if let Some(newer) = fields.and_then(|fields| fields.get_i64("version").ok()) {
                            advance(&version, newer as u64);
                        }
                    }
                    Ok(Ok(None)) if stream.is_alive() => {}
                    Ok(Err(error)) => break Some(error),
                    Ok(Ok(None)) | Err(_) => break None,
                }
            },
        };
        tracing::debug!(?failed, "the change stream on the catalog's version ended; opening another one");
        tokio::time::sleep(STREAM_PAUSE).await;
    }
}

/// Looks at the version document from time to time.
async fn poll(db: Database, version: watch::Sender<u64>) {
    let mut away = false;
    loop {
        tokio::time::sleep(POLL).await;
        let looked = tokio::time::timeout(LOOK_TIME, read_version(&db, ReadConcern::majority())).await;
        match looked.unwrap_or_else(|_| Err(no_answer())) {
            Ok(v) => {
                if std::mem::take(&mut away) {
                    tracing::info!("the catalog's replica set is back");
                }
                advance(&version, v);
            }
            Err(error) if !away => {
                away = true;
                tracing::warn!(%error, "the catalog's replica set does not answer; serving the snapshot there is");
            }
            Err(_) => {}
        }
    }
}

fn advance(watched: &watch::Sender<u64>, version: u64) {
    watched.send_if_modified(|v| {
        let newer = version > *v;
        *v = version.max(*v);
        newer
    });
}

#[async_trait]
impl Store for ReplsetStore {
    async fn commit(&self, txn: &CatalogTxn) -> Result<u64> {
        let started = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let mut session = self.db.client().start_session().await.map_err(store_error)?;
            match self.try_commit(txn, &mut session).await {
                Ok(version) => {
                    advance(&self.version, version);
                    return Ok(version);
                }
                Err(failure) if failure.is_transient() && started.elapsed() < COMMIT_TIME => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(200));
                }
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    async fn version(&self) -> Result<u64> {
        let version = read_version(&self.db, ReadConcern::linearizable()).await?;
        advance(&self.version, version);
        Ok(version)
    }

    async fn newest(&self) -> Result<u64> {
        let began = Instant::now();
        let version = loop {
            // Asked again rather than waited for: a stalled primary's successor answers the next time.
            match tokio::time::timeout(LOOK_TIME, read_version(&self.db, ReadConcern::majority())).await {
                Ok(answer) => break answer?,
                Err(_) if began.elapsed() < ANSWER_TIME => {}
                Err(_) => return Err(no_answer()),
            }
        };
        advance(&self.version, version);
        Ok(version)
    }

    async fn view(&self, at_least: u64) -> Result<Box<dyn View>> {
        let started = Instant::now();
        loop {
            let session = self.db.client().start_session().snapshot(true).await.map_err(store_error)?;
            let mut view = ReplsetView { db: self.db.clone(), session, version: 0 };
            let doc = view.get(collection::CATALOG, &Bson::from("version")).await?;
            view.version = doc.and_then(|d| bsonx::int(&d, "version")).unwrap_or(0) as u64;
            if view.version >= at_least {
                return Ok(Box::new(view));
            }
            if started.elapsed() > VIEW_TIME {
                return Err(Error::new(
                    Code::ReadConcernMajorityNotAvailableYet,
                    format!(
                        "The catalog's replica set shows version {} where {at_least} was committed already",
                        view.version
                    ),
                )
                .from_shard("config")
                .retry(Retry::Safe));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn tick(&self) -> Result<Timestamp> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let floor = ((now << 32) + 1) as i64;
        let next = doc! { "$max": [floor, { "$add": ["$time", 1_i64] }] };
        let found = self
            .db
            .collection::<Document>(collection::CATALOG)
            .find_one_and_update(doc! { "_id": "clock" }, vec![doc! { "$set": { "time": next } }])
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await
            .map_err(store_error)?;
        let time = found.and_then(|d| d.get_i64("time").ok()).unwrap_or(floor) as u64;
        Ok(Timestamp { time: (time >> 32) as u32, increment: time as u32 })
    }

    async fn note(&self, name: &str, doc: RawDocumentBuf) -> Result<()> {
        let quick = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
        if matches!(name, collection::CHANGELOG | collection::ACTIONLOG) {
            self.raw(name).insert_one(doc).write_concern(quick).await.map_err(store_error)?;
            return Ok(());
        }
        let id = bsonx::get(&doc, "_id").map(Bson::try_from).transpose()?.unwrap_or(Bson::Null);
        let done = self.raw(name).replace_one(doc! { "_id": id }, doc).upsert(true).write_concern(quick).await;
        done.map(|_| ()).map_err(store_error)
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    async fn collections(&self) -> Result<Vec<String>> {
        self.db.list_collection_names().await.map_err(store_error)
    }

    fn config_reads(&self) -> ConfigReads {
        ConfigReads::Forward { db: DATABASE.to_owned() }
    }

    fn describe(&self) -> String {
        format!("catalog on replica set {}", self.host)
    }
}

struct ReplsetView {
    db: Database,
    session: ClientSession,
    version: u64,
}

fn scan_query(scan: &Scan) -> (Document, Document) {
    match scan {
        Scan::All => (doc! {}, doc! { "_id": 1 }),
        Scan::ByField(field, value) => (doc! { field: value.clone() }, doc! { "_id": 1 }),
        Scan::Greater(field, than) => (doc! { field: { "$gt": than } }, doc! { "_id": 1 }),
        Scan::ChunksSince { uuid, lastmod } => (
            doc! { "uuid": bson::Binary::from_uuid(*uuid), "lastmod": { "$gte": lastmod.timestamp() } },
            doc! { "uuid": 1, "lastmod": 1 },
        ),
    }
}

#[async_trait]
impl View for ReplsetView {
    fn version(&self) -> u64 {
        self.version
    }

    async fn get(&mut self, name: &str, id: &Bson) -> Result<Option<RawDocumentBuf>> {
        let from = self.db.collection::<RawDocumentBuf>(name);
        from.find_one(doc! { "_id": id.clone() }).session(&mut self.session).await.map_err(store_error)
    }

    async fn scan(&mut self, name: &str, scan: &Scan, visit: Visit<'_>) -> Result<()> {
        let (filter, sort) = scan_query(scan);
        let from = self.db.collection::<RawDocumentBuf>(name);
        let found = from.find(filter).sort(sort).session(&mut self.session).await;
        let mut cursor = found.map_err(store_error)?;
        let mut documents = cursor.stream(&mut self.session);
        while let Some(doc) = documents.next().await {
            visit(doc.map_err(store_error)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::sync::Arc;

    use super::*;
    use crate::catalog::suite::{self, Mongod};

    fn options(mongod: &Mongod) -> ReplsetOptions {
        ReplsetOptions { set_name: "cfg".into(), hosts: vec![mongod.host()], key_file: None }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn suite() {
        let Some(mongod) = Mongod::start("cfg").await else { return };
        let store = Arc::new(ReplsetStore::open(&options(&mongod)).await.unwrap());
        let other = Arc::new(ReplsetStore::open(&options(&mongod)).await.unwrap());
        suite::run(store, other).await;
    }

    #[tokio::test]
    async fn a_set_that_is_away_is_a_clear_error() {
        let options = ReplsetOptions { set_name: "cfg".into(), hosts: vec!["127.0.0.1:9".into()], key_file: None };
        let started = Instant::now();
        let error = ReplsetStore::open(&options).await.err().expect("nobody is there");
        assert!(error.is(Code::FailedToSatisfyReadPreference), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
