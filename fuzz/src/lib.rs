//! Fuzz targets: each is a function of any bytes that checks what must hold for them, and must not take long.
//!
//! `fuzz/run TARGET` runs one under libFuzzer with coverage, on the stable toolchain; `cargo run --release --bin drive --
//! TARGET` needs no special build and only mutates. To add a target: a module with `fuzz_one` and `seeds`, a row in
//! [`TARGETS`], a file in `fuzz_targets`. Inputs that were found are kept in `corpus/TARGET/found-*`; the root package's
//! `tests/fuzz.rs` runs them and all seeds.

pub mod bson;
pub mod commands;
pub mod frames;
pub mod hash;
#[cfg(feature = "driver")]
pub mod libfuzzer;
#[cfg(feature = "driver")]
pub mod measure;
pub mod mutate;
pub mod order;
pub mod random;
pub mod reference;
pub mod targeting;
pub mod wire;

/// One target.
pub struct Target {
    pub name: &'static str,
    /// Checks what must hold for any bytes. The number says which kind of outcome it was: where there is no coverage, the
    /// driver keeps inputs that led to new ones and goes on from them.
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

/// What the strategies make of random numbers that begin with the input's first 32 bytes. (Taking every choice from the
/// input itself ends in zeros for ever: each union of strategies takes half of what is left, and some strategies reject
/// zeros without end.)
pub fn choose<const N: usize, S: proptest::strategy::Strategy>(strategies: [S; N], data: &[u8]) -> [S::Value; N] {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut seed = [0; 32];
    seed.iter_mut().zip(data).for_each(|(s, byte)| *s = *byte);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    strategies.map(|s| s.new_tree(&mut runner).expect("no strategy gives up").current())
}

/// `first`, then `length` bytes that look random and are the same every time.
pub fn noise(seed: u64, length: usize, first: u8) -> Vec<u8> {
    let mut random = random::Random::new(seed);
    let mut bytes = vec![first];
    while bytes.len() <= length {
        bytes.extend_from_slice(&random.next().to_le_bytes()[..7]);
    }
    bytes.truncate(length + 1);
    bytes
}
