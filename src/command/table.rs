//! The table of all commands, and its look-up by name.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

use super::CommandSpec;

/// Every family of commands adds its rows here.
#[rustfmt::skip] // one line each: families are added by several hands
const FAMILIES: &[&[CommandSpec]] = &[
    super::basic::COMMANDS,
    super::hello::COMMANDS,
    super::read::COMMANDS,
    super::sharding::COMMANDS,
    super::write::COMMANDS,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static CommandSpec, RandomState>> = LazyLock::new(|| {
    let mut map = HashMap::default();
    for spec in all() {
        map.insert(spec.name, spec);
        for alias in spec.aliases {
            map.insert(alias, spec);
        }
    }
    map
});

/// All commands, family by family.
pub fn all() -> impl Iterator<Item = &'static CommandSpec> {
    let groups = [FAMILIES, super::admin::FAMILIES, super::ddl::FAMILIES];
    groups.into_iter().flatten().flat_map(|family| family.iter())
}

/// The command called `name` (names are case-sensitive; the old lower-case spellings are aliases).
pub fn lookup(name: &str) -> Option<&'static CommandSpec> {
    BY_NAME.get(name).copied()
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_name_stands_twice() {
        let mut seen = std::collections::HashSet::new();
        for spec in super::all() {
            assert!(seen.insert(spec.name), "{} stands twice", spec.name);
            for alias in spec.aliases {
                assert!(seen.insert(alias), "{alias} stands twice");
            }
        }
    }
}
