//! One condition on one shard key field as the set of values that can satisfy it.
//!
//! `None` stands for "any value". A set may hold more than what matches, never less. Since documents with arrays on a
//! shard key's path are refused, several conditions on one field intersect.

use super::filter::{Context, Note};
use super::interval::{Interval, Set};
use super::regex;
use crate::error::Result;
use crate::key::order::{self, type_byte as t};
use crate::key::value::{Elem, Elements, Value, tag};
use crate::key::{KeyKind, hash};

/// The comparison operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Eq,
    Lt,
    Lte,
    Gt,
    Gte,
}

impl Op {
    pub fn parse(name: &[u8]) -> Option<Op> {
        Some(match name {
            b"$eq" => Op::Eq,
            b"$lt" => Op::Lt,
            b"$lte" => Op::Lte,
            b"$gt" => Op::Gt,
            b"$gte" => Op::Gte,
            _ => return None,
        })
    }

    /// The operator that holds with the operands exchanged.
    pub fn flip(self) -> Op {
        match self {
            Op::Eq => Op::Eq,
            Op::Lt => Op::Gt,
            Op::Lte => Op::Gte,
            Op::Gt => Op::Lt,
            Op::Gte => Op::Lte,
        }
    }
}

/// Which shard key field a condition is about: field `field` itself, or (where `rest` is not empty) a parent of it, with
/// `rest` the path from there.
#[derive(Clone, Copy)]
pub(super) struct Place<'k> {
    pub field: usize,
    pub rest: &'k [u8],
}

/// `{path: condition}` for a place that the path leads to.
pub(super) fn condition(cx: &Context<'_>, at: Place<'_>, elem: &Elem<'_>) -> Result<Option<Set>> {
    match elem.value()? {
        Value::Regex { pattern, flags } => regex_set(cx, at, pattern, flags),
        Value::Doc(doc) if is_operators(doc)? => operators(cx, at, doc),
        value => equality(cx, at, value),
    }
}

/// Whether a sub-document is a list of operators rather than a value.
pub(super) fn is_operators(doc: &[u8]) -> Result<bool> {
    let mut elements = Elements::new(doc)?;
    let Some(first) = elements.next().transpose()? else { return Ok(false) };
    // A DBRef is a value although its names begin with `$`.
    let mut is_ref = || elements.next().is_some_and(|second| second.is_ok_and(|e| e.name == b"$id"));
    Ok(first.name.starts_with(b"$") && !(first.name == b"$ref" && is_ref()))
}

fn operators(cx: &Context<'_>, at: Place<'_>, doc: &[u8]) -> Result<Option<Set>> {
    let mut result: Option<Set> = None;
    let mut regexes = false;
    for elem in Elements::new(doc)? {
        let elem = elem?;
        // A server takes one; looking for the options of each would cost the square of their number.
        if elem.name == b"$regex" && std::mem::replace(&mut regexes, true) {
            continue;
        }
        if let Some(set) = operator(cx, at, &elem, doc)? {
            result = Some(match result {
                None => set,
                Some(before) => cx.intersect(before, &set),
            });
        }
    }
    Ok(result)
}

fn operator(cx: &Context<'_>, at: Place<'_>, elem: &Elem<'_>, all: &[u8]) -> Result<Option<Set>> {
    if let Some(op) = Op::parse(elem.name) {
        let value = elem.value()?;
        return match op {
            Op::Eq => equality(cx, at, value),
            _ if at.rest.is_empty() => comparison(cx, at.field, op, value),
            _ => Ok(None),
        };
    }
    match elem.name {
        b"$in" if elem.tag == tag::ARRAY => any_of(cx, at, elem.data),
        b"$exists" if !truthy(elem.value()?) => equality(cx, Place { rest: b"", ..at }, Value::Null),
        b"$regex" => regex_operator(cx, at, elem.value()?, all),
        b"$type" if at.rest.is_empty() => types(cx, at.field, elem.value()?),
        _ => {
            cx.note_on(at.field, Note::OtherOperator);
            Ok(None)
        }
    }
}

