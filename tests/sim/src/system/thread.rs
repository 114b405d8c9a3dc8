// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's thread drives one operation after the other on its lock, as `dlock-client` does.
//!
//! ```text
//!   begin ─▶ fast | chain ─▶ outcome ─▶ … ─▶ finish        a lost answer: Unknown, then an undo
//!                   request ─▶ reply            that nobody waits for
//! ```

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::lock::{Begin, EntryState, Machine, Op, OpResult, Step, View};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, Values, Word, WordAddr};
use dlock_core::words::RwWord;

use super::batch::Rung;
use super::coverage::Action;
use super::plan::Fabric;
use super::state::{code, Doing, Ev, Frame, Life, Sys, Thread, Unit};

const DATA_WAIT_NS: u64 = LOCK_WAIT_S * NS;
const CANCEL_WAIT_NS: u64 = NS;

impl Sys {
    pub(super) fn who(&self, c: usize) -> u64 {
        (c as u64) << 32 | u64::from(self.clients[c].inc)
    }

    /// The server clock as this client knows it.
    pub(super) fn client_now(&self, c: usize) -> Now {
        let clock = &self.clients[c].clock;
        let mut now = clock.now(self.now);
        let error = now.time.0.abs_diff(self.server_now().0);
        let known = self.clients[c].epoch == self.epoch && self.alive;
        debug_assert!(!known || error <= now.uncertainty_ns + 1_000, "{error} {now:?}");
        if self.bugs.wall_clock {
            now.time.0 = (now.time.0 as i64 + clock.wall_step) as u64;
        }
        if self.bugs.no_uncertainty {
            now.uncertainty_ns = 0;
        }
        now
    }

    pub(super) fn thread(&mut self, c: usize, l: usize) -> &mut Thread {
        &mut self.clients[c].threads[l]
    }

    /// The thread goes on to a new state; what it waited for before is not waited for any more.
    fn enter(&mut self, c: usize, l: usize, doing: Doing) -> u32 {
        let t = self.thread(c, l);
        t.tok = t.tok.wrapping_add(1);
        t.doing = doing;
        t.tok
    }

    pub(super) fn step_after(&mut self, c: usize, l: usize, ns: u64) {
        let inc = self.clients[c].inc;
        let tok = self.thread(c, l).tok;
        self.after(ns, Ev::Step(c as u8, inc, l as u8, tok));
    }

    pub(super) fn begin(&mut self, c: usize, l: usize, op: Op) {
        let now = self.client_now(c);
        let (true_now, who) = (self.now, self.who(c));
        let uses_fast = self.rng.chance(700) && self.thread(c, l).async_until == 0;
        let calm = self.calm;
        let short = self.rng.chance(self.plan.impatience);
        let patience = match (calm, short) {
            (true, _) => u64::MAX / 2,
            (_, true) => self.rng.below(30_000_000),
            _ => DATA_WAIT_NS,
        };
        self.log(|| format!("client {c} lock {l}: {op:?}"));
        let Some(entry) = self.clients[c].threads[l].entry.as_mut() else { return };
        if op == Op::Unlock && entry.refs() <= 1 {
            self.oracle.ended(l, who);
        }
        let fast = if uses_fast { entry.fast(op, now) } else { None };
        let t = &mut self.clients[c].threads[l];
        (t.op, t.since, t.patience) = (op, true_now, true_now.saturating_add(patience));
        if let Some(cas) = fast {
            return self.post(c, l, Chain::one(cas.verb()), Doing::Fast { cas, now });
        }
        let Some(entry) = t.entry.as_mut() else { return };
        match entry.begin(op, now) {
            Begin::Local(result) => {
                self.write_note(c, l);
                self.finish(c, l, result);
            }
            Begin::Run(machine, step) => {
                t.machine = Some(machine);
                self.follow(c, l, step, true);
            }
        }
    }

