#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use mosaic_fuzz::libfuzzer;

fuzz_target!(|data: &[u8]| libfuzzer::check("hash", data));

fuzz_mutator!(|data: &mut [u8], size: usize, limit: usize, seed: u32| {
    libfuzzer::mutation("hash", data, size, limit, seed).unwrap_or_else(|| fuzzer_mutate(data, size, limit))
});
