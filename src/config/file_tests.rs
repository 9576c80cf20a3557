#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;

use bson::doc;
use clap::Parser;

use super::super::cli::{Cli, Command};
use super::*;
use crate::wire::Compressor;

const CATALOG: &str = "sharding: {configDB: 'cfg/a:1'}\n";

fn load(text: &str) -> Result<Config> {
    build(settings(Path::new("m.yaml"), text)?, Vec::new(), Vec::new())
}

fn error(text: &str) -> String {
    load(text).unwrap_err().to_string()
}

fn serve(flags: &[&str]) -> std::result::Result<Config, String> {
    let line = ["mosaic", "serve"].iter().chain(flags);
    match Cli::try_parse_from(line).map_err(|e| e.to_string())?.command {
        Command::Serve(args) => args.config(Vec::new()).map_err(|e| e.to_string()),
        _ => Err("not serve".into()),
    }
}

#[test]
fn every_option_reaches_the_configuration() {
    let config = load(
        "net: {port: 1234, bindIp: 'localhost, 10.0.0.1', maxIncomingConnections: 77, ipv6: true,\n\
         \x20      compression: {compressors: 'zlib,snappy'}}\n\
         systemLog: {destination: file, path: /tmp/x.log, logAppend: true, verbosity: 2, quiet: true}\n\
         operationProfiling.slowOpThresholdMs: -1\n\
         sharding.configDB: cfg/a,b:5,[::1]:7\n\
         processManagement: {pidFilePath: /tmp/p, fork: false}\n\
         replication: {localPingThresholdMs: 40}\n\
         setParameter: {enableTestCommands: 1, ShardingTaskExecutorPoolMaxSize: 9, cursorTimeoutMillis: 5}\n\
         mosaic: {advertisedHost: me, shards: {connectTimeoutMS: 1, serverSelectionTimeoutMS: 2, heartbeatIntervalMS: 500}}\n",
    )
    .unwrap();
    assert_eq!(config.net.port, 1234);
    assert_eq!(config.net.bind_ips, ["localhost", "10.0.0.1"]);
    assert_eq!(config.net.max_incoming_connections, 77);
    assert_eq!(config.net.compressors, [Compressor::Zlib, Compressor::Snappy]);
    assert_eq!(config.net.advertised_host.as_deref(), Some("me"));
    assert_eq!(config.log.path.as_deref(), Some(Path::new("/tmp/x.log")));
    assert!(config.log.append && config.log.quiet && config.log.verbosity == 2 && config.log.slow_op.is_none());
    assert_eq!(config.catalog.config_db().as_deref(), Some("cfg/a:27019,b:5,[::1]:7"));
    assert_eq!(config.pid_file.as_deref(), Some(Path::new("/tmp/p")));
    assert_eq!(config.local_threshold.as_millis(), 40);
    assert!(config.parameters.bool("enableTestCommands"));
    assert_eq!(config.pool.max_size, 9);
    assert_eq!(config.pool.connect_timeout.as_millis(), 1);
    assert_eq!(config.pool.server_selection_timeout.as_millis(), 2);
    assert_eq!(config.pool.heartbeat_interval.as_millis(), 500);
    let net = config.parsed.get_document("net").unwrap();
    assert_eq!(net.get_i32("port").unwrap(), 1234);
    assert_eq!(config.parsed.get_document("sharding").unwrap(), &doc! {"configDB": "cfg/a,b:5,[::1]:7"});
    assert_eq!(
        config.parsed.get_document("setParameter").unwrap(),
        &doc! {"ShardingTaskExecutorPoolMaxSize": 9, "cursorTimeoutMillis": 5, "enableTestCommands": true}
    );
}

