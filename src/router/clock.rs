//! The cluster's logical time as this router has seen it. Every reply carries `$clusterTime` and
//! `operationTime`, or neither while no shard has told the router a time yet.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::raw::RawBsonRef;
use bson::spec::BinarySubtype;
use bson::{RawDocument, RawDocumentBuf, Timestamp, cstr};
use parking_lot::RwLock;

use crate::bsonx::{self, kind};
use crate::command::Reply;
use crate::error::{Code, Error, Result};
use crate::op::OpContext;
use crate::shard::ShardReply;

/// Packs a timestamp so that packed values order as timestamps do.
pub fn pack(ts: Timestamp) -> u64 {
    (u64::from(ts.time) << 32) | u64::from(ts.increment)
}

pub fn unpack(packed: u64) -> Timestamp {
    Timestamp { time: (packed >> 32) as u32, increment: packed as u32 }
}

/// The `operationTime` of a shard's reply, packed; 0 where it has none.
pub fn operation_time(reply: &RawDocument) -> u64 {
    match bsonx::get(reply, "operationTime") {
        Some(RawBsonRef::Timestamp(time)) => pack(time),
        _ => 0,
    }
}

/// How far ahead of the wall clock a client's `$clusterTime` may be, in seconds: servers refuse later ones
/// (`maxAcceptableLogicalClockDriftSecs`), and would never get rid of one they had taken.
pub const MAX_DRIFT: u64 = 365 * 24 * 60 * 60;

/// The latest time of a `$clusterTime` that servers take, in seconds.
pub fn latest_acceptable() -> u64 {
    u64::try_from(bson::DateTime::now().timestamp_millis() / 1000).unwrap_or(0) + MAX_DRIFT
}

/// Checks a client's `$clusterTime`: its form, and that it is not too far ahead.
///
/// # Errors
/// As a server: 10065, NoSuchKey (4), TypeMismatch (14), UnsupportedFormat (12), ClusterTimeFailsRateLimiter (205).
pub fn check_gossip(gossip: RawBsonRef<'_>) -> Result<()> {
    let RawBsonRef::Document(gossip) = gossip else {
        return Err(Error::with_code(10065, "invalid parameter: expected an object ($clusterTime)"));
    };
    let time = match usual(gossip.as_bytes()) {
        Some(time) => time,
        None => judged(gossip)?,
    };
    let latest = latest_acceptable();
    if time <= latest {
        return Ok(());
    }
    let text = format!(
        "New $clusterTime, {time}, is too far from this node's wall clock time, {}.",
        latest.saturating_sub(MAX_DRIFT)
    );
    Err(Error::new(Code::ClusterTimeFailsRateLimiter, text))
}

/// The seconds of a `$clusterTime` in the form that servers give it, which drivers send back.
fn usual(gossip: &[u8]) -> Option<u64> {
    let mut fields = bsonx::fields(gossip);
    let (time, signature) = (fields.next()?, fields.next()?);
    if (time.kind, signature.kind) != (kind::TIMESTAMP, kind::DOCUMENT) {
        return None;
    }
    let inner = &gossip[signature.range()];
    let mut parts = bsonx::fields(inner);
    let (hash, id) = (parts.next()?, parts.next()?);
    let names = [time.key, signature.key, hash.key, id.key] == [&b"clusterTime"[..], b"signature", b"hash", b"keyId"];
    let kinds = (hash.kind, id.kind) == (kind::BINARY, kind::INT64);
    // Length and subtype of the hash.
    let plain = inner.get(hash.value..hash.value + 5) == Some(&[20, 0, 0, 0, 0]);
    if !(names && kinds && plain) {
        return None;
    }
    bsonx::int64(gossip, time.value).map(|packed| packed as u64 >> 32)
}

/// The same of any other form; says what is wrong with it.
fn judged(gossip: &RawDocument) -> Result<u64> {
    let time = match expected(gossip, "clusterTime")? {
        RawBsonRef::Timestamp(time) => u64::from(time.time),
        other => return Err(Error::wrong_kind("clusterTime", other.element_type(), "timestamp")),
    };
    let signature = match expected(gossip, "signature")? {
        RawBsonRef::Document(signature) => signature,
        other => return Err(Error::wrong_kind("signature", other.element_type(), "object")),
    };
    match expected(signature, "hash")? {
        RawBsonRef::Binary(hash) if hash.subtype != BinarySubtype::Generic => {
            return Err(Error::new(Code::UnsupportedFormat, "SHA1Block only accepts BinDataGeneral type"));
        }
        RawBsonRef::Binary(hash) if hash.bytes.len() == 20 => {}
        RawBsonRef::Binary(hash) => {
            let text = format!("Unsupported SHA1Block hash length: {}", hash.bytes.len());
            return Err(Error::new(Code::UnsupportedFormat, text));
        }
        other => return Err(Error::wrong_kind("hash", other.element_type(), "binData")),
    }
    let key = expected(signature, "keyId")?;
    if bsonx::as_int(key).is_none() && !matches!(key, RawBsonRef::Decimal128(_)) {
        let found = bsonx::type_name(key.element_type());
        let text = format!("Expected field \"keyId\" to have numeric type, but found {found}");
        return Err(Error::new(Code::TypeMismatch, text));
    }
    Ok(time)
}

