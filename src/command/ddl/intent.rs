//! Intents: what a router is about to do to a namespace on several shards, written to the catalog before it begins.
//!
//! An intent is a lock (nobody else changes the same names meanwhile, in any router) and a note for whoever has to
//! finish or undo the change when its router cannot: it says what is done, how far it got, and its owner renews it
//! while it lives. Every change of it is compare-and-set on its owner and beat, so a router that was given up on
//! cannot go on.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use parking_lot::Mutex;

use super::recovery::Place;
use crate::catalog::model::collection;
use crate::catalog::store::{CatalogTxn, CheckKind, Scan};
use crate::error::{Code, Error, Result};
use crate::op::OpContext;
use crate::router::Router;

/// The catalog's collection of intents.
pub const COLLECTION: &str = collection::DDL;
/// The owner renews its intent this often before it would be taken for gone.
const RENEWALS: u32 = 8;
/// How often a change of an intent is tried again that is known not to have been made.
const TRIES: usize = 3;
/// How long to wait for a change by somebody who lives.
const WAIT_LIMIT: Duration = Duration::from_secs(300);
/// How long to wait for one that waits itself, for a shard that cannot be reached.
const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// The step at which names are closed before anything is changed.
pub const CLOSING: &str = "closing";
const TAKEN: &str = "the operation was taken over by another router; run the command again to learn how it ended";

/// An intent this router owns.
pub struct Intent {
    router: Arc<Router>,
    /// `db.coll`, or `db` for the whole database; the first one carries the note.
    pub names: Vec<String>,
    /// The note as it stands in the catalog.
    doc: Mutex<Document>,
    /// One change of the note at a time.
    changing: tokio::sync::Mutex<()>,
    _active: Active,
}

/// The ownerships of intents that this process works under now, or is about to write: of all its routers, for another one's
/// recovery task must not take them for those of a process that is gone.
static ACTIVE: LazyLock<Mutex<HashSet<ObjectId>>> = LazyLock::new(Mutex::default);

/// Whether a router of this process works under the ownership.
pub(super) fn is_active(owner: ObjectId) -> bool {
    ACTIVE.lock().contains(&owner)
}

/// One ownership of an intent; tells the recovery tasks of this process that it is worked on, until dropped.
struct Active {
    owner: ObjectId,
}

impl Active {
    fn new() -> Self {
        let owner = ObjectId::new();
        ACTIVE.lock().insert(owner);
        Active { owner }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        ACTIVE.lock().remove(&self.owner);
    }
}

fn database_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(db, _)| db)
}

