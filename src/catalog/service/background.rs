//! What the catalog does unasked: follow other routers' changes, and tell that this router lives.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bson::{DateTime, RawArrayBuf, cstr, rawdoc};
use tokio_util::sync::CancellationToken;

use super::Catalog;
use crate::catalog::model::collection;

/// Between two pings in `config.mongos`.
const PING: Duration = Duration::from_secs(30);
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
    let mut pause = Duration::ZERO;
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

/// Keeps this router's document in `config.mongos` fresh.
async fn ping(catalog: Weak<Catalog>) {
    let (started, created) = (Instant::now(), DateTime::now());
    loop {
        let Some(catalog) = catalog.upgrade() else { return };
        let mut doc = rawdoc! { "_id": catalog.name.as_str() };
        doc.append(cstr!("advisoryHostFQDNs"), RawArrayBuf::new());
        doc.append(cstr!("created"), created);
        doc.append(cstr!("mongoVersion"), crate::SERVER_VERSION);
        doc.append(cstr!("ping"), DateTime::now());
        doc.append(cstr!("up"), started.elapsed().as_secs() as i64);
        doc.append(cstr!("waiting"), true);
        if let Err(error) = catalog.store.note(collection::MONGOS, doc).await {
            tracing::warn!(%error, "the ping in config.mongos failed");
        }
        drop(catalog);
        tokio::time::sleep(PING).await;
    }
}
