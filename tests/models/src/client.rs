// SPDX-License-Identifier: MIT OR Apache-2.0
//! One step of a client: one verb, one message, or one decision.

use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::lock::{Begin, EntryState, Machine, Op, OpResult, Step};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, Values, Verb};
use dlock_core::words::{LedgerEntry, LedgerState};

use crate::bug::Bug;
use crate::state::{id, Doing, Event, Setup, State, HANDLE};

/// What a step needs besides the state.
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
            // its last verb may still be on the wire
            let late = setup.bug == Some(Bug::ForgottenBeforeFenced);
            return late && matches!(c.doing, Doing::Chain { .. });
        }
        match &c.doing {
            Doing::Nothing => !self.finished(i, setup),
            // the primary does one thing at a time
            Doing::Chain { .. } if setup.by_primary => self.call.is_none(),
            Doing::Await { seq, .. } => c.inbox.iter().any(|(s, _)| s == seq),
            Doing::Chain { .. } | Doing::Confirm { .. } => true,
            Doing::Send { .. } | Doing::Finish { .. } => true,
        }
    }

    pub(crate) fn can_cancel(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        match &c.doing {
            Doing::Await { machine, cancelled: false, .. } => {
                setup.impatient && !c.gone && machine.cancel(&c.entry).is_some()
            }
            _ => false,
        }
    }

    /// The answer under way may be lost.
    pub(crate) fn can_lose(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        self.losses > 0
            && !c.gone
            && match &c.doing {
                Doing::Chain { note: None, .. } => !setup.by_primary || self.call.is_none(),
                Doing::Await { .. } => true,
                _ => false,
            }
    }

    pub(crate) fn step(&mut self, i: usize, around: &Around<'_>) {
        self.one_step(i, around);
        self.settle(i, around);
    }

    /// What a client does without anybody being able to tell when: it belongs to the step
    /// before. To send is no step of its own, since what was sent may be served late; to learn
    /// of a result is none, since to believe it at once is to believe it longest.
    pub(crate) fn settle(&mut self, i: usize, around: &Around<'_>) {
        let setup = around.setup;
        loop {
            let c = &self.clients[i];
            let local = match &c.doing {
                Doing::Finish { note: None, .. } | Doing::Send { note: None, .. } => true,
                // with no pause left, time stands still as long as anybody can run
                Doing::Confirm { note: None, .. } => self.pauses == 0,
                Doing::Await { .. } => {
                    // otherwise it may give up, or lose the answer, before it has it
                    !setup.impatient && setup.losses == 0 && self.can_step(i, setup)
                }
                Doing::Nothing if !c.gone => {
                    // if no time passes, it does not matter when; a release ends what it believes
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
            self.clients[i].forget_all(i, setup); // it is never asked again
        }
    }

    fn one_step(&mut self, i: usize, around: &Around<'_>) {
        let doing = std::mem::replace(&mut self.clients[i].doing, Doing::Nothing);
        self.clients[i].doing = match doing {
            Doing::Nothing => return self.begin(i, around),
            Doing::Chain { machine, chain, values, note: Some(note) } => {
                self.note(i, note, around);
                Doing::Chain { machine, chain, values, note: None }
            }
            Doing::Confirm { machine, note: Some(note) } => {
                self.note(i, note, around);
                Doing::Confirm { machine, note: None }
            }
            Doing::Send { machine, request, note: Some(note) } => {
                self.note(i, note, around);
                Doing::Send { machine, request, note: None }
            }
            Doing::Finish { result, note: Some(note) } => {
                self.note(i, note, around);
                Doing::Finish { result, note: None }
            }
            Doing::Chain { machine, chain, values, note: None } => {
                return self.chain(i, machine, chain, values, around);
            }
            Doing::Confirm { mut machine, note: None } => {
                let now = self.clock(i, around.setup);
                let outcome = Outcome::Done(Values::new());
                let step = machine.outcome(&mut self.clients[i].entry, outcome, now);
                return self.follow(i, machine, step, around);
            }
            Doing::Send { machine, request, note: None } => {
                return self.send(i, machine, request, around);
            }
            Doing::Await { machine, seq, request, cancelled } => {
                return self.receive(i, machine, seq, request, cancelled, around);
            }
            Doing::Finish { result, note: None } => return self.finish(i, result, around),
        };
    }

    fn begin(&mut self, i: usize, around: &Around<'_>) {
        let now = self.clock(i, around.setup);
        let true_now = self.now;
        let c = &mut self.clients[i];
        let Some(&op) = around.setup.scripts[i].get(c.at) else {
            // the library's own clean-up
            if let Some((machine, step)) = c.entry.undo(now) {
                return self.follow(i, machine, step, around);
            }
            return self.violate("a client ends in doubt of what it believes to hold");
        };
        c.started = true_now;
        if op == Op::Unlock && c.entry.refs() <= 1 {
            c.holds = None; // from here on it does not touch the resource
        }
        if c.entry.in_doubt() {
            (around.seen)(Event::Resolved);
        }
        match c.entry.begin(op, now) {
            Begin::Local(result) => self.finish(i, result, around),
            Begin::Run(machine, step) => self.follow(i, machine, step, around),
        }
    }

    fn follow(&mut self, i: usize, machine: Machine, step: Step, around: &Around<'_>) {
        let c = &mut self.clients[i];
        let note = c.entry.take_note();
        c.doing = match step {
            Step::Chain(chain) => {
                let chain = broken(chain, c.entry.state(), around.setup);
                Doing::Chain { machine, chain, values: Values::new(), note }
            }
            Step::Confirm => Doing::Confirm { machine, note },
            Step::Request(request) => Doing::Send { machine, request, note },
            Step::Done(result) => Doing::Finish { result, note },
        };
    }

    fn note(&mut self, i: usize, note: LedgerEntry, around: &Around<'_>) {
        let fair = around.setup.lock_type == LockType::Fair;
        if fair && around.setup.bug == Some(Bug::NotesLost) {
            return;
        }
        self.ledgers[i] = note;
        if around.setup.by_primary {
            self.arbiter.noted(crate::state::SLOT, id(i));
        }
    }

    fn verb(&mut self, i: usize, verb: Verb, around: &Around<'_>) -> u64 {
        let old = self.word;
        match verb {
            Verb::Cas { expect, swap, .. } => {
                let unlocks = self.clients[i].entry.refs() > 0;
                let blind = around.setup.bug == Some(Bug::BlindRelease) && unlocks;
                if old == expect || blind {
                    self.word = swap;
                }
                if blind {
                    return expect;
                }
            }
            Verb::Faa { add, .. } => self.word = old.wrapping_add(add),
            Verb::Read { .. } => {}
            Verb::Note { value, .. } => {
                self.note(i, LedgerEntry::from_bits(value), around);
                return 0;
            }
        }
        old
    }

    fn chain(
        &mut self,
        i: usize,
        mut machine: Machine,
        chain: Chain,
        mut values: Values,
        around: &Around<'_>,
    ) {
        loop {
            let verb = chain.verbs()[values.as_slice().len()];
            values.push(self.verb(i, verb, around));
            if values.as_slice().len() == chain.verbs().len() {
                break;
            }
            if !around.setup.by_primary {
                self.clients[i].doing = Doing::Chain { machine, chain, values, note: None };
                return;
            }
        }
        self.executed(i, &chain, &values, around.setup);
        if self.clients[i].gone {
            return; // nobody is left to hear of it
        }
        let values = unbroken(values, &chain, around.setup);
        let now = self.clock(i, around.setup);
        let took_over = chain.verbs().iter().zip(values.as_slice()).any(|(verb, &old)| {
            matches!(*verb, Verb::Cas { expect, swap, .. } if old == expect && expect != 0
                && swap != 0 && around.setup.lock_type == LockType::Atomic)
        });
        if took_over && self.clients[i].entry.refs() == 0 {
            (around.seen)(Event::TakenOver);
        }
        let entry = &mut self.clients[i].entry;
        let step = machine.outcome(entry, Outcome::Done(values), now);
        if let Step::Chain(next) = step {
            let back = |v: &Verb| matches!(v, Verb::Faa { add: u64::MAX, .. });
            if around.setup.lock_type == LockType::Rw && next.verbs().iter().any(back) {
                (around.seen)(Event::SteppedBack);
            }
        }
        self.follow(i, machine, step, around);
    }

    /// What the primary learns from a chain it has executed itself.
    fn executed(&mut self, i: usize, chain: &Chain, values: &Values, setup: &Setup) {
        if setup.by_primary {
            let refs = [(id(i), HANDLE)];
            let (slot, lock_type) = (crate::state::SLOT, setup.lock_type);
            let lock = dlock_core::arbiter::LockRef { slot, lock_type, refs: &refs };
            for (verb, &old) in chain.verbs().iter().zip(values.as_slice()) {
                if matches!(verb, Verb::Faa { .. } | Verb::Cas { .. }) {
                    self.arbiter.executed_verb(lock, id(i), verb, old);
                }
            }
        }
    }

    fn send(&mut self, i: usize, mut machine: Machine, request: Request, around: &Around<'_>) {
        let wake = matches!(request, Request::Wake { .. });
        let now = self.clock(i, around.setup);
        let c = &mut self.clients[i];
        c.seq += 1;
        let seq = Seq(c.seq);
        if wake {
            (around.seen)(Event::Woken);
        }
        if !(wake && around.setup.bug == Some(Bug::WakeLost)) {
            c.sent.push_back((seq, request));
        }
        if request.has_reply() {
            c.doing = Doing::Await { machine, seq, request, cancelled: false };
            return;
        }
        let step = machine.reply(&mut c.entry, Ok(Reply::Done { word: 0 }), now);
        self.follow(i, machine, step, around);
    }

    pub(crate) fn cancel(&mut self, i: usize) {
        let c = &mut self.clients[i];
        if let Doing::Await { machine, cancelled, .. } = &mut c.doing {
            if let Some(cancel) = machine.cancel(&c.entry) {
                *cancelled = true;
                c.seq += 1;
                c.sent.push_back((Seq(c.seq), cancel));
            }
        }
    }

    fn receive(
        &mut self,
        i: usize,
        mut machine: Machine,
        seq: Seq,
        request: Request,
        cancelled: bool,
        around: &Around<'_>,
    ) {
        let now = self.clock(i, around.setup);
        let c = &mut self.clients[i];
        let at = c.inbox.iter().position(|(s, _)| *s == seq);
        let Some((_, mut reply)) = at.and_then(|at| c.inbox.remove(at)) else {
            c.doing = Doing::Await { machine, seq, request, cancelled };
            return;
        };
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
        let step = machine.reply(&mut c.entry, Ok(reply), now);
        self.follow(i, machine, step, around);
    }

    /// The chain took effect as far as it got (`all`: to its end), and its outcome is lost; or
    /// the reply that is awaited is lost.
    pub(crate) fn lose(&mut self, i: usize, all: bool, around: &Around<'_>) {
        self.losses -= 1;
        let doing = std::mem::replace(&mut self.clients[i].doing, Doing::Nothing);
        let (machine, step) = match doing {
            Doing::Chain { mut machine, chain, mut values, .. } => {
                while all && values.as_slice().len() < chain.verbs().len() {
                    let verb = chain.verbs()[values.as_slice().len()];
                    values.push(self.verb(i, verb, around));
                }
                if all {
                    self.executed(i, &chain, &values, around.setup);
                }
                let now = self.clock(i, around.setup);
                let step = machine.outcome(&mut self.clients[i].entry, Outcome::Unknown, now);
                (machine, step)
            }
            Doing::Await { mut machine, seq, .. } => {
                let now = self.clock(i, around.setup);
                let c = &mut self.clients[i];
                c.inbox.retain(|(s, _)| *s != seq);
                let step = machine.reply(&mut c.entry, Err(Status::BadResponse), now);
                (machine, step)
            }
            other => {
                self.clients[i].doing = other;
                return;
            }
        };
        self.follow(i, machine, step, around);
        self.settle(i, around);
    }

    pub(crate) fn die(&mut self, i: usize, around: &Around<'_>) {
        let c = &mut self.clients[i];
        if c.holds.is_some() {
            (around.seen)(Event::DiedHolding);
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

    fn finish(&mut self, i: usize, result: OpResult, around: &Around<'_>) {
        let c = &mut self.clients[i];
        let Some(&op) = around.setup.scripts[i].get(c.at) else { return };
        let until = c.started;
        c.started = ServerTime(0);
        // an unlock whose answer was lost is asked for again, as a caller has to
        let again = op == Op::Unlock && result.status == Status::BadResponse;
        if !again {
            c.at += 1;
        }
        if op == Op::Unlock && result.status == Status::Fail {
            (around.seen)(Event::LateRelease);
        }
        let (mode, expire_s) = match op {
            Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s } => (mode, expire_s),
            Op::Extend { mode, expire_s } => (mode, expire_s),
            Op::Unlock => return,
        };
        match result.status {
            Status::Success | Status::AlreadyLocked if c.entry.refs() > 0 => {
                let until = match around.setup.lock_type {
                    LockType::Rw => ServerTime(u64::MAX),
                    _ => until.plus_ns(u64::from(expire_s) * NS),
                };
                let until = c.holds.map_or(until, |(_, before)| before.max(until));
                c.holds = Some((mode, until));
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

fn is_intent(verb: &Verb) -> bool {
    matches!(*verb, Verb::Note { value, .. }
        if LedgerEntry::from_bits(value).state() == LedgerState::Intent)
}

/// The chain with the defect that was planted in it.
fn broken(chain: Chain, state: EntryState, setup: &Setup) -> Chain {
    let verbs = chain.verbs();
    match (setup.bug, verbs) {
        (Some(Bug::NoteAfterAdd), [note, add]) if is_intent(note) => Chain::one(*add).then(*note),
        (Some(Bug::NoStepBack), [Verb::Faa { addr, add: u64::MAX }, note])
            if state != EntryState::SharedLocked =>
        {
            Chain::one(Verb::Read { addr: *addr }).then(*note)
        }
        _ => chain,
    }
}

/// The values in the order of the chain that the machine asked for.
fn unbroken(values: Values, chain: &Chain, setup: &Setup) -> Values {
    let [_, second] = chain.verbs() else { return values };
    if setup.bug != Some(Bug::NoteAfterAdd) || !is_intent(second) {
        return values;
    }
    let mut swapped = Values::new();
    swapped.push(values[1]);
    swapped.push(values[0]);
    swapped
}

impl crate::state::Client {
    /// For traces.
    pub(crate) fn describe(&self) -> String {
        let doing = match &self.doing {
            Doing::Nothing => "-".to_string(),
            Doing::Chain { chain, values, .. } => {
                format!("{:x?} {}", chain.verbs(), values.as_slice().len())
            }
            Doing::Confirm { .. } => "confirm".to_string(),
            Doing::Send { request, .. } => format!("send {request:?}"),
            Doing::Await { request, cancelled, .. } => format!("await {request:?} {cancelled}"),
            Doing::Finish { result, .. } => format!("finish {:?}", result.status),
        };
        let gone = if self.gone { "gone " } else { "" };
        let holds = self.holds.map_or("", |_| "HOLDS ");
        format!("{gone}{holds}{} {doing}", self.at)
    }
}