    /// Whether a note is on its way.
    pub(super) fn write_note(&mut self, c: usize, l: usize) -> bool {
        let client = &mut self.clients[c];
        let t = &mut client.threads[l];
        let Some(entry) = t.entry.as_mut() else { return false };
        let (Some(note), Some(id)) = (entry.take_note(), client.id) else { return false };
        if t.epoch != client.epoch {
            return false;
        }
        let (handle, tok, epoch) = (entry.handle(), t.tok.wrapping_add(1), t.epoch);
        match client.fabric {
            Fabric::Shm => {
                let verb = dlock_core::verb::Verb::Note { handle, value: note.into_bits() };
                self.verb(epoch, id, &verb);
            }
            _ => self.send_up(c, Unit::Note { lock: l as u8, tok, handle, entry: note }),
        }
        true
    }

    /// Does what the machine wants. `first`: the operation has just begun.
    fn follow(&mut self, c: usize, l: usize, step: Step, first: bool) {
        let noted = self.write_note(c, l);
        match step {
            Step::Done(result) => self.finish(c, l, result),
            Step::Confirm => {
                let waits = noted && self.clients[c].fabric == Fabric::Verbs && !self.bugs.no_ack;
                self.enter(c, l, Doing::Confirm);
                if waits {
                    self.timer_at(c, l, self.now + DATA_WAIT_NS);
                } else {
                    let ns = self.takes(100);
                    self.step_after(c, l, ns);
                }
            }
            Step::Chain(chain) => {
                let now = self.client_now(c);
                let is_fair = self.plan.locks[l] == LockType::Fair;
                // the rounds of a batch, and who asks later, know the time by then only
                let late = self.doorbell.is_some() || self.thread(c, l).async_until > 0;
                let fresh = late || is_fair && (first || !self.bugs.stale_clock);
                self.post(c, l, chain, Doing::Chain { now, fresh });
            }
            Step::Request(request) => self.request(c, l, request),
        }
    }

    fn request(&mut self, c: usize, l: usize, request: Request) {
        let client = &self.clients[c];
        let refused = if client.threads[l].epoch != client.epoch {
            Some(Ok(Reply::Denied { status: Status::NotReady, word: 0 }))
        } else if client.life != Life::Up && client.life != Life::Leaving {
            Some(Err(Status::BadResponse))
        } else {
            None
        };
        if let Some(reply) = refused {
            return self.reply(c, l, reply);
        }
        if matches!(request, Request::Resolve { .. }) {
            self.thread(c, l).action = Action::Resolve;
            self.cover(Action::Resolve, c);
        }
        let seq = self.send_request(c, request);
        if !request.has_reply() {
            self.thread(c, l).unflushed = true;
            return self.reply(c, l, Ok(Reply::Done { word: 0 }));
        }
        let wait = matches!(request, Request::Wait { .. });
        self.enter(c, l, Doing::Reply { seq, wait, cancelled: false });
        let until = if wait { self.thread(c, l).patience } else { self.now + DATA_WAIT_NS };
        self.expects(c, l, until);
    }

    pub(super) fn send_request(&mut self, c: usize, request: Request) -> Seq {
        self.clients[c].seq += 1;
        let seq = Seq(self.clients[c].seq);
        self.log(|| format!("client {c} sends {seq} {request:?}"));
        self.send_up(c, Unit::Request { seq, request });
        seq
    }

    fn post(&mut self, c: usize, l: usize, chain: Chain, doing: Doing) {
        let tok = self.enter(c, l, doing);
        if let Some(outcome) = self.refuses(c, self.clients[c].threads[l].epoch) {
            self.thread(c, l).outcome = Some(outcome);
            let ns = self.takes(1_000);
            return self.step_after(c, l, ns);
        }
        let lock = l as u8;
        if let Some(doorbell) = &mut self.doorbell {
            return doorbell.push(Rung { lock, tok, chain });
        }
        match self.clients[c].fabric {
            Fabric::Shm => {
                self.thread(c, l).chain = Some((chain, Values::new()));
                self.verb_after(c, l);
            }
            _ => {
                let values = Values::new();
                self.send_up(c, Unit::Batch { lock, tok, chain, values, more: false });
                self.expects(c, l, self.now + DATA_WAIT_NS);
            }
        }
    }

