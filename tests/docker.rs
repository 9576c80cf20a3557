//! What can be checked of `docker/` without an engine: the files are read as YAML, and what they name exists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use serde_json::Value;

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn compose() -> Value {
    serde_saphyr::from_str(&file("docker/compose.yaml")).unwrap()
}

fn services() -> BTreeMap<String, Value> {
    serde_json::from_value(compose()["services"].clone()).unwrap()
}

/// The members named by `set/host:port,…`, by set.
fn sets(text: &str) -> BTreeMap<String, Vec<String>> {
    text.split_whitespace()
        .map(|set| {
            let (name, hosts) = set.split_once('/').unwrap();
            (name.to_owned(), hosts.split(',').map(|h| h.strip_suffix(":27017").unwrap().to_owned()).collect())
        })
        .collect()
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_mongod_is_a_member_of_the_set_it_is_started_for() {
    let services = services();
    let initiated = sets(services["initiate"]["environment"]["SETS"].as_str().unwrap());
    assert_eq!(initiated.len(), 3);
    let mut mongods = 0;
    for (name, service) in &services {
        let Some(command) = service.get("command").map(words).filter(|c| c[0] == "mongod") else { continue };
        mongods += 1;
        let set = &command[command.iter().position(|w| w == "--replSet").unwrap() + 1];
        assert!(initiated[set].contains(name), "{name} is not initiated as a member of {set}");
        assert_eq!(service["image"], "mongo:6.0");
        assert_eq!(words(&service["volumes"]), [format!("{name}:/data/db")]);
        assert!(compose()["volumes"].as_object().unwrap().contains_key(name));
        assert_eq!(services["initiate"]["depends_on"][name]["condition"], "service_healthy");
    }
    assert_eq!(mongods, initiated.values().map(Vec::len).sum::<usize>());
    assert_eq!(mongods, 9);
}

#[test]
fn the_routers_know_the_config_set_and_the_shards_are_added() {
    let services = services();
    let initiated = sets(services["initiate"]["environment"]["SETS"].as_str().unwrap());
    let added = sets(services["add-shards"]["environment"]["SHARDS"].as_str().unwrap());
    assert!(added.len() == 2 && added.iter().all(|(name, hosts)| &initiated[name] == hosts));
    for router in ["router1", "router2"] {
        let command = words(&services[router]["command"]);
        let config_db = &command[command.iter().position(|w| w == "--configdb").unwrap() + 1];
        assert_eq!(sets(config_db)["configRepl"], initiated["configRepl"]);
        assert_eq!(services[router]["depends_on"]["initiate"]["condition"], "service_completed_successfully");
        let flags: Vec<&str> = ["mosaic"].into_iter().chain(command.iter().map(String::as_str)).collect();
        let parsed = <mosaic::config::cli::Cli as clap::Parser>::try_parse_from(flags).unwrap();
        let mosaic::config::cli::Command::Serve(serve) = parsed.command else { panic!("not serve") };
        assert_eq!(serve.config(Vec::new()).unwrap().net.bind_ips, ["0.0.0.0"]);
    }
}

#[test]
fn files_that_are_mounted_or_copied_exist() {
    for (name, service) in services() {
        for volume in service.get("volumes").map(words).unwrap_or_default() {
            if let Some(path) = volume.strip_prefix("./") {
                file(&format!("docker/{}", path.split(':').next().unwrap()));
            }
        }
        if let Some(build) = service.get("build") {
            assert_eq!(build["context"], "..", "{name}");
            file(build["dockerfile"].as_str().unwrap());
        }
    }
    let ignored = file(".dockerignore");
    for line in file("docker/Dockerfile").lines().filter(|l| l.starts_with("COPY ") && !l.contains("--from")) {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        words.pop();
        for source in words {
            let top = source.split('/').next().unwrap();
            assert!(ignored.lines().any(|l| l == format!("!{top}")), "{source} is not sent to the builder");
            assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(source).exists(), "{source}");
        }
    }
}
