//! Entries of `config.changelog` and `config.actionlog`, as mongos writes them.

use std::sync::atomic::Ordering;

use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use super::Catalog;
use crate::catalog::model::collection;

impl Catalog {
    /// Writes a line of `config.changelog`. A failure is logged and otherwise ignored, as the server does.
    pub async fn log_change(&self, what: &str, ns: &str, details: RawDocumentBuf) {
        self.log(collection::CHANGELOG, what, ns, details).await;
    }

    /// Writes a line of `config.actionlog`.
    pub async fn log_action(&self, what: &str, ns: &str, details: RawDocumentBuf) {
        self.log(collection::ACTIONLOG, what, ns, details).await;
    }

    async fn log(&self, collection: &str, what: &str, ns: &str, details: RawDocumentBuf) {
        let now = DateTime::now();
        self.log_counter.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{}-{}", self.name, log_time(now), ObjectId::new());
        let doc = rawdoc! {
            "_id": id,
            "server": self.name.as_str(),
            "shard": "config",
            "clientAddr": "",
            "time": now,
            "what": what,
            "ns": ns,
            "details": details,
        };
        if let Err(error) = self.store.note(collection, doc).await {
            tracing::warn!(%error, what, ns, "a line for the {collection} was lost");
        }
    }
}

/// `2026-11-30T18:03:10.727+00:00`.
fn log_time(time: DateTime) -> String {
    let text = time.try_to_rfc3339_string().unwrap_or_default();
    let text = text.trim_end_matches('Z');
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<3}+00:00"),
        None => format!("{text}.000+00:00"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_the_servers_do() {
        assert_eq!(log_time(DateTime::from_millis(1_796_062_241_270)), "2026-11-30T18:10:41.270+00:00");
        assert_eq!(log_time(DateTime::from_millis(1_796_062_241_000)), "2026-11-30T18:10:41.000+00:00");
    }
}