    /// What becomes of a chain for a place of this epoch, if it is not executed at all.
    pub(super) fn refuses(&self, c: usize, epoch: u32) -> Option<Outcome> {
        let client = &self.clients[c];
        let connected = matches!(client.life, Life::Up | Life::Leaving);
        let mapped = client.epoch == self.epoch && self.alive;
        match client.fabric {
            _ if epoch != client.epoch => Some(Outcome::Refused(Status::NotReady)),
            _ if !connected => Some(Outcome::Unknown),
            Fabric::Shm if !mapped => Some(Outcome::Unknown),
            // the gate of the memory; a queue pair is connected when the recovery is over
            Fabric::Shm | Fabric::Verbs if self.recovering && !self.bugs.open_gate => {
                Some(Outcome::Refused(Status::NotReady))
            }
            _ => None,
        }
    }

    pub(super) fn verb_after(&mut self, c: usize, l: usize) {
        let ns = self.takes(50);
        let inc = self.clients[c].inc;
        let tok = self.thread(c, l).tok;
        self.after(ns, Ev::Verb(c as u8, inc, l as u8, tok));
    }

    /// The client's CPU executes the next verb of its chain.
    pub(super) fn cpu_verb(&mut self, c: usize, l: usize) {
        let client = &mut self.clients[c];
        let t = &mut client.threads[l];
        let (Some((chain, mut values)), Some(id)) = (t.chain, client.id) else { return };
        let epoch = t.epoch;
        let verb = chain.verbs()[values.as_slice().len()];
        values.push(self.verb(epoch, id, &verb));
        self.thread(c, l).chain = Some((chain, values));
        if values.as_slice().len() < chain.verbs().len() {
            return self.verb_after(c, l);
        }
        self.thread(c, l).chain = None;
        if self.clients[c].batch.contains(&(l as u8)) {
            self.thread(c, l).outcome = Some(Outcome::Done(values));
            self.next_of_batch(c, l);
        } else {
            self.outcome(c, l, Outcome::Done(values));
        }
    }

    /// The outcome of the chain, or of the note, that the thread waits for.
    pub(super) fn outcome(&mut self, c: usize, l: usize, outcome: Outcome) {
        let late = self.client_now(c);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else { return };
        let mut machine: Machine;
        let step = match t.doing {
            Doing::Fast { cas, now } => {
                if matches!(outcome, Outcome::Done(v) if v[0] == cas.expect) {
                    let result = entry.fast_done(cas);
                    return self.finish(c, l, result);
                }
                match entry.begin(t.op, now) {
                    Begin::Local(result) => return self.finish(c, l, result),
                    Begin::Run(m, _) => machine = m,
                }
                machine.outcome(entry, outcome, now)
            }
            Doing::Chain { now, fresh } => {
                let Some(m) = t.machine else { return };
                machine = m;
                machine.outcome(entry, outcome, if fresh { late } else { now })
            }
            Doing::Confirm => {
                let Some(m) = t.machine else { return };
                machine = m;
                let done = Outcome::Done(Values::new());
                machine.outcome(
                    entry,
                    if outcome == Outcome::Unknown { outcome } else { done },
                    late,
                )
            }
            _ => return,
        };
        t.machine = Some(machine);
        let passes = shared_past_a_queue(t.op, &outcome) && self.plan.locks[l] == LockType::Rw;
        if passes && matches!(step, Step::Done(r) if r.status == Status::Success) {
            self.fail(format!(
                "queue: client {c} saw that somebody waits for lock {l}, and took it"
            ));
        }
        self.follow(c, l, step, false);
    }

    /// The reply to the request that the thread waits for, or why there is none.
    pub(super) fn reply(&mut self, c: usize, l: usize, reply: Result<Reply, Status>) {
        let now = self.client_now(c);
        let t = self.thread(c, l);
        let (Some(entry), Some(machine)) = (t.entry.as_mut(), t.machine.as_mut()) else { return };
        let step = machine.reply(entry, reply, now);
        self.log(|| format!("client {c} lock {l} gets {reply:?}"));
        self.follow(c, l, step, false);
    }

