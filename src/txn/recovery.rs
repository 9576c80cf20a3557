//! Finishing transactions whose coordinator is gone.

use std::sync::Arc;
use std::time::Duration;

use bson::DateTime;

use super::coordinator::{records, take_over};
use crate::catalog::store::ConfigReads;
use crate::error::Result;
use crate::router::Router;

/// Between two looks at the catalog.
const EVERY: Duration = Duration::from_secs(5);

/// Looks for abandoned transactions at once and then every few seconds until the router stops.
pub fn start(router: &Arc<Router>) {
    let router = router.clone();
    tokio::spawn(async move {
        let shutdown = router.shutdown.clone();
        loop {
            if let Err(error) = sweep(&router).await {
                tracing::warn!(%error, "unfinished transactions cannot be looked for");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    });
}

/// One look. Gives how many transactions were finished.
pub async fn sweep(router: &Arc<Router>) -> Result<usize> {
    // A catalog in a file has one router: whoever else began a transaction is gone.
    let alone = router.catalog.store().config_reads() == ConfigReads::Local;
    let me = router.identity.process_id;
    let mut finished = 0;
    for record in records(router).await? {
        if !record.is_orphan(me, alone, DateTime::now()) {
            continue;
        }
        match take_over(router, &record).await {
            Ok(()) => {
                tracing::info!(id = %record.id, decision = ?record.decision, "finished an abandoned transaction");
                finished += 1;
            }
            Err(error) => tracing::warn!(%error, id = %record.id, "an abandoned transaction cannot be finished yet"),
        }
    }
    Ok(finished)
}
