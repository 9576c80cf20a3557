//! The embedded store: one redb file, for one router.
//!
//! Layout: a table `c/<collection>` per collection, keyed by the order-preserving bytes of `_id`; beside it
//! `i/chunks`, keyed by uuid, `lastmod` and the chunk's key, so that a collection's chunks are found in the order of
//! their versions. Commits are durable when they return; notes (pings, log lines) become durable with the next commit.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bson::oid::ObjectId;
use bson::{Bson, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, Durability, ReadTransaction, ReadableDatabase, TableDefinition};
use tokio::sync::watch;

use super::embedded_apply::{self as apply, CHUNK_INDEX, table_name};
use super::model::{self, collection};
use super::store::{CatalogTxn, ConfigReads, Scan, Store, View, Visit};
use crate::bsonx;
use crate::error::{Code, Error, Result};

pub(super) type Table<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

/// Documents read in one go on a blocking thread.
const BATCH: usize = 2000;
/// The format of the file; a newer one is refused.
const FORMAT: i64 = 1;

/// A fault of the file or its engine.
pub(super) fn broken(e: impl std::fmt::Display) -> Error {
    Error::new(Code::OperationFailed, format!("The embedded catalog cannot be used: {e}")).from_router()
}

/// The store.
pub struct EmbeddedStore {
    db: Arc<Database>,
    path: PathBuf,
    version: watch::Sender<u64>,
    /// The last time handed out by `tick`: seconds in the high half.
    clock: Arc<Mutex<u64>>,
}

impl EmbeddedStore {
    /// Opens or creates the file. `holder` says who opens it, for the error a second process gets.
    ///
    /// Errors: DBPathInUse (42) when another process has it open, naming file and holder.
    pub async fn open(path: impl Into<PathBuf>, holder: &str) -> Result<Self> {
        let (path, holder) = (path.into(), holder.to_owned());
        blocking(move || Self::open_blocking(path, &holder)).await
    }

    fn open_blocking(path: PathBuf, holder: &str) -> Result<Self> {
        let db = match path.symlink_metadata() {
            Ok(_) => open_existing(&path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => create(&path)?,
            Err(e) => return Err(broken(format!("{}: {e}", path.display()))),
        };
        let note = format!("pid {}, {holder}", std::process::id());
        if let Err(e) = std::fs::write(holder_file(&path), note) {
            tracing::warn!(error = %e, "could not write who holds the catalog file");
        }
        let (version, clock) = state(&db, &path)?;
        Ok(EmbeddedStore {
            db: Arc::new(db),
            path,
            version: watch::Sender::new(version),
            clock: Arc::new(Mutex::new(clock)),
        })
    }

    fn next_time(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut last = self.clock.lock();
        *last = (*last + 1).max((now << 32) + 1);
        *last
    }
}

fn holder_file(path: &Path) -> PathBuf {
    beside(path, ".holder")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn in_use(path: &Path) -> Error {
    let holder = std::fs::read_to_string(holder_file(path)).unwrap_or_else(|_| "another process".to_owned());
    Error::new(
        Code::DBPathInUse,
        format!(
            "The embedded catalog {} is in use by {}. One router at a time can open it; for several routers keep the \
             catalog on a replica set (sharding.configDB)",
            path.display(),
            holder.trim()
        ),
    )
    .from_router()
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(64 << 20);
    builder
}

/// Opens a file that is there. It is never made into a new catalog: whoever emptied or replaced it would lose a cluster.
fn open_existing(path: &Path) -> Result<Database> {
    // The engine trusts the file's header so far that a cut file may make it panic.
    let opened = std::panic::catch_unwind(|| builder().open(path));
    match opened {
        Ok(Ok(db)) => Ok(db),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(in_use(path)),
        Ok(Err(e)) => Err(no_catalog(path, &e.to_string())),
        Err(_) => Err(no_catalog(path, "it is damaged")),
    }
}

/// Why a file that exists is not used, and what to do.
fn no_catalog(path: &Path, why: &str) -> Error {
    let what = match path.metadata() {
        Ok(m) if m.len() == 0 => "it is empty",
        _ => why,
    };
    broken(format!(
        "{} is not a catalog, or is damaged: {what}. Put back a copy of the catalog; only if there is no cluster to lose, \
         remove the file, and a new, empty cluster is created",
        path.display()
    ))
}

/// Creates the file under another name and renames it when all is on disk: a crash leaves no half of a catalog.
fn create(path: &Path) -> Result<Database> {
    let failed = |e: &dyn std::fmt::Display| broken(format!("cannot create {}: {e}", path.display()));
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return Err(failed(&format!("there is no directory {}", dir.display())));
    }
    let new = beside(path, ".new");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&new);
    let file = file.map_err(|e| failed(&e))?;
    // Held until the catalog is closed; who has it is alone in what follows.
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path)),
        Err(TryLockError::Error(e)) => return Err(failed(&e)),
    }
    if path.symlink_metadata().is_ok() {
        // Another process was faster.
        return open_existing(path);
    }
    // What a crash left.
    file.set_len(0).map_err(|e| failed(&e))?;
    let backend = FileBackend::new(file).map_err(|e| failed(&e))?;
    let db = builder().create_with_backend(backend).map_err(|e| failed(&e))?;
    initialise(&db)?;
    std::fs::rename(&new, path).map_err(|e| failed(&e))?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| failed(&e))?;
    tracing::warn!(path = %path.display(), "there was no catalog file: a new, empty cluster was created");
    Ok(db)
}

