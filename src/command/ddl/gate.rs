//! Holding back requests on a namespace while its structure changes.
//!
//! A change that several shards must see together (drop, rename) closes the gate for its names: new requests on them
//! wait, writes that run are waited for, then the catalog and the shards are changed, then the gate opens and the
//! waiting requests go on with the new routing. One router only holds back its own clients; what several routers need
//! against each other is [`crate::catalog::Catalog::settle`], and the leases of the migration protocol once they exist.

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
        if !self.is_closed() || (request.generic.in_transaction && !request.generic.start_transaction) {
            return Ok(false);
        }
        let Ok(argument) = request.argument() else { return Ok(false) };
        let coll = match argument {
            RawBsonRef::String(coll) if !request.spec.admin_only => Some(coll),
            RawBsonRef::Document(inner) if request.spec.name == "explain" => first_string(inner),
            _ => None,
        };
        // Commands that work on no collection (hello, endSessions, getMore by its number) are never held.
        if coll.is_none() && !WHOLE_DATABASE.contains(&request.spec.name) {
            return Ok(false);
        }
        let mut parked = None;
        while let Some(opened) = self.blocking(request.db(), coll) {
            let notified = opened.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.blocking(request.db(), coll).is_none() {
                break;
            }
            parked.get_or_insert_with(|| self.park(op.id()));
            wait(op, notified).await?;
        }
        Ok(parked.is_some())
    }
}

/// Commands without a collection that see or change all of a database.
const WHOLE_DATABASE: &[&str] = &["aggregate", "listCollections", "dbStats", "dropDatabase"];

async fn wait(op: &OpContext, event: impl Future<Output = ()>) -> Result<()> {
    let deadline = async {
        match op.deadline {
            Some(end) => tokio::time::sleep_until(end.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = event => Ok(()),
        () = op.cancel().cancelled() => Err(op.cancelled_error()),
        () = deadline => Err(OpContext::timeout_error()),
    }
}

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
    let gate = ctx.router.ddl.gate.clone();
    if gate.is_closed() && gate.pass(&ctx.op, request).await? {
        ctx.snapshot = ctx.router.catalog.snapshot();
    }
    Ok(())
}
