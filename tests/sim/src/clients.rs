// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients, the memory they operate on, and what each believes to hold.

use std::collections::{BTreeMap, VecDeque};

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::lock::{Begin, LockEntry, Machine, Op, OpResult, Step};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, Values, Verb, WordAddr};
use dlock_core::words::LedgerEntry;

use crate::world::Action;

const TRACE_MAX: usize = 2_000;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) words: BTreeMap<u32, u64>,
    pub(crate) ledgers: BTreeMap<(ClientId, Handle), u64>,
}

impl Memory {
    pub(crate) fn word(&mut self, addr: WordAddr) -> &mut u64 {
        self.words.entry(addr.index()).or_default()
    }
    pub(crate) fn execute(&mut self, client: ClientId, verb: Verb) -> u64 {
        match verb {
            Verb::Cas { addr, expect, swap } => {
                let word = self.word(addr);
                let old = *word;
                if old == expect {
                    *word = swap;
                }
                old
            }
            Verb::Faa { addr, add } => {
                let word = self.word(addr);
                let old = *word;
                *word = old.wrapping_add(add);
                old
            }
            Verb::Read { addr } => *self.word(addr),
            Verb::Note { handle, value } => {
                self.ledgers.insert((client, handle), value);
                0
            }
        }
    }
}

