//! Reading and writing documents inside one redb write transaction.

use bson::{Bson, RawBson, RawDocument, RawDocumentBuf};
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::embedded::{Table, broken, chunk_uuid};
use super::model::{self, ChunkVersion, collection};
use super::store::{CatalogTxn, Check, CheckKind, Scan, Touch, Write};
use crate::bsonx;
use crate::error::{Code, Error, Result};
use crate::key::order;

/// Finds a collection's chunks in the order of their versions: uuid, lastmod, key of `_id` → key of `_id`.
pub(super) const CHUNK_INDEX: Table<'static> = Table::new("i/chunks");

/// Entries kept in the log collections, which MongoDB caps by size.
const LOG_ENTRIES: u64 = 50_000;

pub(super) fn table_name(collection: &str) -> String {
    format!("c/{collection}")
}

/// The key of a document: its `_id` as order-preserving bytes.
pub(super) fn id_key(id: &Bson) -> Result<Vec<u8>> {
    let raw = RawBson::try_from(id.clone())?;
    let mut key = Vec::with_capacity(16);
    order::push_value(&mut key, raw.as_raw_bson_ref())?;
    Ok(key)
}

fn key_of(doc: &RawDocument) -> Result<Vec<u8>> {
    let id = bsonx::get(doc, "_id")
        .ok_or_else(|| Error::internal("a catalog document without _id was to be written").from_router())?;
    let mut key = Vec::with_capacity(16);
    order::push_value(&mut key, id)?;
    Ok(key)
}

pub(super) fn document(bytes: &[u8]) -> Result<RawDocumentBuf> {
    Ok(RawDocument::from_bytes(bytes)?.to_owned())
}

fn index_key(uuid: bson::Uuid, lastmod: ChunkVersion, id: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(24 + id.len());
    key.extend_from_slice(&uuid.bytes());
    key.extend_from_slice(&lastmod.major.to_be_bytes());
    key.extend_from_slice(&lastmod.minor.to_be_bytes());
    key.extend_from_slice(id);
    key
}

/// The part of the chunk index a scan covers: `[low, high)`.
pub(super) fn chunk_index_range(collection: &str, scan: &Scan) -> Option<(Vec<u8>, Vec<u8>)> {
    let (uuid, from) = match scan {
        _ if collection != collection::CHUNKS => return None,
        Scan::ChunksSince { uuid, lastmod } => (*uuid, *lastmod),
        Scan::ByField(field, Bson::Binary(b)) if field == "uuid" => {
            (bson::Uuid::from_bytes(b.bytes.as_slice().try_into().ok()?), ChunkVersion::default())
        }
        _ => return None,
    };
    let mut high = uuid.bytes().to_vec();
    high.extend_from_slice(&[0xff; 9]);
    Some((index_key(uuid, from, &[]), high))
}

/// Whether a scan without an index of its own takes the document.
pub(super) fn selects(scan: &Scan, doc: &RawDocument) -> Result<bool> {
    Ok(match scan {
        Scan::All => true,
        Scan::ByField(field, value) => has_value(doc, field, value)?,
        Scan::Greater(field, than) => bsonx::int(doc, field).is_some_and(|n| n > *than),
        Scan::ChunksSince { uuid, lastmod } => {
            chunk_uuid(doc)? == *uuid
                && model::timestamp(bsonx::get(doc, "lastmod")).is_some_and(|t| ChunkVersion::from(t) >= *lastmod)
        }
    })
}

fn has_value(doc: &RawDocument, field: &str, value: &Bson) -> Result<bool> {
    let value = RawBson::try_from(value.clone())?;
    Ok(bsonx::get(doc, field).is_some_and(|v| order::compare(v, value.as_raw_bson_ref()).is_eq()))
}

pub(super) fn get(txn: &WriteTransaction, collection: &str, id: &Bson) -> Result<Option<RawDocumentBuf>> {
    let name = table_name(collection);
    let table = txn.open_table(Table::new(&name)).map_err(broken)?;
    let found = table.get(id_key(id)?.as_slice()).map_err(broken)?;
    found.map(|g| document(g.value())).transpose()
}

pub(super) fn current_version(txn: &WriteTransaction) -> Result<u64> {
    let doc = get(txn, collection::CATALOG, &Bson::String("version".into()))?;
    Ok(doc.and_then(|d| bsonx::int(&d, "version")).unwrap_or(0) as u64)
}

pub(super) fn put(txn: &WriteTransaction, collection: &str, doc: &RawDocument) -> Result<()> {
    let key = key_of(doc)?;
    let name = table_name(collection);
    let mut table = txn.open_table(Table::new(&name)).map_err(broken)?;
    let old = table.insert(key.as_slice(), doc.as_bytes()).map_err(broken)?;
    if collection == collection::CHUNKS {
        if let Some(old) = old {
            unindex(txn, RawDocument::from_bytes(old.value())?, &key)?;
        }
        let mut index = txn.open_table(CHUNK_INDEX).map_err(broken)?;
        index.insert(chunk_index_key(doc, &key)?.as_slice(), key.as_slice()).map_err(broken)?;
    }
    Ok(())
}

