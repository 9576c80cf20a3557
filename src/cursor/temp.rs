//! Temporary collections on shards.

use std::sync::Arc;

use super::Killer;
use crate::catalog::model::ShardId;
use crate::shard::ServerId;

/// A collection in the database `local` of one server of a shard: not replicated, seen by no client, and gone with its
/// owner. Dropped, it is dropped there in the background.
#[derive(Debug)]
pub struct TempCollection {
    pub shard: ShardId,
    pub server: ServerId,
    pub name: String,
    killer: Arc<Killer>,
}

impl TempCollection {
    /// The database they all lie in.
    pub const DB: &'static str = "local";

    /// What their names begin with; the id of the router's process and one of their own follow, parted by a dot.
    pub const PREFIX: &'static str = "mosaic.tmp.";

    /// Takes care of the collection, which may not be there yet.
    pub fn new(shard: ShardId, server: ServerId, name: String, killer: Arc<Killer>) -> Self {
        killer.keep(&name);
        TempCollection { shard, server, name, killer }
    }

    /// The id of the process that a name was made by; `None` for other names.
    pub fn maker(name: &str) -> Option<bson::oid::ObjectId> {
        name.strip_prefix(Self::PREFIX)?.split_once('.').and_then(|(process, _)| process.parse().ok())
    }
}

impl Drop for TempCollection {
    fn drop(&mut self) {
        self.killer.drop_collection(&self.shard, &self.server, std::mem::take(&mut self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::oid::ObjectId;

    #[test]
    fn makers() {
        let id = ObjectId::new();
        let name = |rest: &str| format!("{}{id}{rest}", TempCollection::PREFIX);
        assert_eq!(TempCollection::maker(&name(".5")), Some(id));
        assert_eq!(TempCollection::maker(&name("")), None);
        assert_eq!(TempCollection::maker("mosaic.tmp.x.5"), None);
        assert_eq!(TempCollection::maker("oplog.rs"), None);
    }
}
