// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's thread for one state object, with the operations of `dlock-client`: create, get, add,
//! compare-and-swap, read, release, destroy.
//!
//! ```text
//!   nothing ─create, get─▶ got ─one word operation─▶ the old value
//! refused
//! unknown
//!                           └─ release (everything before it is answered) ─▶ nothing
//! ```
//! The threads of objects are numbered after those of the locks. The control thread sends their
//! requests.

use dlock_core::clock::{Lease, NS};
use dlock_core::ids::ObjectId;
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::wire::control::{ControlReply, ControlRequest, ObjectGrant};
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::object_oracle::{Change, Place};
use super::plan::Fabric;
use super::state::{Ev, Goal, Life, Sys, Unit};

/// What a thread of an object awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    Nothing,
    /// The outcome of its chain; the number of the operation at the checker.
    Chain(usize),
    /// An answer to its control thread.
    Control,
}

/// A reference to an object that the client knows to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Got {
    pub grant: ObjectGrant,
    pub epoch: u32,
    /// The earliest end, in true time, of the lease that it requested.
    pub lease_end: u64,
}

/// A thread of a client: its object, and its operation on it.
#[derive(Debug)]
pub(crate) struct ObjectThread {
    pub got: Option<Got>,
    /// The id of the object that this client last created or got.
    pub id: Option<ObjectId>,
    pub waits: Waits,
    pub action: Action,
    pub tok: u32,
    /// An earlier value of the object, as the expected value of a compare-and-swap.
    seen: u64,
    /// The chain that the client's own CPU executes.
    pub chain: Option<(Chain, Values)>,
    /// An outcome that is known without the primary, because the chain was not sent.
    outcome: Option<Outcome>,
    /// Whether an operation was not answered, and no later one was answered either.
    unflushed: bool,
    pub goal: Goal,
    /// Whether the client has created its object, or found it, since the end of the faults.
    made: bool,
    /// Whether the client has read the value since its goal was set.
    read: bool,
    /// Whether a release was not answered, so that the client has to repeat it.
    owes: bool,
    /// Whether a get was not answered: the client may have a reference that it does not know of.
    pub unsure: bool,
}

impl Default for ObjectThread {
    fn default() -> Self {
        Self {
            got: None,
            id: None,
            waits: Waits::Nothing,
            action: Action::ObjectGet,
            tok: 0,
            seen: 0,
            chain: None,
            outcome: None,
            unflushed: false,
            goal: Goal::Any,
            made: false,
            read: false,
            owes: false,
            unsure: false,
        }
    }
}

impl ObjectThread {
    /// Resets the thread, because the process is gone.
    pub fn reset(&mut self) {
        let (tok, goal) = (self.tok.wrapping_add(1), self.goal);
        *self = Self { tok, goal, ..Self::default() };
    }

    /// Prepares for a new goal.
    pub fn aim(&mut self) {
        (self.made, self.read) = (false, false);
    }
}

impl Sys {
    pub(super) fn object(&mut self, c: usize, o: usize) -> &mut ObjectThread {
        &mut self.clients[c].objects[o]
    }

    fn object_index(&self, o: usize) -> u8 {
        (self.plan.locks.len() + o) as u8
    }

    /// The index of the object to which thread `l` belongs; `None`: the thread belongs to a lock.
    pub(super) fn object_of(&self, l: usize) -> Option<usize> {
        l.checked_sub(self.plan.locks.len())
    }

    pub(super) fn object_after(&mut self, c: usize, o: usize, ns: u64) {
        let (inc, tok, l) = (self.clients[c].inc, self.object(c, o).tok, self.object_index(o));
        self.after(ns, Ev::Step(c as u8, inc, l, tok));
    }

    fn object_enters(&mut self, c: usize, o: usize, waits: Waits) {
        let t = self.object(c, o);
        t.tok = t.tok.wrapping_add(1);
        t.waits = waits;
    }

    /// Continues the thread.
    pub(super) fn object_steps(&mut self, c: usize, o: usize) {
        let t = self.object(c, o);
        if let Some(outcome) = t.outcome.take() {
            return self.object_outcome(c, o, outcome);
        }
        if t.waits != Waits::Nothing {
            return;
        }
        if self.clients[c].life != Life::Up {
            let comes_back = matches!(self.clients[c].life, Life::Broken | Life::Joining);
            return if comes_back {
                self.object_after(c, o, 10_000_000)
            };
        }
        match self.goal {
            Goal::Any => self.object_does_anything(c, o),
            goal => self.object_towards(c, o, goal),
        }
    }

