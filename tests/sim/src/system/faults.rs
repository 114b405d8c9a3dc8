// SPDX-License-Identifier: MIT OR Apache-2.0
//! The faults, and what each does to the world.

use dlock_core::clock::NS;
use dlock_core::limits::FAIR_DIVERT;
use dlock_core::lock::LockEntry;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::memory::words::{LedgerEntry, LedgerState};
use dlock_core::wire::message::LockType;

use super::coverage::Action;
use super::plan::{Fabric, Fault};
use super::server::{World, EXITED};
use super::state::{Doing, Ev, Life, Sys, Unit};

/// Of a thousand requests to join, those that fail because the primary's host has no memory for the
/// client.
const NO_MEMORY: u32 = 10;
/// Of a thousand new sessions, those whose last answer is lost; and the same of a thousand sessions
/// that a client requests after such a loss.
const CUT: u32 = 20;
const CUT_AGAIN: u32 = 500;
/// Of a thousand connections, those whose end the primary notices late, and how late.
const LATE_END: u32 = 300;
const LATE_END_NS: u64 = 4 * NS;
/// Of a thousand clients that come to a recovering primary and map its memory, those that are
/// stopped then for longer than any recovery may take.
const STOPPED: u32 = 20;
const STOPPED_NS: u64 = 300 * NS;

impl Sys {
    /// An action begins: counts it together with every fault that lasts.
    pub(super) fn cover(&mut self, action: Action, c: usize) {
        use Action as A;
        if matches!(
            action,
            A::Join
                | A::Rejoin
                | A::Get
                | A::Release
                | A::Claim
                | A::ObjectCreate
                | A::ObjectGet
                | A::ObjectRelease
                | A::ObjectDestroy
        ) {
            self.clients[c].control_action = action;
        }
        if self.calm {
            return;
        }
        for (fault, _) in super::plan::FAULTS {
            if self.active[fault as usize] > self.now {
                self.cover.count(action, fault);
            }
        }
    }

    /// A fault begins: counts it once for every action that is under way at any client.
    pub(super) fn struck(&mut self, fault: Fault, at: usize) {
        self.log(|| format!("FAULT {fault:?} at client {at}"));
        self.mix(0xfa << 32 ^ fault as u64);
        for c in 0..self.clients.len() {
            for l in 0..self.clients[c].threads.len() {
                let t = &self.clients[c].threads[l];
                let action = match (t.doing, &t.entry) {
                    (Doing::Nothing | Doing::Control, _) => None,
                    (Doing::Idle, Some(e)) if e.refs() > 0 => Some(Action::Hold),
                    // abandoning a ticket has no answer, so it counts as under way until the next
                    // operation
                    (Doing::Idle, _) => Some(t.action).filter(|a| *a == Action::Abandon),
                    _ => Some(t.action),
                };
                if let Some(action) = action {
                    self.cover.count(action, fault);
                }
            }
            for o in 0..self.clients[c].objects.len() {
                let t = &self.clients[c].objects[o];
                if let super::object::Waits::Chain(_) = t.waits {
                    self.cover.count(t.action, fault);
                }
            }
            if let super::control::Stage::Answer(_) = self.clients[c].control {
                self.cover.count(self.clients[c].control_action, fault);
            }
        }
    }

    fn lasts(&mut self, fault: Fault, until: u64) {
        let active = &mut self.active[fault as usize];
        *active = until.max(*active);
    }

    /// Draws how long a process or a connection stands still: mostly shorter than a lease,
    /// sometimes longer.
    fn outage(&mut self) -> u64 {
        match self.rng.below(5) {
            0 => self.rng.below(1_000_000),
            1 => self.rng.below(1_000_000_000),
            2 => self.rng.below(3_000_000_000),
            _ => self.rng.below(1_400_000_000 * u64::from(self.plan.lease_max_s)),
        }
    }

    /// Whether the new connection breaks before its last answer: seldom, but often when the
    /// client's connection before it broke in the same way.
    pub(super) fn is_cut(&mut self, c: usize) -> bool {
        let chance = if self.clients[c].is_cut { CUT_AGAIN } else { CUT };
        let is_cut = !self.calm && self.rng.chance(chance);
        self.clients[c].is_cut = is_cut;
        is_cut
    }

    /// Whether the process is stopped while it has the memory mapped, so that it cannot be fenced.
    pub(super) fn is_stopped(&mut self, c: usize) -> bool {
        let is_mapping = self.clients[c].fabric == Fabric::Shm && !self.calm;
        let is_stopped = is_mapping && self.rng.chance(STOPPED);
        if is_stopped {
            self.clients[c].paused_until = self.now + STOPPED_NS;
        }
        is_stopped
    }

