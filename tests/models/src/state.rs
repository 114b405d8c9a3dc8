// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is explored, and what one state is made of.

use std::collections::VecDeque;

use dlock_core::arbiter::Arbiter;
use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, LockId, Seq, Slot};
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Values, Word, WordAddr};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::Operation;
use dlock_core::wire::control::{LockDesc, LockGrant, Place};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};

use crate::bug::Bug;
use crate::call::Call;
use crate::failover::{server_time, Awaits, Recovery};

/// Clients of every model.
pub const CLIENTS: usize = 3;
pub(crate) const SLOT: Slot = Slot(0);
/// Late in a second, so that what deadlines in whole seconds leave to spare is little.
pub(crate) const START: ServerTime = ServerTime(1_000 * NS + NS / 10 * 9);
/// What every client believes its clock to be off by at most.
pub(crate) const UNCERTAINTY_NS: u64 = 300_000_000;
/// What the clocks of the clients are off by, nanoseconds.
pub(crate) const SKEW_NS: [i64; CLIENTS] = [-300_000_000, 300_000_000, 0];

/// One small system: who does what, and what may go wrong.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name in tables.
    pub name: &'static str,
    /// The kind of the lock.
    pub lock_type: LockType,
    /// What each client does, one operation after the other.
    pub scripts: [Vec<Op>; CLIENTS],
    /// The values of the lock's words at the start (fair locks near the end of their lanes).
    pub start_word: u64,
    /// The second word.
    pub start_turn: u64,
    /// This client may die before any of its steps.
    pub mortal: Option<usize>,
    /// So often time passes although somebody could go on: it is paused.
    pub pauses: u8,
    /// So often the answer to a chain or a request is lost.
    pub losses: u8,
    /// A waiter may give up at any moment.
    pub impatient: bool,
    /// Who finds the lock held tries so often again before it queues.
    pub tries: u8,
    /// A client that looks for its turn may sleep on the word.
    pub parks: bool,
    /// Chains are executed by the primary, as for tcp clients: whole, and tickets are known.
    pub by_primary: bool,
    /// So often the primary dies.
    pub deaths: u8,
    /// Its successor waits for its clients so.
    pub successor: Option<Awaits>,
    /// A release that had no primary to go to is not asked for again: it is over for its caller.
    pub unheard: bool,
    /// What must be seen to happen, or the model proves less than it seems to.
    pub sometimes: Vec<Event>,
    /// A defect in what surrounds the core.
    pub bug: Option<Bug>,
    /// From this number on the arbiter gives the tickets of a fair lock out: with the feature
    /// `planted` alone.
    pub divert: Option<u32>,
    /// A rule of the core that is switched off.
    #[cfg(feature = "planted")]
    pub core_bug: Option<dlock_core::planted::Bug>,
}

impl Setup {
    /// Makes the core of this thread the one of this setup.
    pub(crate) fn enter(&self) {
        #[cfg(feature = "planted")]
        {
            dlock_core::memory::words::set_divert(
                self.divert.unwrap_or(dlock_core::limits::FAIR_DIVERT),
            );
            dlock_core::planted::plant(self.core_bug);
        }
    }
}

