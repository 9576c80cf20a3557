//! Which indexes a sharded collection may, must and must not have (REFERENCE A11, E7). Pure.

use std::cmp::Ordering;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::bsonx;
use crate::error::{Code, Error, Result};
use crate::key::{ShardKeyPattern, order, text};

/// What matters of an index, as `listIndexes` and `createIndexes` describe it.
#[derive(Clone, Debug)]
pub struct IndexSpec {
    pub name: String,
    pub key: RawDocumentBuf,
    pub unique: bool,
    pub sparse: bool,
    pub partial: bool,
    pub hidden: bool,
    /// Compares strings by bytes.
    pub simple_collation: bool,
    /// Holds arrays; `listIndexes` does not tell, so who asks a shard sets it.
    pub multikey: bool,
}

/// Whether a `collation` value is absent or `{locale: "simple"}`.
pub fn is_simple_collation(collation: Option<&RawDocument>) -> bool {
    collation.is_none_or(|c| bsonx::str(c, "locale").is_none_or(|l| l == "simple"))
}

impl IndexSpec {
    /// An entry of `listIndexes`, where an absent collation is the simple one.
    pub fn listed(spec: &RawDocument) -> Option<Self> {
        Self::parse(spec, true)
    }

    /// An entry of a `createIndexes` command: without a collation of its own it gets the collection's default one.
    pub fn requested(spec: &RawDocument, default_collation: Option<&RawDocument>) -> Option<Self> {
        Self::parse(spec, is_simple_collation(default_collation))
    }

    fn parse(spec: &RawDocument, simple_by_default: bool) -> Option<Self> {
        let simple_collation = match bsonx::doc(spec, "collation") {
            Some(own) => is_simple_collation(Some(own)),
            None => simple_by_default,
        };
        Some(IndexSpec {
            name: bsonx::str(spec, "name").unwrap_or_default().to_owned(),
            key: bsonx::doc(spec, "key")?.to_owned(),
            unique: bsonx::truthy(spec, "unique").unwrap_or(false),
            sparse: bsonx::truthy(spec, "sparse").unwrap_or(false),
            partial: bsonx::get(spec, "partialFilterExpression").is_some(),
            hidden: bsonx::truthy(spec, "hidden").unwrap_or(false),
            simple_collation,
            multikey: false,
        })
    }

    pub fn is_id_index(&self) -> bool {
        let mut fields = self.key.iter().flatten();
        // `{_id: "hashed"}` is an index like any other.
        let is_id = |(key, value): (&bson::raw::CStr, _)| {
            key.as_str() == "_id" && bsonx::as_int(value).is_some_and(|n| n.abs() == 1)
        };
        fields.next().is_some_and(is_id) && fields.next().is_none()
    }

    /// Whether the index key begins with the whole shard key, field by field.
    pub fn begins_with(&self, key: &ShardKeyPattern) -> bool {
        is_prefix(key.to_doc(), &self.key)
    }

    /// Why the index cannot stand in for the shard key, in the words of the server; `None` if it can.
    pub fn why_unusable(&self, key: &ShardKeyPattern) -> Option<&'static str> {
        if !self.begins_with(key) {
            Some("Shard key is not a prefix of index key.")
        } else if self.partial {
            Some("Index key is partial.")
        } else if self.sparse {
            Some("Index key is sparse.")
        } else if self.multikey {
            Some("Index key is multikey.")
        } else if !self.simple_collation {
            Some("Index has a non-simple collation.")
        } else if self.hidden {
            Some("Index is hidden.")
        } else {
            None
        }
    }

    /// Whether the index supports the shard key: chunks can be read, split and moved by it.
    pub fn supports(&self, key: &ShardKeyPattern) -> bool {
        self.why_unusable(key).is_none()
    }

    /// Whether uniqueness over all shards follows from uniqueness on each: the index begins with the shard key and
    /// compares strings by bytes. An index that begins with `_id` is always allowed, as mongos does (the cluster takes
    /// `_id` for unique). A hashed shard key counts with its plain field, which also fixes the shard.
    pub fn keeps_unique(&self, key: &ShardKeyPattern) -> bool {
        let first = self.key.iter().flatten().next();
        if !self.unique || first.is_some_and(|(name, _)| name.as_str() == "_id") {
            return true;
        }
        self.simple_collation && begins_with_fields(&self.key, key)
    }
}

