// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary dies, and its successor begins with empty memory.
//!
//! ```text
//!   primary:  serves ── Fail ─▶ its successor recovers ── all was told, or given up ─▶ serves
//!   client:   away ── Move: what is under way is cut off, what it has is told ─▶ here ── Say
//! ```
//! The successor is a real [`Locks`]: it is made anew for each message, from all that it was told
//! so far, since a primary cannot be copied. When it has settled everything, the model goes on with
//! the successor's arbiter and memory. The clients' claims are those that [`Binding`] and
//! [`Claims`] make of their entries.
//!
//! The predecessor's memory lives on: a client that has not come to the successor operates on it as
//! before, because a mapping of shared memory outlives its primary, and gets no answers there. A
//! client whose chains the primary executes does nothing until it comes to the successor. The
//! successor's clock is not related to the predecessor's.

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle};
use dlock_core::lock::Op;
use dlock_core::locks::{Known, Locks, PrimaryConfig};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Outcome, Word, WordAddr};
use dlock_core::memory::words::{LedgerEntry, Ticket};
use dlock_core::session::{Binding, Claims, Verdict};
use dlock_core::wire::control::{Claim, ControlReply, ControlRequest, Place, Secret};
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};

use crate::bug::Bug;
use crate::check::precedes;
use crate::client::Around;
use crate::state::{id, Doing, Event, Setup, State, CLIENTS, HANDLE, SKEW_NS};
use dlock_core::token::TokenFloor;

/// How far a successor's clock is ahead of its predecessor's: more than any lease.
const AHEAD_NS: u64 = 500 * NS + NS / 10 * 3;
/// The horizon of the sessions: a client that has not heard its primary for so long believes that
/// it holds nothing.
const HORIZON_S: u32 = 30;
/// The recovery waits at least this long for missing clients.
const DEADLINE_S: u32 = 1;

/// The clients for which the successor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// A number of clients: that of all clients. The successor waits for them without end.
    Counted,
    /// The clients that the predecessor knew, each until its horizon has passed; each of them has a
    /// horizon.
    Known,
}

/// A successor while it recovers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recovery {
    epoch: u64,
    /// When the predecessor died, and the successor began.
    since: ServerTime,
    /// The predecessor's clients.
    known: Vec<usize>,
    heard: Vec<(ServerTime, Message)>,
    /// When the recovery ends if no further message comes; `None`: it does not.
    due: Option<ServerTime>,
}

/// A message to the successor, or an event there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Comes(usize),
    Claims(usize, Vec<Claim>),
    Done(usize),
    Fenced(usize),
    TimePasses,
}

/// Slots of the successor's memory: a fenced lock leaves its slot, and gets a further one.
const SLOTS: usize = 3;

/// The successor's memory.
#[derive(Clone, Copy, Default)]
struct Memory {
    words: [[u64; 4]; SLOTS],
    ledgers: [LedgerEntry; CLIENTS],
}

impl Memory {
    fn at(&mut self, addr: WordAddr) -> &mut u64 {
        &mut self.words[addr.slot().0 as usize][addr.word() as usize]
    }
}

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = self.at(addr);
        let old = *word;
        *word = if old == expect { swap } else { old };
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let word = self.at(addr);
        std::mem::replace(word, word.wrapping_add(add))
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        *self.at(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        *self.at(addr) = value;
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        self.ledgers[client.get() as usize - 1]
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        self.ledgers[client.get() as usize - 1] = entry;
    }
}

/// The time on the clock of this incarnation at the true time `now`.
pub(crate) fn server_time(now: ServerTime, epoch: u64) -> ServerTime {
    now.plus_ns((epoch - 1) * AHEAD_NS)
}

pub(crate) fn true_time(at: ServerTime, epoch: u64) -> ServerTime {
    ServerTime(at.0.saturating_sub((epoch - 1) * AHEAD_NS))
}

