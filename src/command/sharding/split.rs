//! `split` and `mergeChunks`. Some of their failures carry no code, as recorded from mongos.

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::catalog::snapshot::{CollectionRouting, Snapshot};
use crate::catalog::table::ChunkInfo;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::key::{text, value};
use crate::shard::Retryable;

use super::plain_failure;

/// A failure without a code, or a proper error.
enum Failure {
    Plain(String),
    Error(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

fn answer(done: std::result::Result<(), Failure>) -> Result<Reply> {
    match done {
        Ok(()) => Ok(Reply::empty_ok()),
        Err(Failure::Plain(message)) => Ok(plain_failure(message)),
        Err(Failure::Error(e)) => Err(e),
    }
}

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    answer(split(ctx, request).await)
}

/// The chunk to split and, for `middle`, where.
struct Wanted {
    chunk: ChunkInfo,
    at: Option<RawDocumentBuf>,
}

/// How often the chunk is looked up anew because another operation changed it meanwhile.
const ATTEMPTS: usize = 10;

async fn split(ctx: &Ctx, request: &Request) -> std::result::Result<(), Failure> {
    let ns = request.full_namespace()?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let snapshot = ctx.router.catalog.refresh().await?;
        let routing = sharded(&snapshot, &ns)?;
        let wanted = wanted(request, routing)?;
        let at = match wanted.at {
            Some(at) => at,
            None => median(ctx, &ns, routing, &wanted.chunk).await?,
        };
        let (here, low) = (routing.key.encode(&at)?, routing.key.encode(&wanted.chunk.min)?);
        if here == low || here == routing.key.encode(&wanted.chunk.max)? {
            return Err(Failure::Plain(format!(
                "new split key {} is a boundary key of existing chunk {}",
                text::document(&at),
                text::range(&wanted.chunk.min, &wanted.chunk.max)
            )));
        }
        match ctx.router.catalog.split_chunk(&ns, &wanted.chunk.min, &wanted.chunk.max, &[at]).await {
            Ok(()) => return Ok(()),
            Err(e) if e.is(Code::StaleChunkHistory) => last = Some(e),
            Err(e) => return Err(Failure::Error(e)),
        }
        ctx.op.check()?;
    }
    Err(Failure::Error(last.unwrap_or_else(|| Error::internal("a split was never tried"))))
}

fn sharded<'a>(snapshot: &'a Snapshot, ns: &Namespace) -> Result<&'a CollectionRouting> {
    match snapshot.collection(ns.as_str()) {
        Some(routing) => Ok(routing),
        None => Err(Error::new(Code::NamespaceNotSharded, format!("Collection {ns} is not sharded."))),
    }
}

fn wanted(request: &Request, routing: &CollectionRouting) -> std::result::Result<Wanted, Failure> {
    let plain = |message: &str| Err(Failure::Plain(message.to_owned()));
    let (find, middle, bounds) = (request.doc_arg("find")?, request.doc_arg("middle")?, request.array_arg("bounds")?);
    match (find, middle, bounds) {
        (Some(_), Some(_), _) => plain("cannot specify find and middle together"),
        (Some(_), _, Some(_)) => plain("cannot specify bounds and find at the same time"),
        (_, Some(_), Some(_)) => plain("cannot specify bounds and middle together"),
        (None, None, None) => plain("need to specify find/bounds or middle"),
        (Some(find), None, None) => Ok(Wanted { chunk: chunk_of_query(routing, find)?, at: None }),
        (None, Some(middle), None) => {
            if routing.key.validate_bound(middle).is_err() {
                return Err(Failure::Plain(format!(
                    "new split key {} is not valid for shard key pattern {}",
                    text::document(middle),
                    text::document(routing.key.to_doc())
                )));
            }
            let chunk = routing.table.chunk_for(&routing.key.encode(middle)?).to_info();
            Ok(Wanted { chunk, at: Some(middle.to_owned()) })
        }
        (None, None, Some(bounds)) => {
            let (min, max) = two_bounds(bounds, routing)?;
            let exact = routing.table.chunk_exact(&routing.key.encode(min)?, &routing.key.encode(max)?);
            match exact {
                Some(chunk) => Ok(Wanted { chunk: chunk.to_info(), at: None }),
                None => Err(Failure::Plain(format!(
                    "no chunk found with the shard key bounds [{}, {})",
                    text::document(min),
                    text::document(max)
                ))),
            }
        }
    }
}

