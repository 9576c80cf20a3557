//! What the router knows: `flushRouterConfig`, `getShardVersion`, `getShardMap`.

use std::collections::BTreeMap;

use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::router::CONFIG_SHARD;

/// Reads the catalog anew, whatever the argument names: one collection costs little less than all.
pub async fn flush(ctx: &Ctx, request: &Request) -> Result<Reply> {
    match request.argument()? {
        RawBsonRef::String("") => {
            return Err(Error::new(Code::InvalidNamespace, "flushRouterConfig takes 1, a database or a namespace"));
        }
        RawBsonRef::String(_) | RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) => {}
        RawBsonRef::Boolean(_) => {}
        other => {
            return Err(Error::new(
                Code::TypeMismatch,
                format!(
                    "flushRouterConfig takes 1, a database or a namespace, not {}",
                    crate::bsonx::type_name(other.element_type())
                ),
            ));
        }
    }
    ctx.router.catalog.reload().await?;
    Ok(Reply::ok(rawdoc! { "flushed": true }))
}

/// `getShardVersion: "db.coll"`; with a database's name its version.
pub async fn shard_version(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let snapshot = ctx.router.catalog.refresh().await?;
    let name = request.argument()?.as_str().unwrap_or_default();
    if let Some(db) = snapshot.databases.get(name) {
        let version = rawdoc! {
            "uuid": crate::catalog::model::uuid_bson(db.uuid),
            "timestamp": db.timestamp,
            "lastMod": db.last_mod,
        };
        return Ok(Reply::ok(rawdoc! { "dbVersion": version, "primaryShard": &*db.primary }));
    }
    let ns = request.full_namespace()?;
    let Some(routing) = snapshot.collection(ns.as_str()) else {
        return Err(Error::new(Code::NamespaceNotSharded, format!("Collection {ns} is not sharded.")));
    };
    let mut reply = rawdoc! {
        "version": routing.version().timestamp(),
        "versionEpoch": routing.epoch,
        "versionTimestamp": routing.timestamp,
    };
    if request.bool_arg("fullMetadata")? == Some(true) {
        let mut chunks = bson::RawArrayBuf::new();
        let mut size = 0;
        for chunk in routing.table.iter() {
            let doc =
                rawdoc! { "min": chunk.min().to_owned(), "max": chunk.max().to_owned(), "shard": &**chunk.shard() };
            size += doc.as_bytes().len();
            if size > 8 << 20 {
                break;
            }
            chunks.push(doc);
        }
        reply.append(cstr!("chunks"), chunks);
    }
    Ok(Reply::ok(reply))
}

pub async fn shard_map(ctx: &Ctx, _request: &Request) -> Result<Reply> {
    let config = ctx.router.config.catalog.config_db();
    let shards = ctx.snapshot.shards.values().map(|s| (&*s.id, s.host.as_str()));
    let all: BTreeMap<&str, &str> = shards.chain(config.as_deref().map(|host| (CONFIG_SHARD, host))).collect();
    let (mut map, mut hosts, mut strings) = (RawDocumentBuf::new(), RawDocumentBuf::new(), RawDocumentBuf::new());
    for (id, host) in all {
        map.append(name(id)?, host);
        strings.append(name(host)?, id);
        for member in host.split_once('/').map_or(host, |(_, members)| members).split(',') {
            hosts.append(name(member)?, id);
        }
    }
    Ok(Reply::ok(rawdoc! { "map": map, "hosts": hosts, "connStrings": strings }))
}

fn name(text: &str) -> Result<bson::raw::CString> {
    Ok(bson::raw::CString::try_from(text)?)
}
