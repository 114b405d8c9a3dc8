// SPDX-License-Identifier: MIT OR Apache-2.0
//! One step of a client: one effect of its operation, or one word operation of a chain.
//! [`Operation`] decides what they are.

use dlock_core::clock::{Lease, Now, ServerTime};
use dlock_core::ids::Seq;
use dlock_core::lock::{EntryState, LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordOp};
use dlock_core::memory::words::{LedgerEntry, LedgerState};
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::bug::Bug;
use crate::check;
use crate::state::{Doing, Event, Setup, State, CLIENTS};

/// Deadlines are actions of the model: no call has one of its own.
const BOUNDS: Bounds = Bounds { grant_until_ns: u64::MAX, until_ns: u64::MAX };

/// The parts of the model that a step of a client needs besides the state.
pub(crate) struct Around<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) seen: &'a dyn Fn(Event),
}

impl State {
    pub(crate) fn finished(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        matches!(c.doing, Doing::Nothing) && c.at >= setup.scripts[i].len() && !c.entry.in_doubt()
    }

    pub(crate) fn can_step(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        if c.gone {
            // the last word operation of a dead client may still be under way
            let late = setup.bug == Some(Bug::ForgottenBeforeFenced);
            return late && matches!(c.doing, Doing::Chain { .. });
        }
        if !self.may_act(i, setup) {
            return false;
        }
        match &c.doing {
            Doing::Nothing => !self.finished(i, setup),
            // the primary executes a chain only between two calls of its arbiter
            Doing::Chain { .. } if setup.by_primary => self.call.is_none(),
            Doing::Await { seq, .. } => c.inbox.iter().any(|(s, _)| s == seq),
            Doing::Chain { .. } | Doing::WriteLedger(_) | Doing::Pause => true,
            Doing::Ask(_) | Doing::Tell(_) | Doing::Finish(_) => true,
        }
    }

    pub(crate) fn can_cancel(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        let waits = |request: &Request| matches!(request, Request::Wait { .. });
        match &c.doing {
            Doing::Await { request, cancelled: false, .. } => {
                setup.impatient && !c.gone && waits(request)
            }
            _ => false,
        }
    }

    /// Whether the outcome or reply that the client waits for may be lost now.
    pub(crate) fn can_lose(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        self.losses > 0
            && !c.gone
            && match &c.doing {
                Doing::Chain { .. } => !setup.by_primary || self.call.is_none(),
                Doing::Await { .. } => true,
                _ => false,
            }
    }

    pub(crate) fn step(&mut self, i: usize, around: &Around<'_>) {
        self.one_step(i, around);
        self.settle(i, around);
    }

    /// Carries out the steps of a client whose order among the steps of others does not matter, as
    /// part of the step before. Sending is one of them, because a request may be served late in any
    /// case. Learning of a result is another: a client that believes in its hold at once believes
    /// in it for longest.
    pub(crate) fn settle(&mut self, i: usize, around: &Around<'_>) {
        let setup = around.setup;
        loop {
            let c = &self.clients[i];
            let local = match &c.doing {
                Doing::Finish(_) | Doing::Ask(_) | Doing::Tell(_) => true,
                Doing::Await { .. } => {
                    // where the client may give up, or lose the answer, that must stay possible
                    // before it takes the answer
                    let is_sure = self.deaths == 0 && !self.recovers();
                    !setup.impatient && setup.losses == 0 && is_sure && self.can_step(i, setup)
                }
                Doing::Nothing if !c.gone && self.may_act(i, setup) => {
                    // without pauses it does not matter when the client begins an operation; but a
                    // release ends what the client believes to hold, so it is a step
                    let timeless = setup.lock_type == LockType::Rw || self.pauses == 0;
                    let op = setup.scripts[i].get(c.at);
                    timeless && op.is_some_and(|&op| op != Op::Unlock)
                }
                _ => false,
            };
            if !local || c.gone {
                break;
            }
            self.one_step(i, around);
        }
        let c = &self.clients[i];
        if self.finished(i, setup) && c.entry.refs() == 0 && !c.gone {
            // the client is finished, so what it remembers is of no use
            self.clients[i].forget_all(i, setup);
        }
    }

