//! Commands: one table (name, access, handler, help), one file for each command or close family.
//!
//! `dispatch` is the only way in. It finds the command, reads the generic arguments in one scan of the body,
//! registers the operation, runs the handler on one immutable routing snapshot and turns errors into replies.

mod certain;
mod concern;
mod config_write;
mod dispatch;
mod failpoint;
mod generic;
mod request;
mod slow;
mod table;

pub mod admin;
pub mod basic;
pub mod ddl;
pub mod documents;
pub mod hello;
pub mod read;
pub mod sharding;
pub mod write;

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf, cstr};
use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::catalog::model::ShardId;
use crate::catalog::snapshot::Snapshot;
use crate::conn::ConnState;
use crate::error::{Code, Error, Result};
use crate::op::OpContext;
use crate::router::Router;
use crate::shard::ShardReply;

pub use dispatch::{Outcome, Prepared, prepare};
pub use failpoint::FailPoints;
pub use generic::{Generic, refuse_internal};
pub use request::Request;
pub use table::{all, lookup};

/// What a client must be allowed to run a command. Authorization is not enforced yet; the table records it
/// so that `listCommands` can tell and so that enforcing it needs no second pass over the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Before or without authentication (`hello`, `ping`, `buildInfo`).
    Open,
    /// Any authenticated user.
    Authenticated,
    Read,
    Write,
    /// DDL on a database.
    DbAdmin,
    /// Cluster administration.
    Cluster,
}

/// How new the routing snapshot must be that a command begins with; see [`certain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogUse {
    /// The command uses none and gets an empty one. For those that may wait for long: other routers wait until nobody
    /// works on an old snapshot.
    Nothing,
    /// As it is: the command does not route by it.
    Any,
    /// As it is, if the command's database is in it.
    Database,
    /// It shows whatever another router did before the command came.
    Newest,
}

pub type Handler = for<'a> fn(&'a Ctx, &'a Request) -> BoxFuture<'a, Result<Reply>>;

/// One row of the command table.
pub struct CommandSpec {
    pub name: &'static str,
    /// Other spellings that old clients use (`ismaster`, `buildinfo`).
    pub aliases: &'static [&'static str],
    pub access: Access,
    pub admin_only: bool,
    /// Whether reads may go to secondaries.
    pub secondary_ok: bool,
    /// The fields it may have beside its own and the generic ones; `None` where a shard or the handler judges.
    pub fields: Option<&'static [&'static str]>,
    pub catalog: CatalogUse,
    pub help: &'static str,
    pub run: Handler,
}

impl CommandSpec {
    /// A row with the common defaults: any database, primary only, no aliases; changes of structure begin with the
    /// newest catalog.
    pub const fn new(name: &'static str, access: Access, help: &'static str, run: Handler) -> Self {
        let catalog = match access {
            Access::Open | Access::Authenticated | Access::Cluster => CatalogUse::Any,
            Access::Read | Access::Write => CatalogUse::Database,
            Access::DbAdmin => CatalogUse::Newest,
        };
        CommandSpec {
            name,
            aliases: &[],
            access,
            admin_only: false,
            secondary_ok: false,
            fields: None,
            catalog,
            help,
            run,
        }
    }

    pub const fn catalog(mut self, catalog: CatalogUse) -> Self {
        self.catalog = catalog;
        self
    }

    pub const fn admin(mut self) -> Self {
        self.admin_only = true;
        self
    }

    pub const fn secondary_ok(mut self) -> Self {
        self.secondary_ok = true;
        self
    }

    /// Other fields than these are refused.
    pub const fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = Some(fields);
        self
    }

    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
}

/// What a handler works with: the router, the client's connection, the operation, and one routing snapshot.
pub struct Ctx {
    pub router: Arc<Router>,
    pub conn: Arc<ConnState>,
    pub op: OpContext,
    pub snapshot: Arc<Snapshot>,
}

impl Ctx {
    /// The same operation on the newest snapshot, for use after the catalog was changed.
    pub fn refreshed(&self) -> Ctx {
        Ctx {
            router: self.router.clone(),
            conn: self.conn.clone(),
            op: self.op.clone(),
            snapshot: self.router.catalog.snapshot(),
        }
    }

    /// The same operation on a snapshot that shows whatever any router did before.
    pub async fn confirmed(&self) -> Result<Ctx> {
        self.op.bounded(self.router.catalog.confirm()).await??;
        Ok(self.refreshed())
    }

    /// The shard that holds the unsharded collections of `db`; `None` if there is no such database yet.
    /// `admin` lives with the catalog's replica set if there is one, else on the first shard by name.
    pub fn primary_shard(&self, db: &str) -> Option<ShardId> {
        if matches!(db, "admin" | "config") {
            return self.router.home_of_admin(&self.snapshot);
        }
        self.snapshot.primary(db).cloned()
    }

    /// [`Self::primary_shard`], creating the database if it is new. Names that differ from an existing
    /// database only by case are refused with DatabaseDifferCase (13297).
    pub async fn ensure_database(&self, db: &str) -> Result<ShardId> {
        if let Some(shard) = self.primary_shard(db) {
            return Ok(shard);
        }
        if matches!(db, "admin" | "config") {
            return Err(Error::new(
                Code::ShardNotFound,
                "No shards found; add one first: db.adminCommand({addShard: \"<set>/<host:port>\"})",
            ));
        }
        if db == "local" {
            return Err(Error::new(Code::IllegalOperation, "Cannot access the local database through the router"));
        }
        self.router.catalog.create_database(db, None).await
    }
}

/// A command's answer: one whole BSON document, `ok` included.
#[derive(Clone, Debug)]
pub struct Reply {
    pub body: Bytes,
    /// Set by streaming replies (exhaust): more replies follow without another request.
    pub more_to_come: bool,
    /// It is known to say `ok: 1` and to carry the cluster's times.
    pub passed: bool,
}

impl Reply {
    /// A document that is ready.
    pub fn raw(body: Bytes) -> Self {
        Reply { body, more_to_come: false, passed: false }
    }

    /// A shard's reply passed on as it is.
    pub fn pass(reply: ShardReply) -> Self {
        let passed = reply.ok() && reply.cluster_time().is_some();
        Reply { passed, ..Self::raw(reply.body) }
    }

    /// `{…fields, ok: 1}`.
    pub fn ok(mut fields: RawDocumentBuf) -> Self {
        fields.append(cstr!("ok"), 1.0);
        Self::doc(fields)
    }

    /// `{ok: 1}`.
    pub fn empty_ok() -> Self {
        Self::ok(RawDocumentBuf::new())
    }

    /// The document as it is.
    pub fn doc(doc: RawDocumentBuf) -> Self {
        Self::raw(Bytes::from(doc.into_bytes()))
    }

    pub fn document(&self) -> Result<&RawDocument> {
        Ok(RawDocument::from_bytes(&self.body)?)
    }
}
