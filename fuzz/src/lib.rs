//! Fuzz targets: each is a function of any bytes that must neither panic nor take long nor much memory.
//!
//! `cargo run --release --bin drive -- TARGET` mutates seeds on the stable toolchain; with a nightly one
//! `cargo fuzz run TARGET --features libfuzzer` uses coverage. To add a target: a module with `fuzz_one` and `seeds`, a
//! row in [`TARGETS`], a file in `fuzz_targets`. Inputs that were found go into `found/TARGET`, and from there into a test.

pub mod bson;
pub mod frames;
pub mod wire;

/// One target.
pub struct Target {
    pub name: &'static str,
    /// Checks what must hold for any bytes. The number says which kind of outcome it was: the driver keeps inputs that
    /// led to new ones and goes on from them, for want of real coverage.
    pub fuzz_one: fn(&[u8]) -> u64,
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "wire", fuzz_one: wire::fuzz_one, seeds: wire::seeds },
    Target { name: "frames", fuzz_one: frames::fuzz_one, seeds: frames::seeds },
    Target { name: "bson", fuzz_one: bson::fuzz_one, seeds: bson::seeds },
];

/// A number for any hashable outcome.
pub fn class(outcome: impl std::hash::Hash) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    outcome.hash(&mut hasher);
    hasher.finish()
}
