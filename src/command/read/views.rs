//! Views over sharded collections. A shard that evaluates such a view sees its own part of the data only and does not
//! know it, so the router must notice before it forwards.
//!
//! Only databases that have a sharded collection need this: a view stays in its database. For them the views are listed
//! from the primary shard and remembered for a moment; this router's own DDL on a view forgets the list at once, other
//! routers' is noticed within [`FRESH`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::stages;
use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::catalog::snapshot::Snapshot;
use crate::command::Ctx;
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// How long a list of views is believed.
const FRESH: Duration = Duration::from_millis(500);

/// Views may be defined over views this deep.
const MAX_DEPTH: usize = 20;

/// What a view is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The collection or view it reads, in the same database.
    pub on: String,
    pub pipeline: RawArrayBuf,
    pub collation: Option<RawDocumentBuf>,
}

/// A view looked through down to a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Beneath {
    pub name: Namespace,
    pub on: Namespace,
    /// What makes the view's documents of the collection's.
    pub pipeline: RawArrayBuf,
    /// `None` is the simple one, whatever the collection has.
    pub collation: Option<RawDocumentBuf>,
}

/// A database's views by name.
pub type Views = HashMap<String, View>;

struct Listed {
    at: Instant,
    views: Arc<Views>,
}

/// The views this router has seen lately.
#[derive(Default)]
pub struct ViewCatalog {
    lists: Mutex<HashMap<String, Listed>>,
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// The databases with sharded collections, of one version of the catalog.
    sharded: ArcSwap<(u64, HashSet<String>)>,
}

impl ViewCatalog {
    /// Forgets a database's views: one of them, or the database, was just created, changed or dropped.
    pub fn forget(&self, db: &str) {
        self.lists.lock().remove(db);
    }

    fn listed(&self, db: &str) -> Option<Arc<Views>> {
        let lists = self.lists.lock();
        lists.get(db).filter(|list| list.at.elapsed() < FRESH).map(|list| list.views.clone())
    }

    /// Held by whoever lists the database's views.
    fn turn(&self, db: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.turns.lock().entry(db.to_owned()).or_default().clone()
    }

    /// Whether the database has a sharded collection in `snapshot`.
    fn has_sharded(&self, snapshot: &Snapshot, db: &str) -> bool {
        if snapshot.collections.is_empty() {
            return false;
        }
        let mut known = self.sharded.load_full();
        if known.0 != snapshot.version {
            let dbs = snapshot.collections.values().map(|coll| coll.ns.db().to_owned()).collect();
            known = Arc::new((snapshot.version, dbs));
            self.sharded.store(known.clone());
        }
        known.1.contains(db)
    }
}

impl Ctx {
    /// What a read of `ns` has to read instead, where that is a view over a sharded collection, directly or not; `None` for
    /// what one shard can read by itself.
    pub async fn beneath(&self, ns: &Namespace) -> Result<Option<Beneath>> {
        if !self.router.views.has_sharded(&self.snapshot, ns.db()) {
            return Ok(None);
        }
        let views = self.views(ns.db()).await?;
        let over_sharded = sharded_beneath(ns, &views, &|ns| self.snapshot.collection(ns).is_some(), 0).is_some();
        if !over_sharded || !views.contains_key(ns.coll()) { Ok(None) } else { look_through(ns, &views).map(Some) }
    }

    /// The views of a database, listed anew if the list at hand is not fresh.
    ///
    /// Views are listed outside the client's session: a transaction could not list them, and needs not see them.
    pub async fn views(&self, db: &str) -> Result<Arc<Views>> {
        if let Some(views) = self.router.views.listed(db) {
            return Ok(views);
        }
        // One lists for all who want to know at the same time.
        let turn = self.router.views.turn(db);
        let _turn = turn.lock().await;
        if let Some(views) = self.router.views.listed(db) {
            return Ok(views);
        }
        let Some(shard) = self.primary_shard(db) else { return Ok(Arc::default()) };
        let at = Instant::now();
        let mut command = rawdoc! { "listCollections": 1, "filter": { "type": "view" }, "cursor": {} };
        command.append(cstr!("$db"), db);
        let mut views = Views::new();
        let reply = self.send(&shard, &ReadPreference::PRIMARY, Retryable::Read, &OutMsg::from_doc(command)).await?;
        let reply = reply.into_result()?;
        add_views(reply.doc(), "firstBatch", &mut views);
        let mut open = super::pass::OpenCursor::read(&reply.body)?;
        while let Some(cursor) = open.take() {
            let mut more = rawdoc! { "getMore": cursor.id, "collection": cursor.ns.coll() };
            more.append(cstr!("$db"), db);
            let reply = self.send_to_server(&shard, &reply.server, &OutMsg::from_doc(more)).await?.into_result()?;
            add_views(reply.doc(), "nextBatch", &mut views);
            open = super::pass::OpenCursor::read(&reply.body)?;
        }
        let views = Arc::new(views);
        self.router.views.lists.lock().insert(db.to_owned(), Listed { at, views: views.clone() });
        Ok(views)
    }
}

