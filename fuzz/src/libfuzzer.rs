//! What the binaries for libFuzzer share.

use std::cell::Cell;
use std::time::Duration;

use super::measure::{TOO_LONG, processor_time};
use super::random::Random;
use super::{TARGETS, Target, mutate};

thread_local! {
    static LONGEST: Cell<Duration> = const { Cell::new(Duration::from_millis(5)) };
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).expect("the target is in the list")
}

/// Runs one input; panics if it takes too long, tells of every input that takes longer than those before it.
pub fn check(name: &str, data: &[u8]) {
    let begun = processor_time();
    (target(name).fuzz_one)(data);
    let used = processor_time() - begun;
    assert!(used < TOO_LONG, "too long: {used:?}");
    if used > LONGEST.get() {
        LONGEST.set(used);
        eprintln!("{name}: the slowest so far takes {used:?} for {} bytes", data.len());
    }
}

/// A mutation that knows BSON, in place; the new size. `None`: libFuzzer is to make one itself.
pub fn mutation(name: &str, data: &mut [u8], size: usize, limit: usize, seed: u32) -> Option<usize> {
    thread_local! {
        static SEEDS: std::cell::OnceCell<Vec<Vec<u8>>> = const { std::cell::OnceCell::new() };
    }
    let mut random = Random::new(u64::from(seed));
    if random.below(2) == 0 {
        return None;
    }
    SEEDS.with(|seeds| {
        let seeds = seeds.get_or_init(target(name).seeds);
        let other = random.one(seeds).clone();
        let mut input =
            if size < 5 || random.below(200) == 0 { random.one(seeds).clone() } else { data[..size].to_vec() };
        mutate::mutate(&mut input, &other, &mut random);
        let size = input.len().min(limit).min(data.len());
        data[..size].copy_from_slice(&input[..size]);
        Some(size)
    })
}
