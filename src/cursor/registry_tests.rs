#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::cursor::StoredCursor;
use crate::op::OpContext;
use crate::shard::ShardSettings;

fn registry() -> Arc<CursorRegistry> {
    CursorRegistry::new(ShardRegistry::new(ShardSettings::default()))
}

fn facts(session: Option<SessionId>) -> NewCursor {
    NewCursor {
        ns: "d.c".into(),
        session,
        connection: None,
        no_timeout: false,
        await_data: false,
        snapshot_version: 5,
        command: Bytes::new(),
        time_left: None,
    }
}

fn cursor() -> Cursor {
    Cursor::Stored(StoredCursor::default())
}

fn op() -> OpContext {
    OpContext::background("getMore")
}

#[test]
fn one_getmore_at_a_time() {
    let (registry, op) = (registry(), op());
    let id = registry.open(facts(None), cursor());
    assert!(id > 0);
    let mut out = registry.check_out(id, "d.c", None, &op.record).unwrap();
    assert_eq!(registry.stats().pinned, 1);
    assert_eq!(registry.check_out(id, "d.c", None, &op.record).unwrap_err().code(), 12051);
    let taken = out.take().unwrap();
    out.put_back(taken, None);
    let expected =
        CursorStats { open: 1, single_target: 1, total_opened: 1, more_than_one_batch: 1, ..registry.stats() };
    assert_eq!(registry.stats(), expected);
    assert!(expected.lifespans.iter().all(|(_, n)| *n == 0));
    // Taken and not put back, it is gone.
    drop(registry.check_out(id, "d.c", None, &op.record).unwrap());
    assert_eq!(registry.check_out(id, "d.c", None, &op.record).unwrap_err().code(), 43);
    assert_eq!(registry.stats().open, 0);
    assert_eq!(registry.stats().lifespans[0].1, 1);
}

#[test]
fn namespace_and_session_must_match() {
    let (registry, op) = (registry(), op());
    let (mine, other) = (SessionId::random(), SessionId::random());
    let with = registry.open(facts(Some(mine)), cursor());
    let without = registry.open(facts(None), cursor());
    let code = |id, ns, s| registry.check_out(id, ns, s, &op.record).map(drop).map_err(|e| e.code());
    assert_eq!(code(with, "d.x", Some(mine)), Err(13));
    assert_eq!(code(with, "d.c", None), Err(50737));
    assert_eq!(code(with, "d.c", Some(other)), Err(50738));
    assert_eq!(code(without, "d.c", Some(mine)), Err(50736));
    assert_eq!(code(12345, "d.c", None), Err(43));
    assert_eq!(code(with, "d.c", Some(mine)), Ok(()));
    assert_eq!(code(without, "d.c", None), Ok(()));
}

#[test]
fn killed_while_in_use() {
    let (registry, op) = (registry(), op());
    let id = registry.open(facts(None), cursor());
    let mut out = registry.check_out(id, "d.c", None, &op.record).unwrap();
    assert!(registry.kill(id) && !registry.kill(id));
    assert!(op.cancel().is_cancelled() && out.was_killed());
    let taken = out.take().unwrap();
    out.put_back(taken, None);
    assert_eq!(registry.stats().open, 0);
}

#[test]
fn sessions_end_their_cursors() {
    let registry = registry();
    let (mine, other) = (SessionId::random(), SessionId::random());
    for session in [Some(mine), Some(mine), Some(other), None] {
        registry.open(facts(session), cursor());
    }
    assert_eq!(registry.sessions().len(), 2);
    assert_eq!(registry.kill_session(mine), 2);
    assert_eq!(registry.stats().open, 2);
}

#[test]
fn idle_cursors_are_reaped() {
    let (registry, op) = (registry(), op());
    let plain = registry.open(facts(None), cursor());
    let kept = registry.open(NewCursor { no_timeout: true, ..facts(None) }, cursor());
    let in_session = registry.open(facts(Some(SessionId::random())), cursor());
    let used = registry.open(facts(None), cursor());
    let out = registry.check_out(used, "d.c", None, &op.record).unwrap();
    assert_eq!(registry.reap(Duration::from_secs(60)), 0);
    assert_eq!(registry.reap(Duration::ZERO), 1);
    assert_eq!(registry.stats().timed_out, 1);
    let mut left: Vec<i64> = registry.idle().iter().map(|c| c.id).collect();
    left.sort_unstable();
    let mut expected = vec![kept, in_session];
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert_eq!(registry.oldest_snapshot(), Some(5));
    drop(out);
    assert!(!registry.kill(plain) && !registry.kill(used));
}
