//! The picture of one replica set, and how each `hello` reply changes it: the public server discovery and monitoring
//! specification, for sets only. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::oid::ObjectId;

use crate::error::{Code, Error, Result};

use super::ServerId;
use super::hello::{ServerDescription, ServerKind, server_id};

/// From this wire version on (6.0) a stale primary is known by its election first, then by its configuration.
const ELECTION_FIRST: i32 = 17;

/// A shard's connection string: `setName/host1:port1,host2:port2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostString {
    /// `None` for a bare `host:port`: a single server of any kind, looked at directly.
    pub set_name: Option<String>,
    pub hosts: Vec<ServerId>,
}

impl HostString {
    /// # Errors
    /// FailedToParse for an empty host or set name, or several hosts without a set name.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(Code::FailedToParse, format!("'{text}' is not a shard's address: {why}"));
        let (set_name, list) = match text.split_once('/') {
            Some(("", _)) => return Err(bad("the replica set's name before the '/' is empty")),
            Some((name, list)) => (Some(name.to_owned()), list),
            None => (None, text),
        };
        let mut hosts = Vec::new();
        for host in list.split(',') {
            check_host(host.trim()).map_err(bad)?;
            let host = server_id(host);
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        if set_name.is_none() && hosts.len() > 1 {
            return Err(bad("several hosts need the replica set's name in front: name/host1:port1,host2:port2"));
        }
        Ok(HostString { set_name, hosts })
    }
}

fn check_host(host: &str) -> Result<(), &'static str> {
    if host.is_empty() {
        return Err("a host is empty");
    }
    if host.bytes().any(|b| b.is_ascii_whitespace() || b == b'/' || b == b'@' || b == b'?') {
        return Err("a host has a character that no host name has");
    }
    let name_and_port = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("the ']' of an IPv6 address is missing")?,
        None => host.split_once(':').map_or((host, ""), |(name, _)| (name, &host[name.len()..])),
    };
    match name_and_port {
        ("", _) => Err("a host is empty"),
        (_, "") => Ok(()),
        (_, port) => match port.strip_prefix(':').and_then(|p| p.parse::<u16>().ok()) {
            Some(p) if p > 0 => Ok(()),
            _ => Err("a port has to be a number from 1 to 65535"),
        },
    }
}

/// What is known of a replica set at one moment.
#[derive(Clone, Debug)]
pub struct SetDescription {
    /// `None`: a single server, taken as it is.
    pub set_name: Option<String>,
    pub servers: BTreeMap<ServerId, Arc<ServerDescription>>,
    pub max_set_version: Option<i64>,
    pub max_election_id: Option<ObjectId>,
    /// The data members in the order the newest configuration names them; the seeds before one was seen.
    pub order: Vec<ServerId>,
}

impl SetDescription {
    /// All members unknown.
    pub fn new(host: &HostString) -> Self {
        let unknown = |h: &ServerId| (h.clone(), Arc::new(ServerDescription::unknown(h.clone(), None)));
        SetDescription {
            set_name: host.set_name.clone(),
            servers: host.hosts.iter().map(unknown).collect(),
            max_set_version: None,
            max_election_id: None,
            order: host.hosts.clone(),
        }
    }

    /// The primary (or the single server), if one is known.
    pub fn primary(&self) -> Option<&Arc<ServerDescription>> {
        self.servers
            .values()
            .find(|s| s.kind == ServerKind::Primary || self.set_name.is_none() && s.kind == ServerKind::Standalone)
    }

    /// `setName/host1,host2` over the data members.
    pub fn host_string(&self) -> String {
        let hosts = self.order.join(",");
        match &self.set_name {
            Some(name) => format!("{name}/{hosts}"),
            None => hosts,
        }
    }

