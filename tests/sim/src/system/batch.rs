// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: executes the effects of up to 31 operations of one client together; [`Batch`] decides
//! the effects.
//!
//! ```text
//!   Effects ─ next … ─▶ Chains in one doorbell ─▶ Effects ─▶ Replies ─▶ Effects ─▶ results
//!     shm: one CPU, chain after chain · tcp: one frame · verbs: one list, one completion
//! ```
//! The thread of one of the batch's locks, the leader, gets the events of the batch. Other clients'
//! word operations come between any two word operations of a doorbell.

use dlock_core::clock::Now;
use dlock_core::ids::Seq;
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome, Values};
use dlock_core::operation::{Batch, Bounds, Effect, Entries};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::plan::Fabric;
use super::state::{Doing, Sys, Thread, Unit};

/// A chain that the client posts with the same doorbell as others.
#[derive(Debug)]
struct Post {
    item: usize,
    lock: u8,
    chain: Chain,
    values: Values,
    outcome: Option<Outcome>,
}

/// A request whose reply is awaited.
#[derive(Debug)]
struct Asked {
    seq: Seq,
    gen: u32,
    until_ns: u64,
    answer: Option<Result<Reply, Status>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Effects,
    Chains,
    /// The batch awaits the reply to the request of item `at`, then of the items after it.
    Replies {
        at: usize,
        waits: bool,
    },
}

/// A batch under way.
#[derive(Debug)]
pub(crate) struct BatchRun {
    batch: Batch,
    leader: usize,
    /// The lock of each item.
    locks: Vec<u8>,
    stage: Stage,
    posts: Vec<Post>,
    until_ns: u64,
    asked: Vec<Option<Asked>>,
}

/// The locks of a batch, and a reading of the clock for each round.
struct Places<'a> {
    threads: &'a mut [Thread],
    locks: &'a [u8],
    now: Now,
}

impl Entries for Places<'_> {
    fn entry(&mut self, place: usize) -> &mut LockEntry {
        let entry = self.threads[usize::from(self.locks[place])].entry.as_mut();
        entry.expect("the lock of a batch is not given back while it is under way")
    }

    fn now(&mut self, _place: usize) -> Now {
        self.now
    }
}

