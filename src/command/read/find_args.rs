//! The arguments of find, and the find that several shards get in its place. Pure.

use bson::{RawBsonRef, RawDocument, Timestamp};

use super::numbers::whole;
use crate::bsonx::{self, Writer};
use crate::error::{Code, Error, Result};
use crate::merge::{SORT_KEY, SortOrder};

/// Documents in a first batch for which no size was asked.
pub const FIRST_BATCH: i64 = 101;

/// What the router needs to know of a find. Whatever has a form that only a server can judge sets `odd`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FindArgs<'a> {
    pub filter: Option<&'a RawDocument>,
    pub sort: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
    pub collation: Option<&'a RawDocument>,
    pub read_concern: Option<&'a RawDocument>,
    pub skip: i64,
    /// 0 is no limit.
    pub limit: i64,
    pub batch_size: Option<i64>,
    pub single_batch: bool,
    pub tailable: bool,
    pub await_data: bool,
    pub no_timeout: bool,
    pub allow_partial: bool,
    pub return_key: bool,
    pub resume_token: bool,
    /// Some argument is not as it must be: a server's answer to the whole command says what is wrong.
    pub odd: bool,
}

impl<'a> FindArgs<'a> {
    /// Reads the arguments in one pass.
    pub fn scan(body: &'a RawDocument) -> Self {
        let mut args = FindArgs::default();
        let bytes = body.as_bytes();
        for field in bsonx::fields(bytes) {
            // What is not the find's own is not decoded.
            let foreign = field.key.starts_with(b"$") && field.key != b"$_requestResumeToken";
            if foreign || matches!(field.key, b"find" | b"lsid" | b"comment" | b"let") {
                continue;
            }
            match field.decode(bytes) {
                Some(value) => args.field(field.key, value),
                None => args.odd = true,
            }
        }
        args.odd |= args.await_data && !args.tailable;
        args
    }

    fn field(&mut self, key: &[u8], value: RawBsonRef<'a>) {
        match key {
            b"filter" => self.filter = self.document(value),
            b"sort" => self.sort = self.document(value),
            b"projection" => self.projection = self.document(value),
            b"collation" => self.collation = self.document(value),
            b"readConcern" => self.read_concern = self.document(value),
            b"skip" => self.skip = self.number(value).unwrap_or(0),
            b"limit" => self.limit = self.number(value).unwrap_or(0),
            b"batchSize" => self.batch_size = self.number(value),
            // Unlike the others it must be a boolean, and the shards are not told of it.
            b"singleBatch" => {
                self.odd |= value.as_bool().is_none();
                self.single_batch = bsonx::is_true(value);
            }
            b"tailable" => self.tailable = self.boolean(value),
            b"awaitData" => self.await_data = self.boolean(value),
            b"noCursorTimeout" => self.no_timeout = self.boolean(value),
            b"allowPartialResults" => self.allow_partial = self.boolean(value),
            b"returnKey" => self.return_key = self.boolean(value),
            b"$_requestResumeToken" => self.resume_token = self.boolean(value),
            // Gone since 5.1; a server says so.
            b"ntoreturn" => self.odd |= value != RawBsonRef::Null,
            _ => {}
        }
    }

    fn document(&mut self, value: RawBsonRef<'a>) -> Option<&'a RawDocument> {
        self.odd |= !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Null);
        value.as_document()
    }

    fn number(&mut self, value: RawBsonRef<'a>) -> Option<i64> {
        let number = whole(value);
        self.odd |= number.map_or(value != RawBsonRef::Null, |n| n < 0);
        number
    }

    fn boolean(&mut self, value: RawBsonRef<'a>) -> bool {
        let fits = RawBsonRef::Null == value || value.as_bool().is_some() || whole(value).is_some();
        self.odd |= !fits;
        bsonx::is_true(value)
    }

    /// Documents of the first batch that the client gets at most.
    pub fn first_batch(&self) -> i64 {
        self.batch_size.unwrap_or(FIRST_BATCH)
    }

    /// Documents after `skip` that the client may ever get; `None` is no limit.
    pub fn wanted(&self) -> Option<i64> {
        let limit = (self.limit > 0).then_some(self.limit);
        match self.single_batch {
            true => Some(self.first_batch().min(limit.unwrap_or(i64::MAX))),
            false => limit,
        }
    }

