//! What the pools and the topology hold now, as `connPoolStats` and `serverStatus` show it.

use std::sync::atomic::Ordering;

use bson::{RawDocumentBuf, cstr, rawdoc};

use super::hello::ServerKind;
use super::pool::PoolStats;
use super::{ServerId, Shard, ShardId};

/// One shard at one moment.
#[derive(Clone, Debug)]
pub struct ShardStats {
    pub shard: ShardId,
    /// The replica set's name.
    pub set_name: String,
    pub servers: Vec<ServerStats>,
}

/// One member of a shard.
#[derive(Clone, Debug)]
pub struct ServerStats {
    pub address: ServerId,
    pub pool: PoolStats,
    /// Commands sent to it.
    pub sent: u64,
    /// Operations on it that were stopped by `killOp`.
    pub killed: u64,
    /// Whether it answers.
    pub ok: bool,
    pub primary: bool,
    pub secondary: bool,
    pub hidden: bool,
    /// Smoothed round trip.
    pub ping_millis: i64,
    pub tags: Vec<(String, String)>,
}

impl ServerStats {
    /// `{inUse, available, created, refreshing}`, as under `hosts` of `connPoolStats`.
    pub fn pool_doc(&self) -> RawDocumentBuf {
        rawdoc! {
            "inUse": self.pool.in_use as i32,
            "available": self.pool.available as i32,
            "created": self.pool.created as i32,
            "refreshing": self.pool.refreshing as i32,
        }
    }

    /// `{addr, ok, ismaster, hidden, secondary, pingTimeMillis, tags?}`, as under `replicaSets` of `connPoolStats`.
    pub fn set_doc(&self) -> RawDocumentBuf {
        let mut doc = rawdoc! {
            "addr": &*self.address,
            "ok": self.ok,
            "ismaster": self.primary,
            "hidden": self.hidden,
            "secondary": self.secondary,
            "pingTimeMillis": self.ping_millis as i32,
        };
        if !self.tags.is_empty() {
            let mut tags = RawDocumentBuf::new();
            for (name, value) in &self.tags {
                if let Ok(name) = bson::raw::CString::try_from(name.as_str()) {
                    tags.append(&name, value.as_str());
                }
            }
            doc.append(cstr!("tags"), tags);
        }
        doc
    }
}

impl Shard {
    /// The shard's members and their pools now.
    pub fn stats(&self) -> ShardStats {
        let state = self.topology().state();
        let set = &state.set;
        let servers = set.servers.values().filter_map(|s| {
            let member = state.members.get(&s.address)?;
            Some(ServerStats {
                address: s.address.clone(),
                pool: member.pool.stats(),
                sent: member.sent.load(Ordering::Relaxed),
                killed: member.pool.stopper.killed(),
                ok: s.kind != ServerKind::Unknown,
                primary: matches!(s.kind, ServerKind::Primary | ServerKind::Standalone),
                secondary: s.kind == ServerKind::Secondary,
                hidden: s.hidden,
                ping_millis: s.rtt.map_or(0, |rtt| rtt.as_millis() as i64),
                tags: s.tags.clone(),
            })
        });
        ShardStats {
            shard: self.id().clone(),
            set_name: set.set_name.clone().unwrap_or_default(),
            servers: servers.collect(),
        }
    }
}
