// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients, the memory on which they operate, and what each believes to hold. A client executes
//! one effect of its operation per step, and one word operation of a chain per step.

use std::collections::{BTreeMap, VecDeque};

use dlock_core::clock::{Now, ServerTime};
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::world::Action;

const TRACE_MAX: usize = 2_000;

/// No call has a deadline: the schedule chooses when a wait has lasted too long.
const BOUNDS: Bounds = Bounds { grant_until_ns: u64::MAX, until_ns: u64::MAX };

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) words: BTreeMap<u32, u64>,
    pub(crate) ledgers: BTreeMap<(ClientId, Handle), u64>,
}

impl Memory {
    pub(crate) fn word(&mut self, addr: WordAddr) -> &mut u64 {
        self.words.entry(addr.index()).or_default()
    }
    pub(crate) fn execute(&mut self, client: ClientId, word_op: WordOp) -> u64 {
        match word_op {
            WordOp::Cas { addr, expect, swap } => {
                let word = self.word(addr);
                let old = *word;
                if old == expect {
                    *word = swap;
                }
                old
            }
            WordOp::Faa { addr, add } => {
                let word = self.word(addr);
                let old = *word;
                *word = old.wrapping_add(add);
                old
            }
            WordOp::Read { addr } | WordOp::ReadPair { addr } => *self.word(addr),
            WordOp::WriteLedger { handle, value } => {
                self.ledgers.insert((client, handle), value);
                0
            }
        }
    }
}

/// The next step of a client: the effect of its operation that it executes, or for which it waits.
#[derive(Debug)]
pub(crate) enum Doing {
    Nothing,
    Chain { chain: Chain, values: Values },
    WriteLedger(LedgerEntry),
    Ask(Request),
    Tell(Request),
    Await { cancelled: bool },
    Finish(OpResult),
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) entry: LockEntry,
    pub(crate) script: Vec<Action>,
    pub(crate) at: usize,
    pub(crate) doing: Doing,
    pub(crate) operation: Option<Operation>,
    /// The request whose reply the client waits for, and whether it is a wait for a grant.
    pub(crate) asked: Option<(Seq, bool)>,
    pub(crate) inbox: VecDeque<(Seq, Reply)>,
    pub(crate) seq: u64,
    pub(crate) gone: bool,
    /// The mode in which the client believes to hold the lock, and until when.
    pub(crate) holds: Option<(Mode, ServerTime)>,
    pub(crate) op_started: ServerTime,
}

pub(crate) struct Clients {
    pub(crate) list: Vec<Client>,
    pub(crate) memory: Memory,
    pub(crate) requests: VecDeque<(usize, Seq, Request)>,
    pub(crate) executed: Vec<(ClientId, Chain, Values)>,
    pub(crate) now: ServerTime,
    pub(crate) lock_type: LockType,
    pub(crate) by_primary: bool,
    pub(crate) impatient: bool,
    pub(crate) mortal: Option<usize>,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Vec<String>,
}

