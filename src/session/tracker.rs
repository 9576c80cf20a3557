//! When each session was last seen.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::SessionId;
use crate::error::{Error, Result};

/// Sessions are spread over this many locks.
const STRIPES: usize = 64;

/// More sessions than this at one time are refused, as by the server's own default limit.
pub const MAX_SESSIONS: usize = 1_000_000;

/// `TooManyLogicalSessions`.
const TOO_MANY: i32 = 261;

/// UUIDs are random already: their first bytes are the hash.
#[derive(Default)]
struct UuidHasher(u64);

impl Hasher for UuidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Clients may choose their own ids, so all bytes take part.
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
}

type Stripe = HashMap<SessionId, u32, BuildHasherDefault<UuidHasher>>;

/// All sessions this router knows, each with the second of its last use (counted from the router's start).
#[derive(Debug)]
pub struct Sessions {
    started: Instant,
    timeout: Duration,
    stripes: Vec<Mutex<Stripe>>,
}

impl Sessions {
    /// `timeout`: how long an unused session lives (`localLogicalSessionTimeoutMinutes`).
    pub fn new(timeout: Duration) -> Self {
        Sessions {
            started: Instant::now(),
            timeout,
            stripes: (0..STRIPES).map(|_| Mutex::new(Stripe::default())).collect(),
        }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    fn stripe(&self, id: &SessionId) -> &Mutex<Stripe> {
        &self.stripes[usize::from(id.0[15] ^ id.0[7]) % STRIPES]
    }

    fn now(&self) -> u32 {
        self.started.elapsed().as_secs() as u32
    }

    /// Notes a use of the session, now.
    ///
    /// # Errors
    /// TooManyLogicalSessions (261) where a new session would be one too many.
    pub fn touch(&self, id: SessionId) -> Result<()> {
        let now = self.now();
        let mut stripe = self.stripe(&id).lock();
        if let Some(last) = stripe.get_mut(&id) {
            *last = now;
            return Ok(());
        }
        if stripe.len() >= MAX_SESSIONS / STRIPES {
            return Err(Error::with_code(
                TOO_MANY,
                "cannot add session into the cache: the router knows too many sessions; end those not needed",
            ));
        }
        stripe.insert(id, now);
        Ok(())
    }

    /// Forgets a session; false if it was not known.
    pub fn forget(&self, id: &SessionId) -> bool {
        self.stripe(id).lock().remove(id).is_some()
    }

    pub fn contains(&self, id: &SessionId) -> bool {
        self.stripe(id).lock().contains_key(id)
    }

    /// Takes out the sessions that were not used for the timeout.
    pub fn expire(&self) -> Vec<SessionId> {
        let (now, limit) = (self.now(), self.timeout.as_secs() as u32);
        let mut expired = Vec::new();
        for stripe in &self.stripes {
            stripe.lock().retain(|id, last| {
                let live = now.saturating_sub(*last) <= limit;
                if !live {
                    expired.push(*id);
                }
                live
            });
        }
        expired
    }

    pub fn len(&self) -> usize {
        self.stripes.iter().map(|s| s.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All sessions with the time since their last use, in no order.
    pub fn list(&self) -> Vec<(SessionId, Duration)> {
        let now = self.now();
        let mut all = Vec::new();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            all.extend(
                stripe.iter().map(|(id, last)| (*id, Duration::from_secs(u64::from(now.saturating_sub(*last))))),
            );
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn seen_and_forgotten() {
        let sessions = Sessions::new(Duration::from_secs(1800));
        let id = SessionId::random();
        sessions.touch(id).unwrap();
        sessions.touch(id).unwrap();
        assert_eq!(sessions.len(), 1);
        assert!(sessions.contains(&id));
        assert!(sessions.expire().is_empty());
        assert!(sessions.forget(&id));
        assert!(!sessions.forget(&id));
        assert!(sessions.is_empty());
    }

    #[test]
    fn expires_what_is_old() {
        let mut sessions = Sessions::new(Duration::from_secs(10));
        let (old, new) = (SessionId::random(), SessionId::random());
        sessions.touch(old).unwrap();
        sessions.started -= Duration::from_secs(11);
        sessions.touch(new).unwrap();
        assert_eq!(sessions.expire(), [old]);
        assert_eq!(sessions.list().len(), 1);
    }

    #[test]
    fn bounded() {
        let sessions = Sessions::new(Duration::from_secs(10));
        let mut id = SessionId([0; 16]);
        for n in 0..(MAX_SESSIONS / STRIPES) as u64 {
            id.0[..6].copy_from_slice(&n.to_le_bytes()[..6]);
            sessions.touch(id).unwrap();
        }
        id.0[..8].copy_from_slice(&[255; 8]);
        id.0[15] = 255;
        assert_eq!(sessions.touch(id).unwrap_err().code(), 261);
    }
}
