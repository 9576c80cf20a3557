//! Reads the sources and checks which module uses which: what decides stays free of what acts, and dependencies go one
//! way. A failure names the file and line; either the code is in the wrong module, or the tables below and the map in
//! `ARCHITECTURE.md` need a considered change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

/// Modules that decide: synchronous, no I/O, no clock. With each, the only modules of this crate it may use.
const PURE: &[(&str, &[&str])] = &[
    ("error", &["bsonx"]),
    ("bsonx", &["error"]),
    ("key", &["error", "bsonx", "catalog::model"]),
    ("catalog::model", CATALOG_NEEDS),
    ("catalog::table", CATALOG_NEEDS),
    ("catalog::snapshot", CATALOG_NEEDS),
    ("wire", &["error", "bsonx"]),
    ("target", &["error", "bsonx", "key", "catalog::model", "catalog::table", "catalog::snapshot"]),
    ("merge", &["error", "bsonx", "key", "wire", "catalog::model"]),
];
const CATALOG_NEEDS: &[&str] = &["error", "bsonx", "key", "catalog::model", "catalog::table", "catalog::snapshot"];

/// Parts of pure modules that act, kept thin: the reader of frames.
const ACTING_PARTS: &[&str] = &["wire::frame"];

/// What a pure module may not touch.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio_util",
    "futures_util",
    "async_trait",
    "mongodb",
    "redb",
    "socket2",
    "rustix",
    "libc",
    "std::net",
    "std::fs",
    "std::io::stdin",
    "std::thread",
    "std::process",
    "std::env",
    "Instant::now",
    "SystemTime::now",
    "async fn",
];

/// Acting modules, and the modules of this crate they may not use (they stand above them).
const NOT_ABOVE: &[(&str, &[&str])] = &[
    (
        "config",
        &["router", "command", "conn", "catalog", "shard", "scatter", "target", "merge", "cursor", "dev", "serve"],
    ),
    ("op", &["command", "conn", "catalog", "shard", "scatter", "router", "dev", "serve"]),
    ("shard", &["command", "conn", "scatter", "target", "merge", "cursor", "dev", "serve", "txn", "session"]),
    ("catalog", &["conn", "cursor", "dev", "serve"]),
    ("scatter", &["conn", "dev", "serve"]),
    ("command", &["dev", "serve"]),
    ("conn", &["shard", "scatter", "target", "merge", "dev", "serve"]),
    ("router", &["dev", "serve"]),
];

/// A use of another module of this crate.
struct Use {
    line: usize,
    /// `catalog::model`
    path: String,
}

