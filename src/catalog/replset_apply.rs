//! Checks and writes inside one transaction on the catalog's replica set.

use std::time::{Duration, Instant};

use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, cstr, doc, rawdoc};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::ReturnDocument;
use mongodb::{ClientSession, Database};

use super::embedded_apply::fields_equal;
use super::model::collection;
use super::replset::store_error;
use super::store::{CatalogTxn, Check, CheckKind, Touch, Write};
use crate::bsonx;
use crate::error::{Code, Error, Retry};

/// Most operations and bytes in one write command.
const BATCH_COUNT: usize = 1000;
const BATCH_BYTES: usize = 8 << 20;

/// Why a transaction did not commit.
pub(super) enum Failure {
    /// The driver's word; transient ones are worth another try.
    Driver(mongodb::error::Error),
    /// A check did not hold, or a document was there already.
    Refused(Error),
    /// Whether it committed could not be found out.
    Unknown(mongodb::error::Error),
}

impl From<mongodb::error::Error> for Failure {
    fn from(e: mongodb::error::Error) -> Self {
        Failure::Driver(e)
    }
}

impl Failure {
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Failure::Driver(e) if e.contains_label(TRANSIENT_TRANSACTION_ERROR))
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Failure::Refused(e) => e,
            Failure::Driver(e) => store_error(e),
            Failure::Unknown(e) => store_error(e)
                .context("Whether the catalog was changed is not known; look before trying again")
                .retry(Retry::Unknown),
        }
    }
}

type Result<T> = std::result::Result<T, Failure>;

/// A duplicate `_id` or unique key.
pub(super) fn is_duplicate(e: &mongodb::error::Error) -> bool {
    use mongodb::error::{ErrorKind, WriteFailure};
    match &*e.kind {
        ErrorKind::Write(WriteFailure::WriteError(w)) => w.code == 11000,
        ErrorKind::Command(c) => c.code == 11000,
        _ => false,
    }
}

/// Raises the version (so that transactions queue up here), checks, writes; gives the new version.
pub(super) async fn apply(db: &Database, session: &mut ClientSession, txn: &CatalogTxn) -> Result<u64> {
    let version = db
        .collection::<Document>(collection::CATALOG)
        .find_one_and_update(doc! { "_id": "version" }, doc! { "$inc": { "version": 1_i64 } })
        .return_document(ReturnDocument::After)
        .session(&mut *session)
        .await?
        .and_then(|d| d.get_i64("version").ok())
        .ok_or_else(|| Failure::Refused(Error::internal("the catalog has lost its version document")))?;
    for check in &txn.checks {
        if !holds(db, session, check).await? {
            return Err(Failure::Refused(check.failed()));
        }
    }
    let mut batch = Batch::default();
    for write in &txn.writes {
        batch.add(db, session, write).await?;
    }
    for touch in &txn.touches {
        let write = match touch {
            Touch::Changed(topic) => {
                Write::Put { collection: collection::CHANGES.to_owned(), doc: Touch::document(topic, version as u64) }
            }
            Touch::Forget(topic) => {
                Write::Delete { collection: collection::CHANGES.to_owned(), id: topic.as_str().into() }
            }
        };
        batch.add(db, session, &write).await?;
    }
    batch.flush(db, session).await?;
    Ok(version as u64)
}

/// Commits; an outcome that is not known is asked for again until `limit`.
pub(super) async fn commit(session: &mut ClientSession, limit: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        match session.commit_transaction().await {
            Ok(()) => return Ok(()),
            Err(e) if e.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                if started.elapsed() > limit {
                    return Err(Failure::Unknown(e));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(e) => return Err(Failure::Driver(e)),
        }
    }
}

async fn find(
    db: &Database,
    session: &mut ClientSession,
    name: &str,
    filter: Document,
) -> Result<Option<RawDocumentBuf>> {
    Ok(db.collection::<RawDocumentBuf>(name).find_one(filter).session(session).await?)
}

