//! From a decoded message to a reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::failpoint::Action;
use super::{CommandSpec, Ctx, Generic, Reply, Request, slow, table};
use crate::bsonx;
use crate::catalog::model::check_database_name;
use crate::conn::ConnState;
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE, Result};
use crate::op::{OpContext, OpGuard};
use crate::router::Router;
use crate::scatter::named_time;
use crate::stats::log;
use crate::wire::Message;

/// A command that was found, scanned and registered, but does not run yet. The connection keeps its
/// [`OpContext`] so that it can cancel it when the client goes away.
pub struct Prepared {
    ctx: Ctx,
    request: Request,
    _guard: OpGuard,
}

/// What the connection has to do with the outcome.
pub enum Outcome {
    Reply(Reply),
    /// A failpoint asks to drop the connection without a reply.
    CloseConnection,
}

/// Finds the command and reads its generic arguments.
///
/// # Errors
/// The finished error reply where the command is unknown or its generic arguments are bad.
pub fn prepare(
    router: &Arc<Router>,
    conn: &Arc<ConnState>,
    message: Message,
) -> std::result::Result<Prepared, Box<Reply>> {
    let spec = bsonx::first_key(&message.body).and_then(table::lookup);
    match try_prepare(router, conn, message, spec) {
        Ok(prepared) => Ok(prepared),
        Err(error) => {
            let name = spec.map_or("<unknown>", |spec| spec.name);
            router.stats.count_command(name, 1, false, Duration::ZERO);
            Err(Box::new(router.clock.finish(None, Reply::doc(error.to_reply()))))
        }
    }
}

fn try_prepare(
    router: &Arc<Router>,
    conn: &Arc<ConnState>,
    message: Message,
    spec: Option<&'static CommandSpec>,
) -> Result<Prepared> {
    let Some(spec) = spec else {
        super::generic::check_db(message.document())?;
        return Err(super::admin::not_built::unknown(message.command().unwrap_or("")));
    };
    let generic = Generic::scan(message.document())?;
    generic.check(spec, message.document())?;
    if let Some(session) = generic.session {
        router.sessions.touch(session)?;
    }
    let deadline = generic.max_time_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let (op, guard) = router.ops.start(conn.info.clone(), spec.name, message.body.clone(), deadline);
    if generic.has_read_concern
        && let Some(concern) = bsonx::doc(message.document(), "readConcern")
    {
        op.record.awaited.store(named_time(concern), Ordering::Relaxed);
    }
    let request = Request { message, spec, generic };
    let ctx = Ctx { router: router.clone(), conn: conn.clone(), op, snapshot: super::certain::snapshot(router, spec) };
    Ok(Prepared { ctx, request, _guard: guard })
}

impl Prepared {
    pub fn op(&self) -> &OpContext {
        &self.ctx.op
    }

    /// Runs the command. Every failure becomes an error reply.
    pub async fn run(mut self) -> Outcome {
        let entered = super::ddl::gate::enter(&mut self.ctx, &self.request).await;
        let Prepared { ctx, request, _guard } = &self;
        let (mut write_concern_error, mut failed) = (None, None);
        match ctx.router.failpoints.check(request, ctx).await {
            Action::Go => {}
            Action::CloseConnection => return Outcome::CloseConnection,
            Action::WriteConcernError(doc) => write_concern_error = Some(doc),
            Action::Fail(error) => failed = Some(error),
        }
        let result = match (failed, entered.and_then(|()| check_allowed(ctx, request))) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(())) if request.generic.help => Ok(help(request.spec)),
            (None, Ok(())) => match super::certain::make(ctx, request).await {
                Ok(None) => (request.spec.run)(ctx, request).await,
                Ok(Some(newer)) => (request.spec.run)(&newer, request).await,
                Err(error) => Err(error),
            },
        };
        let reply = match result {
            Ok(reply) => match write_concern_error {
                Some(doc) => ctx.router.clock.finish(Some(&ctx.op), with_write_concern_error(reply, &doc)),
                None => ctx.router.clock.finish(Some(&ctx.op), reply),
            },
            Err(error) => ctx.finish_error(request, &error),
        };
        ctx.account(request, &reply);
        Outcome::Reply(reply)
    }
}

fn check_allowed(ctx: &Ctx, request: &Request) -> Result<()> {
    ctx.op.check()?;
    let spec = request.spec;
    if spec.admin_only && request.db() != "admin" {
        return Err(Error::new(
            Code::Unauthorized,
            format!("{} may only be run against the admin database.", spec.name),
        ));
    }
    // Reads too: a shard would keep the transaction open, and nothing here could commit or abort it.
    if request.generic.in_transaction {
        return Err(Error::new(
            Code::OperationNotSupportedInTransaction,
            "Multi-document transactions are not supported by this router yet: send the statements without one, or change one \
             document at a time",
        ));
    }
    match request.db() {
        "$external" => Ok(()),
        db => check_database_name(db),
    }
}

/// The answer to `{<command>: …, help: true}`.
fn help(spec: &CommandSpec) -> Reply {
    Reply::ok(rawdoc! { "help": format!("help for: {} {}", spec.name, spec.help) })
}

fn with_write_concern_error(reply: Reply, fields: &RawDocument) -> Reply {
    let Ok(body) = reply.document() else { return reply };
    let mut doc = body.to_owned();
    for (key, value) in fields.iter().flatten() {
        doc.append(key, value);
    }
    Reply { more_to_come: reply.more_to_come, ..Reply::doc(doc) }
}

impl Ctx {
    /// Counts the finished command, and logs it if it was slow.
    fn account(&self, request: &Request, reply: &Reply) {
        let elapsed = self.op.record.started.elapsed();
        let stats = &self.router.stats;
        // A shard's reply that was passed on may be a failure too.
        let ok = reply.passed || bsonx::truthy(bsonx::view(&reply.body), "ok") == Some(true);
        stats.count_command(request.spec.name, request.statements(), ok, elapsed);
        if stats.slow.logs(elapsed) || log::verbosity_of_commands() > 0 {
            slow::report(self, request, &reply.body, elapsed);
        }
    }

    fn finish_error(&self, request: &Request, error: &Error) -> Reply {
        if error.is(Code::InternalError) {
            tracing::error!(command = request.spec.name, op = self.op.id(), %error, "command failed inside the router");
        } else {
            tracing::debug!(command = request.spec.name, op = self.op.id(), %error, "command failed");
        }
        // A write that the router's stop interrupted may have been carried out, and another router can tell.
        let stopped = error.is(Code::InterruptedAtShutdown) && self.op.check().is_err();
        let error = match stopped && request.generic.txn_number.is_some() && !request.generic.in_transaction {
            true => error.clone().label(LABEL_RETRYABLE_WRITE),
            false => error.clone(),
        };
        let doc: RawDocumentBuf = error.to_reply();
        self.router.clock.finish(Some(&self.op), Reply::doc(doc))
    }
}
