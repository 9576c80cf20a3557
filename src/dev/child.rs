//! Child processes that cannot outlive this one.
//!
//! A child is started through this very program (`mosaic dev-child PARENT PROGRAM …`), which asks the kernel to be killed
//! when its parent dies and then becomes the program. The kernel watches the parent's *thread*, so one thread that lives
//! as long as the process starts all children.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Starts children; they die with the process.
pub struct Spawner {
    requests: mpsc::Sender<Request>,
}

struct Request {
    command: Command,
    answer: mpsc::Sender<io::Result<Child>>,
}

impl Spawner {
    /// # Errors
    /// No thread can be started.
    pub fn new() -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel::<Request>();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            for mut request in inbox {
                let _ = request.answer.send(request.command.spawn());
            }
            // Ending this thread would kill the children before they are asked to stop.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Spawner { requests })
    }

    /// Starts `program` with `args`, its output going to `output`, in a process group of its own so that Ctrl-C
    /// in a terminal reaches only us.
    ///
    /// # Errors
    /// The operating system's.
    pub fn spawn(&self, program: &std::path::Path, args: &[OsString], output: File) -> io::Result<Member> {
        let mut command = Command::new(own_program());
        command.arg("dev-child").arg(std::process::id().to_string()).arg(program).args(args);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        let (answer, reply) = mpsc::channel();
        let gone = |_| io::Error::other("the thread that starts processes is gone");
        self.requests.send(Request { command, answer }).map_err(|_| io::Error::other("no spawner"))?;
        Ok(Member { child: reply.recv().map_err(gone)?? })
    }
}

/// This program, even when its file has been replaced since.
fn own_program() -> PathBuf {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { link } else { std::env::current_exe().unwrap_or_else(|_| PathBuf::from("mosaic")) }
}

/// The body of `mosaic dev-child PARENT PROGRAM ARGS…`; returns only when it fails.
pub fn become_child(parent: u32, command: &[OsString]) -> io::Error {
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return e.into();
    }
    // The parent may have died before the kernel was asked to watch it.
    let watched = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if watched != Some(parent) {
        return io::Error::other("mosaic dev is gone");
    }
    match command.split_first() {
        Some((program, args)) => Command::new(program).args(args).exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "no program given"),
    }
}

/// A running child.
pub struct Member {
    child: Child,
}

impl Member {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Stops all: SIGTERM, then after `patience` SIGKILL. Returns how many had to be killed.
pub async fn stop_all(members: &mut [Member], patience: Duration) -> usize {
    let mut running: Vec<&mut Member> = members.iter_mut().filter_map(|m| m.ended().is_none().then_some(m)).collect();
    for member in &running {
        member.terminate();
    }
    let deadline = Instant::now() + patience;
    while !running.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
        running.retain_mut(|m| m.ended().is_none());
    }
    for member in &mut running {
        member.kill();
        let _ = member.child.wait();
    }
    running.len()
}
