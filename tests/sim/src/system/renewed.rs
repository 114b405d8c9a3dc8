// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases that the library renews. The entry (`dlock_core::lock::Due`) decides when, as in the
//! library (`dlock-client/src/instance/renewals.rs`). This module has the programs that want it,
//! and the checker.
//!
//! ```text
//!   a grant ─ the program asks ─▶ look ─ Renew ─▶ an operation of the library ─▶ look …
//!                              └ every 50 ms: is the client well? does the lease run?
//! ```
//! The checker knows no pauses and no parts of a lease. A client that was well for the last half of
//! its lease, and two looks more, loses no hold: it may have got well as late as the look after the
//! one that saw it ill, and a renewal that is due is posted by the look that follows. A hold is
//! renewed only if its program has asked for that, has not asked for its end, and has set no bound
//! that has passed. No lease ends before its client knows.

use dlock_core::clock::Lease;
use dlock_core::lock::{Due, LockEntry, Op, OpResult};
use dlock_core::operation::{lease, Operation, Started};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

use super::state::{Doing, Ev, Goal, Life, Sys};

/// Time between two looks at a hold, nanoseconds.
const LOOK_NS: u64 = 50_000_000;
/// If a hold was not looked at for longer than so many times between two looks, its client was
/// stopped.
const GAP_LOOKS: u64 = 3;
/// Of a thousand programs that have a hold renewed, those that set a time beyond which no renewal
/// begins.
const BOUNDED: u32 = 200;
/// How many of a thousand due renewals the program declines.
const DECLINED: u32 = 20;

/// The renewal that a thread's program has asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// Whether the hold is to be renewed.
    is_wanted: bool,
    /// The lease that each renewal requests.
    lease: Lease,
    /// No renewal begins after this time, on the client's own clock.
    until_ns: u64,
    /// Whether the next look at the hold is scheduled.
    is_looked_at: bool,
    /// The time of the last look, and the last time at which the client was not well.
    looked: u64,
    ill: u64,
    /// When the program goes on after the renewal under way.
    resumes: u64,
}

impl Asked {
    /// The time between two looks: a short lease is looked at often enough to be renewed in time.
    fn look_ns(&self) -> u64 {
        match self.lease {
            Lease::NONE => LOOK_NS,
            lease => LOOK_NS.min(lease.ns() / 16),
        }
    }

    /// The program asks for an operation on its hold; `is_release`: one that ends it, so that it is
    /// not renewed any more.
    pub(super) fn ends(&mut self, is_release: bool) {
        self.is_wanted &= !is_release;
    }

    /// Sets when the program goes on after a renewal that is under way.
    pub(super) fn resumes_at(&mut self, at: u64) {
        self.resumes = at;
    }
}

impl Sys {
    /// A client has got the lock: its program may have the lease renewed.
    pub(super) fn may_renew(&mut self, c: usize, l: usize, op: Op) {
        let (Op::TryLock { lease, .. } | Op::Lock { lease, .. }) = op else { return };
        let is_plain = self.plan.locks[l] == LockType::Rw && !self.plan.rw_leases;
        let has_lease = !is_plain && !lease.is_endless() && !lease.is_none();
        let is_wanted = self.plan.renewed > 0 && self.goal == Goal::Any && has_lease;
        if !is_wanted || !self.rng.chance(self.plan.renewed) {
            return self.looks_in_time(c, l);
        }
        let max_ns = match self.rng.chance(BOUNDED) {
            true => self.rng.below(2 * lease.ns()),
            false => u64::MAX,
        };
        let (now, at) = (self.thread_now(c, l), self.now);
        let t = self.thread(c, l);
        let Some(entry) = t.entry.as_mut() else { return };
        entry.renews(lease, max_ns, now);
        let until_ns = now.local_ns.saturating_add(max_ns);
        let is_looked_at = t.renewed.is_looked_at;
        let resumes = t.renewed.resumes;
        t.renewed =
            Asked { is_wanted: true, lease, until_ns, is_looked_at, looked: at, ill: at, resumes };
        self.log(|| format!("client {c} lock {l} is to be renewed until {until_ns}"));
        self.begins_to_look(c, l);
    }

