//! One event as one line of JSON, in the layout of mongod's structured log.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use super::STARTUP_WARNING;

pub(super) struct Line {
    pub text: String,
    pub startup_warning: bool,
}

/// `{"t":{"$date":…},"s":"I","c":"NETWORK","id":0,"ctx":"conn7","msg":…,"attr":{…},"tags":[…]}`.
///
/// `ctx` is the event's field `conn` or `ctx`, else the thread's name; a field `id` gives the line an id that log
/// parsers know (51803, "Slow query"); every other field goes into `attr`.
pub(super) fn format(event: &Event<'_>) -> Line {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    let severity = match *metadata.level() {
        Level::ERROR => "E",
        Level::WARN => "W",
        Level::INFO => "I",
        Level::DEBUG => "D1",
        Level::TRACE => "D3",
    };
    let context = fields.context.take().unwrap_or_else(|| {
        let thread = std::thread::current();
        thread.name().unwrap_or("-").to_owned()
    });
    let mut text = String::with_capacity(256);
    let component = component(metadata.target()).0;
    begin(&mut text, severity, component, fields.id, &context, &fields.message);
    if !fields.attributes.is_empty() {
        let _ = write!(text, r#","attr":{}"#, Value::Object(fields.attributes));
    }
    let startup_warning = fields.tag.as_deref() == Some(STARTUP_WARNING);
    if let Some(tag) = fields.tag {
        let _ = write!(text, r#","tags":[{}]"#, Value::String(tag));
    }
    text.push('}');
    Line { text, startup_warning }
}

/// One line whose attributes are JSON already.
pub(super) fn ready(component: &str, id: i64, context: &str, message: &str, attributes: &str) -> String {
    let mut text = String::with_capacity(256 + attributes.len());
    begin(&mut text, "I", component, id, context, message);
    let _ = write!(text, r#","attr":{attributes}}}"#);
    text
}

/// What every line begins with; the object stays open.
fn begin(text: &mut String, severity: &str, component: &str, id: i64, context: &str, message: &str) {
    let _ = write!(
        text,
        r#"{{"t":{{"$date":"{}"}},"s":"{severity}","c":"{component}","id":{id},"ctx":{},"msg":{}"#,
        now(),
        Value::String(context.to_owned()),
        Value::String(message.to_owned()),
    );
}

/// `2026-11-30T18:02:33.972+00:00`.
fn now() -> String {
    let time = bson::DateTime::now();
    let text = time.try_to_rfc3339_string().unwrap_or_default();
    let text = text.trim_end_matches('Z');
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<3}+00:00"),
        None => format!("{text}.000+00:00"),
    }
}

/// mongod's name for the part of the process that a module is, as lines show it and as `logComponentVerbosity` does.
fn component(target: &str) -> (&'static str, &'static str) {
    let mut parts = target.split("::").skip(1);
    match parts.next() {
        Some("conn" | "wire") => ("NETWORK", "network"),
        Some("shard") => ("CONNPOOL", "network.connectionPool"),
        Some("catalog" | "router" | "target" | "scatter") => ("SHARDING", "sharding"),
        Some("command") => ("COMMAND", "command"),
        Some("cursor" | "merge") => ("QUERY", "query"),
        Some("txn") => ("TXN", "transaction"),
        Some("config" | "dev" | "stats") => ("CONTROL", "control"),
        _ => ("-", ""),
    }
}

/// The component of a module, by which its verbosity is set.
pub(super) fn path(target: &str) -> &'static str {
    component(target).1
}

#[derive(Default)]
struct Fields {
    message: String,
    context: Option<String>,
    tag: Option<String>,
    id: i64,
    attributes: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), &value) {
            ("message", Value::String(s)) => self.message.clone_from(s),
            ("ctx", Value::String(s)) => self.context = Some(s.clone()),
            ("conn", value) => self.context = Some(format!("conn{value}")),
            ("tag", Value::String(s)) => self.tag = Some(s.clone()),
            ("id", Value::Number(n)) => self.id = n.as_i64().unwrap_or(0),
            (name, _) => {
                self.attributes.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::String(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components() {
        assert_eq!(component("mosaic::conn::task"), ("NETWORK", "network"));
        assert_eq!(component("mosaic::command::ddl"), ("COMMAND", "command"));
        assert_eq!(component("mosaic"), ("-", ""));
    }

    #[test]
    fn ready_attributes() {
        let line = ready("COMMAND", 51803, "conn1", "Slow query", r#"{"ns":"a.b"}"#);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        assert_eq!((line["id"].as_i64(), line["attr"]["ns"].as_str()), (Some(51803), Some("a.b")), "{line}");
    }
}
