//! `getMore`.

use std::time::Instant;

use bson::{RawBsonRef, RawDocument};
use futures_util::future::BoxFuture;

use super::numbers::{not_negative, wrong_type};
use super::pass::OpenCursor;
use super::route::is_generic;
use crate::bsonx::{self, Writer};
use crate::command::{Ctx, Reply, Request};
use crate::cursor::{Checkout, Cursor, MergedCursor, RemoteCursor, StoredCursor};
use crate::error::{Code, Error, Result};
use crate::merge::{CursorFields, Doc, ReplyWriter, Sink};
use crate::op::OpContext;
use crate::wire::{Flags, OutMsg};

/// The arguments of getMore.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Args<'a> {
    id: i64,
    collection: &'a str,
    batch_size: Option<i64>,
    has_max_time: bool,
}

impl<'a> Args<'a> {
    fn parse(body: &'a RawDocument) -> Result<Self> {
        let (mut id, mut collection, mut batch_size, mut has_max_time) = (None, None, None, false);
        for element in body.iter_elements() {
            let element = element?;
            match element.key().as_str() {
                "getMore" => match element.value()? {
                    RawBsonRef::Int64(n) => id = Some(n),
                    RawBsonRef::Null => {}
                    other => return Err(wrong_type("getMore", "getMore", other, "long")),
                },
                "collection" => match element.value()? {
                    RawBsonRef::String(name) => collection = Some(name),
                    RawBsonRef::Null => {}
                    other => return Err(wrong_type("getMore", "collection", other, "string")),
                },
                "batchSize" => batch_size = not_negative("getMore", "batchSize", element.value()?)?,
                "maxTimeMS" => has_max_time = true,
                key if is_generic(key) => {}
                key => {
                    return Err(Error::with_code(40415, format!("BSON field 'getMore.{key}' is an unknown field.")));
                }
            }
        }
        let missing =
            |field| Error::with_code(40414, format!("BSON field 'getMore.{field}' is missing but a required field"));
        let id = id.ok_or_else(|| missing("getMore"))?;
        let collection = collection.ok_or_else(|| missing("collection"))?;
        if collection.is_empty() {
            return Err(Error::new(Code::InvalidNamespace, "Collection names cannot be empty"));
        }
        Ok(Args { id, collection, batch_size, has_max_time })
    }

    /// Documents the batch may hold; a size of 0 is none at all.
    fn count(&self) -> usize {
        self.batch_size.filter(|n| *n > 0).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }
}

pub fn get_more<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let args = Args::parse(request.body())?;
        let ns = format!("{}.{}", request.db(), args.collection);
        let mut out = ctx.router.cursors.check_out(args.id, &ns, request.session(), &ctx.op.record)?;
        let Some(cursor) = out.take() else { return Err(Error::internal("a cursor was checked out twice")) };
        if args.has_max_time && !out.facts().await_data {
            let time_left = out.time_left;
            out.put_back(cursor, time_left);
            return Err(Error::new(
                Code::BadValue,
                "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
            ));
        }
        let ctx = with_cursors_limit(ctx, &out);
        let outcome = match cursor {
            Cursor::Passed(remote) => pass(&ctx, request, &args, &out, remote).await,
            Cursor::Merged(merged) => merge(&ctx, request, &args, &out, merged).await,
            Cursor::Stored(stored) => Ok(stored_batch(&args, &out, stored)),
        };
        // The error of the interruption is not what the client should hear.
        let (reply, cursor) = match outcome {
            Err(error) if error.is(Code::Interrupted) && out.was_killed() => {
                return Err(Error::new(Code::CursorKilled, "the cursor was killed"));
            }
            other => other?,
        };
        let mut reply = reply;
        if let Some(cursor) = cursor {
            // A client that allows it is sent batch after batch without asking again.
            reply.more_to_come = request.message.flags.has(Flags::EXHAUST_ALLOWED);
            let time_left = out.time_left.map(|_| ctx.op.remaining().unwrap_or_default());
            out.put_back(cursor, time_left);
        }
        Ok(reply)
    })
}

/// The operation under the time limit of the command that opened the cursor. A getMore's own `maxTimeMS` is none: it
/// only says how long to wait for data.
fn with_cursors_limit(ctx: &Ctx, out: &Checkout) -> Ctx {
    Ctx {
        router: ctx.router.clone(),
        conn: ctx.conn.clone(),
        op: OpContext { record: ctx.op.record.clone(), deadline: out.time_left.map(|left| Instant::now() + left) },
        snapshot: ctx.snapshot.clone(),
    }
}

