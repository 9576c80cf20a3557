//! `collStats`: the owners' replies added up; the scale is applied after adding.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use futures_util::future::BoxFuture;

use super::raw::stripped;
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("collStats", Access::Read, "size and storage of a collection", coll_stats)
        .aliases(&["collstats"])
        .secondary_ok()];

/// Sizes that are added over the shards and divided by the scale.
const SCALED: &[&str] = &["size", "storageSize", "totalIndexSize", "totalSize", "maxSize", "freeStorageSize"];

fn coll_stats<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let scale = scale(request)?;
        let routing = ctx.snapshot.collection(ns.as_str());
        let shards: Vec<ShardId> = match routing {
            Some(routing) => routing.table.owners().to_vec(),
            None => ctx.primary_shard(ns.db()).into_iter().collect(),
        };
        if shards.is_empty() {
            return Err(Error::new(Code::NamespaceNotFound, format!("Database {} not found", ns.db())));
        }
        // Shards are asked unscaled: rounding each would lose what the sum shows.
        let body = Writer::copy_without(request.body().as_bytes(), |key| key == b"scale").finish();
        let pref = ReadPreference::from_command(request.body())?;
        let requests: Vec<_> = shards.iter().map(|s| (s.clone(), OutMsg::new(body.clone()))).collect();
        let mut replies = Vec::new();
        for (shard, outcome) in ctx.scatter(&requests, &pref, Retryable::Read).await {
            replies.push((shard, stripped(outcome?.into_result()?.doc())));
        }
        let mut reply = RawDocumentBuf::new();
        reply.append(cstr!("sharded"), routing.is_some());
        if routing.is_none() {
            reply.append(cstr!("primary"), &*shards[0]);
        }
        let chunks = routing.map_or(1, |r| r.table.len() as i64);
        join(&mut reply, ns.as_str(), &replies, scale, chunks);
        Ok(Reply::ok(reply))
    })
}

fn scale(request: &Request) -> Result<i64> {
    match request.int_arg("scale")? {
        None => Ok(1),
        Some(n) if n >= 1 => Ok(n),
        Some(_) => Err(Error::new(Code::BadValue, "BSON field 'scale' value must be >= 1")),
    }
}

/// A number as the server shows sums: an int where it fits.
fn append_number(doc: &mut RawDocumentBuf, key: &str, value: i64) {
    let Ok(key) = bson::raw::CString::try_from(key) else { return };
    match i32::try_from(value) {
        Ok(small) => doc.append(&key, small),
        Err(_) => doc.append(&key, value),
    }
}

fn join(out: &mut RawDocumentBuf, ns: &str, replies: &[(ShardId, RawDocumentBuf)], scale: i64, chunks: i64) {
    // What cannot be added is shown as the first shard has it.
    let Some((_, first)) = replies.first() else { return };
    for name in ["capped", "max", "wiredTiger", "indexDetails", "clustered", "indexBuilds"] {
        copy(out, first, name);
    }
    out.append(cstr!("ns"), ns);
    let sum = |name: &str| replies.iter().map(|(_, r)| bsonx::int(r, name).unwrap_or(0)).sum::<i64>();
    let (count, size) = (sum("count"), sum("size"));
    append_number(out, "count", count);
    for name in SCALED.iter().filter(|name| **name != "freeStorageSize" && **name != "maxSize") {
        append_number(out, name, sum(name) / scale);
    }
    let mut index_sizes: Vec<(String, i64)> = Vec::new();
    for (_, reply) in replies {
        for (name, value) in bsonx::doc(reply, "indexSizes").into_iter().flat_map(|d| d.iter().flatten()) {
            let value = bsonx::as_int(value).unwrap_or(0);
            match index_sizes.iter_mut().find(|(known, _)| known == name.as_str()) {
                Some((_, total)) => *total += value,
                None => index_sizes.push((name.as_str().to_owned(), value)),
            }
        }
    }
    let mut sizes = RawDocumentBuf::new();
    for (name, value) in index_sizes {
        append_number(&mut sizes, &name, value / scale);
    }
    out.append(cstr!("indexSizes"), sizes);
    out.append(cstr!("avgObjSize"), if count > 0 { size as f64 / count as f64 } else { 0.0 });
    append_number(out, "maxSize", sum("maxSize") / scale);
    if bsonx::get(first, "freeStorageSize").is_some() {
        append_number(out, "freeStorageSize", sum("freeStorageSize") / scale);
    }
    append_indexes(out, replies);
    if let Some(series) = bsonx::doc(first, "timeseries") {
        out.append(cstr!("timeseries"), series.to_owned());
    }
    append_number(out, "scaleFactor", scale);
    append_number(out, "nchunks", chunks);
    let mut shards = RawDocumentBuf::new();
    for (shard, reply) in replies {
        if let Ok(name) = bson::raw::CString::try_from(&**shard) {
            shards.append(&name, scaled(reply, scale));
        }
    }
    out.append(cstr!("shards"), shards);
}