    fn one_step(&mut self, i: usize, around: &Around<'_>) {
        match std::mem::replace(&mut self.clients[i].doing, Doing::Nothing) {
            Doing::Nothing => self.begin(i, around),
            Doing::WriteLedger(write) => {
                self.write_ledger(i, write);
                self.next(i, around);
            }
            Doing::Chain { chain, values } => self.chain(i, chain, values, around),
            Doing::Pause => self.event(i, around, Operation::paused),
            Doing::Ask(request) => {
                let seq = self.send(i, request, around);
                let c = &mut self.clients[i];
                c.asked = Some((seq, request));
                c.doing = Doing::Await { seq, request, cancelled: false };
            }
            Doing::Tell(request) => {
                self.send(i, request, around);
                self.next(i, around);
            }
            Doing::Await { seq, request, cancelled } => {
                self.receive(i, seq, request, cancelled, around);
            }
            Doing::Finish(result) => self.finish(i, result, around),
        }
    }

    fn begin(&mut self, i: usize, around: &Around<'_>) {
        let now = self.clock(i, around.setup);
        let true_now = self.now;
        let c = &mut self.clients[i];
        let script = around.setup.scripts[i].get(c.at).copied();
        let Some(op) = script.or(asks(&c.entry)) else {
            // after the script: the library's own undo of what is in doubt
            c.operation = Operation::undo(&mut c.entry, now, BOUNDS);
            return match c.operation {
                Some(_) => self.next(i, around),
                None => self.violate("a client ends in doubt of what it believes to hold"),
            };
        };
        c.started = true_now;
        if op == Op::Unlock && c.entry.refs() <= 1 {
            // from its release on the client does not rely on the hold
            let until = c.holds.take().map(|(_, until)| until);
            let is_checked =
                around.setup.successor.is_some() || c.entry.lock_type() == LockType::Fair;
            c.releases = until.filter(|_| is_checked);
        }
        if c.entry.in_doubt() {
            (around.seen)(Event::Resolved);
        }
        c.tries = around.setup.tries;
        match Operation::begin(&mut c.entry, op, now, BOUNDS) {
            Started::Done(result) => self.finish(i, result, around),
            Started::Running(operation) => {
                c.operation = Some(operation);
                self.next(i, around);
            }
        }
    }

    /// Reports an event to the client's operation, and asks the operation for its next effect.
    pub(crate) fn event(
        &mut self,
        i: usize,
        around: &Around<'_>,
        report: impl FnOnce(&mut Operation, &mut LockEntry, Now),
    ) {
        let now = self.clock(i, around.setup);
        let c = &mut self.clients[i];
        if let Some(operation) = &mut c.operation {
            report(operation, &mut c.entry, now);
        }
        self.next(i, around);
    }

    pub(crate) fn next(&mut self, i: usize, around: &Around<'_>) {
        let now = self.clock(i, around.setup);
        let c = &mut self.clients[i];
        let Some(operation) = &mut c.operation else { return };
        c.doing = match operation.next(&mut c.entry) {
            Effect::Post { chain, .. } => {
                let chain = broken(chain, c.entry.state(), around.setup);
                Doing::Chain { chain, values: Values::new() }
            }
            Effect::WriteLedger(write) => Doing::WriteLedger(write),
            Effect::Ask { request, .. } => Doing::Ask(request),
            Effect::Tell(request) => Doing::Tell(request),
            Effect::Await { .. } => match c.asked {
                Some((seq, request)) => Doing::Await { seq, request, cancelled: true },
                None => return self.violate("a reply is awaited, and nothing was asked"),
            },
            Effect::ReadClock => {
                operation.clock(now);
                return self.next(i, around);
            }
            Effect::Park { .. } => {
                (around.seen)(Event::Parked);
                Doing::Pause
            }
            Effect::Pause { .. } if c.tries > 0 => {
                c.tries -= 1;
                Doing::Pause
            }
            Effect::Pause { .. } => {
                operation.queues(&mut c.entry);
                return self.next(i, around);
            }
            Effect::Probe { .. } => {
                operation.deadline(&c.entry, true, now); // `true`: the client hears its primary
                return self.next(i, around);
            }
            Effect::Forget => {
                c.asked = None;
                return self.next(i, around);
            }
            Effect::Count(_) | Effect::Wake { .. } => return self.next(i, around),
            Effect::Done(result) => Doing::Finish(result),
        };
    }

    fn write_ledger(&mut self, i: usize, note: LedgerEntry) {
        if self.recovers() {
            return; // no arbiter reads what is written at the predecessor
        }
        self.ledgers[i] = note;
    }

