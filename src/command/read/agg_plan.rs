//! How an aggregation over several shards is divided: what each shard runs, and how the results become one. Pure.
//!
//! The division is MongoDB's: stages run on the shards until the first one that must see all documents. Sorted results
//! are merged by `$sortKey`; a `$group` is computed in parts, which another `$group` unites; whatever follows runs on
//! one shard over the gathered documents.

use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::bsonx;
use crate::error::{Code, Error, Result};
use crate::key::order::compare_values;
use crate::key::value::{self, Value};
use crate::merge::SortOrder;

use super::numbers::whole;

/// Stages that look at one document at a time.
const STREAMING: &[&str] =
    &["$match", "$project", "$addFields", "$set", "$unset", "$unwind", "$replaceRoot", "$replaceWith", "$redact"];

/// Streaming stages that give exactly one document for each they get: they may pass a `$limit` or `$skip`.
const ONE_TO_ONE: &[&str] = &["$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"];

/// First stages that describe a shard's own state.
const PER_SHARD: &[&str] = &["$collStats", "$indexStats", "$planCacheStats"];

/// Stages that need all documents in one place.
const GATHERING: &[&str] = &[
    "$bucket",
    "$bucketAuto",
    "$facet",
    "$lookup",
    "$graphLookup",
    "$unionWith",
    "$setWindowFields",
    "$densify",
    "$fill",
    "$out",
    "$merge",
    "$sort",
    "$sample",
    "$group",
    "$count",
    "$sortByCount",
    "$limit",
    "$skip",
];

/// Accumulators that give the same whatever the order of their input.
const UNORDERED: &[&str] = &[
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$addToSet",
    "$stdDevPop",
    "$stdDevSamp",
    "$count",
    "$minN",
    "$maxN",
    "$top",
    "$topN",
    "$bottom",
    "$bottomN",
];

/// Accumulators whose input stands in a field of their argument.
const WITH_ARGUMENTS: &[(&str, &str)] = &[
    ("$firstN", "input"),
    ("$lastN", "input"),
    ("$minN", "input"),
    ("$maxN", "input"),
    ("$top", "output"),
    ("$topN", "output"),
    ("$bottom", "output"),
    ("$bottomN", "output"),
    ("$accumulator", "accumulateArgs"),
];

/// Other accumulators that can be computed in parts.
const PLAIN: &[&str] = &[
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$first",
    "$last",
    "$push",
    "$addToSet",
    "$stdDevPop",
    "$stdDevSamp",
    "$mergeObjects",
];

/// Documents of all shards as one stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    pub order: Option<SortOrder>,
    pub skip: u64,
    pub limit: Option<u64>,
}

/// What becomes of the shards' results.
#[derive(Clone, Debug, PartialEq)]
pub enum Merge {
    /// They are the result.
    Stream(Stream),
    /// Every shard gives `{n}`; the result is `{_id?, field: sum}`, or nothing where the sum is 0.
    Count { id: Option<RawBson>, field: String, skip: u64, limit: Option<u64> },
    /// They are gathered, and one shard runs this pipeline over them.
    Pipeline { input: Stream, pipeline: RawArrayBuf },
}

/// A divided aggregation.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What each shard runs.
    pub shard: RawArrayBuf,
    /// Each shard adds `shard: <its name>` after its first stage.
    pub add_shard: bool,
    /// The shards give sort keys and parts of groups instead of results.
    pub needs_merge: bool,
    pub merge: Merge,
}

/// Why there is no plan.
#[derive(Clone, Debug)]
pub enum NoPlan {
    /// Something is wrong with the pipeline, and a server that gets the whole of it says what.
    AskShard,
    Error(Error),
}

impl From<Error> for NoPlan {
    fn from(error: Error) -> Self {
        NoPlan::Error(error)
    }
}

#[derive(Default)]
struct Planner {
    shard: RawArrayBuf,
    stream: Stream,
    /// A limit or skip was seen: only one-to-one stages may still run on the shards.
    bounded: bool,
    add_shard: bool,
}

