//! Reads over several shards: opening their cursors, getting more from them, filling the client's batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{RawBsonRef, RawDocument, Timestamp, rawdoc};
use bytes::Bytes;
use futures_util::future::join_all;

use super::find_args::Additions;
use super::pass::{CursorOptions, OpenCursor, batch_of};
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply, Request};
use crate::cursor::{Cursor, MergedCursor, RemoteCursor};
use crate::error::{Code, Error, Result};
use crate::merge::{CursorFields, Merger, ReplyWriter, Sink};
use crate::router::clock::{self, pack, unpack};
use crate::scatter::named_time;
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::OutMsg;

/// One shard's first batch.
#[derive(Debug)]
pub struct FirstBatch {
    pub shard: ShardId,
    /// The array's bytes.
    pub batch: Bytes,
    /// `None` where that was all.
    pub cursor: Option<RemoteCursor>,
    pub at_cluster_time: Option<Timestamp>,
}

impl Ctx {
    /// Sends a cursor command to each shard at once. A shard that cannot be reached is `None` with `allow_partial`.
    ///
    /// # Errors
    /// The first failing shard's. Cursors the others have opened are killed.
    pub async fn open_cursors(
        &self,
        request: &Request,
        requests: &[(ShardId, OutMsg)],
        pref: &ReadPreference,
        allow_partial: bool,
    ) -> Result<Vec<Option<FirstBatch>>> {
        let retry = request.read_retry();
        let open = |(shard, msg)| async move {
            // Read right here, so that a cursor has an owner even if this whole operation is dropped.
            match self.send(shard, pref, retry, msg).await {
                Ok(reply) => self.first_batch(reply).map(Some),
                Err(error) => Err(error),
            }
        };
        let outcomes = join_all(requests.iter().map(|(shard, msg)| open((shard, msg)))).await;
        outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Err(error) if allow_partial && is_unreachable(&error) => Ok(None),
                other => other,
            })
            .collect()
    }

    fn first_batch(&self, reply: ShardReply) -> Result<FirstBatch> {
        let reply = reply.into_result()?;
        let killer = self.router.cursors.killer().clone();
        let open = OpenCursor::read(&reply.body)?;
        let cursor = open.map(|o| RemoteCursor::new(reply.shard.clone(), reply.server, o.ns, o.id, killer));
        Ok(FirstBatch {
            shard: reply.shard,
            batch: batch_of(&reply.body, "firstBatch")?,
            cursor,
            at_cluster_time: at_cluster_time(&reply.body),
        })
    }

    /// Gets the next batch of each of these sources at once.
    async fn fetch(
        &self,
        request: &Request,
        cursor: &mut MergedCursor,
        sources: &[usize],
        batch_size: Option<i64>,
    ) -> Result<()> {
        let ask = |source: usize| {
            let remote = cursor.remotes.get(source).and_then(Option::as_ref);
            async move {
                let remote = remote?;
                let msg = OutMsg::new(get_more_body(request.body(), remote, batch_size));
                let sent = self.send_to_server(&remote.shard, &remote.server, &msg).await;
                Some(sent.and_then(ShardReply::into_result))
            }
        };
        let replies = join_all(sources.iter().map(|source| ask(*source))).await;
        for (source, reply) in sources.iter().zip(replies) {
            match reply {
                None => cursor.merger.finish_source(*source),
                Some(Ok(reply)) => {
                    let done = OpenCursor::read(&reply.body)?.is_none();
                    if done && let Some(remote) = cursor.remotes[*source].take() {
                        remote.exhausted();
                    }
                    cursor.merger.supply(*source, batch_of(&reply.body, "nextBatch")?, done)?;
                }
                Some(Err(error)) if cursor.allow_partial && is_unreachable(&error) => {
                    cursor.remotes[*source] = None;
                    cursor.merger.finish_source(*source);
                    cursor.partial = true;
                }
                Some(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes up to `count` documents into the batch, getting more from shards as needed.
    pub async fn fill(
        &self,
        request: &Request,
        cursor: &mut MergedCursor,
        writer: &mut impl Sink,
        count: usize,
        batch_size: Option<i64>,
    ) -> Result<()> {
        while writer.count() < count {
            let starving = cursor.merger.starving();
            if !starving.is_empty() {
                self.fetch(request, cursor, &starving, batch_size).await?;
                continue;
            }
            if let Some(doc) = cursor.merger.peek()? {
                if !writer.fits(doc.len()) {
                    return Ok(());
                }
                writer.push(&doc);
            } else if cursor.merger.starving().is_empty() {
                return Ok(());
            } else {
                // What was skipped has used up a batch.
                continue;
            }
            cursor.merger.pop()?;
        }
        Ok(())
    }

    /// The first reply to a read over several shards.
    ///
    /// `count` is how many documents it may hold; `close` ends the cursor with it.
    pub async fn first_reply(&self, request: &Request, mut cursor: MergedCursor, first: First<'_>) -> Result<Reply> {
        let mut writer = ReplyWriter::new(true);
        self.fill(request, &mut cursor, &mut writer, first.count, first.batch_size).await?;
        let (partial, at_cluster_time) = (cursor.partial, cursor.at_cluster_time);
        let id = if first.close || cursor.merger.at_end() {
            0
        } else {
            let facts = self.new_cursor(request, first.ns.clone(), first.options);
            self.router.cursors.open(facts, Cursor::Merged(Box::new(cursor)))
        };
        Ok(Reply::raw(writer.finish(CursorFields { id, ns: first.ns, partial, at_cluster_time })))
    }

    /// What all shards of a multi-shard read must be told alike.
    ///
    /// A snapshot read without a time of its own gets one: the newest that this router and the client know of. `$$NOW`
    /// is only sent where the command mentions it, since strict API versions do not know the field.
    pub async fn common_times(&self, body: &RawDocument, read_concern: Option<&RawDocument>) -> Result<CommonTimes> {
        let mut times = CommonTimes::default();
        let clock = &self.router.clock;
        if let Some(concern) = read_concern
            && bsonx::str(concern, "level") == Some("snapshot")
            && bsonx::get(concern, "atClusterTime").is_none()
        {
            if clock.document().is_none()
                && let Some(shard) = self.snapshot.shards.keys().next()
            {
                // Nothing was read from any shard yet; a reply to whatever brings a time.
                self.send_primary(shard, Retryable::Read, &OutMsg::from_doc(rawdoc! { "ping": 1, "$db": "admin" }))
                    .await?;
            }
            let own = pack(clock.newest());
            let clients = client_time(body, bson::DateTime::now());
            let newest = own.max(clients).max(named_time(concern));
            if newest > 0 {
                times.at_cluster_time = Some(unpack(newest));
                self.op.record.awaited.fetch_max(newest, Ordering::Relaxed);
            }
            // Shards have to know of the time before they read at it. What the client gossips reaches them anyway.
            times.cluster_time = clock.document().filter(|_| own >= clients);
        }
        if mentions_now(body.as_bytes()) {
            times.now = Some((bson::DateTime::now(), clock.newest()));
        }
        Ok(times)
    }
}

/// The cluster time that the client has seen, packed; 0 where it tells none, or one that servers refuse.
fn client_time(body: &RawDocument, now: bson::DateTime) -> u64 {
    let latest = u64::try_from(now.timestamp_millis() / 1000).unwrap_or(0) + clock::MAX_DRIFT;
    match bsonx::doc(body, "$clusterTime").and_then(|gossip| bsonx::get(gossip, "clusterTime")) {
        Some(RawBsonRef::Timestamp(time)) if u64::from(time.time) <= latest => pack(time),
        _ => 0,
    }
}

/// See [`Ctx::first_reply`].
#[derive(Clone, Debug)]
pub struct First<'a> {
    pub ns: &'a Arc<str>,
    pub count: usize,
    pub batch_size: Option<i64>,
    pub close: bool,
    pub options: CursorOptions,
}

/// [`Additions`] with what they borrow.
#[derive(Clone, Debug, Default)]
pub struct CommonTimes {
    pub at_cluster_time: Option<Timestamp>,
    pub cluster_time: Option<bson::RawDocumentBuf>,
    pub now: Option<(bson::DateTime, Timestamp)>,
}

impl CommonTimes {
    pub fn additions(&self) -> Additions<'_> {
        Additions { at_cluster_time: self.at_cluster_time, cluster_time: self.cluster_time.as_deref(), now: self.now }
    }

    /// What a shard that only merges must know too.
    pub fn now_alone(&self) -> Additions<'_> {
        Additions { now: self.now, ..Additions::default() }
    }
}