    fn object_does_anything(&mut self, c: usize, o: usize) {
        let (seen, lease) = (self.object(c, o).seen, Lease(self.rng.range(1, 64) as u32));
        let got = self.object(c, o).got.is_some();
        let pick = match self.rng.chance(self.plan.churn) {
            true => self.rng.range(5, 19),
            false => self.rng.below(100),
        };
        match (got, pick) {
            (false, 0..=39) => self.object_creates(c, o, lease),
            (false, 40..=89) | (true, 0..=4) => self.object_gets(c, o, lease),
            (false, _) | (true, 5..=9) => self.object_destroys(c, o),
            (true, 10..=19) => match self.may_release_object(c, o) {
                true => self.object_releases(c, o),
                false => self.object_operates(c, o, Change::Read),
            },
            (true, 20..=59) => {
                let add = self.rng.bits() | 1;
                self.object_operates(c, o, Change::Faa(add));
            }
            (true, 60..=84) => {
                let swap = self.rng.bits();
                self.object_operates(c, o, Change::Cas(seen, swap));
            }
            (true, _) => self.object_operates(c, o, Change::Read),
        }
    }

    /// After the faults: each object is read, released and destroyed; then each client uses each
    /// object once more; then all are destroyed again.
    fn object_towards(&mut self, c: usize, o: usize, goal: Goal) {
        let t = self.object(c, o);
        if t.goal >= goal {
            return;
        }
        let (got, id, made, read) = (t.got, t.id, t.made, t.read);
        match (goal, got) {
            (Goal::Any, _) => {}
            (Goal::Acquire, _) if o >= self.plan.objects_max => self.object(c, o).goal = goal,
            (Goal::Acquire, None) if !made => self.object_creates(c, o, Lease::secs(30)),
            (Goal::Acquire, None) => self.object_gets(c, o, Lease::secs(30)),
            (Goal::Acquire, Some(_)) if read => self.object(c, o).goal = goal,
            (Goal::Acquire, Some(_)) => {
                let add = self.rng.bits() | 1;
                self.object_operates(c, o, Change::Faa(add));
            }
            (_, Some(_)) if !read || !self.may_release_object(c, o) => {
                self.object_operates(c, o, Change::Read);
            }
            (_, Some(_)) if !made && id.is_some() => self.object_destroys(c, o),
            (_, Some(_)) => self.object_releases(c, o),
            (_, None) if self.object(c, o).owes && id.is_some() => self.object_releases(c, o),
            (_, None) => self.object_gets(c, o, Lease::secs(1)),
        }
    }

    fn may_release_object(&mut self, c: usize, o: usize) -> bool {
        !self.object(c, o).unflushed || self.bugs.object_in_doubt
    }

    fn object_creates(&mut self, c: usize, o: usize, lease: Lease) {
        let init = self.rng.bits();
        self.oracle.objects.creating(o, init);
        let request = ControlRequest::ObjectCreate { name: name(o), lease, init };
        self.object_asks(c, o, Action::ObjectCreate, request);
    }

    fn object_gets(&mut self, c: usize, o: usize, lease: Lease) {
        let request = ControlRequest::ObjectGet { name: name(o), lease };
        self.object_asks(c, o, Action::ObjectGet, request);
    }

    fn object_releases(&mut self, c: usize, o: usize) {
        let Some(id) = self.object(c, o).id else { return };
        let request = ControlRequest::ObjectRelease(id);
        self.object_asks(c, o, Action::ObjectRelease, request);
    }

    fn object_destroys(&mut self, c: usize, o: usize) {
        match self.object(c, o).id {
            Some(id) => {
                let request = ControlRequest::ObjectDestroy(id);
                self.object_asks(c, o, Action::ObjectDestroy, request);
            }
            None => self.object_after(c, o, 5_000),
        }
    }

    fn object_asks(&mut self, c: usize, o: usize, action: Action, request: ControlRequest) {
        self.object(c, o).action = action;
        self.object_enters(c, o, Waits::Control);
        self.clients[c].object_asks.push_back((o as u8, action, request));
        self.control_wake(c);
    }

