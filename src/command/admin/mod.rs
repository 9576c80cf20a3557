//! Everyday commands: about the router itself, its operations and sessions, and its shards' operations.

mod auth;
mod build_info;
mod connection;
pub mod current_op;
pub mod data_distribution;
mod fsync;
mod host_info;
mod kill_op;
mod list_commands;
mod logs;
mod misc;
pub mod not_built;
mod options;
mod parameters;
mod pool_stats;
mod proc;
pub mod rw_concern;
mod server_status;
mod sessions;

use bson::{Document, RawDocumentBuf};

use super::{CommandSpec, Reply};
use crate::error::Result;

pub const FAMILIES: &[&[CommandSpec]] = &[
    auth::COMMANDS,
    build_info::COMMANDS,
    connection::COMMANDS,
    current_op::COMMANDS,
    fsync::COMMANDS,
    host_info::COMMANDS,
    kill_op::COMMANDS,
    list_commands::COMMANDS,
    logs::COMMANDS,
    misc::COMMANDS,
    options::COMMANDS,
    parameters::COMMANDS,
    pool_stats::COMMANDS,
    rw_concern::COMMANDS,
    server_status::COMMANDS,
    sessions::COMMANDS,
];

/// `{…fields, ok: 1}` from a decoded document; for replies that are not on any hot path.
fn reply(fields: &Document) -> Result<Reply> {
    Ok(Reply::ok(RawDocumentBuf::try_from(fields)?))
}
