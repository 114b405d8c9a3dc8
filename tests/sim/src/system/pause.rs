// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pauses before another try of a lock that another client holds, and notes that come late.

use dlock_core::clock::{Now, NS};
use dlock_core::limits::{NOTE_LATE_NS, TRIES_MAX};
use dlock_core::lock::NotedBy;

use super::plan::Fabric;
use super::state::{Doing, Ev, Sys, Thread};

impl Sys {
    pub(super) fn pause(&mut self, c: usize, l: usize, pause_ns: u64) {
        let t = self.thread(c, l);
        if t.async_until > 0 {
            if let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) {
                operation.queues(entry);
            }
            return self.effect(c, l);
        }
        t.pauses = t.pauses.saturating_add(1);
        if t.pauses > TRIES_MAX {
            return self.fail(format!("liveness: client {c} tries lock {l}, and does not queue"));
        }
        let gen = t.gen;
        self.enter(c, l, Doing::Pause(gen));
        let ns = self.takes(20);
        self.step_after(c, l, pause_ns + ns);
    }

    /// A note of this lock may be late: the library looks for such every now and then.
    pub(super) fn writes_note_later(&mut self, c: usize, l: usize) {
        let is_late = self.thread(c, l).entry.as_ref().is_some_and(|e| e.late_note().is_some());
        if is_late {
            let up_to_ns = match self.calm {
                true => 2 * NOTE_LATE_NS,
                false => self.rng.pick(&[1_000, 1_000_000, 2 * NOTE_LATE_NS, 30 * NS]),
            };
            let (inc, after_ns) = (self.clients[c].inc, self.rng.below(up_to_ns));
            self.after(after_ns, Ev::LateNote(c as u8, inc, l as u8));
        }
    }

    pub(super) fn looks_for_late_note(&mut self, c: usize, l: usize) {
        match self.thread(c, l).doing {
            Doing::Idle | Doing::Nothing => self.writes_late_note(c, l),
            _ => self.writes_note_later(c, l),
        }
    }

    /// The note that is late is written now.
    pub(super) fn writes_late_note(&mut self, c: usize, l: usize) {
        let entry = self.thread(c, l).entry.as_mut();
        if let Some(note) = entry.and_then(|entry| entry.take_late_note()) {
            self.write_ledger(c, l, note);
        }
    }

    /// Whether nothing of a lock that is to be released is on its way: its place is another's then.
    pub(super) fn is_settled(&mut self, c: usize, l: usize) -> bool {
        self.writes_late_note(c, l);
        !self.is_connected(c, l) || self.is_flushed(c, l)
    }

    /// The pause is over; `gen` is the session that it began with.
    pub(super) fn paused(&mut self, c: usize, l: usize, gen: u32) {
        let (now, handed) = (self.thread_now(c, l), self.handed(c, l));
        let t = self.thread(c, l);
        let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) else {
            return;
        };
        match gen == t.gen {
            true => {
                t.last_now = now;
                match handed {
                    Some(since_ns) => operation.handed(entry, since_ns, now),
                    None => operation.paused(entry, now),
                }
            }
            false => {
                let (local_ns, horizon_ns) = (now.local_ns, t.horizon_ns);
                operation.replaced(entry, Now { local_ns, horizon_ns, ..t.last_now });
            }
        }
        self.effect(c, l);
    }
}

impl Thread {
    /// A session of this fabric carries its operations from here on. Of client `c`: one of four is
    /// of an old version, and notes itself what the primary has noted.
    pub(super) fn is_carried_by(&mut self, c: usize, fabric: Fabric) {
        (self.fabric, self.noted_acked) = (fabric, self.noted);
        if let Some(entry) = &mut self.entry {
            entry.may_try(fabric != Fabric::Tcp);
            entry.noted_by(match fabric {
                Fabric::Verbs => NotedBy::ClientLate,
                Fabric::Tcp if c % 4 != 3 => NotedBy::Primary,
                Fabric::Tcp | Fabric::Shm => NotedBy::Client,
            });
        }
    }
}