/// Whether the place `its` comes before `other` in the order of tickets.
fn is_before(its: Place, other: Place) -> bool {
    match its.epoch == other.epoch {
        true => precedes(its.ticket, other.ticket),
        false => its.epoch < other.epoch,
    }
}

impl Recovery {
    /// A new successor that has got all these messages, its memory, and its last answer.
    fn replay(&self, setup: &Setup) -> (Locks, Memory, ControlReply) {
        let is_counted = setup.successor == Some(Awaits::Counted);
        let mut primary = Locks::new(PrimaryConfig {
            epoch: Epoch(self.epoch),
            tp_mode: 0,
            recovery_clients: if is_counted { self.known.len() as u32 } else { 0 },
            clients_max: CLIENTS,
            locks_max: 1,
            objects_max: 1,
            absent_grace_ns: None,
            tokens: TokenFloor::default(),
        });
        if !is_counted {
            let secrets = [Secret([0; 16]); 3];
            let (horizon_s, has_locks) = (HORIZON_S, true);
            let known =
                |&i: &usize| Known { client: id(i), secrets, identity: None, horizon_s, has_locks };
            let all: Vec<Known> = self.known.iter().map(known).collect();
            primary.awaits(server_time(self.since, self.epoch), &all, DEADLINE_S);
        }
        let fabric = if setup.by_primary { FabricKind::Tcp } else { FabricKind::Shm };
        let (mut memory, mut reply, mut out) = (Memory::default(), ControlReply::Done, Vec::new());
        for (at, message) in &self.heard {
            let at = server_time(*at, self.epoch);
            let mut asked = |primary: &mut Locks, i: usize, request| {
                primary.control(at, &mut memory, id(i), request, &mut out)
            };
            match message {
                Message::Comes(i) => {
                    primary.add_client(id(*i)).expect("there is room for all");
                    primary.came_back(at, id(*i));
                    primary.attached(at, &mut memory, id(*i), fabric, &mut out);
                }
                Message::Claims(i, claims) => {
                    reply = asked(&mut primary, *i, ControlRequest::UpdateLocks(claims.clone()));
                }
                Message::Done(i) => reply = asked(&mut primary, *i, ControlRequest::ReinitDone),
                Message::Fenced(i) => _ = primary.fenced(id(*i)),
                Message::TimePasses => {}
            }
            primary.has_heard(at);
            primary.tick(at, &mut memory, &mut out);
            // until the primary has no laggard left to tell of
            while primary.take_laggard(at).is_some() {}
        }
        assert!(out.is_empty(), "nobody is served in a recovery");
        (primary, memory, reply)
    }
}

impl State {
    /// Whether the client can execute word operations and begin operations now.
    pub(crate) fn may_act(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        let is_allowed = match &self.recovery {
            None => c.has_said,
            Some(_) => !setup.by_primary && !self.clock(i, setup).is_past_horizon(),
        };
        c.epoch == self.served && is_allowed
    }

    pub(crate) fn recovers(&self) -> bool {
        self.recovery.is_some()
    }

    /// The newest incarnation of the primary.
    fn epoch(&self) -> u64 {
        self.recovery.as_ref().map_or(self.served, |recovery| recovery.epoch)
    }

    /// Whether the client has not come to the newest incarnation.
    pub(crate) fn is_away(&self, i: usize) -> bool {
        self.clients[i].epoch != self.epoch()
    }

    /// When the successor stops waiting for clients, in true time.
    pub(crate) fn recovery_due(&self) -> Option<ServerTime> {
        self.recovery.as_ref().and_then(|recovery| recovery.due)
    }

    /// The horizon of the client's session at the predecessor, on the client's own clock.
    pub(crate) fn horizon_ns(&self, i: usize, setup: &Setup) -> u64 {
        match self.clients[i].left {
            Some(since) if setup.successor == Some(Awaits::Known) => {
                since.0.saturating_add_signed(SKEW_NS[i]) + u64::from(HORIZON_S) * NS
            }
            _ => u64::MAX,
        }
    }

