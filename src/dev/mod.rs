//! `mosaic dev`: a whole cluster on this machine by one command.

pub mod child;
mod cluster;
mod layout;
mod mongod;
mod replset;

pub use cluster::run;

/// Writes a progress line to standard error; standard output has the `ready` line only.
macro_rules! progress {
    ($($arg:tt)*) => {
        eprintln!("mosaic dev: {}", format_args!($($arg)*))
    };
}
pub(crate) use progress;

/// What went wrong, for the person at the terminal.
pub type Failure = String;