    /// How to merge the shards' documents, and what they must add for it.
    ///
    /// # Errors
    /// CommandNotSupported (115) for what has no order that the router could merge by.
    pub fn merging(&self) -> Result<Merging> {
        let sort = self.sort.filter(|sort| sort.iter_elements().next().is_some());
        let (order, meta) = match sort {
            Some(sort) => match SortOrder::parse(sort) {
                Some(order) => (Some(order), "sortKey"),
                None => (None, ""),
            },
            None if self.filter.is_some_and(has_near) => (Some(SortOrder::ByValue), "geoNearDistance"),
            None => (None, ""),
        };
        if order == Some(SortOrder::ByValue) && self.return_key {
            return Err(Error::new(
                Code::CommandNotSupported,
                "returnKey with $near on more than one shard is not supported: name a sort",
            ));
        }
        let theirs = self.projection.and_then(|p| bsonx::get(p, SORT_KEY));
        let keep = match (&order, theirs) {
            (Some(_), Some(RawBsonRef::Document(spec))) if bsonx::str(spec, "$meta") == Some(meta) => true,
            (Some(_), Some(_)) => {
                return Err(Error::new(
                    Code::BadValue,
                    "Projection contains illegal field '$sortKey': sorted results of several shards are merged by it",
                ));
            }
            _ => false,
        };
        Ok(Merging { order, meta, keep })
    }
}

/// How the documents of several shards become one result.
#[derive(Clone, Debug, PartialEq)]
pub struct Merging {
    pub order: Option<SortOrder>,
    /// What `$sortKey` is computed from.
    meta: &'static str,
    /// The client asked for `$sortKey` itself.
    pub keep: bool,
}

/// What goes into each shard's find beside the client's own fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    pub at_cluster_time: Option<Timestamp>,
    /// In place of the client's `$clusterTime`.
    pub cluster_time: Option<&'a RawDocument>,
    /// The same `$$NOW` and `$$CLUSTER_TIME` for all shards.
    pub now: Option<(bson::DateTime, Timestamp)>,
}

/// The find that every shard gets: enough documents for skip and limit to be applied here, and the sort key.
pub fn shard_find(body: &RawDocument, args: &FindArgs<'_>, merging: &Merging, more: Additions<'_>) -> Vec<u8> {
    let add_key = merging.order.is_some() && !merging.keep;
    let drop = |key: &[u8]| match key {
        b"skip" | b"limit" | b"singleBatch" | b"batchSize" => true,
        b"projection" => add_key,
        _ => more.replaces(key),
    };
    let mut out = Writer::copy_without(body.as_bytes(), drop);
    if let Some(limit) = args.wanted().and_then(|wanted| wanted.checked_add(args.skip)) {
        // A limit of 0 would be none at all.
        out.int64("limit", limit.max(1));
    }
    match args.batch_size {
        Some(0) => {
            out.int64("batchSize", 0);
        }
        Some(size) => {
            out.int64("batchSize", size.saturating_add(args.skip));
        }
        None if args.skip > 0 => {
            out.int64("batchSize", FIRST_BATCH.saturating_add(args.skip));
        }
        None => {}
    }
    if add_key {
        out.open_doc("projection");
        if let Some(projection) = args.projection {
            let bytes = projection.as_bytes();
            out.raw_fields(&bytes[4..bytes.len() - 1]);
        }
        out.open_doc(SORT_KEY).str("$meta", merging.meta).close().close();
    }
    more.append(&mut out, args.read_concern);
    out.finish()
}

impl Additions<'_> {
    /// Whether [`Additions::append`] writes a field of that name.
    pub fn replaces(&self, key: &[u8]) -> bool {
        match key {
            b"readConcern" => self.at_cluster_time.is_some(),
            b"$clusterTime" => self.cluster_time.is_some(),
            b"runtimeConstants" => self.now.is_some(),
            _ => false,
        }
    }

    /// Adds the fields to a command.
    pub fn append(&self, out: &mut Writer, read_concern: Option<&RawDocument>) {
        if let Some(time) = self.at_cluster_time {
            out.open_doc("readConcern");
            if let Some(concern) = read_concern {
                let drop = |key: &[u8]| matches!(key, b"atClusterTime" | b"afterClusterTime");
                let rest = Writer::copy_without(concern.as_bytes(), drop).finish();
                out.raw_fields(&rest[4..rest.len() - 1]);
            }
            out.timestamp("atClusterTime", time).close();
        }
        if let Some(cluster_time) = self.cluster_time {
            out.doc("$clusterTime", cluster_time);
        }
        if let Some((now, cluster_time)) = self.now {
            out.open_doc("runtimeConstants");
            out.raw("localNow", bsonx::kind::DATE, &now.timestamp_millis().to_le_bytes());
            out.timestamp("clusterTime", cluster_time).close();
        }
    }
}

/// Whether results come by distance: `$near` and its relatives, where servers allow them (at the top or in `$and`).
pub fn has_near(filter: &RawDocument) -> bool {
    filter.iter_elements().map_while(std::result::Result::ok).any(|element| match element.value() {
        Ok(RawBsonRef::Array(list)) if element.key().as_str() == "$and" => {
            list.into_iter().map_while(std::result::Result::ok).any(|v| v.as_document().is_some_and(has_near))
        }
        Ok(RawBsonRef::Document(operators)) if !element.key().as_str().starts_with('$') => operators
            .iter_elements()
            .map_while(std::result::Result::ok)
            .any(|e| matches!(e.key().as_str(), "$near" | "$nearSphere" | "$geoNear")),
        _ => false,
    })
}

#[cfg(test)]
#[path = "find_args_tests.rs"]
mod tests;
