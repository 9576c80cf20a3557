//! What the catalog does unasked: follow other routers' changes, and tell that this router lives.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bson::{DateTime, RawArrayBuf, cstr, rawdoc};
use tokio_util::sync::CancellationToken;

use super::{Catalog, confirm};
use crate::catalog::model::collection;

/// Between two pings in `config.mongos`.
const PING: Duration = Duration::from_secs(30);
/// The least time between two notes in `config.mongos` while the catalog changes all the time.
const NOTE_PAUSE: Duration = Duration::from_millis(10);
/// Before another attempt at a note that could not be written.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks whether operations on a former snapshot have ended.
const MAX_NOTE_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between attempts to load a changed catalog.
const MAX_PAUSE: Duration = Duration::from_secs(5);

pub(super) fn start(catalog: &Arc<Catalog>, shutdown: CancellationToken) {
    tokio::spawn(until(shutdown.clone(), follow(Arc::downgrade(catalog), catalog.store.watch())));
    tokio::spawn(until(shutdown, ping(Arc::downgrade(catalog))));
}

async fn until(shutdown: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Loads every version the store tells of, with growing pauses while that fails.
async fn follow(catalog: Weak<Catalog>, mut versions: tokio::sync::watch::Receiver<u64>) {
    let mut pause = Duration::from_millis(1);
    while pause > Duration::ZERO || versions.changed().await.is_ok() {
        let version = *versions.borrow_and_update();
        tokio::time::sleep(pause).await;
        let Some(catalog) = catalog.upgrade() else { return };
        pause = match catalog.refresh_to(version).await {
            Ok(_) => Duration::ZERO,
            Err(error) => {
                tracing::warn!(%error, version, "the changed catalog cannot be loaded; serving the old one");
                (pause * 2).clamp(Duration::from_millis(100), MAX_PAUSE)
            }
        };
    }
}

/// Keeps this router's document in `config.mongos` fresh: that it lives, and the version of the catalog it serves.
async fn ping(catalog: Weak<Catalog>) {
    let (started, created) = (Instant::now(), DateTime::now());
    let Some((mut changed, shared)) = catalog.upgrade().map(|c| (c.subscribe(), c.is_shared())) else { return };
    let weak = catalog;
    loop {
        let Some(catalog) = weak.upgrade() else { return };
        let version = catalog.served();
        let mut doc = rawdoc! { "_id": catalog.name.as_str() };
        doc.append(cstr!("advisoryHostFQDNs"), RawArrayBuf::new());
        doc.append(confirm::SERVED, version as i64);
        doc.append(cstr!("created"), created);
        doc.append(cstr!("mongoVersion"), crate::SERVER_VERSION);
        doc.append(cstr!("ping"), DateTime::now());
        doc.append(confirm::PROCESS, catalog.process);
        doc.append(cstr!("up"), started.elapsed().as_secs() as i64);
        doc.append(cstr!("waiting"), true);
        let told = match catalog.store.note(collection::MONGOS, doc).await {
            Ok(()) => version,
            Err(error) => {
                tracing::warn!(%error, "the ping in config.mongos failed");
                tokio::time::sleep(FAILED_PAUSE).await;
                0
            }
        };
        drop(catalog);
        // Nobody waits for the only router to have seen a change.
        let news = async {
            match shared {
                true => until_newer(&weak, &mut changed, told).await,
                false => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(PING, news).await;
    }
}

/// Until this router serves a version after `told`.
async fn until_newer(catalog: &Weak<Catalog>, changed: &mut tokio::sync::watch::Receiver<u64>, told: u64) {
    let mut pause = NOTE_PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let Some((served, newest)) = catalog.upgrade().map(|c| (c.served(), c.snapshot().version)) else { return };
        if served > told {
            return;
        }
        if newest > told {
            // Operations on the former snapshot are to end; nothing tells when.
            pause = (pause * 2).min(MAX_NOTE_PAUSE);
        } else if changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        } else {
            pause = Duration::from_millis(1);
        }
    }
}
