// SPDX-License-Identifier: MIT OR Apache-2.0
//! After the faults: everything is healed, each client must be granted once within its bound, and
//! at the end words, ledgers and tables must be as if no client had ever been there.

use std::panic::{catch_unwind, AssertUnwindSafe};

use dlock_core::clock::{Deadline, NS};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord};
use dlock_core::primary::Event;
use dlock_core::wire::message::LockType;

use super::object::Waits;
use super::server::World;
use super::state::{Doing, Ev, Goal, Life};
use super::EVENTS_MAX;

/// All clients are back, and have released everything, within this time: the longest outage, the
/// grace of absent clients, one recovery.
const DRAIN_NS_MAX: u64 = 120 * NS;
/// Messages under way arrive within this time.
const ARRIVES_NS_MAX: u64 = 5 * NS;
/// A recovery for clients with a horizon is over within this time, whichever clients are stopped:
/// the longest deadline, the time for a client to report everything, its horizon, and the longest
/// outage.
const RECOVERY_NS_MAX: u64 = 120 * NS;
/// A waiter is granted within this time: leases end, and every ticket before it may need its grace.
const GRANT_NS_MAX: u64 = 120 * NS;

impl World {
    /// Heals everything, and checks the rest.
    pub(super) fn settle(&mut self) {
        self.recovery_ends();
        if self.sys.violation.is_some() {
            return;
        }
        self.set_rules(true);
        self.drain_ends();
        self.watches.iter_mut().for_each(|watch| watch.apart_until = 0);
        let sys = &mut self.sys;
        sys.calm = true;
        sys.frozen_until = sys.now;
        sys.log(|| "heal".to_string());
        for c in 0..sys.clients.len() {
            sys.guest_goes_on(c);
            let client = &mut sys.clients[c];
            client.paused_until = sys.now;
            client.blocked_up = sys.now;
            client.blocked_down = sys.now;
            client.clock_at = sys.now;
            let queued = client.up.len() + client.down.len();
            let asked = client.control_up.len() + client.control_down.len();
            (client.up_last, client.down_last) = (sys.now, sys.now);
            // arrivals are scheduled again below, because those scheduled before may come too late
            client.up_events = 0;
            (client.control_up_last, client.control_down_last) = (sys.now, sys.now);
            for i in 0..(queued * dlock_core::memory::word_op::CHAIN_OPS_MAX) as u64 {
                sys.up_at(c, sys.now + i); // messages that a fault has delayed arrive now
                sys.after(i, Ev::Down(c as u8));
            }
            for i in 0..asked as u64 {
                sys.after(i, Ev::ControlUp(c as u8));
                sys.after(i, Ev::ControlDown(c as u8));
            }
            let client = &mut sys.clients[c];
            let sleeps = client.control == super::control::Stage::Sleep;
            let client = &sys.clients[c];
            if client.life == Life::Dead {
                sys.restart(c);
            } else if sleeps {
                sys.control_soon(c, false);
            }
        }
        let goals = [
            (Goal::Drain, DRAIN_NS_MAX),
            (Goal::Acquire, GRANT_NS_MAX),
            (Goal::Free, GRANT_NS_MAX),
            (Goal::Rest, GRANT_NS_MAX),
        ];
        for (goal, bound) in goals {
            self.reach(goal, bound);
            if goal == Goal::Drain {
                self.nothing_is_kept();
            }
            if self.sys.violation.is_some() {
                return;
            }
        }
        // clients that are gone are fenced after their grace, and the last messages arrive
        let last = self.sys.now + self.sys.plan.grace_ns + 60 * NS;
        let mut end = last;
        while self.sys.violation.is_none() {
            // a client that was silent for too long before may still be removed, and comes back
            end = match self.is_complete() {
                true => end.min(self.sys.now + NS),
                false => last,
            };
            if self.sys.peek().is_none_or(|at| at > end) {
                break;
            }
            self.operator();
            self.turn();
        }
        if let Err(why) = self.quiescent() {
            self.sys.fail(why);
        }
    }

    /// Checks that a stopped client with a horizon delays the others for a bounded time only.
    fn recovery_ends(&mut self) {
        let until = self.sys.now + RECOVERY_NS_MAX;
        if self.sys.clients.iter().all(|client| client.paused_until < until) {
            return;
        }
        let is_bounded = self.sys.plan.horizon_s > 0;
        while is_bounded && self.recovers() && self.sys.violation.is_none() {
            if self.sys.peek().is_none_or(|at| at > until) {
                return self.sys.fail("liveness: a recovery does not end".to_string());
            }
            self.turn();
        }
    }