    pub(crate) fn can_fail(&self, setup: &Setup) -> bool {
        let is_busy = |i: usize| !self.clients[i].gone && !self.finished(i, setup);
        self.deaths > 0 && (0..CLIENTS).any(is_busy)
    }

    pub(crate) fn can_move(&self, i: usize) -> bool {
        let c = &self.clients[i];
        self.recovers() && !c.gone && c.known && self.is_away(i)
    }

    pub(crate) fn can_say(&self, i: usize) -> bool {
        let c = &self.clients[i];
        self.recovers() && !c.gone && !self.is_away(i) && !c.has_said
    }

    /// Whether what a dead client has can be undone. A recovering successor knows nothing of a
    /// client that has not come to it.
    pub(crate) fn can_forget(&self, i: usize) -> bool {
        let c = &self.clients[i];
        c.gone && c.known && !(self.recovers() && self.is_away(i))
    }

    /// Whether the client can claim the lock before its operation hears that the session has ended:
    /// in a wait and in a pause its lock is free for that.
    pub(crate) fn can_move_late(&self, i: usize) -> bool {
        let waits = |request: &Request| matches!(request, Request::Wait { .. });
        self.can_move(i)
            && match &self.clients[i].doing {
                Doing::Await { request, .. } => waits(request),
                Doing::Pause => true,
                _ => false,
            }
    }

    /// The primary dies, between any two word operations.
    pub(crate) fn fail(&mut self) {
        let known = (0..CLIENTS).filter(|&i| self.clients[i].known).collect();
        let (epoch, since) = (self.epoch() + 1, self.now);
        self.recovery = Some(Recovery { epoch, since, known, heard: Vec::new(), due: None });
        self.deaths -= 1;
        self.call = None;
        self.arbiter = dlock_core::arbiter::Arbiter::default();
        // the predecessor's ledgers are not read any more
        self.ledgers = [LedgerEntry::new(); CLIENTS];
        for c in self.clients.iter_mut().filter(|c| c.known) {
            c.sent.clear();
            c.left.get_or_insert(since);
            c.has_said = false;
        }
    }

    /// Ends what the client has under way at the predecessor, with an unknown outcome.
    fn cut(&mut self, i: usize, around: &Around<'_>) {
        loop {
            match std::mem::replace(&mut self.clients[i].doing, Doing::Nothing) {
                Doing::Nothing => break,
                Doing::Finish(result) => self.finish(i, result, around),
                Doing::WriteLedger(_) | Doing::Tell(_) => self.next(i, around),
                Doing::Chain { values, .. } => {
                    if !values.as_slice().is_empty() {
                        (around.seen)(Event::CutInChain);
                    }
                    self.event(i, around, |operation, entry, now| {
                        operation.outcome(entry, Outcome::Unknown, now);
                    });
                }
                Doing::Pause | Doing::Ask(_) | Doing::Await { .. } => {
                    self.event(i, around, |operation, entry, now| operation.replaced(entry, now));
                }
            }
        }
        let c = &mut self.clients[i];
        if c.inbox.iter().any(|(_, r)| matches!(r, Reply::Granted { .. })) {
            (around.seen)(Event::GrantLost);
        }
        c.inbox.clear();
        (c.asked, c.seq) = (None, 0);
    }

