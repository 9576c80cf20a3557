//! How a write of one document goes about it, from what is known before anything is sent. Pure.

use crate::catalog::model::ShardId;
use crate::target::Route;

/// What a write's filter and change say.
pub struct Plan {
    pub route: Route,
    /// The document's shard key may change, so that it may belong elsewhere afterwards.
    pub may_move: bool,
    /// The shard that owns what a replacement says.
    pub replacement_owner: Option<ShardId>,
    /// Where the document that an upsert inserts most likely belongs.
    pub insert_guess: ShardId,
}

/// What else counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// It is a statement of an `update`.
    pub update: bool,
    /// The client's order decides which document it is.
    pub sorted: bool,
    /// The filter demands one `_id`: at most one document matches, wherever it is.
    pub pins_id: bool,
}

/// The first step of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy<'p> {
    /// Every shard of the route may try, since only one can succeed.
    Everywhere,
    /// One shard has everything that matches, and the document stays there.
    Directly(&'p ShardId),
    /// The document is found first and written where it is. Before that, a replacement is tried on the shard `first` that
    /// owns it: a document that is there keeps its place by becoming what belongs there.
    Locate { first: Option<&'p ShardId> },
}

impl<'p> Strategy<'p> {
    pub fn of(plan: &'p Plan, facts: Facts) -> Self {
        let one = plan.route.single();
        match (plan.may_move, one) {
            (false, _) if facts.pins_id && !facts.sorted => Strategy::Everywhere,
            (false, Some(shard)) => Strategy::Directly(shard),
            (_, None) if facts.update => Strategy::Locate { first: plan.replacement_owner.as_ref() },
            _ => Strategy::Locate { first: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Bounds, Reason};

    fn plan(shards: &[&str], may_move: bool, owner: Option<&str>) -> Plan {
        let shards = shards.iter().map(|s| ShardId::from(*s)).collect();
        let route = Route { shards, reason: Reason::NoShardKey, exact_key: false, bounds: Bounds::default() };
        Plan { route, may_move, replacement_owner: owner.map(ShardId::from), insert_guess: "a".into() }
    }

    const UPDATE: Facts = Facts { update: true, sorted: false, pins_id: false };

    #[test]
    fn one_shard_does_it_unless_the_document_may_move() {
        let a = ShardId::from("a");
        assert_eq!(Strategy::of(&plan(&["a"], false, None), UPDATE), Strategy::Directly(&a));
        assert_eq!(Strategy::of(&plan(&["a"], true, None), UPDATE), Strategy::Locate { first: None });
        // There is nothing to be tried first: the only shard is where it is.
        assert_eq!(Strategy::of(&plan(&["a"], true, Some("b")), UPDATE), Strategy::Locate { first: None });
    }

    #[test]
    fn a_pinned_id_may_be_tried_on_all_shards() {
        let pinned = Facts { pins_id: true, ..UPDATE };
        assert_eq!(Strategy::of(&plan(&["a", "b"], false, None), pinned), Strategy::Everywhere);
        assert_eq!(Strategy::of(&plan(&["a", "b"], true, None), pinned), Strategy::Locate { first: None });
        let sorted = Facts { sorted: true, ..pinned };
        assert_eq!(Strategy::of(&plan(&["a", "b"], false, None), sorted), Strategy::Locate { first: None });
    }

    #[test]
    fn a_replacement_is_tried_first_where_it_belongs() {
        let b = ShardId::from("b");
        let replaced = plan(&["a", "b"], true, Some("b"));
        assert_eq!(Strategy::of(&replaced, UPDATE), Strategy::Locate { first: Some(&b) });
        // A findAndModify may have to find another one, by its order.
        let modify = Facts { update: false, ..UPDATE };
        assert_eq!(Strategy::of(&replaced, modify), Strategy::Locate { first: None });
    }
}
