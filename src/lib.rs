//! Mosaic: a mongos-compatible query router over plain MongoDB replica sets.
//!
//! The way of a request: [`conn`] → [`wire`] → [`command`] → [`target`] (against a [`catalog`] snapshot) →
//! [`scatter`] → [`shard`] → [`merge`] → reply. `ARCHITECTURE.md` draws the map and names the invariants.

pub mod bsonx;
pub mod catalog;
pub mod command;
pub mod config;
pub mod conn;
pub mod cursor;
pub mod dev;
pub mod error;
pub mod key;
pub mod merge;
pub mod op;
pub mod router;
pub mod scatter;
pub mod serve;
pub mod session;
pub mod shard;
pub mod stats;
pub mod target;
pub mod txn;
pub mod wire;

/// The version of MongoDB whose behaviour this router shows, as `buildInfo` and `config.mongos` tell it.
pub const SERVER_VERSION: &str = "6.0.5";
