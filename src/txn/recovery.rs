//! Finishing transactions whose coordinator is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Uuid;
use bson::oid::ObjectId;
use futures_util::StreamExt;

use super::coordinator::{BEAT, records, take_over};
use super::record::{Decision, Record};
use crate::catalog::standstill::Standstill;
use crate::catalog::store::ConfigReads;
use crate::error::Result;
use crate::router::Router;

/// Between two looks at the catalog.
const EVERY: Duration = Duration::from_secs(5);
/// A coordinator that has not renewed its undecided record for this long is taken for gone. Being wrong costs a retry.
const UNDECIDED: Duration = BEAT.saturating_mul(6);
/// After a decision its coordinator has this long for the first try at carrying it out. Doing it twice is harmless.
const DECIDED: Duration = Duration::from_secs(10);
/// Records that are taken up at a time: a shard that does not answer must not hold up the others' transactions.
const AT_ONCE: usize = 16;

/// Looks for abandoned transactions at once and then every few seconds until the router stops.
pub fn start(router: &Arc<Router>) {
    let router = router.clone();
    tokio::spawn(async move {
        let shutdown = router.shutdown.clone();
        let mut seen = Seen::default();
        loop {
            if let Err(error) = sweep(&router, &mut seen).await {
                tracing::warn!(%error, "unfinished transactions cannot be looked for");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    });
}

/// The records seen before: decided or not, at which beat.
type Seen = Standstill<Uuid, (bool, i64)>;

/// Whether somebody other than its coordinator should finish the transaction; `me` looks. `alone` says that no other
/// router can be at work on this catalog.
fn is_abandoned(seen: &mut Seen, record: &Record, me: ObjectId, alone: bool, now: Instant) -> bool {
    let decided = record.decision != Decision::Preparing;
    let patience = if decided { DECIDED } else { UNDECIDED };
    seen.since(record.id, (decided, record.beat), now) > patience || alone && record.owner != me
}

/// One look.
async fn sweep(router: &Arc<Router>, seen: &mut Seen) -> Result<()> {
    // A catalog in a file has one router: whoever else began a transaction is gone.
    let alone = router.catalog.store().config_reads() == ConfigReads::Local;
    let me = router.identity.process_id;
    let mut found = records(router).await?;
    seen.keep(|id| found.iter().any(|record| record.id == *id));
    found.retain(|record| is_abandoned(seen, record, me, alone, Instant::now()));
    let finish = |record: Record| async move {
        match take_over(router, &record).await {
            Ok(()) => tracing::info!(id = %record.id, "finished an abandoned transaction"),
            Err(error) => tracing::warn!(%error, id = %record.id, "an abandoned transaction cannot be finished yet"),
        }
    };
    futures_util::stream::iter(found).for_each_concurrent(AT_ONCE, finish).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use bson::DateTime;

    use super::*;

    #[test]
    fn a_coordinator_is_gone_when_it_no_longer_renews() {
        let (me, other, now) = (ObjectId::new(), ObjectId::new(), Instant::now());
        // What the record says of the time does not count: clocks differ.
        let record = Record::new(Vec::new(), other, DateTime::from_millis(0));
        let second = Duration::from_secs(1);
        let mut seen = Seen::default();
        assert!(!is_abandoned(&mut seen, &record, me, false, now));
        assert!(!is_abandoned(&mut seen, &record, me, false, now + UNDECIDED));
        assert!(!is_abandoned(&mut seen, &record.renewed(1), me, false, now + UNDECIDED * 2), "it was renewed");
        assert!(!is_abandoned(&mut seen, &record.renewed(1), me, false, now + UNDECIDED * 3));
        assert!(is_abandoned(&mut seen, &record.renewed(1), me, false, now + UNDECIDED * 3 + second));
        let decided = record.renewed(1).decided(Decision::Aborted, DateTime::now());
        assert!(!is_abandoned(&mut seen, &decided, me, false, now + UNDECIDED * 4), "it has just decided");
        assert!(is_abandoned(&mut seen, &decided, me, false, now + UNDECIDED * 4 + DECIDED + second));
    }

    #[test]
    fn on_a_catalog_of_its_own_a_router_waits_for_nobody_else() {
        let (me, other, now) = (ObjectId::new(), ObjectId::new(), Instant::now());
        let mut seen = Seen::default();
        assert!(is_abandoned(&mut seen, &Record::new(Vec::new(), other, DateTime::now()), me, true, now));
        assert!(!is_abandoned(&mut seen, &Record::new(Vec::new(), me, DateTime::now()), me, true, now));
    }
}
