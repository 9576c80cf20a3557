//! The balancer's switches. There is no balancer yet, and everything that can be asked about it says so: the setting in
//! `config.settings` is "stopped" (`sh.status()` shows "Currently enabled: no"), and it cannot be started.

use std::sync::Arc;

use bson::{Document, RawDocumentBuf, doc, rawdoc};

use crate::catalog::model::collection;
use crate::catalog::snapshot::Snapshot;
use crate::catalog::store::CatalogTxn;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::router::Router;

/// The `_id`s in `config.settings`.
const BALANCER: &str = "balancer";
const AUTOSPLIT: &str = "autosplit";

pub async fn status(_ctx: &Ctx, _request: &Request) -> Result<Reply> {
    Ok(Reply::ok(rawdoc! { "mode": "off", "inBalancerRound": false, "numBalancerRounds": 0_i64 }))
}

/// It does not run, so stopping it is done; the setting says it.
pub async fn stop(ctx: &Ctx, _request: &Request) -> Result<Reply> {
    let mut setting = match ctx.snapshot.settings.get(BALANCER) {
        Some(doc) => Document::try_from(&**doc)?,
        None => doc! { "_id": BALANCER },
    };
    setting.insert("mode", "off");
    setting.insert("stopped", true);
    let txn =
        CatalogTxn::new().put(collection::SETTINGS, RawDocumentBuf::try_from(&setting)?).touch(collection::SETTINGS);
    let version = ctx.router.catalog.store().commit(&txn).await?;
    ctx.router.catalog.refresh_to(version).await?;
    Ok(Reply::empty_ok())
}

pub async fn start(_ctx: &Ctx, _request: &Request) -> Result<Reply> {
    Err(Error::new(
        Code::CommandNotSupported,
        "balancerStart is not supported yet: this router does not move data between shards yet",
    ))
}

/// Writes the settings that a catalog lacks: without them tools take balancer and autosplitter for running.
pub fn note_absence(router: &Arc<Router>) {
    let router = router.clone();
    tokio::spawn(async move {
        let snapshot = router.catalog.snapshot();
        let Some(txn) = missing(&snapshot) else { return };
        let done = match router.catalog.store().commit(&txn).await {
            Ok(version) => router.catalog.refresh_to(version).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match done {
            // Another router was first, or somebody has just changed the settings.
            Err(error) if error.is(Code::ConflictingOperationInProgress) => {}
            Err(error) => tracing::warn!(%error, "config.settings could not be completed"),
            Ok(()) => {}
        }
    });
}

fn missing(snapshot: &Snapshot) -> Option<CatalogTxn> {
    let wanted = [
        (BALANCER, rawdoc! { "_id": BALANCER, "mode": "off", "stopped": true }),
        (AUTOSPLIT, rawdoc! { "_id": AUTOSPLIT, "enabled": false }),
    ];
    let mut txn = CatalogTxn::new();
    for (id, setting) in wanted {
        if !snapshot.settings.contains_key(id) {
            txn = txn.put(collection::SETTINGS, setting);
        }
    }
    if txn.writes.is_empty() {
        return None;
    }
    Some(txn.unchanged(collection::SETTINGS, snapshot.version).touch(collection::SETTINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_written() {
        let mut snapshot = Snapshot::default();
        assert_eq!(missing(&snapshot).map(|t| t.writes.len()), Some(2));
        snapshot.settings.insert(BALANCER.into(), rawdoc! { "_id": BALANCER, "stopped": false });
        assert_eq!(missing(&snapshot).map(|t| t.writes.len()), Some(1));
        snapshot.settings.insert(AUTOSPLIT.into(), rawdoc! { "_id": AUTOSPLIT, "enabled": true });
        assert!(missing(&snapshot).is_none());
    }
}
