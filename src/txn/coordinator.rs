//! The way of one transaction through the two phases.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{DateTime, Timestamp};
use futures_util::future::join_all;

use super::participant::Participant;
use super::record::{Decision, Record};
use crate::bsonx;
use crate::catalog::model::collection::TXNS;
use crate::catalog::store::{CatalogTxn, CheckKind};
use crate::error::{Code, Error, Result, Retry};
use crate::op::OpContext;
use crate::router::{Router, clock};

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
/// A shard that cannot or will not prepare (nothing has changed then); a catalog that cannot be written. An error marked
/// [`Retry::Unknown`] leaves open whether the transaction will be committed: the catalog knows, and recovery acts on it.
pub async fn commit(router: &Arc<Router>, op: &OpContext, participants: Vec<Participant>) -> Result<()> {
    let router = router.clone();
    let members: Vec<_> = participants.into_iter().map(Participant::into_member).collect();
    let work = tokio::spawn(async move {
        let record = Record::new(members, router.identity.process_id, DateTime::now());
        let outcome = two_phases(&router, &record).await;
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
        // Nothing is prepared, so the shards would give up by themselves.
        abort_all(router, record).await;
        return Err(error);
    }
    router.failpoints.crash_point("txn.recorded");
    let prepared = match prepare_all(router, record).await {
        Ok(at) => at,
        Err(error) => {
            give_up(router, record).await;
            return Err(error);
        }
    };
    router.failpoints.crash_point("txn.prepared");
    let decided = record.decided(Decision::Committed(prepared), DateTime::now());
    decide(router, record, &decided).await?;
    router.failpoints.crash_point("txn.decided");
    let op = OpContext::background("commitTransaction").with_limit(FINISH_TIME);
    if let Err(error) = carry_out(router, &op, &decided).await {
        tracing::warn!(%error, id = %record.id, "a committed transaction is not finished on every shard; recovery goes on");
    }
    Ok(op.record.operation_time.load(Ordering::Relaxed).max(clock::pack(prepared)))
}

/// Prepares everywhere; gives the newest of the prepare timestamps, which is the commit timestamp.
async fn prepare_all(router: &Arc<Router>, record: &Record) -> Result<Timestamp> {
    let op = OpContext::background("prepareTransaction").with_limit(PREPARE_TIME);
    let outcomes = join_all(record.members.iter().map(|member| member.prepare(router, &op))).await;
    let times = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    times.into_iter().max_by_key(|t| (t.time, t.increment)).ok_or_else(|| Error::internal("no participants"))
}

/// Turns the record from undecided to `next`. When the catalog's answer is lost it is asked for the outcome.
async fn decide(router: &Arc<Router>, record: &Record, next: &Record) -> Result<()> {
    let store = router.catalog.store();
    let txn = CatalogTxn::new()
        .check(
            TXNS,
            CheckKind::Fields(record.key(), record.fingerprint()),
            "The transaction took too long and was aborted; try again",
        )
        .put(TXNS, next.to_doc());
    let mut pause = Duration::from_millis(20);
    for _ in 0..10 {
        let error = match store.commit(&txn).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // Either somebody else decided, or this very decision arrived and its answer was lost.
        match look_up(router, record).await {
            Ok(Some(now)) if now.decision == next.decision => return Ok(()),
            Ok(Some(now)) if now.decision == Decision::Preparing => {}
            Ok(_) => {
                abort_all(router, record).await;
                return Err(error.retry(Retry::Safe));
            }
            Err(e) => tracing::warn!(error = %e, "the catalog cannot be asked for a transaction's decision"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
    Err(Error::new(
        Code::WriteConcernFailed,
        "It is not known yet whether the write was committed, because the catalog does not answer; retry it",
    )
    .from_router()
    .retry(Retry::Unknown))
}

async fn look_up(router: &Arc<Router>, record: &Record) -> Result<Option<Record>> {
    let store = router.catalog.store();
    let mut view = store.view(store.version().await?).await?;
    view.get(TXNS, &record.key()).await?.map(|doc| Record::parse(&doc)).transpose()
}

/// Decides to abort and does it.
async fn give_up(router: &Arc<Router>, record: &Record) {
    let aborted = record.decided(Decision::Aborted, DateTime::now());
    let op = OpContext::background("abortTransaction").with_limit(FINISH_TIME);
    let outcome = match decide(router, record, &aborted).await {
        Ok(()) => carry_out(router, &op, &aborted).await,
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        tracing::warn!(%error, id = %record.id, "an aborted transaction is not finished on every shard; recovery goes on");
    }
}

async fn abort_all(router: &Arc<Router>, record: &Record) {
    let op = OpContext::background("abortTransaction").with_limit(FINISH_TIME);
    for outcome in join_all(record.members.iter().map(|member| member.abort_prepared(router, &op))).await {
        if let Err(error) = outcome {
            tracing::debug!(%error, "a participant was not aborted");
        }
    }
}

/// Does on every shard what was decided, and removes the record once all have done it. Repeating it is harmless.
///
/// # Errors
/// The first shard's that could not do it; the record stays.
pub(super) async fn carry_out(router: &Arc<Router>, op: &OpContext, record: &Record) -> Result<()> {
    let act = async |member: &super::Member| match record.decision {
        Decision::Committed(at) => {
            let outcome = member.commit_prepared(router, op, at).await;
            router.failpoints.crash_point("txn.oneCommitted");
            outcome
        }
        _ => member.abort_prepared(router, op).await,
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

/// Decides for a coordinator that is gone, and finishes its transaction.
pub(super) async fn take_over(router: &Arc<Router>, record: &Record) -> Result<()> {
    let op = OpContext::background("recoverTransaction").with_limit(FINISH_TIME);
    let decided = match record.decision {
        Decision::Preparing => {
            let aborted = record.decided(Decision::Aborted, DateTime::now());
            decide(router, record, &aborted).await?;
            aborted
        }
        _ => record.clone(),
    };
    carry_out(router, &op, &decided).await
}