    /// Whether the primary's host has no memory for another client now.
    pub(super) fn has_no_memory(&mut self) -> bool {
        !self.calm && self.rng.chance(NO_MEMORY)
    }

    /// The time at which the primary notices that a client's connection has ended.
    pub(super) fn ends_for_the_primary(&mut self, c: usize) -> u64 {
        let ns = match self.rng.chance(LATE_END) {
            true => self.rng.below(LATE_END_NS),
            false => self.takes(10_000),
        };
        (self.now + ns).max(self.clients[c].blocked_up)
    }

    /// Ends the process of a client. Messages that it has sent may still arrive.
    pub(super) fn reset_process(&mut self, c: usize) {
        let (who, inc) = (self.who(c), self.clients[c].inc);
        let has_mapped = |s: &super::state::Session| s.process != 0 || s.mapped;
        let is_local = self.clients[c].fabric == super::plan::Fabric::Shm;
        // the primary sees the end of a process that has mapped the memory
        match is_local || self.sessions_of(c, inc).any(has_mapped) {
            true => self.oracle.gone(who),
            false => self.oracle.orphaned(who),
        }
        let cut = self.rng.below(self.clients[c].up.len() as u64 + 1) as usize;
        let client = &mut self.clients[c];
        client.up.truncate(cut);
        self.hang_up(c);
        let client = &mut self.clients[c];
        client.inc += 1;
        (client.id, client.gen, client.life) = (None, 0, Life::Dead);
        (client.lapses, client.failover) = (0, None);
        client.strayed = false;
        (client.session, client.renewal) = (None, Default::default());
        client.releases.clear();
        client.control = super::control::Stage::Sleep;
        client.control_tok += 1;
        client.epoch = 0;
        client.object_asks.clear();
        client.stragglers.clear();
        client.batch = None;
        client.objects.iter_mut().for_each(super::object::ObjectThread::reset);
        for t in &mut client.threads {
            t.tok = t.tok.wrapping_add(1);
            (t.entry, t.operation, t.first) = (None, None, None);
            (t.chain, t.outcome) = (None, None);
            (t.asked, t.answer, t.ping, t.async_until) = (None, None, None, 0);
            (t.polled, t.judged, t.at_once, t.moves) = (false, false, false, false);
            t.lapse = false;
            t.doing = Doing::Nothing;
        }
    }

    /// Ends a client's process; another one takes its place later.
    pub(super) fn exit(&mut self, c: usize) {
        let inc = self.clients[c].inc;
        self.reset_process(c);
        let delay = self.takes(50_000);
        let at = (self.now + delay).max(self.clients[c].blocked_up);
        self.at(at, Ev::Lost(c as u8, inc, EXITED));
        let ns = self.rng.pick(&[1_000, 1_000_000, 1_000_000_000, 4_000_000_000]);
        let ns = if self.calm { 1_000_000 } else { ns };
        self.after(ns, Ev::Restart(c as u8));
    }

    /// Starts a new client process in the place of one that has ended.
    pub(super) fn restart(&mut self, c: usize) {
        if self.clients[c].life == Life::Dead {
            self.clients[c].life = Life::Joining;
            self.clients[c].connects();
            self.control_soon(c, false);
        }
    }

    fn break_control(&mut self, c: usize) {
        let (inc, conn) = (self.clients[c].inc, self.clients[c].conn);
        let ns = self.takes(20_000);
        let at = (self.now + ns).max(self.clients[c].blocked_up);
        self.at(at, Ev::Lost(c as u8, inc, conn));
        if self.clients[c].life == Life::Up {
            self.clients[c].renewal.goes_on_alone();
            self.clients[c].connects();
            self.clients[c].life = Life::Broken;
            self.clients[c].gen = 0;
            self.flush(c);
            self.control_soon(c, true);
        }
    }

    fn partition(&mut self, fault: Fault, c: usize, up: bool, down: bool) {
        let ns = match self.rng.below(3) {
            0 => self.rng.below(2_000_000_000),
            _ => self.rng.below(self.plan.grace_ns * 2 + 2_000_000_000),
        };
        let until = self.now + ns;
        let client = &mut self.clients[c];
        let (inc, conn) = (client.inc, client.conn);
        if up {
            client.blocked_up = client.blocked_up.max(until);
        }
        if down {
            client.blocked_down = client.blocked_down.max(until);
        }
        self.lasts(fault, until);
        // during a long outage the keepalive of either side may give the connection up
        if self.rng.chance(700) {
            let after = self.rng.below(ns + 1);
            self.after(after, Ev::Silent(c as u8, inc, conn));
        }
    }

