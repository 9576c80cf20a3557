//! `findAndModify`: one document is found and written, on one shard.

use bson::{RawBsonRef, RawDocument};

use super::envelope::Envelope;
use super::single::{Single, Verb};
use super::statement::Change;
use super::update::{Target, place_update};
use crate::bsonx;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::Result;
use crate::target;

/// The parts of the command.
#[derive(Clone, Copy)]
pub struct FindAndModify<'a> {
    pub filter: &'a RawDocument,
    pub sort: Option<&'a RawDocument>,
    /// `None`: the document is removed.
    pub change: Option<Change<'a>>,
    pub upsert: bool,
    /// Give the document as it is afterwards.
    pub new: bool,
    pub collation: Option<&'a RawDocument>,
}

static NOTHING: [u8; 5] = [5, 0, 0, 0, 0];

impl<'a> FindAndModify<'a> {
    /// `None` where the command contradicts itself; a server says it best what is wrong then.
    ///
    /// # Errors
    /// TypeMismatch (14) for arguments of a wrong type.
    pub fn parse(request: &'a Request) -> Result<Option<Self>> {
        let filter = request.doc_arg("query")?.unwrap_or(bsonx::view(&NOTHING));
        // As on a server, null is as good as nothing.
        let flag = |name: &str| match request.get(name) {
            Some(RawBsonRef::Null) => Ok(false),
            _ => request.bool_arg(name).map(|flag| flag.unwrap_or(false)),
        };
        let (remove, upsert, new) = (flag("remove")?, flag("upsert")?, flag("new")?);
        let change = match request.get("update") {
            None => None,
            Some(value @ (RawBsonRef::Document(_) | RawBsonRef::Array(_))) => Some(Change::parse(value)?),
            Some(_) => return Ok(None),
        };
        if remove == change.is_some() || remove && (upsert || new) {
            return Ok(None);
        }
        Ok(Some(FindAndModify {
            filter,
            sort: request.doc_arg("sort")?.filter(|s| !s.is_empty()),
            change,
            upsert,
            new,
            collation: request.doc_arg("collation")?.filter(|c| !c.is_empty()),
        }))
    }

    /// Where it goes: one shard, or it is special.
    fn place(&self, coll: &CollectionRouting) -> Result<Target> {
        let target = match self.change {
            Some(change) => {
                let update = super::statement::Update {
                    raw: self.filter,
                    filter: self.filter,
                    change,
                    multi: false,
                    upsert: self.upsert,
                    collation: self.collation,
                };
                place_update(&update, coll)?
            }
            None => Target::of(target::query(self.filter, self.collation, coll)?),
        };
        Ok(match target {
            Target::Many(_) => Target::Special,
            other => other,
        })
    }
}

pub async fn run(ctx: &Ctx, request: &Request, coll: &CollectionRouting) -> Result<Reply> {
    let Some(command) = FindAndModify::parse(request)? else {
        let owners = coll.table.owners();
        let any = owners.first().ok_or_else(|| crate::error::Error::internal("a sharded collection without owners"))?;
        return super::forward(ctx, request, any).await;
    };
    if let Target::One(shard) = command.place(coll)? {
        return super::forward(ctx, request, &shard).await;
    }
    let envelope = Envelope::new(request, "")?;
    let single = Single::new(ctx, coll, &envelope, 0, Verb::FindAndModify(command));
    let written = Box::pin(single.run()).await?;
    Ok(Reply::doc(written.reply))
}