    fn object_operates(&mut self, c: usize, o: usize, change: Change) {
        let Some(got) = self.object(c, o).got else { return };
        let action = match change {
            Change::Faa(_) => Action::ObjectFaa,
            Change::Cas(..) => Action::ObjectCas,
            Change::Read => Action::ObjectSnapshot,
        };
        self.object(c, o).action = action;
        self.cover(action, c);
        let place: Place = (o, got.epoch, got.grant.generation.0);
        let op = self.oracle.objects.begin(place, change, self.now);
        let addr = WordAddr::new(got.grant.slot, Word::W0);
        let word_op = match change {
            Change::Faa(add) => WordOp::Faa { addr, add },
            Change::Cas(expect, swap) => WordOp::Cas { addr, expect, swap },
            Change::Read => WordOp::Read { addr },
        };
        self.log(|| format!("client {c} object {o}: {change:x?}"));
        self.object_enters(c, o, Waits::Chain(op));
        if let Some(refused) = self.refuses(c, got.epoch) {
            self.object(c, o).outcome = Some(refused);
            let ns = self.takes(1_000);
            return self.object_after(c, o, ns);
        }
        let values = Values::new();
        let (tok, lock) = (self.object(c, o).tok, self.object_index(o));
        if self.clients[c].fabric == Fabric::Shm {
            // On shared memory the executor reads the generation first, which shows whether the
            // object lives.
            let gen = WordOp::Read { addr: WordAddr::new(got.grant.slot, Word::Gen) };
            self.object(c, o).chain = Some((Chain::one(gen).then(word_op), values));
            return self.object_op_after(c, o);
        }
        self.send_up(c, Unit::Batch { lock, tok, chain: Chain::one(word_op), values, more: false });
        let (inc, at) = (self.clients[c].inc, self.now + LOCK_WAIT_S * NS);
        self.at(at, Ev::Timer(c as u8, inc, lock, tok));
    }

    fn object_op_after(&mut self, c: usize, o: usize) {
        let (ns, l) = (self.takes(50), self.object_index(o));
        let (inc, tok) = (self.clients[c].inc, self.object(c, o).tok);
        self.after(ns, Ev::WordOp(c as u8, inc, l, tok));
    }

    /// The client's CPU executes the next word operation of its chain.
    pub(super) fn object_cpu_op(&mut self, c: usize, o: usize) {
        let t = &self.clients[c].objects[o];
        let (Some((chain, mut values)), Some(got)) = (t.chain, t.got) else { return };
        let Some(id) = self.clients[c].id else { return };
        let word_op = chain.ops()[values.as_slice().len()];
        values.push(self.word_op(got.epoch, id, &word_op));
        if values.as_slice().len() < chain.ops().len() {
            self.object(c, o).chain = Some((chain, values));
            return self.object_op_after(c, o);
        }
        self.object_outcome(c, o, Outcome::Done(values));
    }

    /// Handles the outcome of the operation.
    pub(super) fn object_outcome(&mut self, c: usize, o: usize, outcome: Outcome) {
        let (now, fabric) = (self.now, self.clients[c].fabric);
        let t = self.object(c, o);
        let Waits::Chain(op) = t.waits else { return };
        // `None`: a new session came before the outcome, and the client has no reference any more
        let got = t.got;
        (t.chain, t.outcome) = (None, None);
        self.object_enters(c, o, Waits::Nothing);
        let mut gone = false;
        match outcome {
            Outcome::Done(values) => {
                self.object(c, o).unflushed = false;
                match *values.as_slice() {
                    [generation, old] if got.is_none_or(|g| g.grant.generation.0 != generation) => {
                        gone = true; // the slot has another generation, so the object is gone
                        let _ = self.oracle.objects.told(op, old, now, false);
                    }
                    [.., old] => self.object_told(c, o, op, old, fabric != Fabric::Verbs),
                    [] => {}
                }
            }
            Outcome::Unknown => self.object(c, o).unflushed = true,
            Outcome::Refused(status) => {
                self.oracle.objects.refused(op);
                gone = matches!(status, Status::ObjectNotGet | Status::LockNotGet);
            }
        }
        self.mix(now ^ op as u64);
        self.log(|| format!("client {c} object {o}: {outcome:x?}"));
        let t = self.object(c, o);
        if gone {
            t.read = true; // the object is gone, so it cannot be read
            t.unflushed = false;
            if got.is_some_and(|got| now < got.lease_end) && self.goal == Goal::Any {
                self.fail(format!("object: client {c} has got object {o}, and it is gone"));
            }
        }
        let ns = match self.goal {
            Goal::Any => self.takes(6_000),
            _ => 1_000_000,
        };
        self.object_after(c, o, ns);
    }

    fn object_told(&mut self, c: usize, o: usize, op: usize, old: u64, notices: bool) {
        let t = self.object(c, o);
        (t.seen, t.read) = (old, true);
        let now = self.now;
        if let Err(why) = self.oracle.objects.told(op, old, now, notices) {
            self.fail(why);
        }
    }