fn chunk_index_key(doc: &RawDocument, key: &[u8]) -> Result<Vec<u8>> {
    let lastmod = model::timestamp(bsonx::get(doc, "lastmod"))
        .ok_or_else(|| model::malformed(collection::CHUNKS, "lastmod", doc))?;
    Ok(index_key(chunk_uuid(doc)?, lastmod.into(), key))
}

fn unindex(txn: &WriteTransaction, doc: &RawDocument, key: &[u8]) -> Result<()> {
    let mut index = txn.open_table(CHUNK_INDEX).map_err(broken)?;
    index.remove(chunk_index_key(doc, key)?.as_slice()).map_err(broken)?;
    Ok(())
}

fn delete_key(txn: &WriteTransaction, collection: &str, key: &[u8]) -> Result<()> {
    let name = table_name(collection);
    let mut table = txn.open_table(Table::new(&name)).map_err(broken)?;
    let old = table.remove(key).map_err(broken)?.map(|g| document(g.value())).transpose()?;
    match old {
        Some(old) if collection == collection::CHUNKS => unindex(txn, &old, key),
        _ => Ok(()),
    }
}

/// Keys of the documents whose field has the value.
fn keys_where(txn: &WriteTransaction, collection: &str, field: &str, value: &Bson) -> Result<Vec<Vec<u8>>> {
    let scan = Scan::ByField(field.to_owned(), value.clone());
    let mut keys = Vec::new();
    if let Some((low, high)) = chunk_index_range(collection, &scan) {
        let index = txn.open_table(CHUNK_INDEX).map_err(broken)?;
        for item in index.range::<&[u8]>(low.as_slice()..high.as_slice()).map_err(broken)? {
            keys.push(item.map_err(broken)?.1.value().to_vec());
        }
        return Ok(keys);
    }
    let name = table_name(collection);
    let table = txn.open_table(Table::new(&name)).map_err(broken)?;
    for item in table.iter().map_err(broken)? {
        let (key, doc) = item.map_err(broken)?;
        if selects(&scan, RawDocument::from_bytes(doc.value())?)? {
            keys.push(key.value().to_vec());
        }
    }
    Ok(keys)
}

/// Drops the oldest entries of a log collection.
pub(super) fn trim(txn: &WriteTransaction, collection: &str) -> Result<()> {
    if !matches!(collection, collection::CHANGELOG | collection::ACTIONLOG) {
        return Ok(());
    }
    let name = table_name(collection);
    let mut table = txn.open_table(Table::new(&name)).map_err(broken)?;
    while table.len().map_err(broken)? > LOG_ENTRIES {
        table.pop_first().map_err(broken)?;
    }
    Ok(())
}

fn holds(txn: &WriteTransaction, check: &Check) -> Result<bool> {
    Ok(match &check.what {
        CheckKind::Exists(id) => get(txn, &check.collection, id)?.is_some(),
        CheckKind::Absent(id) => get(txn, &check.collection, id)?.is_none(),
        CheckKind::Fields(id, fields) => match get(txn, &check.collection, id)? {
            Some(doc) => fields_equal(&doc, fields),
            None => false,
        },
        CheckKind::NoneWhere(field, value) => keys_where(txn, &check.collection, field, value)?.is_empty(),
        CheckKind::Unchanged { topic, since } => {
            let doc = get(txn, collection::CHANGES, &Bson::String(topic.clone()))?;
            doc.and_then(|d| bsonx::int(&d, "version")).is_none_or(|v| v as u64 <= *since)
        }
    })
}

/// Whether `doc` has each of `fields` with an equal value.
pub(super) fn fields_equal(doc: &RawDocument, fields: &RawDocument) -> bool {
    fields
        .iter()
        .flatten()
        .all(|(key, want)| bsonx::get(doc, key.as_str()).is_some_and(|v| order::compare(v, want).is_eq()))
}

/// Applies checks, writes and touches; the caller aborts on an error by dropping the transaction.
pub(super) fn apply(txn: &WriteTransaction, change: &CatalogTxn, version: u64) -> Result<()> {
    for check in &change.checks {
        if !holds(txn, check)? {
            return Err(check.failed());
        }
    }
    for write in &change.writes {
        match write {
            Write::Put { collection, doc } => put(txn, collection, doc)?,
            Write::Insert { collection, doc } => insert(txn, collection, doc)?,
            Write::Delete { collection, id } => delete_key(txn, collection, &id_key(id)?)?,
            Write::DeleteWhere { collection, field, value } => {
                for key in keys_where(txn, collection, field, value)? {
                    delete_key(txn, collection, &key)?;
                }
            }
        }
    }
    for touch in &change.touches {
        match touch {
            Touch::Changed(topic) => put(txn, collection::CHANGES, &Touch::document(topic, version))?,
            Touch::Forget(topic) => delete_key(txn, collection::CHANGES, &id_key(&Bson::String(topic.clone()))?)?,
        }
    }
    Ok(())
}

fn insert(txn: &WriteTransaction, collection: &str, doc: &RawDocument) -> Result<()> {
    let id = bsonx::get(doc, "_id").map(Bson::try_from).transpose()?.unwrap_or(Bson::Null);
    if get(txn, collection, &id)?.is_some() {
        return Err(Error::new(
            Code::ConflictingOperationInProgress,
            format!("config.{collection} has a document with _id {id} already; another operation was faster"),
        )
        .from_router());
    }
    put(txn, collection, doc)
}
