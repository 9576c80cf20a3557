//! `configureFailPoint: "failCommand"`: drivers' own test suites make the router fail on purpose.
//! Only there when the server parameter `enableTestCommands` is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;

use super::{Ctx, Request};
use crate::bsonx;
use crate::error::{Code, Error, Result};

/// How often a failpoint still fires.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Always,
    Times(i64),
    Skip(i64),
    Probability(f64),
}

#[derive(Debug)]
struct FailCommand {
    mode: Mode,
    entered: i64,
    data: RawDocumentBuf,
}

/// The failpoints of one router.
#[derive(Debug, Default)]
pub struct FailPoints {
    /// Spares the hot path the lock while nothing is configured.
    active: AtomicBool,
    fail_command: Mutex<Option<FailCommand>>,
    /// Where the process is to end at once: tests of recovery.
    crash: Mutex<Option<String>>,
}

/// What a failpoint asks for.
pub enum Action {
    Go,
    CloseConnection,
    WriteConcernError(RawDocumentBuf),
    Fail(Error),
}

impl FailPoints {
    /// `{configureFailPoint: "failCommand", mode, data}` → how often it had fired before.
    ///
    /// # Errors
    /// FailedToParse/BadValue where the mode is not one, CommandNotFound-like BadValue for other failpoints.
    pub fn configure(&self, name: &str, mode: RawBsonRef<'_>, data: Option<&RawDocument>) -> Result<i64> {
        let mode = parse_mode(mode)?;
        if name == "mosaicCrash" {
            let place = data.and_then(|d| bsonx::str(d, "at")).map(str::to_owned);
            *self.crash.lock() = mode.and(place);
            return Ok(0);
        }
        if name != "failCommand" {
            return Err(Error::new(
                Code::BadValue,
                format!("failpoint '{name}' is not there; the router knows 'failCommand' and 'mosaicCrash'"),
            ));
        }
        let mut slot = self.fail_command.lock();
        let before = slot.as_ref().map_or(0, |f| f.entered);
        *slot = mode.map(|mode| FailCommand {
            mode,
            entered: before,
            data: data.map(RawDocument::to_owned).unwrap_or_default(),
        });
        self.active.store(slot.is_some(), Ordering::Release);
        Ok(before)
    }

    /// Ends the process, as a crash would, if a test has asked for that at `place`
    /// (`{configureFailPoint: "mosaicCrash", mode: "alwaysOn", data: {at: place}}`).
    pub fn crash_point(&self, place: &str) {
        if self.crash.lock().as_deref() == Some(place) {
            tracing::error!(place, "ending the process because a failpoint says so");
            std::process::abort();
        }
    }

    /// Whether `request` has to fail, and how. Waits first where `blockConnection` asks for it.
    pub async fn check(&self, request: &Request, ctx: &Ctx) -> Action {
        if !self.active.load(Ordering::Acquire) || request.spec.name == "configureFailPoint" {
            return Action::Go;
        }
        let Some(data) = self.fire(request, ctx) else { return Action::Go };
        if bsonx::truthy(&data, "blockConnection") == Some(true) {
            let ms = bsonx::int(&data, "blockTimeMS").unwrap_or(0).max(0) as u64;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                () = ctx.op.cancel().cancelled() => return Action::Fail(ctx.op.cancelled_error()),
            }
        }
        action(&data)
    }

    fn fire(&self, request: &Request, ctx: &Ctx) -> Option<RawDocumentBuf> {
        let mut slot = self.fail_command.lock();
        let point = slot.as_mut()?;
        if !applies(&point.data, request, ctx) {
            return None;
        }
        let fires = match &mut point.mode {
            Mode::Always => true,
            Mode::Times(left) => {
                *left -= 1;
                *left >= 0
            }
            Mode::Skip(left) if *left > 0 => {
                *left -= 1;
                false
            }
            Mode::Skip(_) => true,
            Mode::Probability(p) => rand::random::<f64>() < *p,
        };
        if !fires {
            return None;
        }
        point.entered += 1;
        let data = point.data.clone();
        if matches!(point.mode, Mode::Times(left) if left <= 0) {
            *slot = None;
            self.active.store(false, Ordering::Release);
        }
        Some(data)
    }
}

fn parse_mode(mode: RawBsonRef<'_>) -> Result<Option<Mode>> {
    let bad = || {
        Error::new(
            Code::BadValue,
            "unknown mode: use 'off', 'alwaysOn', {times: n}, {skip: n} or {activationProbability: p}",
        )
    };
    match mode {
        RawBsonRef::String("off") => Ok(None),
        RawBsonRef::String("alwaysOn") => Ok(Some(Mode::Always)),
        RawBsonRef::Document(d) => {
            if let Some(n) = bsonx::int(d, "times") {
                return Ok((n > 0).then_some(Mode::Times(n)));
            }
            if let Some(n) = bsonx::int(d, "skip") {
                return Ok(Some(Mode::Skip(n)));
            }
            match bsonx::get(d, "activationProbability") {
                Some(RawBsonRef::Double(p)) if (0.0..=1.0).contains(&p) => Ok(Some(Mode::Probability(p))),
                _ => Err(bad()),
            }
        }
        _ => Err(bad()),
    }
}

fn applies(data: &RawDocument, request: &Request, ctx: &Ctx) -> bool {
    let named = bsonx::array(data, "failCommands").is_some_and(|names| {
        names
            .into_iter()
            .flatten()
            .any(|n| n.as_str().is_some_and(|n| n == request.spec.name || request.spec.aliases.contains(&n)))
    });
    if !named {
        return false;
    }
    if let Some(ns) = bsonx::str(data, "namespace")
        && request.namespace().map_or(true, |n| n.as_str() != ns)
    {
        return false;
    }
    match bsonx::str(data, "appName") {
        None => true,
        Some(wanted) => {
            let metadata = ctx.conn.info.metadata.get();
            metadata
                .and_then(|m| bsonx::doc(m, "application"))
                .and_then(|a| bsonx::str(a, "name"))
                .is_some_and(|name| name == wanted)
        }
    }
}

fn action(data: &RawDocument) -> Action {
    if bsonx::truthy(data, "closeConnection") == Some(true) {
        return Action::CloseConnection;
    }
    if let Some(code) = bsonx::int(data, "errorCode") {
        let mut reply =
            rawdoc! { "ok": 0.0, "code": code as i32, "errmsg": "Failing command via 'failCommand' failpoint" };
        match bsonx::array(data, "errorLabels") {
            Some(labels) => reply.append(bson::cstr!("errorLabels"), labels.to_owned()),
            None if RETRYABLE.contains(&(code as i32)) => {
                reply.append(bson::cstr!("errorLabels"), {
                    let mut l = bson::RawArrayBuf::new();
                    l.push("RetryableWriteError");
                    l
                });
            }
            None => {}
        }
        return Action::Fail(Error::from_reply("", &reply).from_router());
    }
    match bsonx::doc(data, "writeConcernError") {
        Some(doc) => Action::WriteConcernError(doc.to_owned()),
        None => Action::Go,
    }
}

/// Codes that mongos labels RetryableWriteError by itself.
const RETRYABLE: &[i32] = &[6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436];
