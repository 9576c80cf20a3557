//! The process's log: JSON lines shaped like mongod's, to standard error or a file, the newest kept for `getLog`.
//!
//! One per process, as `tracing` itself is. Several routers in one process (`mosaic dev`) share it.

mod line;
mod verbosity;

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::Document;
use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::config;
use crate::error::{Code, Error, Result};

/// Lines kept for `getLog: "global"`.
const KEPT: usize = 1024;
/// Kept lines are cut to this many bytes.
const KEPT_LENGTH: usize = 8 * 1024;
/// Lines kept for `getLog: "startupWarnings"`.
const KEPT_WARNINGS: usize = 64;

/// Events with a field `tag` of this value are kept as startup warnings.
pub const STARTUP_WARNING: &str = "startupWarnings";

enum Sink {
    Stderr,
    File { path: PathBuf, file: File },
}

/// Lines kept in memory, and how many there were ever.
#[derive(Default)]
struct Kept {
    lines: VecDeque<String>,
    total: u64,
}

impl Kept {
    fn push(&mut self, line: &str, most: usize) {
        let mut end = line.len().min(KEPT_LENGTH);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        while self.lines.len() >= most {
            self.lines.pop_front();
        }
        self.lines.push_back(line[..end].to_owned());
        self.total += 1;
    }
}

struct Log {
    sink: Mutex<Sink>,
    global: Mutex<Kept>,
    warnings: Mutex<Kept>,
    /// Lines that could not be written.
    lost: AtomicU64,
}

static LOG: LazyLock<Log> = LazyLock::new(|| Log {
    sink: Mutex::new(Sink::Stderr),
    global: Mutex::default(),
    warnings: Mutex::default(),
    lost: AtomicU64::new(0),
});

/// Sends the log where `log` says and installs the `tracing` subscriber, unless the process has one already.
///
/// # Errors
/// BadValue where the file cannot be opened, or moved aside.
pub fn init(log: &config::Log) -> Result<()> {
    if let Some(path) = &log.path {
        if !log.append && path.exists() {
            set_aside(path)?;
        }
        *LOG.sink.lock() = Sink::File { path: path.clone(), file: open(path)? };
    }
    verbosity::set_all(log.verbosity);
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(JsonLines));
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

pub use verbosity::of_commands as verbosity_of_commands;

/// Changes the verbosity (0 to 5) of the running process.
pub fn set_verbosity(verbosity: u8) {
    verbosity::set_all(verbosity);
    tracing::callsite::rebuild_interest_cache();
}

/// The verbosity of the log where no component has its own.
pub fn verbosity() -> u8 {
    verbosity::of("")
}

/// The verbosities by component, as `logComponentVerbosity`.
pub fn verbosities() -> Document {
    verbosity::to_doc()
}

/// Changes verbosities by component; all or none.
///
/// # Errors
/// What is wrong with the change, in words.
pub fn set_verbosities(change: &Document) -> std::result::Result<(), String> {
    verbosity::Change::parse(change)?.apply();
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// Writes a line whose attributes are JSON already: what is too much structure for an event.
pub fn write_ready(component: &str, id: i64, context: &str, message: &str, attributes: &str) {
    write_line(line::ready(component, id, context, message, attributes), false);
}

/// Logs a warning that `getLog: "startupWarnings"` repeats to everyone who connects.
pub fn startup_warning(message: &str) {
    tracing::warn!(tag = STARTUP_WARNING, "{message}");
}

/// Moves the log file aside (a time is appended to its name) and opens a new one. Without a file nothing happens.
pub fn rotate() -> Result<()> {
    let mut sink = LOG.sink.lock();
    if let Sink::File { path, file } = &mut *sink {
        set_aside(path)?;
        *file = open(path)?;
    }
    Ok(())
}

/// The newest lines (oldest first), and how many were written in all.
pub fn recent() -> (Vec<String>, u64) {
    copy(&LOG.global)
}

/// The startup warnings, and how many there were.
pub fn startup_warnings() -> (Vec<String>, u64) {
    copy(&LOG.warnings)
}

/// Forgets the newest lines (`clearLog`).
pub fn clear() {
    LOG.global.lock().lines.clear();
}

fn copy(kept: &Mutex<Kept>) -> (Vec<String>, u64) {
    let kept = kept.lock();
    (kept.lines.iter().cloned().collect(), kept.total)
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(path).map_err(|e| {
        Error::new(Code::BadValue, format!("cannot open the log file {}: {e}", path.display())).from_router()
    })
}

fn set_aside(path: &Path) -> Result<()> {
    let stamp = bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default();
    let stamp = stamp.split(['.', 'Z']).next().unwrap_or_default().replace(':', "-");
    let mut target = path.as_os_str().to_owned();
    target.push(format!(".{stamp}"));
    std::fs::rename(path, &target).map_err(|e| {
        Error::new(Code::BadValue, format!("cannot move the log file {} aside: {e}", path.display())).from_router()
    })
}

/// The most verbose level shown at a verbosity.
fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::INFO,
        1 | 2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Whether events of a module are shown: libraries' only from warnings up, unless the whole log's verbosity is 5.
fn shown(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let limit = match target.starts_with("mosaic") {
        true => level(verbosity::of(line::path(target))),
        false if verbosity() >= 5 => level(verbosity()),
        false => LevelFilter::WARN,
    };
    *metadata.level() <= limit
}

struct JsonLines;

impl<S: Subscriber> Layer<S> for JsonLines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_event() && shown(metadata)
    }

    // The filter is the same for everyone, so callsites cache it; `set_verbosity` makes them ask again.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        match metadata.is_event() && shown(metadata) {
            true => tracing::subscriber::Interest::always(),
            false => tracing::subscriber::Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(level(verbosity::highest()))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line::format(event);
        write_line(line.text, line.startup_warning);
    }
}

fn write_line(mut text: String, startup_warning: bool) {
    LOG.global.lock().push(&text, KEPT);
    if startup_warning {
        LOG.warnings.lock().push(&text, KEPT_WARNINGS);
    }
    text.push('\n');
    let written = match &mut *LOG.sink.lock() {
        Sink::Stderr => std::io::stderr().lock().write_all(text.as_bytes()),
        Sink::File { file, .. } => file.write_all(text.as_bytes()),
    };
    if written.is_err() {
        LOG.lost.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keeps_the_newest_lines() {
        let mut kept = Kept::default();
        for n in 0..5 {
            kept.push(&format!("{n}"), 3);
        }
        assert_eq!(kept.lines, ["2", "3", "4"]);
        assert_eq!(kept.total, 5);
        kept.push(&"ä".repeat(KEPT_LENGTH), 3);
        assert_eq!(kept.lines.back().unwrap().len(), KEPT_LENGTH);
    }

    #[test]
    fn a_line_reaches_file_and_memory_and_rotates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router.log");
        std::fs::write(&path, "old\n").unwrap();
        let log = config::Log { path: Some(path.clone()), ..config::Log::default() };
        init(&log).unwrap();
        tracing::info!(answer = 42, "a line of the test");
        startup_warning("a warning of the test");
        let text = std::fs::read_to_string(&path).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["msg"], "a line of the test");
        assert_eq!(line["s"], "I");
        assert_eq!(line["attr"]["answer"], 42);
        assert!(recent().0.iter().any(|l| l.contains("a line of the test")));
        assert!(startup_warnings().0.iter().any(|l| l.contains("a warning of the test")));
        rotate().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        assert!(std::fs::read_dir(dir.path()).unwrap().count() >= 2);
    }
}
