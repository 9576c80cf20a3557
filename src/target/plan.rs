//! From boxes to shards (REFERENCE E6).

use super::filter::{Boxes, Context, KeyBox, Note};
use super::route::{Bounds, Reason, Route};
use crate::catalog::table::{Collector, RoutingTable};
use crate::error::{Error, Result};
use crate::key::order;

/// Ranges that one filter may need; MongoDB's limit and code.
const MAX_RANGES: usize = 4_000_000;

/// Points of several fields are combined as long as there are at most this many; beyond, only the first list is looked
/// up value by value.
const MAX_COMBINED: usize = 1000;

/// Looks the boxes up in the table.
pub(super) fn route(cx: &Context<'_>, boxes: &Boxes, table: &RoutingTable) -> Result<Route> {
    if boxes.is_empty() {
        // MongoDB asks the shard with the first chunk, so that there is a reply at all.
        return Ok(Route::new([table.first().shard().clone()], Reason::Unsatisfiable));
    }
    let mut walk = Walk { found: table.collector(), ranges: 0 };
    for one in boxes {
        let mut prefix = Vec::with_capacity(64);
        walk.expand(one, &mut prefix, 0, 1)?;
        if walk.found.is_complete() {
            break;
        }
    }
    let mut route = Route::new(walk.found.shards(), reason(cx, boxes));
    route.bounds = Bounds { ranges: walk.ranges, chunks: walk.found.chunks() };
    route.exact_key = route.reason == Reason::EqualityOnShardKey && route.shards.len() == 1;
    Ok(route)
}

struct Walk<'t> {
    found: Collector<'t>,
    ranges: usize,
}

impl Walk<'_> {
    /// Looks up all of a box that begins with the encoded `prefix`, which pins the first `field` fields and is one of
    /// `combined` such prefixes.
    fn expand(&mut self, one: &KeyBox, prefix: &mut Vec<u8>, field: usize, combined: usize) -> Result<()> {
        let Some(entry) = one.get(field) else {
            self.count()?;
            self.found.add_key(prefix);
            return Ok(());
        };
        let start = prefix.len();
        let Some(set) = entry else {
            return self.range(one.len(), field, prefix, &[], &[0xFF]);
        };
        let combined = combined.saturating_mul(set.intervals().len().max(1));
        if field > 0 && combined > MAX_COMBINED && set.intervals().len() > 1 {
            // Too many combinations: from the lowest to the highest.
            return match set.span() {
                Some((low, high)) => self.range(one.len(), field, prefix, low, high),
                None => Ok(()),
            };
        }
        for interval in set.intervals() {
            if interval.point {
                prefix.extend_from_slice(&interval.low);
                self.expand(one, prefix, field + 1, combined)?;
                prefix.truncate(start);
            } else {
                self.range(one.len(), field, prefix, &interval.low, &interval.high)?;
            }
            if self.found.is_complete() {
                break;
            }
        }
        Ok(())
    }

    /// Everything from `prefix·low` to `prefix·high`, where `prefix` pins the first `field` of the key's `fields`. The
    /// upper end counts as inside, as in MongoDB: a chunk that begins exactly there is included.
    fn range(&mut self, fields: usize, field: usize, prefix: &mut Vec<u8>, low: &[u8], high: &[u8]) -> Result<()> {
        self.count()?;
        let start = prefix.len();
        let mut upper = prefix.clone();
        upper.extend_from_slice(high);
        prefix.extend_from_slice(low);
        // From a whole value on: the fields after it begin at MinKey, and a chunk that begins there is the first.
        let free = match low {
            [] => fields - field,
            low if order::encoded_len(low).is_ok_and(|n| n == low.len()) => fields - field - 1,
            _ => 0,
        };
        (0..free).for_each(|_| order::push_min(prefix));
        self.found.add_range(prefix, &upper);
        prefix.truncate(start);
        Ok(())
    }

    fn count(&mut self) -> Result<()> {
        self.ranges += 1;
        if self.ranges > MAX_RANGES {
            return Err(Error::with_code(
                17439,
                format!("The filter combines to more than {MAX_RANGES} shard key ranges; list fewer values"),
            ));
        }
        Ok(())
    }
}

/// The reason that describes the boxes best.
fn reason(cx: &Context<'_>, boxes: &Boxes) -> Reason {
    if boxes.iter().any(|b| b.first().is_none_or(Option::is_none)) {
        return wide(cx);
    }
    match boxes.as_slice() {
        [one] if !cx.noted(Note::Or) || one.iter().all(|s| s.as_ref().is_some_and(|s| s.is_single())) => shape(one),
        _ => Reason::OrOfTargeted,
    }
}

/// Why the first field has no bounds.
fn wide(cx: &Context<'_>) -> Reason {
    if cx.noted(Note::Collation) {
        Reason::NonSimpleCollation
    } else if cx.noted(Note::HashedRange) {
        Reason::HashedRange
    } else if cx.noted(Note::OtherOperator) || (cx.noted(Note::NotSelective) && !cx.noted(Note::OtherField)) {
        Reason::NotSelective
    } else if cx.noted(Note::Id) && !cx.noted(Note::OtherField) {
        Reason::IdOnly
    } else {
        Reason::NoShardKey
    }
}

fn shape(one: &KeyBox) -> Reason {
    let all = one.len();
    let single = one.iter().take_while(|s| s.as_ref().is_some_and(|s| s.is_single())).count();
    let points = one.iter().take_while(|s| s.as_ref().is_some_and(|s| s.is_points())).count();
    let pinned_or_range_is_last = points + 1 == all && one.last().is_some_and(Option::is_some);
    if single == all {
        Reason::EqualityOnShardKey
    } else if points == all {
        Reason::InOnShardKey
    } else if pinned_or_range_is_last {
        Reason::RangeOnShardKey
    } else if one.get(points).is_some_and(Option::is_some) {
        Reason::RangeOnPrefix
    } else if single == points {
        Reason::EqualityOnPrefix
    } else {
        Reason::InOnPrefix
    }
}
