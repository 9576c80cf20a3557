//! What the operating system tells of this process and machine (`/proc`). Everything is best effort: a file that cannot
//! be read gives zeros or empty texts, never an error.

use std::fs::read_to_string;

/// The number after `name` in a file of `name: value` lines (kB are not converted).
fn number_after(text: &str, name: &str) -> i64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn read(path: &str) -> String {
    read_to_string(path).unwrap_or_default()
}

/// Memory and time used by this process.
#[derive(Debug, Default, Clone, Copy)]
pub struct Usage {
    pub resident_kb: i64,
    pub virtual_kb: i64,
    pub peak_resident_kb: i64,
    pub threads: i64,
    pub user_micros: i64,
    pub system_micros: i64,
    pub minor_faults: i64,
    pub major_faults: i64,
    pub voluntary_switches: i64,
    pub involuntary_switches: i64,
}

/// Linux counts CPU time in hundredths of a second here.
const MICROS_PER_TICK: i64 = 10_000;

impl Usage {
    pub fn now() -> Self {
        let status = read("/proc/self/status");
        let stat = read("/proc/self/stat");
        // The second field is the name in parentheses and may hold blanks.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let field = |n: usize| fields.get(n).and_then(|f| f.parse::<i64>().ok()).unwrap_or(0);
        Usage {
            resident_kb: number_after(&status, "VmRSS"),
            virtual_kb: number_after(&status, "VmSize"),
            peak_resident_kb: number_after(&status, "VmHWM"),
            threads: number_after(&status, "Threads"),
            minor_faults: field(7),
            major_faults: field(9),
            user_micros: field(11) * MICROS_PER_TICK,
            system_micros: field(12) * MICROS_PER_TICK,
            voluntary_switches: number_after(&status, "voluntary_ctxt_switches"),
            involuntary_switches: number_after(&status, "nonvoluntary_ctxt_switches"),
        }
    }
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Machine {
    pub memory_mb: i64,
    pub cores: i32,
    pub os_name: String,
    pub kernel: String,
    pub version: String,
    pub cpu_mhz: String,
    pub cpu_features: String,
    pub max_open_files: i64,
}

impl Machine {
    pub fn now() -> Self {
        let cpu = read("/proc/cpuinfo");
        let of_cpu = |name: &str| {
            let line = cpu.lines().find(|l| l.starts_with(name));
            line.and_then(|l| l.split_once(':')).map_or("", |(_, v)| v.trim()).to_owned()
        };
        let release = read("/etc/os-release");
        let name = release.lines().find(|l| l.starts_with("PRETTY_NAME=")).unwrap_or("");
        let limits = read("/proc/self/limits");
        let files = limits.lines().find_map(|l| l.strip_prefix("Max open files"));
        Machine {
            memory_mb: number_after(&read("/proc/meminfo"), "MemTotal") / 1024,
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as i32),
            os_name: name.to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            version: read("/proc/version").trim().to_owned(),
            cpu_mhz: of_cpu("cpu MHz"),
            cpu_features: of_cpu("flags"),
            max_open_files: files.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number_after("A:\t12 kB\nBB: 7\n", "A"), 12);
        assert_eq!(number_after("A:\t12 kB\nBB: 7\n", "BB"), 7);
        assert_eq!(number_after("A: x", "A"), 0);
        assert_eq!(number_after("", "A"), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory() {
        let usage = Usage::now();
        assert!(usage.resident_kb > 100 && usage.threads > 0, "{usage:?}");
        assert!(Machine::now().memory_mb > 0);
    }
}
