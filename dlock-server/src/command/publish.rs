// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command thread publishes for the metrics: once a second, in bounded work. Without
//! metrics ([`ServerConfig::http`](crate::ServerConfig::http)) it measures and publishes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::primary::{self, WaitersSnapshot};
use dlock_core::wire::fabric::FabricKind;

use super::Worker;
use crate::observe::snapshot::{place_of, Published, Queues, RecoveryCounts, Snapshot, Steps};
use crate::observe::snapshot::{MEMBER_STATES, PUBLISH_EVERY};

/// Clients whose counts are collected for one snapshot: a device reads each one's ledger.
const COLLECTED: usize = 64;
/// Locks whose waiters are counted for one snapshot.
const COUNTED: usize = 2_048;

/// A step that takes so long counts although nothing had come: the primary did work of its own.
const LONG: Duration = Duration::from_millis(1);

/// Measures the steps of the command thread.
pub(super) struct Meter {
    published: Arc<Published>,
    /// When the next snapshot is due.
    pub(super) next: Instant,
    steps: Steps,
    /// The count of waiters that is under way, and the last whole one.
    counting: WaitersSnapshot,
    waiters: WaitersSnapshot,
}

impl Meter {
    /// Its first snapshot is due at once.
    pub(super) fn new(published: Arc<Published>) -> Self {
        let next = Instant::now();
        let steps = Steps::new(next);
        let (counting, waiters) = Default::default();
        Self { published, next, steps, counting, waiters }
    }
}

impl Worker {
    /// The time at which a step begins, if steps are measured.
    pub(super) fn begins(&self) -> Option<Instant> {
        self.meter.as_ref().map(|_| Instant::now())
    }

    /// Records the step that began then, if it had work, and publishes a snapshot if one is due.
    pub(super) fn measure(&mut self, began: Option<Instant>, worked: bool) {
        let (Some(meter), Some(began)) = (&mut self.meter, began) else { return };
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        if worked || took >= LONG {
            meter.steps.add(took, now);
        }
        if now >= meter.next {
            meter.next = now + PUBLISH_EVERY;
            self.publish(now);
            // clients wait for this, too
            let (took, end) = (now.elapsed(), Instant::now());
            self.meter.iter_mut().for_each(|meter| meter.steps.add(took, end));
        }
    }

    /// How long the poll may wait at most, so that the next snapshot is in time.
    pub(super) fn until_published(&self, now: Instant) -> Option<Duration> {
        self.meter.as_ref().map(|meter| meter.next.saturating_duration_since(now))
    }

    fn publish(&mut self, now: Instant) {
        self.handle(primary::Event::CollectSome { clients: COLLECTED });
        let Some(mut meter) = self.meter.take() else { return };
        meter.steps.turn(now);
        meter.counting = self.core.primary.locks().count_waiters(meter.counting, COUNTED);
        if meter.counting.last.is_none() {
            meter.waiters = std::mem::take(&mut meter.counting);
        }
        let snapshot = self.snapshot(now, &meter);
        meter.published.command_is(snapshot);
        self.meter = Some(meter);
    }

    fn snapshot(&self, now: Instant, meter: &Meter) -> Snapshot {
        let (locks, members) = (self.core.primary.locks(), self.core.primary.members());
        let mut clients = [0; MEMBER_STATES.len()];
        for (_, state) in members.iter() {
            clients[place_of(state)] += 1;
        }
        let mut channels = [0; FabricKind::ALL.len()];
        for channel in self.channels.values() {
            let place = FabricKind::ALL.iter().position(|&kind| kind == channel.fabric);
            channels[place.expect("ALL has every kind")] += 1;
        }
        let recovery = locks.progress().map(|progress| RecoveryCounts {
            expected: progress.expected,
            back: progress.back,
            told: progress.told,
            claims: progress.claims,
            endless: progress.missing.iter().filter(|(_, until)| until.is_none()).count(),
            is_unlisted: progress.is_unlisted,
        });
        let (_, locks_len, objects) = locks.totals();
        let queues = Queues {
            events: self.inbox.len(),
            turns: self.turns.shares.len(),
            admissions: self.waiting.len(),
            resting: self.resting.len(),
            blocked: self.blocked.len(),
            unfenced: self.unfenced.len(),
        };
        Snapshot {
            at: now,
            recovery,
            is_draining: locks.is_draining(),
            clients,
            channels,
            locks: locks_len,
            objects,
            waiters: meter.waiters,
            counters: locks.counters().read(),
            steps: meter.steps,
            queues,
            client_files: members.files(),
        }
    }
}