async fn holds(db: &Database, session: &mut ClientSession, check: &Check) -> Result<bool> {
    let name = check.collection.as_str();
    Ok(match &check.what {
        CheckKind::Exists(id) => find(db, session, name, doc! { "_id": id.clone() }).await?.is_some(),
        CheckKind::Absent(id) => find(db, session, name, doc! { "_id": id.clone() }).await?.is_none(),
        CheckKind::Fields(id, fields) => {
            let found = find(db, session, name, doc! { "_id": id.clone() }).await?;
            found.is_some_and(|d| fields_equal(&d, fields))
        }
        CheckKind::NoneWhere(field, value) => find(db, session, name, doc! { field: value.clone() }).await?.is_none(),
        CheckKind::Unchanged { topic, since } => {
            let found = find(db, session, collection::CHANGES, doc! { "_id": topic }).await?;
            found.and_then(|d| bsonx::int(&d, "version")).is_none_or(|v| v as u64 <= *since)
        }
    })
}

/// Writes of one kind on one collection, collected into one command.
#[derive(Default)]
struct Batch {
    /// `(collection, command, field)` of the writes collected.
    kind: Option<(String, &'static str, &'static std::ffi::CStr)>,
    items: RawArrayBuf,
    count: usize,
    bytes: usize,
}

fn malformed(e: bson::error::Error) -> Failure {
    Failure::Refused(Error::from(e))
}

impl Batch {
    async fn add(&mut self, db: &Database, session: &mut ClientSession, write: &Write) -> Result<()> {
        let (collection, command, field, item) = match write {
            Write::Put { collection, doc } => {
                let id = bsonx::get(doc, "_id").map_or(bson::RawBson::Null, bson::RawBson::from);
                (collection, "update", c"updates", rawdoc! { "q": { "_id": id }, "u": doc.clone(), "upsert": true })
            }
            Write::Insert { collection, doc } => (collection, "insert", c"documents", doc.clone()),
            Write::Delete { collection, id } => {
                let item = doc! { "q": { "_id": id.clone() }, "limit": 1 };
                (collection, "delete", c"deletes", RawDocumentBuf::try_from(&item).map_err(malformed)?)
            }
            Write::DeleteWhere { collection, field, value } => {
                let item = doc! { "q": { field: value.clone() }, "limit": 0 };
                (collection, "delete", c"deletes", RawDocumentBuf::try_from(&item).map_err(malformed)?)
            }
        };
        let same = self.kind.as_ref().is_some_and(|(c, k, _)| c == collection && *k == command);
        if !same || self.count >= BATCH_COUNT || self.bytes + item.as_bytes().len() > BATCH_BYTES {
            self.flush(db, session).await?;
            self.kind = Some((collection.clone(), command, field));
        }
        self.count += 1;
        self.bytes += item.as_bytes().len();
        self.items.push(item);
        Ok(())
    }

    async fn flush(&mut self, db: &Database, session: &mut ClientSession) -> Result<()> {
        let Batch { kind: Some((collection, command, field)), items, .. } = std::mem::take(self) else { return Ok(()) };
        let mut body = RawDocumentBuf::new();
        let (verb, field) = (cstring(command)?, cstring(&field.to_string_lossy())?);
        body.append(verb, collection.as_str());
        body.append(cstr!("ordered"), true);
        body.append(field, items);
        let reply = db.run_raw_command(body).session(session).await?;
        match reply.get_array("writeErrors").ok().and_then(|e| e.first()).and_then(Bson::as_document) {
            None => Ok(()),
            Some(error) => Err(refused(&collection, error)),
        }
    }
}

fn cstring(text: &str) -> Result<bson::raw::CString> {
    bson::raw::CString::try_from(text).map_err(malformed)
}

fn refused(name: &str, error: &Document) -> Failure {
    let code = error.get_i32("code").unwrap_or(8);
    let message = error.get_str("errmsg").unwrap_or("a write failed");
    if code == 11000 {
        return Failure::Refused(
            Error::new(
                Code::ConflictingOperationInProgress,
                format!("config.{name} has the document already; another operation was faster: {message}"),
            )
            .from_shard("config"),
        );
    }
    Failure::Refused(Error::with_code(code, message.to_owned()).from_shard("config"))
}
