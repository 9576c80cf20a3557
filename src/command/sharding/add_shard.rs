//! `addShard`: looks at a replica set from outside and, if nothing speaks against it, makes it a shard.

use std::time::{Duration, Instant};

use bson::{Document, doc, rawdoc};
use mongodb::{Client, Database};

use crate::catalog::driver::{self, Target};
use crate::catalog::model::{ShardId, collection};
use crate::catalog::replset;
use crate::catalog::snapshot::Snapshot;
use crate::catalog::{NewShard, existing_shard};
use crate::command::admin::rw_concern;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::router::CONFIG_SHARD;

/// How long one member is waited for, and how long a primary.
const SEED_TIMEOUT: Duration = Duration::from_secs(5);
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(20);
/// The oldest server that can be a shard: MongoDB 6.0.
const MIN_WIRE_VERSION: i32 = 17;
/// Where a shard keeps which cluster it belongs to, in its database `config`.
const IDENTITY: &str = "mosaic.identity";

/// The seeds as given: `set/host:port,host:port`.
struct Seeds<'a> {
    text: &'a str,
    set: &'a str,
    hosts: Vec<String>,
}

fn failed(message: String) -> Error {
    Error::new(Code::OperationFailed, message)
}

impl<'a> Seeds<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let (set, hosts) = text.split_once('/').unwrap_or(("", text));
        let hosts: Vec<String> =
            hosts.split(',').filter(|h| !h.is_empty()).map(|h| with_port(&h.to_ascii_lowercase())).collect();
        if hosts.is_empty() {
            return Err(Error::new(
                Code::FailedToParse,
                format!("'{text}' names no host; a shard is given as <setName>/<host:port>,<host:port>"),
            ));
        }
        Ok(Seeds { text, set, hosts })
    }
}

fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(h, port)| port.parse::<u16>().is_ok() && !h.ends_with(':'));
    if has_port { host.to_owned() } else { format!("{host}:27017") }
}

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let argument = request.argument()?;
    let Some(text) = argument.as_str() else {
        return Err(Error::new(Code::TypeMismatch, "addShard takes the string <setName>/<host:port>,<host:port>"));
    };
    let seeds = Seeds::parse(text)?;
    let name = request.str_arg("name")?;
    if name == Some("") {
        return Err(Error::new(Code::BadValue, "shard name cannot be empty"));
    }
    let id = ctx.op.bounded(add(ctx, &seeds, name)).await??;
    Ok(Reply::ok(rawdoc! { "shardAdded": &*id }))
}

async fn add(ctx: &Ctx, seeds: &Seeds<'_>, name: Option<&str>) -> Result<ShardId> {
    let catalog = &ctx.router.catalog;
    let snapshot = catalog.refresh().await?;
    let key_file = ctx.router.shards.settings().key_file.as_deref();
    let hello = first_answer(seeds, key_file).await?;
    check_kind(seeds, &hello)?;
    let set = hello.get_str("setName").unwrap_or_default();
    let id: ShardId = name.unwrap_or(set).into();
    if &*id == CONFIG_SHARD {
        return Err(Error::new(Code::BadValue, "use of shard replica set with name 'config' is not allowed"));
    }
    let target = Target { hosts: &seeds.hosts, set: Some(set), key_file, selection: PRIMARY_TIMEOUT };
    let client = driver::client(&target)?;
    let hello = primary_hello(&client, seeds).await?;
    let members = members(&hello);
    if let Some(stranger) = seeds.hosts.iter().find(|h| !members.contains(*h)) {
        return Err(failed(format!(
            "in seed list {}, host {stranger} does not belong to replica set {set}; its members are {}",
            seeds.text,
            members.join(",")
        )));
    }
    let host = format!("{set}/{}", members.join(","));
    if let Some(existing) = existing_shard(&snapshot, &id, &host)? {
        return Ok(existing.id.clone());
    }
    check_no_catalog(&client, seeds).await?;
    check_identity(&client, snapshot.cluster_id, seeds).await?;
    let databases = local_databases(&client, seeds).await?;
    let own = own_write_concern(&client, seeds).await?;
    check_write_concern(own, &snapshot, seeds)?;
    set_defaults(&client, &snapshot, seeds).await?;
    let new = NewShard { id: id.clone(), host, databases };
    let id = catalog.add_shard(new).await?;
    // If they were changed meanwhile, that may have been too early to reach this shard.
    set_defaults(&client, &catalog.snapshot(), seeds).await?;
    catalog.settle().await;
    mark(&client, snapshot.cluster_id, &id).await;
    Ok(id)
}

