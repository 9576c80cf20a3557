//! A YAML document as a tree in which every key and value knows its line, so that a mistake can be pointed at.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Line and column, from 1; 0 = unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    pub line: u64,
    pub column: u64,
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub value: Value,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Node>),
    /// Keys are as given; whether one must be a string is for the reader to say.
    Map(Vec<(Node, Node)>),
}

impl Value {
    /// For messages: `the string "abc"`, `a list`.
    pub fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(b) => format!("{b}"),
            Value::Int(n) => format!("the number {n}"),
            Value::Float(n) => format!("the number {n}"),
            Value::Str(s) => format!("the string \"{}\"", s.chars().take(60).collect::<String>()),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a section".to_owned(),
        }
    }
}

/// The text is not YAML, or not of the form a configuration has.
#[derive(Debug)]
pub struct SyntaxError {
    pub at: At,
    pub message: String,
}

/// Reads one YAML document. An empty one is an empty section.
///
/// # Errors
/// Invalid YAML, a key given twice in one section, nesting or aliases beyond the parser's
/// limits.
pub fn parse(text: &str) -> Result<Node, SyntaxError> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Option<Node>>(text, options) {
        Ok(Some(node)) if node.value != Value::Null => Ok(node),
        Ok(_) => Ok(Node { value: Value::Map(Vec::new()), at: At { line: 1, column: 1 } }),
        Err(error) => {
            let at = error.location().map(at).unwrap_or_default();
            Err(SyntaxError { at, message: plain_message(&error) })
        }
    }
}

/// The parser's message without the position it may repeat.
fn plain_message(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let first = text.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("not valid YAML");
    let cut = [" at line ", ", set DuplicateKeyPolicy"].iter().filter_map(|s| first.find(s)).min();
    cut.and_then(|cut| first.get(..cut)).unwrap_or(first).to_owned()
}

fn at(location: serde_saphyr::Location) -> At {
    At { line: location.line(), column: location.column() }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Node { at: at(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Int(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or(Value::Float(v as f64), Value::Int))
    }

    fn visit_i128<E>(self, v: i128) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or(Value::Float(v as f64), Value::Int))
    }

    fn visit_u128<E>(self, v: u128) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or(Value::Float(v as f64), Value::Int))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Str(v.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        Value::deserialize(d)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Node>()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Node>()? {
            entries.push((key, map.next_value::<Node>()?));
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn keys_and_values_know_their_lines() {
        let Value::Map(root) = parse("# c\nnet:\n  port: 5\n  list: [a, 2]\nflag: true\n").unwrap().value else {
            panic!("a section")
        };
        assert_eq!((&root[0].0.value, root[0].0.at.line), (&Value::Str("net".into()), 2));
        let Value::Map(net) = &root[0].1.value else { panic!("a section") };
        assert_eq!(net[0].1, Node { value: Value::Int(5), at: At { line: 3, column: 9 } });
        let Value::List(items) = &net[1].1.value else { panic!("a list") };
        assert_eq!(items[1].at, At { line: 4, column: 13 });
        assert_eq!(root[1].1.value, Value::Bool(true));
    }

    #[test]
    fn an_empty_document_is_an_empty_section() {
        for text in ["", "# nothing\n", "---\n", "~"] {
            assert_eq!(parse(text).unwrap().value, Value::Map(vec![]), "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_located() {
        for (text, line) in [("a: 1\nb: [1\n", 2), ("a:\n  b: 1\n  b: 2\n", 3), ("a: 1\n\tb: 2\n", 2)] {
            let error = parse(text).unwrap_err();
            assert!(error.at.line.abs_diff(line) <= 1, "{text:?}: {error:?}");
        }
    }

    #[test]
    fn hostile_documents_end_soon() {
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(",");
            bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        assert!(parse(&bomb).is_err());
    }
}