/// Writes what every catalog has.
fn initialise(db: &Database) -> Result<()> {
    let txn = db.begin_write().map_err(broken)?;
    apply::put(&txn, collection::CATALOG, &catalog_doc(1, 0))?;
    apply::put(&txn, collection::VERSION, &version_doc(ObjectId::new()))?;
    txn.commit().map_err(broken)
}

/// The version and the clock.
fn state(db: &Database, path: &Path) -> Result<(u64, u64)> {
    let read = db.begin_read().map_err(broken)?;
    let found = read_get(&read, collection::CATALOG, &Bson::String("version".into()))?;
    let doc = found.ok_or_else(|| no_catalog(path, "it has no version"))?;
    let format = bsonx::int(&doc, "format").unwrap_or(FORMAT);
    if format > FORMAT {
        return Err(broken(format!("its format {format} is newer than this program knows ({FORMAT})")));
    }
    let version = bsonx::int(&doc, "version").unwrap_or(0);
    Ok((version as u64, bsonx::int(&doc, "clock").unwrap_or(0) as u64))
}

fn catalog_doc(version: u64, clock: u64) -> RawDocumentBuf {
    rawdoc! { "_id": "version", "version": version as i64, "clock": clock as i64, "format": FORMAT }
}

/// `config.version` as MongoDB 6.0 has it.
pub(super) fn version_doc(cluster_id: ObjectId) -> RawDocumentBuf {
    rawdoc! { "_id": 1, "minCompatibleVersion": 5, "currentVersion": 6, "clusterId": cluster_id }
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::internal(format!("catalog file work stopped: {e}")))?
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn commit(&self, txn: &CatalogTxn) -> Result<u64> {
        let (db, txn, clock) = (self.db.clone(), txn.clone(), *self.clock.lock());
        let version = blocking(move || {
            let mut write = db.begin_write().map_err(broken)?;
            write.set_durability(Durability::Immediate).map_err(broken)?;
            let version = apply::current_version(&write)? + 1;
            apply::apply(&write, &txn, version)?;
            apply::put(&write, collection::CATALOG, &catalog_doc(version, clock))?;
            write.commit().map_err(broken)?;
            Ok(version)
        })
        .await?;
        self.version.send_if_modified(|v| {
            let newer = version > *v;
            *v = version.max(*v);
            newer
        });
        Ok(version)
    }

    async fn version(&self) -> Result<u64> {
        Ok(*self.version.borrow())
    }

    async fn newest(&self) -> Result<u64> {
        self.version().await
    }

    async fn view(&self, _at_least: u64) -> Result<Box<dyn View>> {
        let db = self.db.clone();
        blocking(move || {
            let read = Arc::new(db.begin_read().map_err(broken)?);
            let id = Bson::String("version".into());
            let doc = read_get(&read, collection::CATALOG, &id)?;
            let version = doc.and_then(|d| bsonx::int(&d, "version")).unwrap_or(0) as u64;
            Ok(Box::new(EmbeddedView { read, version }) as Box<dyn View>)
        })
        .await
    }

    async fn tick(&self) -> Result<Timestamp> {
        let t = self.next_time();
        Ok(Timestamp { time: (t >> 32) as u32, increment: t as u32 })
    }

    async fn note(&self, collection: &str, doc: RawDocumentBuf) -> Result<()> {
        let (db, collection) = (self.db.clone(), collection.to_owned());
        blocking(move || {
            let mut write = db.begin_write().map_err(broken)?;
            write.set_durability(Durability::None).map_err(broken)?;
            apply::put(&write, &collection, &doc)?;
            apply::trim(&write, &collection)?;
            write.commit().map_err(broken)
        })
        .await
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    async fn collections(&self) -> Result<Vec<String>> {
        let db = self.db.clone();
        blocking(move || {
            let read = db.begin_read().map_err(broken)?;
            let tables = read.list_tables().map_err(broken)?;
            Ok(tables.filter_map(|t| redb::TableHandle::name(&t).strip_prefix("c/").map(str::to_owned)).collect())
        })
        .await
    }

    fn config_reads(&self) -> ConfigReads {
        ConfigReads::Local
    }

    fn describe(&self) -> String {
        format!("embedded catalog {}", self.path.display())
    }
}

