//! The Rust driver against a whole cluster (`mosaic dev`). Skipped where `MOSAIC_MONGOD` does not name a mongod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "shard_support/ports.rs"]
mod ports;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{ClientOptions, IndexOptions, ReturnDocument};
use mongodb::{Client, Collection, Database, IndexModel};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A cluster of two shards; stopped when dropped.
struct Cluster {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn start(mongod: &std::ffi::OsStr) -> Self {
        let port = ports::port(0);
        let dir = tempfile::tempdir().unwrap();
        let binary = std::env::var("MOSAIC_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_mosaic").to_owned());
        let mut process = Command::new(binary)
            .args(["dev", "--shards", "2", "--port", &port.to_string(), "--dir"])
            .arg(dir.path())
            .arg("--mongod")
            .arg(mongod)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready "), "the cluster did not start: {ready:?}");
        Cluster { process, port, _dir: dir }
    }

    async fn options(&self) -> ClientOptions {
        ClientOptions::parse(format!("mongodb://127.0.0.1:{}", self.port)).await.unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    customer: i32,
    #[serde(default)]
    lines: Vec<String>,
    note: Option<String>,
}

fn orders(count: i32) -> impl Iterator<Item = Order> {
    (0..count).map(|id| Order { id, customer: id % 10, lines: vec![format!("line {id}")], note: None })
}

/// The code of a command's or a write's error.
fn code(error: &Error) -> i32 {
    match error.kind.as_ref() {
        ErrorKind::Command(e) => e.code,
        ErrorKind::Write(WriteFailure::WriteError(e)) => e.code,
        ErrorKind::Write(WriteFailure::WriteConcernError(e)) => e.code,
        other => panic!("neither a command's nor a write's error: {other:?}"),
    }
}

async fn admin(client: &Client, command: Document) -> Document {
    client.database("admin").run_command(command).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_finds_a_sharded_cluster() {
    let Some(mongod) = std::env::var_os("MOSAIC_MONGOD") else {
        println!("skipped: MOSAIC_MONGOD does not name a mongod");
        return;
    };
    let cluster = tokio::task::spawn_blocking(move || Cluster::start(&mongod)).await.unwrap();
    let client = Client::with_options(cluster.options().await).unwrap();
    let db = client.database("shop");
    admin(&client, doc! { "shardCollection": "shop.spread", "key": { "customer": "hashed" } }).await;
    for name in ["spread", "whole"] {
        typed_documents(&db.collection(name)).await;
        updates_and_deletes(&db.collection(name)).await;
        errors(&db, name).await;
        indexes(&db.collection(name)).await;
    }
    a_document_moves(&db.collection("spread")).await;
    sessions(&client, &db.collection("spread")).await;
    retryable_writes(&client, &db.collection("spread")).await;
    events(&cluster).await;
    admin(&client, doc! { "ping": 1 }).await;
    db.drop().await.unwrap();
    assert!(!client.list_database_names().await.unwrap().contains(&"shop".to_owned()));
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}

async fn typed_documents(coll: &Collection<Order>) {
    let all: Vec<Order> = orders(250).collect();
    assert_eq!(coll.insert_many(&all).await.unwrap().inserted_ids.len(), 250);
    // Over both shards, in order, in many batches.
    let found: Vec<Order> =
        coll.find(doc! {}).sort(doc! { "_id": 1 }).batch_size(17).await.unwrap().try_collect().await.unwrap();
    assert_eq!(found, all);
    let page: Vec<Order> = coll
        .find(doc! { "customer": { "$lt": 5 } })
        .sort(doc! { "customer": -1, "_id": 1 })
        .skip(2)
        .limit(3)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(page.iter().map(|o| (o.customer, o.id)).collect::<Vec<_>>(), [(4, 24), (4, 34), (4, 44)]);
    assert_eq!(coll.find_one(doc! { "customer": 3, "_id": 13 }).await.unwrap().unwrap().lines, ["line 13"]);
    assert_eq!(coll.count_documents(doc! { "customer": 7 }).await.unwrap(), 25);
    assert_eq!(coll.estimated_document_count().await.unwrap(), 250);
    let mut customers: Vec<i32> =
        coll.distinct("customer", doc! {}).await.unwrap().iter().filter_map(|v| v.as_i32()).collect();
    customers.sort_unstable();
    assert_eq!(customers, (0..10).collect::<Vec<_>>());
    let pipeline = [doc! { "$group": { "_id": "$customer", "n": { "$sum": 1 } } }, doc! { "$sort": { "_id": 1 } }];
    let groups: Vec<Document> = coll.aggregate(pipeline).await.unwrap().try_collect().await.unwrap();
    assert_eq!(groups.len(), 10);
    assert_eq!(groups[9], doc! { "_id": 9, "n": 25 });
}

async fn updates_and_deletes(coll: &Collection<Order>) {
    let set = |note: &str| doc! { "$set": { "note": note } };
    assert_eq!(coll.update_one(doc! { "customer": 1, "_id": 1 }, set("one")).await.unwrap().modified_count, 1);
    assert_eq!(coll.update_one(doc! { "_id": 2 }, set("by id")).await.unwrap().modified_count, 1);
    assert_eq!(coll.update_many(doc! {}, set("all")).await.unwrap().matched_count, 250);
    let upserted = coll.update_one(doc! { "_id": 900, "customer": 9 }, set("new")).upsert(true).await.unwrap();
    assert_eq!(upserted.upserted_id.unwrap().as_i32(), Some(900));
    let replacement = Order { id: 3, customer: 3, lines: vec![], note: Some("replaced".into()) };
    assert_eq!(coll.replace_one(doc! { "_id": 3, "customer": 3 }, &replacement).await.unwrap().modified_count, 1);
    let changed = coll
        .find_one_and_update(doc! { "customer": 4, "_id": 4 }, set("found"))
        .return_document(ReturnDocument::After)
        .await
        .unwrap();
    assert_eq!(changed.unwrap().note.as_deref(), Some("found"));
    assert_eq!(coll.find_one_and_delete(doc! { "customer": 5, "_id": 5 }).await.unwrap().unwrap().id, 5);
    assert_eq!(coll.delete_one(doc! { "_id": 6 }).await.unwrap().deleted_count, 1);
    assert_eq!(coll.delete_many(doc! { "customer": 7 }).await.unwrap().deleted_count, 25);
}

async fn errors(db: &Database, name: &str) {
    let coll = db.collection::<Document>(name);
    let error = coll.insert_one(doc! { "_id": 1, "customer": 1 }).await.unwrap_err();
    assert_eq!(code(&error), 11000, "{error}");
    let docs =
        [doc! { "_id": 1000, "customer": 1 }, doc! { "_id": 1, "customer": 1 }, doc! { "_id": 1001, "customer": 2 }];
    let error = coll.insert_many(docs).ordered(false).await.unwrap_err();
    let ErrorKind::InsertMany(failed) = error.kind.as_ref() else { panic!("{error}") };
    let failed: Vec<_> = failed.write_errors.iter().flatten().map(|e| (e.index, e.code)).collect();
    assert_eq!(failed, [(1, 11000)]);
    assert_eq!(coll.count_documents(doc! { "_id": { "$in": [1000, 1001] } }).await.unwrap(), 2);
    assert_eq!(code(&coll.find(doc! { "$bad": 1 }).await.unwrap_err()), 2);
    assert_eq!(code(&db.run_command(doc! { "nosuch": 1 }).await.unwrap_err()), 59);
    assert_eq!(code(&db.run_command(doc! { "collStats": 5 }).await.unwrap_err()), 73);
}

async fn indexes(coll: &Collection<Order>) {
    let options = IndexOptions::builder().name("notes".to_owned()).build();
    let model = IndexModel::builder().keys(doc! { "note": 1 }).options(options).build();
    assert_eq!(coll.create_index(model).await.unwrap().index_name, "notes");
    assert!(coll.list_index_names().await.unwrap().contains(&"notes".to_owned()));
    let hinted =
        coll.find(doc! { "note": "replaced" }).hint(mongodb::options::Hint::Name("notes".into())).await.unwrap();
    assert_eq!(hinted.try_collect::<Vec<_>>().await.unwrap().len(), 1);
    coll.drop_index("notes").await.unwrap();
    assert!(!coll.list_index_names().await.unwrap().contains(&"notes".to_owned()));
}

/// A change of the shard key's value takes the document to another shard, sooner or later.
async fn a_document_moves(coll: &Collection<Order>) {
    for customer in [101, 102, 103, 104, 105, 106] {
        let done = coll.update_one(doc! { "_id": 8 }, doc! { "$set": { "customer": customer } }).await.unwrap();
        assert_eq!((done.matched_count, done.modified_count), (1, 1));
        assert_eq!(coll.find_one(doc! { "customer": customer }).await.unwrap().unwrap().id, 8);
        assert_eq!(coll.count_documents(doc! { "_id": 8 }).await.unwrap(), 1);
    }
}

async fn sessions(client: &Client, coll: &Collection<Order>) {
    let mut session = client.start_session().causal_consistency(true).await.unwrap();
    let order = Order { id: 2000, customer: 2000, lines: vec![], note: None };
    coll.insert_one(&order).session(&mut session).await.unwrap();
    let found = coll.find_one(doc! { "customer": 2000 }).session(&mut session).await.unwrap();
    assert_eq!(found, Some(order));
    let mut cursor = coll.find(doc! {}).batch_size(10).session(&mut session).await.unwrap();
    let mut count = 0;
    while cursor.next(&mut session).await.transpose().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, coll.count_documents(doc! {}).await.unwrap());
}

