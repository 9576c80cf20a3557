//! Replies of commands that several shards answered: `{raw: {"<set>/<hosts>": <reply>, …}, ok}`.

use bson::{RawDocument, RawDocumentBuf, cstr};

use crate::bsonx::{self, Writer};
use crate::catalog::snapshot::Snapshot;
use crate::command::Reply;
use crate::error::{Code, Error, Result};
use crate::scatter::ShardOutcome;

/// Fields of a shard's reply that concern the connection to it, not the command.
const OF_CONNECTION: &[&[u8]] =
    &[b"$clusterTime", b"operationTime", b"$gleStats", b"lastCommittedOpTime", b"$configServerState"];

/// How entries of `raw` are called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// `set/host:port,host:port`.
    ConnectionString,
    /// The shard's `_id`.
    Shard,
}

/// A shard's reply without what concerns the connection.
pub fn stripped(reply: &RawDocument) -> RawDocumentBuf {
    let bytes = Writer::copy_without(reply.as_bytes(), |key| OF_CONNECTION.contains(&key)).finish();
    RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
}

/// What one shard came to, as a reply document.
pub fn reply_of(outcome: &ShardOutcome) -> RawDocumentBuf {
    match &outcome.1 {
        Ok(reply) => stripped(reply.doc()),
        Err(error) => error.to_reply(),
    }
}

/// The error of one shard, if it failed.
pub fn error_of(outcome: &ShardOutcome) -> Option<Error> {
    match &outcome.1 {
        Ok(reply) if reply.ok() => None,
        Ok(reply) => Some(reply.error()),
        Err(error) => Some(error.clone()),
    }
}

/// The first error in the order of the outcomes. Errors with one of the `harmless` codes do not count while at least
/// one shard succeeded.
pub fn first_error(outcomes: &[ShardOutcome], harmless: &[Code]) -> Option<Error> {
    let errors: Vec<Error> = outcomes.iter().filter_map(error_of).collect();
    let some_succeeded = errors.len() < outcomes.len();
    let counts = |e: &&Error| !(some_succeeded && harmless.iter().any(|code| e.is(*code)));
    errors.iter().find(counts).cloned()
}

/// `{"<name>": reply, …}` in the order of the outcomes.
pub fn raw_field(outcomes: &[ShardOutcome], snapshot: &Snapshot, names: Names) -> RawDocumentBuf {
    let mut raw = RawDocumentBuf::new();
    for outcome in outcomes {
        let shard = &*outcome.0;
        let name = match names {
            Names::ConnectionString => snapshot.shards.get(shard).map_or(shard, |s| s.host.as_str()),
            Names::Shard => shard,
        };
        if let Ok(name) = bson::raw::CString::try_from(name) {
            raw.append(&name, reply_of(outcome));
        }
    }
    raw
}

/// The first `writeConcernError` among the replies, saying which shard reported it.
pub fn write_concern_error(outcomes: &[ShardOutcome]) -> Option<RawDocumentBuf> {
    let (shard, error) = outcomes.iter().find_map(|(shard, outcome)| {
        let reply = outcome.as_ref().ok()?;
        Some((shard, bsonx::doc(reply.doc(), "writeConcernError")?))
    })?;
    let text = format!("{} at {shard}", bsonx::str(error, "errmsg").unwrap_or(""));
    let mut bytes = Writer::copy_without(error.as_bytes(), |key| key == b"errmsg");
    bytes.str("errmsg", &text);
    RawDocumentBuf::from_bytes(bytes.finish()).ok()
}

/// The joined reply; an error (with `raw`) where a shard failed.
pub fn join(outcomes: &[ShardOutcome], snapshot: &Snapshot, harmless: &[Code]) -> Result<Reply> {
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("raw"), raw_field(outcomes, snapshot, Names::ConnectionString));
    if let Some(error) = first_error(outcomes, harmless) {
        return Err(error.with_extra(reply));
    }
    if let Some(error) = write_concern_error(outcomes) {
        reply.append(cstr!("writeConcernError"), error);
    }
    Ok(Reply::ok(reply))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::shard::ShardReply;
    use bson::rawdoc;

    fn answered(shard: &str, doc: RawDocumentBuf) -> ShardOutcome {
        let reply = ShardReply::new(shard.into(), "h:1".into(), doc.into_bytes().into());
        (shard.into(), Ok(reply))
    }

    #[test]
    fn joins_good_replies() {
        let outcomes = [
            answered("a", rawdoc! {"n": 1, "ok": 1.0, "operationTime": 5}),
            answered(
                "b",
                rawdoc! {"n": 2, "ok": 1.0, "writeConcernError": {"code": 64, "errmsg": "waiting timed out"}},
            ),
        ];
        let reply = join(&outcomes, &Snapshot::default(), &[]).unwrap();
        let doc = reply.document().unwrap();
        let raw = bsonx::doc(doc, "raw").unwrap();
        assert_eq!(*bsonx::doc(raw, "a").unwrap(), *rawdoc! {"n": 1, "ok": 1.0});
        let wce = bsonx::doc(doc, "writeConcernError").unwrap();
        assert_eq!(bsonx::str(wce, "errmsg"), Some("waiting timed out at b"));
        assert_eq!(bsonx::int(wce, "code"), Some(64));
    }

    #[test]
    fn the_first_error_counts_unless_harmless() {
        let bad = |code: i32| rawdoc! {"ok": 0.0, "code": code, "errmsg": "no"};
        let outcomes = [answered("a", rawdoc! {"ok": 1.0}), answered("b", bad(70)), answered("c", bad(67))];
        let error = join(&outcomes, &Snapshot::default(), &[Code::ShardNotFound]).unwrap_err();
        assert_eq!(error.code(), 67);
        assert!(bsonx::doc(error.extra().unwrap(), "raw").is_some());
        assert!(join(&outcomes[..2], &Snapshot::default(), &[Code::ShardNotFound]).is_ok());
        assert_eq!(join(&outcomes[1..2], &Snapshot::default(), &[Code::ShardNotFound]).unwrap_err().code(), 70);
    }
}
