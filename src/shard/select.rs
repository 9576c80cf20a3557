//! Which members may serve a read preference: the public server selection specification. Pure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hello::{ServerDescription, ServerKind};
use super::read_preference::{Mode, ReadPreference, TagSet};
use super::sdam::SetDescription;

type Server = Arc<ServerDescription>;

/// The members `pref` allows now, all about as near as the nearest; empty if there is none.
///
/// `window` is how much slower than the nearest a member may answer (15 ms by default), `heartbeat` how old news
/// of a member may be, which the staleness estimate has to allow for.
pub fn suitable(set: &SetDescription, pref: &ReadPreference, window: Duration, heartbeat: Duration) -> Vec<Server> {
    if set.set_name.is_none() {
        return set.servers.values().filter(|s| s.serves()).cloned().collect();
    }
    let primary = set.primary();
    let secondaries = || fresh(set, of_kind(set, ServerKind::Secondary), pref.max_staleness, heartbeat);
    let eligible = match pref.mode {
        Mode::Primary => primary.cloned().into_iter().collect(),
        Mode::PrimaryPreferred => match primary {
            Some(primary) => vec![primary.clone()],
            None => tagged(secondaries(), &pref.tag_sets),
        },
        Mode::Secondary => tagged(secondaries(), &pref.tag_sets),
        Mode::SecondaryPreferred => {
            let found = tagged(secondaries(), &pref.tag_sets);
            if found.is_empty() { primary.cloned().into_iter().collect() } else { found }
        }
        Mode::Nearest => {
            let mut all = secondaries();
            all.extend(primary.cloned());
            tagged(all, &pref.tag_sets)
        }
    };
    nearest(eligible, window)
}

fn of_kind(set: &SetDescription, kind: ServerKind) -> Vec<Server> {
    set.servers.values().filter(|s| s.kind == kind).cloned().collect()
}

/// The members whose estimated staleness is within `limit`.
fn fresh(set: &SetDescription, secondaries: Vec<Server>, limit: Option<Duration>, heartbeat: Duration) -> Vec<Server> {
    let Some(limit) = limit else { return secondaries };
    let limit = limit.as_millis() as i64;
    let reference = match set.primary() {
        Some(primary) => Reference::Primary(primary),
        None => match secondaries.iter().filter_map(|s| s.last_write).max() {
            Some(newest) => Reference::Newest(newest),
            None => return Vec::new(),
        },
    };
    let stale = |s: &Server| staleness(s, &reference).map(|lag| lag + heartbeat.as_millis() as i64);
    secondaries.into_iter().filter(|s| stale(s).is_some_and(|lag| lag <= limit)).collect()
}

enum Reference<'a> {
    Primary(&'a ServerDescription),
    /// The newest write any secondary has, milliseconds since 1970.
    Newest(i64),
}

/// How many milliseconds a secondary is behind; `None` if one side does not tell.
fn staleness(secondary: &ServerDescription, reference: &Reference<'_>) -> Option<i64> {
    let write = secondary.last_write?;
    match reference {
        Reference::Primary(primary) => {
            let seen_later = signed_millis(secondary.updated, primary.updated);
            Some(seen_later - (write - primary.last_write?))
        }
        Reference::Newest(newest) => Some(newest - write),
    }
}

fn signed_millis(a: Instant, b: Instant) -> i64 {
    if a >= b { (a - b).as_millis() as i64 } else { -((b - a).as_millis() as i64) }
}