    /// Stops a client for longer than any lease that it has requested. A clock that does not count
    /// suspended time (a planted bug) is wrong by that time afterwards.
    fn stands_still(&mut self, fault: Fault, c: usize) {
        let lease_ns = u64::from(self.plan.lease_max_s) * NS;
        let ns = lease_ns + self.rng.range(NS, 4 * NS);
        let client = &mut self.clients[c];
        let is_suspended = fault == Fault::Suspend && client.fabric != Fabric::Shm;
        if is_suspended && self.bugs.monotonic_clock {
            client.clock.base -= ns as i64;
        }
        client.paused_until = client.paused_until.max(self.now) + ns;
        let until = client.paused_until;
        self.lasts(fault, until);
    }

    /// Uses up most ticket numbers of a free fair lock, so that the arbiter gives out the next
    /// tickets, now or soon.
    fn lap(&mut self) {
        let l = self.rng.below(self.plan.locks.len() as u64) as usize;
        let known = |client: &super::state::Client| {
            let entry = client.threads[l].entry.as_ref()?;
            Some(entry.slot())
        };
        let known: Vec<_> = self.clients.iter().filter_map(known).collect();
        if known.is_empty() || self.plan.locks[l] != LockType::Fair || !self.alive {
            return;
        }
        let slot = self.rng.pick(&known);
        let before = self.rng.pick(&[0, 1, 2, 9, 0x100]);
        let (taken, turn) = self.fair_words(slot);
        let is_free = (taken.mx(), taken.ms()) == (turn.nx(), turn.ns());
        if !is_free {
            return;
        }
        // the counters of both lanes only ever grow
        let to = FAIR_DIVERT - before;
        let (x, s) = match self.rng.below(3) {
            0 => (to.max(taken.mx()), taken.ms()),
            1 => (taken.mx(), to.max(taken.ms())),
            _ => (to.max(taken.mx()), to.max(taken.ms())),
        };
        *self.memory.word(Sys::w0(slot)) = taken.with_mx(x).with_ms(s).into_bits();
        let turn = turn.with_nx(x).with_ns(s).into_bits();
        *self.memory.word(WordAddr::new(slot, Word::W1)) = turn;
        self.log(|| format!("FAULT Lap of lock {l}: the next ticket is {x:#x}, {s:#x}"));
    }
}

impl Sys {
    /// Breaks a client's channel so that the ledger write for a shared hold is lost, which the
    /// client's chain has already taken. Or, later, stops or ends a client whose ledger announces a
    /// ticket.
    fn stray(&mut self, c: usize) {
        let client = &self.clients[c];
        let is_share = |unit: &Unit| match unit {
            Unit::Note { entry, .. } => entry.state() == LedgerState::HeldShared,
            _ => false,
        };
        let at = client.up.iter().position(|(.., unit)| is_share(unit));
        if let Some(at) = at.filter(|_| client.life == Life::Up && !client.strayed) {
            self.clients[c].up.truncate(at);
            self.clients[c].strayed = true;
            self.break_command(c);
            if self.plan.rests > 0 && self.rng.chance(600) {
                self.stands_still(Fault::Standstill, c);
            }
            return;
        }
        let announces = |entry: &LockEntry| {
            let note = client.id.map(|id| self.memory.entry(id, entry.handle()));
            let claims = note.and_then(|bits| LedgerEntry::from_bits(bits).claims());
            entry.lock_type() == LockType::Fair && claims.is_some()
        };
        let mut entries = client.threads.iter().filter_map(|t| t.entry.as_ref());
        if !client.strayed || client.fabric == Fabric::Tcp || !entries.any(announces) {
            return;
        }
        self.clients[c].strayed = false;
        match self.rng.below(3) {
            0 => self.exit(c),
            _ => self.clients[c].paused_until = self.now + self.outage(),
        }
    }
}

impl Sys {
    /// Whether the primary is there to learn of a revocation. A client without a horizon is not
    /// protected, and may claim at a successor a hold that has ended.
    fn may_revoke(&self) -> bool {
        self.alive && self.frozen_until <= self.now && self.plan.horizon_s > 0
    }
}

impl World {
    /// Whether a successor would learn of every client: none of them is being removed.
    pub(super) fn everybody_comes(&self) -> bool {
        use dlock_core::membership::State as S;
        let may_return =
            |s: S| matches!(s, S::Present | S::Absent { .. } | S::Fenced(_) | S::Lingering { .. });
        self.sys.clients.iter().all(|client| {
            let asks = client.control != super::control::Stage::Sleep;
            let state = client.id.and_then(|id| self.state(id));
            client.id.is_none() || state.is_some_and(may_return) || state.is_none() && !asks
        })
    }

