//! Pipelines that read other collections which are not where they run: what of those must be brought there, and the
//! pipeline over what was brought. Pure.

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::stages;
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::Namespace;
use crate::error::Result;
use crate::merge::Packed;

/// Stages that a pipeline within another one cannot have: they stay where a server says so.
const NOT_WITHIN: &[&str] = &["$out", "$merge", "$changeStream", "$currentOp", "$listLocalSessions"];

/// What has to be brought of one collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    pub ns: Namespace,
    /// The stage that reads it.
    pub stage: &'static str,
    /// What can be run where the collection is, once for all.
    pub pipeline: RawArrayBuf,
    /// Each document as [`Packed`] wraps it; else as it is.
    pub wrapped: bool,
    /// Where the values stand, in the documents as they are brought, by which they will be looked up.
    pub index: Option<String>,
    /// For the first stage of all, where it looks up values: the field of the pipeline's documents that holds them, and
    /// that of the collection's.
    pub join: Option<(String, String)>,
}

/// The pipeline with every collection it reads replaced by the name that `bring` gives; targets of `$out` and `$merge`
/// get their database. `db` is where the pipeline's names belong.
pub fn rewritten(db: &str, pipeline: &RawArray, bring: &mut dyn FnMut(Need) -> String) -> Result<RawArrayBuf> {
    Rewriter { db, bring }.pipeline(pipeline.into_iter().map_while(std::result::Result::ok), &mut Vec::new(), true)
}

struct Rewriter<'a> {
    db: &'a str,
    bring: &'a mut dyn FnMut(Need) -> String,
}

