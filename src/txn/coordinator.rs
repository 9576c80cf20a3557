//! The way of one transaction through the two phases.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{DateTime, Timestamp};
use futures_util::future::join_all;

use super::participant::Participant;
use super::record::{Decision, Lost, Record, after_lost_cas};
use crate::bsonx;
use crate::catalog::model::collection::TXNS;
use crate::catalog::store::{CatalogTxn, CheckKind};
use crate::error::{Code, Error, Result, Retry};
use crate::op::OpContext;
use crate::router::{Router, clock};
use crate::shard::is_passing;

/// How often a coordinator shows that it is at work.
pub(super) const BEAT: Duration = Duration::from_secs(3);
/// How long a shard may take to prepare.
const PREPARE_TIME: Duration = Duration::from_secs(15);
/// How long the coordinator itself tries to carry out a decision before it leaves that to recovery.
const FINISH_TIME: Duration = Duration::from_secs(10);

/// Commits all participants or none. When this gives `Ok`, the transaction is decided and survives every crash; shards
/// that cannot be reached right now follow as soon as they can be.
///
/// The work goes on when the caller, `op`, goes away. Its operation time becomes that of the commit.
///
/// # Errors
/// A shard that cannot or will not prepare, a catalog that cannot be written. After an error marked [`Retry::Safe`]
/// nothing has changed and another attempt may help. One marked [`Retry::Unknown`] leaves open whether the transaction
/// will be or was committed: the catalog knows or knew, and recovery acts on it. After others nothing has changed.
pub async fn commit(router: &Arc<Router>, op: &OpContext, participants: Vec<Participant>) -> Result<()> {
    let router = router.clone();
    let members: Vec<_> = participants.into_iter().map(Participant::into_member).collect();
    let work = tokio::spawn(async move {
        let record = Record::new(members, router.identity.process_id, DateTime::now());
        let outcome = tokio::select! {
            biased;
            outcome = two_phases(&router, &record) => outcome,
            never = renew(&router, &record) => match never {},
        };
        if let Err(error) = &outcome {
            tracing::warn!(%error, id = %record.id, "a transaction over several shards was not committed");
        }
        outcome
    });
    let time = work.await.unwrap_or_else(|e| Err(Error::internal(format!("the coordinator ended early: {e}"))))?;
    op.record.operation_time.fetch_max(time, Ordering::Relaxed);
    Ok(())
}

/// Gives the operation time of the commit.
async fn two_phases(router: &Arc<Router>, record: &Record) -> Result<u64> {
    let store = router.catalog.store();
    let begin = CatalogTxn::new().check(TXNS, CheckKind::Absent(record.key()), "This transaction is there already");
    if let Err(error) = store.commit(&begin.put(TXNS, record.to_doc())).await {
        // Nothing is prepared, and nobody but this coordinator could have decided to commit.
        abort_all(router, record).await;
        return Err(nothing_changed(error));
    }
    router.failpoints.crash_point("txn.recorded");
    let prepared = match prepare_all(router, record).await {
        Ok(at) => at,
        Err(error) => {
            give_up(router, record).await;
            return Err(nothing_changed(error));
        }
    };
    router.failpoints.crash_point("txn.prepared");
    let decided = decide(router, record, Decision::Committed(prepared)).await?;
    let Some(decided) = decided else { return Err(unknown("somebody else finished the transaction meanwhile")) };
    router.failpoints.crash_point("txn.decided");
    let op = OpContext::background("commitTransaction").with_limit(FINISH_TIME);
    if let Err(error) = carry_out(router, &op, &decided).await {
        tracing::warn!(%error, id = %record.id, "a decided transaction is not finished on every shard; recovery goes on");
    }
    match decided.decision {
        Decision::Committed(at) => Ok(op.record.operation_time.load(Ordering::Relaxed).max(clock::pack(at))),
        _ => {
            let text = "The write over several shards took too long and was aborted; try again";
            Err(Error::new(Code::WriteConflict, text).from_router().retry(Retry::Safe))
        }
    }
}

/// Shows every few seconds that the coordinator is at work, for as long as nothing is decided.
async fn renew(router: &Arc<Router>, record: &Record) -> std::convert::Infallible {
    for beat in 1.. {
        tokio::time::sleep(BEAT).await;
        let txn = CatalogTxn::new()
            .check(TXNS, CheckKind::Fields(record.key(), record.fingerprint()), "The transaction is decided")
            .put(TXNS, record.renewed(beat).to_doc());
        if let Err(error) = router.catalog.store().commit(&txn).await {
            tracing::debug!(%error, id = %record.id, "a transaction's record was not renewed");
        }
    }
    std::future::pending().await
}

/// An error before the decision to commit: whatever may help a little later may be tried again.
fn nothing_changed(error: Error) -> Error {
    // The time limit is the coordinator's, not the client's.
    let passing = is_passing(&error) || error.is(Code::MaxTimeMSExpired);
    if error.retry_of() == Retry::Unknown || passing { error.retry(Retry::Safe) } else { error }
}

fn unknown(why: &str) -> Error {
    Error::new(Code::WriteConcernFailed, format!("It is not known whether the write was committed: {why}; retry it"))
        .from_router()
        .retry(Retry::Unknown)
}

