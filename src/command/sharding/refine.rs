//! `refineCollectionShardKey`, as a recorded change of structure: indexes stay as they are until it is done.

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::index_rules::{self, Support};
use super::prepare;
use crate::catalog::model::Namespace;
use crate::catalog::snapshot::{CollectionRouting, Snapshot};
use crate::catalog::store::CatalogTxn;
use crate::command::ddl::job::{self, Driven, Job, undone};
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::key::{ShardKeyPattern, text};

/// The intent under which a shard key is refined.
pub const INTENT: &str = "refineCollectionShardKey";

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let ns = request.full_namespace()?;
    let Some(key) = request.doc_arg("key")? else {
        return Err(Error::with_code(
            40414,
            "BSON field 'refineCollectionShardKey.key' is missing but a required field",
        ));
    };
    let key = ShardKeyPattern::parse(key)?;
    let snapshot = ctx.router.catalog.refresh().await?;
    if to_refine(&snapshot, &ns, &key)?.is_none() {
        return Ok(Reply::empty_ok());
    }
    let args = doc! { "ns": ns.as_str(), "key": Document::try_from(key.to_doc())? };
    job::run(ctx, INTENT, vec![ns.as_str().to_owned()], args, drive).await
}

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        if !job.resumed {
            let args = job.intent.args();
            refine(job, &args).await.map_err(undone)?;
        }
        // The step was noted with the commit: the key is refined.
        job.ctx.router.catalog.settle().await;
        Ok(Reply::empty_ok())
    })
}

/// The collection, if its key is to become `key`; `None` where it is that already.
fn to_refine<'a>(
    snapshot: &'a Snapshot,
    ns: &Namespace,
    key: &ShardKeyPattern,
) -> Result<Option<&'a CollectionRouting>> {
    let Some(routing) = snapshot.collection(ns.as_str()) else {
        return Err(Error::new(Code::NamespaceNotSharded, format!("refineCollectionShardKey: {ns} is not sharded")));
    };
    if *routing.key.to_doc() == *key.to_doc() {
        return Ok(None);
    }
    if !key.extends(&routing.key) {
        return Err(Error::new(
            Code::InvalidOptions,
            format!(
                "refineCollectionShardKey shard key {} does not extend shard key {}",
                text::document(key.to_doc()),
                text::document(routing.key.to_doc())
            ),
        ));
    }
    Ok(Some(routing))
}

async fn refine(job: &Job, args: &Document) -> Result<()> {
    let ctx = &job.ctx;
    let ns = Namespace::parse(args.get_str("ns").unwrap_or_default())?;
    let key = args.get_document("key").cloned().unwrap_or_default();
    let key = ShardKeyPattern::parse(&RawDocumentBuf::try_from(&key)?)?;
    let Some(routing) = to_refine(&ctx.snapshot, &ns, &key)? else { return Ok(()) };
    // Every owner needs the index: chunks are read by it.
    for shard in routing.table.owners() {
        let indexes = prepare::indexes(ctx, shard, &ns, &key).await?;
        match index_rules::check_support(ns.as_str(), &indexes, &key, routing.unique)? {
            Support::Found => {}
            Support::Unusable(why) => return Err(Error::new(Code::InvalidOptions, why)),
            Support::Missing => {
                return Err(Error::new(
                    Code::InvalidOptions,
                    "Please create an index that starts with the proposed shard key before refining the shard key",
                ));
            }
        }
    }
    let catalog = &ctx.router.catalog;
    let (old, new) = (routing.key.to_doc().to_owned(), key.to_doc().to_owned());
    let start = rawdoc! { "oldKey": old, "newKey": new, "oldEpoch": routing.epoch };
    catalog.log_change("refineCollectionShardKey.start", ns.as_str(), start).await;
    let commit = async |txn: CatalogTxn| catalog.refine_key(&ns, &key, routing.uuid, &txn).await;
    job.intent.advance_with("refined", None, false, commit).await?;
    catalog.log_change("refineCollectionShardKey.end", ns.as_str(), rawdoc! {}).await;
    Ok(())
}
