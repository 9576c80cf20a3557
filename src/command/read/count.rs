//! `count`.

use bson::{RawBsonRef, RawDocument};
use futures_util::future::BoxFuture;

use super::numbers::whole;
use super::route::Place;
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, ShardReply};
use crate::wire::OutMsg;

pub fn count<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let pref = request.read_preference()?;
        match ctx.place(&ns) {
            Place::Nowhere => Ok(reply(&[], 0)),
            Place::Config => ctx.read_config(request, &ns).await,
            Place::Unsharded(shard) => {
                if let Some(view) = ctx.beneath(&ns).await?
                    && !Args::scan(request.body()).odd
                {
                    return Box::pin(super::beneath::count(ctx, request, &view)).await;
                }
                count_on_one(ctx, request, &pref, &shard).await
            }
            Place::Sharded(coll) => {
                let args = Args::scan(request.body());
                let route = ctx.route_uncounted(&coll, args.query, args.collation)?;
                match route.single() {
                    Some(shard) => count_on_one(ctx, request, &pref, shard).await,
                    None if args.odd => ctx.judge(request, &route).await,
                    None => count_on_many(ctx, request, &pref, &args, &route.shards).await,
                }
            }
        }
    })
}

/// The arguments of count.
#[derive(Clone, Copy, Debug, Default)]
struct Args<'a> {
    query: Option<&'a RawDocument>,
    collation: Option<&'a RawDocument>,
    skip: i64,
    /// 0 is no limit; a negative one means the same as its absolute value.
    limit: i64,
    /// Some argument is not as it must be; a server says what is wrong.
    odd: bool,
}

impl<'a> Args<'a> {
    fn scan(body: &'a RawDocument) -> Self {
        let mut args = Args::default();
        for (key, value) in body.iter().map_while(std::result::Result::ok) {
            match key.as_str() {
                "query" => args.query = args.document(value),
                "collation" => args.collation = args.document(value),
                "skip" => {
                    args.skip = whole(value).unwrap_or(0);
                    args.odd |= args.skip < 0 || (whole(value).is_none() && value != RawBsonRef::Null);
                }
                "limit" => match exactly(value).filter(|n| *n != i64::MIN) {
                    Some(limit) => args.limit = limit.abs(),
                    None => args.odd = true,
                },
                _ => {}
            }
        }
        args
    }

    fn document(&mut self, value: RawBsonRef<'a>) -> Option<&'a RawDocument> {
        self.odd |= !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Null);
        value.as_document()
    }

    /// The number of documents that skip and limit leave of `total`.
    fn apply(&self, total: i64) -> i64 {
        let rest = total.saturating_sub(self.skip).max(0);
        if self.limit > 0 { rest.min(self.limit) } else { rest }
    }

    /// The count for each shard: without skip, and up to as many as matter.
    fn shard_count(&self, body: &RawDocument) -> Vec<u8> {
        let mut out = Writer::copy_without(body.as_bytes(), |key| matches!(key, b"skip" | b"limit"));
        if let Some(limit) = self.limit.checked_add(self.skip).filter(|_| self.limit > 0) {
            out.int64("limit", limit);
        }
        out.finish()
    }
}

/// A number that is an integer, of whatever type: a limit is not rounded.
fn exactly(value: RawBsonRef<'_>) -> Option<i64> {
    let fraction = match value {
        RawBsonRef::Double(n) => n.fract(),
        RawBsonRef::Decimal128(n) => n.to_string().parse::<f64>().map_or(f64::NAN, |n| match n.abs() < 2e18 {
            true => n.fract(),
            false => f64::NAN,
        }),
        _ => 0.0,
    };
    whole(value).filter(|_| fraction == 0.0)
}

async fn count_on_one(ctx: &Ctx, request: &Request, pref: &ReadPreference, shard: &ShardId) -> Result<Reply> {
    let msg = OutMsg::new(request.message.body.clone());
    let answer = ctx.send(shard, pref, request.read_retry(), &msg).await?.into_result()?;
    let n = n_of(&answer)?;
    Ok(reply(&[(shard.clone(), n)], n))
}

