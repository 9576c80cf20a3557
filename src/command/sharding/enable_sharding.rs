//! `enableSharding`: since MongoDB 6.0 only a way to create a database on a chosen shard.

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let argument = request.argument()?;
    let Some(db) = argument.as_str() else {
        return Err(Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field 'enableSharding.enableSharding' is the wrong type '{}', expected type 'string'",
                bsonx::type_name(argument.element_type())
            ),
        ));
    };
    match db {
        "admin" | "local" => {
            return Err(Error::new(Code::InvalidOptions, format!("can't shard {db} database")));
        }
        "config" => return Ok(Reply::empty_ok()),
        _ => {}
    }
    let primary: Option<ShardId> = match request.str_arg("primaryShard")? {
        None => None,
        Some(shard) => Some(ctx.snapshot.shard(shard)?.id.clone()),
    };
    ctx.router.catalog.create_database(db, primary.as_ref()).await?;
    Ok(Reply::empty_ok())
}