async fn retryable_writes(client: &Client, coll: &Collection<Order>) {
    let failures = [doc! { "errorCode": 89 }, doc! { "closeConnection": true }];
    for (id, failure) in (3000..).zip(failures) {
        let mut data = doc! { "failCommands": ["insert"] };
        data.extend(failure);
        admin(client, doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data }).await;
        coll.insert_one(Order { id, customer: id, lines: vec![], note: None }).await.unwrap();
        assert_eq!(coll.count_documents(doc! { "customer": id }).await.unwrap(), 1);
    }
    let data = doc! { "failCommands": ["insert"], "errorCode": 8, "errorLabels": ["Mine"] };
    admin(client, doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data }).await;
    let error = coll.insert_one(Order { id: 4000, customer: 1, lines: vec![], note: None }).await.unwrap_err();
    assert!(error.contains_label("Mine") && code(&error) == 8, "{error}");
}

async fn events(cluster: &Cluster) {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = names.clone();
    let mut options = cluster.options().await;
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let line = match event {
            CommandEvent::Started(e) => format!("started {}", e.command_name),
            CommandEvent::Succeeded(e) => format!("succeeded {}", e.command_name),
            CommandEvent::Failed(e) => format!("failed {}", e.command_name),
            _ => return,
        };
        seen.lock().push(line);
    }));
    let db = Client::with_options(options).unwrap().database("shop");
    let all = db.collection::<Document>("spread").find(doc! {}).batch_size(150).await.unwrap();
    assert!(all.try_collect::<Vec<_>>().await.unwrap().len() > 150);
    db.run_command(doc! { "nosuch": 1 }).await.unwrap_err();
    let names = names.lock().clone();
    let expected =
        ["started find", "succeeded find", "started getMore", "succeeded getMore", "started nosuch", "failed nosuch"];
    assert_eq!(names, expected);
}
