//! A filter as a union of boxes: each box gives every shard key field a set of values, and a document that matches the
//! filter is in at least one box.

use std::cell::Cell;
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use super::interval::{Interval, Set};
use super::predicate::{self, Place};
use super::{Scope, expr};
use crate::error::Result;
use crate::key::ShardKeyPattern;
use crate::key::value::{Elem, Elements, MAX_DEPTH, Value, tag};

/// The product of two unions may have this many boxes; beyond, one of the two is ignored.
const MAX_PRODUCT: usize = 1000;

/// The same for the intervals in all its boxes.
const MAX_PRODUCT_INTERVALS: usize = 1_000_000;

/// What all products and intersections of one analysis may cost together, in boxes and intervals looked at: about a tenth
/// of a second.
const BUDGET: usize = 4_000_000;

/// Why a part of the filter did not narrow anything.
#[derive(Clone, Copy)]
pub(super) enum Note {
    Collation = 1,
    HashedRange = 2,
    /// An operator on a shard key field that gives no bounds.
    OtherOperator = 4,
    /// `$text`, `$where` and other top-level operators.
    NotSelective = 8,
    /// A condition on a field outside the shard key.
    OtherField = 16,
    /// Nothing but `_id` outside the shard key.
    Id = 32,
    /// Bounds came out of an `$or`.
    Or = 64,
}

/// What all parts of one analysis need.
pub(super) struct Context<'a> {
    pub key: &'a ShardKeyPattern,
    pub simple_collation: bool,
    notes: Cell<u8>,
    /// What is left of [`BUDGET`].
    budget: Cell<usize>,
}

impl<'a> Context<'a> {
    pub fn new(scope: Scope<'a>, collation: Option<&bson::RawDocument>) -> Self {
        Context {
            key: scope.key,
            simple_collation: scope.compares_bytes(collation),
            notes: Cell::new(0),
            budget: Cell::new(BUDGET),
        }
    }

    /// Takes from what one analysis may cost. False: it is more than is left, and is not to be done.
    fn spend(&self, cost: usize) -> bool {
        let left = self.budget.get().checked_sub(cost);
        left.inspect(|left| self.budget.set(*left)).is_some()
    }

    /// Values in both sets. Where that would cost too much, one of them: right too, only wider.
    pub fn intersect(&self, one: Set, other: &Set) -> Set {
        let (a, b) = (one.intervals().len(), other.intervals().len());
        match self.spend(a.min(b) + one.intersection_size(other)) {
            true => one.intersect(other),
            false if b < a => other.clone(),
            false => one,
        }
    }

    pub fn note(&self, note: Note) {
        self.notes.set(self.notes.get() | note as u8);
    }

    /// A note about a key field; only the first one's decides whether a filter is wide.
    pub fn note_on(&self, field: usize, note: Note) {
        if field == 0 {
            self.note(note);
        }
    }

    pub fn noted(&self, note: Note) -> bool {
        self.notes.get() & note as u8 != 0
    }
}

/// One set per shard key field; `None` is any value.
pub(super) type KeyBox = SmallVec<[Option<Rc<Set>>; 2]>;

/// A union of boxes. None at all: nothing can match.
pub(super) type Boxes = Vec<KeyBox>;

/// The box that holds everything.
pub(super) fn everything(cx: &Context<'_>) -> Boxes {
    vec![smallvec![None; cx.key.fields().len()]]
}

/// A box that restricts one field.
pub(super) fn only(cx: &Context<'_>, field: usize, set: Option<Set>) -> Boxes {
    let Some(set) = set else { return everything(cx) };
    if set.is_empty() {
        return Vec::new();
    }
    let mut one: KeyBox = smallvec![None; cx.key.fields().len()];
    one[field] = Some(Rc::new(set));
    vec![one]
}

/// Analyses a filter document. Errors: malformed BSON. What is nested beyond MongoDB's limit narrows nothing.
pub(super) fn analyse(cx: &Context<'_>, doc: &[u8], depth: usize) -> Result<Boxes> {
    if depth > MAX_DEPTH {
        return Ok(everything(cx));
    }
    let mut own: KeyBox = smallvec![None; cx.key.fields().len()];
    let mut others: Vec<Boxes> = Vec::new();
    for elem in Elements::new(doc)? {
        let elem = elem?;
        match elem.name {
            b"$and" if elem.tag == tag::ARRAY => {
                for sub in Elements::new(elem.data)? {
                    others.push(sub_filter(cx, &sub?, depth)?);
                }
            }
            b"$or" if elem.tag == tag::ARRAY => {
                let mut branches = Vec::new();
                for sub in Elements::new(elem.data)? {
                    branches.push(sub_filter(cx, &sub?, depth)?);
                }
                let several = branches.len() > 1;
                let joined = union(cx, branches);
                if several && joined.iter().all(|b| b.iter().any(Option::is_some)) {
                    cx.note(Note::Or);
                }
                others.push(joined);
            }
            b"$expr" => others.push(expr::analyse(cx, elem.value()?, depth)?),
            b"$comment" => {}
            name if name.starts_with(b"$") => cx.note(Note::NotSelective),
            _ => narrow(cx, &mut own, &elem)?,
        }
    }
    let mut boxes = if own.iter().flatten().any(|s| s.is_empty()) { Vec::new() } else { vec![own] };
    // Single boxes first: they make what is multiplied with unions smaller, at no cost.
    let (single, several): (Vec<_>, Vec<_>) = others.into_iter().partition(|boxes| boxes.len() <= 1);
    for other in single.into_iter().chain(several) {
        boxes = product(cx, boxes, other);
    }
    Ok(boxes)
}

