//! The directory of a dev cluster: who holds it, which replica sets it has, on which ports.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Failure, progress};
use crate::config::CatalogConfig;
use crate::config::cli::{DevArgs, DevCatalog};

/// Of the layout's file.
const VERSION: u32 = 1;
const LAYOUT_FILE: &str = "cluster.json";
const LOCK_FILE: &str = "mosaic-dev.lock";
const TEMP_PREFIX: &str = "mosaic-dev-";
/// Ports below are left for routers, so that a later start may have more of them.
const FIRST_MEMBER_OFFSET: u16 = 20;
const YOUNG: Duration = Duration::from_secs(30);

/// The members of one replica set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLayout {
    pub name: String,
    pub ports: Vec<u16>,
}

impl SetLayout {
    pub fn hosts(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// `name/host:port,…`
    pub fn connection_string(&self) -> String {
        format!("{}/{}", self.name, self.hosts().join(","))
    }
}

/// What `cluster.json` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub version: u32,
    pub members: u16,
    pub shards: Vec<SetLayout>,
    /// The config replica set, where the catalog is kept on one.
    pub config: Option<SetLayout>,
    /// A start came as far as a catalog: from then on a missing one is a lost one.
    #[serde(default)]
    pub initiated: bool,
}

impl Layout {
    pub fn sets(&self) -> impl Iterator<Item = &SetLayout> {
        self.config.iter().chain(&self.shards)
    }
}

/// The directory, held for us alone until this is dropped.
#[derive(Debug)]
pub struct Home {
    pub path: PathBuf,
    temporary: bool,
    _lock: File,
}

impl Home {
    /// Takes the directory `dir`, or a new temporary one that is removed at the end.
    ///
    /// # Errors
    /// It is held by another `mosaic dev`, has something else in it, or cannot be made.
    pub fn open(dir: Option<&Path>) -> Result<Self, Failure> {
        match dir {
            Some(dir) => {
                let existed = dir.read_dir().is_ok_and(|mut d| d.next().is_some());
                if existed && !dir.join(LOCK_FILE).exists() && !dir.join(LAYOUT_FILE).exists() {
                    return Err(format!("{} is not empty, and what it has is not of mosaic dev", dir.display()));
                }
                std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
                let path = dir.canonicalize().map_err(|e| format!("cannot use {}: {e}", dir.display()))?;
                let lock = lock(&path)?;
                Ok(Home { path, temporary: false, _lock: lock })
            }
            None => {
                let temp = std::env::temp_dir();
                remove_left_behind(&temp);
                let path = temp.join(format!("{TEMP_PREFIX}{}-{:08x}", std::process::id(), rand::random::<u32>()));
                std::fs::create_dir_all(&path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
                let lock = lock(&path)?;
                Ok(Home { path, temporary: true, _lock: lock })
            }
        }
    }

    pub fn embedded_catalog(&self) -> PathBuf {
        self.path.join("catalog.redb")
    }

    pub fn member_dir(&self, set: &str, index: usize) -> PathBuf {
        self.path.join(format!("{set}-{index}"))
    }

    /// The layout of an earlier start brought in line with the flags, or a new one.
    ///
    /// # Errors
    /// The flags contradict what is there; no free ports.
    pub fn layout(&self, args: &DevArgs) -> Result<Layout, Failure> {
        let file = self.path.join(LAYOUT_FILE);
        let before: Option<Layout> = match std::fs::read(&file) {
            Ok(bytes) => {
                Some(serde_json::from_slice(&bytes).map_err(|e| format!("{} is damaged: {e}", file.display()))?)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(format!("cannot read {}: {e}", file.display())),
        };
        if let Some(other) = before.as_ref().map(|layout| layout.version).filter(|v| *v != VERSION) {
            return Err(format!(
                "{} is of version {other}, made by another mosaic; this one reads {VERSION}",
                file.display()
            ));
        }
        plan(before, args, &mut FreePorts::above(args.port))
    }

    /// # Errors
    /// The embedded catalog of a cluster that had one is gone: a new one would not know the data of the shards.
    pub fn check_catalog(&self, layout: &Layout) -> Result<(), Failure> {
        let file = self.embedded_catalog();
        if !layout.initiated || layout.config.is_some() || file.exists() {
            return Ok(());
        }
        Err(format!(
            "the catalog {} is gone, and without it nobody knows which data of the cluster in {} is where: put back a copy \
             of the file, or remove the directory to begin a new cluster",
            file.display(),
            self.path.display()
        ))
    }

    /// Writes the layout down for later starts. To be called when its ports were found free, and before a member is
    /// started: the members' directories hold their ports from then on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, layout: &Layout) -> Result<(), Failure> {
        let file = self.path.join(LAYOUT_FILE);
        let text = serde_json::to_vec_pretty(layout).map_err(|e| e.to_string())?;
        let new = self.path.join("cluster.json.new");
        let write = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file));
        write.map_err(|e| format!("cannot write {}: {e}", file.display()))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Where the routers of this cluster find the catalog.
pub fn catalog(layout: &Layout, home: &Home) -> CatalogConfig {
    match &layout.config {
        Some(set) => CatalogConfig::ReplicaSet { set_name: set.name.clone(), hosts: set.hosts() },
        None => CatalogConfig::Embedded { path: home.embedded_catalog() },
    }
}

fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join(LOCK_FILE);
    let fail = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(format!("{} is in use by another mosaic dev (process {})", dir.display(), holder.trim()));
        }
        Err(TryLockError::Error(e)) => return Err(fail(e)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(fail)?;
    Ok(file)
}