impl Rewriter<'_> {
    /// `scope` has the variables of the stages around; `top`: the pipeline is in no other.
    fn pipeline<'s>(
        &mut self,
        stages: impl Iterator<Item = RawBsonRef<'s>>,
        scope: &mut Vec<String>,
        top: bool,
    ) -> Result<RawArrayBuf> {
        let mut out = RawArrayBuf::new();
        for (i, value) in stages.enumerate() {
            let Ok((name, argument)) = stages::stage(value) else {
                out.push(value);
                continue;
            };
            match self.stage(name, argument, scope, top && i == 0)? {
                Some(stage) => out.push(stage),
                None => out.push(value),
            }
        }
        Ok(out)
    }

    fn stage(
        &mut self,
        name: &str,
        argument: RawBsonRef<'_>,
        scope: &mut Vec<String>,
        first: bool,
    ) -> Result<Option<RawDocumentBuf>> {
        Ok(match (name, argument) {
            ("$lookup", RawBsonRef::Document(spec)) => Some(self.lookup(spec, scope, first)?),
            ("$graphLookup", RawBsonRef::Document(spec)) => self.graph_lookup(spec, scope)?,
            ("$unionWith", argument) => self.union(argument, scope)?,
            ("$facet", RawBsonRef::Document(spec)) => {
                let mut facets = RawDocumentBuf::new();
                for (name, facet) in spec.iter().map_while(std::result::Result::ok) {
                    match facet {
                        RawBsonRef::Array(inner) => facets.append(name, self.nested(inner, scope)?),
                        other => facets.append(name, other),
                    }
                }
                Some(rawdoc! { "$facet": facets })
            }
            ("$out", RawBsonRef::String(coll)) => Some(rawdoc! { "$out": self.target(coll) }),
            ("$merge", RawBsonRef::String(coll)) => Some(rawdoc! { "$merge": { "into": self.target(coll) } }),
            ("$merge", RawBsonRef::Document(spec)) => bsonx::str(spec, "into").map(|coll| {
                let merge = replaced(spec, "into", self.target(coll));
                rawdoc! { "$merge": merge }
            }),
            _ => None,
        })
    }

    fn target(&self, coll: &str) -> RawDocumentBuf {
        rawdoc! { "db": self.db, "coll": coll }
    }

    fn nested(&mut self, pipeline: &RawArray, scope: &mut Vec<String>) -> Result<RawArrayBuf> {
        self.pipeline(pipeline.into_iter().map_while(std::result::Result::ok), scope, false)
    }

    fn lookup(&mut self, spec: &RawDocument, scope: &mut Vec<String>, first: bool) -> Result<RawDocumentBuf> {
        let depth = scope.len();
        let variables = bsonx::doc(spec, "let").into_iter().flat_map(RawDocument::iter_elements);
        scope.extend(variables.map_while(std::result::Result::ok).map(|v| v.key().as_str().to_owned()));
        let asked = bsonx::array(spec, "pipeline");
        let from = bsonx::str(spec, "from").and_then(|from| Namespace::new(self.db, from).ok());
        let local = bsonx::str(spec, "localField");
        let foreign = bsonx::str(spec, "foreignField");
        let mut out = Writer::copy_without(spec.as_bytes(), |key| {
            key == b"pipeline" || from.is_some() && matches!(key, b"from" | b"foreignField")
        });
        let Some(ns) = from else {
            // It reads what its own pipeline makes.
            if let Some(asked) = asked {
                out.raw("pipeline", kind::ARRAY, self.nested(asked, scope)?.as_bytes());
            }
            scope.truncate(depth);
            return Ok(stage_of("$lookup", out));
        };
        // What is looked up by value comes before the pipeline: only filters may change places with that.
        let filters_only = local.is_some() || foreign.is_some();
        let (pushed, rest) = divide(asked, scope, filters_only);
        let equals = asked.and_then(|asked| compared(asked, rest)).filter(|(path, _)| is_path(path));
        let by_variable = equals.as_ref().map(|(path, _)| path.as_str());
        let index = foreign.or(by_variable).filter(|path| is_path(path)).map(within);
        let join = local.zip(foreign).filter(|_| first).map(|(l, f)| (l.to_owned(), f.to_owned()));
        let name = (self.bring)(Need { ns, stage: "$lookup", pipeline: pushed, wrapped: true, index, join });
        let rest = asked.into_iter().flatten().skip(rest).map_while(std::result::Result::ok);
        let mut pipeline = RawArrayBuf::new();
        // A server looks into an index before it unwraps only where it is told to.
        if let Some((path, variable)) = equals {
            let path = format!("${}", within(&path));
            pipeline.push(rawdoc! { "$match": { "$expr": { "$eq": [path, variable] } } });
        }
        pipeline.push(unwrap());
        self.pipeline(rest, scope, false)?
            .into_iter()
            .map_while(std::result::Result::ok)
            .for_each(|s| pipeline.push(s));
        out.str("from", &name);
        if let Some(path) = foreign {
            // A server says what is wrong with one that is none.
            let path = if is_path(path) { within(path) } else { path.to_owned() };
            out.str("foreignField", &path);
        }
        out.raw("pipeline", kind::ARRAY, pipeline.as_bytes());
        scope.truncate(depth);
        Ok(stage_of("$lookup", out))
    }

    fn graph_lookup(&mut self, spec: &RawDocument, scope: &[String]) -> Result<Option<RawDocumentBuf>> {
        let Some(from) = bsonx::str(spec, "from") else { return Ok(None) };
        let Ok(ns) = Namespace::new(self.db, from) else { return Ok(None) };
        let mut pipeline = RawArrayBuf::new();
        // It is kept in its place, too: what is brought is only to be less.
        if let Some(filter) = bsonx::doc(spec, "restrictSearchWithMatch")
            && !names_one_of(filter.as_bytes(), scope)
        {
            pipeline.push(rawdoc! { "$match": filter.to_owned() });
        }
        let index = bsonx::str(spec, "connectToField").map(str::to_owned);
        let need = Need { ns, stage: "$graphLookup", pipeline, wrapped: false, index, join: None };
        let name = (self.bring)(need);
        let mut out = Writer::copy_without(spec.as_bytes(), |key| key == b"from");
        out.str("from", &name);
        Ok(Some(stage_of("$graphLookup", out)))
    }

    fn union(&mut self, argument: RawBsonRef<'_>, scope: &mut Vec<String>) -> Result<Option<RawDocumentBuf>> {
        let (coll, asked) = match argument {
            RawBsonRef::String(coll) => (Some(coll), None),
            RawBsonRef::Document(spec) => (bsonx::str(spec, "coll"), bsonx::array(spec, "pipeline")),
            _ => return Ok(None),
        };
        let Some(ns) = coll.and_then(|coll| Namespace::new(self.db, coll).ok()) else {
            let Some(asked) = asked else { return Ok(None) };
            let inner = self.nested(asked, scope)?;
            return Ok(argument.as_document().map(|spec| rawdoc! { "$unionWith": replaced(spec, "pipeline", inner) }));
        };
        let (pipeline, rest) = divide(asked, scope, false);
        let need = Need { ns, stage: "$unionWith", pipeline, wrapped: true, index: None, join: None };
        let name = (self.bring)(need);
        let mut inner = RawArrayBuf::new();
        inner.push(unwrap());
        let rest = asked.into_iter().flatten().skip(rest).map_while(std::result::Result::ok);
        self.pipeline(rest, scope, false)?.into_iter().map_while(std::result::Result::ok).for_each(|s| inner.push(s));
        let others =
            |spec: &RawDocument| Writer::copy_without(spec.as_bytes(), |key| matches!(key, b"coll" | b"pipeline"));
        let mut out = argument.as_document().map(others).unwrap_or_default();
        out.str("coll", &name).raw("pipeline", kind::ARRAY, inner.as_bytes());
        Ok(Some(stage_of("$unionWith", out)))
    }
}