impl Clients {
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if self.trace.len() < TRACE_MAX {
            let line = line();
            self.trace.push(line);
        }
    }

    pub(crate) fn runnable(&self) -> Vec<usize> {
        (0..self.list.len()).filter(|&i| self.can_run(i)).collect()
    }

    /// Whether a client has not finished.
    pub(crate) fn waits(&self) -> bool {
        let is_done = |c: &Client| c.at >= c.script.len() && matches!(c.doing, Doing::Nothing);
        self.list.iter().any(|c| !c.gone && !is_done(c))
    }

    /// The client that may die now; `None`: none may.
    pub(crate) fn mortal(&self) -> Option<usize> {
        self.mortal.filter(|&i| {
            let c = &self.list[i];
            !c.gone && (c.at < c.script.len() || !matches!(c.doing, Doing::Nothing))
        })
    }

    pub(crate) fn die(&mut self, i: usize) {
        let c = &mut self.list[i];
        c.gone = true;
        c.holds = None;
        self.log(|| format!("client {i} is gone"));
    }

    pub(crate) fn can_run(&self, i: usize) -> bool {
        let c = &self.list[i];
        if c.gone || self.violation.is_some() {
            return false;
        }
        match &c.doing {
            Doing::Nothing => c.at < c.script.len(),
            Doing::Await { cancelled } => c.asked.is_some_and(|(seq, is_wait)| {
                c.inbox.iter().any(|(s, _)| *s == seq) || (self.impatient && !cancelled && is_wait)
            }),
            _ => true,
        }
    }

    pub(crate) fn step(&mut self, i: usize) {
        match std::mem::replace(&mut self.list[i].doing, Doing::Nothing) {
            Doing::Nothing => self.begin(i),
            Doing::Chain { chain, values } => self.chain(i, chain, values),
            Doing::WriteLedger(write) => {
                self.write_ledger(i, write);
                self.next(i);
            }
            Doing::Ask(request) => {
                let is_wait = matches!(request, Request::Wait { .. });
                let seq = self.send(i, request);
                let c = &mut self.list[i];
                c.asked = Some((seq, is_wait));
                c.doing = Doing::Await { cancelled: false };
            }
            Doing::Tell(request) => {
                self.send(i, request);
                self.next(i);
            }
            Doing::Await { .. } => self.awaited(i),
            Doing::Finish(result) => self.finish(i, result),
        }
    }

    pub(crate) fn write_ledger(&mut self, i: usize, note: LedgerEntry) {
        let (id, handle) = (self.list[i].id, self.list[i].entry.handle());
        let word_op = WordOp::WriteLedger { handle, value: note.into_bits() };
        self.memory.execute(id, word_op);
        self.log(|| format!("client {i} note {note:?}"));
        if self.by_primary {
            let values = {
                let mut v = Values::new();
                v.push(0);
                v
            };
            self.executed.push((id, Chain::one(word_op), values));
        }
    }

    fn begin(&mut self, i: usize) {
        let now = Now::exact(self.now);
        let c = &mut self.list[i];
        let op = match c.script[c.at] {
            Action::Op(op) | Action::Until(op) => op,
            Action::Crash => return self.die(i),
        };
        c.op_started = now.time;
        if op == Op::Unlock && c.entry.refs() <= 1 {
            c.holds = None; // the call of a release ends the client's belief that it holds the lock
        }
        let begun = Operation::begin(&mut c.entry, op, now, BOUNDS);
        self.log(|| format!("client {i} begins {op:?}"));
        match begun {
            Started::Done(result) => self.finish(i, result),
            Started::Running(operation) => {
                self.list[i].operation = Some(operation);
                self.next(i);
            }
        }
    }

    /// Reports something to the client's operation.
    fn event(&mut self, i: usize, report: impl FnOnce(&mut Operation, &mut LockEntry, Now)) {
        let now = Now::exact(self.now);
        let c = &mut self.list[i];
        if let Some(operation) = &mut c.operation {
            report(operation, &mut c.entry, now);
        }
        self.next(i);
    }

    /// Asks the operation of the client for its next effect.
    fn next(&mut self, i: usize) {
        let c = &mut self.list[i];
        let Some(operation) = &mut c.operation else { return };
        c.doing = match operation.next(&mut c.entry) {
            Effect::Post { chain, .. } => Doing::Chain { chain, values: Values::new() },
            Effect::WriteLedger(write) => Doing::WriteLedger(write),
            Effect::Ask { request, .. } => Doing::Ask(request),
            Effect::Tell(request) => Doing::Tell(request),
            Effect::Await { .. } => Doing::Await { cancelled: true },
            Effect::Forget => {
                c.asked = None;
                return self.next(i);
            }
            Effect::Count(_) | Effect::Wake { .. } => return self.next(i),
            Effect::ReadClock => {
                return self.event(i, |operation, _, now| operation.clock(now));
            }
            Effect::Pause { .. } | Effect::Park { .. } => {
                return self.event(i, |operation, entry, _| operation.queues(entry));
            }
            Effect::Probe { .. } => {
                return self.event(i, |operation, entry, now| {
                    operation.deadline(entry, true, now); // `true`: the primary is still there
                });
            }
            Effect::Done(result) => Doing::Finish(result),
        };
    }

    fn chain(&mut self, i: usize, chain: Chain, mut values: Values) {
        let id = self.list[i].id;
        loop {
            let word_op = chain.ops()[values.as_slice().len()];
            let value = self.memory.execute(id, word_op);
            self.log(|| format!("client {i} {word_op:x?} = {value:#x}"));
            values.push(value);
            if let WordOp::ReadPair { addr } = word_op {
                values.push(*self.memory.word(addr.next()));
            }
            if values.as_slice().len() == chain.values_len() {
                break;
            }
            if !self.by_primary {
                self.list[i].doing = Doing::Chain { chain, values };
                return;
            }
        }
        if self.by_primary {
            self.executed.push((id, chain, values));
        }
        self.event(i, |operation, entry, now| {
            operation.outcome(entry, Outcome::Done(values), now);
        });
    }

    fn send(&mut self, i: usize, request: Request) -> Seq {
        let c = &mut self.list[i];
        c.seq += 1;
        let seq = Seq(c.seq);
        self.requests.push_back((i, seq, request));
        self.log(|| format!("client {i} sends {request:?}"));
        seq
    }

    /// Passes the awaited reply to the operation; if none has come, reports that the wait has
    /// lasted too long.
    fn awaited(&mut self, i: usize) {
        let c = &mut self.list[i];
        let at = c.asked.and_then(|(seq, _)| c.inbox.iter().position(|(s, _)| *s == seq));
        let Some((_, reply)) = at.and_then(|at| c.inbox.remove(at)) else {
            self.log(|| format!("client {i} cancels"));
            return self.event(i, |operation, entry, now| operation.deadline(entry, true, now));
        };
        c.asked = None;
        self.log(|| format!("client {i} receives {reply:?}"));
        self.event(i, |operation, entry, now| operation.reply(entry, Ok(reply), now));
    }

    pub(crate) fn finish(&mut self, i: usize, result: OpResult) {
        let c = &mut self.list[i];
        c.operation = None;
        let action = c.script[c.at];
        let retry = matches!(result.status, Status::Fail | Status::Again);
        if !(matches!(action, Action::Until(_)) && retry) {
            c.at += 1;
        }
        self.log(|| format!("client {i} finished {action:?}: {:?}", result.status));
        if let Action::Op(op) | Action::Until(op) = action {
            self.believe(i, op, result.status);
        }
    }

    /// The checker: no client may believe to hold the lock in conflict with another client's
    /// belief.
    pub(crate) fn believe(&mut self, i: usize, op: Op, status: Status) {
        let granted = matches!(status, Status::Success | Status::AlreadyLocked);
        let (mode, lease) = match op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => (mode, lease),
            Op::Extend { mode, lease } if !lease.is_none() => (mode, lease),
            _ => {
                if matches!(op, Op::Extend { .. }) && !granted {
                    self.list[i].holds = None;
                }
                return;
            }
        };
        if !granted {
            if !matches!(status, Status::Invalid) && self.list[i].entry.refs() == 0 {
                self.list[i].holds = None;
            }
            return;
        }
        let until = match self.lock_type {
            LockType::Rw => ServerTime(u64::MAX),
            _ => self.list[i].op_started.plus_ns(lease.ns()),
        };
        let until = self.list[i].holds.map_or(until, |(_, before)| before.max(until));
        self.list[i].holds = Some((mode, until));
        let now = self.now;
        for (j, other) in self.list.iter().enumerate() {
            let Some((theirs, their_end)) = other.holds else { continue };
            if j == i || their_end <= now || until <= now {
                continue;
            }
            if mode == Mode::Exclusive || theirs == Mode::Exclusive {
                self.violation =
                    Some(format!("clients {i} ({mode:?}) and {j} ({theirs:?}) both hold the lock"));
            }
        }
    }
}