/// Divides a pipeline.
pub fn plan(stages: &[(&str, RawBsonRef<'_>)]) -> std::result::Result<Plan, NoPlan> {
    let mut planner = Planner::default();
    for (i, &(name, argument)) in stages.iter().enumerate() {
        match name {
            "$changeStream" => {
                return Err(not_yet("$changeStream on a sharded collection", OWN_STREAMS).into());
            }
            name if i == 0 && PER_SHARD.contains(&name) => {
                planner.push(name, argument);
                planner.add_shard = true;
            }
            // In `{aggregate: 1}`, on one shard.
            "$documents" if i == 0 => planner.push(name, argument),
            "$geoNear" if i == 0 => {
                planner.push(name, argument);
                planner.stream.order = Some(ascending());
            }
            name if STREAMING.contains(&name) && (!planner.bounded || ONE_TO_ONE.contains(&name)) => {
                planner.push(name, argument);
            }
            "$sort" if !planner.bounded => {
                let order = argument.as_document().and_then(SortOrder::parse).ok_or(NoPlan::AskShard)?;
                planner.push(name, argument);
                planner.stream.order = Some(order);
            }
            "$sample" if !planner.bounded && planner.stream.order.is_none() => {
                let size = argument.as_document().and_then(|spec| whole(bsonx::get(spec, "size")?));
                let size = size.filter(|n| *n > 0).ok_or(NoPlan::AskShard)?;
                planner.push(name, argument);
                // Each shard numbers its documents at random and gives those with the highest numbers.
                planner.stream.order = Some(SortOrder::ByFields([true].into_iter().collect()));
                planner.limit(size);
            }
            "$limit" => {
                let limit = integer(argument).filter(|n| *n > 0).ok_or(NoPlan::AskShard)?;
                planner.limit(limit);
                planner.push_limit();
            }
            "$skip" => planner.skip(integer(argument).filter(|n| *n >= 0).ok_or(NoPlan::AskShard)?),
            "$group" | "$count" | "$sortByCount" => return planner.group(name, argument, &stages[i + 1..]),
            name if GATHERING.contains(&name) || STREAMING.contains(&name) => return planner.rest(&stages[i..]),
            _ => return Err(NoPlan::AskShard),
        }
    }
    let needs_merge = planner.stream.order.is_some();
    Ok(planner.finish(needs_merge, Merge::Stream))
}

impl Planner {
    fn push(&mut self, name: &str, argument: RawBsonRef<'_>) {
        self.shard.push(stage_doc(name, argument));
    }

    fn limit(&mut self, limit: i64) {
        let limit = limit as u64;
        self.stream.limit = Some(self.stream.limit.map_or(limit, |l| l.min(limit)));
        self.bounded = true;
    }

    fn skip(&mut self, skip: i64) {
        let skip = skip as u64;
        self.stream.skip = self.stream.skip.saturating_add(skip);
        self.stream.limit = self.stream.limit.map(|limit| limit.saturating_sub(skip));
        self.bounded = true;
    }

    /// No shard needs to give more than this.
    fn push_limit(&mut self) {
        let limit = self.stream.limit.unwrap_or(0).saturating_add(self.stream.skip);
        if let Ok(limit) = i64::try_from(limit) {
            self.shard.push(rawdoc! { "$limit": limit.max(1) });
        }
    }

    fn finish(self, needs_merge: bool, merge: impl FnOnce(Stream) -> Merge) -> Plan {
        Plan { shard: self.shard, add_shard: self.add_shard, needs_merge, merge: merge(self.stream) }
    }

    /// The stages from here on run over the gathered documents.
    fn rest(self, stages: &[(&str, RawBsonRef<'_>)]) -> std::result::Result<Plan, NoPlan> {
        let mut pipeline = RawArrayBuf::new();
        stages.iter().for_each(|(name, argument)| pipeline.push(stage_doc(name, *argument)));
        check_gathered(&pipeline)?;
        let needs_merge = self.stream.order.is_some();
        Ok(self.finish(needs_merge, |input| Merge::Pipeline { input, pipeline }))
    }

    /// `$group` and what is made of it.
    fn group(
        mut self,
        name: &str,
        argument: RawBsonRef<'_>,
        after: &[(&str, RawBsonRef<'_>)],
    ) -> std::result::Result<Plan, NoPlan> {
        if let Some((id, field)) = counting(name, argument).filter(|_| after.is_empty()) {
            self.shard.push(rawdoc! { "$count": "n" });
            return Ok(self.finish(false, |s| Merge::Count { id, field, skip: s.skip, limit: s.limit }));
        }
        let Some((group, then)) = as_group(name, argument) else { return Err(NoPlan::AskShard) };
        let parts = (!self.bounded).then(|| in_parts(&group, self.stream.order.is_some())).flatten();
        let Some(unite) = parts else {
            let mut stages: Vec<(&str, RawBsonRef<'_>)> = vec![(name, argument)];
            stages.extend_from_slice(after);
            return self.rest(&stages);
        };
        self.stream.order = None;
        self.shard.push(rawdoc! { "$group": group });
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(rawdoc! { "$group": unite });
        then.into_iter().for_each(|stage| pipeline.push(stage));
        after.iter().for_each(|(name, argument)| pipeline.push(stage_doc(name, *argument)));
        check_gathered(&pipeline)?;
        Ok(self.finish(true, |input| Merge::Pipeline { input, pipeline }))
    }
}

fn stage_doc(name: &str, argument: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut doc = RawDocumentBuf::new();
    if let Ok(name) = bson::raw::CString::try_from(name) {
        doc.append(&name, argument);
    }
    doc
}

fn ascending() -> SortOrder {
    SortOrder::ByFields([false].into_iter().collect())
}

/// The argument of `$limit` and `$skip`: a number without fraction.
fn integer(argument: RawBsonRef<'_>) -> Option<i64> {
    match argument {
        RawBsonRef::Double(n) if n.fract() != 0.0 => None,
        RawBsonRef::Decimal128(_) => {
            let number = whole(argument)?;
            let same = |exact: Value<'_>| Ok(compare_values(exact, Value::Int64(number)).is_eq());
            value::with(argument, same).ok()?.then_some(number)
        }
        other => whole(other),
    }
}

/// Gathered documents carry no metadata: text scores, distances and sort keys are gone.
fn check_gathered(pipeline: &RawArray) -> Result<()> {
    if pipeline.as_bytes().windows(6).any(|w| w == b"$meta\0") {
        return Err(not_yet("$meta after a stage that gathers the documents of several shards", ONE_SHARD));
    }
    Ok(())
}

/// The error for what is right but not there.
pub fn not_yet(what: &str, instead: &str) -> Error {
    Error::new(Code::CommandNotSupported, format!("{what} is not supported yet; {instead}"))
}

/// What is left to do where documents of several shards would have to be in one place.
pub const ONE_SHARD: &str = "restrict the first $match to one shard, or use an unsharded collection";

/// What is left to do where another collection is not at hand.
pub const TWO_READS: &str =
    "read the other collection by a command of its own, or leave it unsharded on the same shard";

/// What is left to do where results cannot be written by the pipeline.
pub const WRITE_BACK: &str =
    "read the results and write them by insert or update, or name an unsharded collection on the same shard";

/// What is left to do without change streams.
pub const OWN_STREAMS: &str = "watch an unsharded collection, or the shards themselves one by one";

/// A stage that only counts documents: `$count`, or `$group` with a constant `_id` and one `{$sum: 1}`.
fn counting(name: &str, argument: RawBsonRef<'_>) -> Option<(Option<RawBson>, String)> {
    if name == "$count" {
        return count_field(argument).map(|field| (None, field.to_owned()));
    }
    let spec = argument.as_document().filter(|_| name == "$group")?;
    let mut fields = spec.iter();
    let (id, count) = (fields.next()?.ok()?, fields.next()?.ok()?);
    if fields.next().is_some() || id.0.as_str() != "_id" {
        return None;
    }
    let constant = match id.1 {
        RawBsonRef::String(text) => !text.starts_with('$'),
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) | RawBsonRef::Null => true,
        RawBsonRef::Boolean(_) | RawBsonRef::ObjectId(_) => true,
        _ => false,
    };
    let one = count
        .1
        .as_document()
        .is_some_and(|sum| sum.iter().count() == 1 && bsonx::get(sum, "$sum") == Some(RawBsonRef::Int32(1)));
    let field = count.0.as_str();
    let plain = !field.contains('.') && !field.starts_with('$');
    (constant && one && plain).then(|| (Some(id.1.into()), field.to_owned()))
}

/// The argument of `$count`, if it is a legal one.
fn count_field(argument: RawBsonRef<'_>) -> Option<&str> {
    argument.as_str().filter(|f| !f.is_empty() && !f.starts_with('$') && !f.contains('.') && !f.contains('\0'))
}

/// `$count` and `$sortByCount` as the `$group` they stand for, with the stages that follow it.
fn as_group(name: &str, argument: RawBsonRef<'_>) -> Option<(RawDocumentBuf, Vec<RawDocumentBuf>)> {
    match name {
        "$count" => {
            let field = bson::raw::CString::try_from(count_field(argument)?).ok()?;
            let mut group = rawdoc! { "_id": RawBson::Null };
            group.append(&field, rawdoc! { "$sum": 1 });
            Some((group, vec![rawdoc! { "$project": { "_id": 0 } }]))
        }
        "$sortByCount" => {
            let expression = match argument {
                RawBsonRef::String(path) => path.starts_with('$'),
                RawBsonRef::Document(doc) => bsonx::first_key(doc.as_bytes()).is_some_and(|k| k.starts_with('$')),
                _ => false,
            };
            let mut group = RawDocumentBuf::new();
            group.append(cstr!("_id"), argument);
            group.append(cstr!("count"), rawdoc! { "$sum": 1 });
            expression.then(|| (group, vec![rawdoc! { "$sort": { "count": -1 } }]))
        }
        _ => Some((argument.as_document()?.to_owned(), Vec::new())),
    }
}

/// The `$group` that unites the parts of this one; `None` where it cannot be computed in parts, or would depend on
/// the order of sorted input.
fn in_parts(group: &RawDocument, sorted: bool) -> Option<RawDocumentBuf> {
    let mut unite = rawdoc! { "_id": "$$ROOT._id" };
    for (field, spec) in group.iter().map_while(std::result::Result::ok) {
        if field.as_str() == "_id" {
            continue;
        }
        let spec = spec.as_document()?;
        let (name, argument) = super::stages::stage(RawBsonRef::Document(spec)).ok()?;
        if sorted && !UNORDERED.contains(&name) {
            return None;
        }
        let part = format!("$$ROOT.{}", field.as_str());
        let accumulator = if name == "$count" {
            rawdoc! { "$sum": part }
        } else if PLAIN.contains(&name) {
            stage_doc(name, RawBsonRef::String(&part))
        } else {
            let (_, input) = WITH_ARGUMENTS.iter().find(|(accumulator, _)| *accumulator == name)?;
            let mut arguments = RawDocumentBuf::new();
            for (key, value) in argument.as_document()?.iter().map_while(std::result::Result::ok) {
                match key.as_str() == *input {
                    true => arguments.append(key, part.as_str()),
                    false => arguments.append(key, value),
                }
            }
            stage_doc(name, RawBsonRef::Document(&arguments))
        };
        unite.append(field, accumulator);
    }
    unite.append(cstr!("$doingMerge"), true);
    Some(unite)
}

#[cfg(test)]
#[path = "agg_plan_tests.rs"]
mod tests;
