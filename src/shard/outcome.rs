//! Reading a shard's reply for trouble: changes of primary, what may be sent again, and what a client may see of it. Pure.
//!
//! A client's driver that reads "not primary" or "shutting down" in a reply takes the *router* for the server that
//! changed, drops its connections to it and looks for another. So a shard's state-change errors reach clients as
//! HostUnreachable (6), which drivers retry without touching the router, with the text kept except for the two phrases
//! old drivers search for. This is what mongos does. The `RetryableWriteError` label is kept, or added where
//! the command was a retryable write.

use std::ops::Range;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bytes::Bytes;

use crate::bsonx::{self, kind};
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE};

use super::Retryable;
use super::hello::TopologyVersion;

/// What an error says about the server that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    NotPrimary,
    /// It starts, recovers or steps down.
    Recovering,
    /// It is about to stop: its connections are of no more use.
    Stopping,
}

/// What a code says about the server (server discovery and monitoring specification).
pub fn state_change(code: i32) -> Option<StateChange> {
    match code {
        10107 | 13435 | 10058 => Some(StateChange::NotPrimary),
        11602 | 13436 | 189 => Some(StateChange::Recovering),
        11600 | 91 => Some(StateChange::Stopping),
        _ => None,
    }
}

/// Whether a command that failed with this code may be sent again.
pub fn retryable(code: i32, retry: Retryable) -> bool {
    let network = matches!(code, 6 | 7 | 89 | 262 | 9001) || state_change(code).is_some();
    match retry {
        Retryable::No => false,
        Retryable::Read => network || code == 134,
        Retryable::Write => network,
    }
}

/// Whether drivers send a retryable write once more that failed with this code.
pub fn is_retryable_write(code: i32) -> bool {
    retryable(code, Retryable::Write)
}

/// Whether an error says that a server could not be asked or is about to change, so that the same may work a little later.
pub fn is_passing(error: &Error) -> bool {
    retryable(error.code(), Retryable::Read) || error.is(Code::FailedToSatisfyReadPreference)
}

/// An error in a reply that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub code: i32,
    /// It is the `writeConcernError` of a command that was carried out.
    pub in_write_concern: bool,
    pub topology_version: Option<TopologyVersion>,
}

/// What the top level of a reply says, read in one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub ok: bool,
    /// There is a `writeConcernError`.
    pub write_concern_error: bool,
    /// `operationTime`, packed; 0 where there is none.
    pub operation_time: u64,
    /// Where the `$clusterTime` document lies.
    cluster_time: Option<Range<usize>>,
}

impl Facts {
    pub fn read(reply: &[u8]) -> Self {
        let mut facts = Facts::default();
        for field in bsonx::fields(reply) {
            match field.key {
                b"ok" => facts.ok = field.decode(reply).is_some_and(bsonx::is_true),
                b"writeConcernError" => facts.write_concern_error = field.kind == kind::DOCUMENT,
                b"$clusterTime" if field.kind == kind::DOCUMENT => facts.cluster_time = Some(field.range()),
                // The bytes of a timestamp are its packed form.
                b"operationTime" if field.kind == kind::TIMESTAMP => {
                    facts.operation_time = bsonx::int64(reply, field.value).unwrap_or(0) as u64;
                }
                _ => {}
            }
        }
        facts
    }

    /// The `$clusterTime` of the reply that this was read from.
    pub fn cluster_time<'a>(&self, reply: &'a [u8]) -> Option<&'a RawDocument> {
        self.cluster_time.clone().and_then(|range| reply.get(range)).map(bsonx::view)
    }
}

/// The error of a reply; `None` for an `ok: 1` without a `writeConcernError`.
pub fn inspect(reply: &RawDocument, facts: &Facts) -> Option<Problem> {
    if facts.ok && !facts.write_concern_error {
        return None;
    }
    let write_concern = bsonx::doc(reply, "writeConcernError").filter(|_| facts.ok);
    let code = bsonx::int(write_concern.unwrap_or(reply), "code").and_then(|c| i32::try_from(c).ok()).unwrap_or(0);
    let in_write_concern = write_concern.is_some();
    let topology_version = bsonx::doc(reply, "topologyVersion").and_then(TopologyVersion::parse);
    Some(Problem { code, in_write_concern, topology_version })
}

