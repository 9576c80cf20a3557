//! Holding back requests on a namespace while its structure changes.
//!
//! A change that several shards must see together (drop, rename) closes the gate for its names: new requests on them
//! wait, writes that run are waited for, then the catalog and the shards are changed, then the gate opens and the
//! waiting requests go on with the new routing. What one router's gate is for its own clients, the `closed` names of the
//! catalog are for all routers' (once [`crate::catalog::Catalog::settle`] has waited for them), and for as long as a
//! change waits for a shard. Routers that are cut off from the catalog need the leases of the migration protocol, once
//! they exist.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{RawBsonRef, RawDocument};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::bsonx;
use crate::command::{Ctx, Request};
use crate::error::{Code, Error, Result};
use crate::op::{OpContext, OpRecord, OpRegistry};

/// How long a change waits for writes that were running when it began.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// How long a request waits for a name that the catalog says is closed.
const CLOSED_LIMIT: Duration = Duration::from_secs(10);

/// The names that are closed now: `db` or `db.coll`. A closed database closes all its collections.
#[derive(Debug, Default)]
pub struct Gate {
    /// Spares every request the lock while nothing is closed.
    closed: AtomicUsize,
    names: Mutex<HashMap<String, Arc<Notify>>>,
    /// Operations that wait, here or for an intent: nobody needs to wait for them.
    parked: Mutex<HashSet<u32>>,
}

/// An operation that waits and has not begun to act; until dropped.
#[derive(Debug)]
pub struct Parked<'a> {
    gate: &'a Gate,
    op: u32,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.gate.parked.lock().remove(&self.op);
    }
}

/// Opens its names when dropped.
#[derive(Debug)]
pub struct Closed {
    gate: Arc<Gate>,
    names: Vec<String>,
}

impl Gate {
    /// Closes the names. The caller has made sure (by an intent in the catalog) that nobody else closes them.
    pub fn close(self: &Arc<Self>, names: &[String]) -> Closed {
        let mut map = self.names.lock();
        for name in names {
            map.entry(name.clone()).or_default();
        }
        self.closed.store(map.len(), Ordering::SeqCst);
        Closed { gate: self.clone(), names: names.to_vec() }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) != 0
    }

    /// Marks an operation as waiting.
    pub fn park(&self, op: u32) -> Parked<'_> {
        self.parked.lock().insert(op);
        Parked { gate: self, op }
    }

    /// What closes `db.coll` (or all of `db` where `coll` is `None`) now.
    fn blocking(&self, db: &str, coll: Option<&str>) -> Option<Arc<Notify>> {
        let names = self.names.lock();
        let full = coll.map(|coll| format!("{db}.{coll}"));
        names.get(db).or_else(|| names.get(full.as_deref()?)).cloned()
    }

    /// Waits until nothing closes what `request` works on; whether it had to wait.
    ///
    /// Statements of a transaction pass, except the first: the shards hold locks for them, and a change of structure
    /// waits there for the transaction to end.
    pub async fn pass(&self, op: &OpContext, request: &Request) -> Result<bool> {
        if !self.is_closed() || (request.generic.in_transaction && !request.generic.start_transaction()) {
            return Ok(false);
        }
        let mut parked = None;
        for (db, coll) in touched(request) {
            self.pass_one(op, db, coll, &mut parked).await?;
        }
        Ok(parked.is_some())
    }

    async fn pass_one<'a>(
        &'a self,
        op: &OpContext,
        db: &str,
        coll: Option<&str>,
        parked: &mut Option<Parked<'a>>,
    ) -> Result<()> {
        while let Some(opened) = self.blocking(db, coll) {
            let notified = opened.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.blocking(db, coll).is_none() {
                break;
            }
            parked.get_or_insert_with(|| self.park(op.id()));
            op.bounded(notified).await?;
        }
        Ok(())
    }
}

/// What a request works on: `(db, coll)`, or all of `db`. Commands that work on no collection (hello, endSessions, getMore
/// by its number) touch nothing.
fn touched(request: &Request) -> impl Iterator<Item = (&str, Option<&str>)> {
    let db = request.db();
    let (coll, body) = match request.argument() {
        Ok(RawBsonRef::String(coll)) if !request.spec.admin_only => (Some(coll), Some(request.body())),
        Ok(RawBsonRef::Document(inner)) if request.spec.name == "explain" => (first_string(inner), None),
        _ => (None, None),
    };
    let whole = coll.is_some() || WHOLE_DATABASE.contains(&request.spec.name);
    let source = whole.then_some((db, coll));
    let target = body.filter(|_| request.spec.name == "aggregate").and_then(|body| written_by(body, db));
    source.into_iter().chain(target.map(|(db, coll)| (db, Some(coll))))
}

/// Commands without a collection that see or change all of a database.
const WHOLE_DATABASE: &[&str] = &["aggregate", "listCollections", "dbStats", "dropDatabase"];

fn first_string(doc: &RawDocument) -> Option<&str> {
    doc.iter_elements().next()?.ok()?.value().ok()?.as_str()
}