    /// Whether the clients are exactly the members.
    fn is_complete(&self) -> bool {
        let all = self.sys.clients.len();
        let is_up = |client: &super::state::Client| client.life == Life::Up;
        let is_present = |(_, state)| state == dlock_core::membership::State::Present;
        self.sys.sessions.len() == all
            && self.states().len() == all
            && self.states().into_iter().all(is_present)
            && self.sys.clients.iter().all(is_up)
    }

    fn reach(&mut self, goal: Goal, bound: u64) {
        self.sys.goal = goal;
        let until = self.sys.now + bound;
        for c in 0..self.sys.clients.len() {
            for l in 0..self.sys.clients[c].threads.len() {
                let t = self.sys.thread(c, l);
                t.attempts = 0;
                if t.doing == Doing::Idle {
                    t.tok = t.tok.wrapping_add(1);
                    self.sys.step_after(c, l, 1_000);
                }
            }
            for o in 0..self.sys.clients[c].objects.len() {
                let t = self.sys.object(c, o);
                t.aim();
                if t.waits == Waits::Nothing {
                    t.tok = t.tok.wrapping_add(1);
                    self.sys.object_after(c, o, 1_000);
                }
            }
        }
        let threads = 1 + self.sys.plan.locks.len() as u64 / 4;
        let events_max = self.sys.events + EVENTS_MAX * threads;
        loop {
            let missing = self.missing(goal);
            if missing.is_none() || self.sys.violation.is_some() {
                return;
            }
            let next = self.sys.peek();
            let over = next.is_none_or(|at| at > until) || self.sys.events > events_max;
            if let (true, Some((c, l))) = (over, missing) {
                let client = &self.sys.clients[c];
                let what = match self.sys.object_of(l) {
                    Some(o) => format!("object {o}: {:?}", client.objects[o]),
                    None => format!(
                        "lock {l}: {:?} {:?}",
                        client.threads[l].doing, client.threads[l].op
                    ),
                };
                let why = format!(
                    "liveness: client {c} did not come to {goal:?} with {what}: {:?}",
                    client.life
                );
                return self.sys.fail(why);
            }
            self.operator();
            self.turn();
        }
    }

    /// Removes clients without a horizon that will not come back, as an operator does: nothing else
    /// ends what they hold.
    fn operator(&mut self) {
        if self.sys.plan.horizon_s > 0 || self.primary.is_none() {
            return;
        }
        let is_absent = |state| matches!(state, dlock_core::membership::State::Absent { .. });
        let is_nobodys = |s: &&super::state::Session| {
            let client = &self.sys.clients[usize::from(s.client)];
            client.inc != s.inc || client.id != Some(s.id)
        };
        let mut nobodys = self.sys.sessions.iter().filter(is_nobodys).map(|s| s.id);
        let absent = nobodys.find(|&id| self.state(id).is_some_and(is_absent));
        if let Some(id) = absent {
            self.sys.log(|| format!("an operator removes {}", id.get()));
            self.tells(Event::removes(id));
            self.finish_turn();
            self.schedule_tick();
        }
    }