impl Intent {
    /// Writes the intent to do `op` on `names`, waiting for others on the same names to end.
    ///
    /// # Errors
    /// ConflictingOperationInProgress (117) naming who is in the way; what stops `ctx`.
    pub async fn acquire(
        router: &Arc<Router>,
        op: &OpContext,
        what: &str,
        names: &[String],
        args: Document,
    ) -> Result<Arc<Intent>> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(5);
        // Before the intent can be seen: on a busy machine much time may pass between its commit and the work on it.
        let active = Active::new();
        let docs = notes(router, active.owner, what, names, args);
        let _parked = router.ddl.gate.park(op.id());
        loop {
            op.check()?;
            match try_write(router, names, &docs).await {
                Ok(version) => return Self::begun(router, version, docs, active).await,
                Err(e) if !e.is(Code::ConflictingOperationInProgress) => return Err(e),
                Err(_) => {}
            }
            if let Some(holder) = find_holder(router, names).await? {
                if holder.get_object_id("owner").is_ok_and(|owner| owner == active.owner) {
                    let version = router.catalog.store().version().await?;
                    return Self::begun(router, version, docs, active).await;
                }
                wait_for(op, &holder, began, &mut pause).await?;
            }
        }
    }

    /// The intent that was written at this version of the catalog. What is done next is decided on a catalog at least
    /// as new as the lock; where that cannot be loaded nothing is done, and the lock goes.
    async fn begun(router: &Arc<Router>, version: u64, docs: Vec<Document>, active: Active) -> Result<Arc<Intent>> {
        let intent = Self::owned(router, docs.into_iter().next().unwrap_or_default(), active);
        let Err(error) = router.catalog.refresh_to(version).await else { return Ok(intent) };
        if let Err(error) = intent.finish().await {
            tracing::warn!(%error, names = ?intent.names, "an intent that is not used could not be removed");
        }
        Err(error)
    }

    /// Takes over the intent of a router that is gone, or that was left idle.
    ///
    /// # Errors
    /// ConflictingOperationInProgress (117) where its owner lives after all or somebody else was faster.
    pub async fn take_over(router: &Arc<Router>, found: Document) -> Result<Arc<Intent>> {
        let active = Active::new();
        let mut doc = found.clone();
        doc.insert("process", router.identity.process_id);
        doc.insert("router", router.identity.name());
        Place::here().note(&mut doc);
        doc.insert("owner", active.owner);
        doc.insert("beat", beat_of(&found) + 1);
        doc.insert("idle", false);
        let txn = CatalogTxn::new()
            .check(COLLECTION, unchanged(&found)?, "the intent was renewed by its owner")
            .put(COLLECTION, RawDocumentBuf::try_from(&doc)?);
        router.catalog.store().commit(&txn).await?;
        Ok(Self::owned(router, doc, active))
    }

    fn owned(router: &Arc<Router>, doc: Document, active: Active) -> Arc<Intent> {
        let names = doc.get_array("names").map_or(&[][..], Vec::as_slice);
        let names = names.iter().filter_map(|n| n.as_str().map(str::to_owned)).collect();
        let intent = Arc::new(Intent {
            router: router.clone(),
            names,
            doc: Mutex::new(doc),
            changing: tokio::sync::Mutex::new(()),
            _active: active,
        });
        tokio::spawn(renew(Arc::downgrade(&intent)));
        intent
    }

    /// What is done: `drop`, `createIndexes`, …
    pub fn op(&self) -> String {
        self.doc.lock().get_str("op").unwrap_or("").to_owned()
    }

    /// How far it got; empty at the beginning.
    pub fn step(&self) -> String {
        self.doc.lock().get_str("step").unwrap_or("").to_owned()
    }

    /// What whoever finishes it needs to know.
    pub fn args(&self) -> Document {
        self.doc.lock().get_document("args").cloned().unwrap_or_default()
    }

    /// Whether nothing was changed yet under this intent: there is nothing to finish or to undo.
    pub fn is_untouched(&self) -> bool {
        matches!(self.step().as_str(), "" | CLOSING)
    }

    /// Notes the next step, and replaces the arguments if `args` is given.
    ///
    /// # Errors
    /// ConflictingOperationInProgress (117): the intent was taken over, stop.
    pub async fn advance(&self, step: &str, args: Option<Document>) -> Result<()> {
        self.change(|doc| {
            doc.insert("step", step);
            if let Some(args) = args {
                doc.insert("args", args);
            }
        })
        .await?;
        self.router.failpoints.crash_point("ddl.advanced");
        Ok(())
    }

    /// [`Self::advance`], and from then on, in every router that serves this version of the catalog, requests on the
    /// intent's names wait (`closed`), or no longer do.
    pub async fn advance_closed(&self, step: &str, args: Option<Document>, closed: bool) -> Result<()> {
        self.advance_with(step, args, closed, async |txn: CatalogTxn| {
            let catalog = &self.router.catalog;
            catalog.refresh_to(catalog.store().commit(&txn).await?).await.map(|_| ())
        })
        .await
    }

    /// The same in one commit with `act`, which is given its beginning. So nobody commits in the name of an intent that
    /// was taken over, and the step tells whether the commit was made.
    pub async fn advance_with<F>(&self, step: &str, args: Option<Document>, closed: bool, act: F) -> Result<()>
    where
        F: AsyncFnOnce(CatalogTxn) -> Result<()>,
    {
        let _one_at_a_time = self.changing.lock().await;
        let before = self.doc.lock().clone();
        let mut after = before.clone();
        after.insert("step", step);
        if let Some(args) = args {
            after.insert("args", args);
        }
        after.insert("closed", closed);
        after.insert("beat", beat_of(&before) + 1);
        let mut txn = CatalogTxn::new()
            .check(COLLECTION, unchanged(&before)?, TAKEN)
            .put(COLLECTION, RawDocumentBuf::try_from(&after)?);
        if is_closed(&before) != closed {
            txn = txn.touch(COLLECTION);
        }
        if let Err(error) = act(txn).await {
            // It may have been made all the same.
            let (found, version) = self.stored(&before).await?;
            if found.as_ref() != Some(&after) {
                return Err(error);
            }
            self.router.catalog.refresh_to(version).await?;
        }
        *self.doc.lock() = after;
        self.router.failpoints.crash_point("ddl.advanced");
        Ok(())
    }

    async fn change(&self, change: impl FnOnce(&mut Document)) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        let before = self.doc.lock().clone();
        let mut after = before.clone();
        change(&mut after);
        after.insert("beat", beat_of(&before) + 1);
        let doc = RawDocumentBuf::try_from(&after)?;
        self.commit(&before, |txn| txn.put(COLLECTION, doc.clone()), |found| found.is_some_and(|f| *f == after))
            .await?;
        *self.doc.lock() = after;
        Ok(())
    }

    /// The change is complete, or nothing of it is left: removes the intent.
    pub async fn finish(&self) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        let before = self.doc.lock().clone();
        let closed = is_closed(&before);
        let remove = |txn| {
            let txn = self.names.iter().fold(txn, |txn: CatalogTxn, name| txn.delete(COLLECTION, name.as_str()));
            if closed { txn.touch(COLLECTION) } else { txn }
        };
        let version = self.commit(&before, remove, |found| found.is_none()).await?;
        if closed {
            self.router.catalog.refresh_to(version).await?;
        }
        Ok(())
    }

    /// The note as it stands in the catalog, and the catalog's version.
    async fn stored(&self, before: &Document) -> Result<(Option<Document>, u64)> {
        let store = self.router.catalog.store();
        let mut view = store.view(store.version().await?).await?;
        let id = before.get("_id").cloned().unwrap_or(Bson::Null);
        let found = view.get(COLLECTION, &id).await?.map(|doc| Document::try_from(&*doc)).transpose()?;
        Ok((found, view.version()))
    }

    /// Commits a change of the intent that stands as `before`. Where it is refused, or whether it was made is not known,
    /// the intent as it stands then tells: an attempt that seemed to fail may have been made.
    async fn commit(
        &self,
        before: &Document,
        write: impl Fn(CatalogTxn) -> CatalogTxn,
        is_done: impl Fn(Option<&Document>) -> bool,
    ) -> Result<u64> {
        let store = self.router.catalog.store();
        let mut tries = 0;
        loop {
            let txn = write(CatalogTxn::new().check(COLLECTION, unchanged(before)?, TAKEN));
            let error = match store.commit(&txn).await {
                Ok(version) => return Ok(version),
                Err(error) => error,
            };
            let (found, version) = self.stored(before).await?;
            if is_done(found.as_ref()) {
                return Ok(version);
            }
            tries += 1;
            if error.is(Code::ConflictingOperationInProgress) || found.as_ref() != Some(before) || tries == TRIES {
                return Err(error);
            }
        }
    }

    /// Something is left to do that cannot be done now; the recovery task of any router takes it up.
    pub async fn leave(&self, why: &Error) -> Result<()> {
        self.change(|doc| {
            doc.insert("idle", true);
            doc.insert("lastError", why.to_string());
        })
        .await
    }
}