/// `nindexes` is the largest; shards that differ are a fault worth telling.
fn append_indexes(out: &mut RawDocumentBuf, replies: &[(ShardId, RawDocumentBuf)]) {
    let counts = replies.iter().map(|(_, r)| bsonx::int(r, "nindexes").unwrap_or(0));
    let (most, least) = (counts.clone().max().unwrap_or(0), counts.min().unwrap_or(0));
    append_number(out, "nindexes", most);
    if most != least {
        out.append(cstr!("warning"), "indexes don't all match - ok if ensureIndex is running");
    }
}

fn copy(out: &mut RawDocumentBuf, from: &RawDocument, name: &str) {
    if let (Some(value), Ok(name)) = (bsonx::get(from, name), bson::raw::CString::try_from(name)) {
        out.append(&name, value);
    }
}

/// One shard's reply as it would be with the scale.
fn scaled(reply: &RawDocument, scale: i64) -> RawDocumentBuf {
    if scale == 1 {
        return reply.to_owned();
    }
    let mut out = RawDocumentBuf::new();
    for (name, value) in reply.iter().flatten() {
        match value {
            _ if SCALED.contains(&name.as_str()) => {
                append_number(&mut out, name.as_str(), bsonx::as_int(value).unwrap_or(0) / scale);
            }
            RawBsonRef::Document(sizes) if name.as_str() == "indexSizes" => {
                let mut inner = RawDocumentBuf::new();
                for (index, size) in sizes.iter().flatten() {
                    append_number(&mut inner, index.as_str(), bsonx::as_int(size).unwrap_or(0) / scale);
                }
                out.append(name, inner);
            }
            _ if name.as_str() == "scaleFactor" => append_number(&mut out, "scaleFactor", scale),
            value => out.append(name, value),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bson::rawdoc;

    use super::*;

    #[test]
    fn sums_then_scales() {
        let one = |n: i32, size: i32| {
            rawdoc! {
                "ns": "d.c", "size": size, "count": n, "avgObjSize": 1, "storageSize": 1500, "capped": false,
                "nindexes": n, "indexSizes": {"_id_": 1500}, "totalIndexSize": 1500, "totalSize": 3000, "scaleFactor": 1, "ok": 1.0,
            }
        };
        let replies = [("a".into(), one(2, 1500)), ("b".into(), one(1, 1500))];
        let mut out = RawDocumentBuf::new();
        join(&mut out, "d.c", &replies, 1024, 5);
        let int = |name: &str| bsonx::int(&out, name);
        assert_eq!(
            (int("size"), int("count"), int("storageSize"), int("nchunks")),
            (Some(2), Some(3), Some(2), Some(5))
        );
        assert_eq!((int("nindexes"), int("scaleFactor")), (Some(2), Some(1024)));
        assert!(bsonx::str(&out, "warning").is_some());
        assert!(matches!(bsonx::get(&out, "avgObjSize"), Some(RawBsonRef::Double(d)) if d == 1000.0));
        let shards = bsonx::doc(&out, "shards").unwrap();
        assert_eq!(bsonx::int(bsonx::doc(shards, "a").unwrap(), "size"), Some(1));
        assert_eq!(bsonx::int(bsonx::doc(&out, "indexSizes").unwrap(), "_id_"), Some(2));
    }
}
