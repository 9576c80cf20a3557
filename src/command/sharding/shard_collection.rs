//! `shardCollection`, as a recorded change of structure: nobody else changes the collection meanwhile. What fails or is
//! broken off before the commit in the catalog is undone, by another router if this one cannot; what is left to do after
//! it is done.

use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use futures_util::future::BoxFuture;
use rand::seq::SliceRandom;

use super::index_rules::{self, Support};
use super::prepare::{self, Described};
use super::strays;
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::Snapshot;
use crate::catalog::store::CatalogTxn;
use crate::catalog::{NewChunk, NewCollection};
use crate::command::ddl::job::{self, Driven, Failed, Job, pending, undone};
use crate::command::ddl::shard_view;
use crate::command::{Ctx, Reply, Request, ddl};
use crate::error::{Code, Error, Result};
use crate::key::{ShardKeyPattern, initial, text};

/// The arguments, checked as far as that goes without asking a shard.
struct Arguments {
    ns: Namespace,
    key: ShardKeyPattern,
    unique: bool,
    /// `collation: {locale: "simple"}` was given.
    simple_collation: bool,
    initial_chunks: Option<i64>,
}

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let args = Arguments::parse(request)?;
    if already_sharded(&*ctx.router.catalog.refresh().await?, &args)? {
        return Ok(reply(&args));
    }
    let names = vec![args.ns.as_str().to_owned()];
    job::run(ctx, ddl::SHARD_COLLECTION, names, args.to_doc()?, drive).await
}

/// Copies of the collection are made on other shards.
const COPYING: &str = "copying";
/// They are removed.
const UNDOING: &str = "undoing";
/// The catalog says that the collection is sharded; documents may lie where they were written meanwhile.
const SHARDED: &str = "sharded";

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let args = Arguments::from_doc(&job.intent.args()).map_err(undone)?;
        match job.intent.step().as_str() {
            "" if already_sharded(&job.ctx.snapshot, &args).map_err(undone)? => {}
            "" => {
                if let Err(error) = shard(job, &args).await {
                    return Err(failed(job, &args.ns, error).await);
                }
            }
            SHARDED => finish(job, &args.ns).await.map_err(pending)?,
            _ => {
                let error = Error::new(Code::InterruptedAtShutdown, "sharding the collection was broken off");
                return Err(failed(job, &args.ns, error.from_router()).await);
            }
        }
        Ok(reply(&args))
    })
}

/// Removes the copies that were made, now or later.
async fn failed(job: &mut Job, ns: &Namespace, why: Error) -> Failed {
    match job.intent.step().as_str() {
        "" => return undone(why),
        SHARDED => return pending(why),
        UNDOING => {}
        _ => {
            // Where the commit was made after all, this is refused.
            if let Err(error) = job.intent.advance(UNDOING, None).await {
                tracing::warn!(%ns, %error, "copies of a collection are not removed yet");
                return pending(why);
            }
        }
    }
    ddl::copies::after_failure(job, ns, why).await
}

fn reply(args: &Arguments) -> Reply {
    Reply::ok(rawdoc! { "collectionsharded": args.ns.as_str() })
}

impl Arguments {
    fn to_doc(&self) -> Result<Document> {
        Ok(doc! {
            "ns": self.ns.as_str(),
            "key": Document::try_from(self.key.to_doc())?,
            "unique": self.unique,
            "simpleCollation": self.simple_collation,
            "initialChunks": self.initial_chunks,
        })
    }

    fn from_doc(doc: &Document) -> Result<Self> {
        let key = doc.get_document("key").cloned().unwrap_or_default();
        Ok(Arguments {
            ns: Namespace::parse(doc.get_str("ns").unwrap_or_default())?,
            key: ShardKeyPattern::parse(&RawDocumentBuf::try_from(&key)?)?,
            unique: doc.get_bool("unique").unwrap_or(false),
            simple_collation: doc.get_bool("simpleCollation").unwrap_or(false),
            initial_chunks: doc.get_i64("initialChunks").ok(),
        })
    }