#[test]
fn unknown_names_are_refused_with_their_place() {
    for (text, place, says) in [
        ("net:\n  prt: 5\n", "m.yaml:2:3: ", "unknown option net.prt; did you mean net.port?"),
        ("net:\n  bindip: x\n", "m.yaml:2:3: ", "did you mean net.bindIp?"),
        ("net:\n  whatever: 5\n", "m.yaml:2:3: ", "net has port, bindIp, bindIpAll"),
        ("nett:\n  zzzzzzzz: 5\n", "m.yaml:2:3: ", "expected one of the sections net, systemLog,"),
        (
            "storage:\n  dbPath: /x\n",
            "m.yaml:2:3: ",
            "storage is an option of mongos or mongod that Mosaic does not have",
        ),
        ("net:\n  tls:\n    mode: requireTLS\n", "m.yaml:3:5: ", "net.tls is an option of mongos"),
        ("security:\n  authorization: enabled\n", "m.yaml:2:3: ", "security.authorization is an option of mongos"),
        ("setParameter:\n  cursorTimeoutMilis: 5\n", "m.yaml:2:3: ", "did you mean cursorTimeoutMillis?"),
        ("setParameter:\n  x: 5\n", "m.yaml:2:3: ", "unknown server parameter x; expected one of Sharding"),
        ("mosaic:\n  catalogpath: /x\n", "m.yaml:2:3: ", "did you mean mosaic.catalogPath?"),
        ("port: 5\n", "m.yaml:1:1: ", "unknown option port"),
        (
            "a:\n b:\n  c:\n   d:\n    e:\n     f:\n      g:\n       h:\n        i: 1\n",
            "m.yaml:8:8: ",
            "unknown option a.b.c",
        ),
    ] {
        let message = error(text);
        assert!(message.starts_with(place) && message.contains(says), "{text:?}: {message}");
    }
}