    /// Handles the answer to a request of the control thread; `None`: none came.
    pub(super) fn object_answered(&mut self, c: usize, o: usize, reply: Option<ControlReply>) {
        let (now, epoch) = (self.now, self.clients[c].epoch);
        let asked_end = self.clients[c].object_lease_end;
        let t = &mut self.clients[c].objects[o];
        if t.waits != Waits::Control {
            return;
        }
        let status = match &reply {
            None => Status::BadResponse,
            Some(ControlReply::Error(status)) => *status,
            Some(_) => Status::Success,
        };
        match (t.action, &reply) {
            (Action::ObjectRelease, _) if status == Status::NotReady => {}
            // a release whose answer was lost drops the reference, unless a planted bug keeps it
            (Action::ObjectRelease, None) if self.bugs.object_release_kept => {}
            (Action::ObjectRelease, _) => (t.got, t.owes) = (None, reply.is_none()),
            (Action::ObjectGet, None) => t.unsure = true,
            (_, Some(ControlReply::Created(id))) => (t.id, t.made) = (Some(*id), true),
            (_, &Some(ControlReply::Object(grant))) => {
                self.oracle.objects.got((o, epoch, grant.generation.0), now);
                let same = t.got.filter(|g| (g.grant, g.epoch) == (grant, epoch));
                let lease_end = same.map_or(asked_end, |g| g.lease_end.max(asked_end));
                t.got = Some(Got { grant, epoch, lease_end });
                // the grant may be of an earlier object of this name, so `made` stays as it is
                t.id = Some(grant.object);
            }
            (Action::ObjectDestroy, Some(_)) => t.made = true, // no need to destroy it again
            (Action::ObjectCreate, Some(_)) => t.made = status != Status::ObjectDestroyed,
            _ => {}
        }
        if self.goal != Goal::Any {
            self.object_goal_answered(c, o, status);
        }
        self.object_enters(c, o, Waits::Nothing);
        let ns = match (self.goal, status) {
            (Goal::Any, _) => self.takes(6_000),
            (_, Status::Success) => 1_000_000,
            // a refusal: the client tries again later, since another client may have to be fenced
            // first
            _ => 100_000_000,
        };
        self.object_after(c, o, ns);
    }

    fn object_goal_answered(&mut self, c: usize, o: usize, status: Status) {
        let (goal, lingers) = (self.goal, self.object_lingers(o));
        let any_lingers = (0..self.plan.objects).any(|o| self.object_lingers(o));
        let t = self.object(c, o);
        let is_gone = match status {
            Status::ObjectNotCreate => goal != Goal::Acquire,
            Status::ObjectDestroyed => lingers,
            Status::ObjectTooMany => any_lingers,
            _ => false,
        };
        match (t.action, status) {
            (Action::ObjectGet | Action::ObjectCreate, _)
                if is_gone && t.got.is_none() && !t.owes =>
            {
                t.goal = goal;
            }
            (Action::ObjectGet, _) => (t.made, t.read) = (goal == Goal::Acquire, false),
            (Action::ObjectCreate, Status::ObjectTooMany) => t.made = false,
            _ => {}
        }
    }

    /// The channel is gone, and everything under way on it stays without an answer.
    pub(super) fn flush_objects(&mut self, c: usize) {
        self.clients[c].object_asks.clear();
        for o in 0..self.clients[c].objects.len() {
            let t = self.object(c, o);
            match t.waits {
                Waits::Chain(_) if t.chain.is_none() && t.outcome.is_none() => {
                    self.object_outcome(c, o, Outcome::Unknown);
                }
                Waits::Control => self.object_answered(c, o, None),
                _ => {}
            }
        }
    }

    /// A new session has begun: the primary had closed the old channel before it answered. Objects
    /// do not survive their primary.
    pub(super) fn objects_rejoin(&mut self, c: usize, anew: bool) {
        for o in 0..self.clients[c].objects.len() {
            let t = self.object(c, o);
            t.unflushed = false;
            if anew {
                (t.got, t.id, t.owes, t.unsure) = (None, None, false, false);
            }
            if t.waits == Waits::Nothing {
                t.tok = t.tok.wrapping_add(1);
                let ns = self.takes(5_000);
                self.object_after(c, o, ns);
            }
        }
    }

    /// Whether a client may have a reference that it does not know of; the object then stays until
    /// that client leaves.
    pub(super) fn object_lingers(&self, o: usize) -> bool {
        self.clients.iter().any(|client| client.objects[o].unsure)
    }

    /// Whether no operation of this client is under way on any object; requests that the control
    /// thread has not sent yet do not count.
    pub(super) fn objects_idle(&self, c: usize) -> bool {
        self.clients[c].objects.iter().all(|t| !matches!(t.waits, Waits::Chain(_)))
    }
}

/// The name of an object of the plan.
pub(super) fn name(o: usize) -> Vec<u8> {
    vec![b'o', b'0' + o as u8]
}