    fn parse(request: &Request) -> Result<Self> {
        let ns = request.full_namespace()?;
        check_namespace(&ns)?;
        let Some(key) = request.doc_arg("key")? else {
            return Err(Error::with_code(40414, "BSON field 'shardCollection.key' is missing but a required field"));
        };
        let key = ShardKeyPattern::parse(key)?;
        let unique = request.bool_arg("unique")?.unwrap_or(false);
        if unique && key.is_hashed() {
            return Err(Error::new(
                Code::InvalidOptions,
                "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by \
                 declaring an additional (non-hashed) unique index on the field.",
            ));
        }
        for unsupported in ["timeseries", "presplitHashedZones"] {
            if request.get(unsupported).is_some_and(|v| v.as_document().is_some() || crate::bsonx::is_true(v)) {
                return Err(Error::new(
                    Code::CommandNotSupported,
                    format!("shardCollection with '{unsupported}' is not supported yet"),
                ));
            }
        }
        let collation = request.doc_arg("collation")?;
        if let Some(collation) = collation
            && (collation.iter().count() != 1 || !index_rules::is_simple_collation(Some(collation)))
        {
            return Err(Error::new(
                Code::BadValue,
                format!(
                    "The collation for shardCollection must be {{locale: 'simple'}}, but found: {}",
                    text::document(collation)
                ),
            ));
        }
        let initial_chunks = request.int_arg("numInitialChunks")?;
        Ok(Arguments { ns, key, unique, simple_collation: collation.is_some(), initial_chunks })
    }
}

fn check_namespace(ns: &Namespace) -> Result<()> {
    let refused = |message: String| Err(Error::new(Code::IllegalOperation, message));
    match ns.db() {
        "config" => refused("only special collections in the config db may be sharded".to_owned()),
        "admin" | "local" => refused(format!("can't shard collections of the database {}", ns.db())),
        _ if ns.coll().starts_with("system.buckets.") => {
            Err(Error::with_code(5_731_501, format!("Cannot shard a time-series buckets collection directly: {ns}")))
        }
        _ if ns.is_system() => refused("can't shard system namespaces".to_owned()),
        _ => Ok(()),
    }
}

/// Whether the collection is sharded by this key already; AlreadyInitialized (23) if by another.
fn already_sharded(snapshot: &Snapshot, args: &Arguments) -> Result<bool> {
    match snapshot.collection(args.ns.as_str()) {
        None => Ok(false),
        Some(c) if *c.key.to_doc() == *args.key.to_doc() && c.unique == args.unique => Ok(true),
        Some(_) => {
            let message = format!("sharding already enabled for collection {}", args.ns);
            Err(Error::new(Code::AlreadyInitialized, message))
        }
    }
}

async fn shard(job: &mut Job, args: &Arguments) -> Result<()> {
    let ctx = &job.ctx;
    let Arguments { ns, key, .. } = args;
    let catalog = &ctx.router.catalog;
    let primary = catalog.create_database(ns.db(), None).await?;
    let mut model = prepare::describe(ctx, &primary, ns).await?;
    if let Some(found) = &model {
        check_collection(args, found)?;
    }
    let empty = model.is_none() || prepare::is_empty(ctx, &primary, ns).await?;
    let shards: Vec<ShardId> = {
        let snapshot = catalog.snapshot();
        let mut all: Vec<_> = snapshot.shards.values().filter(|s| !s.draining).map(|s| s.id.clone()).collect();
        all.shuffle(&mut rand::rng());
        all
    };
    let total = initial::initial_chunk_count(key, empty, args.initial_chunks, shards.len())?;
    if model.is_none() {
        prepare::create(ctx, &primary, ns).await?;
        model = prepare::describe(ctx, &primary, ns).await?;
    }
    let Some(model) = model else { return Err(vanished(ns)) };
    let Some(uuid) = model.uuid else { return Err(vanished(ns)) };
    ensure_index(ctx, args, &primary, &model, empty).await?;

    // Only a hash at the front tells how values are spread.
    let spread = empty && key.hashed_field() == Some(0);
    let owners = if spread { shards.as_slice() } else { std::slice::from_ref(&primary) };
    let chunks: Vec<NewChunk> = initial::initial_chunks(key, owners, total)?
        .into_iter()
        .map(|c| NewChunk { min: c.min, max: c.max, shard: c.shard })
        .collect();
    let indexes = shard_view::indexes(ctx, &primary, ns).await?;
    let mut others: Vec<&ShardId> = chunks.iter().map(|c| &c.shard).filter(|s| **s != primary).collect();
    others.sort();
    others.dedup();
    let distributed = chunks.len() > 1;
    let mut noted = job.intent.args();
    noted.extend(doc! {
        "uuid": bson::Binary::from_uuid(uuid), "primary": &*primary, "distributed": distributed,
    });
    job.intent.advance(COPYING, Some(noted)).await?;
    let copies = others.iter().map(|s| prepare::copy_collection(ctx, s, ns, &model, uuid, &indexes));
    futures_util::future::try_join_all(copies).await?;
    ctx.router.failpoints.crash_point("shardCollection.copied");
    let new = NewCollection {
        ns: ns.clone(),
        uuid,
        key: key.clone(),
        unique: args.unique,
        default_collation: model.collation().map(RawDocument::to_owned),
        primary: primary.clone(),
        chunks,
    };
    commit(job, &new).await?;
    ctx.router.failpoints.crash_point("ddl.committed");
    finish(job, ns).await
}