impl Closed {
    /// Waits until no write on the closed names runs that began before they were closed.
    ///
    /// # Errors
    /// LockTimeout (24) after half a minute.
    pub async fn drain(&self, ops: &OpRegistry, own: u32) -> Result<()> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let waiting = |r: &OpRecord| self.gate.parked.lock().contains(&r.id);
            let running =
                ops.list().into_iter().find(|r| r.id != own && r.started <= began && self.writes(r) && !waiting(r));
            let Some(running) = running else { return Ok(()) };
            if began.elapsed() > DRAIN_LIMIT {
                return Err(Error::new(
                    Code::LockTimeout,
                    format!(
                        "operation {} ({}) on {} has not ended for {} s; nothing was changed, try again",
                        running.id,
                        running.command,
                        self.names.join(", "),
                        DRAIN_LIMIT.as_secs()
                    ),
                )
                .from_router());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Whether the operation is a write on one of the names, outside a transaction.
    fn writes(&self, op: &OpRecord) -> bool {
        if !WRITES.contains(&op.command) {
            return false;
        }
        let body = bsonx::view(&op.body);
        if bsonx::truthy(body, "autocommit") == Some(false) {
            return false;
        }
        let Some(db) = bsonx::str(body, "$db") else { return false };
        let target = if op.command == "aggregate" { written_by(body, db) } else { first_string(body).map(|c| (db, c)) };
        let Some((db, coll)) = target else { return false };
        self.names.iter().any(|name| match name.split_once('.') {
            None => name == db,
            Some((of, rest)) => of == db && rest == coll,
        })
    }
}

/// The database and collection that a pipeline's last stage writes to.
fn written_by<'a>(body: &'a RawDocument, db: &'a str) -> Option<(&'a str, &'a str)> {
    let last = bsonx::array(body, "pipeline")?.into_iter().flatten().last()?.as_document()?;
    let (key, value) = last.iter().next()?.ok()?;
    let target = match key.as_str() {
        "$out" => value,
        "$merge" => value.as_document().map_or(Some(value), |d| bsonx::get(d, "into"))?,
        _ => return None,
    };
    match target {
        RawBsonRef::String(coll) => Some((db, coll)),
        RawBsonRef::Document(d) => Some((bsonx::str(d, "db").unwrap_or(db), bsonx::str(d, "coll")?)),
        _ => None,
    }
}

/// Commands that can bring a collection into being.
const WRITES: &[&str] = &[
    "insert",
    "update",
    "delete",
    "findAndModify",
    "aggregate",
    "create",
    "createIndexes",
    "convertToCapped",
    "cloneCollectionAsCapped",
];

impl Drop for Closed {
    fn drop(&mut self) {
        let mut map = self.gate.names.lock();
        for name in &self.names {
            if let Some(notify) = map.remove(name) {
                notify.notify_waiters();
            }
        }
        self.gate.closed.store(map.len(), Ordering::SeqCst);
    }
}

/// Waits at the gate; a request that waited goes on with the newest routing.
pub async fn enter(ctx: &mut Ctx, request: &Request) -> Result<()> {
    // Boxed: nearly always neither has anything to hold.
    if ctx.router.ddl.gate.is_closed() {
        let gate = ctx.router.ddl.gate.clone();
        if Box::pin(gate.pass(&ctx.op, request)).await? {
            ctx.snapshot = ctx.router.catalog.snapshot();
        }
    }
    match ctx.snapshot.closed.is_empty() {
        true => Ok(()),
        false => Box::pin(until_open(ctx, request)).await,
    }
}

/// Waits while the catalog says that what the request works on is closed: by a change in another router, or one that
/// waits for a shard.
///
/// # Errors
/// ConflictingOperationInProgress (117) after some seconds.
async fn until_open(ctx: &mut Ctx, request: &Request) -> Result<()> {
    let router = ctx.router.clone();
    let mut versions = router.catalog.subscribe();
    let limit = tokio::time::Instant::now() + CLOSED_LIMIT;
    let mut parked = None;
    loop {
        // An operation that waits must not hold an old snapshot: others wait for those to go.
        versions.mark_unchanged();
        ctx.snapshot = router.catalog.snapshot();
        let held = touched(request).find_map(|(db, coll)| {
            let ns = format!("{db}.{}", coll?);
            ctx.snapshot.closed.get(&ns).map(|what| (ns, what.clone()))
        });
        let Some((ns, what)) = held else { return Ok(()) };
        parked.get_or_insert_with(|| router.ddl.gate.park(ctx.op.id()));
        let changed = ctx.op.bounded(versions.changed());
        if tokio::time::timeout_at(limit, changed).await.is_ok_and(|waited| waited.is_ok()) {
            continue;
        }
        ctx.op.check()?;
        let text = format!("{ns} cannot be used while its {what} is not finished; try again");
        return Err(Error::new(Code::ConflictingOperationInProgress, text).from_router());
    }
}