fn sub_filter(cx: &Context<'_>, elem: &Elem<'_>, depth: usize) -> Result<Boxes> {
    match elem.value()? {
        Value::Doc(doc) => analyse(cx, doc, depth + 1),
        _ => Ok(everything(cx)),
    }
}

/// `{path: condition}`.
fn narrow(cx: &Context<'_>, own: &mut KeyBox, elem: &Elem<'_>) -> Result<()> {
    let mut in_key = false;
    for (field, key) in cx.key.fields().iter().enumerate() {
        let Some(rest) = place(key.path.as_bytes(), elem.name) else { continue };
        in_key = true;
        if let Some(set) = predicate::condition(cx, Place { field, rest }, elem)? {
            own[field] = Some(Rc::new(match own[field].take() {
                None => set,
                Some(before) => cx.intersect(Rc::unwrap_or_clone(before), &set),
            }));
        }
    }
    if !in_key {
        cx.note(if elem.name == b"_id" { Note::Id } else { Note::OtherField });
    }
    Ok(())
}

/// Whether a filter's dotted name is a key path (`Some("")`) or a parent of it (the rest of the path).
pub(super) fn place<'k>(key_path: &'k [u8], name: &[u8]) -> Option<&'k [u8]> {
    match key_path.strip_prefix(name)? {
        [] => Some(&[]),
        [b'.', rest @ ..] if !name.is_empty() => Some(rest),
        _ => None,
    }
}

/// Documents in both unions.
pub(super) fn product(cx: &Context<'_>, left: Boxes, right: Boxes) -> Boxes {
    let pairs = left.len() * right.len();
    let affordable = || {
        let size = product_size(&left, &right);
        size <= MAX_PRODUCT_INTERVALS && cx.spend(size)
    };
    if pairs > MAX_PRODUCT || !cx.spend(pairs * cx.key.fields().len()) || !affordable() {
        // Either one alone is right, only wider: keep the one that says more about the first field.
        let vague = |boxes: &Boxes| (boxes.iter().any(|b| b.first().is_none_or(Option::is_none)), boxes.len());
        return if vague(&left) <= vague(&right) { left } else { right };
    }
    let mut boxes = Vec::with_capacity(left.len() * right.len());
    for a in &left {
        'pairs: for b in &right {
            let mut both = KeyBox::new();
            for pair in a.iter().zip(b) {
                let set = match pair {
                    (None, None) => None,
                    (Some(one), None) | (None, Some(one)) => Some(one.clone()),
                    (Some(x), Some(y)) => Some(Rc::new(x.intersect(y))),
                };
                if set.as_ref().is_some_and(|s| s.is_empty()) {
                    continue 'pairs;
                }
                both.push(set);
            }
            boxes.push(both);
        }
    }
    boxes
}

/// The most new intervals that a product of at most [`MAX_PRODUCT`] boxes can have.
fn product_size(left: &Boxes, right: &Boxes) -> usize {
    let pairs = left.iter().flat_map(|a| right.iter().map(move |b| (a, b)));
    pairs
        .flat_map(|(a, b)| a.iter().zip(b))
        .map(|pair| match pair {
            (Some(x), Some(y)) => x.intersection_size(y),
            _ => 0,
        })
        .sum()
}

/// Documents in any of the unions. Boxes that restrict the same single field become one.
pub(super) fn union(cx: &Context<'_>, branches: Vec<Boxes>) -> Boxes {
    let mut boxes: Boxes = Vec::new();
    let mut by_field: SmallVec<[Vec<Interval>; 4]> = smallvec![Vec::new(); cx.key.fields().len()];
    let mut lone: SmallVec<[Option<Rc<Set>>; 4]> = smallvec![None; cx.key.fields().len()];
    for mut one in branches.into_iter().flatten() {
        let mut used = one.iter().enumerate().filter(|(_, s)| s.is_some()).map(|(i, _)| i);
        match (used.next(), used.next()) {
            (None, _) => return everything(cx),
            (Some(field), None) => {
                let Some(set) = one[field].take() else { continue };
                if by_field[field].is_empty() && lone[field].is_none() {
                    lone[field] = Some(set);
                } else {
                    by_field[field].extend(lone[field].take().map(intervals_of).unwrap_or_default());
                    by_field[field].extend(intervals_of(set));
                }
            }
            _ => boxes.push(one),
        }
    }
    for (field, (intervals, lone)) in by_field.into_iter().zip(lone).enumerate() {
        let set = lone.map_or_else(|| Set::new(intervals), Rc::unwrap_or_clone);
        if !set.is_empty() {
            boxes.extend(only(cx, field, Some(set)));
        }
    }
    boxes
}

fn intervals_of(set: Rc<Set>) -> Vec<Interval> {
    Rc::unwrap_or_clone(set).into_intervals()
}