/// Prepares everywhere; gives the newest of the prepare timestamps, which is the commit timestamp.
async fn prepare_all(router: &Arc<Router>, record: &Record) -> Result<Timestamp> {
    let op = OpContext::background("prepareTransaction").with_limit(PREPARE_TIME);
    let outcomes = join_all(record.members.iter().map(|member| member.prepare(router, &op))).await;
    let times = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    times.into_iter().max_by_key(|t| (t.time, t.increment)).ok_or_else(|| Error::internal("no participants"))
}

/// Turns the undecided record to `wanted`, unless somebody else was faster: gives the record as it is decided, which is
/// what has to be carried out; `None` where the record is gone, so that nothing is left to be done.
///
/// # Errors
/// [`Retry::Unknown`]: the catalog does not answer.
async fn decide(router: &Arc<Router>, record: &Record, wanted: Decision) -> Result<Option<Record>> {
    let store = router.catalog.store();
    let next = record.decided(wanted, DateTime::now());
    let txn = CatalogTxn::new()
        .check(TXNS, CheckKind::Fields(record.key(), record.fingerprint()), "The transaction is decided already")
        .put(TXNS, next.to_doc());
    let mut pause = Duration::from_millis(20);
    for _ in 0..10 {
        let Err(error) = store.commit(&txn).await else { return Ok(Some(next)) };
        // Either somebody else decided, or this very decision arrived and its answer was lost.
        match look_up(router, record).await.map(|now| after_lost_cas(now.map(|r| r.decision))) {
            Ok(Lost::Decided(decision)) => return Ok(Some(record.decided(decision, DateTime::now()))),
            Ok(Lost::Finished) => return Ok(None),
            Ok(Lost::Undecided) => tracing::debug!(%error, id = %record.id, "a transaction could not be decided yet"),
            Err(e) => tracing::warn!(error = %e, "the catalog cannot be asked for a transaction's decision"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
    Err(unknown("the catalog does not answer"))
}

async fn look_up(router: &Arc<Router>, record: &Record) -> Result<Option<Record>> {
    let store = router.catalog.store();
    let mut view = store.view(store.version().await?).await?;
    view.get(TXNS, &record.key()).await?.map(|doc| Record::parse(&doc)).transpose()
}

/// Decides to abort and does it.
async fn give_up(router: &Arc<Router>, record: &Record) {
    if let Err(error) = finish(router, record, "abortTransaction").await {
        tracing::warn!(%error, id = %record.id, "an aborted transaction is not finished on every shard; recovery goes on");
    }
}

/// Decides an undecided transaction to be aborted, and carries out what it is decided to be.
async fn finish(router: &Arc<Router>, record: &Record, command: &'static str) -> Result<()> {
    let decided = match record.decision {
        Decision::Preparing => decide(router, record, Decision::Aborted).await?,
        _ => Some(record.clone()),
    };
    let op = OpContext::background(command).with_limit(FINISH_TIME);
    match decided {
        Some(decided) => carry_out(router, &op, &decided).await,
        None => Ok(()),
    }
}

/// Aborts a transaction that is not prepared anywhere.
async fn abort_all(router: &Arc<Router>, record: &Record) {
    let op = OpContext::background("abortTransaction").with_limit(FINISH_TIME);
    for outcome in join_all(record.members.iter().map(|member| member.abort_prepared(router, &op))).await {
        if let Err(error) = outcome {
            tracing::debug!(%error, "a participant was not aborted");
        }
    }
}

/// Does on every shard what was decided, and removes the record once all have done it. Repeating it is harmless. `record`
/// must be decided, as the catalog holds it.
///
/// # Errors
/// The first shard's that could not do it; the record stays.
pub(super) async fn carry_out(router: &Arc<Router>, op: &OpContext, record: &Record) -> Result<()> {
    let act = async |member: &super::Member| match record.decision {
        // Whoever aborted here could undo what the coordinator is about to commit.
        Decision::Preparing => Err(Error::internal("an undecided transaction cannot be carried out")),
        Decision::Committed(at) => {
            let outcome = member.commit_prepared(router, op, at).await;
            router.failpoints.crash_point("txn.oneCommitted");
            outcome
        }
        Decision::Aborted => member.abort_prepared(router, op).await,
    };
    let outcomes = join_all(record.members.iter().map(act)).await;
    outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    router.failpoints.crash_point("txn.done");
    let txn = CatalogTxn::new().delete(TXNS, record.key());
    router.catalog.store().commit(&txn).await.map(drop)
}

/// All unfinished transactions.
pub(super) async fn records(router: &Arc<Router>) -> Result<Vec<Record>> {
    let store = router.catalog.store();
    let mut view = store.view(store.version().await?).await?;
    let mut found = Vec::new();
    view.scan(TXNS, &crate::catalog::store::Scan::All, &mut |doc| {
        match Record::parse(&doc) {
            Ok(record) => found.push(record),
            Err(error) => tracing::error!(%error, id = ?bsonx::get(&doc, "_id"), "a transaction's record is malformed"),
        }
        Ok(())
    })
    .await?;
    Ok(found)
}

/// Decides for a coordinator that is gone, and finishes its transaction. Where the coordinator is not gone after all and
/// decides first, its decision is carried out.
pub(super) async fn take_over(router: &Arc<Router>, record: &Record) -> Result<()> {
    finish(router, record, "recoverTransaction").await
}
