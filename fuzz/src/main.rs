//! Drives a target with mutated inputs, without coverage: it needs no special build.
//!
//! `drive TARGET [--seconds N] [--seed N]` runs until it has used so many seconds of the processor; `drive TARGET FILE…`
//! runs these inputs once; `drive TARGET --write DIR` writes the seeds. The same seed gives the same inputs. An input that
//! panics or takes a second of the processor is written to `corpus/TARGET/found-*` and ends the run with status 1.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use mosaic_fuzz::measure::{processor_time, run};
use mosaic_fuzz::mutate::mutate;
use mosaic_fuzz::random::Random;
use mosaic_fuzz::{TARGETS, Target};

/// Inputs kept to go on from.
const MAX_POOL: usize = 4096;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut target, mut seconds, mut seed, mut files, mut dir) = (None, 60, 1, Vec::new(), None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = args.next().and_then(|n| n.parse().ok()).unwrap_or(60),
            "--seed" => seed = args.next().and_then(|n| n.parse().ok()).unwrap_or(1),
            "--write" => dir = args.next().map(PathBuf::from),
            name if target.is_none() => target = TARGETS.iter().find(|t| t.name == name),
            file => files.push(PathBuf::from(file)),
        }
    }
    let Some(target) = target else {
        let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
        eprintln!(
            "usage: drive TARGET [--seconds N] [--seed N] [--write DIR] [FILE...]   targets: {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    let sound = match dir {
        Some(dir) => write_seeds(target, &dir).inspect_err(|e| eprintln!("{}: {e}", dir.display())).is_ok(),
        None if files.is_empty() => search(target, Duration::from_secs(seconds), seed),
        None => files.iter().all(|file| run_file(target, file)),
    };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_seeds(target: &Target, dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    (target.seeds)().iter().try_for_each(|data| std::fs::write(dir.join(name_of(data)), data))
}

fn run_file(target: &Target, file: &Path) -> bool {
    let outcome = std::fs::read(file).map_err(|e| e.to_string()).and_then(|data| run(target, &data));
    match &outcome {
        Ok((_, time)) => println!("{}: {time:?}", file.display()),
        Err(why) => eprintln!("{}: {why}", file.display()),
    }
    outcome.is_ok()
}

fn search(target: &Target, time: Duration, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let mut pool = (target.seeds)();
    let mut seen = HashSet::new();
    let (mut runs, mut slowest) = (0_u64, (Duration::ZERO, 0));
    let mut next = 0;
    while processor_time() < time {
        // The seeds themselves come first.
        let data = match pool.get(next).filter(|_| next == runs as usize) {
            Some(data) => data.clone(),
            None => {
                let mut data = random.one(&pool).clone();
                let other = random.one(&pool).clone();
                mutate(&mut data, &other, &mut random);
                data
            }
        };
        next += 1;
        runs += 1;
        match run(target, &data) {
            Err(why) => return report(target, &data, &why),
            Ok((outcome, used)) => {
                slowest = slowest.max((used, data.len()));
                if seen.insert(outcome) && pool.len() < MAX_POOL {
                    pool.push(data);
                }
            }
        }
    }
    println!(
        "{}: {runs} inputs in {:?} of processor time, the slowest {:?} for {} bytes, {} outcomes, nothing found",
        target.name,
        processor_time(),
        slowest.0,
        slowest.1,
        seen.len()
    );
    true
}

fn name_of(data: &[u8]) -> String {
    format!("{:016x}", mosaic_fuzz::class(data))
}

/// Keeps a found input.
fn report(target: &Target, data: &[u8], why: &str) -> bool {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let file = dir.join(format!("found-{}", name_of(data)));
    let written = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, data));
    eprintln!("{}: {why} after {} bytes of input, kept as {} ({written:?})", target.name, data.len(), file.display());
    false
}