/// Truth as the query language sees it.
fn truthy(value: Value<'_>) -> bool {
    match value {
        Value::Bool(v) => v,
        Value::Null | Value::Undefined => false,
        Value::Int32(v) => v != 0,
        Value::Int64(v) => v != 0,
        Value::Double(v) => v != 0.0,
        Value::Decimal(_) => order::compare_values(value, Value::Int32(0)).is_ne(),
        _ => true,
    }
}

/// The value at `rest` below a value that a parent must equal; `None` if an array is in the way.
pub(super) fn below<'a>(value: Value<'a>, rest: &[u8]) -> Result<Option<Value<'a>>> {
    let (mut value, mut rest) = (value, rest);
    while !rest.is_empty() {
        let doc = match value {
            Value::Doc(doc) => doc,
            Value::Array(_) => return Ok(None),
            // A scalar has no fields: the key field is missing.
            _ => return Ok(Some(Value::Null)),
        };
        let (part, left) = match rest.iter().position(|b| *b == b'.') {
            Some(dot) => (&rest[..dot], &rest[dot + 1..]),
            None => (rest, &[][..]),
        };
        value = crate::key::value::get(doc, part)?.unwrap_or(Value::Null);
        rest = left;
    }
    Ok(Some(value))
}

/// Whether a collation changes what is equal to the value.
pub(super) fn is_collatable(value: Value<'_>) -> bool {
    matches!(
        value,
        Value::Str(_)
            | Value::Symbol(_)
            | Value::Doc(_)
            | Value::Array(_)
            | Value::Code(_)
            | Value::CodeWithScope { .. }
    )
}

fn equality(cx: &Context<'_>, at: Place<'_>, value: Value<'_>) -> Result<Option<Set>> {
    match below(value, at.rest)? {
        Some(value) => equal_to(cx, at.field, value),
        None => Ok(None),
    }
}

/// `field == value` as a query means it: null stands for missing and undefined as well.
pub(super) fn equal_to(cx: &Context<'_>, field: usize, value: Value<'_>) -> Result<Option<Set>> {
    // An array also matches within arrays; undefined is refused by the server.
    if matches!(value, Value::Array(_) | Value::Undefined) {
        return Ok(None);
    }
    if is_collatable(value) && !cx.simple_collation {
        cx.note_on(field, Note::Collation);
        return Ok(None);
    }
    if cx.key.fields()[field].kind == KeyKind::Hashed {
        return hashed(value);
    }
    match value {
        Value::Null => Ok(Some(null_or_undefined())),
        _ => Set::value(value).map(Some),
    }
}

fn null_or_undefined() -> Set {
    Set::equality(vec![Interval::point(&[t::UNDEFINED]), Interval::point(&[t::NULL])])
}

/// The hashes that a stored value equal to `value` can have.
fn hashed(value: Value<'_>) -> Result<Option<Set>> {
    let mut points = vec![hash_point(value)?];
    match value {
        Value::Null => points.push(hash_point(Value::Undefined)?),
        // An equal number of another type may be hashed by another integer.
        Value::Double(_) | Value::Decimal(_) => {
            for integer in hash::integers_of_equal_numbers(value) {
                points.push(hash_point(Value::Int64(integer))?);
            }
        }
        Value::Doc(doc) | Value::CodeWithScope { scope: doc, .. } if !hash::is_hash_unique(doc)? => return Ok(None),
        _ => {}
    }
    Ok(Some(Set::equality(points)))
}

fn hash_point(value: Value<'_>) -> Result<Interval> {
    let mut bytes = Vec::with_capacity(9);
    order::push_int(&mut bytes, hash::hash_value(value, 0)?);
    Ok(Interval::point(&bytes))
}

/// `$in`.
fn any_of(cx: &Context<'_>, at: Place<'_>, array: &[u8]) -> Result<Option<Set>> {
    let mut intervals = Vec::new();
    let mut count = 0;
    let mut only = None;
    for elem in Elements::new(array)? {
        let set = match elem?.value()? {
            Value::Regex { pattern, flags } => regex_set(cx, at, pattern, flags)?,
            value => equality(cx, at, value)?,
        };
        let Some(set) = set else { return Ok(None) };
        count += 1;
        if count == 1 {
            only = Some(set);
        } else {
            intervals.extend(only.take().map(Set::into_intervals).unwrap_or_default());
            intervals.extend(set.into_intervals());
        }
    }
    Ok(Some(only.unwrap_or_else(|| Set::new(intervals))))
}