    /// Schedules a look at a hold that is not renewed, if its program listens to events.
    fn looks_in_time(&mut self, c: usize, l: usize) {
        if self.plan.listens {
            self.begins_to_look(c, l);
        }
    }

    fn begins_to_look(&mut self, c: usize, l: usize) {
        if !std::mem::replace(&mut self.thread(c, l).renewed.is_looked_at, true) {
            self.looks_after(c, l, 1);
        }
    }

    /// The program no longer wants the renewal: it has asked for the end of its hold, or the hold
    /// has ended.
    pub(super) fn renewal_unwanted(&mut self, c: usize, l: usize) {
        self.thread(c, l).renewed.is_wanted = false;
    }

    fn looks_after(&mut self, c: usize, l: usize, ns: u64) {
        let inc = self.clients[c].inc;
        self.after(ns, Ev::Renewal(c as u8, inc, l as u8));
    }

    /// Whether the client, its primary and the channel between them work.
    fn is_well(&self, c: usize, l: usize) -> bool {
        let (client, now) = (&self.clients[c], self.now);
        let t = &client.threads[l];
        let is_served = self.alive && !self.recovering && self.frozen_until <= now;
        let is_here = client.life == Life::Up && client.epoch == self.epoch && !client.is_mute;
        let is_bound = self.is_connected(c, l) && t.epoch == self.epoch && t.old_clock.is_none();
        let is_free = client.blocked_up.max(client.blocked_down).max(client.paused_until) <= now;
        // the control thread may have slept beyond the horizon
        let is_within = client.clock.local(now).max(0) as u64 <= client.beats.horizon_ns();
        let is_heard = self.put_off_until <= now && client.up_last <= now + t.renewed.look_ns();
        is_served && is_here && is_bound && is_free && is_within && is_heard && !self.was_fenced(c)
    }

    /// Looks at a hold that is renewed.
    pub(super) fn looks_at_renewal(&mut self, c: usize, l: usize) {
        let is_idle = matches!(self.thread(c, l).doing, Doing::Idle);
        let (at, is_well) = (self.now, self.is_well(c, l) && is_idle);
        let renewed = &mut self.thread(c, l).renewed;
        if !is_well || at > renewed.looked + GAP_LOOKS * renewed.look_ns() {
            renewed.ill = at;
        }
        renewed.looked = at;
        let ill = renewed.ill;
        self.hears_of_waiters(c, l, ill < at);
        if self.clients[c].life == Life::Leaving {
            // in this goal the client gives all its locks up, so nothing is renewed
            return self.thread(c, l).renewed = Asked::default();
        }
        if !is_idle {
            // an operation on the lock is under way, so the next look decides
            return self.looks_again(c, l);
        }
        let (now, listens) = (self.unheard_now(c, l), self.plan.listens);
        let Some(entry) = self.thread(c, l).entry.as_mut() else { return self.looks_again(c, l) };
        let was_held = entry.state().is_held() && !entry.is_lost();
        if entry.deadline().is_never() {
            self.renewal_unwanted(c, l); // the hold has no end to renew
        }
        let Some(entry) = self.thread(c, l).entry.as_mut() else { return };
        let due = entry.due(listens, now);
        let may_be_over = entry.state().is_held() && !entry.is_lost() && !lease::runs(entry, now);
        let is_of_clock = !entry.is_of_another_clock(now) && !entry.is_unconfirmed();
        let wanted = self.thread(c, l).renewed.is_wanted;
        match due {
            Due::Lost => self.could_not_renew(c, l),
            Due::Over if wanted && was_held => {
                self.fail(format!("renewal: client {c} forgets to renew lock {l}"));
            }
            Due::At(_) | Due::Renew if (wanted || listens) && may_be_over && is_of_clock => {
                self.fail(format!(
                    "renewal: the lease of client {c} of lock {l} is over, and it is not told"
                ));
            }
            Due::Renew if self.rng.chance(DECLINED) => {
                if let Some(entry) = self.thread(c, l).entry.as_mut() {
                    entry.renewal_declined(now);
                }
                self.thread(c, l).renewed.ill = at;
            }
            Due::Renew => self.begins_renewal(c, l),
            Due::At(_) | Due::Over => {}
        }
        self.looks_again(c, l);
    }