/// Whether the index's first fields are the shard key's, whatever their kind: `{a: 1}` for a key `{a: "hashed"}`.
fn begins_with_fields(index: &RawDocument, key: &ShardKeyPattern) -> bool {
    let mut fields = index.iter().flatten();
    key.paths().all(|path| fields.next().is_some_and(|(name, kind)| name.as_str() == path && kind.as_str().is_none()))
}

/// Whether `short`'s fields are the first fields of `long`, with equal values.
fn is_prefix(short: &RawDocument, long: &RawDocument) -> bool {
    let mut fields = long.iter().flatten();
    short
        .iter()
        .flatten()
        .all(|(k, v)| fields.next().is_some_and(|(lk, lv)| lk == k && order::compare(lv, v) == Ordering::Equal))
}

/// Refuses a unique index that a sharded collection cannot keep: CannotCreateIndex (67). `createIndexes` calls it for each
/// requested index; `spec` is the index as asked for.
pub fn check_new_index(spec: &IndexSpec, key: &ShardKeyPattern) -> Result<()> {
    if spec.keeps_unique(key) {
        return Ok(());
    }
    Err(Error::new(
        Code::CannotCreateIndex,
        format!(
            "cannot create unique index over {} with shard key pattern {}",
            text::document(&spec.key),
            text::document(key.to_doc())
        ),
    ))
}

/// Refuses to drop the last index that supports the shard key: CannotDropShardKeyIndex (370). `indexes` are all of the
/// collection's, `dropped` tells which go.
pub fn check_drop(indexes: &[IndexSpec], dropped: impl Fn(&IndexSpec) -> bool, key: &ShardKeyPattern) -> Result<()> {
    let (gone, kept): (Vec<_>, Vec<_>) = indexes.iter().partition(|i| dropped(i));
    if !gone.iter().any(|i| i.supports(key)) || kept.iter().any(|i| i.supports(key)) {
        return Ok(());
    }
    Err(Error::new(
        Code::CannotDropShardKeyIndex,
        "Cannot drop the only compatible index for this collection's shard key",
    ))
}

/// The same for hiding (`collMod … {index: {hidden: true}}`).
pub fn check_hide(indexes: &[IndexSpec], name: &str, key: &ShardKeyPattern) -> Result<()> {
    check_drop(indexes, |i| i.name == name, key).map_err(|_| {
        Error::new(
            Code::CannotDropShardKeyIndex,
            format!("Cannot hide index {name}: it is the only one that supports this collection's shard key"),
        )
    })
}

/// What `shardCollection` and `refineCollectionShardKey` find about existing indexes.
#[derive(Debug, PartialEq)]
pub enum Support {
    /// An index supports the key.
    Found,
    /// None begins with the key.
    Missing,
    /// Some begin with it, but none can be used; the text says why for every index.
    Unusable(String),
}

