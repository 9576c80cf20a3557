//! The log's line about an operation: id 51803, "Slow query", with the fields by which log tools know it, and with the
//! reason of the route.

use std::fmt::Write as _;
use std::time::Duration;

use bson::RawBsonRef;

use super::{Ctx, Request};
use crate::bsonx::{self, brief, kind, quote};
use crate::stats::log;
use crate::target::Reason;

/// The id of the line in mongod's and mongos's logs.
const ID: i64 = 51803;
/// About how many bytes of a command are shown.
const COMMAND_LIMIT: usize = 8 * 1024;
/// About how many bytes of a write's statements are shown.
const STATEMENTS_LIMIT: usize = 4 * 1024;
/// Statements of a write that are shown.
const STATEMENTS: usize = 8;

/// Commands that may carry secrets, or wait on purpose.
const SILENT: &[&str] = &["hello", "isMaster", "saslStart", "saslContinue", "authenticate"];

/// Logs the operation.
pub fn report(ctx: &Ctx, request: &Request, reply: &[u8], elapsed: Duration) {
    if SILENT.contains(&request.spec.name) || waits_on_purpose(request) {
        return;
    }
    let context = format!("conn{}", ctx.conn.info.connection_id);
    log::write_ready("COMMAND", ID, &context, "Slow query", &attributes(ctx, request, reply, elapsed));
}

/// A getMore that says for how long to wait for data has no reason to be quick.
fn waits_on_purpose(request: &Request) -> bool {
    request.spec.name == "getMore" && request.generic.max_time_ms.is_some()
}

/// An object of JSON in the making.
struct Object(String);

impl Object {
    fn key(&mut self, name: &str) -> &mut String {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        quote(&mut self.0, name);
        self.0.push(':');
        &mut self.0
    }

    fn text(&mut self, name: &str, value: &str) {
        quote(self.key(name), value);
    }

    fn number(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = write!(self.key(name), "{value}");
    }
}

fn attributes(ctx: &Ctx, request: &Request, reply: &[u8], elapsed: Duration) -> String {
    let mut out = Object("{".to_owned());
    out.text("type", "command");
    out.text("ns", &namespace(request));
    let metadata = ctx.conn.info.metadata.get();
    if let Some(name) = metadata.and_then(|m| bsonx::doc(m, "application")).and_then(|a| bsonx::str(a, "name")) {
        out.text("appName", name);
    }
    command(&mut out, request);
    where_it_went(&mut out, ctx, request);
    cursor(&mut out, ctx, request, reply);
    counts(&mut out, request, reply);
    outcome(&mut out, reply);
    out.number("reslen", reply.len());
    for name in ["readConcern", "writeConcern"] {
        if let Some(RawBsonRef::Document(doc)) = request.get(name) {
            brief(out.key(name), doc, 512);
        }
    }
    out.text("remote", &ctx.conn.info.address);
    out.text("protocol", if request.message.legacy { "op_query" } else { "op_msg" });
    let waits = &ctx.op.record.waits;
    if waits.sent() > 0 {
        out.number("remoteOps", waits.sent());
        out.number("remoteOpWaitMillis", waits.total().as_millis());
    }
    out.number("durationMillis", elapsed.as_millis());
    out.0.push('}');
    out.0
}

fn namespace(request: &Request) -> String {
    match request.spec.name {
        "getMore" => format!("{}.{}", request.db(), bsonx::str(request.body(), "collection").unwrap_or("$cmd")),
        _ => request.namespace().map_or_else(|_| format!("{}.$cmd", request.db()), |ns| ns.as_str().to_owned()),
    }
}

/// The command, with the beginning of what came beside its body.
fn command(out: &mut Object, request: &Request) {
    let text = out.key("command");
    brief(text, request.body(), COMMAND_LIMIT);
    for sequence in &request.message.sequences {
        // The object is closed again after each.
        text.pop();
        text.push(',');
        quote(text, &sequence.id);
        text.push_str(":[");
        let begun = text.len();
        for (i, doc) in request.message.documents(&sequence.id).map_while(Result::ok).enumerate() {
            if i > 0 {
                text.push(',');
            }
            if i == STATEMENTS || text.len() > begun + STATEMENTS_LIMIT {
                let _ = write!(text, "\"… {} more\"", sequence.count - i);
                break;
            }
            brief(text, doc, STATEMENTS_LIMIT);
        }
        text.push_str("]}");
    }
}

fn where_it_went(out: &mut Object, ctx: &Ctx, request: &Request) {
    if let Some(route) = super::read::explain::route_of(ctx, request) {
        out.number("nShards", route.shards.len());
        out.text("routeReason", route.reason.as_str());
    } else if request.spec.name == "insert" {
        let sharded = request.namespace().is_ok_and(|ns| ctx.snapshot.collection(ns.as_str()).is_some());
        let reason = if sharded { Reason::EqualityOnShardKey } else { Reason::Unsharded };
        out.text("routeReason", reason.as_str());
    }
}

fn cursor(out: &mut Object, ctx: &Ctx, request: &Request, reply: &[u8]) {
    if request.spec.name == "getMore" {
        let asked = request.argument().ok().and_then(bsonx::as_int).unwrap_or(0);
        out.number("cursorid", asked);
        if let Some(first) = ctx.router.cursors.command_of(asked) {
            brief(out.key("originatingCommand"), bsonx::view(&first), COMMAND_LIMIT / 2);
        }
    }
    let Some(found) = bsonx::find(reply, "cursor").filter(|f| f.kind == kind::DOCUMENT) else { return };
    let cursor = &reply[found.range()];
    let id = bsonx::find(cursor, "id").and_then(|f| bsonx::int64(cursor, f.value)).unwrap_or(0);
    match id {
        0 => {
            let _ = write!(out.key("cursorExhausted"), "true");
        }
        _ if request.spec.name == "getMore" => {}
        id => out.number("cursorid", id),
    }
    let batch = ["firstBatch", "nextBatch"].iter().find_map(|name| bsonx::find(cursor, name));
    if let Some(batch) = batch.filter(|b| b.kind == kind::ARRAY) {
        out.number("nreturned", bsonx::fields(&cursor[batch.range()]).count());
    }
}

/// What a write did.
fn counts(out: &mut Object, request: &Request, reply: &[u8]) {
    let reply = bsonx::view(reply);
    let name = match request.spec.name {
        "insert" => "ninserted",
        "update" => "nMatched",
        "delete" => "ndeleted",
        _ => return,
    };
    if let Some(n) = bsonx::int(reply, "n") {
        out.number(name, n);
    }
    if let Some(n) = bsonx::int(reply, "nModified") {
        out.number("nModified", n);
    }
    if let Some(errors) = bsonx::array(reply, "writeErrors") {
        out.number("nWriteErrors", errors.into_iter().count());
    }
}

fn outcome(out: &mut Object, reply: &[u8]) {
    let reply = bsonx::view(reply);
    if bsonx::truthy(reply, "ok") == Some(true) {
        return;
    }
    out.number("ok", 0);
    out.text("errMsg", bsonx::str(reply, "errmsg").unwrap_or(""));
    if let Some(name) = bsonx::str(reply, "codeName") {
        out.text("errName", name);
    }
    if let Some(code) = bsonx::int(reply, "code") {
        out.number("errCode", code);
    }
}
