//! Several routers over one catalog: making sure that what this one does not know is not there, and that the others
//! know what this one changed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{DateTime, RawDocument};

use super::Catalog;
use crate::bsonx;
use crate::catalog::model::collection;
use crate::catalog::snapshot::Snapshot;
use crate::catalog::store::{ConfigReads, Scan};
use crate::error::{Error, Result};

/// After a look that found nothing new the next one waits this long: a client that reads a database that is not there
/// in a loop costs the catalog a bounded number of reads.
const SPACING: Duration = Duration::from_millis(5);

/// A router that lives has learned of a commit after this time, even if it does not say so.
const SETTLE: Duration = Duration::from_millis(1_200);
/// A router whose last ping in `config.mongos` is older is taken for gone; in milliseconds.
const ALIVE: i64 = 90_000;
/// Where routers tell in `config.mongos` which version they serve.
pub(super) const SERVED: &bson::raw::CStr = bson::cstr!("catalogVersion");
/// And who they are: a new id for every start.
pub(super) const PROCESS: &bson::raw::CStr = bson::cstr!("process");

/// The last look at the store's version; whoever holds the lock is looking.
#[derive(Default)]
pub(super) struct Confirming(tokio::sync::Mutex<Option<Look>>);

struct Look {
    began: Instant,
    ended: Instant,
    /// Whether it found the snapshot out of date, or why it failed.
    found: Result<bool>,
}

impl Catalog {
    /// The newest snapshot: shows every change that was acknowledged to anybody before this call. For use before
    /// something is answered to be unknown.
    ///
    /// One look at a time, and those who come during one share the next.
    pub async fn confirm(&self) -> Result<Arc<Snapshot>> {
        if !self.is_shared() {
            // The store is in this process: looking costs nothing.
            return self.look().await.map(|_| self.snapshot());
        }
        let asked = Instant::now();
        let mut last = self.confirming.0.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.began > asked) {
            return look.found.clone().map(|_| self.snapshot());
        }
        if let Some(Look { ended, found: Ok(false), .. }) = &*last {
            tokio::time::sleep_until((*ended + SPACING).into()).await;
        }
        let began = Instant::now();
        let found = self.look().await;
        *last = Some(Look { began, ended: Instant::now(), found: found.clone() });
        drop(last);
        found.map(|_| self.snapshot())
    }

    async fn look(&self) -> Result<bool> {
        let before = self.snapshot().version;
        let version = self.store.newest().await?;
        self.refresh_to(version).await.map(|snapshot| snapshot.version > before)
    }

    /// The version that this router serves: no operation of it works on an older one.
    pub(super) fn served(&self) -> u64 {
        let mut former = self.former.lock();
        former.retain(|snapshot| snapshot.strong_count() > 0);
        let oldest = former.iter().filter_map(|snapshot| snapshot.upgrade().map(|s| s.version)).min();
        oldest.unwrap_or_else(|| self.snapshot().version)
    }

    /// Whether other routers may use the same catalog.
    pub fn is_shared(&self) -> bool {
        self.store.config_reads() != ConfigReads::Local
    }

    /// Waits until every other router that lives serves this router's version of the catalog, and no operation there
    /// works on an older one: until it says so in `config.mongos`, but no longer than a router needs to learn of it.
    pub async fn settle(&self) {
        if !self.is_shared() {
            return;
        }
        let (began, version) = (Instant::now(), self.snapshot().version);
        let mut pause = Duration::from_millis(5);
        loop {
            match tokio::time::timeout(SETTLE, self.someone_is_behind(version)).await {
                Ok(Ok(false)) => return,
                Ok(Ok(true)) | Err(_) => {}
                Ok(Err(error)) => tracing::warn!(%error, "what other routers serve cannot be read"),
            }
            let left = SETTLE.saturating_sub(began.elapsed());
            if left.is_zero() {
                tracing::info!(
                    version,
                    "not every router has told that it serves the newest catalog; not waiting longer"
                );
                return;
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// The process ids of the routers that live: those whose last ping is not too old. One that has just started may not
    /// have told yet.
    pub async fn living(&self) -> Result<HashSet<ObjectId>> {
        let mut living: HashSet<ObjectId> = [self.process].into_iter().collect();
        if !self.is_shared() {
            return Ok(living);
        }
        let now = DateTime::now().timestamp_millis();
        let mut view = self.store.view(0).await?;
        view.scan(collection::MONGOS, &Scan::All, &mut |doc| {
            let process = bsonx::get(&doc, PROCESS.as_str()).and_then(|v| v.as_object_id());
            living.extend(process.filter(|_| is_alive(&doc, now)));
            Ok::<(), Error>(())
        })
        .await?;
        Ok(living)
    }

    async fn someone_is_behind(&self, version: u64) -> Result<bool> {
        let now = DateTime::now().timestamp_millis();
        let mut behind = false;
        let mut view = self.store.view(0).await?;
        view.scan(collection::MONGOS, &Scan::All, &mut |doc| {
            let alive = is_alive(&doc, now);
            let served = bsonx::int(&doc, SERVED.as_str()).unwrap_or(0);
            behind |= alive && served < version as i64 && bsonx::str(&doc, "_id") != Some(self.name.as_str());
            Ok::<(), Error>(())
        })
        .await?;
        Ok(behind)
    }
}

/// Whether a router's document in `config.mongos` was written lately.
fn is_alive(doc: &RawDocument, now: i64) -> bool {
    let ping = bsonx::get(doc, "ping").and_then(|v| v.as_datetime());
    ping.is_some_and(|p| (now - p.timestamp_millis()).abs() < ALIVE)
}