/// Cutting the key space of an empty collection, documents written meanwhile by the old routing would lie on the wrong
/// shard: this router's writes wait until the commit is made, those of others are looked for afterwards.
async fn commit(job: &Job, new: &NewCollection) -> Result<()> {
    let router = &job.ctx.router;
    let closed = (new.chunks.len() > 1).then(|| router.ddl.gate.close(&[new.ns.as_str().to_owned()]));
    if let Some(closed) = &closed {
        closed.drain(&router.ops, job.ctx.op.id()).await?;
        if !prepare::is_empty(&job.ctx, &new.primary, &new.ns).await? {
            return Err(Error::new(
                Code::ConflictingOperationInProgress,
                format!("Documents were inserted into {} while it was being sharded; try again", new.ns),
            ));
        }
    }
    let commit = async |txn: CatalogTxn| router.catalog.shard_collection(new, &txn).await;
    job.intent.advance_with(SHARDED, None, false, commit).await
}

/// What is left to do after the commit: all routers learn of it, and what they wrote before goes where it belongs.
async fn finish(job: &Job, ns: &Namespace) -> Result<()> {
    let catalog = &job.ctx.router.catalog;
    catalog.settle().await;
    let (args, snapshot) = (job.intent.args(), catalog.snapshot());
    match (snapshot.collection(ns.as_str()), args.get_str("primary")) {
        (Some(routing), Ok(primary)) if args.get_bool("distributed").unwrap_or(false) => {
            strays::collect(&job.ctx, &primary.into(), routing).await
        }
        _ => Ok(()),
    }
}

fn vanished(ns: &Namespace) -> Error {
    Error::new(Code::ConflictingOperationInProgress, format!("{ns} was dropped while it was being sharded; try again"))
}

/// Refuses what cannot be sharded: views, time series, capped collections, a default collation not overridden.
fn check_collection(args: &Arguments, found: &Described) -> Result<()> {
    let ns = &args.ns;
    match found.kind.as_str() {
        "view" => {
            return Err(Error::new(
                Code::CommandNotSupportedOnView,
                format!("Namespace {ns} is a view, not a collection; views cannot be sharded"),
            ));
        }
        "timeseries" => {
            return Err(Error::new(
                Code::CommandNotSupported,
                format!("{ns} is a time-series collection; sharding those is not supported yet"),
            ));
        }
        _ => {}
    }
    if crate::bsonx::truthy(&found.options, "capped").unwrap_or(false) {
        return Err(Error::new(Code::InvalidOptions, "can't shard a capped collection"));
    }
    match found.collation() {
        Some(collation) if !index_rules::is_simple_collation(Some(collation)) && !args.simple_collation => {
            Err(Error::new(
                Code::BadValue,
                format!(
                    "Collection has default collation: {}. Must specify collation {{locale: 'simple'}}",
                    text::document(collation)
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Finds an index that supports the key on the primary shard, or makes one if there are no documents yet.
async fn ensure_index(ctx: &Ctx, args: &Arguments, primary: &ShardId, model: &Described, empty: bool) -> Result<()> {
    let indexes = prepare::indexes(ctx, primary, &args.ns, &args.key).await?;
    match index_rules::check_support(args.ns.as_str(), &indexes, &args.key, args.unique)? {
        Support::Found => Ok(()),
        Support::Unusable(why) => Err(Error::new(Code::InvalidOptions, why)),
        Support::Missing if empty => {
            let simple = !index_rules::is_simple_collation(model.collation());
            prepare::create_key_index(ctx, primary, &args.ns, &args.key, args.unique, simple).await
        }
        Support::Missing => Err(Error::new(
            Code::InvalidOptions,
            "Please create an index that starts with the proposed shard key before sharding the collection. ",
        )),
    }
}