/// `$lt`, `$lte`, `$gt`, `$gte`: values of the operand's own type, except that MinKey and MaxKey compare with all.
pub(super) fn comparison(cx: &Context<'_>, field: usize, op: Op, value: Value<'_>) -> Result<Option<Set>> {
    if cx.key.fields()[field].kind == KeyKind::Hashed {
        cx.note_on(field, Note::HashedRange);
        return Ok(None);
    }
    if is_collatable(value) && !cx.simple_collation {
        cx.note_on(field, Note::Collation);
        return Ok(None);
    }
    let inclusive = matches!(op, Op::Lte | Op::Gte);
    let (low, high) = match value {
        Value::Null if inclusive => return Ok(Some(null_or_undefined())),
        Value::Null => return Ok(Some(Set::empty())),
        _ if is_nan(value) => return if inclusive { Set::value(value).map(Some) } else { Ok(Some(Set::empty())) },
        _ => match bracket(value) {
            Some(bracket) => bracket,
            None => return Ok(None),
        },
    };
    between(op, value, &[low], &[high]).map(Some)
}

/// The part of `[low, high)` that compares with the value by `op`.
pub(super) fn between(op: Op, value: Value<'_>, low: &[u8], high: &[u8]) -> Result<Set> {
    let mut bytes = Vec::with_capacity(32);
    order::push(&mut bytes, value)?;
    let after = super::interval::after(&bytes);
    Ok(match op {
        Op::Eq => Set::range(&bytes, &after),
        Op::Lt => Set::range(low, &bytes),
        Op::Lte => Set::range(low, &after),
        Op::Gt => Set::range(&after, high),
        Op::Gte => Set::range(&bytes, high),
    })
}

fn is_nan(value: Value<'_>) -> bool {
    value.is_number() && order::compare_values(value, Value::Double(f64::NAN)).is_eq()
}

/// The first type byte of the values that the value compares with, and the one after the last.
fn bracket(value: Value<'_>) -> Option<(u8, u8)> {
    Some(match value {
        Value::MinKey | Value::MaxKey => (0, 0xFF),
        // Without NaN, which is the first.
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_) => (t::NUMBER + 1, t::NUMBER_LAST + 1),
        Value::Str(_) | Value::Symbol(_) => (t::STRING, t::STRING + 1),
        Value::Doc(_) => (t::OBJECT, t::OBJECT + 1),
        Value::Binary { .. } => (t::BINARY, t::BINARY + 1),
        Value::ObjectId(_) => (t::OBJECT_ID, t::OBJECT_ID + 1),
        Value::Bool(_) => (t::BOOL, t::BOOL + 1),
        Value::Date(_) => (t::DATE, t::DATE + 1),
        Value::Timestamp(_) => (t::TIMESTAMP, t::TIMESTAMP + 1),
        Value::DbPointer { .. } => (t::DB_POINTER, t::DB_POINTER + 1),
        Value::Code(_) => (t::CODE, t::CODE + 1),
        Value::CodeWithScope { .. } => (t::CODE_WITH_SCOPE, t::CODE_WITH_SCOPE + 1),
        // Arrays match within arrays; the server refuses the others.
        Value::Array(_) | Value::Undefined | Value::Regex { .. } | Value::Null => return None,
    })
}

fn regex_operator(cx: &Context<'_>, at: Place<'_>, value: Value<'_>, all: &[u8]) -> Result<Option<Set>> {
    let options = match crate::key::value::get(all, b"$options")? {
        Some(Value::Str(options)) => Some(options),
        Some(_) => return Ok(None),
        None => None,
    };
    match value {
        Value::Str(pattern) => regex_set(cx, at, pattern, options.unwrap_or_default()),
        Value::Regex { pattern, flags } => regex_set(cx, at, pattern, options.unwrap_or(flags)),
        _ => Ok(None),
    }
}

