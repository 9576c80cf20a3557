//! One reply out of those of several shards. Pure.

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE};

/// Beyond this many bytes of errors only index and code are kept, so that the reply stays a legal document.
const FULL_ERRORS: usize = 1 << 20;

/// What the shards have answered so far to one `insert`, `update` or `delete`.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    n: i64,
    /// `update` only.
    n_modified: Option<i64>,
    upserted: Vec<(u32, RawBson)>,
    /// By index of the client's batch, each with its `index` already set.
    errors: Vec<(u32, RawDocumentBuf)>,
    error_bytes: usize,
    write_concern_errors: Vec<(ShardId, RawDocumentBuf)>,
    retried: Vec<i32>,
    /// A shard says that the driver may send the command again.
    retryable: bool,
    /// Whether any shard has executed anything.
    answered: bool,
}

impl Joined {
    /// For an `update`, whose reply has `nModified`.
    pub fn for_update() -> Self {
        Joined { n_modified: Some(0), ..Joined::default() }
    }

    /// Takes in a shard's reply (`ok: 1`) to the statements at `items` of the client's batch.
    pub fn add(&mut self, shard: &ShardId, items: &[u32], reply: &RawDocument) {
        self.answered = true;
        for element in reply.iter_elements().map_while(Result::ok) {
            let Ok(value) = element.value() else { return };
            match (element.key().as_str(), value) {
                ("n", n) => self.n += bsonx::as_int(n).unwrap_or(0),
                ("nModified", n) => *self.n_modified.get_or_insert(0) += bsonx::as_int(n).unwrap_or(0),
                ("upserted", RawBsonRef::Array(list)) => {
                    for entry in list.into_iter().flatten().filter_map(|e| e.as_document()) {
                        if let (Some(index), Some(id)) = (own_index(items, entry), bsonx::get(entry, "_id")) {
                            self.upserted.push((index, RawBson::from(id)));
                        }
                    }
                }
                ("writeErrors", RawBsonRef::Array(list)) => {
                    for entry in list.into_iter().flatten().filter_map(|e| e.as_document()) {
                        if let Some(index) = own_index(items, entry) {
                            self.push_error(index, with_index(entry, index));
                        }
                    }
                }
                ("writeConcernError", RawBsonRef::Document(error)) => {
                    self.write_concern_errors.push((shard.clone(), error.to_owned()));
                }
                ("errorLabels", RawBsonRef::Array(labels)) => {
                    self.retryable |= labels.into_iter().flatten().any(|l| l.as_str() == Some(LABEL_RETRYABLE_WRITE));
                }
                ("retriedStmtIds", RawBsonRef::Array(ids)) => {
                    self.retried.extend(ids.into_iter().flatten().filter_map(bsonx::as_int).map(|id| id as i32));
                }
                _ => {}
            }
        }
    }

    /// Notes that what a shard acknowledged may not last.
    pub fn not_durable(&mut self, shard: &ShardId, why: &str) {
        let code = Code::WriteConcernFailed;
        let error = rawdoc! { "code": code as i32, "codeName": "WriteConcernFailed", "errmsg": why };
        self.write_concern_errors.push((shard.clone(), error));
    }

    /// Notes that the statement at `index` failed.
    pub fn fail(&mut self, index: u32, error: &Error) {
        self.push_error(index, error.to_write_error(index as i32));
    }

    fn push_error(&mut self, index: u32, mut error: RawDocumentBuf) {
        if self.error_bytes > FULL_ERRORS {
            let mut short = RawDocumentBuf::new();
            short.append(cstr!("index"), index as i32);
            short.append(cstr!("code"), bsonx::int(&error, "code").unwrap_or(0) as i32);
            short.append(cstr!("errmsg"), "");
            error = short;
        }
        self.error_bytes += error.as_bytes().len();
        self.errors.push((index, error));
    }

    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Whether nothing has been done or refused yet, so that an error may still fail the command as a whole.
    pub fn is_untouched(&self) -> bool {
        !self.answered && self.errors.is_empty()
    }

