//! What the catalog keeps of a transaction over several shards. Pure.

use bson::oid::ObjectId;
use bson::raw::RawBsonRef;
use bson::{Bson, DateTime, RawArrayBuf, RawDocument, RawDocumentBuf, Timestamp, Uuid, cstr, rawdoc};

use crate::bsonx;
use crate::catalog::model::{ShardId, collection};
use crate::error::{Code, Error, Result};

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is decided: it may still be aborted by anybody.
    Preparing,
    /// Every participant must commit at this time.
    Committed(Timestamp),
    /// Every participant must abort.
    Aborted,
}

/// A participant as recovery needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub shard: ShardId,
    pub lsid: RawDocumentBuf,
    pub txn_number: i64,
}

/// A document of `mosaic.txns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub id: Uuid,
    pub decision: Decision,
    pub members: Vec<Member>,
    /// The router process that coordinates.
    pub owner: ObjectId,
    /// Raised by the coordinator every few seconds while it is at work.
    pub beat: i64,
    /// When the record was made or decided, for whoever reads it: nothing is judged by it.
    pub changed: DateTime,
}

/// What a decision that was refused means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// This is decided, whatever was wanted, and must be carried out.
    Decided(Decision),
    /// Nothing is decided: the attempt may be repeated.
    Undecided,
    /// The record is gone: the transaction was decided by somebody and finished on every shard, one way or the other.
    Finished,
}

/// What stands after a decision was refused, or its answer lost, from the record as it is now. What was wanted does not
/// matter: only what the catalog holds may be carried out.
pub fn after_lost_cas(found: Option<Decision>) -> Lost {
    match found {
        None => Lost::Finished,
        Some(Decision::Preparing) => Lost::Undecided,
        Some(decided) => Lost::Decided(decided),
    }
}

impl Record {
    pub fn new(members: Vec<Member>, owner: ObjectId, now: DateTime) -> Self {
        Record { id: Uuid::new(), decision: Decision::Preparing, members, owner, beat: 0, changed: now }
    }

    /// The same transaction, decided.
    pub fn decided(&self, decision: Decision, now: DateTime) -> Self {
        Record { decision, changed: now, ..self.clone() }
    }

    pub fn key(&self) -> Bson {
        Bson::Binary(bson::Binary::from_uuid(self.id))
    }

    fn state(&self) -> &'static str {
        match self.decision {
            Decision::Preparing => "preparing",
            Decision::Committed(_) => "committed",
            Decision::Aborted => "aborted",
        }
    }

    /// The fields that a change of the record must find unchanged.
    pub fn fingerprint(&self) -> RawDocumentBuf {
        rawdoc! { "state": self.state() }
    }

    /// The same transaction, a little later.
    pub fn renewed(&self, beat: i64) -> Self {
        Record { beat, ..self.clone() }
    }

    pub fn to_doc(&self) -> RawDocumentBuf {
        let mut members = RawArrayBuf::new();
        for member in &self.members {
            members.push(rawdoc! {
                "shard": &*member.shard,
                "lsid": member.lsid.clone(),
                "txnNumber": member.txn_number,
            });
        }
        let mut doc = rawdoc! {
            "_id": bson::Binary::from_uuid(self.id),
            "state": self.state(),
            "participants": members,
            "owner": self.owner,
            "beat": self.beat,
            "changed": self.changed,
        };
        if let Decision::Committed(at) = self.decision {
            doc.append(cstr!("commitTimestamp"), at);
        }
        doc
    }

    /// # Errors
    /// ChunkMetadataInconsistency (431) for a document that is none of ours.
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field: &str| {
            let text = format!("A document of config.{} has no valid field '{field}'", collection::TXNS);
            Error::new(Code::ChunkMetadataInconsistency, text).from_router()
        };
        let id = match bsonx::get(doc, "_id") {
            Some(RawBsonRef::Binary(b)) => b.bytes.try_into().ok().map(Uuid::from_bytes),
            _ => None,
        };
        let decision = match (bsonx::str(doc, "state"), bsonx::get(doc, "commitTimestamp")) {
            (Some("preparing"), _) => Decision::Preparing,
            (Some("aborted"), _) => Decision::Aborted,
            (Some("committed"), Some(RawBsonRef::Timestamp(at))) => Decision::Committed(at),
            _ => return Err(bad("state")),
        };
        let member = |value: RawBsonRef<'_>| {
            let doc = value.as_document()?;
            Some(Member {
                shard: bsonx::str(doc, "shard")?.into(),
                lsid: bsonx::doc(doc, "lsid")?.to_owned(),
                txn_number: bsonx::int(doc, "txnNumber")?,
            })
        };
        let members = bsonx::array(doc, "participants").ok_or_else(|| bad("participants"))?;
        Ok(Record {
            id: id.ok_or_else(|| bad("_id"))?,
            decision,
            members: members
                .into_iter()
                .map(|m| member(m?).ok_or_else(|| bad("participants")))
                .collect::<Result<_>>()?,
            owner: bsonx::get(doc, "owner").and_then(|v| v.as_object_id()).ok_or_else(|| bad("owner"))?,
            beat: bsonx::int(doc, "beat").unwrap_or(0),
            changed: bsonx::get(doc, "changed").and_then(|v| v.as_datetime()).ok_or_else(|| bad("changed"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn record() -> Record {
        let member = Member { shard: "s".into(), lsid: rawdoc! { "id": "x" }, txn_number: 3 };
        Record::new(vec![member], ObjectId::new(), DateTime::from_millis(1000))
    }

    #[test]
    fn a_record_survives_the_catalog() {
        let at = Timestamp { time: 7, increment: 1 };
        for decision in [Decision::Preparing, Decision::Aborted, Decision::Committed(at)] {
            let record = record().decided(decision, DateTime::from_millis(5));
            assert_eq!(Record::parse(&record.to_doc()).unwrap(), record);
        }
        assert!(Record::parse(&rawdoc! { "_id": 1 }).is_err());
        assert!(Record::parse(&rawdoc! { "_id": bson::Binary::from_uuid(Uuid::new()), "state": "committed" }).is_err());
    }

    #[test]
    fn only_what_the_catalog_holds_is_carried_out() {
        let at = Timestamp { time: 7, increment: 1 };
        // The coordinator was faster: a recovery that wanted to abort must commit.
        assert_eq!(after_lost_cas(Some(Decision::Committed(at))), Lost::Decided(Decision::Committed(at)));
        // Recovery was faster: the coordinator must abort what it wanted to commit.
        assert_eq!(after_lost_cas(Some(Decision::Aborted)), Lost::Decided(Decision::Aborted));
        assert_eq!(after_lost_cas(Some(Decision::Preparing)), Lost::Undecided);
        assert_eq!(after_lost_cas(None), Lost::Finished);
    }
}
