//! How far a shard has come: the newest `operationTime` of its replies, and who waits for it to come further.
//!
//! A read after a certain cluster time waits on the shard until an operation of that time or a later one is there. On a
//! shard to which nobody writes that is the next no-op of its primary, up to ten seconds away. A note in its oplog
//! (`appendOplogNote`) is there at once.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// One shard's progress, in cluster times packed as in `router::clock`.
#[derive(Debug, Default)]
pub struct Progress {
    newest: AtomicU64,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    wanted: u64,
    /// Somebody writes notes.
    writing: bool,
}

impl Progress {
    /// Learns an `operationTime` from a reply.
    pub fn learn(&self, time: u64) {
        // Mostly it is known already, and a shared cache line stays shared.
        if time > self.newest.load(Ordering::Relaxed) {
            self.newest.fetch_max(time, Ordering::Relaxed);
        }
    }

    /// Whether an operation of this time or a later one is known to be there.
    pub fn has_reached(&self, time: u64) -> bool {
        self.newest.load(Ordering::Relaxed) >= time
    }

    /// Wants the shard to come to `time`. True: the caller is to write notes for all who want them, as long as
    /// [`Progress::next`] gives times.
    pub fn want(&self, time: u64) -> bool {
        let mut notes = self.notes.lock();
        notes.wanted = notes.wanted.max(time);
        !self.has_reached(notes.wanted) && !std::mem::replace(&mut notes.writing, true)
    }

    /// The time that the next note is to reach; `None` where there is nothing more to do, and the writer ends.
    pub fn next(&self) -> Option<u64> {
        let mut notes = self.notes.lock();
        let wanted = Some(notes.wanted).filter(|time| !self.has_reached(*time));
        notes.writing = wanted.is_some();
        wanted
    }

    /// Ends the writer, whose note failed: the next one who wants a note tries again.
    pub fn give_up(&self) {
        *self.notes.lock() = Notes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writes_for_all() {
        let progress = Progress::default();
        progress.learn(5);
        assert!(progress.has_reached(5) && !progress.has_reached(6));
        assert!(!progress.want(5));
        assert!(progress.want(7));
        assert!(!progress.want(9) && !progress.want(8));
        assert_eq!(progress.next(), Some(9));
        progress.learn(8);
        assert_eq!(progress.next(), Some(9));
        progress.learn(10);
        assert_eq!(progress.next(), None);
        assert!(progress.want(11));
        progress.give_up();
        assert!(progress.want(11));
    }
}
