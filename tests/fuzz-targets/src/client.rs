// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's lock entry and its operations, fed with outcomes and replies as no primary, a broken
//! one, or a hostile one would give them.
//!
//! Every operation ends within a bounded number of effects; the entry stays usable
//! and in one of its states; what it tells a recovering primary can be told.

use dlock_core::clock::{Deadline, Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Seq, Slot};
use dlock_core::lock::{EntryState, LockEntry, Op, OpResult, View};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp, CHAIN_OPS_MAX};
use dlock_core::memory::words::Ticket;
use dlock_core::operation::{ended_by, Bounds, Effect, Operation, Started, STEPS_MAX};
use dlock_core::wire::codec::{self, Frame, Kind, HEADER_LEN};
use dlock_core::wire::control::{ControlRequest, LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::tape::Tape;

const OPS_MAX: usize = 60;
/// The most effects of an operation: each step of its machine has only a few, such as a ledger
/// write, a request and a cancel.
const EFFECTS_MAX: u32 = 4 * STEPS_MAX;
use dlock_core::token::Token;

struct World {
    entry: LockEntry,
    word: u64,
    now: Now,
}

/// Drives one lock entry by the choices in these bytes.
///
/// # Panics
/// If the entry panics, or breaks a rule in the comment at the top of this file.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let lock_type = [LockType::Atomic, LockType::Rw, LockType::Fair][tape.below(3)];
    let word = if tape.flip() { tape.u64() } else { 0 };
    let grant = LockGrant {
        lock: LockId(5),
        handle: Handle(3),
        slot: Slot(9),
        word,
        already: false,
        tokens: false,
    };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
    let Some(me) = ClientId::new(7) else { return };
    let mut entry = LockEntry::new(me, 1_000, lock_type, &grant, desc);
    entry.caches(tape.flip());
    let uncertainty_ns = u64::from(tape.u16());
    let now = Now::within(ServerTime(1_000 * NS), uncertainty_ns);
    let mut world = World { entry, word, now };
    for _ in 0..OPS_MAX {
        if tape.is_over() {
            break;
        }
        world.operate(&mut tape);
        world.check();
    }
}

impl World {
    fn operate(&mut self, tape: &mut Tape<'_>) {
        self.pass_time(tape);
        let bounds = match tape.u8() {
            0 => Bounds::since(self.now.local_ns.wrapping_sub(tape.u64())),
            _ => Bounds::since(self.now.local_ns),
        };
        let started = match tape.below(14) {
            0 => return self.entry.lose(),
            12 => {
                if !self.entry_is_held() {
                    self.entry.leaves();
                }
                return;
            }
            13 => return self.first(tape, bounds),
            1 => match Operation::undo(&mut self.entry, self.now, bounds) {
                Some(operation) => Started::Running(operation),
                None => return,
            },
            2 => {
                let slot = Slot(u32::from(tape.u8()));
                let (lock, handle, word) = (LockId(6), Handle(1), self.word);
                self.entry.rebind(
                    &LockGrant { lock, handle, slot, word, already: false, tokens: false },
                    1_001,
                );
                return;
            }
            _ => Operation::begin(&mut self.entry, op(tape), self.now, bounds),
        };
        if let Started::Running(operation) = started {
            self.carry_out(tape, operation);
        }
        let _ = self.entry.take_ledger_write();
    }

    /// Begins with the first effect, as the library does.
    fn first(&mut self, tape: &mut Tape<'_>, bounds: Bounds) {
        let (op, begun) = (op(tape), self.now);
        let (chain, first) = match self.entry.first_op(op, &begun) {
            Some((word_op, first)) => (Chain::one(word_op), first),
            None => match self.entry.first_chain(op, &begun) {
                Some(first) => (self.entry.chain_of(op, first), first),
                None => return,
            },
        };
        let outcome = self.outcome(tape, chain.ops());
        self.pass_time(tape);
        if let Outcome::Done(values) = &outcome {
            let (values, now) = (values.as_slice(), self.now);
            if let Some(result) = ended_by(&mut self.entry, op, first, values, &begun, &now) {
                return self.done(result);
            }
        }
        let mut operation = Operation::after(&self.entry, op, first, begun, bounds);
        operation.outcome(&mut self.entry, outcome, self.now);
        self.carry_out(tape, operation);
    }