fn expected<'a>(doc: &'a RawDocument, name: &str) -> Result<RawBsonRef<'a>> {
    bsonx::get(doc, name).ok_or_else(|| Error::new(Code::NoSuchKey, format!("Missing expected field \"{name}\"")))
}

/// The newest `$clusterTime` seen, kept as the document it came in (with its signature).
#[derive(Debug, Default)]
pub struct ClusterClock {
    newest: AtomicU64,
    document: RwLock<Option<RawDocumentBuf>>,
}

impl ClusterClock {
    /// Learns from a shard's reply; the operation's own `operationTime` becomes the maximum it saw. Gives the reply's
    /// `operationTime`, 0 where it has none.
    pub fn observe(&self, op: &OpContext, reply: &ShardReply) -> u64 {
        if let Some(time) = reply.cluster_time() {
            self.advance(time);
        }
        let operation_time = reply.operation_time();
        op.record.operation_time.fetch_max(operation_time, Ordering::Relaxed);
        operation_time
    }

    fn advance(&self, doc: &RawDocument) {
        let Some(RawBsonRef::Timestamp(ts)) = bsonx::get(doc, "clusterTime") else { return };
        let packed = pack(ts);
        if packed <= self.newest.load(Ordering::Acquire) {
            return;
        }
        let mut slot = self.document.write();
        if self.newest.fetch_max(packed, Ordering::AcqRel) < packed {
            *slot = Some(doc.to_owned());
        }
    }

    /// The newest `$clusterTime` document, if any was seen.
    pub fn document(&self) -> Option<RawDocumentBuf> {
        self.document.read().clone()
    }

    /// The newest cluster time; zero before any was seen.
    pub fn newest(&self) -> Timestamp {
        unpack(self.newest.load(Ordering::Acquire))
    }

    /// Adds the two times to a reply that does not carry them. A reply that came from one shard does and is
    /// passed on untouched.
    pub fn finish(&self, op: Option<&OpContext>, reply: Reply) -> Reply {
        if reply.passed || bsonx::find(&reply.body, "$clusterTime").is_some() {
            return reply;
        }
        let guard = self.document.read();
        let Some(cluster_time) = guard.as_ref() else { return reply };
        let seen = op.map_or(0, |op| op.record.operation_time.load(Ordering::Relaxed));
        let operation_time = if seen == 0 { self.newest() } else { unpack(seen) };
        let mut bytes = Vec::with_capacity(reply.body.len() + cluster_time.as_bytes().len() + 48);
        bytes.extend_from_slice(&reply.body);
        let Ok(mut doc) = RawDocumentBuf::from_bytes(bytes) else { return reply.clone() };
        doc.append(cstr!("$clusterTime"), cluster_time.clone());
        doc.append(cstr!("operationTime"), operation_time);
        Reply { body: bytes::Bytes::from(doc.into_bytes()), ..reply }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Binary, RawBson, rawdoc};

    fn check(gossip: &RawDocument) -> std::result::Result<(), i32> {
        check_gossip(RawBsonRef::Document(gossip)).map_err(|e| e.code())
    }

    fn gossip(time: u64, hash: &Binary, id: impl Into<RawBson>) -> RawDocumentBuf {
        let time = Timestamp { time: time as u32, increment: 1 };
        rawdoc! { "clusterTime": time, "signature": { "hash": hash.clone(), "keyId": id.into() } }
    }

    /// As a mongod 6.0 answers.
    #[test]
    fn what_clients_tell_of_the_time() {
        let hash = |subtype, length| Binary { subtype, bytes: vec![0; length] };
        let good = hash(BinarySubtype::Generic, 20);
        let latest = latest_acceptable();
        for time in [1, latest - 60] {
            assert_eq!(usual(gossip(time, &good, 0_i64).as_bytes()), Some(time));
            assert_eq!(check(&gossip(time, &good, 0_i64)), Ok(()));
            assert_eq!(check(&gossip(time, &good, 5)), Ok(()));
        }
        assert_eq!(check(&gossip(latest + 60, &good, 0_i64)), Err(205));
        assert_eq!(check(&gossip(latest + 60, &good, 5)), Err(205));
        assert_eq!(check(&gossip(1, &hash(BinarySubtype::Generic, 19), 0_i64)), Err(12));
        assert_eq!(check(&gossip(1, &hash(BinarySubtype::Uuid, 20), 0_i64)), Err(12));
        assert_eq!(check(&gossip(1, &good, "x")), Err(14));
        let time = Timestamp { time: 1, increment: 1 };
        for (bad, code) in [
            (rawdoc! {}, 4),
            (rawdoc! { "clusterTime": 1 }, 14),
            (rawdoc! { "clusterTime": time }, 4),
            (rawdoc! { "clusterTime": time, "signature": 1 }, 14),
            (rawdoc! { "clusterTime": time, "signature": {} }, 4),
            (rawdoc! { "clusterTime": time, "signature": { "hash": 1, "keyId": 0_i64 } }, 14),
        ] {
            assert_eq!(check(&bad), Err(code), "{bad:?}");
        }
        assert_eq!(check_gossip(RawBsonRef::Int32(1)).map_err(|e| e.code()), Err(10065));
    }
}