#[test]
fn wrong_values_are_refused_with_their_place() {
    for (text, place, says) in [
        (
            "net:\n  port: abc\n",
            "m.yaml:2:9: ",
            "net.port expects an integer from 1 to 65535, found the string \"abc\"",
        ),
        ("net:\n  port: 0\n", "m.yaml:2:9: ", "found the number 0"),
        ("net:\n  port: 65536\n", "m.yaml:2:9: ", "found the number 65536"),
        ("net:\n  port: 1.5\n", "m.yaml:2:9: ", "found the number 1.5"),
        ("net:\n  port: '5'\n", "m.yaml:2:9: ", "found the string \"5\""),
        ("net:\n  port: [5]\n", "m.yaml:2:9: ", "found a list"),
        ("net:\n  port: true\n", "m.yaml:2:9: ", "found true"),
        ("net:\n  port: 99999999999999999999999\n", "m.yaml:2:9: ", "expects an integer"),
        ("net:\n  port:\n", "m.yaml:2:", "found nothing"),
        ("net:\n  port:\n    x: 5\n", "m.yaml:3:5: ", "unknown option net.port.x"),
        ("net: 5\n", "m.yaml:1:", "net is a section; expected options below it (port, bindIp"),
        ("net:\n  compression: snappy\n", "m.yaml:2:", "net.compression is a section"),
        ("net:\n  bindIpAll: yes please\n", "m.yaml:2:14: ", "expects true or false"),
        ("net:\n  bindIp: ''\n", "m.yaml:2:11: ", "expects a string"),
        ("net:\n  bindIp: a,,b\n", "m.yaml:2:11: ", "with commas between"),
        ("net:\n  bindIp: /tmp/sock\n", "m.yaml:2:11: ", "does not listen on sockets in files"),
        ("net:\n  bindIp: 'a b'\n", "m.yaml:2:11: ", "'a b' is neither"),
        ("net:\n  maxIncomingConnections: 4\n", "m.yaml:2:27: ", "from 5 to"),
        ("net:\n  compression:\n    compressors: lz4\n", "m.yaml:3:18: ", "names out of snappy, zstd, zlib"),
        ("systemLog:\n  verbosity: 6\n", "m.yaml:2:14: ", "from 0 to 5"),
        ("systemLog:\n  destination: syslog\n", "m.yaml:2:16: ", "expects 'file'"),
        ("systemLog:\n  destination: console\n", "m.yaml:2:16: ", "one of file, syslog"),
        ("processManagement:\n  fork: true\n", "m.yaml:2:9: ", "stays in the foreground"),
        ("replication:\n  localPingThresholdMs: -1\n", "m.yaml:2:25: ", "from 0 to"),
        ("sharding:\n  configDB: localhost:27019\n", "m.yaml:2:13: ", "name/host:port,host:port"),
        ("sharding:\n  configDB: /a:1\n", "m.yaml:2:13: ", "no valid set name"),
        ("sharding:\n  configDB: c/a:0\n", "m.yaml:2:13: ", "'a:0' is no host:port"),
        ("sharding:\n  configDB: c/a:1,\n", "m.yaml:2:13: ", "'' is no host:port"),
        ("sharding:\n  configDB: c/a:x\n", "m.yaml:2:13: ", "'a:x' is no host:port"),
        (
            "setParameter:\n  enableTestCommands: maybe\n",
            "m.yaml:2:23: ",
            "setParameter.enableTestCommands expects true or false",
        ),
        ("setParameter:\n  cursorTimeoutMillis: 0\n", "m.yaml:2:24: ", "an integer of at least 1, found the number 0"),
        ("setParameter:\n  quiet: [true]\n", "m.yaml:2:10: ", "expects a single value, found a list"),
        ("setParameter: 5\n", "m.yaml:1:", "setParameter is a section"),
        ("mosaic:\n  shards:\n    heartbeatIntervalMS: 499\n", "m.yaml:3:26: ", "from 500 to"),
    ] {
        let rest = if text.contains("sharding") { "" } else { CATALOG };
        let message = error(&format!("{text}{rest}"));
        assert!(message.starts_with(place) && message.contains(says), "{text:?}: {message}");
    }
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for (text, place, says) in [
        ("- a\n- b\n", "m.yaml:1:1: ", "expected sections such as 'net:', found a list"),
        ("hello\n", "m.yaml:1:1: ", "found the string \"hello\""),
        ("net:\n  port: 1\n  port: 2\n", "m.yaml:3:3: ", "duplicate"),
        ("net:\n  port: 1\nnet.port: 2\n", "m.yaml:3:11: ", "net.port is given a second time"),
        ("5: x\n", "m.yaml:1:1: ", "the name of an option is expected here, found the number 5"),
        ("net: [\n", "m.yaml:1:", ""),
        ("net: {port: 1\nsharding: x\n", "m.yaml:2:", ""),
        ("a: *nobody\n", "m.yaml:1:4: ", ""),
    ] {
        let message = error(text);
        assert!(message.starts_with(place) && message.contains(says), "{text:?}: {message}");
    }
}

#[test]
fn what_belongs_together_is_checked() {
    assert!(error("").contains("it is not said where the catalog is kept"));
    assert!(error("net:\n# nothing\n").contains("it is not said where the catalog is kept"));
    let both = error("mosaic:\n  catalogPath: /x\nsharding:\n  configDB: c/a:1\n");
    assert!(both.starts_with("m.yaml:2:16: ") && both.contains("exclude each other"), "{both}");
    let bind = error(&format!("net:\n  bindIp: a\n  bindIpAll: true\n{CATALOG}"));
    assert!(bind.starts_with("m.yaml:3:14: "), "{bind}");
    assert!(error(&format!("systemLog:\n  destination: file\n{CATALOG}")).contains("needs systemLog.path"));
    assert!(error(&format!("systemLog:\n  path: /x\n{CATALOG}")).contains("needs systemLog.destination"));
    let all = load(&format!("net: {{bindIpAll: true}}\n{CATALOG}")).unwrap();
    assert_eq!(all.net.bind_ips, ["0.0.0.0"]);
    for text in ["bindIpAll: true", "bindIp: '*'"] {
        let both = load(&format!("net: {{{text}, ipv6: true}}\n{CATALOG}")).unwrap();
        assert_eq!(both.net.bind_ips, ["0.0.0.0", "::"]);
    }
    assert_eq!(load(&format!("net: {{bindIp: '*'}}\n{CATALOG}")).unwrap().net.bind_ips, ["0.0.0.0"]);
}