/// The path in a wrapped document.
fn within(path: &str) -> String {
    format!("{}.{path}", Packed::FIELD)
}

/// Whether servers take it for the path of a field.
fn is_path(path: &str) -> bool {
    path.split('.').all(|part| !part.is_empty() && !part.starts_with('$') && !part.contains('\0'))
}

/// The stage that makes of a wrapped document the document.
pub fn unwrap() -> RawDocumentBuf {
    rawdoc! { "$replaceRoot": { "newRoot": format!("${}", Packed::FIELD) } }
}

/// The stages at the beginning that depend on no variable of the stages around, and how many there are.
fn divide(pipeline: Option<&RawArray>, scope: &[String], filters_only: bool) -> (RawArrayBuf, usize) {
    let mut pushed = RawArrayBuf::new();
    let mut count = 0;
    for value in pipeline.into_iter().flatten().map_while(std::result::Result::ok) {
        let Ok((name, _)) = stages::stage(value) else { break };
        let Some(stage) = value.as_document() else { break };
        if filters_only && name != "$match" || NOT_WITHIN.contains(&name) || names_one_of(stage.as_bytes(), scope) {
            break;
        }
        pushed.push(stage.to_owned());
        count += 1;
    }
    (pushed, count)
}

/// Whether the bytes may hold one of these variables (`$$name`): beginnings of longer names count too.
fn names_one_of(bytes: &[u8], variables: &[String]) -> bool {
    if variables.is_empty() {
        return false;
    }
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|two| two == b"$$") {
        rest = &rest[at + 2..];
        if variables.iter().any(|name| rest.starts_with(name.as_bytes())) {
            return true;
        }
    }
    false
}

/// The path and the variable (`$$name`) that the stage at `at` compares by `$expr` and `$eq`, alone or within `$and`.
fn compared(pipeline: &RawArray, at: usize) -> Option<(String, String)> {
    let stage = pipeline.into_iter().nth(at)?.ok()?;
    let (_, filter) = stages::stage(stage).ok().filter(|stage| stage.0 == "$match")?;
    let expression = bsonx::doc(filter.as_document()?, "$expr")?;
    let compared = |expression: &RawDocument| {
        let mut sides = bsonx::array(expression, "$eq")?.into_iter().map_while(std::result::Result::ok);
        let (Some(RawBsonRef::String(a)), Some(RawBsonRef::String(b)), None) =
            (sides.next(), sides.next(), sides.next())
        else {
            return None;
        };
        let pair = |one: &str, other: &str| {
            let path = one.strip_prefix('$').filter(|path| !path.starts_with('$') && !path.is_empty())?;
            other.starts_with("$$").then(|| (path.to_owned(), other.to_owned()))
        };
        pair(a, b).or_else(|| pair(b, a))
    };
    let all = bsonx::array(expression, "$and").into_iter().flatten().map_while(std::result::Result::ok);
    let alone = (expression.iter_elements().count() == 1).then(|| compared(expression)).flatten();
    alone.or_else(|| all.filter_map(|one| one.as_document()).find_map(compared))
}

fn stage_of(name: &str, argument: Writer) -> RawDocumentBuf {
    let argument = argument.finish();
    let mut stage = RawDocumentBuf::new();
    if let Ok(name) = bson::raw::CString::try_from(name) {
        stage.append(&name, bsonx::view(&argument));
    }
    stage
}

/// The document with another value for one of its fields.
fn replaced(doc: &RawDocument, field: &str, value: impl bson::raw::BindRawBsonRef) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (key, other) in doc.iter().map_while(std::result::Result::ok) {
        if key.as_str() != field {
            out.append(key, other);
        }
    }
    if let Ok(field) = bson::raw::CString::try_from(field) {
        out.append(&field, value);
    }
    out
}

#[cfg(test)]
#[path = "agg_foreign_tests.rs"]
mod tests;
