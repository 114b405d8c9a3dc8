// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges how long clients waited for fair locks, by the holds of other clients in front of them.
//!
//! ```text
//!   wait        |asks ───────────────────────────────── holds|
//!   holds of others    |────|   |──|      idle      |──|
//! ```
//! A wait takes as long as all holds in front of it together. So its bound is three times the
//! longest of these holds, for each of them. A report also has the time in which no client held the
//! lock: a stall consists of such time.

use std::collections::HashMap;

use crate::record::{Granted, Record};

/// Delays by the scheduler of a busy machine, nanoseconds: shorter waits are not judged. A lost
/// wake-up costs more than this: a lease, or the grace of two seconds.
pub const NOISE_NS: u64 = 1_000_000_000;
/// How many times the longest hold in front of it a wait may take, for each hold in front.
pub const FACTOR: u64 = 3;

/// The waits of one run.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// How many waits there were.
    pub count: u64,
    /// The longest wait, nanoseconds.
    pub longest_ns: u64,
    /// How many waits took longer than [`NOISE_NS`], and than [`FACTOR`] times the longest single
    /// hold in front of them.
    pub over_one_hold: u64,
    /// The waits that took too long even for all holds in front of them together.
    pub stalls: Vec<String>,
}

struct Hold {
    who: u64,
    lock: usize,
    from: u64,
    to: u64,
}

/// Judges all waits; `records` are in the order of time.
pub fn judge(records: &[Record]) -> Waits {
    let holds = holds(records);
    let mut waits = Waits::default();
    for record in records {
        let Record::Waited { who, lock, from, to } = *record else { continue };
        let took = to.saturating_sub(from);
        waits.count += 1;
        waits.longest_ns = waits.longest_ns.max(took);
        if took <= NOISE_NS {
            continue;
        }
        let in_front: Vec<&Hold> = holds
            .iter()
            .filter(|h| h.lock == lock && h.who != who && h.from < to && h.to > from)
            .collect();
        let longest = in_front.iter().map(|h| h.to - h.from).max().unwrap_or(0);
        if took > FACTOR * longest {
            waits.over_one_hold += 1;
        }
        let bound = FACTOR.saturating_mul(longest).saturating_mul(in_front.len() as u64);
        let held = covered(&in_front, from, to);
        if took > bound || took - held > NOISE_NS {
            let ms = |ns: u64| ns / 1_000_000;
            waits.stalls.push(format!(
                "client {who:#x} waited {} ms for lock {lock} at {from}: {} holds in front, the \
                 longest {} ms, and nobody held it for {} ms",
                ms(took),
                in_front.len(),
                ms(longest),
                ms(took - held)
            ));
        }
    }
    waits
}

/// The holds. Each lasts from the return of the call that told of it to the call of the release.
fn holds(records: &[Record]) -> Vec<Hold> {
    let mut open: HashMap<(u64, usize), u64> = HashMap::new();
    let mut holds = Vec::new();
    for record in records {
        match *record {
            Record::Granted(Granted { who, lock, after, .. }) => {
                open.entry((who, lock)).or_insert(after);
            }
            Record::Ended { who, lock, at } | Record::Lost { who, lock, at, .. } => {
                if let Some(from) = open.remove(&(who, lock)) {
                    holds.push(Hold { who, lock, from, to: at });
                }
            }
            Record::Gone { who, at } => {
                let mine: Vec<_> = open.keys().filter(|key| key.0 == who).copied().collect();
                for key in mine {
                    if let Some(from) = open.remove(&key) {
                        holds.push(Hold { who, lock: key.1, from, to: at });
                    }
                }
            }
            Record::Long { .. } | Record::Waited { .. } => {}
        }
    }
    holds
}

/// For how long within a span the lock was held.
fn covered(holds: &[&Hold], from: u64, to: u64) -> u64 {
    let mut spans: Vec<_> = holds.iter().map(|h| (h.from.max(from), h.to.min(to))).collect();
    spans.sort_unstable();
    let (mut covered, mut end) = (0, from);
    for (begin, until) in spans {
        covered += until.saturating_sub(begin.max(end));
        end = end.max(until);
    }
    covered
}

#[cfg(test)]
mod tests {
    use dlock_core::wire::message::Mode;

    use super::*;

    const MS: u64 = 1_000_000;

    fn hold(who: u64, from: u64, to: u64) -> [Record; 2] {
        let granted = Granted {
            who,
            lock: 0,
            mode: Mode::Exclusive,
            before: from * MS,
            after: from * MS,
            until_ns: None,
            asked_s: 0,
            ticket: None,
            checked: 0,
            epoch: 0,
        };
        [Record::Granted(granted), Record::Ended { who, lock: 0, at: to * MS }]
    }

    fn stalls(mut records: Vec<Record>, to: u64) -> usize {
        records.push(Record::Waited { who: 9, lock: 0, from: MS, to: to * MS });
        records.sort_by_key(Record::at);
        judge(&records).stalls.len()
    }

    #[test]
    fn a_wait_is_a_stall_if_nobody_held_the_lock_for_long() {
        let long = [hold(1, 0, 400), hold(2, 410, 800)].concat();
        assert_eq!(stalls(long.clone(), 810), 0);
        assert_eq!(stalls(long, 2_200), 1, "1.4 s in which nobody held it");
        let many: Vec<_> = (0..100).flat_map(|n| hold(n % 8, n * 10, n * 10 + 9)).collect();
        assert_eq!(stalls(many, 1_001), 0);
        assert_eq!(stalls(hold(1, 0, 2).to_vec(), 100), 0, "the machine may be busy");
        assert_eq!(stalls(hold(1, 0, 2).to_vec(), 2_000), 1);
    }
}
