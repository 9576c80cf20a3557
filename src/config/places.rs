//! Whether what a configuration names is there on this machine.

use std::net::ToSocketAddrs;
use std::path::Path;

use super::{CatalogConfig, Config};

impl Config {
    /// Checks that the files it names can be made: their directories are there. Nothing is written.
    ///
    /// # Errors
    /// The option, the file, the directory that is missing.
    pub fn check_directories(&self) -> Result<(), String> {
        let catalog = match &self.catalog {
            CatalogConfig::Embedded { path } => Some(path),
            CatalogConfig::ReplicaSet { .. } => None,
        };
        let files = [
            ("systemLog.path", self.log.path.as_ref()),
            ("processManagement.pidFilePath", self.pid_file.as_ref()),
            ("mosaic.catalogPath", catalog),
        ];
        for (option, file) in files {
            let Some(file) = file else { continue };
            let dir = file.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !dir.is_dir() {
                let (file, dir) = (file.display(), dir.display());
                return Err(format!("{option} is {file}, but there is no directory {dir}; create it first"));
            }
            if file.is_dir() {
                return Err(format!("{option} is {}, which is a directory; give the path of a file", file.display()));
            }
        }
        Ok(())
    }

    /// Checks that the addresses to listen on mean something here; asks the name service for names.
    ///
    /// # Errors
    /// The address that cannot be resolved.
    pub fn check_addresses(&self) -> Result<(), String> {
        for ip in &self.net.bind_ips {
            let found = (ip.as_str(), self.net.port).to_socket_addrs();
            let any = found.map_err(|e| format!("net.bindIp: cannot resolve {ip}: {e}"))?.next();
            any.ok_or_else(|| format!("net.bindIp: {ip} has no address"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn missing_directories_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let config = || Config::new(CatalogConfig::Embedded { path: dir.path().join("catalog") });
        config().check_directories().unwrap();
        let missing = dir.path().join("no/file");
        let says = |config: Config, option: &str| {
            let error = config.check_directories().unwrap_err();
            assert!(error.starts_with(option) && error.contains("no/file"), "{error}");
        };
        let mut with_pid = config();
        with_pid.pid_file = Some(missing.clone());
        says(with_pid, "processManagement.pidFilePath");
        let mut with_log = config();
        with_log.log.path = Some(missing.clone());
        says(with_log, "systemLog.path");
        says(Config::new(CatalogConfig::Embedded { path: missing }), "mosaic.catalogPath");
    }

    #[test]
    fn addresses_must_resolve() {
        let mut config = Config::new(CatalogConfig::Embedded { path: "x".into() });
        config.check_addresses().unwrap();
        config.net.bind_ips = vec!["1.2.3.4.5".to_owned()];
        assert!(config.check_addresses().unwrap_err().contains("1.2.3.4.5"));
    }
}
