//! The set of values that `distinct` gives: every value once, in BSON order. Pure.

use std::cmp::Ordering;

use bson::Timestamp;
use bytes::Bytes;

use crate::bsonx::Writer;
use crate::error::{Error, Result};
use crate::key::order::compare_values;
use crate::key::value::{Elem, Elements, Value, tag};
use crate::merge::push_decimal;
use crate::wire::MAX_BSON;

/// Values of several shards, as they were collected.
#[derive(Debug, Default)]
pub struct DistinctValues {
    values: Vec<(u8, Bytes)>,
    /// Bytes of all values.
    size: usize,
}

impl DistinctValues {
    /// Adds the items of an array.
    ///
    /// # Errors
    /// InvalidBSON (22).
    pub fn add_array(&mut self, array: &Bytes) -> Result<()> {
        for item in Elements::new(array)? {
            let item = item?;
            self.add(item.tag, array.slice_ref(item.data));
        }
        Ok(())
    }

    fn add(&mut self, tag: u8, data: Bytes) {
        self.size += data.len();
        self.values.push((tag, data));
    }

    /// The values at a path in documents, arrays on the way and at the end taken apart.
    ///
    /// # Errors
    /// InvalidBSON (22).
    pub fn of_documents<'a>(docs: impl Iterator<Item = &'a [u8]>, path: &str) -> Result<Self> {
        let mut values = DistinctValues::default();
        for doc in docs {
            values.follow(doc, path)?;
        }
        Ok(values)
    }

    fn follow(&mut self, doc: &[u8], path: &str) -> Result<()> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        for elem in Elements::new(doc)? {
            let elem = elem?;
            if elem.name != name.as_bytes() {
                continue;
            }
            match (rest, elem.tag) {
                (None, tag::ARRAY) => self.add_array(&Bytes::copy_from_slice(elem.data))?,
                (None, tag) => self.add(tag, Bytes::copy_from_slice(elem.data)),
                (Some(rest), tag::DOCUMENT) => self.follow(elem.data, rest)?,
                (Some(rest), tag::ARRAY) => {
                    for item in Elements::new(elem.data)? {
                        let item = item?;
                        if item.tag == tag::DOCUMENT {
                            self.follow(item.data, rest)?;
                        }
                    }
                }
                _ => {}
            }
            return Ok(());
        }
        Ok(())
    }

    /// Every value once, in BSON order under the simple collation.
    fn sort(&mut self) {
        self.values.sort_by(compare);
        self.values.dedup_by(|a, b| compare(a, b).is_eq());
        self.size = self.values.iter().map(|(_, data)| data.len()).sum();
    }

    /// Appends the values as an array's fields, as they are.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (i, (tag, data)) in self.values.iter().enumerate() {
            out.push(*tag);
            push_decimal(out, i);
            out.push(0);
            out.extend_from_slice(data);
        }
    }

    /// Bytes that [`DistinctValues::write`] appends at most.
    pub fn written_len(&self) -> usize {
        self.size + self.values.len() * 9
    }

    /// `{values: […], ok: 1}`, sorted.
    ///
    /// # Errors
    /// 17217 where the values take more than 16 MiB.
    pub fn reply(mut self, at_cluster_time: Option<Timestamp>) -> Result<Bytes> {
        self.sort();
        if self.written_len() > MAX_BSON {
            return Err(too_big());
        }
        let mut items = Vec::with_capacity(self.written_len());
        self.write(&mut items);
        let mut out = Writer::with_capacity(items.len() + 64);
        out.open_array("values").raw_fields(&items).close();
        if let Some(time) = at_cluster_time {
            out.timestamp("atClusterTime", time);
        }
        out.double("ok", 1.0);
        Ok(out.finish().into())
    }
}

fn compare(a: &(u8, Bytes), b: &(u8, Bytes)) -> Ordering {
    match (view(a), view(b)) {
        (Ok(a), Ok(b)) => compare_values(a, b),
        _ => Ordering::Equal,
    }
}

fn view((tag, data): &(u8, Bytes)) -> Result<Value<'_>> {
    Elem { tag: *tag, name: b"", data }.value()
}

/// The error of a server whose distinct values do not fit into a reply.
pub fn too_big() -> Error {
    Error::with_code(17217, "distinct too big, 16mb cap")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Bson, bson, doc, rawdoc};

    fn values(reply: Bytes) -> Vec<Bson> {
        crate::bsonx::check(&reply).unwrap();
        bson::Document::from_reader(&*reply).unwrap().get_array("values").unwrap().clone()
    }

    #[test]
    fn a_union_in_bson_order() {
        let mut set = DistinctValues::default();
        for list in [
            rawdoc! { "v": [3, "b", { "a": 1 }, [5, 6], bson::RawBson::Null] },
            rawdoc! { "v": [3.0, 1_i64, "a", [5, 6], true, { "a": 2 }] },
            rawdoc! { "v": [] },
        ] {
            let array = crate::bsonx::array(&list, "v").unwrap().as_bytes().to_vec();
            set.add_array(&array.into()).unwrap();
        }
        let wanted = bson!([Bson::Null, 1_i64, 3, "a", "b", { "a": 1 }, { "a": 2 }, [5, 6], true]);
        assert_eq!(Bson::Array(values(set.reply(None).unwrap())), wanted);
    }

    #[test]
    fn paths_through_documents() {
        let docs = [
            rawdoc! { "a": { "b": [1, 2] } },
            rawdoc! { "a": [{ "b": 3 }, { "b": { "c": 1 } }, 5] },
            rawdoc! { "a": 7 },
            rawdoc! { "x": 1 },
        ];
        let set = DistinctValues::of_documents(docs.iter().map(|d| d.as_bytes()), "a.b").unwrap();
        assert_eq!(values(set.reply(None).unwrap()), [1.into(), 2.into(), 3.into(), doc! { "c": 1 }.into()]);
    }

    #[test]
    fn limits_and_times() {
        let time = Timestamp { time: 1, increment: 2 };
        let reply = DistinctValues::default().reply(Some(time)).unwrap();
        let wanted = doc! { "values": [], "atClusterTime": time, "ok": 1.0 };
        assert_eq!(bson::Document::from_reader(&*reply).unwrap(), wanted);
        let doc = |i: usize| rawdoc! { "a": format!("{i}{}", "x".repeat(1 << 20)) };
        let docs: Vec<_> = (0..16).map(doc).collect();
        let set = DistinctValues::of_documents(docs.iter().map(|d| d.as_bytes()), "a").unwrap();
        assert_eq!(set.reply(None).unwrap_err().code(), 17217);
    }
}
