// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's thread: executes the effects of one operation on its lock after the other;
//! [`Operation`] decides the effects.
//!
//! ```text
//!   begin ─▶ fast: one word operation ─▶ result
//!         └▶ Effect ─▶ Chain
//! Reply ─event─▶ Effect ─▶ … ─▶ result
//! ```
//! Each effect is an event of the schedule; so is each word operation of a chain on shared memory,
//! and each look at an answer that has arrived: the process can stop between any two.

use dlock_core::clock::{Now, ServerTime, COARSE_NS_MAX};
use dlock_core::ids::Seq;
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{Bounds, Effect, Operation, Started, CHAIN_WAIT_NS};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::plan::Fabric;
use super::state::{Asked, Doing, Ev, Frame, Life, Sys, Thread, Unit};
use super::told::shared_past_a_queue;

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
        assert!(
            clock.jumped > 0
                || !known
                || self.bugs.monotonic_clock
                || error <= now.uncertainty_ns + 1_000,
            "clock: client {c} is off by {error} ns: {now:?}"
        );
        if self.bugs.wall_clock {
            now.time.0 = (now.time.0 as i64 + clock.wall_step) as u64;
        }
        if self.bugs.no_uncertainty {
            now.uncertainty_ns = 0;
        }
        now
    }

    /// The server clock for operations on this lock. An operation that began with a dead primary
    /// keeps the clock of that; while the lock's place is a dead primary's, there is no clock.
    pub(super) fn thread_now(&self, c: usize, l: usize) -> Now {
        let (now, t) = (self.client_now(c), &self.clients[c].threads[l]);
        let now = match t.old_clock.filter(|_| t.moves) {
            _ if t.epoch == self.clients[c].epoch => now,
            Some(clock) => clock.now(self.now),
            None => Now { local_ns: now.local_ns, ..Now::within(ServerTime(0), u64::MAX) },
        };
        Now { horizon_ns: t.horizon_ns, ..now }
    }

    pub(super) fn thread(&mut self, c: usize, l: usize) -> &mut Thread {
        &mut self.clients[c].threads[l]
    }

    /// Sets a new state of the thread; its earlier wait is void.
    pub(super) fn enter(&mut self, c: usize, l: usize, doing: Doing) -> u32 {
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

    /// Continues the thread soon: after some nanoseconds, or after other threads.
    pub(super) fn step_soon(&mut self, c: usize, l: usize) {
        let ns = self.takes(20);
        self.step_after(c, l, ns);
    }

    pub(super) fn timer_at(&mut self, c: usize, l: usize, at: u64) {
        let inc = self.clients[c].inc;
        let tok = self.thread(c, l).tok;
        self.at(at, Ev::Timer(c as u8, inc, l as u8, tok));
    }

    /// The true time at which this client's own clock shows `until_ns`, or just after.
    pub(super) fn true_until(&self, c: usize, until_ns: u64) -> u64 {
        let left_ns = until_ns.saturating_sub(self.client_now(c).local_ns);
        self.now.saturating_add(left_ns).saturating_add(left_ns / 1_000)
    }

    pub(super) fn begin(&mut self, c: usize, l: usize, op: Op) {
        let patience = match (self.calm, self.rng.chance(self.plan.impatience)) {
            (true, _) => u64::MAX / 4,
            (_, true) => self.rng.below(30_000_000),
            _ => CHAIN_WAIT_NS,
        };
        let uses_first = self.rng.chance(800);
        self.log(|| format!("client {c} lock {l}: {op:?}"));
        self.calls(c, l, op);
        let (fresh, coarse) = (self.thread_now(c, l), self.coarse_ns(c));
        let is_cut_off = !self.is_connected(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else { return };
        // a release of these decides nothing by the clock, so an older reading is enough
        let now = match entry.is_timeless(op) {
            true => Now { local_ns: coarse, horizon_ns: t.horizon_ns, ..t.last_now },
            false => fresh,
        };
        t.last_now = now;
        let cut_off = is_cut_off || now.is_past_horizon();
        if let Some(status) = entry.unfounded(op, || cut_off, || None) {
            return self.finish(c, l, OpResult::of(status));
        }
        let bounds = Bounds::waiting(now.local_ns, patience);
        let is_sync = t.async_until == 0;
        if uses_first && is_sync {
            return self.first(c, l, op, now, bounds);
        }
        let started = Operation::begin(entry, op, now, bounds);
        self.started(c, l, started);
    }

    /// Records what the client relies on when a call begins.
    pub(super) fn calls(&mut self, c: usize, l: usize, op: Op) {
        let (server_now, epoch, who) = (self.server_now(), self.epoch, self.who(c));
        let slot = self.clients[c].threads[l].entry.as_ref().map(LockEntry::slot);
        let lap = slot.map_or(0, |slot| self.fair_lap(slot));
        let t = self.thread(c, l);
        (t.op, t.called, t.past_queue, t.lap) = (op, (epoch, server_now), false, lap);
        t.pauses = 0;
        self.called_under(c, l);
        self.called_by_clock(c, l);
        let t = self.thread(c, l);
        let is_release = op == Op::Unlock && t.entry.as_ref().is_some_and(|e| e.refs() <= 1);
        t.renewed.ends(is_release);
        t.listener.ends(is_release);
        self.oracle.called(l, who, self.now, is_release);
        let (Op::TryLock { lease, .. } | Op::Lock { lease, .. } | Op::Extend { lease, .. }) = op
        else {
            return;
        };
        if lease.is_endless() {
            self.oracle.asked_for_ever(l, who);
        }
    }

    pub(super) fn started(&mut self, c: usize, l: usize, started: Started) {
        match started {
            Started::Done(result) => self.finish(c, l, result),
            Started::Running(operation) => {
                self.thread(c, l).operation = Some(operation);
                self.effect(c, l);
            }
        }
    }

    pub(super) fn effect_next(&mut self, c: usize, l: usize) {
        self.enter(c, l, Doing::Effect);
        self.step_soon(c, l);
    }

    /// Executes the next effect of the operation.
    pub(super) fn effect(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) else {
            return;
        };
        match operation.next(entry) {
            Effect::Done(result) => self.done(c, l, result),
            Effect::Post { chain, until_ns } => self.post(c, l, chain, until_ns, Doing::Chain),
            Effect::WriteLedger(write) => {
                self.write_ledger(c, l, write);
                self.effect_next(c, l);
            }
            Effect::Tell(request) => {
                self.tell(c, l, request);
                self.effect_next(c, l);
            }
            Effect::ReadClock => {
                operation.clock(now);
                self.effect(c, l);
            }
            Effect::Count(_) => self.effect(c, l),
            Effect::Wake { .. } => {
                self.wakes(l);
                self.effect(c, l);
            }
            Effect::Park { limit_ns, .. } => self.parks(c, l, limit_ns),
            Effect::Pause { pause_ns, .. } => self.pause(c, l, pause_ns),
            Effect::Forget => {
                (t.asked, t.answer) = (None, None);
                self.effect_next(c, l);
            }
            Effect::Ask { request, until_ns } => {
                let is_wait = matches!(request, Request::Wait { .. } | Request::Try { .. });
                let (gen, sent) = (self.thread(c, l).gen, self.asks(c, l, request));
                let t = self.thread(c, l);
                t.asked = Some(Asked { seq: sent.unwrap_or(Seq(0)), gen, is_wait });
                t.answer = sent.err();
                self.await_reply(c, l, until_ns);
            }
            Effect::Probe { until_ns } => {
                if self.is_connected(c, l) {
                    let ping = self.send_request(c, Request::Ping);
                    let gen = self.clients[c].gen;
                    self.thread(c, l).ping = Some((ping, gen));
                }
                self.await_reply(c, l, until_ns);
            }
            Effect::Await { until_ns } => self.await_reply(c, l, until_ns),
        }
    }

    fn await_reply(&mut self, c: usize, l: usize, until_ns: u64) {
        let is_wait = self.thread(c, l).asked.is_some_and(|asked| asked.is_wait);
        self.enter(c, l, Doing::Reply { is_wait });
        match self.thread(c, l).answer {
            Some(_) => self.known_at_once(c, l, 20),
            None => self.expects(c, l, until_ns),
        }
    }

    /// Continues the thread after about `ns` nanoseconds without its program, because the next
    /// event is decided on this side.
    fn known_at_once(&mut self, c: usize, l: usize, ns: u64) {
        self.thread(c, l).at_once = true;
        let ns = self.takes(ns);
        self.step_after(c, l, ns);
    }

    /// Sets the deadline of a wait; an asynchronous operation is polled by its program.
    fn expects(&mut self, c: usize, l: usize, until_ns: u64) {
        self.thread(c, l).until_ns = until_ns;
        match self.thread(c, l).async_until > 0 {
            true => self.poll_later(c, l),
            false => {
                let at = self.true_until(c, until_ns);
                self.timer_at(c, l, at);
            }
        }
    }

    /// Whether the event that the thread awaits has come.
    pub(super) fn has_event(&self, c: usize, l: usize) -> bool {
        let t = &self.clients[c].threads[l];
        match t.doing {
            Doing::First | Doing::Chain => t.outcome.is_some(),
            Doing::Reply { .. } => t.answer.is_some(),
            _ => false,
        }
    }

    /// Reads the clock, and reports the awaited event to the operation.
    pub(super) fn event(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = &mut self.clients[c].threads[l];
        t.at_once = false;
        let doing = t.doing;
        if doing == Doing::First {
            return self.first_ended(c, l);
        }
        let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) else {
            return;
        };
        match doing {
            Doing::Chain => {
                let Some(outcome) = t.outcome.take() else { return };
                if operation.needs_clock(entry) {
                    t.last_now = now;
                }
                t.past_queue = shared_past_a_queue(t.op, &outcome);
                let last_now = Now { horizon_ns: t.horizon_ns, ..t.last_now };
                operation.outcome(entry, outcome, last_now);
            }
            Doing::Reply { .. } => {
                let Some(answer) = t.answer.take() else { return };
                t.past_queue = false;
                match t.asked.take() {
                    Some(asked) if asked.is_wait && asked.gen != t.gen => {
                        let (local_ns, horizon_ns) = (now.local_ns, t.horizon_ns);
                        operation.replaced(entry, Now { local_ns, horizon_ns, ..t.last_now });
                    }
                    _ => operation.reply(entry, answer, now),
                }
                self.log(|| format!("client {c} lock {l} gets {answer:?}"));
            }
            _ => return,
        }
        self.effect(c, l);
    }

    /// The client's own clock, late by as much as a coarse reading may be.
    pub(super) fn coarse_ns(&mut self, c: usize) -> u64 {
        let late_ns = match self.rng.below(4) {
            0 => self.rng.below(COARSE_NS_MAX),
            _ => self.rng.below(1_000_000),
        };
        self.client_now(c).local_ns.saturating_sub(late_ns)
    }

    /// Handles the deadline of the thread's wait.
    pub(super) fn timer(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = &mut self.clients[c].threads[l];
        match t.doing {
            Doing::First | Doing::Chain if t.outcome.is_none() => {
                t.outcome = Some(Outcome::Unknown);
                self.step_soon(c, l);
            }
            Doing::Reply { .. } if t.answer.is_none() => {
                let is_answered = std::mem::take(&mut t.pinged);
                t.ping = None;
                if let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_ref()) {
                    operation.deadline(entry, is_answered, now);
                }
                self.effect(c, l);
            }
            Doing::Batch => self.batch_timer(c),
            _ => {}
        }
    }

    /// Whether this lock's operations reach the primary: its session is the client's present one.
    pub(super) fn is_connected(&self, c: usize, l: usize) -> bool {
        let client = &self.clients[c];
        let is_up = matches!(client.life, Life::Up | Life::Leaving);
        is_up && client.gen != 0 && client.threads[l].gen == client.gen
    }

    /// Writes an entry of the ledger: at once on shared memory, else by a message.
    pub(super) fn write_ledger(&mut self, c: usize, l: usize, write: LedgerEntry) {
        let connected = self.is_connected(c, l);
        let client = &mut self.clients[c];
        let t = &mut client.threads[l];
        let (Some(entry), Some(id)) = (t.entry.as_ref(), client.id) else { return };
        if t.epoch != client.epoch {
            return;
        }
        let (handle, epoch) = (entry.handle(), t.epoch);
        if t.fabric == Fabric::Shm {
            self.word_op(epoch, id, &WordOp::WriteLedger { handle, value: write.into_bits() });
            return;
        }
        // a ledger write to a broken queue pair is never acknowledged
        t.noted = t.noted.wrapping_add(1);
        let (lock, tok) = (l as u8, t.noted);
        if connected {
            self.send_up(c, Unit::Note { lock, tok, handle, entry: write });
        }
    }

    /// Whether all ledger writes so far have taken effect, or will before later operations.
    pub(super) fn is_flushed(&self, c: usize, l: usize) -> bool {
        let t = &self.clients[c].threads[l];
        t.fabric != Fabric::Verbs || t.noted == t.noted_acked
    }

    /// Sends a request whose reply is awaited; an error is the answer if it is known at once.
    pub(super) fn asks(
        &mut self,
        c: usize,
        l: usize,
        request: Request,
    ) -> Result<Seq, Result<Reply, Status>> {
        let client = &self.clients[c];
        if client.threads[l].epoch != client.epoch {
            return Err(Ok(Reply::Denied { status: Status::NotReady, word: 0 }));
        }
        if matches!(request, Request::Downgrade { .. }) {
            self.oracle.shares(l, self.who(c));
        }
        if !self.is_connected(c, l) {
            return Err(Err(Status::BadResponse));
        }
        if matches!(request, Request::Resolve { .. }) {
            self.thread(c, l).action = Action::Resolve;
            self.cover(Action::Resolve, c);
            self.oracle.gives_up(l, self.who(c), self.now);
        }
        Ok(self.send_request(c, request))
    }

    /// Sends a request whose reply is not awaited.
    pub(super) fn tell(&mut self, c: usize, l: usize, request: Request) {
        self.is_told_first(c, l, request);
        if self.clients[c].threads[l].epoch != self.clients[c].epoch || !self.is_connected(c, l) {
            return;
        }
        self.thread(c, l).unflushed = true;
        if matches!(request, Request::Cancel { .. }) {
            self.thread(c, l).action = Action::Cancel;
            self.cover(Action::Cancel, c);
        }
        self.send_request(c, request);
    }

    pub(super) fn send_request(&mut self, c: usize, request: Request) -> Seq {
        self.clients[c].seq += 1;
        let seq = Seq(self.clients[c].seq);
        self.log(|| format!("client {c} sends {seq} {request:?}"));
        self.send_up(c, Unit::Request { seq, request });
        seq
    }

    pub(super) fn post(&mut self, c: usize, l: usize, chain: Chain, until_ns: u64, doing: Doing) {
        let tok = self.enter(c, l, doing);
        let is_local = self.clients[c].threads[l].fabric == Fabric::Shm;
        let lost = self.lost_beside_fenced(c, l, &chain);
        if let Some(outcome) = self.refuses_lock(c, l).or(lost) {
            self.thread(c, l).outcome = Some(outcome);
            self.known_at_once(c, l, 1_000);
        } else if is_local {
            self.thread(c, l).chain = Some((chain, Values::new()));
            self.word_op_after(c, l);
        } else if self.client_now(c).local_ns >= until_ns {
            // the deadline of the operation is over, so its chain is not executed
            self.thread(c, l).outcome = Some(Outcome::Unknown);
            self.known_at_once(c, l, 20);
        } else {
            let (lock, values) = (l as u8, Values::new());
            self.send_up(c, Unit::Batch { lock, tok, chain, values, more: false });
            self.expects(c, l, until_ns);
        }
    }

    pub(super) fn word_op_after(&mut self, c: usize, l: usize) {
        let ns = self.takes(50);
        let inc = self.clients[c].inc;
        let tok = self.thread(c, l).tok;
        self.after(ns, Ev::WordOp(c as u8, inc, l as u8, tok));
    }

    /// The client's CPU executes the next word operation of its chain.
    pub(super) fn cpu_word_op(&mut self, c: usize, l: usize) {
        let client = &mut self.clients[c];
        let t = &mut client.threads[l];
        if t.doing == Doing::Batch {
            return self.batch_word_op(c);
        }
        let (Some((chain, mut values)), Some(id)) = (t.chain, client.id) else { return };
        let epoch = t.epoch;
        let word_op = chain.ops()[values.as_slice().len()];
        self.executes(epoch, id, &word_op, &mut values);
        let t = self.thread(c, l);
        if values.as_slice().len() < chain.values_len() {
            t.chain = Some((chain, values));
            return self.word_op_after(c, l);
        }
        (t.chain, t.outcome) = (None, Some(Outcome::Done(values)));
        self.known_at_once(c, l, 20);
    }

    /// Handles a frame that has arrived at the client: the thread that awaits it will look at it.
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
                match t.doing {
                    Doing::First | Doing::Chain if t.tok == tok && t.outcome.is_none() => {
                        t.outcome = Some(outcome);
                        self.arrived(c, lock.into());
                    }
                    Doing::Batch if t.tok == tok => self.batch_outcome(c, lock, outcome),
                    _ => {}
                }
            }
            Frame::Noted { lock, tok } => {
                self.thread(c, lock.into()).noted_acked = tok;
                if self.thread(c, lock.into()).doing == Doing::Batch {
                    self.batch_arrived(c);
                }
            }
            Frame::Reply { seq, reply } => {
                // the number of a ledger write of an earlier session does not count
                let gen = self.clients[c].gen;
                let threads = &mut self.clients[c].threads;
                if let Some(t) = threads.iter_mut().find(|t| t.ping == Some((seq, gen))) {
                    t.pinged = true;
                    return;
                }
                if let Some(l) = threads.iter().position(|t| t.listener.has_asked(seq, gen)) {
                    return self.question_answered(c, l, reply);
                }
                if let Some(l) = threads.iter().position(|t| t.cached.has_asked(seq, gen)) {
                    return self.others_want(c, l, reply);
                }
                let asked =
                    |t: &Thread| t.asked.is_some_and(|asked| (asked.seq, asked.gen) == (seq, gen));
                let Some(l) = threads.iter().position(asked) else {
                    return self.batch_reply(c, seq, Ok(reply));
                };
                let t = self.thread(c, l);
                t.unflushed = false;
                t.answer = Some(Ok(reply));
                if matches!(t.doing, Doing::Reply { .. }) {
                    self.arrived(c, l);
                }
            }
        }
    }

    /// Continues the thread when its event has come: soon, or when its program polls.
    fn arrived(&mut self, c: usize, l: usize) {
        if self.thread(c, l).async_until == 0 {
            self.step_soon(c, l);
        }
    }

    /// The channel is gone, and everything under way on it stays without an answer.
    pub(super) fn flush(&mut self, c: usize) {
        self.flush_objects(c);
        self.flush_batch(c);
        self.questions_end(c);
        for l in 0..self.clients[c].threads.len() {
            let t = self.thread(c, l);
            match t.doing {
                Doing::First | Doing::Chain if t.chain.is_none() && t.outcome.is_none() => {
                    t.outcome = Some(Outcome::Unknown);
                    self.arrived(c, l);
                }
                Doing::Reply { is_wait } if t.answer.is_none() => {
                    t.answer = Some(Err(Status::BadResponse));
                    // a thread that awaits a grant may look only after a new session has come
                    let ns = self.rng.pick(&[20, 20, 1_000_000, 100_000_000]);
                    match (is_wait, self.thread(c, l).async_until) {
                        (_, 1..) => {}
                        (true, 0) => self.step_after(c, l, ns),
                        (false, 0) => self.step_soon(c, l),
                    }
                }
                // the client has asked for the lock's handle, and the answer is lost: the program
                // asks again
                Doing::Control => self.forget_lock(c, l),
                _ => {}
            }
        }
    }
}
