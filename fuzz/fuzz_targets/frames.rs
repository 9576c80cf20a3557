#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = mosaic_fuzz::frames::fuzz_one(data);
});
