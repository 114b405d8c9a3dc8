// SPDX-License-Identifier: MIT OR Apache-2.0
//! The setups that are explored, and the parts of one state.

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
/// Late in a second, so that deadlines in whole seconds leave little to spare.
pub(crate) const START: ServerTime = ServerTime(1_000 * NS + NS / 10 * 9);
/// The uncertainty that every client assumes of its clock.
pub(crate) const UNCERTAINTY_NS: u64 = 300_000_000;
/// How far the clocks of the clients are off, nanoseconds.
pub(crate) const SKEW_NS: [i64; CLIENTS] = [-300_000_000, 300_000_000, 0];

/// One small system: the scripts of its clients, and what may go wrong.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name of the setup in tables.
    pub name: &'static str,
    /// The kind of the lock.
    pub lock_type: LockType,
    /// The operations of each client, one after the other.
    pub scripts: [Vec<Op>; CLIENTS],
    /// The first word of the lock at the start (fair locks: near the end of the ticket counters).
    pub start_word: u64,
    /// The second word of the lock at the start.
    pub start_turn: u64,
    /// The client that may die before any of its steps; `None`: none may.
    pub mortal: Option<usize>,
    /// How often time may pass although a client could go on: all clients are paused.
    pub pauses: u8,
    /// How often the answer to a chain or a request may be lost.
    pub losses: u8,
    /// Whether a waiter may give up at any moment.
    pub impatient: bool,
    /// How often an operation that finds the lock held tries again before it queues.
    pub tries: u8,
    /// Whether a client that looks for its turn may sleep on the word.
    pub parks: bool,
    /// Whether the primary executes the clients' chains, as for tcp clients: as a whole, and it
    /// knows their tickets.
    pub by_primary: bool,
    /// How often the primary may die.
    pub deaths: u8,
    /// How the successor waits for its clients; `None`: the primary does not die.
    pub successor: Option<Awaits>,
    /// Whether a release that finds no primary is not repeated: then it is over for its caller.
    pub unheard: bool,
    /// The events that must be seen; otherwise the model proves less than it seems to.
    pub sometimes: Vec<Event>,
    /// The bug that is planted around the core.
    pub bug: Option<Bug>,
    /// The number from which on the arbiter gives the tickets of a fair lock; only with the feature
    /// `planted`.
    pub divert: Option<u32>,
    /// The rule of the core that is switched off.
    #[cfg(feature = "planted")]
    pub core_bug: Option<dlock_core::planted::Bug>,
}

impl Setup {
    /// Sets this thread's core up for this setup: its planted bug, and the number from which the
    /// arbiter gives tickets.
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

/// An event that may be seen in a model.
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
    /// A holder learned late, from its release, that its hold was lost.
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
    /// A client took a ticket through the arbiter, because a ticket counter is high.
    TicketByArbiter,
    /// A compare-and-swap of the arbiter met a word that a client had changed.
    ArbiterRaced,
    /// A client saw its turn without the arbiter.
    SawTurn,
    /// A release by the client itself met a word that the arbiter, or another reader, had changed.
    ReleaseRaced,
    /// The ticket counters of a fair lock started again.
    LapBegun,
    /// A client slept on the word.
    Parked,
    /// A client came to the successor in the middle of a chain.
    CutInChain,
    /// A client came to the successor with a grant of the predecessor on its way, which is lost.
    GrantLost,
    /// A client changed the predecessor's word after another client had claimed the lock at the
    /// successor.
    LeftBehind,
    /// A hold was claimed at the successor.
    HoldClaimed,
    /// A place in the queue was claimed at the successor, and served there.
    PlaceServed,
    /// The successor stopped waiting for a client.
    GivenUp,
    /// A client died after it had come to the recovering successor.
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
    /// The index of the client's present operation in its script.
    pub(crate) at: usize,
    pub(crate) doing: Doing,
    pub(crate) operation: Option<Operation>,
    /// How often the client's operation may still try.
    pub(crate) tries: u8,
    /// The request for whose reply the client waits.
    pub(crate) asked: Option<(Seq, Request)>,
    /// The client's requests that have not reached the arbiter.
    pub(crate) sent: VecDeque<(Seq, Request)>,
    /// Replies that have not reached the client.
    pub(crate) inbox: VecDeque<(Seq, Reply)>,
    pub(crate) seq: u64,
    pub(crate) gone: bool,
    /// Whether the primary knows the client's reference to the lock.
    pub(crate) known: bool,
    /// The mode in which the client believes to hold the lock, and until when, in true time.
    pub(crate) holds: Option<(Mode, ServerTime)>,
    /// When the client's operation began; 0 between operations.
    pub(crate) started: ServerTime,
    /// The incarnation of the primary to which the client has come.
    pub(crate) epoch: u64,
    /// Whether the client has told its primary that it made all claims; at the first primary, true.
    pub(crate) has_said: bool,
    /// When the client's primary died; `None`: it lives.
    pub(crate) left: Option<ServerTime>,
    /// The place in the queue with which the client came to a successor, until its ticket is done.
    pub(crate) place: Option<(Mode, Place)>,
    /// While the client releases a hold: until when it believed to have the lock.
    pub(crate) releases: Option<ServerTime>,
}

/// One state: everything that decides which actions and states can follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) word: u64,
    /// The second word of the lock; then its third.
    pub(crate) turn: u64,
    pub(crate) fence: u64,
    pub(crate) ledgers: [LedgerEntry; CLIENTS],
    /// The arbiter. While a call is under way: the arbiter before that call.
    pub(crate) arbiter: Arbiter,
    pub(crate) call: Option<Call>,
    pub(crate) now: ServerTime,
    pub(crate) pauses: u8,
    pub(crate) losses: u8,
    /// [`Bug::ServedTwice`]: requests that may still be served again.
    pub(crate) repeats: u8,
    /// The incarnation that serves, or the last one that has.
    pub(crate) served: u64,
    /// The successor of the dead primary, while it recovers.
    pub(crate) recovery: Option<Recovery>,
    /// How often the primary may still die.
    pub(crate) deaths: u8,
    /// The slot of the lock.
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
        // only a successor needs the name of the lock
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
            // a recovery need not wait for a client that does nothing
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

    /// Resets what no longer matters, so that states which differ only in that are one state.
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

    /// The clock of a client. Its own clock goes on when its primary dies.
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