#[test]
fn a_key_file_needs_the_consent_that_clients_are_not_authenticated() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "abcdefgh").unwrap();
    let text = format!("security:\n  keyFile: {}\n{CATALOG}", key.display());
    let mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    assert!(error(&text).starts_with("m.yaml:2:12: permissions on "));
    mode(0o400);
    let message = error(&text);
    assert!(message.starts_with("m.yaml:2:12: ") && message.contains("does not authenticate clients"), "{message}");
    let consent = format!("{text}setParameter: {{mosaicAllowUnauthenticatedClients: true}}\n");
    assert_eq!(load(&consent).unwrap().key_file, Some(key));
}

#[test]
fn flags_replace_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.yaml");
    std::fs::write(&path, "net: {port: 1, bindIp: a}\nmosaic: {catalogPath: /c}\nsetParameter: {quiet: true}\n")
        .unwrap();
    let file = path.to_str().unwrap();
    let config = serve(&["--config", file, "--port", "2", "--bind_ip_all", "--setParameter", "quiet=false"]).unwrap();
    assert_eq!((config.net.port, config.net.bind_ips), (2, vec!["0.0.0.0".to_owned()]));
    assert!(!config.log.quiet);
    assert_eq!(config.catalog, CatalogConfig::Embedded { path: "/c".into() });
    assert_eq!(config.parsed.get_str("config").unwrap(), file);
    let config = serve(&["-f", file, "--configdb", "c/h:1", "-vv", "--logpath", "/l", "--slowms", "-1"]).unwrap();
    assert_eq!(config.catalog.config_db().as_deref(), Some("c/h:1"));
    assert_eq!((config.log.verbosity, config.log.path), (2, Some("/l".into())));
}

#[test]
fn wrong_flags_are_named() {
    for (flags, says) in [
        (&["--port", "x"][..], "--port: net.port expects an integer from 1 to 65535, found the string \"x\""),
        (&["--port", "70000"], "--port: net.port expects"),
        (&["--configdb", "x"], "--configdb: sharding.configDB expects the config replica set as name/host:port"),
        (&["--setParameter", "x"], "--setParameter: expected NAME=VALUE, found 'x'"),
        (&["--setParameter", "x=1"], "--setParameter: unknown server parameter x"),
        (&["--setParameter", "quiet=2"], "--setParameter: setParameter.quiet expects true or false"),
        (&["--config", "/nonexistent.yaml"], "/nonexistent.yaml: cannot read the configuration file"),
        (&["--port", "5"], "it is not said where the catalog is kept"),
        (&["--prt", "5"], "unexpected argument '--prt'"),
        (&["--configdb", "c/a:1", "--catalogPath", "/x"], "exclude each other"),
    ] {
        let message = serve(flags).unwrap_err();
        assert!(message.contains(says), "{flags:?}: {message}");
    }
}

#[test]
fn the_sample_is_valid_and_names_every_option() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/mosaic.yaml"));
    let config = build(read(path).unwrap(), Vec::new(), Vec::new()).unwrap();
    let default = Config::new(config.catalog.clone());
    assert_eq!(format!("{:?}", config.pool), format!("{:?}", default.pool));
    assert_eq!(format!("{:?}", config.net), format!("{:?}", default.net));
    assert_eq!(config.log.slow_op, default.log.slow_op);
    assert_eq!(config.local_threshold, default.local_threshold);
    for parameter in PARAMETERS {
        assert_eq!(config.parameters.get(parameter.name), Some(parameter.default_value()), "{}", parameter.name);
    }
    let text = std::fs::read_to_string(path).unwrap();
    let names = OPTIONS.iter().filter_map(|o| o.path.rsplit('.').next()).chain(PARAMETERS.iter().map(|p| p.name));
    for name in names {
        assert!(text.contains(&format!("{name}:")), "config/mosaic.yaml does not name {name}");
    }
}