struct EmbeddedView {
    read: Arc<ReadTransaction>,
    version: u64,
}

fn read_get(read: &ReadTransaction, collection: &str, id: &Bson) -> Result<Option<RawDocumentBuf>> {
    let name = table_name(collection);
    match read.open_table(Table::new(&name)) {
        Ok(table) => {
            let found = table.get(apply::id_key(id)?.as_slice()).map_err(broken)?;
            found.map(|g| apply::document(g.value())).transpose()
        }
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(e) => Err(broken(e)),
    }
}

/// Up to [`BATCH`] documents after `from`, and where to go on.
type Batch = (Vec<RawDocumentBuf>, Option<Vec<u8>>);

fn read_batch(read: &ReadTransaction, collection: &str, scan: &Scan, from: Option<Vec<u8>>) -> Result<Batch> {
    if let Some((low, high)) = apply::chunk_index_range(collection, scan) {
        return read_chunks(read, from.map_or(Bound::Included(low), Bound::Excluded), high);
    }
    let name = table_name(collection);
    let table = match read.open_table(Table::new(&name)) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((Vec::new(), None)),
        Err(e) => return Err(broken(e)),
    };
    let lower = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut docs = Vec::new();
    let mut seen = 0;
    for item in table.range::<&[u8]>((lower, Bound::Unbounded)).map_err(broken)? {
        let (key, value) = item.map_err(broken)?;
        let raw = RawDocument::from_bytes(value.value())?;
        if apply::selects(scan, raw)? {
            docs.push(raw.to_owned());
        }
        seen += 1;
        if seen == BATCH {
            return Ok((docs, Some(key.value().to_vec())));
        }
    }
    Ok((docs, None))
}

fn read_chunks(read: &ReadTransaction, low: Bound<Vec<u8>>, high: Vec<u8>) -> Result<Batch> {
    let index = match read.open_table(CHUNK_INDEX) {
        Ok(index) => index,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((Vec::new(), None)),
        Err(e) => return Err(broken(e)),
    };
    let name = table_name(collection::CHUNKS);
    let table = read.open_table(Table::new(&name)).map_err(broken)?;
    let low = match &low {
        Bound::Included(k) => Bound::Included(k.as_slice()),
        Bound::Excluded(k) => Bound::Excluded(k.as_slice()),
        Bound::Unbounded => Bound::Unbounded,
    };
    let mut docs = Vec::new();
    for item in index.range::<&[u8]>((low, Bound::Excluded(high.as_slice()))).map_err(broken)? {
        let (entry, id) = item.map_err(broken)?;
        let found = table.get(id.value()).map_err(broken)?;
        docs.push(apply::document(found.ok_or_else(|| broken("the chunk index is out of step"))?.value())?);
        if docs.len() == BATCH {
            return Ok((docs, Some(entry.value().to_vec())));
        }
    }
    Ok((docs, None))
}

