//! `hello` and its old name `isMaster`: what a client learns of the router when it connects, and how it learns that
//! the router is about to stop.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::raw::RawBsonRef;
use bson::{DateTime, RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{Access, CatalogUse, CommandSpec, Ctx, Reply, Request};
use crate::bsonx;
use crate::conn::Topology;
use crate::error::{Code, Error, Result};
use crate::wire::{Compressor, Flags, MAX_BSON, MAX_MESSAGE, MAX_WRITE_BATCH};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("hello", Access::Open, "tells a client who it is connected to", hello)
        .secondary_ok()
        .catalog(CatalogUse::Nothing),
    CommandSpec::new("isMaster", Access::Open, "the old name of hello", is_master)
        .secondary_ok()
        .catalog(CatalogUse::Nothing)
        .aliases(&["ismaster"]),
];

/// The wire versions that clients may speak: up to that of MongoDB 6.0.
const MIN_WIRE_VERSION: i32 = 0;
const MAX_WIRE_VERSION: i32 = 17;
/// The most bytes of a `client` document, and of the application's name in it.
const MAX_METADATA: usize = 512;
const MAX_APP_NAME: usize = 128;

fn hello<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(answer(ctx, request, cstr!("isWritablePrimary")))
}

fn is_master<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(answer(ctx, request, cstr!("ismaster")))
}

async fn answer(ctx: &Ctx, request: &Request, primary: &bson::raw::CStr) -> Result<Reply> {
    let args = Arguments::parse(request)?;
    let compression = negotiate(&args.compression, &ctx.router.config.net.compressors);
    check_balanced(ctx, args.balanced)?;
    greet(ctx, args.client)?;
    let streams = request.message.flags.has(Flags::EXHAUST_ALLOWED);
    let topology = &ctx.router.topology;
    if let Some(seen) = args.await_change {
        await_change(ctx, topology, seen).await?;
    } else if streams {
        return Err(Error::with_code(51763, "A hello that is to stream its replies needs 'maxAwaitTimeMS'"));
    }
    refuse_when_stopping(topology)?;
    let mut doc = RawDocumentBuf::new();
    if let Some(names) = compression {
        doc.append(cstr!("compression"), names);
    }
    doc.append(primary, true);
    doc.append(cstr!("msg"), "isdbgrid");
    doc.append(cstr!("topologyVersion"), version_doc(topology));
    if args.balanced {
        // The same for every connection of this process, so that drivers know which router they are pinned to.
        doc.append(cstr!("serviceId"), topology.process_id());
    }
    if args.hello_ok {
        doc.append(cstr!("helloOk"), true);
    }
    doc.append(cstr!("maxBsonObjectSize"), MAX_BSON as i32);
    doc.append(cstr!("maxMessageSizeBytes"), MAX_MESSAGE as i32);
    doc.append(cstr!("maxWriteBatchSize"), MAX_WRITE_BATCH as i32);
    doc.append(cstr!("localTime"), DateTime::now());
    let minutes = ctx.router.parameters.read().int("localLogicalSessionTimeoutMinutes");
    doc.append(cstr!("logicalSessionTimeoutMinutes"), minutes as i32);
    doc.append(cstr!("connectionId"), ctx.conn.info.connection_id);
    doc.append(cstr!("maxWireVersion"), MAX_WIRE_VERSION);
    doc.append(cstr!("minWireVersion"), MIN_WIRE_VERSION);
    let mut reply = Reply::ok(doc);
    if streams {
        if !ctx.conn.streams_hello.swap(true, Ordering::Relaxed) {
            ctx.router.stats.connections.exhaust_hello.fetch_add(1, Ordering::Relaxed);
        }
        reply.more_to_come = true;
    }
    Ok(reply)
}

/// What of a hello's arguments counts. Unknown ones are ignored, as servers do for the sake of new clients.
struct Arguments<'a> {
    client: Option<RawBsonRef<'a>>,
    compression: Vec<&'a str>,
    hello_ok: bool,
    /// `loadBalanced: true`: the client believes a load balancer to be in between.
    balanced: bool,
    /// The topology version the client has, and how long it wants to wait for another.
    await_change: Option<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    process_id: ObjectId,
    counter: i64,
    patience: Duration,
}

