//! Finishing or undoing the changes of routers that are gone, and those left for later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Document;
use bson::oid::ObjectId;

use super::intent::{self, Intent};
use super::job::{Drive, Job};
use super::{capped, coll_mod, create_indexes, drop, drop_database, drop_indexes, rename};
use crate::catalog::standstill::Standstill;
use crate::command::sharding::{refine, shard_collection};
use crate::error::{Code, Result};
use crate::router::Router;

/// How often the intents are looked at.
const PERIOD: Duration = Duration::from_secs(2);

/// Looks at the intents at once and then for as long as the router runs.
pub fn start(router: &Arc<Router>) {
    let (weak, shutdown) = (Arc::downgrade(router), router.shutdown.clone());
    tokio::spawn(async move {
        let mut seen = Seen::default();
        loop {
            {
                let Some(router) = weak.upgrade() else { return };
                if let Err(error) = look(&router, &mut seen).await {
                    tracing::warn!(%error, "looking for unfinished changes of structure failed");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    });
}

/// Other routers' intents: who owned them at which beat.
type Seen = Standstill<String, (ObjectId, i64)>;

async fn look(router: &Arc<Router>, seen: &mut Seen) -> Result<()> {
    let notes: Vec<Document> =
        intent::scan(router).await?.into_iter().filter(|doc| doc.contains_key("names")).collect();
    seen.keep(|id| notes.iter().any(|n| n.get_str("_id").is_ok_and(|n| n == id)));
    // A file has one process only: whoever wrote the others is gone.
    let alone = router.config.catalog.config_db().is_none();
    for note in notes {
        let (Ok(id), Ok(process)) = (note.get_str("_id"), note.get_object_id("process")) else { continue };
        if note.get_object_id("owner").is_ok_and(intent::is_active) {
            continue;
        }
        let idle = note.get_bool("idle").unwrap_or(false);
        let beat = note.get_i64("beat").unwrap_or(0);
        let own = intent::is_own(router, &note);
        // One of this process that nobody works on: its work ended between the scan and here, or it could not be removed.
        let limit = if own { PERIOD / 2 } else { intent::lifetime(router) };
        let gone = !own && (alone || Place::here().is_gone(&note));
        if idle || gone || seen.since(id.to_owned(), (process, beat), Instant::now()) > limit {
            tokio::spawn(take_up(router.clone(), note));
        }
    }
    Ok(())
}

/// Where a process runs, as far as another one on the same machine can tell whether it still does. (An address does not
/// tell that: routers in containers may all have the same.)
pub(super) struct Place {
    /// The machine's boot and the namespace that process numbers belong to.
    machine: Option<String>,
    pid: u32,
}

impl Place {
    pub(super) fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok();
        let machine = boot.zip(namespace).map(|(boot, ns)| format!("{} {}", boot.trim(), ns.display()));
        Place { machine, pid: std::process::id() }
    }

    /// Writes it into an intent.
    pub(super) fn note(&self, doc: &mut Document) {
        doc.insert("machine", self.machine.clone());
        doc.insert("pid", i64::from(self.pid));
    }

    /// Whether the process of an intent that no router of this process works on ran here, and certainly ended.
    fn is_gone(&self, note: &Document) -> bool {
        let (Some(machine), Ok(pid)) = (&self.machine, note.get_i64("pid")) else { return false };
        note.get_str("machine").is_ok_and(|m| m == machine)
            && (pid == i64::from(self.pid) || !std::path::Path::new(&format!("/proc/{pid}")).exists())
    }
}

async fn take_up(router: Arc<Router>, note: Document) {
    let op = note.get_str("op").unwrap_or("").to_owned();
    let Some(drive) = drive(&op) else {
        tracing::warn!(op, id = ?note.get("_id"), "an intent of an unknown kind; a newer router must finish it");
        return;
    };
    let intent = match Intent::take_over(&router, note).await {
        Ok(intent) => intent,
        Err(e) if e.is(Code::ConflictingOperationInProgress) => return,
        Err(error) => {
            tracing::warn!(op, %error, "an unfinished change could not be taken over");
            return;
        }
    };
    let names = intent.names.clone();
    tracing::info!(op, ?names, step = intent.step(), "taking up an unfinished change");
    if let Err(error) = router.catalog.refresh().await {
        tracing::warn!(%error, "the catalog cannot be read");
        return;
    }
    let outcome = Job::resumed(&router, intent).finish(drive).await;
    match outcome {
        Ok(_) => tracing::info!(op, ?names, "the unfinished change is complete"),
        Err(error) => tracing::info!(op, ?names, %error, "the unfinished change ended or waits"),
    }
}

/// What drives each kind of change.
fn drive(op: &str) -> Option<Drive> {
    Some(match op {
        "drop" => drop::drive,
        "dropDatabase" => drop_database::drive,
        "createIndexes" => create_indexes::drive,
        "dropIndexes" => drop_indexes::drive,
        "collMod" => coll_mod::drive,
        "renameCollection" => rename::drive,
        "convertToCapped" | "cloneCollectionAsCapped" => capped::drive,
        super::SHARD_COLLECTION => shard_collection::drive,
        refine::INTENT => refine::drive,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_gone_only_where_that_is_known() {
        let here = Place { machine: Some("m".to_owned()), pid: std::process::id() };
        let on = |machine: &str, pid: i64| bson::doc! { "machine": machine, "pid": pid, "router": "h:1" };
        // 2^22 is above every process number.
        assert!(here.is_gone(&on("m", 1 << 23)));
        assert!(!here.is_gone(&on("m", 1)), "it runs");
        assert!(!here.is_gone(&on("another", 1 << 23)), "another machine's or container's");
        assert!(here.is_gone(&on("m", i64::from(std::process::id()))), "this process does not know of it");
        assert!(!here.is_gone(&bson::doc! { "router": "h:1" }));
        assert!(!Place { machine: None, pid: 2 }.is_gone(&on("m", 1 << 23)));
    }
}