/// The members that carry the first tag set any of them carries.
fn tagged(servers: Vec<Server>, tag_sets: &[TagSet]) -> Vec<Server> {
    if tag_sets.is_empty() {
        return servers;
    }
    for set in tag_sets {
        let carries = |s: &&Server| set.iter().all(|tag| s.tags.contains(tag));
        let found: Vec<_> = servers.iter().filter(carries).cloned().collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Those at most `window` slower than the nearest. A member whose round trip was not measured yet counts as near.
fn nearest(servers: Vec<Server>, window: Duration) -> Vec<Server> {
    let Some(best) = servers.iter().filter_map(|s| s.rtt).min() else { return servers };
    servers.into_iter().filter(|s| s.rtt.is_none_or(|rtt| rtt <= best + window)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::sdam::HostString;
    use super::*;
    use bson::rawdoc;

    struct Spec {
        name: &'static str,
        kind: ServerKind,
        rtt: u64,
        tags: &'static [(&'static str, &'static str)],
        write: i64,
        seen: u64,
    }

    fn spec(name: &'static str, kind: ServerKind) -> Spec {
        Spec { name, kind, rtt: 5, tags: &[], write: 1_000_000, seen: 100 }
    }

    fn set(specs: &[Spec]) -> SetDescription {
        let mut set = SetDescription::new(&HostString { set_name: Some("r".into()), hosts: vec![] });
        let base = Instant::now();
        for s in specs {
            let mut d = ServerDescription::unknown(s.name.into(), None);
            d.kind = s.kind;
            d.rtt = Some(Duration::from_millis(s.rtt));
            d.tags = s.tags.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            d.last_write = Some(s.write);
            d.updated = base + Duration::from_secs(s.seen);
            set.servers.insert(s.name.into(), Arc::new(d));
        }
        set
    }

    fn pick(set: &SetDescription, pref: bson::RawDocumentBuf) -> Vec<String> {
        let pref = ReadPreference::parse(&pref).unwrap();
        let found = suitable(set, &pref, Duration::from_millis(15), Duration::from_secs(10));
        found.iter().map(|s| s.address.to_string()).collect()
    }

    use ServerKind::{Other, Primary, Secondary, Unknown};

    #[test]
    fn modes() {
        let all = set(&[spec("p", Primary), spec("s1", Secondary), spec("s2", Secondary), spec("o", Other)]);
        let alone = set(&[spec("p", Primary), spec("s1", Unknown)]);
        let headless = set(&[spec("p", Unknown), spec("s1", Secondary)]);
        type Names = &'static [&'static str];
        let cases: [(&str, Names, Names, Names); 5] = [
            ("primary", &["p"], &["p"], &[]),
            ("primaryPreferred", &["p"], &["p"], &["s1"]),
            ("secondary", &["s1", "s2"], &[], &["s1"]),
            ("secondaryPreferred", &["s1", "s2"], &["p"], &["s1"]),
            ("nearest", &["s1", "s2", "p"], &["p"], &["s1"]),
        ];
        for (mode, in_all, in_alone, in_headless) in cases {
            assert_eq!(pick(&all, rawdoc! {"mode": mode}), in_all, "{mode}");
            assert_eq!(pick(&alone, rawdoc! {"mode": mode}), in_alone, "{mode}");
            assert_eq!(pick(&headless, rawdoc! {"mode": mode}), in_headless, "{mode}");
        }
    }

    #[test]
    fn tag_sets_in_order() {
        let set = set(&[
            Spec { tags: &[("dc", "p")], ..spec("p", Primary) },
            Spec { tags: &[("dc", "a"), ("use", "x")], ..spec("s1", Secondary) },
            Spec { tags: &[("dc", "a")], ..spec("s2", Secondary) },
        ]);
        assert_eq!(pick(&set, rawdoc! {"mode": "secondary", "tags": [{"dc": "a"}]}), ["s1", "s2"]);
        assert_eq!(pick(&set, rawdoc! {"mode": "secondary", "tags": [{"dc": "a", "use": "x"}]}), ["s1"]);
        assert_eq!(pick(&set, rawdoc! {"mode": "secondary", "tags": [{"dc": "z"}, {"use": "x"}, {}]}), ["s1"]);
        assert_eq!(pick(&set, rawdoc! {"mode": "secondary", "tags": [{"dc": "z"}, {}]}), ["s1", "s2"]);
        assert!(pick(&set, rawdoc! {"mode": "secondary", "tags": [{"dc": "p"}]}).is_empty());
        // The primary stands in whatever its tags are.
        assert_eq!(pick(&set, rawdoc! {"mode": "secondaryPreferred", "tags": [{"dc": "z"}]}), ["p"]);
        assert_eq!(pick(&set, rawdoc! {"mode": "nearest", "tags": [{"dc": "p"}]}), ["p"]);
    }

    #[test]
    fn latency_window() {
        let set = set(&[
            Spec { rtt: 40, ..spec("p", Primary) },
            Spec { rtt: 10, ..spec("s1", Secondary) },
            Spec { rtt: 25, ..spec("s2", Secondary) },
            Spec { rtt: 26, ..spec("s3", Secondary) },
        ]);
        assert_eq!(pick(&set, rawdoc! {"mode": "nearest"}), ["s1", "s2"]);
        assert_eq!(pick(&set, rawdoc! {"mode": "primary"}), ["p"]);
    }

    #[test]
    fn staleness_against_the_primary() {
        // s1 is 80 s behind, s2 81 s: with the heartbeat of 10 s that makes 90 and 91.
        let set_with = |primary| {
            set(&[
                Spec { write: 1_000_000, seen: 100, ..spec("p", primary) },
                Spec { write: 925_000, seen: 105, ..spec("s1", Secondary) },
                Spec { write: 924_000, seen: 105, ..spec("s2", Secondary) },
                Spec { write: 1_010_000, seen: 110, ..spec("s3", Secondary) },
            ])
        };
        let with = set_with(Primary);
        assert_eq!(pick(&with, rawdoc! {"mode": "secondary", "maxStalenessSeconds": 90}), ["s1", "s3"]);
        assert_eq!(pick(&with, rawdoc! {"mode": "nearest", "maxStalenessSeconds": 90}), ["s1", "s3", "p"]);
        // Without a primary the newest secondary is the measure: 85 s and 86 s behind s3.
        let without = set_with(Unknown);
        assert_eq!(pick(&without, rawdoc! {"mode": "secondary", "maxStalenessSeconds": 95}), ["s1", "s3"]);
        assert_eq!(pick(&without, rawdoc! {"mode": "secondary", "maxStalenessSeconds": 90}), ["s3"]);
    }
}