impl<'a> Arguments<'a> {
    fn parse(request: &'a Request) -> Result<Self> {
        let mut compression = Vec::new();
        if let Some(names) = request.array_arg("compression")? {
            for (i, name) in names.into_iter().enumerate() {
                match name? {
                    RawBsonRef::String(name) => compression.push(name),
                    other => return Err(wrong_type(request, &format!("compression.{i}"), other, "'string'")),
                }
            }
        }
        let hello_ok = request.bool_arg("helloOk")?.is_some();
        let balanced = match request.get("loadBalanced") {
            None => false,
            Some(RawBsonRef::Boolean(yes)) => yes,
            Some(other) => return Err(wrong_type(request, "loadBalanced", other, "'bool'")),
        };
        request.doc_arg("speculativeAuthenticate")?; // as without users: passed over in silence
        check_user_name(request)?;
        let version = request.doc_arg("topologyVersion")?.map(|v| parse_version(request, v)).transpose()?;
        let wait = request.int_arg("maxAwaitTimeMS")?;
        let await_change = match (version, wait) {
            (None, None) => None,
            (Some((process_id, counter)), Some(wait)) => {
                if counter < 0 {
                    return Err(Error::with_code(51758, "The counter of 'topologyVersion' must not be negative"));
                }
                let wait = u64::try_from(wait)
                    .map_err(|_| Error::with_code(51759, "'maxAwaitTimeMS' must not be negative"))?;
                Some(Seen { process_id, counter, patience: Duration::from_millis(wait.min(i32::MAX as u64)) })
            }
            (Some(_), None) => {
                return Err(Error::with_code(51760, "A hello with 'topologyVersion' must have 'maxAwaitTimeMS' too"));
            }
            (None, Some(_)) => {
                return Err(Error::with_code(51760, "A hello with 'maxAwaitTimeMS' must have 'topologyVersion' too"));
            }
        };
        Ok(Arguments { client: request.get("client"), compression, hello_ok, balanced, await_change })
    }
}

/// `{processId, counter}`, both there and nothing else.
fn parse_version(request: &Request, version: &RawDocument) -> Result<(ObjectId, i64)> {
    let (mut process_id, mut counter) = (None, None);
    for field in version {
        match field? {
            (key, RawBsonRef::ObjectId(id)) if key == "processId" => process_id = Some(id),
            (key, RawBsonRef::Int64(n)) if key == "counter" => counter = Some(n),
            (key, other) if key == "processId" => {
                return Err(wrong_type(request, "topologyVersion.processId", other, "'objectId'"));
            }
            (key, other) if key == "counter" => {
                return Err(wrong_type(request, "topologyVersion.counter", other, "'long'"));
            }
            (key, _) => {
                let message = format!("BSON field '{}.topologyVersion.{key}' is an unknown field.", request.spec.name);
                return Err(Error::with_code(40415, message));
            }
        }
    }
    let missing = |name: &str| {
        let message =
            format!("BSON field '{}.topologyVersion.{name}' is missing but a required field", request.spec.name);
        Error::with_code(40414, message)
    };
    Ok((process_id.ok_or_else(|| missing("processId"))?, counter.ok_or_else(|| missing("counter"))?))
}

fn wrong_type(request: &Request, path: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    let found = bsonx::type_name(value.element_type());
    let message =
        format!("BSON field '{}.{path}' is the wrong type '{found}', expected type {expected}", request.spec.name);
    Error::new(Code::TypeMismatch, message)
}

/// `saslSupportedMechs: "db.user"`. There are no users, so it has no answer, but it must be well-formed.
fn check_user_name(request: &Request) -> Result<()> {
    match request.get("saslSupportedMechs") {
        None | Some(RawBsonRef::Document(_)) => Ok(()),
        Some(RawBsonRef::String(name)) if name.contains('.') => Ok(()),
        Some(RawBsonRef::String(_)) => {
            Err(Error::new(Code::BadValue, "'saslSupportedMechs' must name a user as \"database.user\""))
        }
        Some(other) => Err(wrong_type(request, "saslSupportedMechs", other, "'string' or 'object'")),
    }
}

/// Client and router must agree on whether there is a load balancer between them: the first hello settles it.
///
/// # Errors
/// LoadBalancerSupportMismatch.
fn check_balanced(ctx: &Ctx, wanted: bool) -> Result<()> {
    let first = !ctx.conn.greeted.load(Ordering::Relaxed);
    let message = match (ctx.conn.balanced, wanted) {
        (true, false) if first => "This connection comes through a load balancer; connect with loadBalanced=true",
        (false, true) => {
            "This connection comes through no load balancer that the router knows of (setParameter loadBalancerPort); \
             connect without loadBalanced=true"
        }
        _ => return Ok(()),
    };
    Err(Error::new(Code::LoadBalancerSupportMismatch, message))
}

/// The client's list without what is not offered, in the client's order; `None` where nothing is left.
fn negotiate(wanted: &[&str], offered: &[Compressor]) -> Option<RawArrayBuf> {
    let mut agreed = SmallVec::<[Compressor; 4]>::new();
    for name in wanted {
        if let Some(compressor) = Compressor::by_name(name).filter(|c| offered.contains(c) && !agreed.contains(c)) {
            agreed.push(compressor);
        }
    }
    (!agreed.is_empty()).then(|| RawArrayBuf::from_iter(agreed.iter().map(|c| c.name())))
}

