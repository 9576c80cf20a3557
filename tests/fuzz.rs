//! The fuzz targets' seeds and every input that fuzzing ever found, replayed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, unexpected_cfgs)]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::path::Path;

#[test]
fn seeds_and_found_inputs_hold() {
    for target in fuzz::TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        let files = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        let kept: Vec<_> = files.map(|file| (file.display().to_string(), std::fs::read(&file).unwrap())).collect();
        let seeds = (target.seeds)().into_iter().enumerate().map(|(i, data)| (format!("seed {i}"), data));
        for (name, data) in seeds.chain(kept) {
            let outcome = std::panic::catch_unwind(|| (target.fuzz_one)(&data));
            assert!(outcome.is_ok(), "{}: {name} fails", target.name);
        }
    }
}