/// The reply as a client may see it; unchanged unless its error is a change of the shard's state or lacks a label.
pub fn for_client(body: Bytes, problem: &Problem, retry: Retryable) -> Bytes {
    let reply = bsonx::view(&body);
    let hide = state_change(problem.code).is_some();
    let label = retry == Retryable::Write && retryable(problem.code, retry) && !has_label(reply);
    if !hide && !label {
        return body;
    }
    let mut out = RawDocumentBuf::new();
    let mut labelled = !label;
    for (key, value) in reply.iter().flatten() {
        match (key.as_str(), value) {
            ("errorLabels", RawBsonRef::Array(labels)) if label => {
                let mut all: bson::RawArrayBuf = labels.into_iter().flatten().collect();
                all.push(LABEL_RETRYABLE_WRITE);
                out.append(key, all);
                labelled = true;
            }
            ("writeConcernError", RawBsonRef::Document(error)) if hide && problem.in_write_concern => {
                let mut inner = RawDocumentBuf::new();
                error.iter().flatten().for_each(|(k, v)| append_hidden(&mut inner, k, v));
                out.append(key, inner);
            }
            ("topologyVersion", _) if hide => {}
            _ if hide && !problem.in_write_concern => append_hidden(&mut out, key, value),
            _ => out.append(key, value),
        }
    }
    if !labelled {
        out.append(cstr!("errorLabels"), bson::RawArrayBuf::from_iter([LABEL_RETRYABLE_WRITE]));
    }
    Bytes::from(out.into_bytes())
}

fn has_label(reply: &RawDocument) -> bool {
    bsonx::array(reply, "errorLabels")
        .is_some_and(|labels| labels.into_iter().flatten().any(|l| l.as_str() == Some(LABEL_RETRYABLE_WRITE)))
}

/// A field of an error document, with the code and the phrases changed that drivers act on.
fn append_hidden(out: &mut RawDocumentBuf, key: &bson::raw::CStr, value: RawBsonRef<'_>) {
    match (key.as_str(), value) {
        ("code", _) => out.append(key, Code::HostUnreachable as i32),
        ("codeName", _) => out.append(key, crate::error::code_name(Code::HostUnreachable as i32).as_ref()),
        ("errmsg", RawBsonRef::String(text)) => out.append(key, hidden(text).as_str()),
        _ => out.append(key, value),
    }
}

/// The text without the phrases by which old drivers recognise a change of state.
fn hidden(text: &str) -> String {
    let mut text = text.to_owned();
    for (phrase, stand_in) in [
        ("not master", "(NOT_PRIMARY)"),
        ("not primary", "(NOT_PRIMARY)"),
        ("node is recovering", "(NODE_IS_RECOVERING)"),
    ] {
        while let Some(at) = text.to_ascii_lowercase().find(phrase) {
            text.replace_range(at..at + phrase.len(), stand_in);
        }
    }
    text
}

