//! Commands that create, change, drop and describe databases, collections and indexes.

use super::CommandSpec;

pub const FAMILIES: &[&[CommandSpec]] = &[];