    /// A client comes to the successor, and claims what it has there. `late`: its operation hears
    /// only afterwards that its session has ended.
    pub(crate) fn moves(&mut self, i: usize, late: bool, around: &Around<'_>) {
        let in_chain = matches!(self.clients[i].doing, Doing::Chain { .. })
            && around.setup.bug == Some(Bug::ToldInChain);
        if !late && !in_chain {
            self.cut(i, around);
        }
        let old = self.clock(i, around.setup);
        let mut binding = Binding::new(Epoch(self.clients[i].epoch));
        let epoch = self.epoch();
        assert!(!binding.moves_to(Epoch(epoch), old), "it is another incarnation");
        let c = &mut self.clients[i];
        if old.is_past_horizon() && c.entry.deadline().is_never() {
            c.holds = None; // a hold without a lease ends with its session
        }
        (c.epoch, c.left) = (epoch, None);
        self.tells(Message::Comes(i), around);
        let now = self.clock(i, around.setup);
        let is_held = self.claims(i, binding, now, around);
        if in_chain {
            self.ends_chain(i, around);
        }
        self.cut(i, around);
        if !is_held {
            self.says(i, around); // the client claims nothing, so it is ready at once
        }
    }

    /// Makes the client's claim; returns whether it claims anything.
    fn claims(&mut self, i: usize, mut binding: Binding, now: Now, around: &Around<'_>) -> bool {
        let mut claim = binding.claim(&mut self.clients[i].entry, now);
        let is_held = claim.held.is_some();
        if let Some(held) = claim.held.filter(|held| held.fair.is_some() || !held.is_queued) {
            self.clients[i].place = held.fair.map(|place| (held.mode, place));
            if !held.is_queued {
                (around.seen)(Event::HoldClaimed);
            }
        }
        self.break_claim(&mut claim, around.setup);
        let mut claims = Claims::new(vec![((), claim)], false);
        while let Some(ControlRequest::UpdateLocks(told)) = claims.request() {
            let reply = self.tells(Message::Claims(i, told), around);
            let Ok(verdicts) = claims.answered(Ok(reply)) else {
                self.violate("a client that was waited for is refused");
                return is_held;
            };
            for (_, verdict) in verdicts {
                let Verdict::Place { grant, is_lost } = verdict else { continue };
                assert_eq!(grant.handle, HANDLE, "there is one lock");
                self.slot = grant.slot;
                let at = (Epoch(self.epoch()), 0);
                binding.bind(&mut self.clients[i].entry, &grant, at, is_lost, now);
            }
        }
        is_held
    }

    fn break_claim(&self, claim: &mut Claim, setup: &Setup) {
        match (setup.bug, &mut claim.held) {
            (Some(Bug::HoldUntold), held) => *held = held.filter(|held| held.is_queued),
            (Some(Bug::PlacesByArrival), Some(held)) => {
                let Some(recovery) = &self.recovery else { return };
                let number = recovery.heard.len() as u32;
                if let Some(place) = &mut held.fair {
                    place.ticket = Ticket { lap: 0, tx: number, ts: number };
                }
            }
            _ => {}
        }
    }

    /// [`Bug::ToldInChain`]: the client's chain goes on, on the word of the predecessor.
    fn ends_chain(&mut self, i: usize, around: &Around<'_>) {
        let doing = std::mem::replace(&mut self.clients[i].doing, Doing::Nothing);
        if let Doing::Chain { chain, mut values } = doing {
            while values.as_slice().len() < chain.values_len() {
                self.execute_next(i, &chain, &mut values, around);
            }
            self.event(i, around, |operation, entry, now| {
                operation.outcome(entry, Outcome::Done(values), now);
            });
            while matches!(self.clients[i].doing, Doing::WriteLedger(_) | Doing::Finish(_)) {
                match std::mem::replace(&mut self.clients[i].doing, Doing::Nothing) {
                    Doing::Finish(result) => self.finish(i, result, around),
                    _ => self.next(i, around),
                }
            }
        }
    }

    /// A client tells the successor that it has made all claims.
    pub(crate) fn says(&mut self, i: usize, around: &Around<'_>) {
        self.clients[i].has_said = true;
        self.tells(Message::Done(i), around);
    }

    /// A client that has died after it came to the successor is fenced there.
    pub(crate) fn fenced(&mut self, i: usize, around: &Around<'_>) {
        self.clients[i].known = false;
        self.tells(Message::Fenced(i), around);
    }

