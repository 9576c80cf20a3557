//! Sessions of the router's own, for transactions that no client's session stands behind.
//!
//! A server keeps a session for half an hour and has room for a limited number, so they are used again: the next
//! transaction on a session has the next number, and ends the one before should that still be open.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use parking_lot::Mutex;

use super::SessionId;

/// More than this many are not kept.
const MOST: usize = 1_000;

/// The sessions that are not in use, each with the number of its next transaction.
#[derive(Debug, Default)]
pub struct Spare(Mutex<Vec<(RawDocumentBuf, i64)>>);

/// A session that is in use until this is dropped.
#[derive(Debug)]
pub struct Lease {
    spare: Arc<Spare>,
    lsid: RawDocumentBuf,
    txn_number: i64,
    retired: bool,
}

impl Spare {
    pub fn lease(self: &Arc<Self>) -> Lease {
        let (lsid, txn_number) = self.0.lock().pop().unwrap_or_else(|| (SessionId::random().to_doc(), 1));
        Lease { spare: self.clone(), lsid, txn_number, retired: false }
    }
}

impl Lease {
    pub fn lsid(&self) -> &RawDocument {
        &self.lsid
    }

    /// Never used before on this session.
    pub fn txn_number(&self) -> i64 {
        self.txn_number
    }

    /// It is not used again.
    pub fn retire(mut self) {
        self.retired = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut spare = self.spare.0.lock();
        if !self.retired && spare.len() < MOST {
            spare.push((std::mem::take(&mut self.lsid), self.txn_number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_used_again_with_another_number() {
        let spare = Arc::new(Spare::default());
        let (first, second) = (spare.lease(), spare.lease());
        assert_ne!(first.lsid(), second.lsid());
        assert_eq!((first.txn_number(), second.txn_number()), (1, 1));
        let lsid = first.lsid().to_owned();
        drop(first);
        let again = spare.lease();
        assert_eq!((again.lsid(), again.txn_number()), (&*lsid, 2));
    }
}
