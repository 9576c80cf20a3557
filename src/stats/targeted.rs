//! `serverStatus.shardingStatistics.numHostsTargeted`: how widely operations were spread.

use super::counters::Counter;

/// How many shards an operation went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every shard that owns chunks of the collection (more than one).
    All,
    /// Several, but not all.
    Many,
    /// Exactly one.
    One,
    /// The collection is not sharded.
    Unsharded,
}

impl Hosts {
    /// `targeted` of the collection's `owners` shards; `owners` is `None` where it is not sharded.
    pub fn of(targeted: usize, owners: Option<usize>) -> Hosts {
        match owners {
            None => Hosts::Unsharded,
            Some(_) if targeted <= 1 => Hosts::One,
            Some(owners) if targeted >= owners => Hosts::All,
            Some(_) => Hosts::Many,
        }
    }
}

/// The four counters of one kind of operation.
#[derive(Debug, Default)]
pub struct TargetCounters {
    pub all_shards: Counter,
    pub many_shards: Counter,
    pub one_shard: Counter,
    pub unsharded: Counter,
}

impl TargetCounters {
    pub fn count(&self, hosts: Hosts) {
        match hosts {
            Hosts::All => self.all_shards.add(1),
            Hosts::Many => self.many_shards.add(1),
            Hosts::One => self.one_shard.add(1),
            Hosts::Unsharded => self.unsharded.add(1),
        }
    }
}

/// By kind: bump with e.g. `stats.targeted.find.count(Hosts::of(route.shards.len(), Some(owners)))`.
#[derive(Debug, Default)]
pub struct Targeted {
    pub find: TargetCounters,
    pub insert: TargetCounters,
    pub update: TargetCounters,
    pub delete: TargetCounters,
    pub aggregate: TargetCounters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread() {
        assert_eq!(Hosts::of(1, None), Hosts::Unsharded);
        assert_eq!(Hosts::of(1, Some(1)), Hosts::One);
        assert_eq!(Hosts::of(2, Some(3)), Hosts::Many);
        assert_eq!(Hosts::of(3, Some(3)), Hosts::All);
    }
}
