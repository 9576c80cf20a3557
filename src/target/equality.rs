//! Exact values that a filter gives for the shard key and for `_id`.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use smallvec::{SmallVec, smallvec};

use super::Scope;
use super::filter::place;
use super::predicate::{is_collatable, is_operators};
use crate::bsonx::{self, kind};
use crate::error::Result;
use crate::key::value::{Elem, Elements, MAX_DEPTH, Value, tag};

/// One value per shard key field, as the elements' type bytes and data.
type Found<'a> = SmallVec<[Option<(u8, &'a [u8])>; 4]>;

/// See [`super::full_key_equality`].
pub(super) fn full_key(filter: &RawDocument, simple: bool, scope: Scope<'_>) -> Option<RawDocumentBuf> {
    let mut found: Found<'_> = smallvec![None; scope.key.fields().len()];
    let agreed = collect(filter.as_bytes(), simple, scope, &mut found, 0).ok()?;
    if !agreed {
        return None;
    }
    let mut bytes = vec![0; 4];
    for (path, value) in scope.key.paths().zip(found) {
        let (tag, data) = value?;
        bytes.push(tag);
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(data);
    }
    bytes.push(0);
    let size = i32::try_from(bytes.len()).ok()?;
    bytes[..4].copy_from_slice(&size.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).ok()
}

/// Gathers equalities from a filter and its `$and`s. `Ok(false)`: a field has two values, or one that cannot be used.
fn collect<'a>(doc: &'a [u8], simple: bool, scope: Scope<'_>, found: &mut Found<'a>, depth: usize) -> Result<bool> {
    if depth > MAX_DEPTH {
        return Ok(false);
    }
    for elem in Elements::new(doc)? {
        let elem = elem?;
        if elem.tag == tag::ARRAY && (elem.name == b"$and" || elem.name == b"$or") {
            let mut branches = Elements::new(elem.data)?;
            if elem.name == b"$or" && branches.clone().nth(1).is_some() {
                continue;
            }
            for branch in &mut branches {
                let branch = branch?;
                if branch.tag == tag::DOCUMENT && !collect(branch.data, simple, scope, found, depth + 1)? {
                    return Ok(false);
                }
            }
            continue;
        }
        for (field, path) in scope.key.paths().enumerate() {
            let Some(rest) = place(path.as_bytes(), elem.name) else { continue };
            let Some(equal) = equal_operand(&elem)? else { continue };
            let Some((tag, data)) = descend(&equal, rest)? else { return Ok(false) };
            let value = Elem { tag, name: b"", data }.value()?;
            let usable = match value {
                Value::Array(_) | Value::Regex { .. } | Value::Undefined => false,
                value => simple || !is_collatable(value),
            };
            if !usable || found[field].is_some_and(|old| old != (tag, data)) {
                return Ok(false);
            }
            found[field] = Some((tag, data));
        }
    }
    Ok(true)
}

/// The element that `{path: …}` demands equality with: the value itself, or the operand of `$eq`.
fn equal_operand<'a>(elem: &Elem<'a>) -> Result<Option<Elem<'a>>> {
    match elem.tag {
        tag::REGEX => Ok(None),
        tag::DOCUMENT if is_operators(elem.data)? => {
            for inner in Elements::new(elem.data)? {
                let inner = inner?;
                if inner.name == b"$eq" {
                    return Ok(Some(inner));
                }
            }
            Ok(None)
        }
        _ => Ok(Some(*elem)),
    }
}

/// The element at `rest` below `elem`; null where it is missing, `None` where an array is in the way.
fn descend<'a>(elem: &Elem<'a>, mut rest: &[u8]) -> Result<Option<(u8, &'a [u8])>> {
    let mut at = *elem;
    while !rest.is_empty() {
        match at.tag {
            tag::ARRAY => return Ok(None),
            tag::DOCUMENT => {}
            _ => return Ok(Some((tag::NULL, &[]))),
        }
        let dot = rest.iter().position(|b| *b == b'.').unwrap_or(rest.len());
        let part = &rest[..dot];
        rest = rest.get(dot + 1..).unwrap_or_default();
        let mut next = None;
        for inner in Elements::new(at.data)? {
            let inner = inner?;
            if inner.name == part {
                next = Some(inner);
                break;
            }
        }
        match next {
            Some(inner) => at = inner,
            None => return Ok(Some((tag::NULL, &[]))),
        }
    }
    Ok(Some((at.tag, at.data)))
}

/// See [`super::id_equality`].
pub(super) fn id(filter: &RawDocument, depth: usize) -> Option<RawBsonRef<'_>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut found = None;
    for field in bsonx::fields(filter.as_bytes()) {
        match field.key {
            b"_id" => found = found.or(id_operand(field.decode(filter.as_bytes())?)),
            b"$and" if field.kind == kind::ARRAY => {
                let list = &filter.as_bytes()[field.range()];
                let branches = bsonx::fields(list).filter(|f| f.kind == kind::DOCUMENT);
                found = found.or(branches.filter_map(|f| id(bsonx::view(&list[f.range()]), depth + 1)).next());
            }
            _ => {}
        }
    }
    found
}

fn id_operand(value: RawBsonRef<'_>) -> Option<RawBsonRef<'_>> {
    let operand = match value {
        RawBsonRef::Document(doc) if is_operators(doc.as_bytes()).ok()? => bsonx::get(doc, "$eq")?,
        RawBsonRef::RegularExpression(_) => return None,
        value => value,
    };
    match operand {
        RawBsonRef::Array(_) | RawBsonRef::Undefined | RawBsonRef::RegularExpression(_) => None,
        value => Some(value),
    }
}