async fn count_on_many(
    ctx: &Ctx,
    request: &Request,
    pref: &ReadPreference,
    args: &Args<'_>,
    shards: &[ShardId],
) -> Result<Reply> {
    let msg = OutMsg::new(args.shard_count(request.body()));
    let requests: Vec<_> = shards.iter().map(|shard| (shard.clone(), msg.clone())).collect();
    let mut counts = Vec::with_capacity(shards.len());
    for (shard, outcome) in ctx.scatter(&requests, pref, request.read_retry()).await {
        counts.push((shard, n_of(&outcome?.into_result()?)?));
    }
    let total = counts.iter().fold(0_i64, |sum, (_, n)| sum.saturating_add(*n));
    Ok(reply(&counts, args.apply(total)))
}

fn n_of(answer: &ShardReply) -> Result<i64> {
    bsonx::int(answer.doc(), "n")
        .ok_or_else(|| Error::new(Code::UnknownError, "A shard replied to count without a number").from_router())
}

/// `{shards: {id: n, …}, n, ok: 1}`.
fn reply(counts: &[(ShardId, i64)], n: i64) -> Reply {
    let mut out = Writer::new();
    if !counts.is_empty() {
        out.open_doc("shards");
        counts.iter().for_each(|(shard, n)| number(&mut out, shard, *n));
        out.close();
    }
    number(&mut out, "n", n);
    out.double("ok", 1.0);
    Reply::raw(out.finish().into())
}

/// The smallest integer type that holds the number, as servers have it.
pub fn number(out: &mut Writer, key: &str, n: i64) {
    match i32::try_from(n) {
        Ok(n) => out.int32(key, n),
        Err(_) => out.int64(key, n),
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{RawDocumentBuf, doc, rawdoc};

    fn plan(body: RawDocumentBuf, total: i64) -> (bson::Document, i64) {
        let args = Args::scan(&body);
        assert!(!args.odd);
        (bson::Document::from_reader(&*args.shard_count(&body)).unwrap(), args.apply(total))
    }

    #[test]
    fn limit_and_skip() {
        assert_eq!(plan(rawdoc! { "count": "c" }, 10), (doc! { "count": "c" }, 10));
        let both = rawdoc! { "count": "c", "limit": -4, "skip": 3 };
        assert_eq!(plan(both.clone(), 6), (doc! { "count": "c", "limit": 7_i64 }, 3));
        assert_eq!(plan(both, 14).1, 4);
        assert_eq!(plan(rawdoc! { "count": "c", "skip": 3.7, "limit": 0 }, 2), (doc! { "count": "c" }, 0));
        let huge = rawdoc! { "count": "c", "skip": i64::MAX, "limit": 5 };
        assert_eq!(plan(huge, 7), (doc! { "count": "c" }, 0));
    }

    #[test]
    fn odd_arguments() {
        for odd in [
            rawdoc! { "limit": "x" },
            rawdoc! { "limit": 1.7 },
            rawdoc! { "limit": i64::MIN },
            rawdoc! { "limit": "1.5".parse::<bson::Decimal128>().unwrap() },
            rawdoc! { "limit": "1E+30".parse::<bson::Decimal128>().unwrap() },
            rawdoc! { "limit": bson::RawBson::Null },
            rawdoc! { "skip": -1 },
            rawdoc! { "query": 5 },
        ] {
            assert!(Args::scan(&odd).odd, "{odd:?}");
        }
        assert!(!Args::scan(&rawdoc! { "query": bson::RawBson::Null, "skip": bson::RawBson::Null }).odd);
    }

    #[test]
    fn replies() {
        let reply = |counts: &[(ShardId, i64)], n| bson::Document::from_reader(&*super::reply(counts, n).body).unwrap();
        assert_eq!(reply(&[], 0), doc! { "n": 0, "ok": 1.0 });
        let counts = [("a".into(), 5), ("b".into(), 1 << 40)];
        let wanted = doc! { "shards": { "a": 5, "b": 1_i64 << 40 }, "n": (1_i64 << 40) + 5, "ok": 1.0 };
        assert_eq!(reply(&counts, (1 << 40) + 5), wanted);
    }
}