    fn looks_again(&mut self, c: usize, l: usize) {
        if matches!(self.thread(c, l).doing, Doing::Idle) {
            self.hears(c, l);
            self.asks_about(c, l);
        }
        let listens = self.plan.listens;
        let t = self.thread(c, l);
        let is_renewed = t.entry.as_ref().is_some_and(LockEntry::is_renewed);
        let is_heard = listens && t.entry.as_ref().is_some_and(|entry| entry.hold().is_some());
        t.renewed.is_looked_at = t.renewed.is_wanted || is_renewed || is_heard;
        if t.renewed.is_looked_at {
            let ns = t.renewed.look_ns();
            self.looks_after(c, l, ns);
        }
    }

    /// The library gave the hold up, because it could not renew the lease in time.
    fn could_not_renew(&mut self, c: usize, l: usize) {
        let (who, now, at) = (self.who(c), self.thread_now(c, l), self.now);
        self.log(|| format!("client {c} could not renew lock {l}"));
        let renewed = self.thread(c, l).renewed;
        let half_ns = renewed.lease.ns() / 2;
        let well_ns = half_ns + 2 * renewed.look_ns();
        let is_bounded = now.local_ns.saturating_add(half_ns) >= renewed.until_ns;
        // where programs listen to events, their questions delay answers by seconds without a fault
        let is_timely = !self.plan.listens;
        if at - renewed.ill > well_ns && renewed.is_wanted && !is_bounded && is_timely {
            let ill = renewed.ill;
            self.fail(format!("renewal: client {c} loses lock {l}, and was well since {ill}"));
        }
        self.renewal_unwanted(c, l);
        self.oracle.ended(l, who);
    }

    fn begins_renewal(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let renewed = self.thread(c, l).renewed;
        if !renewed.is_wanted {
            return self.fail(format!("renewal: nobody wants lock {l} of client {c} renewed"));
        }
        if now.local_ns >= renewed.until_ns {
            return self.fail(format!("renewal: of lock {l} of client {c} beyond its bound"));
        }
        let Some(entry) = self.thread(c, l).entry.as_mut() else { return };
        let Some(operation) = Operation::renew(entry, now) else { return };
        let op = operation.op();
        self.log(|| format!("client {c} lock {l}: renews by {op:?}"));
        self.calls(c, l, op);
        self.started(c, l, Started::Running(operation));
    }

    /// Handles the result of a renewal. Returns whether the checker judges it like the result of an
    /// extend: yes if it was renewed, because the library then relies on the hold for its program.
    pub(super) fn renewal_told(&mut self, c: usize, l: usize, result: OpResult) -> bool {
        let (who, now) = (self.who(c), self.thread_now(c, l));
        let Some(entry) = self.clients[c].threads[l].entry.as_ref() else { return false };
        if entry.is_lost() {
            self.renewal_unwanted(c, l);
            self.oracle.ended(l, who);
            return false;
        }
        result.status == Status::Success && lease::runs(entry, now)
    }

    /// The program goes on as it would have without the renewal.
    pub(super) fn resumes(&mut self, c: usize, l: usize) {
        let at = self.thread(c, l).renewed.resumes;
        let ns = at.saturating_sub(self.now).max(1);
        self.step_after(c, l, ns);
    }
}