#[async_trait]
impl View for EmbeddedView {
    fn version(&self) -> u64 {
        self.version
    }

    async fn get(&mut self, collection: &str, id: &Bson) -> Result<Option<RawDocumentBuf>> {
        let (read, collection, id) = (self.read.clone(), collection.to_owned(), id.clone());
        blocking(move || read_get(&read, &collection, &id)).await
    }

    async fn scan(&mut self, collection: &str, scan: &Scan, visit: Visit<'_>) -> Result<()> {
        let mut from = None;
        loop {
            let (read, collection, scan) = (self.read.clone(), collection.to_owned(), scan.clone());
            let (docs, next) = blocking(move || read_batch(&read, &collection, &scan, from)).await?;
            docs.into_iter().try_for_each(&mut *visit)?;
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }
}

/// The uuid of a chunk document.
pub(super) fn chunk_uuid(doc: &RawDocument) -> Result<bson::Uuid> {
    model::uuid(bsonx::get(doc, "uuid")).ok_or_else(|| model::malformed(collection::CHUNKS, "uuid", doc))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::catalog::suite;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn suite() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(EmbeddedStore::open(dir.path().join("catalog.redb"), "test").await.unwrap());
        suite::run(store.clone(), store).await;
    }

    #[tokio::test]
    async fn a_second_opener_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        let first = EmbeddedStore::open(&path, "router a:27017").await.unwrap();
        let error = EmbeddedStore::open(&path, "router b:27018").await.err().expect("it is in use");
        assert!(error.is(Code::DBPathInUse));
        assert!(error.message().contains("catalog.redb"), "{error}");
        assert!(
            error.message().contains("router a:27017") && error.message().contains(&std::process::id().to_string())
        );
        drop(first);
        EmbeddedStore::open(&path, "router b:27018").await.unwrap();
    }

    #[tokio::test]
    async fn everything_is_there_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        let txn = CatalogTxn::new().put("settings", rawdoc! { "_id": "x", "value": 1 }).touch("settings");
        let store = EmbeddedStore::open(&path, "t").await.unwrap();
        let time = store.tick().await.unwrap();
        let version = store.commit(&txn).await.unwrap();
        drop(store);
        let store = EmbeddedStore::open(&path, "t").await.unwrap();
        assert_eq!(store.version().await.unwrap(), version);
        assert!(store.tick().await.unwrap() > time);
        let mut view = store.view(version).await.unwrap();
        assert!(view.get("settings", &"x".into()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_foreign_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not-a-catalog");
        std::fs::write(&path, vec![7u8; 10_000]).unwrap();
        let error = EmbeddedStore::open(&path, "t").await.err().expect("no redb file");
        assert!(error.message().contains("not-a-catalog"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_was_emptied_or_cut_is_no_new_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        drop(EmbeddedStore::open(&path, "t").await.unwrap());
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 1, 100, 4096, whole.len() / 2] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = EmbeddedStore::open(&path, "t").await.err().expect("no catalog");
            assert!(
                error.message().contains("catalog.redb") && error.message().contains("Put back"),
                "{length}: {error}"
            );
        }
        drop(Database::create(dir.path().join("foreign")).unwrap());
        assert!(EmbeddedStore::open(dir.path().join("foreign"), "t").await.is_err());
    }

    #[tokio::test]
    async fn a_crash_while_creating_does_not_keep_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.redb");
        std::fs::write(beside(&path, ".new"), vec![7u8; 5_000]).unwrap();
        drop(EmbeddedStore::open(&path, "t").await.unwrap());
        assert!(!beside(&path, ".new").exists());
        EmbeddedStore::open(&path, "t").await.unwrap();
        let error = EmbeddedStore::open(dir.path().join("sub/catalog.redb"), "t").await.err().expect("no directory");
        assert!(error.message().contains("there is no directory"), "{error}");
    }
}
