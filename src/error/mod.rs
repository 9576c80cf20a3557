//! The one error type: what the client is told, what the log is told, whose fault it is, whether a retry may help.

mod codes;

use std::borrow::Cow;
use std::fmt;

use bson::{RawDocument, RawDocumentBuf, cstr};

pub use codes::{Code, code_name};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where an error comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client sent something that cannot be served.
    Client,
    /// A shard (or the config store's replica set) answered with the error, or could not be reached.
    Shard(String),
    /// The router itself.
    Router,
}

/// Whether sending the same operation again may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    No,
    /// It may help and is safe: nothing was applied.
    Safe,
    /// It may help, but the operation may have been applied already.
    Unknown,
}

pub const LABEL_RETRYABLE_WRITE: &str = "RetryableWriteError";
pub const LABEL_TRANSIENT_TXN: &str = "TransientTransactionError";
pub const LABEL_UNKNOWN_COMMIT: &str = "UnknownTransactionCommitResult";
pub const LABEL_RESUMABLE_STREAM: &str = "ResumableChangeStreamError";

/// A failure of one operation, in MongoDB's terms.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: i32,
    code_name: Option<String>,
    message: Cow<'static, str>,
    internal: Option<String>,
    source: Source,
    retry: Retry,
    labels: Vec<Cow<'static, str>>,
    /// Further top-level reply fields (`keyPattern`, `errInfo`, `writeErrors`, …), copied as they are.
    extra: Option<RawDocumentBuf>,
}