/// The chunk that owns the documents with this key (given unhashed, as a query gives it).
fn chunk_of_query(routing: &CollectionRouting, find: &RawDocument) -> std::result::Result<ChunkInfo, Failure> {
    match key_of_query(routing, find)? {
        Some(key) => Ok(routing.table.chunk_for(&key).to_info()),
        None => Err(Failure::Plain(format!("no shard key found in chunk query {}", text::document(find)))),
    }
}

/// The encoded key where the query gives every field of it one value: `{"a.b": 1}`, `{a: {b: 1}}`, `{k: {$eq: 1}}`.
fn key_of_query(routing: &CollectionRouting, find: &RawDocument) -> Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    for (i, path) in routing.key.paths().enumerate() {
        let Some(found) = bsonx::get(find, path).or_else(|| by_path(find, path)) else { return Ok(None) };
        let wanted = match found.as_document().and_then(|d| d.iter().flatten().next()) {
            Some((op, value)) if op.as_str() == "$eq" => value,
            Some((op, _)) if op.as_str().starts_with('$') => return Ok(None),
            _ => found,
        };
        if wanted.as_array().is_some() {
            return Ok(None);
        }
        value::with(wanted, |v| routing.key.push_field(&mut out, i, v))?;
    }
    Ok(Some(out))
}

fn by_path<'a>(doc: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    match path.split_once('.') {
        Some((first, rest)) => by_path(bsonx::doc(doc, first)?, rest),
        None => bsonx::get(doc, path),
    }
}

fn two_bounds<'a>(
    bounds: &'a RawArray,
    routing: &CollectionRouting,
) -> std::result::Result<(&'a RawDocument, &'a RawDocument), Failure> {
    let docs: Vec<_> = bounds.into_iter().flatten().map(|v: RawBsonRef<'_>| v.as_document()).collect();
    let [Some(min), Some(max)] = docs.as_slice() else {
        return Err(Failure::Plain(
            "bounds must be an array of two documents: the lower and the upper bound".to_owned(),
        ));
    };
    if routing.key.validate_bound(min).is_err() || routing.key.validate_bound(max).is_err() {
        return Err(Failure::Plain(format!(
            "shard key bounds {} are not valid for shard key pattern {}",
            text::range(min, max),
            text::document(routing.key.to_doc())
        )));
    }
    Ok((min, max))
}

/// The median of the chunk's documents by the shard's index.
async fn median(
    ctx: &Ctx,
    ns: &Namespace,
    routing: &CollectionRouting,
    chunk: &ChunkInfo,
) -> std::result::Result<RawDocumentBuf, Failure> {
    let command = rawdoc! {
        "splitVector": ns.as_str(),
        "keyPattern": routing.key.to_doc().to_owned(),
        "min": chunk.min.clone(),
        "max": chunk.max.clone(),
        "force": true,
    };
    let reply = ctx.run_on_shard(&chunk.shard, "admin", command, Retryable::Read).await;
    let reply = match reply {
        Ok(reply) => Some(reply),
        // Said of a collection without any data, whatever the command asks for.
        Err(e) if e.is(Code::InvalidOptions) && e.message().contains("max chunk size") => None,
        Err(e) => return Err(Failure::Error(e)),
    };
    let keys = reply.as_ref().and_then(|r| bsonx::array(r.doc(), "splitKeys"));
    match keys.and_then(|k| k.into_iter().flatten().next()).and_then(|v| v.as_document()) {
        Some(key) => Ok(key.to_owned()),
        None => {
            Err(Failure::Error(Error::new(Code::CannotSplit, "Unable to find median in chunk because chunk is empty.")))
        }
    }
}

pub async fn merge(ctx: &Ctx, request: &Request) -> Result<Reply> {
    answer(merge_chunks(ctx, request).await)
}

async fn merge_chunks(ctx: &Ctx, request: &Request) -> std::result::Result<(), Failure> {
    let ns = request.full_namespace()?;
    let snapshot = ctx.router.catalog.refresh().await?;
    let routing = sharded(&snapshot, &ns)?;
    let Some(bounds) = request.array_arg("bounds")? else {
        return Err(Failure::Error(Error::new(Code::NoSuchKey, "Missing expected field \"bounds\"")));
    };
    let (min, max) = two_bounds(bounds, routing)?;
    ctx.router.catalog.merge_chunks(&ns, min, max).await?;
    Ok(())
}
