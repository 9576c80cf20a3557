//! What a process used, from /proc.

use std::fs;

/// CPU time of all threads so far, in seconds.
pub fn cpu_seconds(pid: u32) -> f64 {
    // Nanoseconds for each thread; /proc/PID/stat counts in steps of 10 ms.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds: u64 = threads
        .filter_map(|t| fs::read_to_string(t.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next().and_then(|n| n.parse::<u64>().ok()))
        .sum();
    nanoseconds as f64 / 1e9
}

/// Resident memory now, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0)
}

pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The machine, for the table's caption.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split(": ").nth(1));
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} × {}, {} GiB, Linux {}", model.unwrap_or("unknown CPU"), kib / 1024 / 1024, kernel.trim())
}
