//! The balancer's switches. There is no balancer yet; the answers say so.

use bson::rawdoc;

use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub async fn status(_ctx: &Ctx, _request: &Request) -> Result<Reply> {
    Ok(Reply::ok(rawdoc! { "mode": "off", "inBalancerRound": false, "numBalancerRounds": 0_i64 }))
}

/// It does not run, so stopping it is done.
pub async fn stop(_ctx: &Ctx, _request: &Request) -> Result<Reply> {
    Ok(Reply::empty_ok())
}

pub async fn start(_ctx: &Ctx, _request: &Request) -> Result<Reply> {
    Err(Error::new(
        Code::CommandNotSupported,
        "balancerStart is not supported yet: this router does not move data between shards yet",
    ))
}