/// Where a client is within its current operation.
#[derive(Debug)]
pub(crate) enum Doing {
    Nothing,
    Chain { machine: Machine, chain: Chain, values: Values, note: Option<LedgerEntry> },
    Confirm { machine: Machine, note: Option<LedgerEntry> },
    Send { machine: Machine, request: Request, note: Option<LedgerEntry> },
    Await { machine: Machine, seq: Seq, cancelled: bool },
    Finish { result: OpResult, note: Option<LedgerEntry> },
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) entry: LockEntry,
    pub(crate) script: Vec<Action>,
    pub(crate) at: usize,
    pub(crate) doing: Doing,
    pub(crate) inbox: VecDeque<(Seq, Reply)>,
    pub(crate) seq: u64,
    pub(crate) gone: bool,
    /// What it believes to hold, until when.
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

    /// The client that may die now.
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
            Doing::Await { machine, seq, cancelled } => {
                c.inbox.iter().any(|(s, _)| s == seq)
                    || (self.impatient && !cancelled && machine.cancel(&c.entry).is_some())
            }
            _ => true,
        }
    }

    pub(crate) fn step(&mut self, i: usize) {
        let now = Now::exact(self.now);
        let doing = std::mem::replace(&mut self.list[i].doing, Doing::Nothing);
        match doing {
            Doing::Nothing => self.begin(i, now),
            Doing::Chain { machine, chain, values, note: Some(note) } => {
                self.note(i, note);
                self.list[i].doing = Doing::Chain { machine, chain, values, note: None };
            }
            Doing::Chain { machine, chain, values, .. } => {
                self.chain(i, machine, chain, values, now);
            }
            Doing::Confirm { machine, note: Some(note) } => {
                self.note(i, note);
                self.list[i].doing = Doing::Confirm { machine, note: None };
            }
            Doing::Confirm { mut machine, .. } => {
                let c = &mut self.list[i];
                let step = machine.outcome(&mut c.entry, Outcome::Done(Values::new()), now);
                self.follow(i, machine, step);
            }
            Doing::Send { machine, request, note: Some(note) } => {
                self.note(i, note);
                self.list[i].doing = Doing::Send { machine, request, note: None };
            }
            Doing::Send { machine, request, .. } => self.send(i, machine, request, now),
            Doing::Await { machine, seq, cancelled } => {
                self.awaited(i, machine, seq, cancelled, now);
            }
            Doing::Finish { result, note: Some(note) } => {
                self.note(i, note);
                self.list[i].doing = Doing::Finish { result, note: None };
            }
            Doing::Finish { result, .. } => self.finish(i, result),
        }
    }

    pub(crate) fn note(&mut self, i: usize, note: LedgerEntry) {
        let (id, handle) = (self.list[i].id, self.list[i].entry.handle());
        let verb = Verb::Note { handle, value: note.into_bits() };
        self.memory.execute(id, verb);
        self.log(|| format!("client {i} note {note:?}"));
        if self.by_primary {
            let values = {
                let mut v = Values::new();
                v.push(0);
                v
            };
            self.executed.push((id, Chain::one(verb), values));
        }
    }

    pub(crate) fn begin(&mut self, i: usize, now: Now) {
        let c = &mut self.list[i];
        let op = match c.script[c.at] {
            Action::Op(op) | Action::Until(op) => op,
            Action::Crash => return self.die(i),
        };
        c.op_started = now.time;
        if op == Op::Unlock && c.entry.refs() <= 1 {
            c.holds = None; // from here on it does not touch the resource
        }
        let begun = c.entry.begin(op, now);
        self.log(|| format!("client {i} begins {op:?}"));
        match begun {
            Begin::Local(result) => self.finish(i, result),
            Begin::Run(machine, step) => self.follow(i, machine, step),
        }
    }

    pub(crate) fn follow(&mut self, i: usize, machine: Machine, step: Step) {
        let c = &mut self.list[i];
        let note = c.entry.take_note();
        c.doing = match step {
            Step::Chain(chain) => Doing::Chain { machine, chain, values: Values::new(), note },
            Step::Confirm => Doing::Confirm { machine, note },
            Step::Request(request) => Doing::Send { machine, request, note },
            Step::Done(result) => Doing::Finish { result, note },
        };
    }

    pub(crate) fn chain(
        &mut self,
        i: usize,
        mut machine: Machine,
        chain: Chain,
        mut values: Values,
        now: Now,
    ) {
        let id = self.list[i].id;
        loop {
            let done = values.as_slice().len();
            let verb = chain.verbs()[done];
            let value = self.memory.execute(id, verb);
            self.log(|| format!("client {i} {verb:x?} = {value:#x}"));
            values.push(value);
            if values.as_slice().len() == chain.verbs().len() {
                break;
            }
            if !self.by_primary {
                let note = None;
                self.list[i].doing = Doing::Chain { machine, chain, values, note };
                return;
            }
        }
        if self.by_primary {
            self.executed.push((id, chain, values));
        }
        let step = machine.outcome(&mut self.list[i].entry, Outcome::Done(values), now);
        self.follow(i, machine, step);
    }

    pub(crate) fn send(&mut self, i: usize, mut machine: Machine, request: Request, now: Now) {
        let c = &mut self.list[i];
        c.seq += 1;
        let seq = Seq(c.seq);
        self.requests.push_back((i, seq, request));
        self.log(|| format!("client {i} sends {request:?}"));
        let c = &mut self.list[i];
        if request.has_reply() {
            c.doing = Doing::Await { machine, seq, cancelled: false };
            return;
        }
        let step = machine.reply(&mut c.entry, Ok(Reply::Done { word: 0 }), now);
        self.follow(i, machine, step);
    }

    pub(crate) fn awaited(
        &mut self,
        i: usize,
        mut machine: Machine,
        seq: Seq,
        cancelled: bool,
        now: Now,
    ) {
        let c = &mut self.list[i];
        let Some(at) = c.inbox.iter().position(|(s, _)| *s == seq) else {
            let cancel =
                machine.cancel(&c.entry).expect("can_run has seen that it can be cancelled");
            c.seq += 1;
            let cancel_seq = Seq(c.seq);
            c.doing = Doing::Await { machine, seq, cancelled: true };
            self.requests.push_back((i, cancel_seq, cancel));
            self.log(|| format!("client {i} cancels"));
            return;
        };
        debug_assert!(!cancelled || at < usize::MAX);
        let (_, reply) = c.inbox.remove(at).expect("the position was just found");
        let step = machine.reply(&mut c.entry, Ok(reply), now);
        self.log(|| format!("client {i} receives {reply:?}"));
        self.follow(i, machine, step);
    }

    pub(crate) fn finish(&mut self, i: usize, result: OpResult) {
        let c = &mut self.list[i];
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

    /// The checker: nobody may believe to hold what another one believes to hold.
    pub(crate) fn believe(&mut self, i: usize, op: Op, status: Status) {
        let granted = matches!(status, Status::Success | Status::AlreadyLocked);
        let (mode, expire_s) = match op {
            Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s } => (mode, expire_s),
            Op::Extend { mode, expire_s } if expire_s > 0 => (mode, expire_s),
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
            _ => self.list[i].op_started.plus_ns(u64::from(expire_s) * NS),
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