    /// Carries the effects of an operation out; the answers are such as a broken or a hostile
    /// primary might give.
    fn carry_out(&mut self, tape: &mut Tape<'_>, mut operation: Operation) {
        for _ in 0..EFFECTS_MAX {
            let effect = operation.next(&mut self.entry);
            self.pass_time(tape);
            match effect {
                Effect::Done(result) => {
                    if tape.u8() == 99 {
                        operation.told_late(&self.entry, self.now);
                        continue;
                    }
                    return self.done(result);
                }
                Effect::Post { chain, .. } => {
                    assert!((1..=CHAIN_OPS_MAX).contains(&chain.ops().len()));
                    let outcome = self.outcome(tape, chain.ops());
                    operation.outcome(&mut self.entry, outcome, self.now);
                }
                Effect::Ask { request, .. } => {
                    self.sendable(&request);
                    self.answered(tape, &mut operation);
                }
                Effect::Probe { .. } | Effect::Await { .. } => {
                    self.answered(tape, &mut operation);
                }
                Effect::Tell(request) => self.sendable(&request),
                Effect::ReadClock => operation.clock(self.now),
                Effect::Pause { .. } | Effect::Park { .. } => match tape.below(8) {
                    0 => operation.queues(&mut self.entry),
                    1 => operation.replaced(&mut self.entry, self.now),
                    _ => operation.paused(&mut self.entry, self.now),
                },
                Effect::WriteLedger(_)
                | Effect::Wake { .. }
                | Effect::Forget
                | Effect::Count(_) => {}
            }
        }
        panic!("no end: {operation:?}");
    }

    /// Feeds the operation with what may follow a request: a reply, a deadline without one, a new
    /// session, or a caller that gives up.
    fn answered(&mut self, tape: &mut Tape<'_>, operation: &mut Operation) {
        let now = self.now;
        match tape.below(16) {
            0 => operation.give_up(&mut self.entry, Status::TimedOut, now),
            1 => operation.replaced(&mut self.entry, now),
            2 | 3 => operation.deadline(&self.entry, tape.flip(), now),
            _ => {
                let reply = self.reply(tape);
                operation.reply(&mut self.entry, reply, now);
            }
        }
    }

    /// Checks that the result fits the state of the entry.
    fn done(&self, result: OpResult) {
        let held = self.entry_is_held();
        if result.status == Status::Fail {
            return;
        }
        let fits = match result.view {
            None => true,
            Some(View::Atomic { .. }) => self.entry.lock_type() == LockType::Atomic,
            Some(View::Rw { .. }) => self.entry.lock_type() == LockType::Rw,
            Some(View::Fair { .. }) => self.entry.lock_type() == LockType::Fair,
        };
        assert!(fits, "{result:?}");
        assert!(result.status != Status::AlreadyLocked || held, "{result:?} but {:?}", self.entry);
    }

    fn entry_is_held(&self) -> bool {
        matches!(self.entry.state(), EntryState::ExclusiveLocked | EntryState::SharedLocked)
    }

    fn check(&self) {
        use EntryState as S;
        let held = self.entry_is_held();
        assert_eq!(held, self.entry.refs() > 0, "{:?}", self.entry);
        let fair = self.entry.lock_type() == LockType::Fair;
        let ticketed = matches!(self.entry.state(), S::ExclusiveTicketed | S::SharedTicketed);
        assert!(fair || !ticketed, "{:?}", self.entry);
        let shared = self.entry.state() == S::SharedLocked;
        assert!(self.entry.lock_type() != LockType::Atomic || !shared, "{:?}", self.entry);
        let claim = ControlRequest::UpdateLocks(vec![self.entry.claim(self.now, Epoch(1))]);
        survives(Kind::Control, Frame::Control(Seq(1), claim));
    }

    fn sendable(&self, request: &Request) {
        assert_eq!(request.handle(), Some(self.entry.handle()));
        survives(Kind::Request, Frame::Request(Seq(1), *request));
    }