    /// The reply to the client, `ok` included.
    pub fn into_reply(mut self) -> RawDocumentBuf {
        let mut doc = RawDocumentBuf::new();
        doc.append(cstr!("n"), int(self.n));
        if !self.upserted.is_empty() {
            self.upserted.sort_by_key(|(index, _)| *index);
            let mut list = RawArrayBuf::new();
            for (index, id) in self.upserted {
                let mut entry = RawDocumentBuf::new();
                entry.append(cstr!("index"), index as i32);
                entry.append(cstr!("_id"), id);
                list.push(entry);
            }
            doc.append(cstr!("upserted"), list);
        }
        if !self.errors.is_empty() {
            doc.append(cstr!("writeErrors"), one_per_statement(self.errors));
        }
        if let Some(n) = self.n_modified {
            doc.append(cstr!("nModified"), int(n));
        }
        if !self.retried.is_empty() {
            self.retried.sort_unstable();
            self.retried.dedup();
            let mut list = RawArrayBuf::new();
            self.retried.iter().for_each(|id| list.push(*id));
            doc.append(cstr!("retriedStmtIds"), list);
        }
        if let Some(error) = write_concern_error(&self.write_concern_errors) {
            doc.append(cstr!("writeConcernError"), error);
        }
        if self.retryable {
            doc.append(cstr!("errorLabels"), [LABEL_RETRYABLE_WRITE].into_iter().collect::<RawArrayBuf>());
        }
        doc.append(cstr!("ok"), 1.0);
        doc
    }
}

fn int(n: i64) -> RawBson {
    i32::try_from(n).map_or(RawBson::Int64(n), RawBson::Int32)
}

/// The index in the client's batch of a shard's `{index: …}`.
fn own_index(items: &[u32], entry: &RawDocument) -> Option<u32> {
    let at = usize::try_from(bsonx::int(entry, "index")?).ok()?;
    items.get(at).copied()
}

/// The same error under another index.
fn with_index(error: &RawDocument, index: u32) -> RawDocumentBuf {
    let mut bytes = error.as_bytes().to_vec();
    if let Some(field) = bsonx::find(&bytes, "index").filter(|f| f.kind == kind::INT32) {
        let range = field.range();
        bytes[range].copy_from_slice(&(index as i32).to_le_bytes());
    } else {
        let mut copy = Writer::copy_without(&bytes, |key| key == b"index");
        copy.int32("index", index as i32);
        bytes = copy.finish();
    }
    bsonx::view(&bytes).to_owned()
}

/// A statement that was sent to several shards may have failed on several; it gets one error all the same.
fn one_per_statement(mut errors: Vec<(u32, RawDocumentBuf)>) -> RawArrayBuf {
    errors.sort_by_key(|(index, _)| *index);
    let mut list = RawArrayBuf::new();
    for group in errors.chunk_by(|a, b| a.0 == b.0) {
        match group {
            [(_, one)] => list.push(one.clone()),
            [(index, first), rest @ ..] => {
                let same = |error: &RawDocument| bsonx::int(error, "code") == bsonx::int(first, "code");
                if rest.iter().all(|(_, e)| same(e) && bsonx::str(e, "errmsg") == bsonx::str(first, "errmsg")) {
                    list.push(first.clone());
                    continue;
                }
                let texts: Vec<_> = group.iter().map(|(_, e)| bsonx::str(e, "errmsg").unwrap_or_default()).collect();
                let text = format!("several shards failed: {}", texts.join(" :: and :: "));
                let code = match rest.iter().all(|(_, e)| same(e)) {
                    true => bsonx::int(first, "code").unwrap_or(0) as i32,
                    false => Code::MultipleErrorsOccurred as i32,
                };
                list.push(Error::with_code(code, text).to_write_error(*index as i32));
            }
            [] => {}
        }
    }
    list
}