impl Error {
    /// An error caused by the client's request.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_code(code as i32, message)
    }

    /// The same for codes without a name of their own (`Location12345`).
    pub fn with_code(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Error(Box::new(Inner {
            code,
            code_name: None,
            message: message.into(),
            internal: None,
            source: Source::Client,
            retry: Retry::No,
            labels: Vec::new(),
            extra: None,
        }))
    }

    /// TypeMismatch (14) in the words that servers have for fields of documents without a declared form.
    pub fn wrong_kind(field: &str, found: bson::spec::ElementType, expected: &str) -> Self {
        let found = crate::bsonx::type_name(found);
        Self::new(Code::TypeMismatch, format!("\"{field}\" had the wrong type. Expected {expected}, found {found}"))
    }

    /// A fault of the router itself; `internal` goes to the log only.
    pub fn internal(internal: impl Into<String>) -> Self {
        Self::new(Code::InternalError, "The router hit an internal error; its log has the details")
            .from_router()
            .because(internal)
    }

    /// Reads an `{ok: 0, errmsg, code, …}` reply of `shard`. Fields the router does not know are kept.
    pub fn from_reply(shard: &str, reply: &RawDocument) -> Self {
        let code = crate::bsonx::int(reply, "code").unwrap_or(Code::UnknownError as i64) as i32;
        let message = crate::bsonx::str(reply, "errmsg").unwrap_or("the shard reported an error without a message");
        let mut error = Self::with_code(code, message.to_owned()).from_shard(shard);
        error.0.code_name = crate::bsonx::str(reply, "codeName").map(str::to_owned);
        if let Some(labels) = crate::bsonx::array(reply, "errorLabels") {
            error.0.labels =
                labels.into_iter().flatten().filter_map(|v| v.as_str().map(|s| Cow::Owned(s.to_owned()))).collect();
        }
        let mut extra = RawDocumentBuf::new();
        for (key, value) in reply.iter().flatten() {
            if !matches!(
                key.as_str(),
                "ok" | "code"
                    | "codeName"
                    | "errmsg"
                    | "errorLabels"
                    | "$clusterTime"
                    | "operationTime"
                    | "$gleStats"
                    | "lastCommittedOpTime"
                    | "$configServerState"
            ) {
                extra.append(key, value);
            }
        }
        if !extra.is_empty() {
            error.0.extra = Some(extra);
        }
        error
    }

    pub fn from_router(mut self) -> Self {
        self.0.source = Source::Router;
        self
    }

    pub fn from_shard(mut self, shard: impl Into<String>) -> Self {
        self.0.source = Source::Shard(shard.into());
        self
    }

    /// Text for the log that the client does not see.
    pub fn because(mut self, internal: impl Into<String>) -> Self {
        self.0.internal = Some(internal.into());
        self
    }

    pub fn retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    pub fn label(mut self, label: &'static str) -> Self {
        if !self.0.labels.iter().any(|l| l == label) {
            self.0.labels.push(Cow::Borrowed(label));
        }
        self
    }

    pub fn without_label(mut self, label: &str) -> Self {
        self.0.labels.retain(|l| l != label);
        self
    }

    /// Extra top-level fields of the error reply.
    pub fn with_extra(mut self, extra: RawDocumentBuf) -> Self {
        self.0.extra = Some(extra);
        self
    }

    /// The message, prefixed: `"{context} :: caused by :: {message}"`.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = Cow::Owned(format!("{context} :: caused by :: {}", self.0.message));
        self
    }

    pub fn with_message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.0.message = message.into();
        self
    }

    pub fn code(&self) -> i32 {
        self.0.code
    }

    pub fn is(&self, code: Code) -> bool {
        self.0.code == code as i32
    }

    pub fn code_name(&self) -> Cow<'_, str> {
        match &self.0.code_name {
            Some(name) => Cow::Borrowed(name),
            None => code_name(self.0.code),
        }
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn internal_text(&self) -> Option<&str> {
        self.0.internal.as_deref()
    }

    pub fn source_of(&self) -> &Source {
        &self.0.source
    }

    pub fn retry_of(&self) -> Retry {
        self.0.retry
    }

    pub fn labels(&self) -> &[Cow<'static, str>] {
        &self.0.labels
    }

    pub fn has_label(&self, label: &str) -> bool {
        self.0.labels.iter().any(|l| l == label)
    }

    pub fn extra(&self) -> Option<&RawDocument> {
        self.0.extra.as_deref()
    }

    /// The command reply: `{ok: 0, errmsg, code, codeName, errorLabels?, …extra}`.
    pub fn to_reply(&self) -> RawDocumentBuf {
        let mut doc = RawDocumentBuf::new();
        if !self.0.labels.is_empty() {
            let mut labels = bson::RawArrayBuf::new();
            for label in &self.0.labels {
                labels.push(label.as_ref());
            }
            doc.append(cstr!("errorLabels"), labels);
        }
        doc.append(cstr!("ok"), 0.0);
        doc.append(cstr!("errmsg"), self.message());
        doc.append(cstr!("code"), self.0.code);
        doc.append(cstr!("codeName"), self.code_name().as_ref());
        self.append_extra(&mut doc);
        doc
    }

    /// One entry of `writeErrors`: `{index, code, errmsg, …extra}`.
    pub fn to_write_error(&self, index: i32) -> RawDocumentBuf {
        let mut doc = RawDocumentBuf::new();
        doc.append(cstr!("index"), index);
        doc.append(cstr!("code"), self.0.code);
        self.append_extra(&mut doc);
        doc.append(cstr!("errmsg"), self.message());
        doc
    }

    fn append_extra(&self, doc: &mut RawDocumentBuf) {
        for (key, value) in self.0.extra.iter().flat_map(|e| e.iter().flatten()) {
            doc.append(key, value);
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code_name(), self.0.code, self.0.message)?;
        if let Source::Shard(shard) = &self.0.source {
            write!(f, " [shard {shard}]")?;
        }
        if let Some(internal) = &self.0.internal {
            write!(f, " [{internal}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// BSON that does not parse is always the sender's fault.
impl From<bson::error::Error> for Error {
    fn from(e: bson::error::Error) -> Self {
        Error::new(Code::InvalidBSON, "The message holds malformed BSON").because(e.to_string())
    }
}
