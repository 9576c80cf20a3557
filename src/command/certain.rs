//! Before a command is answered with "there is no such thing": what this router does not know, another one may have made
//! a moment ago. So a database that is not in the snapshot, a cluster without shards, and whatever the rarer commands
//! need to know is looked up in the catalog once before the handler runs.
//!
//! A *collection* that is not in the snapshot is not doubtful: unsharded collections are nowhere in the catalog, and
//! asking for each of their operations would cost more than the operation. Whoever shards one waits instead until all
//! routers know ([`crate::catalog::Catalog::settle`]).

use std::sync::{Arc, LazyLock};

use super::{CatalogUse, CommandSpec, Ctx, Request};
use crate::catalog::snapshot::Snapshot;
use crate::error::Result;
use crate::router::Router;

/// What a command has that uses no snapshot.
static EMPTY: LazyLock<Arc<Snapshot>> = LazyLock::new(Arc::default);

/// The snapshot that a command begins with.
pub fn snapshot(router: &Router, spec: &CommandSpec) -> Arc<Snapshot> {
    match spec.catalog {
        CatalogUse::Nothing => EMPTY.clone(),
        _ => router.catalog.snapshot(),
    }
}

/// The operation on a newer snapshot, where the one it has leaves doubts.
pub async fn make(ctx: &Ctx, request: &Request) -> Result<Option<Ctx>> {
    if !is_doubtful(request.spec.catalog, request.db(), &ctx.snapshot) {
        return Ok(None);
    }
    Box::pin(ctx.confirmed()).await.map(Some)
}

fn is_doubtful(what: CatalogUse, db: &str, snapshot: &Snapshot) -> bool {
    match (what, db) {
        (CatalogUse::Nothing | CatalogUse::Any, _) | (CatalogUse::Database, "local") => false,
        (CatalogUse::Newest, _) => true,
        // Not in the list of databases; they need a shard at most.
        (CatalogUse::Database, "admin" | "config") => snapshot.shards.is_empty(),
        (CatalogUse::Database, db) => snapshot.primary(db).is_none(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::lookup;
    use super::*;

    #[test]
    fn what_is_doubtful() {
        let empty = Snapshot::default();
        for (command, db, doubtful) in [
            ("find", "new", true),
            ("insert", "new", true),
            ("find", "config", true),
            ("find", "local", false),
            ("getMore", "new", false),
            ("ping", "new", false),
            ("hello", "admin", false),
            ("listShards", "admin", true),
            ("enableSharding", "admin", true),
            ("createIndexes", "new", true),
        ] {
            assert_eq!(is_doubtful(lookup(command).unwrap().catalog, db, &empty), doubtful, "{command} in {db}");
        }
    }
}