    /// A frame has arrived at the client.
    pub(super) fn frame(&mut self, c: usize, frame: Frame) {
        match frame {
            Frame::Outcome { lock, tok, outcome } => {
                if let Some(o) = self.object_of(lock.into()) {
                    if self.object(c, o).tok == tok {
                        self.object_outcome(c, o, outcome);
                    }
                    return;
                }
                let t = self.thread(c, lock.into());
                let waits =
                    matches!(t.doing, Doing::Fast { .. } | Doing::Chain { .. } | Doing::Confirm);
                if t.tok == tok && waits && t.async_until > 0 {
                    t.outcome = Some(outcome); // until the program asks
                } else if t.tok == tok && waits {
                    self.outcome(c, lock.into(), outcome);
                }
            }
            Frame::Noted { lock, tok } => {
                let t = self.thread(c, lock.into());
                if t.tok == tok && t.doing == Doing::Confirm {
                    self.outcome(c, lock.into(), Outcome::Done(Values::new()));
                }
            }
            Frame::Reply { seq, reply } => {
                let threads = &self.clients[c].threads;
                let waits = |t: &Thread| matches!(t.doing, Doing::Reply { seq: s, .. } if s == seq);
                if let Some(l) = threads.iter().position(waits) {
                    let t = self.thread(c, l);
                    t.unflushed = false;
                    match t.async_until > 0 {
                        true => t.answer = Some(reply),
                        false => self.reply(c, l, Ok(reply)),
                    }
                }
            }
        }
    }

    /// The thread's time is up.
    pub(super) fn timer(&mut self, c: usize, l: usize) {
        let t = self.thread(c, l);
        match t.doing {
            Doing::Fast { .. } | Doing::Chain { .. } | Doing::Confirm => {
                self.outcome(c, l, Outcome::Unknown);
            }
            Doing::Reply { seq, wait: true, cancelled: false } => {
                let cancel = t.entry.as_ref().and_then(|e| t.machine.and_then(|m| m.cancel(e)));
                t.doing = Doing::Reply { seq, wait: true, cancelled: true };
                t.unflushed = true;
                if let Some(cancel) = cancel {
                    self.thread(c, l).action = Action::Cancel;
                    self.cover(Action::Cancel, c);
                    self.send_request(c, cancel);
                }
                self.timer_at(c, l, self.now + CANCEL_WAIT_NS);
            }
            Doing::Reply { .. } => self.reply(c, l, Err(Status::BadResponse)),
            _ => {}
        }
    }

    fn is_of_batch(&self, c: usize, l: usize) -> bool {
        use Action::{BatchExtend, BatchTry, BatchUnlock};
        matches!(self.clients[c].threads[l].action, BatchTry | BatchUnlock | BatchExtend)
    }

    /// The channel is gone: nothing that is under way will be answered.
    pub(super) fn flush(&mut self, c: usize) {
        self.flush_objects(c);
        for l in 0..self.clients[c].threads.len() {
            match self.thread(c, l).doing {
                Doing::Fast { .. } | Doing::Chain { .. } | Doing::Confirm => {
                    let lost = match self.bugs.doorbell_lost && self.is_of_batch(c, l) {
                        true => Outcome::Refused(Status::NotReady),
                        false => Outcome::Unknown,
                    };
                    let t = self.thread(c, l);
                    if t.chain.is_none() && t.outcome.is_none() {
                        self.outcome(c, l, lost);
                    }
                }
                Doing::Reply { .. } => self.reply(c, l, Err(Status::BadResponse)),
                Doing::Control => self.forget_lock(c, l), // released or not: it is got anew
                _ => {}
            }
        }
    }

    /// The primary has ended what this client had without a lease. Of an operation under way on
    /// something that it had, the rest is lost when the operation is over.
    pub(super) fn lapse(&mut self, c: usize, l: usize) {
        let who = self.who(c);
        let t = self.thread(c, l);
        let Some(entry) = t.entry.as_mut() else { return };
        if t.machine.is_some() {
            let has = !matches!(entry.state(), EntryState::Initialized | EntryState::Unlocked);
            t.lapse |= has;
            if has && entry.deadline_s() == u32::MAX {
                self.oracle.ended(l, who);
            }
        } else if entry.lapse() {
            self.oracle.ended(l, who);
        }
    }