/// Whether requests on its names wait.
fn is_closed(doc: &Document) -> bool {
    doc.get_bool("closed").unwrap_or(false)
}

fn beat_of(doc: &Document) -> i64 {
    doc.get_i64("beat").unwrap_or(0)
}

/// The condition that nobody changed the intent since it was read.
fn unchanged(doc: &Document) -> Result<CheckKind> {
    let mut fields = doc! {
        "process": doc.get("process").cloned().unwrap_or(Bson::Null),
        "beat": beat_of(doc),
    };
    if let Ok(owner) = doc.get_object_id("owner") {
        fields.insert("owner", owner);
    }
    let id = doc.get("_id").cloned().unwrap_or(Bson::Null);
    Ok(CheckKind::Fields(id, RawDocumentBuf::try_from(&fields)?))
}

/// One document for each name; the first carries everything.
fn notes(router: &Router, owner: ObjectId, what: &str, names: &[String], args: Document) -> Vec<Document> {
    let mut args = Some(args);
    let note = |name: &String| {
        let mut note = doc! {
            "_id": name.as_str(),
            "db": database_of(name),
            "op": what,
            "router": router.identity.name(),
            "process": router.identity.process_id,
            "owner": owner,
        };
        Place::here().note(&mut note);
        match args.take() {
            Some(args) => {
                note.insert("names", names.to_vec());
                note.insert("started", DateTime::now());
                note.insert("step", "");
                note.insert("beat", 0_i64);
                note.insert("idle", false);
                note.insert("args", args);
            }
            None => drop(note.insert("lead", names.first().cloned())),
        }
        note
    };
    names.iter().map(note).collect()
}