/// Starts a merge from the shards' first batches.
///
/// # Errors
/// InvalidBSON (22) for malformed batches.
pub fn start(mut merger: Merger, firsts: Vec<Option<FirstBatch>>, allow_partial: bool) -> Result<MergedCursor> {
    let mut remotes = Vec::with_capacity(firsts.len());
    let (mut partial, mut at_cluster_time) = (false, None);
    for (source, first) in firsts.into_iter().enumerate() {
        let Some(first) = first else {
            merger.finish_source(source);
            remotes.push(None);
            partial = true;
            continue;
        };
        merger.supply(source, first.batch, first.cursor.is_none())?;
        at_cluster_time = at_cluster_time.or(first.at_cluster_time);
        remotes.push(first.cursor);
    }
    Ok(MergedCursor { merger, remotes, allow_partial, partial, at_cluster_time })
}

/// A getMore for a shard's cursor in the name of the client's command, whose session it carries on.
pub fn get_more_body(request: &RawDocument, remote: &RemoteCursor, batch_size: Option<i64>) -> Vec<u8> {
    let mut out = Writer::new();
    out.int64("getMore", remote.id()).str("collection", remote.ns.coll());
    if let Some(size) = batch_size.filter(|size| *size > 0) {
        out.int64("batchSize", size);
    }
    carry_on(request, &mut out);
    out.str("$db", remote.ns.db());
    out.finish()
}