/// One `writeConcernError` that names the shards it comes from.
pub fn write_concern_error(errors: &[(ShardId, RawDocumentBuf)]) -> Option<RawDocumentBuf> {
    let text = |(shard, error): &(ShardId, RawDocumentBuf)| {
        format!("{} at {shard}", bsonx::str(error, "errmsg").unwrap_or("write concern was not satisfied"))
    };
    match errors {
        [] => None,
        [one] => {
            let mut copy = Writer::copy_without(one.1.as_bytes(), |key| key == b"errmsg");
            copy.str("errmsg", &text(one));
            Some(bsonx::view(&copy.finish()).to_owned())
        }
        several => {
            let texts: Vec<_> = several.iter().map(text).collect();
            let mut doc = RawDocumentBuf::new();
            doc.append(cstr!("code"), Code::WriteConcernFailed as i32);
            doc.append(cstr!("codeName"), "WriteConcernFailed");
            doc.append(cstr!("errmsg"), format!("multiple errors reported : {}", texts.join(" :: and :: ")));
            Some(doc)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::rawdoc;

    use super::*;

    fn shard(name: &str) -> ShardId {
        ShardId::from(name)
    }

    #[test]
    fn counts_add_up_and_indexes_are_the_clients() {
        let mut joined = Joined::for_update();
        joined.add(
            &shard("a"),
            &[0, 3],
            &rawdoc! { "n": 2, "nModified": 1, "upserted": [{ "index": 1, "_id": "x" }], "ok": 1.0 },
        );
        joined.add(
            &shard("b"),
            &[1, 2],
            &rawdoc! { "n": 1, "nModified": 1, "ok": 1.0, "retriedStmtIds": [2],
            "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "dup", "keyValue": { "k": 1 } }] },
        );
        assert_eq!(
            joined.into_reply(),
            rawdoc! {
                "n": 3,
                "upserted": [{ "index": 3, "_id": "x" }],
                "writeErrors": [{ "index": 2, "code": 11000, "errmsg": "dup", "keyValue": { "k": 1 } }],
                "nModified": 2,
                "retriedStmtIds": [2],
                "ok": 1.0,
            }
        );
    }

    #[test]
    fn an_insert_has_no_modified_count() {
        let mut joined = Joined::default();
        joined.add(&shard("a"), &[0], &rawdoc! { "n": 1, "ok": 1.0 });
        assert_eq!(joined.into_reply(), rawdoc! { "n": 1, "ok": 1.0 });
    }

    #[test]
    fn a_shards_label_reaches_the_driver() {
        let mut joined = Joined::default();
        joined.add(&shard("a"), &[0], &rawdoc! { "n": 1, "ok": 1.0 });
        let failed = rawdoc! { "n": 1, "writeConcernError": { "code": 91, "errmsg": "shutdown" },
        "errorLabels": ["RetryableWriteError"], "ok": 1.0 };
        joined.add(&shard("b"), &[1], &failed);
        let reply = joined.into_reply();
        let labels = bsonx::array(&reply, "errorLabels").unwrap();
        assert_eq!(labels.into_iter().next().unwrap().unwrap().as_str(), Some("RetryableWriteError"));
        assert_eq!(bsonx::str(bsonx::doc(&reply, "writeConcernError").unwrap(), "errmsg"), Some("shutdown at b"));
    }

    #[test]
    fn errors_of_one_statement_from_several_shards_become_one() {
        let mut joined = Joined::for_update();
        for (name, code, text) in [("a", 2, "first"), ("b", 3, "second")] {
            let reply = rawdoc! { "n": 0, "ok": 1.0, "writeErrors": [{ "index": 0, "code": code, "errmsg": text }] };
            joined.add(&shard(name), &[5], &reply);
        }
        joined.fail(1, &Error::new(Code::BadValue, "bad"));
        let reply = joined.into_reply();
        let errors: Vec<_> = bsonx::array(&reply, "writeErrors").unwrap().into_iter().flatten().collect();
        assert_eq!(errors.len(), 2);
        let (first, second) = (errors[0].as_document().unwrap(), errors[1].as_document().unwrap());
        assert_eq!((bsonx::int(first, "index"), bsonx::int(first, "code")), (Some(1), Some(2)));
        assert_eq!((bsonx::int(second, "index"), bsonx::int(second, "code")), (Some(5), Some(65)));
        assert!(bsonx::str(second, "errmsg").unwrap().contains("first :: and :: second"));
    }

    #[test]
    fn the_same_error_from_all_shards_stays_as_it_is() {
        let mut joined = Joined::default();
        for name in ["a", "b"] {
            let reply = rawdoc! { "n": 0, "ok": 1.0, "writeErrors": [{ "index": 0, "code": 2, "errmsg": "same" }] };
            joined.add(&shard(name), &[0], &reply);
        }
        let reply = joined.into_reply();
        assert_eq!(reply, rawdoc! { "n": 0, "writeErrors": [{ "index": 0, "code": 2, "errmsg": "same" }], "ok": 1.0 });
    }

    #[test]
    fn write_concern_errors_name_their_shards() {
        let one =
            rawdoc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out" };
        let single = write_concern_error(&[(shard("s1"), one.clone())]).unwrap();
        assert_eq!(bsonx::str(&single, "errmsg"), Some("waiting for replication timed out at s1"));
        let both = write_concern_error(&[(shard("s1"), one.clone()), (shard("s2"), one)]).unwrap();
        assert_eq!(bsonx::int(&both, "code"), Some(64));
        assert!(bsonx::str(&both, "errmsg").unwrap().ends_with("timed out at s2"));
    }

    #[test]
    fn a_flood_of_errors_stays_below_a_documents_limit() {
        let mut joined = Joined::default();
        let long = "x".repeat(1000);
        for index in 0..100_000 {
            joined.fail(index, &Error::new(Code::BadValue, long.clone()));
        }
        assert!(joined.into_reply().as_bytes().len() < 10 << 20);
    }
}
