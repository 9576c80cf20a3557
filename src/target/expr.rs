//! `$expr`: comparisons of a shard key field with a constant.
//!
//! Unlike query operators these compare across types in BSON's total order, and a missing field is less than null. Missing
//! fields lie where null does in the key space, so where a missing field satisfies a comparison null is added.

use super::filter::{Boxes, Context, Note, everything, only, product, union};
use super::interval::{Interval, Set};
use super::predicate::{self, Op};
use crate::error::Result;
use crate::key::order::type_byte as t;
use crate::key::value::{Elem, Elements, MAX_DEPTH, Value, tag};
use crate::key::{KeyKind, value};

/// Analyses an aggregation expression used as a condition.
pub(super) fn analyse(cx: &Context<'_>, expression: Value<'_>, depth: usize) -> Result<Boxes> {
    let Value::Doc(doc) = expression else { return Ok(everything(cx)) };
    let mut elements = Elements::new(doc)?;
    let (Some(elem), None) = (elements.next().transpose()?, elements.next()) else { return Ok(everything(cx)) };
    if depth > MAX_DEPTH {
        return Ok(everything(cx));
    }
    match elem.name {
        b"$and" => {
            let mut boxes = everything(cx);
            for part in operands(&elem)? {
                boxes = product(cx, boxes, analyse(cx, part, depth + 1)?);
            }
            Ok(boxes)
        }
        b"$or" => {
            let parts =
                operands(&elem)?.into_iter().map(|part| analyse(cx, part, depth + 1)).collect::<Result<Vec<_>>>()?;
            let joined = union(cx, parts);
            if joined.iter().all(|b| b.iter().any(Option::is_some)) {
                cx.note(Note::Or);
            }
            Ok(joined)
        }
        b"$in" => match operands(&elem)?.as_slice() {
            [left, right] => any_of(cx, *left, *right),
            _ => Ok(everything(cx)),
        },
        name => match (Op::parse(name), operands(&elem)?.as_slice()) {
            (Some(op), [left, right]) => match (field(cx, *left), constant(*right)?) {
                (Some(field), Some(value)) => comparison(cx, field, op, value),
                _ => match (constant(*left)?, field(cx, *right)) {
                    (Some(value), Some(field)) => comparison(cx, field, op.flip(), value),
                    _ => Ok(unknown(cx)),
                },
            },
            _ => Ok(unknown(cx)),
        },
    }
}

fn unknown(cx: &Context<'_>) -> Boxes {
    cx.note(Note::NotSelective);
    everything(cx)
}

/// An operator's operands: an array's elements, or a single one without an array.
fn operands<'a>(elem: &Elem<'a>) -> Result<Vec<Value<'a>>> {
    if elem.tag == tag::ARRAY {
        Elements::new(elem.data)?.map(|e| e?.value()).collect()
    } else {
        Ok(vec![elem.value()?])
    }
}

/// The shard key field that `"$path"` names.
fn field(cx: &Context<'_>, operand: Value<'_>) -> Option<usize> {
    let Value::Str(text) = operand else { return None };
    let path = [&b"$$ROOT."[..], b"$$CURRENT.", b"$"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    cx.key.paths().position(|p| p.as_bytes() == path)
}

/// The value of an operand that is the same for all documents.
fn constant(operand: Value<'_>) -> Result<Option<Value<'_>>> {
    match operand {
        // Field paths and variables.
        Value::Str(text) if text.starts_with(b"$") => Ok(None),
        Value::Doc(doc) => literal(doc),
        Value::Array(_) | Value::Undefined => Ok(None),
        value => Ok(Some(value)),
    }
}

/// `{$literal: value}`.
fn literal(doc: &[u8]) -> Result<Option<Value<'_>>> {
    let mut elements = Elements::new(doc)?;
    match (elements.next().transpose()?, elements.next()) {
        (Some(elem), None) if elem.name == b"$literal" || elem.name == b"$const" => match elem.value()? {
            Value::Undefined => Ok(None),
            value => Ok(Some(value)),
        },
        _ => Ok(None),
    }
}

fn comparison(cx: &Context<'_>, field: usize, op: Op, value: Value<'_>) -> Result<Boxes> {
    if predicate::is_collatable(value) && !cx.simple_collation {
        cx.note_on(field, Note::Collation);
        return Ok(everything(cx));
    }
    if matches!(value, Value::Array(_)) {
        return Ok(unknown(cx));
    }
    let hashed = cx.key.fields()[field].kind == KeyKind::Hashed;
    if hashed && op != Op::Eq {
        cx.note_on(field, Note::HashedRange);
        return Ok(everything(cx));
    }
    if hashed {
        return Ok(only(cx, field, predicate::equal_to(cx, field, value)?));
    }
    let mut set = match op {
        Op::Eq => Set::value(value)?,
        _ => predicate::between(op, value, &[0], &[0xFF])?,
    };
    let missing_is_less = !matches!(value, Value::MinKey);
    let missing_matches = match op {
        Op::Lt | Op::Lte => missing_is_less,
        Op::Gt | Op::Gte => !missing_is_less,
        Op::Eq => false,
    };
    if missing_matches {
        set = set.union(Set::new(vec![Interval::point(&[t::NULL])]));
    }
    Ok(only(cx, field, Some(set)))
}

/// `$in: ["$field", [constants]]`.
fn any_of(cx: &Context<'_>, left: Value<'_>, right: Value<'_>) -> Result<Boxes> {
    let Some(field) = field(cx, left) else { return Ok(unknown(cx)) };
    let (list, literal) = match right {
        Value::Array(list) => (list, false),
        Value::Doc(doc) => match self::literal(doc)? {
            Some(Value::Array(list)) => (list, true),
            _ => return Ok(unknown(cx)),
        },
        _ => return Ok(unknown(cx)),
    };
    let mut parts = Vec::new();
    for elem in Elements::new(list)? {
        let value: value::Value<'_> = elem?.value()?;
        let value = if literal { Some(value) } else { constant(value)? };
        match value {
            Some(value) if !matches!(value, Value::Undefined) => parts.push(comparison(cx, field, Op::Eq, value)?),
            _ => return Ok(unknown(cx)),
        }
    }
    Ok(union(cx, parts))
}