    /// The lock is not got any more, as far as this client knows.
    pub(super) fn forget_lock(&mut self, c: usize, l: usize) {
        let who = self.who(c);
        self.oracle.ended(l, who);
        self.enter(c, l, Doing::Nothing);
        self.thread(c, l).entry = None;
        self.clients[c].releases.retain(|&r| usize::from(r) != l);
    }

    /// An operation is over.
    pub(super) fn finish(&mut self, c: usize, l: usize, result: OpResult) {
        self.mix(code(result.status) ^ (c as u64) << 40 ^ (l as u64) << 48);
        self.log(|| format!("client {c} lock {l} finished: {:?} {:?}", result.status, result.view));
        self.believe(c, l, result);
        let now = self.client_now(c);
        let t = self.thread(c, l);
        (t.machine, t.chain, t.outcome) = (None, None, None);
        (t.answer, t.async_until) = (None, 0);
        if std::mem::take(&mut t.lapse) {
            self.lapse(c, l);
        }
        let t = self.thread(c, l);
        if std::mem::take(&mut t.republish) {
            if let Some(entry) = t.entry.as_mut() {
                entry.republish();
            }
            self.write_note(c, l);
        }
        let t = self.thread(c, l);
        let undo = match (&mut t.entry, result.status) {
            (Some(entry), Status::BadResponse) => entry.undo(now),
            _ => None,
        };
        self.enter(c, l, Doing::Idle);
        let client = &self.clients[c];
        let usable = client.life == Life::Up && client.threads[l].epoch == client.epoch;
        if let (Some((_, Step::Request(request))), true) = (undo, usable) {
            self.thread(c, l).unflushed = true;
            self.send_request(c, request);
        }
        if result.status == Status::LockNotGet {
            self.forget_lock(c, l);
            return self.control_wake(c);
        }
        self.finished(c, l, result.status);
    }

    /// Tells the checker what the client was told.
    fn believe(&mut self, c: usize, l: usize, result: OpResult) {
        let who = self.who(c);
        let t = &self.clients[c].threads[l];
        let (op, refs) = (t.op, t.entry.as_ref().map_or(0, |e| e.refs()));
        let granted = matches!(result.status, Status::Success | Status::AlreadyLocked);
        let (mode, expire_s) = match op {
            Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s } => (mode, expire_s),
            Op::Extend { mode, expire_s } => (mode, expire_s.max(1)),
            Op::Unlock if refs == 0 => return self.oracle.ended(l, who),
            Op::Unlock => return,
        };
        if !granted || expire_s == 0 {
            if refs == 0 {
                self.oracle.ended(l, who);
            }
            return;
        }
        let first = refs == 1 && !matches!(op, Op::Extend { .. });
        let until = match result.view {
            Some(View::Atomic { time_out, .. } | View::Fair { time_out, .. }) => {
                self.clients[c].clock.gives_up_at(ServerTime::expiry_of(time_out))
            }
            _ => u64::MAX,
        };
        let mut verdict = self.oracle.granted(l, who, mode, self.now, until);
        let relies = self.oracle.relies(l, who, self.now);
        if verdict.is_ok() && first && relies && self.plan.locks[l] == LockType::Fair {
            verdict = self.in_order(c, l, mode);
        }
        if let Err(why) = verdict {
            self.fail(why);
        }
    }

    fn in_order(&mut self, c: usize, l: usize, mode: Mode) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let Some((entry, ticket)) = t.entry.as_ref().and_then(|e| Some((e, e.ticket()?))) else {
            return Ok(());
        };
        if t.epoch != self.epoch || !self.alive {
            return Ok(());
        }
        let generation = *self.memory.word(WordAddr::new(entry.slot(), Word::Gen));
        self.oracle.served(l, (self.epoch, generation), mode, ticket.tx)
    }
}

/// A reader's chain found the waiters bit.
fn shared_past_a_queue(op: Op, outcome: &Outcome) -> bool {
    let shared =
        matches!(op, Op::TryLock { mode: Mode::Shared, .. } | Op::Lock { mode: Mode::Shared, .. });
    let Outcome::Done(values) = outcome else { return false };
    let seen = values.as_slice().get(1);
    shared && seen.is_some_and(|&old| RwWord::from_bits(old).waiters())
}