/// What may happen somewhere in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    /// Two clients or more held the lock at once, as readers.
    SharedTogether,
    /// A wait that was queued was granted later.
    GrantAfterWait,
    /// A client died while it held the lock.
    DiedHolding,
    /// A client died in the middle of a chain.
    DiedInChain,
    /// A client took an expired hold over by its own compare-and-swap.
    TakenOver,
    /// The arbiter granted an expired hold on a `Steal`.
    Stolen,
    /// A holder was told, late, that its hold was lost.
    LateRelease,
    /// The arbiter took an expired hold over for a waiter.
    Expired,
    /// The arbiter found a reader count in doubt (`Intent` or `Leaving` of a gone client).
    Suspect,
    /// A recount found too many readers and took some off.
    Recounted,
    /// A recount found the ledgers unsettled and was put off.
    RecountPutOff,
    /// A reader stepped back.
    SteppedBack,
    /// A `Wake` was sent.
    Woken,
    /// A ticket at the head was ended without having been granted.
    TicketSkipped,
    /// A grant crossed the cancel of its wait.
    GrantCrossedCancel,
    /// A wait ended by its cancel.
    Cancelled,
    /// A client in doubt had its last operation undone.
    Resolved,
    /// A ticket was taken through the arbiter, since a lane is high.
    TicketByArbiter,
    /// A compare-and-swap of the arbiter met a word that a client had changed.
    ArbiterRaced,
    /// A client saw its turn by itself.
    SawTurn,
    /// A release by the client itself met a word that the arbiter, or another reader, had changed.
    ReleaseRaced,
    /// The lanes of a fair lock have started again.
    LapBegun,
    /// A client slept on the word.
    Parked,
    /// A client came to the successor in the middle of a chain.
    CutInChain,
    /// A client came to the successor with a grant of the predecessor on its way, which is lost.
    GrantLost,
    /// A client changed the predecessor's word after another one had told the successor.
    LeftBehind,
    /// A hold was claimed at the successor.
    HoldClaimed,
    /// A place in the queue was claimed at the successor, and served there.
    PlaceServed,
    /// A client was not waited for any longer.
    GivenUp,
    /// A client died after it had come to the successor, which recovered.
    DiedInRecovery,
}

/// All events.
pub(crate) const EVENTS: u32 = Event::DiedInRecovery as u32 + 1;

/// What a client does next: the effect of its operation that it carries out, or that it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Nothing,
    Chain { chain: Chain, values: Values },
    WriteLedger(LedgerEntry),
    Pause,
    Ask(Request),
    Tell(Request),
    Await { seq: Seq, request: Request, cancelled: bool },
    Finish(OpResult),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) entry: LockEntry,
    /// The operation of its script it is at.
    pub(crate) at: usize,
    pub(crate) doing: Doing,
    pub(crate) operation: Option<Operation>,
    /// Tries that its operation has left.
    pub(crate) tries: u8,
    /// The request whose reply is waited for.
    pub(crate) asked: Option<(Seq, Request)>,
    /// What is on its way to the arbiter.
    pub(crate) sent: VecDeque<(Seq, Request)>,
    /// What is on its way to the client.
    pub(crate) inbox: VecDeque<(Seq, Reply)>,
    pub(crate) seq: u64,
    pub(crate) gone: bool,
    /// It knows the lock: not forgotten by the primary.
    pub(crate) known: bool,
    /// What it believes to hold, until when by the true clock.
    pub(crate) holds: Option<(Mode, ServerTime)>,
    /// When the operation began; zero between operations.
    pub(crate) started: ServerTime,
    /// The incarnation of the primary at which it is.
    pub(crate) epoch: u64,
    /// It has told that all it has; not at the first primary.
    pub(crate) has_said: bool,
    /// When its primary died.
    pub(crate) left: Option<ServerTime>,
    /// The place with which it came to a successor, until its ticket is done.
    pub(crate) place: Option<(Mode, Place)>,
    /// What it believed to hold when it began to release it.
    pub(crate) releases: Option<ServerTime>,
}

/// Everything that decides what can follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) word: u64,
    /// The second word, and the third.
    pub(crate) turn: u64,
    pub(crate) fence: u64,
    pub(crate) ledgers: [LedgerEntry; CLIENTS],
    /// Before the call under way, if there is one.
    pub(crate) arbiter: Arbiter,
    pub(crate) call: Option<Call>,
    pub(crate) now: ServerTime,
    pub(crate) pauses: u8,
    pub(crate) losses: u8,
    /// [`Bug::ServedTwice`]: requests that may still be served again.
    pub(crate) repeats: u8,
    /// The incarnation that serves, or has served last.
    pub(crate) served: u64,
    /// Its successor, while that recovers.
    pub(crate) recovery: Option<Recovery>,
    /// Primaries that may still die.
    pub(crate) deaths: u8,
    /// Where the lock is.
    pub(crate) slot: Slot,
    pub(crate) violation: Option<&'static str>,
}