    pub(crate) fn word_op(&mut self, i: usize, word_op: WordOp, around: &Around<'_>) -> u64 {
        let old = self.word;
        if self.recovers() && (0..CLIENTS).any(|i| !self.is_away(i)) {
            (around.seen)(Event::LeftBehind);
        }
        match word_op {
            WordOp::Cas { addr, expect, swap } => {
                if addr.word() == Word::W1 {
                    let turn = self.turn;
                    if turn != expect {
                        (around.seen)(Event::ReleaseRaced);
                    }
                    self.turn = if turn == expect { swap } else { turn };
                    return turn;
                }
                let unlocks = self.clients[i].entry.refs() > 0;
                let blind = around.setup.bug == Some(Bug::BlindRelease) && unlocks;
                if old == expect || blind {
                    self.word = swap;
                }
                if blind {
                    return expect;
                }
            }
            WordOp::Faa { add, .. } => self.word = old.wrapping_add(add),
            WordOp::Read { addr } | WordOp::ReadPair { addr } => return *self.word_at(addr),
            WordOp::WriteLedger { value, .. } => {
                self.write_ledger(i, LedgerEntry::from_bits(value));
                return 0;
            }
        }
        old
    }

    /// Checks an exclusive ticket that has its turn without the arbiter: it must not pass over a
    /// waiter.
    fn saw_turn(&mut self, i: usize) {
        let ticket = self.clients[i].entry.ticket();
        if let Some(ticket) = ticket {
            check::overtakes(self, i, Mode::Exclusive, ticket);
        }
    }

    /// Executes the next word operation of a chain. One that has two values is the last of its
    /// chain.
    pub(crate) fn execute_next(
        &mut self,
        i: usize,
        chain: &Chain,
        values: &mut Values,
        around: &Around<'_>,
    ) {
        let word_op = chain.ops()[values.as_slice().len()];
        values.push(self.word_op(i, word_op, around));
        if let WordOp::ReadPair { addr } = word_op {
            let second = *self.word_at(addr.next());
            values.push(second);
        }
    }

    fn chain(&mut self, i: usize, chain: Chain, mut values: Values, around: &Around<'_>) {
        loop {
            self.execute_next(i, &chain, &mut values, around);
            if values.as_slice().len() == chain.values_len() {
                break;
            }
            if !around.setup.by_primary {
                self.clients[i].doing = Doing::Chain { chain, values };
                return;
            }
        }
        self.executed(i, &chain, &values, around.setup);
        if self.clients[i].gone {
            return; // the client has died meanwhile
        }
        let values = unbroken(values, &chain, around.setup);
        let took_over = chain.ops().iter().zip(values.as_slice()).any(|(word_op, &old)| {
            matches!(*word_op, WordOp::Cas { expect, swap, .. } if old == expect && expect != 0
                && swap != 0 && around.setup.lock_type == LockType::Atomic)
        });
        if took_over && self.clients[i].entry.refs() == 0 {
            (around.seen)(Event::TakenOver);
        }
        let looked = self.clients[i].entry.state() == EntryState::ExclusiveTicketed;
        self.event(i, around, |operation, entry, now| {
            operation.outcome(entry, Outcome::Done(values), now);
        });
        if looked && self.clients[i].entry.state() == EntryState::ExclusiveLocked {
            (around.seen)(Event::SawTurn);
            self.saw_turn(i);
        }
        let Doing::Chain { chain: next, .. } = &self.clients[i].doing else { return };
        let back = |v: &WordOp| matches!(v, WordOp::Faa { add: u64::MAX, .. });
        if around.setup.lock_type == LockType::Rw && next.ops().iter().any(back) {
            (around.seen)(Event::SteppedBack);
        }
    }

    /// Sends a request to the arbiter, and returns its number.
    fn send(&mut self, i: usize, request: Request, around: &Around<'_>) -> Seq {
        let wake = matches!(request, Request::Wake { .. });
        let recovers = self.recovers(); // if so, no primary gets the request
        let c = &mut self.clients[i];
        c.seq += 1;
        let seq = Seq(c.seq);
        if wake {
            (around.seen)(Event::Woken);
        }
        let is_lost = wake && around.setup.bug == Some(Bug::WakeLost);
        if !is_lost && !recovers {
            c.sent.push_back((seq, request));
        }
        seq
    }