impl Sys {
    /// Begins operations of the same kind on several locks that have none under way. Now and then
    /// one of the locks occurs twice.
    pub(super) fn begin_batch(&mut self, c: usize, l: usize, op: Op) {
        let client = &self.clients[c];
        let (epoch, gen) = (client.epoch, client.gen);
        let mut locks = vec![l];
        for other in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[other];
            let here = t.epoch == epoch && t.gen == gen && t.entry.is_some();
            let idle = t.doing == Doing::Idle && here;
            if idle && other != l && locks.len() < BATCH_MAX && self.rng.chance(900) {
                locks.push(other);
            }
        }
        let twice = self.rng.chance(150) && locks.len() < BATCH_MAX;
        let again = twice.then(|| self.rng.below(locks.len() as u64) as usize);
        let action = match op {
            Op::Unlock => Action::BatchUnlock,
            Op::Extend { .. } | Op::Downgrade => Action::BatchExtend,
            Op::TryLock { .. } | Op::Lock { .. } => Action::BatchTry,
        };
        self.cover(action, c);
        self.log(|| format!("client {c} begins a batch of {locks:?}, {again:?} again: {op:?}"));
        let mut items = Vec::new();
        for place in (0..locks.len()).chain(again) {
            let op = match op {
                Op::TryLock { lease, .. } => Op::TryLock { mode: self.mode(locks[place]), lease },
                op => op,
            };
            items.push((place, op));
        }
        for (place, &l) in locks.iter().enumerate() {
            let unlocks = items.iter().filter(|item| *item == &(place, Op::Unlock)).count();
            self.calls(c, l, items[place].1);
            let refs = self.clients[c].threads[l].entry.as_ref().map_or(0, LockEntry::refs);
            if unlocks >= refs as usize && unlocks > 0 {
                let who = self.who(c);
                self.oracle.ended(l, who);
                self.thread(c, l).renewed.ends(true);
                self.thread(c, l).listener.ends(true);
            }
            self.thread(c, l).action = action;
            self.enter(c, l, Doing::Batch);
        }
        self.batch_begun(c, &locks, &items);
    }

    fn batch_begun(&mut self, c: usize, locks: &[usize], items: &[(usize, Op)]) {
        let now = self.thread_now(c, locks[0]);
        let bounds = Bounds::since(now.local_ns);
        let mut batch = Batch::new(bounds);
        let threads = &mut self.clients[c].threads;
        for &l in locks {
            threads[l].last_now = now;
        }
        for entry in locks.iter().filter_map(|&l| threads[l].entry.as_ref()) {
            batch.place(entry);
        }
        for &(place, op) in items {
            let l = locks[place];
            let entry = self.clients[c].threads[l].entry.as_ref();
            let is_cut_off = || !self.is_connected(c, l) || now.is_past_horizon();
            match entry.and_then(|entry| entry.unfounded(op, is_cut_off, || None)) {
                Some(status) => batch.push_decided(op, OpResult::of(status)),
                None => batch.push(op, place),
            }
        }
        self.clients[c].batch = Some(BatchRun {
            batch,
            leader: locks[0],
            locks: locks.iter().map(|&l| l as u8).collect(),
            stage: Stage::Effects,
            posts: Vec::new(),
            until_ns: bounds.until_ns,
            asked: items.iter().map(|_| None).collect(),
        });
        self.step_soon(c, locks[0]);
    }

    /// Continues the batch.
    pub(super) fn batch_steps(&mut self, c: usize) {
        let Some(mut run) = self.clients[c].batch.take() else { return };
        let is_over = match run.stage {
            Stage::Effects => self.batch_effect(c, &mut run),
            Stage::Chains => self.batch_executed(c, &mut run),
            Stage::Replies { .. } => {
                self.batch_replies(c, &mut run, false);
                false
            }
        };
        match is_over {
            true => self.batch_told(c, &run),
            false => self.clients[c].batch = Some(run),
        }
    }

    /// Executes one effect; returns `true` if the batch is over.
    fn batch_effect(&mut self, c: usize, run: &mut BatchRun) -> bool {
        let now = self.thread_now(c, run.leader);
        let mut places = Places { threads: &mut self.clients[c].threads, locks: &run.locks, now };
        let mut effects = std::iter::from_fn(|| run.batch.next(&mut places));
        // counters of the library are not simulated, so an effect that only counts is skipped
        let next = effects.find(|(_, effect)| !matches!(effect, Effect::Count(_)));
        let Some((i, effect)) = next else {
            if run.batch.is_done() {
                return true;
            } else if !run.posts.is_empty() {
                self.ring(c, run);
            } else {
                self.batch_phase(c, run, Stage::Replies { at: 0, waits: false });
                self.step_soon(c, run.leader);
            }
            return false;
        };
        let Some(lock) = run.batch.place_of(i).map(|place| run.locks[place]) else { return false };
        let l = usize::from(lock);
        match effect {
            Effect::Post { chain, until_ns } => {
                run.until_ns = until_ns;
                run.posts.push(Post { item: i, lock, chain, values: Values::new(), outcome: None });
            }
            Effect::WriteLedger(write) => self.write_ledger(c, l, write),
            Effect::Tell(request) => self.tell(c, l, request),
            Effect::ReadClock => run.batch.clock(i, now),
            Effect::Pause { .. } | Effect::Park { .. } => {
                if let Some(entry) = self.thread(c, l).entry.as_mut() {
                    run.batch.queues(i, entry);
                }
            }
            Effect::Ask { request, until_ns } => self.batch_asks(c, run, (i, l), request, until_ns),
            Effect::Probe { until_ns } | Effect::Await { until_ns } => {
                if let Some(asked) = &mut run.asked[i] {
                    asked.until_ns = until_ns;
                }
            }
            Effect::Forget => run.asked[i] = None,
            Effect::Wake { .. } => self.wakes(l),
            Effect::Done(_) | Effect::Count(_) => {}
        }
        self.step_soon(c, run.leader);
        false
    }

    fn batch_asks(
        &mut self,
        c: usize,
        run: &mut BatchRun,
        (item, l): (usize, usize),
        request: Request,
        until_ns: u64,
    ) {
        let sent = self.asks(c, l, request);
        let (seq, gen) = (sent.unwrap_or(Seq(0)), self.clients[c].gen);
        run.asked[item] = Some(Asked { seq, gen, until_ns, answer: sent.err() });
    }

    /// Sets a new stage. Timers of earlier stages no longer count.
    fn batch_phase(&mut self, c: usize, run: &mut BatchRun, stage: Stage) {
        run.stage = stage;
        for &lock in &run.locks {
            self.enter(c, lock.into(), Doing::Batch);
        }
    }

    /// Sends all chains at once.
    fn ring(&mut self, c: usize, run: &mut BatchRun) {
        self.batch_phase(c, run, Stage::Chains);
        if let Some(outcome) = self.refuses_lock(c, run.leader) {
            run.posts.iter_mut().for_each(|post| post.outcome = Some(outcome));
            let ns = self.takes(1_000);
            return self.step_after(c, run.leader, ns);
        }
        if self.clients[c].fabric == Fabric::Shm {
            return self.word_op_after(c, run.leader);
        }
        let last = run.posts.len() - 1;
        let units = run.posts.iter().enumerate().map(|(i, post)| {
            let (lock, chain, values) = (post.lock, post.chain, Values::new());
            let tok = self.clients[c].threads[usize::from(lock)].tok;
            Unit::Batch { lock, tok, chain, values, more: i < last }
        });
        self.send_all_up(c, &units.collect::<Vec<_>>());
        let at = self.true_until(c, run.until_ns);
        self.timer_at(c, run.leader, at);
    }

    /// The client's CPU executes the next word operation of the doorbell.
    pub(super) fn batch_word_op(&mut self, c: usize) {
        let Some(mut run) = self.clients[c].batch.take() else { return };
        let next = run.posts.iter_mut().find(|post| post.outcome.is_none());
        if let (Some(post), Some(id)) = (next, self.clients[c].id) {
            let epoch = self.clients[c].threads[usize::from(post.lock)].epoch;
            let word_op = post.chain.ops()[post.values.as_slice().len()];
            self.executes(epoch, id, &word_op, &mut post.values);
            if post.values.as_slice().len() == post.chain.values_len() {
                post.outcome = Some(Outcome::Done(post.values));
            }
            match run.posts.iter().any(|post| post.outcome.is_none()) {
                true => self.word_op_after(c, run.leader),
                false => self.step_soon(c, run.leader),
            }
        }
        self.clients[c].batch = Some(run);
    }

    /// Handles the arrival of an outcome.
    pub(super) fn batch_outcome(&mut self, c: usize, lock: u8, outcome: Outcome) {
        let Some(run) = &mut self.clients[c].batch else { return };
        let mut posts = run.posts.iter_mut();
        if let Some(post) = posts.find(|post| post.lock == lock && post.outcome.is_none()) {
            post.outcome = Some(outcome);
        }
        if run.posts.iter().all(|post| post.outcome.is_some()) {
            self.batch_arrived(c);
        }
    }

    /// Continues the batch when an awaited event has come.
    pub(super) fn batch_arrived(&mut self, c: usize) {
        if let Some(leader) = self.clients[c].batch.as_ref().map(|run| run.leader) {
            self.step_soon(c, leader);
        }
    }

    pub(super) fn batch_reply(&mut self, c: usize, seq: Seq, reply: Result<Reply, Status>) {
        let gen = self.clients[c].gen;
        let Some(run) = &mut self.clients[c].batch else { return };
        let is_meant = |a: &Option<Asked>| a.as_ref().is_some_and(|a| (a.seq, a.gen) == (seq, gen));
        let Some(item) = run.asked.iter().position(is_meant) else { return };
        if let Some(asked) = run.asked[item].as_mut().filter(|asked| asked.answer.is_none()) {
            asked.answer = Some(reply);
        }
        if let Some(place) = run.batch.place_of(item) {
            let l = usize::from(run.locks[place]);
            self.clients[c].threads[l].unflushed = false;
        }
        self.batch_arrived(c);
    }

    /// Hands the outcomes of all chains to the batch, when all have come. Always returns `false`:
    /// the batch is not over, because its next effects are executed after that.
    fn batch_executed(&mut self, c: usize, run: &mut BatchRun) -> bool {
        if run.posts.iter().any(|post| post.outcome.is_none()) {
            return false;
        }
        self.batch_phase(c, run, Stage::Effects);
        self.step_soon(c, run.leader);
        let posts = std::mem::take(&mut run.posts);
        let now = self.thread_now(c, run.leader);
        for post in posts {
            let t = self.thread(c, post.lock.into());
            if let (Some(entry), Some(outcome)) = (t.entry.as_mut(), post.outcome) {
                run.batch.outcome(post.item, entry, outcome, now);
            }
        }
        false
    }

    /// Looks at the replies, one after the other in the order of the items.
    fn batch_replies(&mut self, c: usize, run: &mut BatchRun, is_late: bool) {
        let Stage::Replies { at, waits } = run.stage else { return };
        let Some(item) = (at..run.asked.len()).find(|&item| run.asked[item].is_some()) else {
            self.batch_phase(c, run, Stage::Effects);
            return self.step_soon(c, run.leader);
        };
        let (Some(asked), Some(place)) = (&run.asked[item], run.batch.place_of(item)) else {
            return;
        };
        let (now, l) = (self.thread_now(c, run.leader), usize::from(run.locks[place]));
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else { return };
        match asked.answer {
            Some(answer) => {
                run.asked[item] = None;
                run.batch.reply(item, entry, answer, now);
            }
            None if !waits => {
                let until = self.true_until(c, asked.until_ns);
                self.batch_phase(c, run, Stage::Replies { at: item, waits: true });
                return self.timer_at(c, run.leader, until);
            }
            None if is_late => {
                run.batch.deadline(item, entry, now);
            }
            None => return,
        }
        self.batch_phase(c, run, Stage::Replies { at: item + 1, waits: false });
        self.step_soon(c, run.leader);
    }

    /// Handles the deadline of the batch's wait.
    pub(super) fn batch_timer(&mut self, c: usize) {
        let Some(mut run) = self.clients[c].batch.take() else { return };
        match run.stage {
            Stage::Effects => {}
            Stage::Chains => {
                for post in run.posts.iter_mut().filter(|post| post.outcome.is_none()) {
                    post.outcome = Some(Outcome::Unknown);
                }
                self.step_soon(c, run.leader);
            }
            Stage::Replies { .. } => self.batch_replies(c, &mut run, true),
        }
        self.clients[c].batch = Some(run);
    }

    /// The client's channel is gone: everything that its batch awaits on it stays without an
    /// answer.
    pub(super) fn flush_batch(&mut self, c: usize) {
        let is_local = self.clients[c].fabric == Fabric::Shm;
        let Some(run) = &mut self.clients[c].batch else { return };
        let leader = run.leader;
        for asked in run.asked.iter_mut().flatten().filter(|asked| asked.answer.is_none()) {
            asked.answer = Some(Err(Status::BadResponse));
        }
        match run.stage {
            Stage::Effects => {}
            Stage::Chains if is_local => {}
            Stage::Chains => {
                for post in run.posts.iter_mut().filter(|post| post.outcome.is_none()) {
                    post.outcome = Some(Outcome::Unknown);
                }
                self.step_soon(c, leader);
            }
            Stage::Replies { .. } => self.step_soon(c, leader),
        }
    }

    /// Reports the results of all items together.
    fn batch_told(&mut self, c: usize, run: &BatchRun) {
        let mut told = vec![None; run.locks.len()];
        for (item, (op, _, result)) in run.batch.results().enumerate() {
            let Some(place) = run.batch.place_of(item) else { continue };
            let l = usize::from(run.locks[place]);
            let is_grant = matches!(result.status, Status::Success | Status::AlreadyLocked);
            // of two grants on one lock, which are reported together, the last has the end of the
            // lease
            if let Some(earlier) = told[place].replace((op, result)).filter(|_| !is_grant) {
                self.thread(c, l).op = earlier.0;
                if let Some(why) = self.unreleased(c, l, &earlier.1) {
                    self.fail(why);
                }
                self.told(c, l, earlier.1);
            }
        }
        for (&lock, told) in run.locks.iter().zip(told) {
            let l = usize::from(lock);
            match told {
                Some((op, result)) => {
                    self.thread(c, l).op = op;
                    self.finish(c, l, result);
                }
                // the result was decided before the batch began
                None => self.finish(c, l, OpResult::of(Status::BadResponse)),
            }
        }
    }
}