#[test]
fn pure_modules_use_only_pure_modules_below_them() {
    let mut wrong = Vec::new();
    for (file, module, text) in sources() {
        let Some((layer, allowed)) = layer_of(&module, PURE) else { continue };
        if ACTING_PARTS.iter().any(|p| within(&module, p)) {
            continue;
        }
        for used in uses(&module, &text) {
            if !within(&used.path, layer) && !allowed.iter().any(|a| within(&used.path, a)) {
                wrong.push(format!("{}:{}: {layer} may not use {}", file.display(), used.line, used.path));
            }
        }
        for (line, code) in code_lines(&text) {
            for word in IMPURE.iter().filter(|w| has_word(code, w)) {
                wrong.push(format!("{}:{line}: {layer} is pure and may not use {word}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn acting_modules_do_not_use_what_stands_above_them() {
    let mut wrong = Vec::new();
    for (file, module, text) in sources() {
        if layer_of(&module, PURE).is_some() && !ACTING_PARTS.iter().any(|p| within(&module, p)) {
            continue;
        }
        let Some((layer, forbidden)) = layer_of(&module, NOT_ABOVE) else { continue };
        for used in uses(&module, &text) {
            if forbidden.iter().any(|f| within(&used.path, f)) {
                wrong.push(format!("{}:{}: {layer} may not use {}", file.display(), used.line, used.path));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn files_stay_readable() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(file, _, text)| (file, text.lines().count()))
        .filter(|(_, lines)| *lines > 600)
        .collect();
    assert!(long.is_empty(), "files above 600 lines: {long:?}");
}

#[test]
fn the_reader_of_uses_reads_all_forms() {
    let text = "use crate::a::b;\nuse crate::{c, d::{e, f}};\n// crate::no\nlet x = crate::g::h(1);\nuse super::i;\n\
                use super::super::j::k;\n#[cfg(test)]\nmod early;\npub fn x() { super::l::m() }\n#[cfg(test)]\nmod tests {\n\
                use crate::no;\n}\n";
    let found: Vec<_> = uses("p::q", text).into_iter().map(|u| u.path).collect();
    assert_eq!(found, ["a::b", "c", "d::e", "d::f", "g::h", "p::i", "j::k", "p::l"]);
}

/// Every source file but tests, with its module path and text.
fn sources() -> Vec<(PathBuf, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 20, "the sources were not found");
    files
        .into_iter()
        .map(|file| {
            let relative = file.strip_prefix(&root).unwrap().with_extension("");
            let mut parts: Vec<_> = relative.iter().map(|p| p.to_str().unwrap().to_owned()).collect();
            if parts.last().is_some_and(|p| p == "mod") {
                parts.pop();
            }
            let text = std::fs::read_to_string(&file).unwrap();
            (file, parts.join("::"), text)
        })
        .collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in dir.read_dir().unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(&path, files);
        } else if name.ends_with(".rs") && !is_test_file(&name) {
            files.push(path);
        }
    }
    files.sort();
}

fn is_test_file(name: &str) -> bool {
    name.ends_with("tests.rs")
        || name.ends_with("test.rs")
        || name.starts_with("test")
        || name == "main.rs"
        || name == "lib.rs"
}

fn within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn layer_of<'a>(module: &str, table: &[(&'a str, &'a [&'a str])]) -> Option<(&'a str, &'a [&'a str])> {
    table.iter().copied().find(|(layer, _)| within(module, layer))
}

/// Lines outside comments, up to the inline test module.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let end = (0..lines.len())
        .find(|i| {
            lines[*i].trim() == "#[cfg(test)]"
                && lines[*i + 1..]
                    .iter()
                    .find(|l| !l.trim().starts_with("#["))
                    .is_some_and(|l| l.trim_end().ends_with('{'))
        })
        .unwrap_or(lines.len());
    lines.into_iter().take(end).enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
}

fn has_word(code: &str, word: &str) -> bool {
    let ident = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| !code[..at].ends_with(ident) && !code[at + word.len()..].starts_with(ident))
}

/// The modules of this crate that a text names by `crate::` or `super::`.
fn uses(module: &str, text: &str) -> Vec<Use> {
    let mut found = Vec::new();
    let lines: Vec<_> = code_lines(text).collect();
    for (i, (line, code)) in lines.iter().enumerate() {
        for root in ["crate::", "super::"] {
            let mut from = 0;
            while let Some(at) = code[from..].find(root).map(|at| at + from) {
                from = at + root.len();
                if code[..at].ends_with("super::") {
                    continue; // the second of super::super:: belongs to the first
                }
                let mut base: Vec<&str> = if root == "crate::" { Vec::new() } else { module.split("::").collect() };
                let rest_of_text = lines[i..].iter().map(|(_, l)| *l).collect::<Vec<_>>().join(" ");
                let mut rest = &rest_of_text[at..];
                if let Some(after) = rest.strip_prefix("crate::") {
                    rest = after;
                }
                while let Some(after) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = after;
                }
                for tail in tails(rest) {
                    let path: Vec<&str> = base
                        .iter()
                        .copied()
                        .chain(tail.iter().map(String::as_str))
                        .take(2.max(base.len() + 1))
                        .collect();
                    found.push(Use { line: *line, path: path.join("::") });
                }
            }
        }
    }
    found
}

/// `a::b;` → [[a, b]]; `{c, d::{e, f}}` → [[c], [d, e], [d, f]].
fn tails(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(inner) = text.strip_prefix('{') {
        let (mut depth, mut start, mut all) = (0, 0, Vec::new());
        for (i, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                ',' if depth == 0 => {
                    all.extend(tails(&inner[start..i]));
                    start = i + 1;
                }
                '}' if depth == 0 => {
                    all.extend(tails(&inner[start..i]));
                    return all;
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return all;
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let name = &text[..end];
    if name.is_empty() {
        return Vec::new();
    }
    match text[end..].strip_prefix("::") {
        Some(rest) => {
            let below = tails(rest);
            let with = |tail: Vec<String>| std::iter::once(name.to_owned()).chain(tail).collect();
            if below.is_empty() { vec![vec![name.to_owned()]] } else { below.into_iter().map(with).collect() }
        }
        None => vec![vec![name.to_owned()]],
    }
}
