//! What a member says of itself: the reply to `hello`, parsed. Pure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, Timestamp};

use crate::bsonx;
use crate::error::Error;

use super::ServerId;

/// The role of a member, as the server discovery specification names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// Not reached yet, or not reachable now.
    Unknown,
    Standalone,
    /// A router: never a member of a shard.
    Mongos,
    Primary,
    Secondary,
    Arbiter,
    /// A member that serves nobody: hidden, recovering, starting.
    Other,
    /// Part of no initiated set.
    Ghost,
}

/// The server's own counter of changes to its `hello` reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyVersion {
    pub process_id: ObjectId,
    pub counter: i64,
}

impl TopologyVersion {
    pub fn parse(doc: &RawDocument) -> Option<Self> {
        let process_id = bsonx::get(doc, "processId")?.as_object_id()?;
        Some(TopologyVersion { process_id, counter: bsonx::int(doc, "counter")? })
    }

    /// Whether what carries `self` is older than what carries `other`.
    pub fn older_than(&self, other: &TopologyVersion) -> bool {
        self.process_id == other.process_id && self.counter < other.counter
    }
}

/// The parts of a `hello` reply (or of a failed attempt to get one) that matter for choosing members.
#[derive(Clone, Debug)]
pub struct ServerDescription {
    pub address: ServerId,
    pub kind: ServerKind,
    pub set_name: Option<String>,
    /// All members the reply names: `hosts`, `passives` and `arbiters`, in lower case.
    pub members: Vec<ServerId>,
    /// The members among them that the set counts as ordinary or passive data members, in the set's order.
    pub data_members: Vec<ServerId>,
    /// The name by which the member knows itself.
    pub me: Option<ServerId>,
    pub set_version: Option<i64>,
    pub election_id: Option<ObjectId>,
    pub hidden: bool,
    pub tags: Vec<(String, String)>,
    /// `lastWrite.lastWriteDate`, milliseconds since 1970.
    pub last_write: Option<i64>,
    /// `lastWrite.opTime.ts`.
    pub op_time: Option<Timestamp>,
    pub topology_version: Option<TopologyVersion>,
    pub min_wire_version: i32,
    pub max_wire_version: i32,
    /// Smoothed time of a `hello` round trip; `None` until one was made.
    pub rtt: Option<Duration>,
    /// When the reply arrived.
    pub updated: Instant,
    /// Why the member is `Unknown`.
    pub error: Option<Error>,
}

impl ServerDescription {
    /// A member nothing is known of, for the reason given.
    pub fn unknown(address: ServerId, error: Option<Error>) -> Self {
        ServerDescription {
            address,
            kind: ServerKind::Unknown,
            set_name: None,
            members: Vec::new(),
            data_members: Vec::new(),
            me: None,
            set_version: None,
            election_id: None,
            hidden: false,
            tags: Vec::new(),
            last_write: None,
            op_time: None,
            topology_version: None,
            min_wire_version: 0,
            max_wire_version: 0,
            rtt: None,
            updated: Instant::now(),
            error,
        }
    }

    /// Reads a `hello` reply that came from `address`.
    pub fn parse(address: ServerId, reply: &RawDocument) -> Self {
        let mut d = ServerDescription::unknown(address, None);
        if bsonx::truthy(reply, "ok") != Some(true) {
            d.error = Some(Error::from_reply(&d.address, reply));
            return d;
        }
        d.kind = kind(reply);
        d.set_name = bsonx::str(reply, "setName").map(str::to_owned);
        d.data_members = addresses(reply, "hosts");
        d.data_members.extend(addresses(reply, "passives"));
        d.members = d.data_members.clone();
        d.members.extend(addresses(reply, "arbiters"));
        d.me = bsonx::str(reply, "me").map(server_id);
        d.set_version = bsonx::int(reply, "setVersion");
        d.election_id = bsonx::get(reply, "electionId").and_then(|v| v.as_object_id());
        d.hidden = bsonx::truthy(reply, "hidden").unwrap_or(false);
        d.min_wire_version = wire_version(reply, "minWireVersion");
        d.max_wire_version = wire_version(reply, "maxWireVersion");
        d.topology_version = bsonx::doc(reply, "topologyVersion").and_then(TopologyVersion::parse);
        if let Some(tags) = bsonx::doc(reply, "tags") {
            let text = |v: RawBsonRef<'_>| v.as_str().map(str::to_owned);
            d.tags = tags.iter().flatten().filter_map(|(k, v)| Some((k.as_str().to_owned(), text(v)?))).collect();
        }
        if let Some(write) = bsonx::doc(reply, "lastWrite") {
            d.last_write =
                bsonx::get(write, "lastWriteDate").and_then(|v| v.as_datetime()).map(|t| t.timestamp_millis());
            d.op_time = bsonx::doc(write, "opTime").and_then(|t| bsonx::get(t, "ts")).and_then(|v| v.as_timestamp());
        }
        d
    }

    /// Whether commands can be sent to it at all.
    pub fn serves(&self) -> bool {
        matches!(self.kind, ServerKind::Primary | ServerKind::Secondary | ServerKind::Standalone)
    }

