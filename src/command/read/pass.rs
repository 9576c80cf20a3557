//! Reads of one shard: the command goes out as it came, the reply comes back as it is but for the cursor's id.

use std::sync::Arc;

use bytes::Bytes;

use crate::bsonx::{self, kind};
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Ctx, Reply, Request};
use crate::cursor::{Cursor, NewCursor, RemoteCursor};
use crate::error::{Code, Error, Result};
use crate::merge::{CursorFields, ReplyWriter};
use crate::session::SessionId;
use crate::shard::{Retryable, ShardReply};
use crate::wire::OutMsg;

/// What a command says about the cursor it opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorOptions {
    pub no_timeout: bool,
    pub await_data: bool,
}

impl Ctx {
    /// Sends a cursor command to one shard as it came and passes its reply on.
    pub async fn pass(
        &self,
        request: &Request,
        shard: &ShardId,
        retry: Retryable,
        options: CursorOptions,
    ) -> Result<Reply> {
        let pref = request.read_preference()?;
        let reply = self.send(shard, &pref, retry, &OutMsg::new(request.message.body.clone())).await?;
        self.adopt(request, reply, options)
    }

    /// A shard's cursor reply as the client gets it: an open cursor becomes one of this router's.
    ///
    /// # Errors
    /// The shard's, if it replied with one.
    pub fn adopt(&self, request: &Request, reply: ShardReply, options: CursorOptions) -> Result<Reply> {
        let reply = reply.into_result()?;
        let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(Reply::pass(reply)) };
        let remote =
            RemoteCursor::new(reply.shard, reply.server, open.ns, open.id, self.router.cursors.killer().clone());
        let ns: Arc<str> = remote.ns.as_str().into();
        let id = self.router.cursors.open(self.new_cursor(request, ns, options), Cursor::Passed(remote));
        Ok(Reply::raw(bsonx::with_int64(reply.body, &["cursor", "id"], id)))
    }

    /// The facts of a cursor that `request` opens.
    pub fn new_cursor(&self, request: &Request, ns: Arc<str>, options: CursorOptions) -> NewCursor {
        NewCursor {
            ns,
            session: request.session(),
            connection: self.conn.balanced.then_some(self.conn.info.connection_id),
            no_timeout: options.no_timeout,
            await_data: options.await_data,
            snapshot_version: self.snapshot.version,
            command: request.message.body.clone(),
            // The time of an awaitData find bounds the find alone.
            time_left: if options.await_data { None } else { self.op.remaining() },
        }
    }
}

impl Request {
    /// The session the command came in.
    pub fn session(&self) -> Option<SessionId> {
        if self.generic.has_lsid { SessionId::of_command(self.body()) } else { None }
    }
}

/// An empty first batch and no cursor.
pub fn empty_result(ns: &str) -> Reply {
    Reply::raw(ReplyWriter::new(true).finish(CursorFields { ns, ..CursorFields::default() }))
}

/// An open cursor as a server's reply tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenCursor {
    pub id: i64,
    pub ns: Namespace,
}

impl OpenCursor {
    /// `None` where the reply has no cursor, or its cursor is exhausted.
    ///
    /// # Errors
    /// InvalidBSON (22) for a cursor without a namespace.
    pub fn read(reply: &[u8]) -> Result<Option<Self>> {
        let Some(cursor) = bsonx::find(reply, "cursor").filter(|f| f.kind == kind::DOCUMENT) else { return Ok(None) };
        let cursor = &reply[cursor.range()];
        let id = bsonx::find(cursor, "id").filter(|f| f.kind == kind::INT64);
        let id = id.and_then(|f| bsonx::int64(cursor, f.value)).unwrap_or(0);
        if id == 0 {
            return Ok(None);
        }
        let ns = bsonx::str(bsonx::view(cursor), "ns").ok_or_else(no_namespace)?;
        Ok(Some(OpenCursor { id, ns: Namespace::parse(ns)? }))
    }
}

/// The batch array of a cursor reply (`firstBatch` or `nextBatch`), sharing the reply's bytes.
///
/// # Errors
/// InvalidBSON (22) where there is none.
pub fn batch_of(reply: &Bytes, name: &str) -> Result<Bytes> {
    match bsonx::find_path(reply, &["cursor", name]) {
        Some(field) if field.kind == kind::ARRAY => Ok(reply.slice(field.range())),
        _ => Err(Error::new(Code::InvalidBSON, format!("A shard sent a cursor reply without {name}")).from_router()),
    }
}

fn no_namespace() -> Error {
    Error::new(Code::InvalidBSON, "A shard sent a cursor without its namespace").from_router()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    #[test]
    fn cursors_in_replies() {
        let open = |doc: bson::RawDocumentBuf| OpenCursor::read(doc.as_bytes()).map_err(|e| e.code());
        let ns = Namespace::parse("d.$cmd.aggregate").unwrap();
        let reply = rawdoc! { "cursor": { "firstBatch": [{}], "id": 5_i64, "ns": ns.as_str() }, "ok": 1.0 };
        assert_eq!(open(reply.clone()), Ok(Some(OpenCursor { id: 5, ns })));
        assert_eq!(open(rawdoc! { "cursor": { "id": 0_i64, "ns": "d.c", "firstBatch": [] }, "ok": 1.0 }), Ok(None));
        assert_eq!(open(rawdoc! { "cursor": { "id": 5_i64, "firstBatch": [] }, "ok": 1.0 }), Err(22));
        assert_eq!(open(rawdoc! { "n": 5, "ok": 1.0 }), Ok(None));
        let bytes = Bytes::from(reply.into_bytes());
        assert_eq!(batch_of(&bytes, "firstBatch").unwrap().len(), 13);
        assert!(batch_of(&bytes, "nextBatch").is_err());
    }
}