    /// Makes one fault happen, if one is due.
    pub fn fault(&mut self) {
        let everybody_comes = self.everybody_comes();
        let sys = &mut self.sys;
        if sys.plan.fault_every == 0 || sys.rng.below(sys.plan.fault_every) != 0 {
            return;
        }
        let fault = sys.rng.pick(sys.plan.faults);
        let c = sys.rng.below(sys.clients.len() as u64) as usize;
        let remote = sys.clients[c].fabric != Fabric::Shm;
        let life = sys.clients[c].life;
        // a recovery waits without end for a client without a horizon, so none may vanish meanwhile
        let is_awaited = sys.recovering && sys.plan.horizon_s == 0;
        let may_go = sys.alive && !is_awaited && life != Life::Dead;
        match fault {
            Fault::Crash if may_go => {
                sys.struck(fault, c);
                sys.exit(c);
            }
            Fault::CrashPrimary if sys.alive && everybody_comes => {
                sys.struck(fault, c);
                self.crash_primary();
            }
            Fault::Pause if sys.clients[c].clock.jumped <= sys.now => {
                let ns = sys.outage();
                sys.struck(fault, c);
                sys.clients[c].paused_until = sys.now + ns;
                sys.lasts(fault, sys.now + ns);
            }
            Fault::Standstill | Fault::Suspend => {
                sys.struck(fault, c);
                sys.stands_still(fault, c);
            }
            Fault::Flood => sys.floods(c),
            Fault::Promote if sys.alive => self.promotes(),
            Fault::Apart => {
                let until = sys.now + sys.outage();
                let w = sys.rng.below(self.watches.len().max(1) as u64) as usize;
                if let Some(watch) = self.watches.get_mut(w) {
                    watch.apart_until = until;
                }
            }
            Fault::Jump => sys.guest_is_paused(c),
            Fault::Operate if sys.may_revoke() => self.operates(c),
            Fault::Rules if sys.may_revoke() => self.set_rules(false),
            Fault::Lap => sys.lap(),
            Fault::Stray if may_go => sys.stray(c),
            Fault::Freeze if sys.alive => {
                let ns = sys.outage();
                sys.struck(fault, c);
                sys.frozen_until = sys.frozen_until.max(sys.now + ns);
                sys.put_off_until = sys.put_off_until.max(sys.frozen_until);
                sys.lasts(fault, sys.now + ns);
            }
            Fault::PartitionUp | Fault::PartitionDown | Fault::PartitionBoth if remote => {
                sys.struck(fault, c);
                let (up, down) = (fault != Fault::PartitionDown, fault != Fault::PartitionUp);
                sys.partition(fault, c, up, down);
            }
            Fault::BreakControl if life == Life::Up && !sys.clients[c].renewal.is_beside() => {
                sys.struck(fault, c);
                sys.break_control(c);
            }
            Fault::BreakCommand if life == Life::Up && remote => {
                sys.struck(fault, c);
                sys.break_command(c);
            }
            Fault::WallStep => {
                sys.struck(fault, c);
                let step = sys.rng.below(20_000_000_000) as i64 - 10_000_000_000;
                sys.clients[c].clock.wall_step += step;
            }
            Fault::Revoke if sys.may_revoke() && life == Life::Up => {
                sys.struck(fault, c);
                self.revoke(c);
            }
            Fault::SlowReader if life == Life::Up && remote => {
                let ns = sys.rng.range(1_000_000_000, 8_000_000_000);
                sys.struck(fault, c);
                let until = sys.now + ns;
                sys.clients[c].blocked_down = sys.clients[c].blocked_down.max(until);
                sys.lasts(fault, until);
                let (inc, gen) = (sys.clients[c].inc, sys.clients[c].gen);
                sys.after(5_000_000_000, Ev::Stalled(c as u8, inc, gen));
            }
            Fault::Leave if may_go && life == Life::Up && !sys.clients[c].renewal.is_beside() => {
                sys.struck(fault, c);
                sys.clients[c].life = Life::Leaving;
                sys.control_wake(c);
            }
            Fault::Slow if remote => {
                let ns = sys.rng.below(9_000_000_000);
                sys.struck(fault, c);
                let until = sys.now + ns;
                sys.clients[c].up_last = sys.clients[c].up_last.max(until);
                sys.lasts(fault, until);
            }
            _ => {}
        }
    }
}