    pub(crate) fn recovery_time_passes(&mut self, around: &Around<'_>) {
        self.tells(Message::TimePasses, around);
    }

    fn tells(&mut self, message: Message, around: &Around<'_>) -> ControlReply {
        let now = self.now;
        let Some(recovery) = &mut self.recovery else {
            return ControlReply::Error(dlock_core::wire::status::Status::Error);
        };
        recovery.heard.push((now, message));
        let (primary, memory, reply) = recovery.replay(around.setup);
        if primary.is_recovering() {
            let due = primary.next_wakeup().into_iter().chain(primary.recovery_due()).min();
            let due = due.filter(|at| at.0 > 0);
            recovery.due = due.map(|at| true_time(at, recovery.epoch));
        } else {
            self.settled(&primary, memory, around);
        }
        reply
    }

    /// All claims are settled, so the successor serves.
    fn settled(&mut self, primary: &Locks, memory: Memory, around: &Around<'_>) {
        let own_horizon_ns: [u64; CLIENTS] =
            std::array::from_fn(|i| self.horizon_ns(i, around.setup));
        let words = memory.words[self.slot.0 as usize];
        (self.word, self.turn) = (words[Word::W0 as usize], words[Word::W1 as usize]);
        self.fence = words[Word::Fence as usize];
        self.ledgers = memory.ledgers;
        self.arbiter = primary.arbiter().clone();
        self.served = self.epoch();
        self.recovery = None;
        for i in 0..CLIENTS {
            let horizon_ns = own_horizon_ns[i].saturating_add_signed(-SKEW_NS[i]);
            let (now, c) = (self.now, &mut self.clients[i]);
            if !c.known || c.has_said {
                continue;
            }
            (around.seen)(Event::GivenUp);
            let until = c.holds.map(|(_, until)| until.min(ServerTime(horizon_ns)));
            if !c.gone && until.is_some_and(|until| until > now) {
                self.violate("a client is given up while it believes to hold the lock");
            }
            let c = &mut self.clients[i];
            (c.gone, c.known, c.holds) = (true, false, None);
            c.inbox.clear();
            c.forget_all(i, around.setup);
        }
        (0..CLIENTS).for_each(|i| self.settle(i, around));
    }

    /// Checks the result that a client does not hold what it believes to hold, or did not when it
    /// released it: its lease must be over by then.
    pub(crate) fn is_told_of_loss(&mut self, until: Option<ServerTime>, setup: &Setup) {
        let is_checked = setup.successor.is_some() || setup.lock_type == LockType::Fair;
        if is_checked && until.is_some_and(|until| until > self.now) {
            self.violate("a hold that its client believes in is lost");
        }
    }

    /// Checks a grant at the successor: another client that has waited since the predecessor, whose
    /// ticket comes before this one and whose mode excludes this one, must have been granted the
    /// lock first. Not checked in models with pauses, in which a client may lose its place.
    pub(crate) fn check_order(&mut self, granted: usize, mode: Mode, setup: &Setup) {
        if self.served == 1 || setup.lock_type != LockType::Fair || setup.pauses > 0 {
            return;
        }
        let c = &self.clients[granted];
        let here = |ticket| Place { epoch: Epoch(c.epoch), ticket };
        let mine = c.place.map(|(_, place)| place).or(c.entry.ticket().map(here));
        let passed_over = (0..CLIENTS).filter(|&i| i != granted).any(|i| {
            let c = &self.clients[i];
            let wants = matches!(setup.scripts[i].get(c.at), Some(Op::Lock { .. }));
            let waits = wants && !c.gone && c.entry.refs() == 0;
            let Some(their) = c.place.filter(|_| waits) else { return false };
            let excludes = (their.0, mode) != (Mode::Shared, Mode::Shared);
            excludes && mine.is_none_or(|mine| is_before(their.1, mine))
        });
        if passed_over {
            self.violate("a ticket of a predecessor is passed over by a later one");
        }
    }
}
