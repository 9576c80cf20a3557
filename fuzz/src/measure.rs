//! Running single inputs and timing them by the processor's clock: a busy machine does not make an input slow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::Target;

/// An input that takes this much of the processor is a find.
pub const TOO_LONG: Duration = Duration::from_secs(1);

/// What this thread has used of the processor.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs one input: its outcome and the processor time, or the reason why it is a find.
pub fn run(target: &Target, data: &[u8]) -> Result<(u64, Duration), String> {
    let begun = processor_time();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.fuzz_one)(data))).map_err(|_| "panic".to_owned())?;
    let used = processor_time() - begun;
    if used > TOO_LONG { Err(format!("too long ({used:?})")) } else { Ok((outcome, used)) }
}
