//! Whether what another router renews in the catalog still changes. It is judged by this router's own clock, from look to
//! look: the clocks of two machines differ.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// What was last seen of each record, and since when.
#[derive(Debug)]
pub struct Standstill<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for Standstill<K, V> {
    fn default() -> Self {
        Standstill(HashMap::new())
    }
}

impl<K: Eq + Hash, V: PartialEq> Standstill<K, V> {
    /// For how long the record has been seen as it is `now`; zero where it is new or has changed.
    pub fn since(&mut self, key: K, value: V, now: Instant) -> Duration {
        match self.0.get(&key) {
            Some((seen, since)) if *seen == value => now.duration_since(*since),
            _ => {
                self.0.insert(key, (value, now));
                Duration::ZERO
            }
        }
    }

    /// Forgets the records that are gone.
    pub fn keep(&mut self, there: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| there(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_begin_anew() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut seen = Standstill::default();
        assert_eq!(seen.since("a", 1, now), Duration::ZERO);
        assert_eq!(seen.since("a", 1, now + 5 * second), 5 * second);
        assert_eq!(seen.since("a", 2, now + 6 * second), Duration::ZERO, "it was renewed");
        assert_eq!(seen.since("b", 2, now + 7 * second), Duration::ZERO);
        assert_eq!(seen.since("a", 2, now + 8 * second), 2 * second);
        seen.keep(|key| *key == "b");
        assert_eq!(seen.since("a", 2, now + 9 * second), Duration::ZERO, "it was forgotten");
        assert_eq!(seen.since("b", 2, now + 9 * second), 2 * second);
    }
}
