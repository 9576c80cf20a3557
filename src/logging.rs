//! The log: one JSON object a line, in the form mongos and mongod write, to standard error or a file; the newest lines are
//! kept for `getLog`.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, filter, reload};

use crate::config::Log;

/// As many lines as mongod keeps for `getLog: "global"`.
const KEPT_LINES: usize = 1_024;

static SINK: OnceLock<Arc<Sink>> = OnceLock::new();
static LEVEL: OnceLock<reload::Handle<filter::Targets, Registry>> = OnceLock::new();

/// Where lines go.
struct Sink {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    /// `None` = standard error.
    file: Option<File>,
    recent: VecDeque<String>,
    total: u64,
}

/// Starts the process's log. Called again (by a second router in the process) it changes nothing.
///
/// # Errors
/// The file cannot be opened.
pub fn start(config: &Log) -> io::Result<()> {
    if SINK.get().is_some() {
        return Ok(());
    }
    let file = match &config.path {
        Some(path) => {
            if !config.append {
                move_aside(path)?;
            }
            Some(open(path)?)
        }
        None => None,
    };
    let state = Mutex::new(State { file, recent: VecDeque::new(), total: 0 });
    let sink = Arc::new(Sink { path: config.path.clone(), state });
    let (level, handle) = reload::Layer::new(levels(config.verbosity));
    let subscriber = Registry::default().with(Lines { sink: sink.clone() }.with_filter(level));
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = LEVEL.set(handle);
        let _ = SINK.set(sink);
    }
    Ok(())
}

/// Changes how much is logged: 0 (informational) to 5.
pub fn set_verbosity(verbosity: u8) {
    if let Some(handle) = LEVEL.get() {
        let _ = handle.reload(levels(verbosity));
    }
}

/// Moves the file aside and starts a new one (`logRotate`, SIGUSR1). Without a file it does nothing.
///
/// # Errors
/// The operating system's; the log then goes on as before.
pub fn rotate() -> io::Result<()> {
    let Some(sink) = SINK.get() else { return Ok(()) };
    let Some(path) = &sink.path else { return Ok(()) };
    let mut state = sink.state.lock();
    move_aside(path)?;
    state.file = Some(open(path)?);
    Ok(())
}

/// The newest lines, oldest first, and how many were written since the start.
pub fn recent() -> (Vec<String>, u64) {
    SINK.get().map_or((Vec::new(), 0), |sink| {
        let state = sink.state.lock();
        (state.recent.iter().cloned().collect(), state.total)
    })
}

/// Other crates are heard from one step later than the router itself.
fn levels(verbosity: u8) -> filter::Targets {
    let (own, others) = match verbosity {
        0 => (LevelFilter::INFO, LevelFilter::WARN),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        2 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    filter::Targets::new().with_target("mosaic", own).with_default(others)
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// `path` becomes `path.2026-01-31T10-20-30`.
fn move_aside(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let now = now();
    let stamp = now.get(..19).unwrap_or(&now).replace(':', "-");
    let mut target = path.as_os_str().to_owned();
    target.push(format!(".{stamp}"));
    std::fs::rename(path, target)
}

fn now() -> String {
    bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default()
}

/// Turns events into lines.
struct Lines {
    sink: Arc<Sink>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = format_line(&now(), *event.metadata().level(), event.metadata().target(), fields);
        self.sink.write(line);
    }
}

impl Sink {
    fn write(&self, line: String) {
        let mut state = self.state.lock();
        let _ = match &mut state.file {
            Some(file) => writeln!(file, "{line}"),
            None => writeln!(io::stderr().lock(), "{line}"),
        };
        state.total += 1;
        if state.recent.len() == KEPT_LINES {
            state.recent.pop_front();
        }
        state.recent.push_back(line);
    }
}

fn format_line(time: &str, level: Level, target: &str, fields: Fields) -> String {
    let severity = match level {
        Level::ERROR => "E",
        Level::WARN => "W",
        Level::INFO => "I",
        Level::DEBUG => "D1",
        Level::TRACE => "D2",
    };
    // mosaic::shard::pool → SHARD
    let component = target.split("::").nth(1).or_else(|| target.split("::").next()).unwrap_or("-").to_uppercase();
    let thread = std::thread::current();
    let context = fields.context.unwrap_or_else(|| thread.name().unwrap_or("-").to_owned());
    let mut line = json!({
        "t": {"$date": time},
        "s": severity,
        "c": component,
        "id": 0,
        "ctx": context,
        "msg": fields.message,
    });
    if let (false, Some(object)) = (fields.attributes.is_empty(), line.as_object_mut()) {
        object.insert("attr".to_owned(), Value::Object(fields.attributes));
    }
    line.to_string()
}

/// The fields of one event; `message` and `ctx` have places of their own.
#[derive(Default)]
struct Fields {
    message: String,
    context: Option<String>,
    attributes: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("ctx", Value::String(text)) => self.context = Some(text),
            (name, value) => {
                self.attributes.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.put(field, Value::String(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
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
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn lines_have_the_form_of_mongods() {
        let mut fields = Fields { message: "hello \"you\"".into(), ..Fields::default() };
        fields.attributes.insert("n".into(), 5.into());
        let line = format_line("2026-01-31T10:20:30.123Z", Level::WARN, "mosaic::shard::pool", fields);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["t"]["$date"], "2026-01-31T10:20:30.123Z");
        assert_eq!((&value["s"], &value["c"], &value["msg"]), (&"W".into(), &"SHARD".into(), &"hello \"you\"".into()));
        assert_eq!(value["attr"]["n"], 5);
    }

    #[test]
    fn an_existing_file_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "old").unwrap();
        move_aside(&path).unwrap();
        assert!(!path.exists());
        let names: Vec<_> = dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.len() == 1 && names[0].to_str().unwrap().starts_with("x.log.20"), "{names:?}");
        move_aside(&path).unwrap();
    }
}