    fn recovers(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.locks().is_recovering())
    }

    /// Whether clients cannot resolve what is in doubt now: there is no primary that serves all of
    /// them, or one of them has not released everything.
    fn is_busy(&self) -> bool {
        // the primary is frozen, and has not heard the client's request
        let is_put_off = self.sys.now < self.sys.put_off_until;
        let is_away = self.primary.is_none() || self.recovers();
        is_put_off || is_away || !self.is_complete() || self.missing(Goal::Drain).is_some()
    }

    /// Checks that a client which has released everything has no turn at the primary. Only clients
    /// with failover by the library are checked: others keep what is in doubt until their next
    /// operation on the lock. A primary that recovers gives nothing, and undoes nothing.
    fn nothing_is_kept(&mut self) {
        if !self.sys.plan.by_itself {
            return;
        }
        let (mut since, until) = (self.sys.now, self.sys.now + DRAIN_NS_MAX);
        while self.sys.violation.is_none() && self.sys.now - since < ARRIVES_NS_MAX {
            if self.sys.peek().is_none_or(|at| at > until) {
                return; // clients keep coming and going, so there is no quiet moment to check
            }
            let was_busy = self.is_busy();
            self.operator();
            self.turn();
            if was_busy || self.is_busy() {
                since = self.sys.now;
            }
        }
        let Some(primary) = &self.primary else { return };
        let now = self.sys.server_now();
        for l in 0..self.sys.plan.locks.len() {
            let Some(slot) = self.sys.slot_of(l, primary) else { continue };
            let word = without_mark(
                self.sys.lock_word(slot, self.sys.plan.locks[l]),
                self.sys.plan.locks[l],
            );
            for c in 0..self.sys.clients.len() {
                let Some(id) = self.sys.clients[c].id else { continue };
                let until = match self.sys.plan.locks[l] {
                    LockType::Fair => primary.locks().arbiter().turn_until(&mut self.sys, slot, id),
                    // the client may be one of the readers, which the word does not name
                    LockType::Rw => (word != 0).then_some(Deadline::NEVER),
                    LockType::Atomic => {
                        let word = AtomicWord::from_bits(word);
                        (word.client() == id.get()).then_some(word.timeout())
                    }
                };
                if until.is_some_and(|until| until.expiry() > now) {
                    let why = format!("liveness: client {c} has given lock {l} up, and keeps it");
                    return self.sys.fail(format!("{why}: {word:#x}"));
                }
            }
        }
    }

    /// The client and the number of a thread that has not reached this goal.
    fn missing(&self, goal: Goal) -> Option<(usize, usize)> {
        self.sys.clients.iter().enumerate().find_map(|(c, client)| {
            let known =
                |s: &super::state::Session| Some(s.id) == client.id && s.conn == client.conn;
            let known = self.sys.sessions.iter().any(known);
            let up = client.life == Life::Up && known;
            let back = |t: &super::state::Thread| up && t.entry.is_some();
            let knows = client.clock.now(self.sys.now).uncertainty_ns < NS / 10;
            let at = client.threads.iter().position(|t| t.goal < goal || !back(t) || !knows);
            let object = client.objects.iter().position(|t| t.goal < goal);
            let at = at.or(object.map(|o| client.threads.len() + o));
            at.map(|l| (c, l))
        })
    }

    /// Checks that nothing is held, queued, or left behind.
    fn quiescent(&mut self) -> Result<(), String> {
        let sys = &mut self.sys;
        let Some(primary) = &self.primary else { return Err("no primary".to_string()) };
        for l in 0..sys.plan.locks.len() {
            for c in 0..sys.clients.len() {
                let entry = sys.clients[c].threads[l].entry.as_ref();
                let (Some(entry), Some(id)) = (entry, sys.clients[c].id) else { continue };
                let (slot, handle) = (entry.slot(), entry.handle());
                let word = without_mark(sys.lock_word(slot, sys.plan.locks[l]), sys.plan.locks[l]);
                let clean = match sys.plan.locks[l] {
                    LockType::Fair => {
                        let (taken, turn) = sys.fair_words(slot);
                        (taken.mx(), taken.ms()) == (turn.nx(), turn.ns())
                    }
                    _ => word == 0,
                };
                if !clean {
                    return Err(format!("quiescence: lock {l} is free, its word is {word:#x}"));
                }
                if entry.has_ledger_write() {
                    return Err(format!("quiescence: client {c} has a note left: {entry:?}"));
                }
                if primary.locks().arbiter().waiters(slot) > 0 {
                    return Err(format!("quiescence: somebody is queued for lock {l}"));
                }
                let note = LedgerEntry::from_bits(sys.memory.entry(id, handle));
                if note.state() != LedgerState::None {
                    return Err(format!("quiescence: client {c} has nothing, and notes {note:?}"));
                }
            }
        }
        let lingering = (0..sys.plan.objects).filter(|&o| sys.object_lingers(o)).count();
        let (clients, locks, objects) = primary.locks().totals();
        let expected = (sys.clients.len(), sys.plan.locks.len());
        if (clients, locks) != expected || objects > lingering {
            return Err(format!(
                "quiescence: {clients} clients, {locks} locks, {objects} objects; {expected:?}"
            ));
        }
        sys.oracle.objects.check()?;
        for known in primary.locks().clients_snapshot() {
            let mut clients = sys.clients.iter().filter(|c| c.id == Some(known.client));
            let unsure = clients.any(|c| c.objects.iter().any(|t| t.unsure));
            if known.handles != sys.plan.locks.len() && !unsure {
                return Err(format!("quiescence: {known:?}, and everything was given back"));
            }
        }
        match catch_unwind(AssertUnwindSafe(|| primary.assert_consistent())) {
            Ok(result) => result,
            Err(_) => Err("quiescence: the primary's tables disagree".to_string()),
        }
    }
}

/// The word of a lock without the mark that a client may keep it, which may be left of a read-write
/// lock that no client keeps any more.
fn without_mark(word: u64, lock_type: LockType) -> u64 {
    match lock_type {
        LockType::Rw => RwWord::from_bits(word).with_kept(false).into_bits(),
        LockType::Atomic | LockType::Fair => word,
    }
}