    /// Reports to the operation that its wait has lasted too long.
    pub(crate) fn cancel(&mut self, i: usize, around: &Around<'_>) {
        self.event(i, around, |operation, entry, now| operation.deadline(entry, true, now));
        self.settle(i, around);
    }

    fn receive(
        &mut self,
        i: usize,
        seq: Seq,
        request: Request,
        cancelled: bool,
        around: &Around<'_>,
    ) {
        let c = &mut self.clients[i];
        let at = c.inbox.iter().position(|(s, _)| *s == seq);
        let Some((_, mut reply)) = at.and_then(|at| c.inbox.remove(at)) else {
            c.doing = Doing::Await { seq, request, cancelled };
            return;
        };
        c.asked = None;
        match (reply, request) {
            (Reply::Granted { .. }, Request::Steal { .. }) => (around.seen)(Event::Stolen),
            (Reply::Granted { word, .. }, _) if cancelled => {
                (around.seen)(Event::GrantCrossedCancel);
                if around.setup.bug == Some(Bug::GrantDropped) {
                    reply = Reply::Cancelled { word };
                }
            }
            (Reply::Cancelled { .. }, _) => (around.seen)(Event::Cancelled),
            _ => {}
        }
        if matches!(request, Request::TakeTicket { .. }) {
            (around.seen)(Event::TicketByArbiter);
        }
        self.event(i, around, |operation, entry, now| operation.reply(entry, Ok(reply), now));
    }

    /// Loses the outcome of the client's chain, which took effect as far as it had come (`all`: to
    /// its end); or loses the awaited reply.
    pub(crate) fn lose(&mut self, i: usize, all: bool, around: &Around<'_>) {
        self.losses -= 1;
        match std::mem::replace(&mut self.clients[i].doing, Doing::Nothing) {
            Doing::Chain { chain, mut values } => {
                while all && values.as_slice().len() < chain.values_len() {
                    self.execute_next(i, &chain, &mut values, around);
                }
                if all {
                    self.executed(i, &chain, &values, around.setup);
                }
                self.event(i, around, |operation, entry, now| {
                    operation.outcome(entry, Outcome::Unknown, now);
                });
            }
            Doing::Await { seq, .. } => {
                let c = &mut self.clients[i];
                c.inbox.retain(|(s, _)| *s != seq);
                c.asked = None;
                self.event(i, around, |operation, entry, now| {
                    operation.reply(entry, Err(Status::BadResponse), now);
                });
            }
            other => {
                self.clients[i].doing = other;
                return;
            }
        }
        self.settle(i, around);
    }

    pub(crate) fn die(&mut self, i: usize, around: &Around<'_>) {
        let is_in_recovery = self.recovers() && !self.is_away(i);
        let c = &mut self.clients[i];
        if c.holds.is_some() {
            (around.seen)(Event::DiedHolding);
        }
        if is_in_recovery {
            (around.seen)(Event::DiedInRecovery);
        }
        if matches!(&c.doing, Doing::Chain { values, .. } if !values.as_slice().is_empty()) {
            (around.seen)(Event::DiedInChain);
        }
        c.gone = true;
        c.holds = None;
        c.inbox.clear();
        if around.setup.bug != Some(Bug::ForgottenBeforeFenced) {
            c.forget_all(i, around.setup);
        }
    }

