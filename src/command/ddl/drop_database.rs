//! `dropDatabase`.
//!
//! The catalog forgets the database first: from then on requests on it would have to make it anew, and that is refused
//! while the intent stands. Then its primary shard drops it, then all others do.

use bson::{Document, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::job::{self, Driven, Job, pending, undone};
use crate::catalog::model::ShardId;
use crate::catalog::store::CatalogTxn;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("dropDatabase", Access::DbAdmin, "drops a database on all shards", drop_database).fields(&[])];

fn drop_database<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let db = request.db();
        if matches!(db, "admin" | "config" | "local") {
            return Err(Error::new(Code::IllegalOperation, format!("Dropping the '{db}' database is prohibited.")));
        }
        if bsonx_number(request) != Some(1) {
            return Err(Error::with_code(5_255_100, "Have to pass 1 as 'dropDatabase' parameter"));
        }
        if ctx.router.catalog.refresh().await?.primary(db).is_none() {
            return Ok(Reply::empty_ok());
        }
        job::run(ctx, "dropDatabase", vec![db.to_owned()], doc! { "db": db }, drive).await
    })
}

fn bsonx_number(request: &Request) -> Option<i64> {
    request.argument().ok().and_then(crate::bsonx::as_int)
}

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        let args = job.intent.args();
        let db = args.get_str("db").unwrap_or_default().to_owned();
        job.refresh();
        let primary = job.ctx.snapshot.primary(&db).cloned();
        match (job.intent.step().as_str(), primary) {
            ("", None) => Ok(Reply::empty_ok()),
            ("", Some(primary)) => begin(job, &db, &primary).await,
            // The catalog forgot it with this step, and nobody makes it anew while the intent stands.
            _ => {
                job.ctx.router.catalog.settle().await;
                data(job, &db, &args).await
            }
        }
    })
}

async fn begin(job: &mut Job, db: &str, primary: &ShardId) -> Driven {
    let router = job.ctx.router.clone();
    job.ping(&job.all_shards()).await.map_err(|e| undone(e.context(format!("{db} was not dropped"))))?;
    let closed = router.ddl.gate.close(&[db.to_owned()]);
    closed.drain(&router.ops, 0).await.map_err(undone)?;
    router.catalog.log_change("dropDatabase.start", db, rawdoc! {}).await;
    let args = doc! { "db": db, "primary": &**primary };
    let forget = async |txn: CatalogTxn| router.catalog.drop_database(db, &txn).await.map(|_| ());
    job.intent.advance_with("dropping", Some(args.clone()), false, forget).await.map_err(undone)?;
    router.views.forget(db);
    job.refresh();
    router.failpoints.crash_point("ddl.committed");
    router.catalog.settle().await;
    data(job, db, &args).await
}

async fn data(job: &mut Job, db: &str, args: &Document) -> Driven {
    let primary = args.get_str("primary").unwrap_or_default();
    let mut command = rawdoc! { "dropDatabase": 1, "writeConcern": { "w": "majority", "wtimeout": 60_000 } };
    command.append(bson::cstr!("$db"), db);
    let msg = OutMsg::from_doc(command);
    let (first, rest): (Vec<_>, Vec<_>) = job.all_shards().into_iter().partition(|s| &**s == primary);
    for group in [first, rest] {
        let requests: Vec<_> = group.into_iter().map(|s| (s, msg.clone())).collect();
        for (shard, outcome) in job.send_all(&requests).await {
            outcome.map_err(|e| pending(e.context(format!("dropping {db} is not complete on shard {shard}"))))?;
        }
    }
    job.ctx.router.catalog.log_change("dropDatabase", db, rawdoc! {}).await;
    Ok(Reply::empty_ok())
}
