//! A small, slow matcher for the filters of [`super::testgen`], written from what a real server answers. The fuzz targets
//! include it too, so it reaches the crate through `super::key` only.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cmp::Ordering;

use bson::{Bson, Document, RawBson};

use super::key::{order, value};

/// How strings compare: by bytes, or ignoring ASCII case.
#[derive(Clone, Copy)]
pub struct Matcher {
    pub fold_case: bool,
}

impl Matcher {
    pub fn matches(self, filter: &Document, doc: &Document) -> bool {
        filter.iter().all(|(name, value)| match (name.as_str(), value) {
            ("$and", Bson::Array(parts)) => parts.iter().all(|p| self.matches(p.as_document().unwrap(), doc)),
            ("$or", Bson::Array(parts)) => parts.iter().any(|p| self.matches(p.as_document().unwrap(), doc)),
            ("$nor", Bson::Array(parts)) => !parts.iter().any(|p| self.matches(p.as_document().unwrap(), doc)),
            ("$expr", e) => self.expression(e, doc),
            (path, Bson::Document(ops)) if ops.keys().next().is_some_and(|k| k.starts_with('$')) => {
                self.operators(ops, resolve(path, doc))
            }
            (path, value) => self.literal(value, resolve(path, doc)),
        })
    }

    fn literal(self, wanted: &Bson, value: Option<&Bson>) -> bool {
        match wanted {
            Bson::RegularExpression(_) => regex_matches(wanted, value),
            wanted => self.equal(wanted, value),
        }
    }

    fn operators(self, ops: &Document, value: Option<&Bson>) -> bool {
        ops.iter().all(|(op, operand)| match (op.as_str(), operand) {
            ("$eq", v) => self.equal(v, value),
            ("$ne", v) => !self.equal(v, value),
            ("$in", Bson::Array(list)) => list.iter().any(|v| self.literal(v, value)),
            ("$nin", Bson::Array(list)) => !list.iter().any(|v| self.literal(v, value)),
            ("$not", Bson::Document(inner)) => !self.operators(inner, value),
            ("$exists", Bson::Boolean(wanted)) => value.is_some() == *wanted,
            ("$regex", v) => regex_matches(v, value),
            ("$type", Bson::Array(list)) => list.iter().any(|t| has_type(t.as_str().unwrap(), value)),
            ("$type", t) => has_type(t.as_str().unwrap(), value),
            (op, v) => self.compares(op, v, value),
        })
    }

    fn equal(self, wanted: &Bson, value: Option<&Bson>) -> bool {
        match (wanted, value) {
            (Bson::Null, None | Some(Bson::Null | Bson::Undefined)) => true,
            (_, None) => false,
            (wanted, Some(value)) => self.order(value, wanted).is_eq(),
        }
    }

    /// `$lt`, `$lte`, `$gt`, `$gte` within the operand's type.
    fn compares(self, op: &str, operand: &Bson, value: Option<&Bson>) -> bool {
        let inclusive = op.ends_with('e');
        match operand {
            Bson::Null => inclusive && self.equal(operand, value),
            v if is_nan(v) => inclusive && value.is_some_and(is_nan),
            Bson::MinKey | Bson::MaxKey => holds(op, self.order(value.unwrap_or(&Bson::Undefined), operand)),
            _ => value
                .is_some_and(|v| canonical(v) == canonical(operand) && !is_nan(v) && holds(op, self.order(v, operand))),
        }
    }

    fn expression(self, e: &Bson, doc: &Document) -> bool {
        let (op, operands) = e.as_document().unwrap().iter().next().unwrap();
        let operands = operands.as_array().unwrap();
        match op.as_str() {
            "$and" => operands.iter().all(|o| self.expression(o, doc)),
            "$or" => operands.iter().any(|o| self.expression(o, doc)),
            "$in" => {
                let value = evaluate(&operands[0], doc);
                operands[1].as_array().unwrap().iter().any(|v| self.order(&value, &evaluate(v, doc)).is_eq())
            }
            op => holds(op, self.order(&evaluate(&operands[0], doc), &evaluate(&operands[1], doc))),
        }
    }

