#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use bson::{RawDocumentBuf, rawdoc};
use std::time::Duration;

fn start(text: &str) -> SetDescription {
    SetDescription::new(&HostString::parse(text).unwrap())
}

fn election(n: u8) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[11] = n;
    ObjectId::from_bytes(bytes)
}

fn hello(set: &SetDescription, address: &str, reply: RawDocumentBuf) -> SetDescription {
    set.apply(ServerDescription::parse(address.into(), &reply))
}

fn primary(hosts: &[&str], version: i64, elected: u8, wire: i32) -> RawDocumentBuf {
    let hosts: bson::RawArrayBuf = hosts.iter().copied().collect();
    rawdoc! {"ok": 1, "isWritablePrimary": true, "setName": "r", "hosts": hosts, "setVersion": version,
    "electionId": election(elected), "maxWireVersion": wire}
}

fn secondary(hosts: &[&str]) -> RawDocumentBuf {
    let hosts: bson::RawArrayBuf = hosts.iter().copied().collect();
    rawdoc! {"ok": 1, "secondary": true, "setName": "r", "hosts": hosts, "setVersion": 1, "maxWireVersion": 17}
}

fn kinds(set: &SetDescription) -> Vec<(String, ServerKind)> {
    set.servers.values().map(|s| (s.address.to_string(), s.kind)).collect()
}

fn is(set: &SetDescription, expected: &[(&str, ServerKind)]) {
    let expected: Vec<_> = expected.iter().map(|(a, k)| (a.to_string(), *k)).collect();
    assert_eq!(kinds(set), expected);
}

use ServerKind::{Arbiter, Other, Primary, Secondary, Unknown};

#[test]
fn host_strings() {
    let h = HostString::parse("r/A:1,b:2, c,b:2").unwrap();
    assert_eq!(h.set_name.as_deref(), Some("r"));
    assert_eq!(h.hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>(), ["a:1", "b:2", "c:27017"]);
    assert_eq!(HostString::parse("a:1").unwrap().set_name, None);
    assert!(HostString::parse("r/[::1]:5,[::2]").is_ok());
    for bad in
        ["", "r/", "/a:1", "a:1,b:2", "r/a:0", "r/a:99999", "r/a:b", "r/a b:1", "r/a:1,,b:1", "r/x@y", "r/[::1", "r/:1"]
    {
        assert_eq!(HostString::parse(bad).unwrap_err().code(), 9, "{bad}");
    }
}

#[test]
fn discovers_members_from_a_secondary_then_follows_the_primary() {
    let set = start("r/a:1");
    let set = hello(&set, "a:1", secondary(&["a:1", "b:1", "c:1"]));
    is(&set, &[("a:1", Secondary), ("b:1", Unknown), ("c:1", Unknown)]);
    assert_eq!(set.host_string(), "r/a:1,b:1,c:1");
    let set = hello(&set, "b:1", primary(&["b:1", "a:1", "d:1"], 2, 1, 17));
    is(&set, &[("a:1", Secondary), ("b:1", Primary), ("d:1", Unknown)]);
    assert_eq!(set.host_string(), "r/b:1,a:1,d:1");
    // A secondary with an old configuration does not bring back c.
    let set = hello(&set, "a:1", secondary(&["a:1", "b:1", "c:1"]));
    is(&set, &[("a:1", Secondary), ("b:1", Primary), ("d:1", Unknown)]);
    // News of a server that is not in the picture are dropped.
    let set = hello(&set, "c:1", primary(&["c:1"], 9, 9, 17));
    is(&set, &[("a:1", Secondary), ("b:1", Primary), ("d:1", Unknown)]);
}

#[test]
fn arbiters_and_hidden_members_are_no_data_members() {
    let mut doc = primary(&["a:1"], 1, 1, 17);
    doc.append(bson::cstr!("arbiters"), bson::RawArrayBuf::from_iter(["z:1"]));
    let set = hello(&start("r/a:1"), "a:1", doc);
    let set = hello(&set, "z:1", rawdoc! {"ok": 1, "arbiterOnly": true, "setName": "r", "hosts": ["a:1"]});
    is(&set, &[("a:1", Primary), ("z:1", Arbiter)]);
    assert_eq!(set.host_string(), "r/a:1");
}

#[test]
fn new_primary_replaces_the_old() {
    let set = hello(&start("r/a:1,b:1"), "a:1", primary(&["a:1", "b:1"], 1, 1, 17));
    let set = hello(&set, "b:1", primary(&["a:1", "b:1"], 1, 2, 17));
    is(&set, &[("a:1", Unknown), ("b:1", Primary)]);
    assert_eq!(set.primary().unwrap().address.as_ref(), "b:1");
    // The old one, cut off, still believes it is primary.
    let set = hello(&set, "a:1", primary(&["a:1", "b:1"], 1, 1, 17));
    is(&set, &[("a:1", Unknown), ("b:1", Primary)]);
    assert!(set.servers.get("a:1").unwrap().error.is_some());
    let set = hello(&set, "a:1", secondary(&["a:1", "b:1"]));
    is(&set, &[("a:1", Secondary), ("b:1", Primary)]);
}

