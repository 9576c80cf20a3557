//! Drives a target with mutated inputs, on the stable toolchain.
//!
//! `drive TARGET [--seconds N] [--seed N]` runs until the time is over; `drive TARGET FILE…` runs these inputs once.
//! The same seed gives the same inputs. An input that panics or takes a second of the processor is written to
//! `found/TARGET/` and ends the run with status 1.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mosaic_fuzz::{TARGETS, Target};

/// No input is longer.
const MAX_INPUT: usize = 64 * 1024;
/// Inputs kept to go on from.
const MAX_POOL: usize = 4096;
const TOO_LONG: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut target, mut seconds, mut seed, mut files) = (None, 60, 1, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = args.next().and_then(|n| n.parse().ok()).unwrap_or(60),
            "--seed" => seed = args.next().and_then(|n| n.parse().ok()).unwrap_or(1),
            name if target.is_none() => target = TARGETS.iter().find(|t| t.name == name),
            file => files.push(PathBuf::from(file)),
        }
    }
    let Some(target) = target else {
        let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
        eprintln!("usage: drive TARGET [--seconds N] [--seed N] [FILE...]   targets: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let sound = if files.is_empty() {
        search(target, Duration::from_secs(seconds), seed)
    } else {
        files.iter().all(|file| std::fs::read(file).is_ok_and(|data| run(target, &data).is_ok()))
    };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one input; the reason if it is a find.
fn run(target: &Target, data: &[u8]) -> Result<u64, &'static str> {
    let begun = processor_time();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.fuzz_one)(data))).map_err(|_| "panic")?;
    if processor_time() - begun > TOO_LONG { Err("too long") } else { Ok(outcome) }
}

/// What this thread has used of the processor; a busy machine does not make an input slow.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn search(target: &Target, time: Duration, seed: u64) -> bool {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut pool = (target.seeds)();
    let mut seen = HashSet::new();
    for data in pool.clone() {
        match run(target, &data) {
            Ok(outcome) => drop(seen.insert(outcome)),
            Err(why) => return report(target, &data, why),
        }
    }
    let (begun, mut runs) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        for _ in 0..256 {
            let data = mutate(&pool, &mut random);
            runs += 1;
            match run(target, &data) {
                Ok(outcome) if seen.insert(outcome) && pool.len() < MAX_POOL => pool.push(data),
                Ok(_) => {}
                Err(why) => return report(target, &data, why),
            }
        }
    }
    println!("{}: {runs} inputs, {} outcomes, {} in the pool, nothing found", target.name, seen.len(), pool.len());
    true
}

/// Keeps a found input.
fn report(target: &Target, data: &[u8], why: &str) -> bool {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target.name);
    let file = dir.join(format!("{:016x}", mosaic_fuzz::class(data)));
    let written = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, data));
    eprintln!("{}: {why} after {} bytes of input, kept as {} ({written:?})", target.name, data.len(), file.display());
    false
}

/// A new input from one or two of the pool.
fn mutate(pool: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut data = pool[random.below(pool.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(data.len() + 1);
        let end = (at + 1 + random.below(16)).min(data.len());
        match random.below(9) {
            0 | 1 if at < data.len() => data[at] ^= 1 << random.below(8),
            2 if at < data.len() => data[at] = random.next() as u8,
            3 if at < end => drop(data.drain(at..end)),
            4 => {
                let bytes: Vec<u8> = (0..=random.below(8)).map(|_| random.next() as u8).collect();
                data.splice(at..at, bytes);
            }
            5 if at < end => {
                let copy = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, copy);
            }
            6 => {
                let other = &pool[random.below(pool.len())];
                let from = random.below(other.len() + 1);
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            7 | 8 if at + 4 <= data.len() => {
                let length = length_like(data.len(), random);
                data[at..at + 4].copy_from_slice(&length);
            }
            _ => {}
        }
    }
    data.truncate(MAX_INPUT);
    data
}

/// A number that a length may be confused by.
fn length_like(around: usize, random: &mut Random) -> [u8; 4] {
    let n = match random.below(8) {
        0 => i32::MAX,
        1 => -1,
        2 => i32::MIN,
        3 => random.below(32) as i32,
        4 => around as i32 - random.below(24) as i32,
        5 => 48_000_000,
        6 => 16_793_600 + random.below(3) as i32,
        _ => random.next() as i32,
    };
    n.to_le_bytes()
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}