pub(crate) fn id(i: usize) -> ClientId {
    ClientId::new(i as u32 + 1).expect("client ids start at 1")
}

pub(crate) const HANDLE: Handle = Handle(0);

impl Client {
    fn new(i: usize, setup: &Setup) -> Self {
        let (lock_type, word) = (setup.lock_type, setup.start_word);
        let grant = LockGrant {
            lock: LockId(1),
            handle: HANDLE,
            slot: SLOT,
            word,
            already: false,
            tokens: false,
        };
        // nobody is told the name but a successor
        let name = if setup.successor.is_some() { b"l".to_vec() } else { Vec::new() };
        let desc = LockDesc { name, lock_type, lease_s: 0, tokens: false };
        let mut entry = LockEntry::new(id(i), 0, lock_type, &grant, desc);
        entry.may_try(setup.tries > 0);
        entry.may_park(setup.parks);
        entry.is_by_primary(setup.by_primary);
        Self {
            entry,
            at: 0,
            doing: Doing::Nothing,
            operation: None,
            tries: 0,
            asked: None,
            sent: VecDeque::new(),
            inbox: VecDeque::new(),
            seq: 0,
            gone: false,
            // who does nothing need not be waited for
            known: setup.successor.is_none() || !setup.scripts[i].is_empty(),
            holds: None,
            started: ServerTime(0),
            epoch: 1,
            has_said: true,
            left: None,
            place: None,
            releases: None,
        }
    }

    /// What decides nothing any more, so that states that differ in it alone are one.
    pub(crate) fn forget_all(&mut self, i: usize, setup: &Setup) {
        let fresh = Self::new(i, setup);
        let (at, sent) = (self.at, std::mem::take(&mut self.sent));
        let at = if self.gone { 0 } else { at };
        let Self { gone, known, epoch, has_said, left, .. } = *self;
        *self = Self { at, sent, gone, known, epoch, has_said, left, ..fresh };
    }
}

impl State {
    /// A word of the lock.
    pub(crate) fn word_at(&mut self, addr: WordAddr) -> &mut u64 {
        match addr.word() {
            Word::W1 => &mut self.turn,
            Word::Fence => &mut self.fence,
            _ => &mut self.word,
        }
    }

    pub(crate) fn new(setup: &Setup) -> Self {
        let mut arbiter = Arbiter::default();
        if setup.by_primary {
            (0..CLIENTS).for_each(|i| arbiter.proxy(id(i)));
        }
        Self {
            clients: std::array::from_fn(|i| Client::new(i, setup)),
            word: setup.start_word,
            turn: setup.start_turn,
            fence: 0,
            ledgers: [LedgerEntry::new(); CLIENTS],
            arbiter,
            call: None,
            now: START,
            pauses: setup.pauses,
            losses: setup.losses,
            repeats: u8::from(setup.bug == Some(Bug::ServedTwice)),
            served: 1,
            recovery: None,
            deaths: setup.deaths,
            slot: SLOT,
            violation: None,
        }
    }

    /// What a client knows of the time. Its own clock goes on whatever the primary.
    pub(crate) fn clock(&self, i: usize, setup: &Setup) -> Now {
        let uncertainty_ns = if setup.bug == Some(Bug::ClockTooSure) { 0 } else { UNCERTAINTY_NS };
        let own = ServerTime(self.now.0.saturating_add_signed(SKEW_NS[i]));
        let now = Now::within(own, uncertainty_ns);
        let time = server_time(own, self.clients[i].epoch);
        Now { time, horizon_ns: self.horizon_ns(i, setup), ..now }
    }

    pub(crate) fn violate(&mut self, what: &'static str) {
        self.violation.get_or_insert(what);
    }
}