    pub(crate) fn finish(&mut self, i: usize, result: OpResult, around: &Around<'_>) {
        let now = self.clock(i, around.setup);
        let c = &mut self.clients[i];
        (c.operation, c.asked) = (None, None);
        let releases = c.releases.take();
        let believed = c.holds.map(|(_, until)| until).or(releases);
        if result.status == Status::Fail {
            self.is_told_of_loss(believed, around.setup);
        }
        let c = &mut self.clients[i];
        if c.entry.ticket().is_none() {
            c.place = None;
        }
        let Some(&op) = around.setup.scripts[i].get(c.at) else { return };
        let until = c.started;
        c.started = ServerTime(0);
        // a call that found no primary is made again at the successor; a caller repeats an unlock
        // whose answer was lost
        let is_cut_off = around.setup.successor.is_some() && result.status == Status::BadResponse;
        let mut again = match op {
            Op::Unlock => result.status == Status::BadResponse,
            Op::Lock { .. } => is_cut_off,
            Op::TryLock { .. } | Op::Extend { .. } | Op::Downgrade => false,
        };
        if op == Op::Unlock && is_cut_off && around.setup.unheard {
            c.entry.release_unheard(result.status, now);
            again = false;
        }
        if !again {
            c.at += 1;
        }
        if op == Op::Unlock && result.status == Status::Fail {
            (around.seen)(Event::LateRelease);
        }
        let (mode, lease) = match op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => (mode, lease),
            Op::Extend { mode, lease } => (mode, lease),
            Op::Unlock | Op::Downgrade => return,
        };
        match result.status {
            Status::Success | Status::AlreadyLocked if c.entry.refs() > 0 => {
                let until = match around.setup.lock_type {
                    LockType::Rw => ServerTime(u64::MAX),
                    _ => until.plus_ns(lease.ns()),
                };
                let until = c.holds.map_or(until, |(_, before)| before.max(until));
                c.holds = Some((mode, until));
                if c.place.is_some() {
                    (around.seen)(Event::PlaceServed);
                }
                self.check_order(i, mode, around.setup);
            }
            Status::Success | Status::AlreadyLocked => {
                self.violate("told to hold what its entry does not hold");
            }
            _ if c.entry.refs() == 0 => c.holds = None,
            _ => {}
        }
        self.shared_together(around);
    }

    fn shared_together(&self, around: &Around<'_>) {
        let now = self.now;
        let readers = self
            .clients
            .iter()
            .filter(|c| matches!(c.holds, Some((Mode::Shared, until)) if until > now));
        if readers.count() > 1 {
            (around.seen)(Event::SharedTogether);
        }
    }
}

/// After the script: the operation that asks a successor about a claimed hold.
fn asks(entry: &LockEntry) -> Option<Op> {
    let mode = match entry.state() {
        EntryState::ExclusiveLocked => Mode::Exclusive,
        EntryState::SharedLocked => Mode::Shared,
        _ => return None,
    };
    entry.is_unconfirmed().then_some(Op::Extend { mode, lease: Lease::NONE })
}

fn is_intent(word_op: &WordOp) -> bool {
    matches!(*word_op, WordOp::WriteLedger { value, .. }
        if LedgerEntry::from_bits(value).state() == LedgerState::Intent)
}

/// The chain with the planted bug in it.
fn broken(chain: Chain, state: EntryState, setup: &Setup) -> Chain {
    let verbs = chain.ops();
    match (setup.bug, verbs) {
        (Some(Bug::NoteAfterAdd), [note, add]) if is_intent(note) => Chain::one(*add).then(*note),
        (Some(Bug::NoStepBack), [WordOp::Faa { addr, add: u64::MAX }, note])
            if state != EntryState::SharedLocked =>
        {
            Chain::one(WordOp::Read { addr: *addr }).then(*note)
        }
        _ => chain,
    }
}

/// The values in the order in which the machine asked for them, before the planted bug changed it.
fn unbroken(values: Values, chain: &Chain, setup: &Setup) -> Values {
    let [_, second] = chain.ops() else { return values };
    if setup.bug != Some(Bug::NoteAfterAdd) || !is_intent(second) {
        return values;
    }
    let mut swapped = Values::new();
    swapped.push(values[1]);
    swapped.push(values[0]);
    swapped
}

impl crate::state::Client {
    /// A description of the client for traces.
    pub(crate) fn describe(&self) -> String {
        let doing = match &self.doing {
            Doing::Nothing => "-".to_string(),
            Doing::Chain { chain, values } => {
                format!("{:x?} {}", chain.ops(), values.as_slice().len())
            }
            Doing::WriteLedger(write) => format!("write {write:?}"),
            Doing::Pause => "pause".to_string(),
            Doing::Ask(request) | Doing::Tell(request) => format!("send {request:?}"),
            Doing::Await { request, cancelled, .. } => format!("await {request:?} {cancelled}"),
            Doing::Finish(result) => format!("finish {:?}", result.status),
        };
        let gone = if self.gone { "gone " } else { "" };
        let holds = self.holds.map_or("", |_| "HOLDS ");
        let home = match (self.epoch, self.has_said) {
            (1, true) => String::new(),
            (epoch, said) => format!("at{epoch}{} ", if said { "" } else { "?" }),
        };
        format!("{gone}{home}{holds}{} {doing}", self.at)
    }
}