/// Looks for an index that supports `key`. With `unique`, the key itself must be under a unique index.
///
/// Errors: InvalidOptions (72) for a unique index that cannot be kept under this key, and for a key that is to be unique
/// but has only a plain index.
pub fn check_support(ns: &str, indexes: &[IndexSpec], key: &ShardKeyPattern, unique: bool) -> Result<Support> {
    for index in indexes {
        if !index.keeps_unique(key) {
            return Err(Error::new(
                Code::InvalidOptions,
                format!(
                    "can't shard collection '{ns}' with unique index on {} and proposed shard key {}. Uniqueness can't \
                     be maintained unless shard key is a prefix",
                    text::document(&index.key),
                    text::document(key.to_doc())
                ),
            ));
        }
    }
    let exact = |i: &&IndexSpec| i.begins_with(key) && is_prefix(&i.key, key.to_doc());
    let only_plain = |i: &IndexSpec| !i.unique && !i.is_id_index();
    if unique && indexes.iter().any(|i| exact(&i)) && indexes.iter().filter(exact).all(only_plain) {
        return Err(Error::new(
            Code::InvalidOptions,
            format!("can't shard collection {ns}, index not unique and unique index explicitly specified"),
        ));
    }
    if indexes.iter().any(|i| i.supports(key)) {
        return Ok(Support::Found);
    }
    if !indexes.iter().any(|i| i.begins_with(key)) {
        return Ok(Support::Missing);
    }
    let mut why = "couldn't find valid index for shard key".to_owned();
    for index in indexes {
        if let Some(reason) = index.why_unusable(key) {
            why.push_str(&format!("\nIndex {} cannot be used for sharding because: {reason}", index.name));
        }
    }
    Ok(Support::Unusable(why))
}