/// Strings that begin with the pattern's literal prefix (all strings without one), and regexes: a regex matches a stored
/// regex that is the same.
fn regex_set(cx: &Context<'_>, at: Place<'_>, pattern: &[u8], flags: &[u8]) -> Result<Option<Set>> {
    if cx.key.fields()[at.field].kind == KeyKind::Hashed {
        cx.note_on(at.field, Note::HashedRange);
        return Ok(None);
    }
    if !at.rest.is_empty() {
        return Ok(None);
    }
    let strings = match regex::prefix(pattern, flags) {
        None => Interval::range(&[t::STRING], &[t::STRING + 1]),
        Some(prefix) => {
            let mut low = Vec::with_capacity(prefix.len() + 2);
            order::push(&mut low, Value::Str(&prefix))?;
            // Without the end mark: all continuations.
            low.pop();
            let mut high = low.clone();
            while high.pop_if(|last| *last == 0xFF).is_some() {}
            if let Some(last) = high.last_mut() {
                *last += 1;
            }
            Interval::range(&low, &high)
        }
    };
    let regexes = Interval::range(&[t::REGEX], &[t::REGEX + 1]);
    Ok(Some(Set::new(strings.into_iter().chain(regexes).collect())))
}

/// `$type`.
fn types(cx: &Context<'_>, field: usize, value: Value<'_>) -> Result<Option<Set>> {
    if cx.key.fields()[field].kind == KeyKind::Hashed {
        cx.note_on(field, Note::HashedRange);
        return Ok(None);
    }
    let mut intervals = Vec::new();
    let mut add = |value: Value<'_>| {
        let range = type_range(value).and_then(|(low, high)| Interval::range(&[low], &[high]));
        let known = range.is_some();
        intervals.extend(range);
        known
    };
    match value {
        Value::Array(list) => {
            for elem in Elements::new(list)? {
                if !add(elem?.value()?) {
                    return Ok(None);
                }
            }
        }
        one if !add(one) => return Ok(None),
        _ => {}
    }
    Ok(Some(Set::new(intervals)))
}

/// The type bytes `[from, to)` of a type given by number or name.
fn type_range(value: Value<'_>) -> Option<(u8, u8)> {
    let code = match value {
        Value::Str(name) => match name {
            b"double" | b"number" | b"int" | b"long" | b"decimal" => 1,
            b"string" | b"symbol" => 2,
            b"object" => 3,
            b"binData" => 5,
            b"undefined" => 6,
            b"objectId" => 7,
            b"bool" => 8,
            b"date" => 9,
            b"null" => 10,
            b"regex" => 11,
            b"dbPointer" => 12,
            b"javascript" => 13,
            b"javascriptWithScope" => 15,
            b"timestamp" => 17,
            b"minKey" => -1,
            b"maxKey" => 127,
            _ => return None,
        },
        Value::Int32(v) => i64::from(v),
        Value::Int64(v) => v,
        Value::Double(v) if v == v.trunc() => v as i64,
        _ => return None,
    };
    Some(match code {
        1 | 16 | 18 | 19 => (t::NUMBER, t::NUMBER_LAST + 1),
        2 | 14 => (t::STRING, t::STRING + 1),
        3 => (t::OBJECT, t::OBJECT + 1),
        5 => (t::BINARY, t::BINARY + 1),
        6 => (t::UNDEFINED, t::UNDEFINED + 1),
        7 => (t::OBJECT_ID, t::OBJECT_ID + 1),
        8 => (t::BOOL, t::BOOL + 1),
        9 => (t::DATE, t::DATE + 1),
        10 => (t::NULL, t::NULL + 1),
        11 => (t::REGEX, t::REGEX + 1),
        12 => (t::DB_POINTER, t::DB_POINTER + 1),
        13 => (t::CODE, t::CODE + 1),
        15 => (t::CODE_WITH_SCOPE, t::CODE_WITH_SCOPE + 1),
        17 => (t::TIMESTAMP, t::TIMESTAMP + 1),
        -1 => (t::MIN_KEY, t::MIN_KEY + 1),
        127 => (t::MAX_KEY, t::MAX_KEY + 1),
        _ => return None,
    })
}