    /// Whether a watcher of the set would see a difference (times and round trips aside).
    pub fn same_role(&self, other: &ServerDescription) -> bool {
        self.kind == other.kind
            && self.set_name == other.set_name
            && self.members == other.members
            && self.set_version == other.set_version
            && self.election_id == other.election_id
            && self.tags == other.tags
    }
}

fn kind(reply: &RawDocument) -> ServerKind {
    let is = |key| bsonx::truthy(reply, key).unwrap_or(false);
    if is("isreplicaset") {
        ServerKind::Ghost
    } else if bsonx::str(reply, "msg") == Some("isdbgrid") {
        ServerKind::Mongos
    } else if bsonx::get(reply, "setName").is_none() {
        ServerKind::Standalone
    } else if is("hidden") {
        ServerKind::Other
    } else if is("isWritablePrimary") || is("ismaster") {
        ServerKind::Primary
    } else if is("secondary") {
        ServerKind::Secondary
    } else if is("arbiterOnly") {
        ServerKind::Arbiter
    } else {
        ServerKind::Other
    }
}

fn addresses(reply: &RawDocument, key: &str) -> Vec<ServerId> {
    let Some(list) = bsonx::array(reply, key) else { return Vec::new() };
    list.into_iter().flatten().filter_map(|v| v.as_str().map(server_id)).collect()
}

fn wire_version(reply: &RawDocument, key: &str) -> i32 {
    bsonx::int(reply, key).and_then(|n| i32::try_from(n).ok()).unwrap_or(0)
}

/// An address as the router compares them: lower case, with a port.
pub fn server_id(text: &str) -> ServerId {
    let text = text.trim().to_lowercase();
    let has_port = match text.rfind(']') {
        Some(bracket) => text[bracket..].contains(':'),
        None => text.contains(':'),
    };
    if has_port { Arc::from(text) } else { Arc::from(format!("{text}:27017")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    fn kind_of(doc: bson::RawDocumentBuf) -> ServerKind {
        ServerDescription::parse("a:1".into(), &doc).kind
    }

    #[test]
    fn kinds() {
        use ServerKind::*;
        assert_eq!(kind_of(rawdoc! {"ok": 1, "isWritablePrimary": true, "setName": "r", "secondary": false}), Primary);
        assert_eq!(kind_of(rawdoc! {"ok": 1, "ismaster": true, "setName": "r"}), Primary);
        assert_eq!(
            kind_of(rawdoc! {"ok": 1.0, "isWritablePrimary": false, "secondary": true, "setName": "r"}),
            Secondary
        );
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "secondary": true, "hidden": true, "setName": "r"}), Other);
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "arbiterOnly": true, "setName": "r"}), Arbiter);
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "isWritablePrimary": false, "setName": "r"}), Other);
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "isreplicaset": true}), Ghost);
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "isWritablePrimary": true, "msg": "isdbgrid"}), Mongos);
        assert_eq!(kind_of(rawdoc! {"ok": 1.0, "isWritablePrimary": true}), Standalone);
        assert_eq!(kind_of(rawdoc! {"ok": 0, "code": 13, "errmsg": "no"}), Unknown);
    }

    #[test]
    fn fields() {
        let id = ObjectId::new();
        let d = ServerDescription::parse(
            "a:1".into(),
            &rawdoc! {
                "ok": 1, "isWritablePrimary": true, "setName": "r", "hosts": ["A:1", "b:2"], "arbiters": ["c"],
                "passives": ["p:4"], "me": "A:1", "setVersion": 3, "electionId": id, "tags": {"dc": "x", "n": 1},
                "lastWrite": {"opTime": {"ts": Timestamp { time: 7, increment: 1 }, "t": 1_i64},
                    "lastWriteDate": bson::DateTime::from_millis(7000)},
                "topologyVersion": {"processId": id, "counter": 6_i64}, "maxWireVersion": 17, "minWireVersion": 0,
            },
        );
        let names = |v: &[ServerId]| v.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&d.members), ["a:1", "b:2", "p:4", "c:27017"]);
        assert_eq!(names(&d.data_members), ["a:1", "b:2", "p:4"]);
        assert_eq!(d.tags, [("dc".to_owned(), "x".to_owned())]);
        assert_eq!((d.last_write, d.set_version, d.max_wire_version), (Some(7000), Some(3), 17));
        assert_eq!(d.topology_version, Some(TopologyVersion { process_id: id, counter: 6 }));
        assert_eq!(d.op_time, Some(Timestamp { time: 7, increment: 1 }));
        assert!(TopologyVersion { process_id: id, counter: 5 }.older_than(&d.topology_version.unwrap()));
        assert!(!TopologyVersion { process_id: ObjectId::new(), counter: 5 }.older_than(&d.topology_version.unwrap()));
    }

    #[test]
    fn addresses_get_a_port() {
        assert_eq!(&*server_id("Host"), "host:27017");
        assert_eq!(&*server_id("host:1"), "host:1");
        assert_eq!(&*server_id("[::1]"), "[::1]:27017");
        assert_eq!(&*server_id("[::1]:5"), "[::1]:5");
    }
}