    /// The picture after `new` was learned of one member. News of a server that is not in the picture, and news older
    /// than what is known, change nothing.
    pub fn apply(&self, mut new: ServerDescription) -> SetDescription {
        let mut next = self.clone();
        let Some(old) = self.servers.get(&new.address) else { return next };
        if let (Some(n), Some(o)) = (&new.topology_version, &old.topology_version)
            && n.older_than(o)
        {
            return next;
        }
        new.rtt = match (new.rtt, old.rtt) {
            (Some(sample), Some(average)) => Some(sample / 5 + average * 4 / 5),
            (sample, average) => sample.or(average),
        };
        let address = new.address.clone();
        let new = Arc::new(new);
        next.servers.insert(address.clone(), new.clone());
        if next.set_name.is_none() {
            return next;
        }
        match new.kind {
            ServerKind::Unknown | ServerKind::Ghost => {}
            ServerKind::Standalone | ServerKind::Mongos => next.remove(&address, "it is not a member of a replica set"),
            _ if new.set_name != next.set_name => next.remove(&address, "it belongs to another replica set"),
            ServerKind::Primary => next.update_from_primary(&new),
            _ => next.update_from_member(&new),
        }
        next
    }

    /// A server that does not belong is dropped; the last one stays as unknown so that it is looked at again.
    fn remove(&mut self, address: &ServerId, why: &str) {
        if self.servers.len() > 1 {
            self.servers.remove(address);
            self.order.retain(|a| a != address);
        } else {
            let name = self.set_name.as_deref().unwrap_or_default();
            self.set_unknown(address, format!("{address} is not part of replica set {name}: {why}"));
        }
    }

    fn set_unknown(&mut self, address: &ServerId, why: String) {
        let error = Error::new(Code::HostUnreachable, why).from_router();
        self.servers.insert(address.clone(), Arc::new(ServerDescription::unknown(address.clone(), Some(error))));
    }

    fn update_from_primary(&mut self, new: &ServerDescription) {
        if self.is_stale(new) {
            self.set_unknown(&new.address, format!("{} was primary; a newer one is known", new.address));
            return;
        }
        let others: Vec<_> = self
            .servers
            .values()
            .filter(|s| s.kind == ServerKind::Primary && s.address != new.address)
            .map(|s| s.address.clone())
            .collect();
        for other in others {
            self.set_unknown(&other, format!("{other} was primary; now {} is", new.address));
        }
        self.add_unknown(&new.members);
        self.servers.retain(|a, _| new.members.contains(a));
        self.order = new.data_members.clone();
    }

    /// Compares the primary's election and configuration with the newest seen, and remembers them if they are newer.
    fn is_stale(&mut self, new: &ServerDescription) -> bool {
        if new.max_wire_version >= ELECTION_FIRST {
            let theirs = (new.election_id.map(|id| id.bytes()), new.set_version);
            let newest = (self.max_election_id.map(|id| id.bytes()), self.max_set_version);
            if theirs < newest {
                return true;
            }
            (self.max_election_id, self.max_set_version) = (new.election_id, new.set_version);
            return false;
        }
        if let (Some(version), Some(election)) = (new.set_version, new.election_id) {
            if let (Some(max_version), Some(max_election)) = (self.max_set_version, self.max_election_id)
                && (max_version, max_election.bytes()) > (version, election.bytes())
            {
                return true;
            }
            self.max_election_id = Some(election);
        }
        self.max_set_version = self.max_set_version.max(new.set_version);
        false
    }

    /// A member that is not primary adds to the picture only while no primary tells what is true.
    fn update_from_member(&mut self, new: &ServerDescription) {
        let misnamed = new.me.as_ref().is_some_and(|me| *me != new.address);
        if self.primary().is_none() {
            self.add_unknown(&new.members);
            if misnamed {
                self.remove(&new.address, "the set knows it by another name");
            } else if new.members.len() >= self.servers.len() && !new.data_members.is_empty() {
                self.order = new.data_members.clone();
            }
        } else if misnamed {
            self.remove(&new.address, "the set knows it by another name");
        }
    }

    fn add_unknown(&mut self, members: &[ServerId]) {
        for member in members {
            if !self.servers.contains_key(member) {
                self.servers.insert(member.clone(), Arc::new(ServerDescription::unknown(member.clone(), None)));
            }
        }
    }
}

#[cfg(test)]
#[path = "sdam_tests.rs"]
mod tests;