/// The `hello` of the first seed that answers; a set that is just starting is waited for.
async fn first_answer(seeds: &Seeds<'_>, key_file: Option<&str>) -> Result<Document> {
    let started = Instant::now();
    let mut last = None;
    while last.is_none() || started.elapsed() < PRIMARY_TIMEOUT {
        match one_round(seeds, key_file).await {
            Ok(hello) => return Ok(hello),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(String::new, |e| e.message().to_owned());
    Err(Error::new(
        Code::FailedToSatisfyReadPreference,
        format!(
            "Could not find host matching read preference {{ mode: \"primary\" }} for set {}: {why}",
            if seeds.set.is_empty() { seeds.text } else { seeds.set }
        ),
    ))
}

async fn one_round(seeds: &Seeds<'_>, key_file: Option<&str>) -> Result<Document> {
    let mut last = failed("no host".to_owned());
    for host in &seeds.hosts {
        let hosts = std::slice::from_ref(host);
        let client = driver::client(&Target { hosts, set: None, key_file, selection: SEED_TIMEOUT })?;
        match client.database("admin").run_command(doc! { "hello": 1 }).await {
            Ok(hello) => return Ok(hello),
            Err(error) => last = driver::error(error, seeds.set),
        }
    }
    Err(last)
}

/// Refuses what is no replica set of plain shard members, or another one than was named.
fn check_kind(seeds: &Seeds<'_>, hello: &Document) -> Result<()> {
    let text = seeds.text;
    if hello.get_str("msg").is_ok_and(|m| m == "isdbgrid") {
        return Err(Error::new(Code::IllegalOperation, format!("cannot add {text} as a shard since it is a router")));
    }
    if hello.contains_key("configsvr") {
        return Err(failed(format!("Cannot add {text} as a shard since it is a config server")));
    }
    let Ok(set) = hello.get_str("setName") else {
        return Err(failed(match hello.contains_key("isreplicaset") {
            true => format!("Cannot add {text} as a shard: its replica set is not initiated yet"),
            false => format!("Cannot add {text} as a shard: it is a standalone server; shards are replica sets"),
        }));
    };
    if seeds.set.is_empty() {
        return Err(failed(format!(
            "host is part of set {set}; use replica set url format <setname>/<server1>,<server2>, ..."
        )));
    }
    if seeds.set != set {
        return Err(failed(format!(
            "the provided connection string ({text}) does not match the actual set name {set}"
        )));
    }
    let wire = hello.get_i32("maxWireVersion").unwrap_or(0);
    if wire < MIN_WIRE_VERSION {
        return Err(failed(format!("Cannot add {text} as a shard: it runs a server older than MongoDB 6.0")));
    }
    Ok(())
}

async fn primary_hello(client: &Client, seeds: &Seeds<'_>) -> Result<Document> {
    let admin = client.database("admin");
    let reply = admin.run_command(doc! { "hello": 1 }).await;
    reply.map_err(|e| failed(format!("Cannot add {} as a shard: no primary found: {e}", seeds.text)))
}

/// All data-bearing members as the set itself names them.
fn members(hello: &Document) -> Vec<String> {
    let list = |field| hello.get_array(field).ok().into_iter().flatten();
    list("hosts").chain(list("passives")).filter_map(|h| h.as_str().map(str::to_ascii_lowercase)).collect()
}

fn own_config(client: &Client) -> Database {
    client.database("config")
}

/// Refuses a set that another cluster, this kind or a genuine one, uses as its shard.
async fn check_identity(client: &Client, cluster_id: bson::oid::ObjectId, seeds: &Seeds<'_>) -> Result<()> {
    let probe = |e| driver::error(e, seeds.set);
    let genuine = client.database("admin").collection::<Document>("system.version");
    if genuine.find_one(doc! { "_id": "shardIdentity" }).await.map_err(probe)?.is_some() {
        return Err(Error::new(
            Code::IllegalOperation,
            format!("{} is a shard of a MongoDB sharded cluster already (admin.system.version says so)", seeds.text),
        ));
    }
    let mark = own_config(client).collection::<Document>(IDENTITY);
    match mark.find_one(doc! { "_id": "shardIdentity" }).await.map_err(probe)? {
        Some(found) if found.get_object_id("clusterId").ok() != Some(cluster_id) => Err(Error::new(
            Code::IllegalOperation,
            format!(
                "{} is shard '{}' of another cluster. If that cluster is gone, remove the mark on this replica set: \
                 db.getSiblingDB(\"config\").getCollection(\"{IDENTITY}\").drop()",
                seeds.text,
                found.get_str("shardName").unwrap_or("?")
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses a set that holds a catalog, this cluster's or another's: clients of a shard could change it.
async fn check_no_catalog(client: &Client, seeds: &Seeds<'_>) -> Result<()> {
    let catalog = client.database(replset::DATABASE).collection::<Document>(collection::CATALOG);
    match catalog.find_one(doc! { "_id": "version" }).await.map_err(|e| driver::error(e, seeds.set))? {
        Some(_) => Err(failed(format!(
            "Cannot add {} as a shard: it is a config replica set; its database '{}' holds a catalog",
            seeds.text,
            replset::DATABASE
        ))),
        None => Ok(()),
    }
}

/// The write concern that is set on the replica set itself as its default.
async fn own_write_concern(client: &Client, seeds: &Seeds<'_>) -> Result<Option<Document>> {
    let asked = client.database("admin").run_command(doc! { "getDefaultRWConcern": 1 }).await;
    let defaults = asked.map_err(|e| driver::error(e, seeds.set))?;
    Ok(match defaults.get_str("defaultWriteConcernSource") {
        Ok("global") => defaults.get_document("defaultWriteConcern").cloned().ok(),
        _ => None,
    })
}

/// Refuses a set whose default write concern is not the cluster's: its users rely on it.
fn check_write_concern(own: Option<Document>, snapshot: &Snapshot, seeds: &Seeds<'_>) -> Result<()> {
    let Some(own) = own else { return Ok(()) };
    let set = rw_concern::for_new_shard(snapshot)?;
    let wanted = set.as_ref().and_then(|c| c.get_document("defaultWriteConcern").ok());
    let same = |a: &Document, b: &Document| {
        let field =
            |d: &Document, name| d.get(name).map(|v| v.as_i32().map_or_else(|| v.to_string(), |n| n.to_string()));
        field(a, "w") == field(b, "w") && a.get_bool("j").ok() == b.get_bool("j").ok()
    };
    match wanted {
        Some(wanted) if same(wanted, &own) => Ok(()),
        Some(wanted) => Err(failed(format!(
            "Cannot add {} as a shard: its default write concern {own} is not the cluster's, {wanted}; make them the \
             same with setDefaultRWConcern",
            seeds.text
        ))),
        None => Err(failed(format!(
            "Cannot add {} as a shard: a default write concern is set on it ({own}) but none on the cluster; set the \
             same on the cluster first, with setDefaultRWConcern",
            seeds.text
        ))),
    }
}

/// Makes the cluster's default read and write concern the shard's.
async fn set_defaults(client: &Client, snapshot: &Snapshot, seeds: &Seeds<'_>) -> Result<()> {
    let Some(command) = rw_concern::for_new_shard(snapshot)? else { return Ok(()) };
    let done = client.database("admin").run_command(command).await;
    done.map(|_| ()).map_err(|e| driver::error(e, seeds.set).context("The cluster's default concerns"))
}

/// Marks the set as this cluster's shard. It is a safeguard only: a failure is logged.
async fn mark(client: &Client, cluster_id: bson::oid::ObjectId, id: &ShardId) {
    let fields = doc! { "$set": { "clusterId": cluster_id, "shardName": &**id } };
    let mark = own_config(client).collection::<Document>(IDENTITY);
    if let Err(error) = mark.update_one(doc! { "_id": "shardIdentity" }, fields).upsert(true).await {
        tracing::warn!(%error, shard = %id, "the new shard could not be marked as part of this cluster");
    }
}

/// The databases that the cluster adopts.
async fn local_databases(client: &Client, seeds: &Seeds<'_>) -> Result<Vec<String>> {
    let names = client.list_database_names().await.map_err(|e| driver::error(e, seeds.set))?;
    let own = ["admin", "local", "config", replset::DATABASE];
    Ok(names.into_iter().filter(|n| !own.contains(&n.as_str())).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn seeds_are_read() {
        let seeds = Seeds::parse("rs0/A:1,b").unwrap();
        assert_eq!((seeds.set, seeds.hosts), ("rs0", vec!["a:1".to_owned(), "b:27017".to_owned()]));
        assert_eq!(Seeds::parse("h:5").unwrap().set, "");
        assert!(Seeds::parse("rs0/").is_err());
        assert_eq!(with_port("[::1]:5"), "[::1]:5");
    }

    #[test]
    fn kinds_of_servers() {
        let seeds = Seeds::parse("rs0/a:1").unwrap();
        let ok = doc! { "setName": "rs0", "maxWireVersion": 17 };
        assert!(check_kind(&seeds, &ok).is_ok());
        let refused = [
            (doc! { "msg": "isdbgrid", "maxWireVersion": 17 }, Code::IllegalOperation),
            (doc! { "setName": "rs0", "configsvr": 2, "maxWireVersion": 17 }, Code::OperationFailed),
            (doc! { "maxWireVersion": 17 }, Code::OperationFailed),
            (doc! { "isreplicaset": true, "maxWireVersion": 17 }, Code::OperationFailed),
            (doc! { "setName": "rs1", "maxWireVersion": 17 }, Code::OperationFailed),
            (doc! { "setName": "rs0", "maxWireVersion": 16 }, Code::OperationFailed),
        ];
        for (hello, code) in refused {
            assert!(check_kind(&seeds, &hello).unwrap_err().is(code), "{hello}");
        }
        let unnamed = Seeds::parse("a:1").unwrap();
        assert!(check_kind(&unnamed, &ok).unwrap_err().message().contains("use replica set url format"));
    }
}
