//! Fuzz targets: each is a function of any bytes that must neither panic nor take long nor much memory.
//!
//! `cargo run --release --bin drive -- TARGET` mutates seeds on the stable toolchain; with a nightly one
//! `cargo fuzz run TARGET --features libfuzzer` uses coverage. To add a target: a module with `fuzz_one` and `seeds`, a
//! row in [`TARGETS`], a file in `fuzz_targets`. Inputs that were found go into `found/TARGET`, and from there into a test.

pub mod bson;
pub mod frames;
pub mod hash;
pub mod order;
pub mod targeting;
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
    Target { name: "order", fuzz_one: order::fuzz_one, seeds: order::seeds },
    Target { name: "hash", fuzz_one: hash::fuzz_one, seeds: hash::seeds },
    Target { name: "targeting", fuzz_one: targeting::fuzz_one, seeds: targeting::seeds },
];

/// A number for any hashable outcome.
pub fn class(outcome: impl std::hash::Hash) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    outcome.hash(&mut hasher);
    hasher.finish()
}

/// What the strategies make of the input's bytes, each choice taking its bytes from the input.
pub fn choose<const N: usize, S: proptest::strategy::Strategy>(strategies: [S; N], data: &[u8]) -> [S::Value; N] {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, data);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    strategies.map(|s| s.new_tree(&mut runner).expect("no strategy gives up").current())
}

/// `first`, then `length` bytes that look random and are the same every time.
pub fn noise(seed: u64, length: usize, first: u8) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1) | 1;
    let mut bytes = vec![first];
    while bytes.len() <= length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(length + 1);
    bytes
}
