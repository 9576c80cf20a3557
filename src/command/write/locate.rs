//! Finding the one document that a write without a shard key is to change.

use std::cmp::Ordering;

use bson::{RawBson, RawDocument, rawdoc};
use tokio::task::JoinSet;

use super::single::Single;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::Result;
use crate::key::value::{self, Value};
use crate::merge::{SORT_KEY, SortOrder};
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::target::Route;
use crate::wire::OutMsg;

/// Where a document is.
pub type Found = (ShardId, RawBson);

impl Single<'_> {
    /// Asks all shards of the route for a matching document: the first by the client's order, or the first to be found.
    ///
    /// # Errors
    /// A shard's; without an order only if no other shard has found one.
    pub async fn locate(&self, route: &Route) -> Result<Option<Found>> {
        let order = self.sort().and_then(SortOrder::parse);
        let msg = OutMsg::new(self.find(&rawdoc! { "_id": 1 }, order.is_some()).finish());
        match order {
            Some(order) => self.first_in_order(route, &msg, &order).await,
            None => self.first_found(route, &msg).await,
        }
    }

    async fn first_found(&self, route: &Route, msg: &OutMsg) -> Result<Option<Found>> {
        if let Some(shard) = route.single() {
            let reply = self.ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Read, msg).await?.into_result()?;
            return Ok(found(&reply));
        }
        // Shards that answer later than the first are left to themselves: their connections stay usable.
        let mut asked = JoinSet::new();
        for shard in &route.shards {
            let (router, op, shard, msg) = (self.ctx.router.clone(), self.ctx.op.clone(), shard.clone(), msg.clone());
            asked.spawn(async move {
                router.send(&op, &shard, &ReadPreference::PRIMARY, Retryable::Read, &msg).await?.into_result()
            });
        }
        let mut failed = None;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(reply)) => {
                    if let Some(found) = found(&reply) {
                        asked.detach_all();
                        return Ok(Some(found));
                    }
                }
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(lost) => failed = failed.or(Some(crate::error::Error::internal(lost.to_string()))),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    async fn first_in_order(&self, route: &Route, msg: &OutMsg, order: &SortOrder) -> Result<Option<Found>> {
        let mut best: Option<ShardReply> = None;
        for (_, outcome) in self.ctx.broadcast(&route.shards, Retryable::Read, msg).await {
            let reply = outcome?.into_result()?;
            let better = match (reply.batch().next(), best.as_ref().and_then(|b| b.batch().next())) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(new), Some(old)) => before(order, new, old),
            };
            if better {
                best = Some(reply);
            }
        }
        Ok(best.and_then(|reply| found(&reply)))
    }
}

/// Whether `new` stands strictly before `old`.
fn before(order: &SortOrder, new: &RawDocument, old: &RawDocument) -> bool {
    fn key(doc: &RawDocument) -> Option<Value<'_>> {
        value::get(doc.as_bytes(), SORT_KEY.as_bytes()).ok().flatten()
    }
    match (key(new), key(old)) {
        (Some(new), Some(old)) => order.compare(new, old) == Ordering::Less,
        _ => false,
    }
}

fn found(reply: &ShardReply) -> Option<Found> {
    let id = bsonx::get(reply.batch().next()?, "_id")?;
    Some((reply.shard.clone(), RawBson::from(id)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn the_first_by_the_clients_order_wins() {
        let order = SortOrder::parse(&rawdoc! { "a": -1, "b": 1 }).unwrap();
        let doc = |a: i32, b: i32| rawdoc! { "_id": 1, "$sortKey": [a, b] };
        assert!(before(&order, &doc(5, 1), &doc(4, 1)));
        assert!(before(&order, &doc(5, 1), &doc(5, 2)));
        assert!(!before(&order, &doc(5, 2), &doc(5, 2)));
        assert!(!before(&order, &doc(3, 1), &doc(4, 1)));
    }

    #[test]
    fn a_found_document_is_read_out_of_the_reply() {
        let body = rawdoc! { "cursor": { "firstBatch": [{ "_id": 7 }], "id": 0_i64, "ns": "a.b" }, "ok": 1.0 };
        let reply = ShardReply::new("s".into(), "h".into(), body.into_bytes().into());
        assert_eq!(found(&reply), Some(("s".into(), RawBson::Int32(7))));
        let empty = rawdoc! { "cursor": { "firstBatch": [], "id": 0_i64 }, "ok": 1.0 };
        let reply = ShardReply::new("s".into(), "h".into(), empty.into_bytes().into());
        assert_eq!(found(&reply), None);
    }
}
