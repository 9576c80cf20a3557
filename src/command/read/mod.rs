//! Reads: find, getMore, killCursors, count, distinct, aggregate, explain.
//!
//! A read of one shard is forwarded as it came and its reply passed on, with only the cursor's id replaced. A read of
//! several shards is rewritten for them (`find_args`, `stages`) and merged here (`merged`, [`crate::merge`]).

mod agg_bring;
mod agg_foreign;
mod agg_join;
mod agg_merge;
mod agg_plan;
mod agg_run;
mod aggregate;
mod beneath;
pub mod config;
mod config_local;
mod config_match;
mod config_simple;
mod count;
mod distinct;
mod distinct_values;
pub mod explain;
mod explain_shape;
mod find;
mod find_args;
mod get_more;
mod kill_cursors;
pub mod merged;
pub mod numbers;
pub mod pass;
pub mod route;
pub mod scratch;
pub mod stages;
pub mod sweep;
pub mod views;

use super::{Access, CatalogUse, CommandSpec};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("find", Access::Read, "finds documents", find::find).secondary_ok(),
    CommandSpec::new("count", Access::Read, "counts documents", count::count).secondary_ok(),
    CommandSpec::new("distinct", Access::Read, "gives the values of a field", distinct::distinct).secondary_ok(),
    CommandSpec::new("aggregate", Access::Read, "runs a pipeline of stages", aggregate::aggregate).secondary_ok(),
    CommandSpec::new("explain", Access::Read, "tells how a command would be run", explain::explain).secondary_ok(),
    CommandSpec::new("getMore", Access::Read, "gives more of a cursor's result", get_more::get_more)
        .secondary_ok()
        .catalog(CatalogUse::Nothing),
    CommandSpec::new("killCursors", Access::Authenticated, "closes cursors", kill_cursors::kill_cursors)
        .secondary_ok()
        .fields(&["cursors"]),
];