/// Temporary directories of crashed runs: they have our lock file, and nobody holds it.
fn remove_left_behind(temp: &Path) {
    for entry in temp.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_string_lossy().starts_with(TEMP_PREFIX);
        let Some(file) = ours.then(|| File::open(path.join(LOCK_FILE)).ok()).flatten() else { continue };
        // One that is being set up right now is not locked yet for a moment.
        let young = file.metadata().and_then(|m| m.modified()).is_ok_and(|t| t.elapsed().is_ok_and(|e| e < YOUNG));
        if !young && file.try_lock().is_ok() && std::fs::remove_dir_all(&path).is_ok() {
            progress!("removed {}, left behind by a run that crashed", path.display());
        }
    }
}

/// Gives out ports nobody listens on and no member of the cluster has.
pub struct FreePorts {
    next: u16,
    taken: HashSet<u16>,
}

impl FreePorts {
    pub fn above(router_port: u16) -> Self {
        // A router at the very top of the range has its members elsewhere.
        FreePorts {
            next: router_port.checked_add(FIRST_MEMBER_OFFSET).filter(|p| *p < 65_000).unwrap_or(20_000),
            taken: HashSet::new(),
        }
    }

    fn take(&mut self) -> Result<u16, Failure> {
        for _ in 0..1_000 {
            let port = self.next;
            self.next = self.next.checked_add(1).unwrap_or(20_000);
            if !self.taken.contains(&port) && is_free(port) {
                self.taken.insert(port);
                return Ok(port);
            }
        }
        Err(format!("no free ports near {} for the members of the shards", self.next))
    }
}

