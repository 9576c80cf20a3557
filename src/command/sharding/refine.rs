//! `refineCollectionShardKey`.

use super::index_rules::{self, Support};
use super::prepare;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::key::{ShardKeyPattern, text};
use bson::rawdoc;

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let ns = request.full_namespace()?;
    let Some(key) = request.doc_arg("key")? else {
        return Err(Error::with_code(
            40414,
            "BSON field 'refineCollectionShardKey.key' is missing but a required field",
        ));
    };
    let key = ShardKeyPattern::parse(key)?;
    let catalog = &ctx.router.catalog;
    let snapshot = catalog.refresh().await?;
    let Some(routing) = snapshot.collection(ns.as_str()) else {
        return Err(Error::new(Code::NamespaceNotSharded, format!("refineCollectionShardKey: {ns} is not sharded")));
    };
    if *routing.key.to_doc() == *key.to_doc() {
        return Ok(Reply::empty_ok());
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
    let (old, new) = (routing.key.to_doc().to_owned(), key.to_doc().to_owned());
    let start = rawdoc! { "oldKey": old, "newKey": new, "oldEpoch": routing.epoch };
    catalog.log_change("refineCollectionShardKey.start", ns.as_str(), start).await;
    catalog.refine_key(&ns, &key, routing.uuid).await?;
    catalog.log_change("refineCollectionShardKey.end", ns.as_str(), rawdoc! {}).await;
    Ok(Reply::empty_ok())
}