/// The sharded collection that `ns` reads through views and their pipelines, if there is one.
pub fn sharded_beneath(
    ns: &Namespace,
    views: &Views,
    is_sharded: &dyn Fn(&str) -> bool,
    depth: usize,
) -> Option<Namespace> {
    if is_sharded(ns.as_str()) {
        return Some(ns.clone());
    }
    let view = views.get(ns.coll()).filter(|_| depth < MAX_DEPTH)?;
    let on = Namespace::new(ns.db(), &view.on).ok()?;
    let foreign = stages::foreign(ns.db(), &view.pipeline);
    std::iter::once(&on)
        .chain(foreign.iter().map(|f| &f.ns).filter(|f| f.db() == ns.db()))
        .find_map(|beneath| sharded_beneath(beneath, views, is_sharded, depth + 1))
}

/// # Errors
/// ViewDepthLimitExceeded (165) for views over views without an end.
fn look_through(name: &Namespace, views: &Views) -> Result<Beneath> {
    let mut layers = Vec::new();
    let mut on = name.clone();
    while let Some(view) = views.get(on.coll()) {
        if layers.len() == MAX_DEPTH {
            return Err(Error::new(
                Code::ViewDepthLimitExceeded,
                format!("View depth too deep or view cycle detected; maximum depth is {MAX_DEPTH}"),
            ));
        }
        layers.push(view);
        on = Namespace::new(name.db(), &view.on)?;
    }
    let mut pipeline = RawArrayBuf::new();
    for view in layers.iter().rev() {
        view.pipeline.into_iter().map_while(std::result::Result::ok).for_each(|stage| pipeline.push(stage));
    }
    // Views over views have the same collation, or could not have been made.
    let collation = layers.first().and_then(|view| view.collation.clone());
    Ok(Beneath { name: name.clone(), on, pipeline, collation })
}

fn add_views(reply: &RawDocument, batch: &str, views: &mut Views) {
    let Some(batch) = bsonx::doc(reply, "cursor").and_then(|c| bsonx::array(c, batch)) else { return };
    for item in batch.into_iter().map_while(std::result::Result::ok).filter_map(|v| v.as_document()) {
        let (Some(name), Some(options)) = (bsonx::str(item, "name"), bsonx::doc(item, "options")) else { continue };
        let Some(on) = bsonx::str(options, "viewOn") else { continue };
        let pipeline = bsonx::array(options, "pipeline").map(|p| p.to_owned()).unwrap_or_default();
        let collation = bsonx::doc(options, "collation").map(|c| c.to_owned());
        views.insert(name.to_owned(), View { on: on.to_owned(), pipeline, collation });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn views(list: &[(&str, &str, Option<&str>)]) -> Views {
        let mut views = Views::new();
        for (name, on, lookup) in list {
            let mut pipeline = RawArrayBuf::new();
            if let Some(from) = lookup {
                pipeline.push(rawdoc! { "$lookup": { "from": *from, "as": "x" } });
            }
            views.insert((*name).to_owned(), View { on: (*on).to_owned(), pipeline, collation: None });
        }
        views
    }

    #[test]
    fn views_are_looked_through() {
        let views = views(&[
            ("direct", "s", None),
            ("twice", "direct", None),
            ("joined", "plain", Some("s")),
            ("deep", "plain", Some("twice")),
            ("harmless", "plain", Some("other")),
            ("loop", "loop", None),
        ]);
        let beneath = |coll: &str| {
            let ns = Namespace::new("d", coll).unwrap();
            sharded_beneath(&ns, &views, &|ns| ns == "d.s", 0).map(|ns| ns.as_str().to_owned())
        };
        for through in ["s", "direct", "twice", "joined", "deep"] {
            assert_eq!(beneath(through).as_deref(), Some("d.s"), "{through}");
        }
        for other in ["plain", "harmless", "loop", "nope"] {
            assert_eq!(beneath(other), None, "{other}");
        }
    }

    #[test]
    fn layers_are_put_together() {
        let mut views = views(&[("one", "c", None), ("two", "one", None), ("loop", "loop", None)]);
        let stage = |n: i32| rawdoc! { "$match": { "n": n } };
        for (name, n) in [("one", 1), ("two", 2)] {
            views.get_mut(name).unwrap().pipeline.push(stage(n));
        }
        let beneath = look_through(&Namespace::parse("d.two").unwrap(), &views).unwrap();
        assert_eq!(beneath.on.as_str(), "d.c");
        let mut both = RawArrayBuf::new();
        [1, 2].into_iter().for_each(|n| both.push(stage(n)));
        assert_eq!(beneath.pipeline, both);
        assert_eq!(look_through(&Namespace::parse("d.loop").unwrap(), &views).unwrap_err().code(), 165);
    }

    #[test]
    fn listings_are_read() {
        let reply = rawdoc! { "cursor": { "id": 0_i64, "ns": "d.$cmd.listCollections", "firstBatch": [
            { "name": "v", "type": "view", "options": { "viewOn": "c", "pipeline": [{ "$match": {} }] } },
            { "name": "odd", "type": "view", "options": {} },
        ] }, "ok": 1.0 };
        let mut views = Views::new();
        add_views(&reply, "firstBatch", &mut views);
        assert_eq!(views.len(), 1);
        assert_eq!(views["v"].on, "c");
    }
}