/// Whether a server of ours could listen on the port.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn plan(before: Option<Layout>, args: &DevArgs, ports: &mut FreePorts) -> Result<Layout, Failure> {
    let catalog = args.catalog.unwrap_or(match &before {
        Some(Layout { config: Some(_), .. }) => DevCatalog::Replicaset,
        _ => DevCatalog::Embedded,
    });
    if args.routers > 1 && catalog == DevCatalog::Embedded {
        return Err("several routers need a catalog they can share: add --catalog replicaset".to_owned());
    }
    let mut layout = match before {
        Some(before) => {
            // Its members are down now, and their ports free to all appearance.
            ports.taken.extend(before.sets().flat_map(|set| &set.ports));
            let (old, new) = (before.config.is_some(), catalog == DevCatalog::Replicaset);
            if old != new {
                let kind = if old { "replicaset" } else { "embedded" };
                return Err(format!("the cluster in this directory was made with --catalog {kind}, and keeps it"));
            }
            if args.members.is_some_and(|m| m != before.members) {
                return Err(format!("the cluster in this directory was made with --members {}", before.members));
            }
            if let Some(shards) = args.shards.map(usize::from).filter(|n| *n < before.shards.len()) {
                let has = before.shards.len();
                return Err(format!("the cluster in this directory has {has} shards; {shards} are too few"));
            }
            before
        }
        None => Layout {
            version: VERSION,
            members: args.members.unwrap_or(1),
            shards: Vec::new(),
            config: None,
            initiated: false,
        },
    };
    let members = layout.members;
    let mut set = |name: String| -> Result<SetLayout, Failure> {
        Ok(SetLayout { name, ports: (0..members).map(|_| ports.take()).collect::<Result<_, _>>()? })
    };
    if catalog == DevCatalog::Replicaset && layout.config.is_none() {
        layout.config = Some(set("configRepl".to_owned())?);
    }
    let wanted = args.shards.map_or(layout.shards.len().max(if layout.shards.is_empty() { 2 } else { 0 }), usize::from);
    while layout.shards.len() < wanted {
        layout.shards.push(set(format!("shard{}", layout.shards.len()))?);
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use clap::Parser;

    use super::*;
    use crate::config::cli::{Cli, Command};

    fn args(flags: &[&str]) -> DevArgs {
        match Cli::try_parse_from(["mosaic", "dev"].iter().chain(flags)).unwrap().command {
            Command::Dev(args) => args,
            _ => panic!("not dev"),
        }
    }

    fn planned(before: Option<Layout>, flags: &[&str]) -> Result<Layout, Failure> {
        plan(before, &args(flags), &mut FreePorts::above(30_000))
    }

    #[test]
    fn a_new_cluster_has_what_the_flags_say() {
        let layout = planned(None, &[]).unwrap();
        assert_eq!((layout.shards.len(), layout.members, &layout.config), (2, 1, &None));
        let layout = planned(None, &["--shards", "3", "--members", "3", "--catalog", "replicaset"]).unwrap();
        let mut ports: Vec<u16> = layout.sets().flat_map(|s| s.ports.clone()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 12);
        assert!(ports[0] >= 30_020);
    }

    #[test]
    fn an_old_cluster_keeps_its_shape_and_may_grow() {
        let layout = planned(None, &["--members", "2"]).unwrap();
        assert_eq!(planned(Some(layout.clone()), &[]).unwrap(), layout);
        let grown = planned(Some(layout.clone()), &["--shards", "3"]).unwrap();
        assert_eq!(grown.shards[..2], layout.shards[..]);
        assert_eq!((grown.shards[2].name.as_str(), grown.shards[2].ports.len()), ("shard2", 2));
        let ports: Vec<u16> = grown.sets().flat_map(|s| s.ports.clone()).collect();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len(), "{ports:?}");
        for (flags, says) in [
            (&["--shards", "1"][..], "too few"),
            (&["--members", "3"], "made with --members 2"),
            (&["--catalog", "replicaset"], "made with --catalog embedded"),
        ] {
            assert!(planned(Some(layout.clone()), flags).unwrap_err().contains(says));
        }
    }

    #[test]
    fn several_routers_need_a_shared_catalog() {
        assert!(planned(None, &["--routers", "2"]).unwrap_err().contains("--catalog replicaset"));
        assert!(planned(None, &["--routers", "2", "--catalog", "replicaset"]).is_ok());
    }

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let held = Home::open(Some(&path)).unwrap();
        let error = Home::open(Some(&path)).unwrap_err();
        assert!(error.contains("in use") && error.contains(&std::process::id().to_string()), "{error}");
        let layout = held.layout(&args(&[])).unwrap();
        held.keep(&layout).unwrap();
        drop(held);
        assert_eq!(Home::open(Some(&path)).unwrap().layout(&args(&[])).unwrap(), layout);
        std::fs::write(dir.path().join("other"), "x").unwrap();
        assert!(Home::open(Some(dir.path())).unwrap_err().contains("not of mosaic dev"));
    }

    #[test]
    fn layouts_of_other_versions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(Some(dir.path())).unwrap();
        let layout = home.layout(&args(&[])).unwrap();
        assert!(!dir.path().join(LAYOUT_FILE).exists());
        home.keep(&Layout { version: 2, ..layout }).unwrap();
        assert!(home.layout(&args(&[])).unwrap_err().contains("version 2"));
    }

    #[test]
    fn a_lost_catalog_is_no_new_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(Some(dir.path())).unwrap();
        let mut layout = home.layout(&args(&[])).unwrap();
        home.check_catalog(&layout).unwrap();
        layout.initiated = true;
        home.keep(&layout).unwrap();
        let again = home.layout(&args(&[])).unwrap();
        assert!(home.check_catalog(&again).unwrap_err().contains("catalog.redb is gone"));
        std::fs::write(home.embedded_catalog(), "x").unwrap();
        home.check_catalog(&again).unwrap();
    }

    #[test]
    fn a_temporary_directory_goes_away() {
        let home = Home::open(None).unwrap();
        let path = home.path.clone();
        assert!(path.exists());
        drop(home);
        assert!(!path.exists());
    }

    #[test]
    fn listened_on_ports_are_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