/// Copies what binds a follow-up command to the client's session, API version and read preference.
pub fn carry_on(request: &RawDocument, out: &mut Writer) {
    let bytes = request.as_bytes();
    for field in bsonx::fields(bytes) {
        let carried = matches!(
            field.key,
            b"lsid"
                | b"txnNumber"
                | b"autocommit"
                | b"comment"
                | b"$readPreference"
                | b"$clusterTime"
                | b"apiVersion"
                | b"apiStrict"
                | b"apiDeprecationErrors"
        );
        if carried {
            out.raw_fields(&bytes[field.whole()]);
        }
    }
}

fn at_cluster_time(reply: &[u8]) -> Option<Timestamp> {
    let cursor = bsonx::doc(bsonx::view(reply), "cursor")?;
    match bsonx::get(cursor, "atClusterTime") {
        Some(RawBsonRef::Timestamp(time)) => Some(time),
        _ => None,
    }
}

/// Whether the shard did not answer at all: what `allowPartialResults` forgives.
pub fn is_unreachable(error: &Error) -> bool {
    [
        Code::HostUnreachable,
        Code::HostNotFound,
        Code::NetworkTimeout,
        Code::FailedToSatisfyReadPreference,
        Code::NetworkInterfaceExceededTimeLimit,
        Code::PooledConnectionAcquisitionExceededTimeLimit,
        Code::SocketException,
        Code::ShutdownInProgress,
        Code::InterruptedAtShutdown,
        Code::NotWritablePrimary,
        Code::NotPrimaryNoSecondaryOk,
        Code::NotPrimaryOrSecondary,
        Code::PrimarySteppedDown,
        Code::InterruptedDueToReplStateChange,
        Code::MaxTimeMSExpired,
    ]
    .into_iter()
    .any(|code| error.is(code))
}

/// Whether the bytes hold one of the variables that every shard must see alike.
fn mentions_now(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|b| *b == b'$') {
        rest = &rest[at + 1..];
        if rest.starts_with(b"$NOW") || rest.starts_with(b"$CLUSTER_TIME") {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_time_that_a_client_has_seen() {
        let now = bson::DateTime::from_millis(1_700_000_000_000);
        let seen = |time| {
            let body = rawdoc! { "find": "c", "$clusterTime": { "clusterTime": Timestamp { time, increment: 3 } } };
            unpack(client_time(&body, now)).time
        };
        assert_eq!(seen(1_700_000_005), 1_700_000_005);
        assert_eq!(seen(1_700_000_000 + 365 * 24 * 60 * 60 + 1), 0);
        assert_eq!(client_time(&rawdoc! { "find": "c" }, now), 0);
    }

    #[test]
    fn variables_are_noticed() {
        assert!(mentions_now(rawdoc! { "filter": { "$expr": { "$lt": ["$t", "$$NOW"] } } }.as_bytes()));
        assert!(mentions_now(rawdoc! { "let": { "t": "$$CLUSTER_TIME" } }.as_bytes()));
        assert!(!mentions_now(rawdoc! { "filter": { "$NOW": "$$ROOT", "price": "$" } }.as_bytes()));
    }

    #[test]
    fn follow_ups_stay_in_the_session() {
        let request = rawdoc! {
            "find": "c", "filter": {}, "lsid": { "id": 1 }, "txnNumber": 5_i64, "startTransaction": true,
            "autocommit": false, "maxTimeMS": 5, "comment": "x", "$db": "d", "apiVersion": "1",
        };
        let mut out = Writer::new();
        carry_on(&request, &mut out);
        let carried = bson::Document::from_reader(&*out.finish()).unwrap();
        let wanted = bson::doc! { "lsid": { "id": 1 }, "txnNumber": 5_i64, "autocommit": false, "comment": "x", "apiVersion": "1" };
        assert_eq!(carried, wanted);
    }
}