    fn outcome(&mut self, tape: &mut Tape<'_>, verbs: &[WordOp]) -> Outcome {
        match tape.below(8) {
            0 => Outcome::Unknown,
            1 => Outcome::Refused(status(tape)),
            2 => {
                let mut values = Values::new();
                for _ in 0..tape.below(CHAIN_OPS_MAX + 1) {
                    values.push(self.any_word(tape));
                }
                Outcome::Done(values)
            }
            3 => {
                self.word = self.any_word(tape);
                self.execute(verbs)
            }
            _ => self.execute(verbs),
        }
    }

    /// Executes word operations on a memory that has a single word.
    fn execute(&mut self, verbs: &[WordOp]) -> Outcome {
        let mut values = Values::new();
        for word_op in verbs {
            let old = self.word;
            match *word_op {
                WordOp::Cas { expect, swap, .. } if expect == old => self.word = swap,
                WordOp::Cas { .. }
                | WordOp::Read { .. }
                | WordOp::ReadPair { .. }
                | WordOp::WriteLedger { .. } => {}
                WordOp::Faa { add, .. } => self.word = old.wrapping_add(add),
            }
            values.push(if matches!(word_op, WordOp::WriteLedger { .. }) { 0 } else { old });
            if matches!(word_op, WordOp::ReadPair { .. }) {
                values.push(0);
            }
        }
        Outcome::Done(values)
    }

    fn any_word(&self, tape: &mut Tape<'_>) -> u64 {
        match tape.below(4) {
            0 => tape.u64(),
            1 => self.word ^ 1 << 63,
            2 => self.word.wrapping_add(1 << (tape.u8() & 63)),
            _ => 7 << 32 | u64::from(tape.seconds()),
        }
    }

    fn reply(&mut self, tape: &mut Tape<'_>) -> Result<Reply, Status> {
        let word = if tape.flip() { self.word } else { self.any_word(tape) };
        let ticket = Ticket { lap: 0, tx: tape.u8().into(), ts: tape.u16().into() };
        Ok(match tape.below(8) {
            0 => return Err(status(tape)),
            1 => Reply::Queued { word, ticket },
            2 => Reply::Denied { status: status(tape), word },
            3 => Reply::Cancelled { word },
            4 | 5 => Reply::Done { word },
            6 if tape.flip() => Reply::Pong { at: self.now.time },
            6 => Reply::Contended { waiters: 1, until: self.now.time },
            _ => Reply::Granted {
                word,
                deadline: Deadline(tape.u32()),
                at: self.now.time,
                ticket: tape.flip().then_some(ticket),
                token: Token(tape.seconds().into()),
            },
        })
    }

    fn pass_time(&mut self, tape: &mut Tape<'_>) {
        let ns = match tape.u8() {
            255 => tape.u64(),
            long @ 240..=254 => u64::from(long - 239) * NS,
            short => u64::from(short),
        };
        self.now.time = self.now.time.plus_ns(ns);
        self.now.local_ns = self.now.local_ns.saturating_add(ns);
    }
}

/// Checks that a frame is the same after it was encoded and decoded.
fn survives(kind: Kind, frame: Frame) {
    let mut bytes = Vec::new();
    codec::encode(&frame, &mut bytes);
    assert_eq!(codec::decode(kind, &bytes[HEADER_LEN..]), Ok(frame));
}

/// A random refusal. It is not a success: a client cannot tell a hostile primary that refuses with
/// a success from one that grants.
fn status(tape: &mut Tape<'_>) -> Status {
    match Status::ALL[tape.below(Status::ALL.len())] {
        Status::Success | Status::Done | Status::AlreadyLocked => Status::Error,
        status => status,
    }
}

fn op(tape: &mut Tape<'_>) -> Op {
    let mode = if tape.flip() { Mode::Shared } else { Mode::Exclusive };
    match tape.below(5) {
        0 | 1 => Op::TryLock { mode, lease: tape.lease() },
        2 => Op::Lock { mode, lease: tape.lease() },
        3 => Op::Unlock,
        _ if mode == Mode::Shared && tape.flip() => Op::Downgrade,
        _ => Op::Extend { mode, lease: tape.lease() },
    }
}
