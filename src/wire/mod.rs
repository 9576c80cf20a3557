//! MongoDB's wire protocol: messages in, messages out. Everything but [`FrameReader`] is pure.
//!
//! [`decode`] turns one frame (a whole message with its header) into a [`Message`] whose parts are slices of the frame;
//! [`OutMsg`] is a message for a shard, [`reply`] writes the answer to a client.

mod compress;
mod frame;
mod header;
mod legacy;
mod message;
mod out;

pub use compress::{Accepted, Compressor, inflated_len};
pub use frame::FrameReader;
pub use header::{HEADER_LEN, Header, OpCode};
pub use message::{Documents, Flags, Malformed, Message, Sequence, decode, decode_accepting, decode_reply};
pub use out::{Form, OutMsg, OutSequence, ReplyStyle, error_reply, reply, reply_head};

/// The largest message, header included, that is read or sent, in bytes (`maxMessageSizeBytes`).
pub const MAX_MESSAGE: usize = 48_000_000;
/// The largest document of a user, in bytes (`maxBsonObjectSize`).
pub const MAX_BSON: usize = 16 * 1024 * 1024;
/// The largest document inside the cluster and the largest command body, in bytes.
pub const MAX_BSON_INTERNAL: usize = MAX_BSON + 16 * 1024;
/// The most operations in one write command (`maxWriteBatchSize`).
pub const MAX_WRITE_BATCH: usize = 100_000;
