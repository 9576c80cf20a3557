//! Transactions over several shards: two-phase commit with the decision in the catalog.
//!
//! A [`Participant`] is an open transaction on one shard. [`commit`] makes several of them durable together:
//!
//! 1. a record that names the participants goes into `mosaic.txns`;
//! 2. every shard prepares, majority-acknowledged: from here on it can commit and cannot lose the transaction;
//! 3. the record turns to `committed`, with the commit timestamp. This catalog commit *is* the decision;
//! 4. every shard commits at that timestamp, and the record goes away.
//!
//! A router that finds a record whose coordinator is gone ([`recovery`]) turns `preparing` into `aborted`, or repeats
//! step 4. Both turns are compare-and-set, so a coordinator that was only slow cannot decide otherwise any more.
//! Shards offer `prepareTransaction` only when they run with `enableTestCommands=1`; where they refuse it, nothing is
//! committed and the client gets a clear error.

mod coordinator;
mod participant;
mod record;
pub mod recovery;

pub use coordinator::commit;
pub use participant::Participant;
pub use record::{Decision, Member, Record};