/// An error of the router's own about a shard, as the client is to see it: it says which shard, and carries the label
/// if the command was a retryable write.
pub fn about_shard(error: Error, shard: &str, retry: Retryable) -> Error {
    let message = format!("{} :: at shard {shard}", error.message());
    let label = retry == Retryable::Write && retryable(error.code(), retry);
    let error = error.with_message(message);
    if label { error.label(LABEL_RETRYABLE_WRITE) } else { error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    fn inspect(reply: &RawDocument) -> Option<Problem> {
        super::inspect(reply, &Facts::read(reply.as_bytes()))
    }

    #[test]
    fn facts_of_a_reply() {
        let time = |n| bson::Timestamp { time: n, increment: 7 };
        let reply = rawdoc! {
            "n": 1, "ok": 1, "$clusterTime": {"clusterTime": time(9)}, "operationTime": time(5), "writeConcernError": {"code": 64},
        };
        let facts = Facts::read(reply.as_bytes());
        assert!(facts.ok && facts.write_concern_error);
        assert_eq!(facts.operation_time, crate::router::clock::pack(time(5)));
        assert_eq!(facts.cluster_time(reply.as_bytes()).unwrap(), &*rawdoc! {"clusterTime": time(9)});
        let odd = rawdoc! {"ok": false, "$clusterTime": 1, "operationTime": 5, "writeConcernError": 1};
        assert_eq!(Facts::read(odd.as_bytes()), Facts::default());
    }

    fn shown(reply: RawDocumentBuf, retry: Retryable) -> RawDocumentBuf {
        let problem = inspect(&reply).unwrap();
        let body = for_client(Bytes::from(reply.into_bytes()), &problem, retry);
        RawDocumentBuf::from_bytes(body.to_vec()).unwrap()
    }

    #[test]
    fn finds_problems() {
        assert_eq!(inspect(&rawdoc! {"n": 1, "ok": 1.0}), None);
        assert_eq!(inspect(&rawdoc! {"writeErrors": [{"index": 0, "code": 11000}], "ok": 1}), None);
        let id = bson::oid::ObjectId::new();
        let reply = rawdoc! {"topologyVersion": {"processId": id, "counter": 4_i64}, "ok": 0.0, "code": 10107};
        let expected = TopologyVersion { process_id: id, counter: 4 };
        assert_eq!(
            inspect(&reply),
            Some(Problem { code: 10107, in_write_concern: false, topology_version: Some(expected) })
        );
        let reply = rawdoc! {"n": 1, "writeConcernError": {"code": 91, "errmsg": "x"}, "ok": 1};
        assert_eq!(inspect(&reply), Some(Problem { code: 91, in_write_concern: true, topology_version: None }));
    }

    #[test]
    fn state_changes_are_hidden_from_drivers() {
        let id = bson::oid::ObjectId::new();
        let reply = rawdoc! {
            "topologyVersion": {"processId": id, "counter": 4_i64}, "ok": 0.0, "errmsg": "Not primary, not master", "code": 10107,
            "codeName": "NotWritablePrimary", "operationTime": 1,
        };
        let expected = rawdoc! {
            "ok": 0.0, "errmsg": "(NOT_PRIMARY), (NOT_PRIMARY)", "code": 6, "codeName": "HostUnreachable", "operationTime": 1,
        };
        assert_eq!(shown(reply.clone(), Retryable::No), expected);
        let mut labelled = expected.clone();
        labelled.append(cstr!("errorLabels"), bson::RawArrayBuf::from_iter([LABEL_RETRYABLE_WRITE]));
        assert_eq!(shown(reply, Retryable::Write), labelled);
    }

    #[test]
    fn write_concern_errors_are_hidden_and_results_kept() {
        let reply = rawdoc! {
            "n": 1, "errorLabels": ["X"], "writeConcernError": {"code": 11600, "codeName": "InterruptedAtShutdown", "errmsg": "node is recovering"}, "ok": 1,
        };
        let expected = rawdoc! {
            "n": 1, "errorLabels": ["X", LABEL_RETRYABLE_WRITE],
            "writeConcernError": {"code": 6, "codeName": "HostUnreachable", "errmsg": "(NODE_IS_RECOVERING)"}, "ok": 1,
        };
        assert_eq!(shown(reply, Retryable::Write), expected);
    }

    #[test]
    fn other_errors_pass_as_they_are() {
        for reply in [
            rawdoc! {"ok": 0, "code": 11000, "errmsg": "not primary key"},
            rawdoc! {"ok": 1, "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
            rawdoc! {"ok": 0, "code": 262, "errorLabels": [LABEL_RETRYABLE_WRITE]},
        ] {
            assert_eq!(shown(reply.clone(), Retryable::Write), reply);
        }
    }

    #[test]
    fn what_may_be_sent_again() {
        for code in [6, 7, 89, 91, 189, 262, 9001, 10058, 10107, 11600, 11602, 13435, 13436] {
            assert!(retryable(code, Retryable::Write) && retryable(code, Retryable::Read), "{code}");
            assert!(!retryable(code, Retryable::No));
        }
        assert!(retryable(134, Retryable::Read) && !retryable(134, Retryable::Write));
        for code in [0, 50, 11000, 112, 11601, 43] {
            assert!(!retryable(code, Retryable::Write) && !retryable(code, Retryable::Read), "{code}");
        }
    }
}