/// Forwards the getMore to the server that has the cursor.
async fn pass(
    ctx: &Ctx,
    request: &Request,
    args: &Args<'_>,
    out: &Checkout,
    remote: RemoteCursor,
) -> Result<(Reply, Option<Cursor>)> {
    let same = remote.ns.as_str() == &*out.facts().ns;
    let body = match same {
        true => bsonx::with_int64(request.message.body.clone(), &["getMore"], remote.id()),
        // The cursor stands under another name there (the catalog's database).
        false => {
            let mut body = Writer::new();
            body.int64("getMore", remote.id()).str("collection", remote.ns.coll());
            let rest = Writer::copy_without(request.body().as_bytes(), |key| {
                matches!(key, b"getMore" | b"collection" | b"$db")
            })
            .finish();
            body.raw_fields(&rest[4..rest.len() - 1]).str("$db", remote.ns.db());
            body.finish().into()
        }
    };
    let reply = ctx.send_to_server(&remote.shard, &remote.server, &OutMsg::new(body)).await?;
    let reply = reply.into_result().map_err(|error| {
        let lost = error.is(Code::CursorNotFound);
        if lost {
            error.with_message(format!("Cursor not found (namespace: '{}', id: {}).", out.facts().ns, args.id))
        } else {
            error
        }
    });
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            if error.is(Code::CursorNotFound) {
                remote.exhausted();
            }
            return Err(error);
        }
    };
    let open = OpenCursor::read(&reply.body)?.is_some();
    let body = match same {
        true => reply.body,
        false => super::config::renamed(&reply.body, &out.facts().ns)?,
    };
    if open {
        Ok((Reply::raw(bsonx::with_int64(body, &["cursor", "id"], args.id)), Some(Cursor::Passed(remote))))
    } else {
        remote.exhausted();
        Ok((Reply::raw(body), None))
    }
}

async fn merge(
    ctx: &Ctx,
    request: &Request,
    args: &Args<'_>,
    out: &Checkout,
    mut cursor: Box<MergedCursor>,
) -> Result<(Reply, Option<Cursor>)> {
    let mut writer = ReplyWriter::new(false);
    ctx.fill(request, &mut cursor, &mut writer, args.count(), args.batch_size).await?;
    let end = cursor.merger.at_end();
    let reply = writer.finish(CursorFields {
        id: if end { 0 } else { args.id },
        ns: &out.facts().ns,
        partial: cursor.partial,
        at_cluster_time: cursor.at_cluster_time,
    });
    Ok((Reply::raw(reply), (!end).then_some(Cursor::Merged(cursor))))
}

fn stored_batch(args: &Args<'_>, out: &Checkout, mut cursor: StoredCursor) -> (Reply, Option<Cursor>) {
    let mut writer = ReplyWriter::new(false);
    cursor.fill(&mut writer, args.count());
    let end = cursor.docs.is_empty();
    let id = if end { 0 } else { args.id };
    let reply = writer.finish(CursorFields { id, ns: &out.facts().ns, ..CursorFields::default() });
    (Reply::raw(reply), (!end).then_some(Cursor::Stored(cursor)))
}

impl StoredCursor {
    /// Moves up to `count` documents into the batch.
    pub fn fill(&mut self, writer: &mut ReplyWriter, count: usize) {
        while writer.count() < count {
            match self.docs.front() {
                Some(doc) if writer.fits(doc.len()) => writer.push(&Doc::whole(doc)),
                _ => return,
            }
            self.docs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    fn code(body: bson::RawDocumentBuf) -> i32 {
        Args::parse(&body).unwrap_err().code()
    }

    #[test]
    fn arguments() {
        let body = rawdoc! { "getMore": 5_i64, "collection": "c", "batchSize": 2.5, "$db": "d", "lsid": {} };
        let args = Args::parse(&body).unwrap();
        assert_eq!(args, Args { id: 5, collection: "c", batch_size: Some(2), has_max_time: false });
        assert_eq!(args.count(), 2);
        assert_eq!(Args { batch_size: Some(0), ..args }.count(), usize::MAX);
        assert_eq!(code(rawdoc! { "getMore": 5, "collection": "c" }), 14);
        assert_eq!(code(rawdoc! { "getMore": 5_i64, "collection": 5 }), 14);
        assert_eq!(code(rawdoc! { "getMore": 5_i64 }), 40414);
        assert_eq!(code(rawdoc! { "getMore": 5_i64, "collection": "" }), 73);
        assert_eq!(code(rawdoc! { "getMore": 5_i64, "collection": "c", "nope": 1 }), 40415);
        assert_eq!(code(rawdoc! { "getMore": 5_i64, "collection": "c", "batchSize": -1 }), 51024);
    }
}
