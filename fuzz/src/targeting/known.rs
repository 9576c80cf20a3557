//! Which filters the reference matcher understands, and documents made of a filter's own values.

use bson::{Bson, Document, RawDocument, doc};

use super::testgen::REGEXES;

/// The filter decoded, if the reference matcher understands all of it and nothing got lost.
pub fn decode(filter: &RawDocument) -> Option<Document> {
    let decoded = Document::try_from(filter).ok()?;
    // Repeated names do not survive decoding.
    let same = decoded.to_vec().is_ok_and(|again| again == filter.as_bytes());
    (same && is_known(&decoded, 0)).then_some(decoded)
}

fn is_known(filter: &Document, depth: usize) -> bool {
    depth < 20
        && filter.iter().all(|(name, value)| match (name.as_str(), value) {
            ("$and" | "$or" | "$nor", Bson::Array(parts)) => {
                let known = |p: &Bson| p.as_document().is_some_and(|p| is_known(p, depth + 1));
                !parts.is_empty() && parts.iter().all(known)
            }
            ("$expr", e) => is_expression(e, depth),
            (name, _) if name.is_empty() || name.starts_with('$') => false,
            (name, _) if name.contains('.') && !matches!(name, "a.b" | "a.c" | "c.d" | "a.b.c") => false,
            (_, Bson::Document(ops)) if ops.keys().any(|k| k.starts_with('$')) => are_operators(ops, depth),
            (_, value) => is_literal(value),
        })
}

/// What equality may be asked for.
fn is_literal(value: &Bson) -> bool {
    is_regex(value) || is_value(value)
}

fn is_regex(value: &Bson) -> bool {
    match value {
        Bson::RegularExpression(r) => REGEXES.contains(&(r.pattern.as_str(), r.options.as_str())),
        _ => false,
    }
}

/// A value that compares by BSON's order alone.
fn is_value(value: &Bson) -> bool {
    match value {
        Bson::RegularExpression(_) | Bson::Undefined | Bson::DbPointer(_) | Bson::Array(_) => false,
        Bson::Document(d) => d.iter().all(|(name, v)| !name.starts_with('$') && is_value(v)),
        _ => true,
    }
}

fn are_operators(ops: &Document, depth: usize) -> bool {
    const TYPES: &[&str] =
        &["number", "int", "string", "null", "undefined", "object", "bool", "minKey", "regex", "date"];
    let is_type = |t: &Bson| t.as_str().is_some_and(|t| TYPES.contains(&t));
    depth < 20
        && ops.iter().all(|(op, operand)| match (op.as_str(), operand) {
            ("$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte", v) => is_value(v),
            ("$in" | "$nin", Bson::Array(list)) => list.iter().all(is_literal),
            ("$not", Bson::Document(inner)) => !inner.is_empty() && are_operators(inner, depth + 1),
            ("$exists", v) => matches!(v, Bson::Boolean(_)),
            ("$regex", v) => is_regex(v),
            ("$type", Bson::Array(list)) => !list.is_empty() && list.iter().all(is_type),
            ("$type", v) => is_type(v),
            _ => false,
        })
}

fn is_expression(e: &Bson, depth: usize) -> bool {
    let Some(e) = e.as_document().filter(|e| e.len() == 1 && depth < 20) else { return false };
    match e.iter().next() {
        Some((op, Bson::Array(parts))) => match (op.as_str(), parts.as_slice()) {
            ("$and" | "$or", parts) => !parts.is_empty() && parts.iter().all(|p| is_expression(p, depth + 1)),
            ("$in", [value, Bson::Array(list)]) => is_operand(value) && list.iter().all(is_operand),
            ("$eq" | "$gt" | "$gte" | "$lt" | "$lte", [a, b]) => is_operand(a) && is_operand(b),
            _ => false,
        },
        _ => false,
    }
}

fn is_operand(value: &Bson) -> bool {
    match value {
        Bson::String(s) if s.starts_with('$') => matches!(&s[1..], "a" | "b" | "c" | "x" | "a.b" | "a.c" | "c.d"),
        Bson::Document(d) => d.len() == 1 && d.get("$literal").is_some_and(is_value),
        v => is_value(v),
    }
}

/// Documents whose shard key fields hold the filter's values, and what is near them.
pub fn documents(filter: &Document) -> Vec<Document> {
    let mut values = Vec::new();
    filter.values().for_each(|v| constants(v, &mut values));
    values.truncate(6);
    values.extend([Bson::Int32(1), Bson::Null, Bson::String("ab".into())]);
    let mut documents = vec![doc! {"x": 1}];
    for (i, v) in values.iter().enumerate() {
        documents.push(doc! {"a": v.clone()});
        documents.push(doc! {"b": v.clone()});
        for (j, w) in values.iter().enumerate().filter(|(j, _)| (i + j) % 2 == 0) {
            documents.push(doc! {"a": v.clone(), "b": w.clone()});
            let inner = if j % 3 == 0 {
                doc! {"b": v.clone()}
            } else {
                doc! {"b": v.clone(), "c": w.clone()}
            };
            documents.push(doc! {"a": inner, "b": w.clone()});
        }
    }
    documents
}

/// The values in a filter that a shard key may hold.
fn constants(value: &Bson, found: &mut Vec<Bson>) {
    match value {
        Bson::Array(list) => list.iter().for_each(|v| constants(v, found)),
        Bson::Document(doc) => {
            if is_value(value) {
                found.push(value.clone());
            }
            doc.values().for_each(|v| constants(v, found));
        }
        value if is_literal(value) => found.push(value.clone()),
        _ => {}
    }
}