/// The name MongoDB gives an index: `u_1_t_1`, `k_hashed`.
pub fn default_name(key: &RawDocument) -> String {
    let parts: Vec<String> = key
        .iter()
        .flatten()
        .map(|(name, kind)| match kind {
            RawBsonRef::String(s) => format!("{name}_{s}"),
            other => format!("{name}_{}", bsonx::as_int(other).unwrap_or(1)),
        })
        .collect();
    parts.join("_")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use bson::rawdoc;

    use super::*;

    fn key(doc: RawDocumentBuf) -> ShardKeyPattern {
        ShardKeyPattern::parse(&doc).unwrap()
    }

    fn index(name: &str, key: RawDocumentBuf) -> IndexSpec {
        IndexSpec::listed(&rawdoc! { "name": name, "key": key }).unwrap()
    }

    fn id() -> IndexSpec {
        index("_id_", rawdoc! { "_id": 1 })
    }

    #[test]
    fn supporting_indexes() {
        let k = key(rawdoc! { "u": 1, "t": 1 });
        assert!(index("a", rawdoc! { "u": 1, "t": 1 }).supports(&k));
        assert!(index("a", rawdoc! { "u": 1.0, "t": 1_i64, "z": -1 }).supports(&k));
        for bad in [
            rawdoc! { "u": 1 },
            rawdoc! { "t": 1, "u": 1 },
            rawdoc! { "u": 1, "t": -1 },
            rawdoc! { "u": "hashed", "t": 1 },
        ] {
            assert_eq!(index("a", bad).why_unusable(&k), Some("Shard key is not a prefix of index key."));
        }
        let with = |extra: RawDocumentBuf| {
            let mut spec = rawdoc! { "name": "x", "key": { "u": 1, "t": 1 } };
            extra.iter().flatten().for_each(|(k, v)| spec.append(k, v));
            IndexSpec::listed(&spec).unwrap()
        };
        assert!(!with(rawdoc! { "sparse": true }).supports(&k));
        assert!(!with(rawdoc! { "partialFilterExpression": {} }).supports(&k));
        assert!(!with(rawdoc! { "hidden": true }).supports(&k));
        assert!(!with(rawdoc! { "collation": { "locale": "fr" } }).supports(&k));
        assert!(with(rawdoc! { "collation": { "locale": "simple" } }).supports(&k));
        let h = key(rawdoc! { "a": "hashed" });
        assert!(index("a", rawdoc! { "a": "hashed" }).supports(&h));
        assert!(index("a", rawdoc! { "a": "hashed", "b": 1 }).supports(&h));
        assert!(!index("a", rawdoc! { "a": 1 }).supports(&h));
    }

    #[test]
    fn unique_indexes() {
        let k = key(rawdoc! { "u": 1, "t": 1 });
        let unique = |doc: RawDocumentBuf| IndexSpec { unique: true, ..index("x", doc) };
        assert!(check_new_index(&unique(rawdoc! { "u": 1, "t": 1, "z": 1 }), &k).is_ok());
        assert!(check_new_index(&unique(rawdoc! { "u": -1, "t": 1 }), &k).is_ok());
        assert!(check_new_index(&unique(rawdoc! { "_id": 1 }), &k).is_ok());
        assert!(check_new_index(&index("x", rawdoc! { "z": 1 }), &k).is_ok());
        let error = check_new_index(&unique(rawdoc! { "z": 1 }), &k).unwrap_err();
        assert_eq!(error.message(), "cannot create unique index over { z: 1 } with shard key pattern { u: 1, t: 1 }");
        assert!(error.is(Code::CannotCreateIndex));
        assert!(check_new_index(&unique(rawdoc! { "u": 1 }), &k).is_err());
        let french = IndexSpec { simple_collation: false, ..unique(rawdoc! { "u": 1, "t": 1 }) };
        assert!(check_new_index(&french, &k).is_err());
        let h = key(rawdoc! { "a": "hashed" });
        assert!(check_new_index(&unique(rawdoc! { "a": 1 }), &h).is_ok());
        let inherited = rawdoc! { "key": { "u": 1, "t": 1 }, "unique": true };
        let fr = rawdoc! { "locale": "fr" };
        assert!(check_new_index(&IndexSpec::requested(&inherited, Some(&fr)).unwrap(), &k).is_err());
        assert!(check_new_index(&IndexSpec::requested(&inherited, None).unwrap(), &k).is_ok());
    }

    #[test]
    fn dropping() {
        let k = key(rawdoc! { "u": 1, "t": 1 });
        let both = [id(), index("ut", rawdoc! { "u": 1, "t": 1 }), index("utz", rawdoc! { "u": 1, "t": 1, "z": 1 })];
        assert!(check_drop(&both, |i| i.name == "ut", &k).is_ok());
        let error = check_drop(&both, |i| !i.is_id_index(), &k).unwrap_err();
        assert!(error.is(Code::CannotDropShardKeyIndex));
        assert!(check_drop(&both[..2], |i| i.name == "ut", &k).is_err());
        assert!(check_hide(&both[..2], "ut", &k).is_err());
        assert!(check_drop(&[id()], |i| i.name == "other", &k).is_ok());
    }

    /// The texts as recorded from mongos.
    #[test]
    fn support_for_sharding() {
        let k = key(rawdoc! { "a": 1 });
        assert_eq!(check_support("gold.plain", &[id()], &k, false).unwrap(), Support::Missing);
        let arrays = IndexSpec { multikey: true, ..index("a_1", rawdoc! { "a": 1 }) };
        let Support::Unusable(why) = check_support("gold.arr", &[id(), arrays], &k, false).unwrap() else {
            unreachable!()
        };
        assert_eq!(
            why,
            "couldn't find valid index for shard key\nIndex _id_ cannot be used for sharding because: Shard key is not a prefix \
             of index key.\nIndex a_1 cannot be used for sharding because: Index key is multikey."
        );
        let utx = key(rawdoc! { "u": 1, "t": 1, "x": 1 });
        let utz = IndexSpec { unique: true, ..index("utz", rawdoc! { "u": 1, "t": 1, "z": 1 }) };
        let error = check_support("gold.r", &[utz], &utx, false).unwrap_err();
        assert_eq!(
            error.message(),
            "can't shard collection 'gold.r' with unique index on { u: 1, t: 1, z: 1 } and proposed shard key { u: 1, t: 1, x: 1 \
             }. Uniqueness can't be maintained unless shard key is a prefix"
        );
        let plain = [index("a_1", rawdoc! { "a": 1 })];
        assert_eq!(check_support("g.x", &plain, &k, false).unwrap(), Support::Found);
        assert!(check_support("g.x", &plain, &k, true).unwrap_err().is(Code::InvalidOptions));
        assert_eq!(check_support("g.x", &[id()], &key(rawdoc! { "_id": 1 }), true).unwrap(), Support::Found);
    }

    #[test]
    fn names() {
        assert_eq!(default_name(&rawdoc! { "u": 1, "t": -1.0 }), "u_1_t_-1");
        assert_eq!(default_name(&rawdoc! { "k": "hashed" }), "k_hashed");
    }
}
