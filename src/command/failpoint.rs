//! `configureFailPoint: "failCommand"`: drivers' own test suites make the router fail on purpose.
//! Only there when the server parameter `enableTestCommands` is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::raw::RawBsonRef;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::{Access, Ctx, Request};
use crate::bsonx;
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE, Result};
use crate::shard::is_retryable_write;

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
    /// BadValue or TypeMismatch where the mode is not one, FailPointSetFailed (266) for other failpoints.
    pub fn configure(&self, name: &str, mode: RawBsonRef<'_>, data: Option<&RawDocument>) -> Result<i64> {
        let mode = parse_mode(mode)?;
        if name == "mosaicCrash" {
            let place = data.and_then(|d| bsonx::str(d, "at")).map(str::to_owned);
            *self.crash.lock() = mode.and(place);
            return Ok(0);
        }
        if name != "failCommand" {
            return Err(Error::new(
                Code::FailPointSetFailed,
                format!("{name} not found; the router has 'failCommand' and 'mosaicCrash'"),
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
        Box::pin(self.act(request, ctx)).await
    }

    async fn act(&self, request: &Request, ctx: &Ctx) -> Action {
        let Some(data) = self.fire(request, ctx) else { return Action::Go };
        if bsonx::truthy(&data, "blockConnection") == Some(true) {
            let ms = bsonx::int(&data, "blockTimeMS").unwrap_or(0).max(0) as u64;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                () = ctx.op.cancel().cancelled() => return Action::Fail(ctx.op.cancelled_error()),
            }
        }
        let writes = matches!(request.spec.access, Access::Write | Access::DbAdmin);
        action(&data, request.generic.txn_number.is_some(), writes)
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

/// `None` is off.
///
/// # Errors
/// As a server: BadValue (2), TypeMismatch (14).
fn parse_mode(mode: RawBsonRef<'_>) -> Result<Option<Mode>> {
    let bad = |text: String| Err(Error::new(Code::BadValue, text));
    match mode {
        RawBsonRef::String("off") => Ok(None),
        RawBsonRef::String("alwaysOn") => Ok(Some(Mode::Always)),
        RawBsonRef::String(other) => bad(format!("unknown mode: {other}")),
        RawBsonRef::Document(d) => {
            if let Some(times) = bsonx::get(d, "times") {
                let n = count("times", times)?;
                return Ok((n > 0).then_some(Mode::Times(n)));
            }
            if let Some(skip) = bsonx::get(d, "skip") {
                return Ok(Some(Mode::Skip(count("skip", skip)?)));
            }
            match bsonx::get(d, "activationProbability").map(|p| (number(p), p)) {
                Some((Some(p), _)) if (0.0..=1.0).contains(&p) => Ok(Some(Mode::Probability(p))),
                Some((Some(p), _)) => bad(format!("activationProbability must be between 0.0 and 1.0; found {p}")),
                Some((None, _)) => Err(Error::new(
                    Code::TypeMismatch,
                    "the 'activationProbability' option to 'mode' must be a double between 0 and 1",
                )),
                None => bad("'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or \
                             '{activationProbability:p}'"
                    .to_owned()),
            }
        }
        _ => Err(Error::new(Code::TypeMismatch, "'mode' must be a string or JSON object")),
    }
}

fn number(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Double(n) => Some(n),
        other => bsonx::as_int(other).map(|n| n as f64),
    }
}

/// How often.
fn count(field: &str, value: RawBsonRef<'_>) -> Result<i64> {
    let Some(n) = bsonx::as_int(value) else {
        let found = bsonx::type_name(value.element_type());
        let text = format!("Expected field \"{field}\" to have numeric type, but found {found}");
        return Err(Error::new(Code::TypeMismatch, text));
    };
    let bad = |text: String| Err(Error::new(Code::BadValue, text));
    match (value, n) {
        (RawBsonRef::Double(exact), _) if exact.fract() != 0.0 => bad(format!(
            "Expected field \"{field}\" to have a value exactly representable as a 64-bit integer, \
             but found {field}: {exact}"
        )),
        (_, ..0) => bad(format!("'{field}' option to 'mode' must be positive")),
        (_, 2_147_483_648..) => bad(format!("'{field}' option to 'mode' is too large")),
        _ => Ok(n),
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

/// What the failpoint does to a command; `retryable_write` is one with a `txnNumber`, `writes` one that a write concern
/// belongs to. A server labels what it answers to retryable writes, unless the failpoint names the labels.
fn action(data: &RawDocument, retryable_write: bool, writes: bool) -> Action {
    if bsonx::truthy(data, "closeConnection") == Some(true) {
        return Action::CloseConnection;
    }
    let labels = |code: i32| match bsonx::array(data, "errorLabels") {
        Some(named) => Some(named.to_owned()).filter(|named| !named.is_empty()),
        None => (retryable_write && is_retryable_write(code)).then(|| RawArrayBuf::from_iter([LABEL_RETRYABLE_WRITE])),
    };
    if let Some(code) = bsonx::int(data, "errorCode") {
        let code = i32::try_from(code).unwrap_or(0);
        let mut reply = rawdoc! { "ok": 0.0, "code": code, "errmsg": "Failing command via 'failCommand' failpoint" };
        if let Some(labels) = labels(code) {
            reply.append(cstr!("errorLabels"), labels);
        }
        return Action::Fail(Error::from_reply("", &reply).from_router());
    }
    match bsonx::doc(data, "writeConcernError").filter(|_| writes) {
        Some(error) => {
            let mut fields = rawdoc! { "writeConcernError": error.to_owned() };
            let code = bsonx::int(error, "code").and_then(|code| i32::try_from(code).ok()).unwrap_or(0);
            if let Some(labels) = labels(code) {
                fields.append(cstr!("errorLabels"), labels);
            }
            Action::WriteConcernError(fields)
        }
        None => Action::Go,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Document, doc};

    #[test]
    fn modes() {
        let mode = |mode: RawDocumentBuf| parse_mode(RawBsonRef::Document(&mode)).map_err(|e| e.code());
        assert_eq!(mode(rawdoc! { "times": 2 }), Ok(Some(Mode::Times(2))));
        assert_eq!(mode(rawdoc! { "times": 0 }), Ok(None));
        assert_eq!(mode(rawdoc! { "activationProbability": 1 }), Ok(Some(Mode::Probability(1.0))));
        for (bad, code) in [
            (rawdoc! { "times": -1 }, 2),
            (rawdoc! { "times": 1.5 }, 2),
            (rawdoc! { "times": 1_i64 << 40 }, 2),
            (rawdoc! { "times": "x" }, 14),
            (rawdoc! { "activationProbability": 2 }, 2),
            (rawdoc! {}, 2),
        ] {
            assert_eq!(mode(bad.clone()), Err(code), "{bad:?}");
        }
        assert_eq!(parse_mode(RawBsonRef::Int32(5)).map_err(|e| e.code()), Err(14));
    }

    /// As a mongod 6.0 answers.
    #[test]
    fn labels_are_those_of_a_server() {
        let error = |data: RawDocumentBuf, retryable_write| match action(&data, retryable_write, true) {
            Action::Fail(error) => error.labels().iter().map(ToString::to_string).collect::<Vec<_>>(),
            _ => panic!("no error"),
        };
        for code in [6, 91, 262, 11600] {
            assert_eq!(error(rawdoc! { "errorCode": code }, true), ["RetryableWriteError"]);
            assert!(error(rawdoc! { "errorCode": code }, false).is_empty());
            assert!(error(rawdoc! { "errorCode": code, "errorLabels": [] }, true).is_empty());
            assert_eq!(error(rawdoc! { "errorCode": code, "errorLabels": ["Foo"] }, false), ["Foo"]);
        }
        for code in [50, 134] {
            assert!(error(rawdoc! { "errorCode": code }, true).is_empty());
        }
        let concern = |data: RawDocumentBuf, retryable_write, writes| match action(&data, retryable_write, writes) {
            Action::WriteConcernError(fields) => Some(Document::try_from(&*fields).unwrap()),
            _ => None,
        };
        let (late, stopping) = (doc! { "code": 64 }, doc! { "code": 91 });
        let data = |error: &Document| rawdoc! { "writeConcernError": RawDocumentBuf::try_from(error).unwrap() };
        assert_eq!(concern(data(&late), true, true), Some(doc! { "writeConcernError": late }));
        let labelled = doc! { "writeConcernError": stopping.clone(), "errorLabels": ["RetryableWriteError"] };
        assert_eq!(concern(data(&stopping), true, true), Some(labelled));
        assert_eq!(concern(data(&stopping), false, true), Some(doc! { "writeConcernError": stopping.clone() }));
        assert_eq!(concern(data(&stopping), true, false), None);
        let mut named = data(&stopping);
        named.append(cstr!("errorLabels"), RawArrayBuf::from_iter(["Foo"]));
        assert_eq!(concern(named, true, true), Some(doc! { "writeConcernError": stopping, "errorLabels": ["Foo"] }));
    }
}