    fn order(self, a: &Bson, b: &Bson) -> Ordering {
        let raw = |v: &Bson| RawBson::try_from(if self.fold_case { fold(v) } else { v.clone() }).unwrap();
        order::compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref())
    }
}

fn holds(op: &str, order: Ordering) -> bool {
    match op {
        "$eq" => order.is_eq(),
        "$lt" => order.is_lt(),
        "$lte" => order.is_le(),
        "$gt" => order.is_gt(),
        "$gte" => order.is_ge(),
        _ => panic!("{op}"),
    }
}

/// A field path, a literal or a constant; missing compares like undefined.
fn evaluate(operand: &Bson, doc: &Document) -> Bson {
    match operand {
        Bson::String(s) if s.starts_with('$') => resolve(&s[1..], doc).cloned().unwrap_or(Bson::Undefined),
        Bson::Document(d) => d.get("$literal").unwrap().clone(),
        v => v.clone(),
    }
}

fn resolve<'a>(path: &str, doc: &'a Document) -> Option<&'a Bson> {
    match path.split_once('.') {
        None => doc.get(path),
        Some((first, rest)) => resolve(rest, doc.get(first)?.as_document()?),
    }
}

fn canonical(v: &Bson) -> i32 {
    let raw = RawBson::try_from(v.clone()).unwrap();
    value::with(raw.as_raw_bson_ref(), |v| Ok(v.canonical())).unwrap()
}

fn is_nan(v: &Bson) -> bool {
    match v {
        Bson::Double(d) => d.is_nan(),
        Bson::Decimal128(d) => d.to_string() == "NaN",
        _ => false,
    }
}

fn fold(v: &Bson) -> Bson {
    match v {
        Bson::String(s) => Bson::String(s.to_lowercase()),
        Bson::Symbol(s) => Bson::Symbol(s.to_lowercase()),
        Bson::Document(d) => Bson::Document(d.iter().map(|(k, v)| (k.clone(), fold(v))).collect()),
        v => v.clone(),
    }
}

/// The few patterns of [`super::testgen::REGEXES`], by hand.
fn regex_matches(wanted: &Bson, value: Option<&Bson>) -> bool {
    let Bson::RegularExpression(regex) = wanted else { panic!("{wanted}") };
    let s = match value {
        Some(Bson::String(s) | Bson::Symbol(s)) => s.as_str(),
        Some(same @ Bson::RegularExpression(_)) => return same == wanted,
        _ => return false,
    };
    match regex.pattern.as_str() {
        "^a" | "^ab*" => s.starts_with('a'),
        "^ab" | "^abc?" => s.starts_with("ab"),
        "^A" => s.starts_with(['a', 'A']),
        "b" => s.contains('b'),
        "^a.c" => s.starts_with('a') && s[1..].chars().nth(1) == Some('c'),
        "^b|^a" => s.starts_with(['a', 'b']),
        "^ab+$" => s.strip_prefix('a').is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c == 'b')),
        "^\\.x" => s.starts_with(".x"),
        other => panic!("{other}"),
    }
}

fn has_type(name: &str, value: Option<&Bson>) -> bool {
    matches!(
        (name, value),
        ("number", Some(Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_)))
            | ("int", Some(Bson::Int32(_)))
            | ("string", Some(Bson::String(_)))
            | ("null", Some(Bson::Null))
            | ("undefined", Some(Bson::Undefined))
            | ("object", Some(Bson::Document(_)))
            | ("bool", Some(Bson::Boolean(_)))
            | ("minKey", Some(Bson::MinKey))
            | ("regex", Some(Bson::RegularExpression(_)))
            | ("date", Some(Bson::DateTime(_)))
    )
}
