//! `update` and `delete`: each statement goes where its filter points.

use smallvec::SmallVec;

use super::batch::Batch;
use super::effect::{self, Effect, Known};
use super::envelope::Envelope;
use super::ops::Ops;
use super::plan::{Place, Shards};
use super::statement::{Change, Delete, Update};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::Result;
use crate::stats::Hosts;
use crate::target::{self, Route};

pub async fn run(ctx: &Ctx, request: &Request, coll: &CollectionRouting, payload: &'static str) -> Result<Reply> {
    let ops = Ops::new(request, payload)?;
    let mut shards = Shards::default();
    let mut places = Vec::with_capacity(ops.len());
    for index in 0..ops.len() as u32 {
        let statement = ops.get(index);
        let target = match payload {
            "updates" => place_update(&Update::parse(statement)?, coll),
            _ => place_delete(&Delete::parse(statement)?, coll),
        };
        places.push(match target {
            Ok(Target::One(shard)) => Place::One(shards.number(&shard)),
            Ok(Target::Many(ids)) => Place::Many(ids.iter().map(|id| shards.number(id)).collect()),
            Ok(Target::Special) => Place::Special,
            Err(error) => Place::Failed(Box::new(error)),
        });
    }
    // What needs more than forwarding nearly always asks every owner.
    let owners = coll.table.owners().len();
    let special = places.iter().any(|p| matches!(p, Place::Special));
    super::count_hosts(ctx, request, Hosts::of(if special { owners } else { shards.len() }, Some(owners)));
    if shards.len() == 1 && places.iter().all(|p| matches!(p, Place::One(_))) {
        return super::forward(ctx, request, shards.id(0)).await;
    }
    let envelope = Envelope::new(request, payload)?;
    envelope.check_count(ops.len())?;
    // Boxed: the usual update's future stays small.
    Box::pin(Batch { ctx, coll, payload, envelope, ops, shards, places }.run()).await
}

/// Where a statement goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// As it is to this shard.
    One(ShardId),
    /// As it is to each of these; what they did adds up.
    Many(SmallVec<[ShardId; 4]>),
    /// More than forwarding is needed (`single`, `multi`).
    Special,
}

impl Target {
    pub fn of(route: Route) -> Self {
        match route.single() {
            Some(one) => Target::One(one.clone()),
            None => Target::Many(route.shards),
        }
    }
}

/// Where an update goes.
///
/// # Errors
/// What is wrong with the statement: its style, an array in the shard key.
pub fn place_update(update: &Update<'_>, coll: &CollectionRouting) -> Result<Target> {
    update.check()?;
    let route = target::query(update.filter, update.collation, coll)?;
    let free = effect::on_existing(update.change, &coll.key, Known::default())?;
    if free == Effect::None && !update.upsert {
        // Nearly every update.
        return Ok(if update.multi || pins_id(update.filter, update.collation, coll) || route.single().is_some() {
            Target::of(route)
        } else {
            Target::Special
        });
    }
    let pinned = target::full_key_equality(update.filter, update.collation, coll);
    let known = Known { key: pinned.as_deref(), id: target::id_equality(update.filter) };
    let existing = match free {
        Effect::Unknown => effect::on_existing(update.change, &coll.key, known)?,
        decided => decided,
    };
    let stays = match (&existing, route.single()) {
        (Effect::None, _) => true,
        // A multi-update must not change any shard key, not even within a shard.
        (Effect::Known(after), _) if update.multi => {
            pinned.as_deref().and_then(|raw| effect::encode_raw(&coll.key, raw)).is_some_and(|before| before == *after)
        }
        (Effect::Known(after), Some(shard)) => coll.table.chunk_for(after).shard() == shard,
        _ => false,
    };
    let inserts_here = !update.upsert
        || match (effect::on_insert(update.change, &coll.key, known)?, route.single()) {
            (Effect::Known(key), Some(shard)) => coll.table.chunk_for(&key).shard() == shard,
            _ => false,
        };
    let one = route.single().is_some();
    Ok(if stays && inserts_here && (one || update.multi && !update.upsert) {
        Target::of(route)
    } else {
        Target::Special
    })
}

/// Where a delete goes.
///
/// # Errors
/// Those of targeting.
pub fn place_delete(delete: &Delete<'_>, coll: &CollectionRouting) -> Result<Target> {
    let route = target::query(delete.filter, delete.collation, coll)?;
    let forwardable = !delete.single || route.single().is_some() || pins_id(delete.filter, delete.collation, coll);
    Ok(if forwardable { Target::of(route) } else { Target::Special })
}

/// Whether the filter demands one `_id`, so that at most one document matches wherever it is.
pub fn pins_id(filter: &bson::RawDocument, collation: Option<&bson::RawDocument>, coll: &CollectionRouting) -> bool {
    use bson::RawBsonRef as V;
    let Some(id) = target::id_equality(filter) else { return false };
    // Under another collation than that of the `_id` index several strings can be equal.
    let own_collation = match (collation, coll.default_collation.as_deref()) {
        (None, _) => true,
        (Some(asked), Some(default)) => {
            bsonx::str(asked, "locale") == bsonx::str(default, "locale") && asked == default
        }
        (Some(asked), None) => bsonx::str(asked, "locale") == Some("simple"),
    };
    let collatable = matches!(id, V::String(_) | V::Document(_) | V::Array(_) | V::Symbol(_));
    own_collation || !collatable
}

/// Whether a replacement says the whole shard key by itself, and which shard owns it.
pub fn owner_of_replacement(change: Change<'_>, known: Known<'_>, coll: &CollectionRouting) -> Option<ShardId> {
    match (change, effect::on_existing(change, &coll.key, known)) {
        (Change::Replacement(_), Ok(Effect::Known(key))) => Some(coll.table.chunk_for(&key).shard().clone()),
        _ => None,
    }
}