#[test]
fn stale_primary_rules_of_both_ages() {
    // Since 6.0 the election outranks the configuration version.
    let set = hello(&start("r/a:1,b:1"), "a:1", primary(&["a:1", "b:1"], 2, 1, 17));
    let set = hello(&set, "b:1", primary(&["a:1", "b:1"], 1, 2, 17));
    is(&set, &[("a:1", Unknown), ("b:1", Primary)]);
    assert_eq!(set.max_set_version, Some(1));
    // Before, the other way round.
    let set = hello(&start("r/a:1,b:1"), "a:1", primary(&["a:1", "b:1"], 2, 1, 13));
    let set = hello(&set, "b:1", primary(&["a:1", "b:1"], 1, 2, 13));
    is(&set, &[("a:1", Primary), ("b:1", Unknown)]);
    let set = hello(&set, "b:1", primary(&["a:1", "b:1"], 3, 1, 13));
    is(&set, &[("a:1", Unknown), ("b:1", Primary)]);
}

#[test]
fn strangers_are_removed_but_never_the_last() {
    let set = hello(&start("r/a:1,b:1"), "a:1", rawdoc! {"ok": 1, "isWritablePrimary": true});
    is(&set, &[("b:1", Unknown)]);
    let set = hello(&set, "b:1", rawdoc! {"ok": 1, "isWritablePrimary": true, "setName": "other", "hosts": ["b:1"]});
    is(&set, &[("b:1", Unknown)]);
    assert!(set.servers.get("b:1").unwrap().error.clone().unwrap().message().contains("another replica set"));
    assert_eq!(set.set_name.as_deref(), Some("r"));
}

#[test]
fn a_member_seen_under_another_name_gives_way_to_its_own() {
    let named = |primary: bool| {
        rawdoc! {"ok": 1, "isWritablePrimary": primary, "secondary": !primary, "setName": "r", "hosts": ["h:1"],
        "me": "h:1", "setVersion": 1, "electionId": election(1), "maxWireVersion": 17}
    };
    is(&hello(&start("r/localhost:1"), "localhost:1", named(true)), &[("h:1", Unknown)]);
    is(&hello(&start("r/localhost:1"), "localhost:1", named(false)), &[("h:1", Unknown)]);
}

#[test]
fn older_news_change_nothing() {
    let process = ObjectId::new();
    let with = |mut doc: RawDocumentBuf, counter: i64| {
        doc.append(bson::cstr!("topologyVersion"), rawdoc! {"processId": process, "counter": counter});
        doc
    };
    let set = hello(&start("r/a:1"), "a:1", with(primary(&["a:1"], 1, 1, 17), 6));
    let set = hello(&set, "a:1", with(secondary(&["a:1"]), 5));
    is(&set, &[("a:1", Primary)]);
    let set = hello(&set, "a:1", with(secondary(&["a:1"]), 6));
    is(&set, &[("a:1", Secondary)]);
    let set = set.apply(ServerDescription::unknown("a:1".into(), None));
    is(&set, &[("a:1", Unknown)]);
    let set = hello(&set, "a:1", rawdoc! {"ok": 1, "setName": "r", "hosts": ["a:1"]});
    is(&set, &[("a:1", Other)]);
}

#[test]
fn a_single_server_is_taken_as_it_is() {
    let set = hello(&start("a:1"), "a:1", rawdoc! {"ok": 1, "isWritablePrimary": true});
    assert_eq!(set.primary().unwrap().kind, ServerKind::Standalone);
    let set = hello(&start("a:1"), "a:1", primary(&["x:1", "a:1"], 1, 1, 17));
    is(&set, &[("a:1", Primary)]);
}

#[test]
fn round_trips_are_smoothed() {
    let timed = |ms| {
        let mut d = ServerDescription::parse("a:1".into(), &primary(&["a:1"], 1, 1, 17));
        d.rtt = ms;
        d
    };
    let rtt = |set: &SetDescription| set.primary().unwrap().rtt;
    let set = start("r/a:1").apply(timed(Some(Duration::from_millis(100))));
    assert_eq!(rtt(&set), Some(Duration::from_millis(100)));
    let set = set.apply(timed(Some(Duration::from_millis(50))));
    assert_eq!(rtt(&set), Some(Duration::from_millis(90)));
    let set = set.apply(timed(None));
    assert_eq!(rtt(&set), Some(Duration::from_millis(90)));
}