/// Keeps the client's description of itself, which only the first hello of a connection may bring.
fn greet(ctx: &Ctx, client: Option<RawBsonRef<'_>>) -> Result<()> {
    let metadata = match client {
        None => None,
        Some(_) if ctx.conn.greeted.load(Ordering::Relaxed) => {
            return Err(Error::new(
                Code::ClientMetadataCannotBeMutated,
                "Only the first hello of a connection may have a 'client' document",
            ));
        }
        Some(RawBsonRef::Document(doc)) => Some(doc),
        Some(_) => return Err(Error::new(Code::TypeMismatch, "The 'client' of a hello must be a document")),
    };
    if let Some(doc) = metadata {
        check_metadata(doc)?;
        let _ = ctx.conn.info.metadata.set(doc.to_owned());
        tracing::info!(
            id = 51800,
            conn = ctx.conn.info.connection_id,
            remote = %ctx.conn.info.address,
            doc = ?doc,
            "client metadata"
        );
    }
    ctx.conn.greeted.store(true, Ordering::Relaxed);
    Ok(())
}

fn check_metadata(doc: &RawDocument) -> Result<()> {
    let length = doc.as_bytes().len();
    if length > MAX_METADATA {
        return Err(Error::new(
            Code::ClientMetadataDocumentTooLarge,
            format!("The 'client' document of a hello may have {MAX_METADATA} bytes; this one has {length}"),
        ));
    }
    if let Some(application) = section(doc, "application")?
        && let Some(name) = text(application, "application.name")?
        && name.len() > MAX_APP_NAME
    {
        return Err(Error::new(
            Code::ClientMetadataAppNameTooLarge,
            format!("The 'application.name' of a client may have {MAX_APP_NAME} bytes; this one has {}", name.len()),
        ));
    }
    let driver = section(doc, "driver")?.ok_or_else(|| missing("driver"))?;
    let os = section(doc, "os")?.ok_or_else(|| missing("os"))?;
    for (section, path) in [(driver, "driver.name"), (driver, "driver.version"), (os, "os.type")] {
        text(section, path)?.ok_or_else(|| missing(path))?;
    }
    Ok(())
}

fn missing(what: &str) -> Error {
    Error::new(Code::ClientMetadataMissingField, format!("The 'client' document of a hello must have '{what}'"))
}

fn section<'a>(doc: &'a RawDocument, name: &str) -> Result<Option<&'a RawDocument>> {
    match bsonx::get(doc, name) {
        None => Ok(None),
        Some(RawBsonRef::Document(section)) => Ok(Some(section)),
        Some(_) => Err(Error::new(Code::TypeMismatch, format!("'{name}' in the 'client' document must be a document"))),
    }
}

/// The string at the end of `path` (`section.name`) in that section.
fn text<'a>(section: &'a RawDocument, path: &str) -> Result<Option<&'a str>> {
    match bsonx::get(section, path.rsplit('.').next().unwrap_or(path)) {
        None => Ok(None),
        Some(RawBsonRef::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::new(Code::TypeMismatch, format!("'{path}' in the 'client' document must be a string"))),
    }
}

/// Waits while the client's topology version is the present one.
async fn await_change(ctx: &Ctx, topology: &Topology, seen: Seen) -> Result<()> {
    let counter = topology.counter();
    if seen.process_id != topology.process_id() || seen.counter < counter {
        return Ok(());
    }
    if seen.counter > counter {
        let message = format!(
            "The counter {} of 'topologyVersion' is greater than the router's, which is {counter}",
            seen.counter
        );
        return Err(Error::with_code(51761, message));
    }
    let _waiting = Waiting::new(&ctx.router.stats.connections.awaiting_topology);
    tokio::select! {
        _ = topology.change_from(counter, seen.patience) => Ok(()),
        () = ctx.op.cancel().cancelled() => Err(ctx.op.cancelled_error()),
    }
}

/// Counts a hello among those that wait, while it lives.
struct Waiting<'a>(&'a AtomicI64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicI64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn version_doc(topology: &Topology) -> RawDocumentBuf {
    rawdoc! { "processId": topology.process_id(), "counter": topology.counter() }
}

/// While the router is about to stop, drivers are sent elsewhere.
fn refuse_when_stopping(topology: &Topology) -> Result<()> {
    let Some(left) = topology.stopping_in() else { return Ok(()) };
    let extra = rawdoc! {
        "topologyVersion": version_doc(topology),
        "remainingQuiesceTimeMillis": left.as_millis() as i64,
    };
    let error = Error::new(Code::ShutdownInProgress, "The router is about to shut down; use another one");
    Err(error.from_router().with_extra(extra))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn compressors_are_agreed_on_once_each() {
        let mut wanted = vec!["zlib", "noop", "zlib", "snappy", "x"];
        let agreed = |wanted: &[&str]| negotiate(wanted, &[Compressor::Zlib, Compressor::Snappy]);
        assert_eq!(agreed(&wanted), Some(RawArrayBuf::from_iter(["zlib", "snappy"])));
        assert_eq!(agreed(&["zstd", "noop"]), None);
        let started = std::time::Instant::now();
        wanted.resize(1_000_000, "zstd");
        wanted.resize(2_000_000, "zlib");
        assert!(agreed(&wanted).is_some());
        assert!(started.elapsed().as_secs() < 5);
    }
}