async fn try_write(router: &Router, names: &[String], docs: &[Document]) -> Result<u64> {
    let mut txn = CatalogTxn::new();
    for (name, doc) in names.iter().zip(docs) {
        let db = database_of(name);
        let busy = "another operation on the same names is in progress";
        txn = match db == name {
            true => txn.check(COLLECTION, CheckKind::NoneWhere("db".into(), db.into()), busy),
            false => txn.check(COLLECTION, CheckKind::Absent(db.into()), busy),
        };
        txn = txn.insert(COLLECTION, RawDocumentBuf::try_from(doc)?);
    }
    router.catalog.store().commit(&txn).await
}

/// All intents.
pub async fn scan(router: &Router) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    let mut view = router.catalog.store().view(0).await?;
    view.scan(COLLECTION, &Scan::All, &mut |doc| {
        found.push(Document::try_from(&*doc)?);
        Ok(())
    })
    .await?;
    Ok(found)
}

/// Waits a while, and longer each time, for the holder of names.
///
/// # Errors
/// ConflictingOperationInProgress (117) where that has been enough since `began`; what stops `op`.
pub(super) async fn wait_for(op: &OpContext, holder: &Document, began: Instant, pause: &mut Duration) -> Result<()> {
    op.check()?;
    let limit = if holder.get_bool("idle").unwrap_or(false) { IDLE_LIMIT } else { WAIT_LIMIT };
    if began.elapsed() > limit {
        return Err(in_the_way(holder));
    }
    tokio::select! {
        () = tokio::time::sleep(*pause) => {}
        () = op.cancel().cancelled() => return Err(op.cancelled_error()),
    }
    *pause = (*pause * 2).min(Duration::from_millis(250));
    Ok(())
}

async fn find_holder(router: &Router, names: &[String]) -> Result<Option<Document>> {
    let all = scan(router).await?;
    let conflicts = |held: &str| {
        names
            .iter()
            .any(|name| held == name || held == database_of(name) || (!name.contains('.') && database_of(held) == name))
    };
    let Some(found) = all.iter().find(|doc| doc.get_str("_id").is_ok_and(conflicts)) else { return Ok(None) };
    let lead = found.get_str("lead").ok();
    let lead = lead.and_then(|lead| all.iter().find(|doc| doc.get_str("_id").is_ok_and(|id| id == lead)));
    Ok(Some(lead.unwrap_or(found).clone()))
}

fn in_the_way(holder: &Document) -> Error {
    let text = |field: &str| holder.get_str(field).unwrap_or("?").to_owned();
    let mut message = format!("{} of {} by the router {} is in progress", text("op"), text("_id"), text("router"));
    if let Ok(why) = holder.get_str("lastError") {
        message.push_str(&format!("; it waits because of: {why}"));
    }
    Error::new(Code::ConflictingOperationInProgress, message).from_router()
}

/// An owner that has not renewed its intent for this long is taken for gone.
pub fn lifetime(router: &Router) -> Duration {
    Duration::from_secs(router.parameters.read().int("mosaicIntentTimeoutSecs").max(1) as u64)
}

/// Renews the intent while it is held.
async fn renew(intent: std::sync::Weak<Intent>) {
    let Some(beat) = intent.upgrade().map(|intent| lifetime(&intent.router) / RENEWALS) else { return };
    loop {
        tokio::time::sleep(beat).await;
        let Some(intent) = intent.upgrade() else { return };
        match intent.change(|_| {}).await {
            Ok(()) => {}
            // Finished or taken over; the work itself notices at its next step.
            Err(e) if e.is(Code::ConflictingOperationInProgress) => return,
            Err(error) => tracing::warn!(%error, names = ?intent.names, "an intent could not be renewed"),
        }
    }
}

/// Whether an intent was made by this very process.
pub fn is_own(router: &Router, doc: &Document) -> bool {
    doc.get_object_id("process").is_ok_and(|id: ObjectId| id == router.identity.process_id)
}
