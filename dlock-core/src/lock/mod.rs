// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's side of a lock: an entry per (client, lock) and a machine per operation.
//!
//! ```text
//!   begin(op) ──▶ Local(result)
//!            └──▶ Run(machine, step)   step = Chain   ─executor─▶ machine.outcome(..) ─▶ step
//!                                           | Request ─executor─▶ machine.reply(..)   ─▶ step
//!                                           | Again, Park ─pause▶ machine.paused(..)  ─▶ step
//!                                           | Done(result)
//! ```
//! After `begin`, `outcome` and `reply` the driver first executes what
//! [`LockEntry::take_ledger_write`] and [`LockEntry::take_wake`] give, then acts on the step. A
//! request without a reply ([`Request::has_reply`]) is sent, and `reply` is called at once with any
//! `Ok`. One machine runs per entry at a time.
//!
//! What is not known for sure is never guessed: an operation whose answer was lost ends with
//! `BadResponse` and leaves the entry *in doubt*; the next operation on it first asks the arbiter
//! to undo whatever the lost one did ([`Request::Resolve`]), unless the library has asked that
//! before ([`Operation::undo`](crate::operation::Operation::undo)).

mod atomic;
mod claimed;
mod contended;
mod fair;
mod first;
mod heard;
mod ledger;
mod machine;
mod renewal;
mod rw;
#[cfg(test)]
pub(crate) mod testing;
mod tries;
mod validity;
mod view;

pub use contended::{ASK_AGAIN_NS, ASK_NS_MIN};
pub use fair::Half;
pub use first::FirstOp;
pub use heard::{Heard, Listening, Loss};
pub use machine::Machine;
pub use renewal::{Due, LOST_AHEAD_NS};
pub use view::View;

use fair::Fair;
use machine::Phase;
use renewal::Renewal;
use tries::Pace;
use validity::Lease;

use crate::clock::Now;
use crate::ids::{ClientId, Epoch, Handle, LockId, Slot};
use crate::memory::word_op::{Chain, Word, WordAddr};
use crate::memory::words::{LedgerEntry, Ticket, DETAIL_MAX};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::control::{LockDesc, LockGrant};
use crate::wire::message::{LockType, Mode, Request, WaitNumber};
use crate::wire::status::Status;

/// An operation on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take it now or not at all (fair locks: take a ticket, or ask with the one there is).
    TryLock {
        /// The mode wanted.
        mode: Mode,
        /// Lease in seconds; 0 only reads the cached state.
        expire_s: u32,
    },
    /// Take it, waiting at the arbiter if need be.
    Lock {
        /// The mode wanted.
        mode: Mode,
        /// Lease in seconds; 0 only reads the cached state.
        expire_s: u32,
    },
    /// Give it up, or give up the ticket.
    Unlock,
    /// Move the end of the lease; `expire_s` 0 asks whether it is still held.
    Extend {
        /// How it is held.
        mode: Mode,
        /// Lease in seconds from now.
        expire_s: u32,
    },
}

impl Op {
    /// Whether it asks for a lock, and not for the end of a hold, or a later one.
    #[inline]
    fn is_acquire(self) -> bool {
        matches!(self, Op::TryLock { .. } | Op::Lock { .. })
    }

    fn expire_s(self) -> u32 {
        match self {
            Op::TryLock { expire_s, .. }
            | Op::Lock { expire_s, .. }
            | Op::Extend { expire_s, .. } => expire_s,
            Op::Unlock => 0,
        }
    }
}

/// What an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpResult {
    /// The code.
    pub status: Status,
    /// The lock's public state; `None`: nothing is written to the caller's result.
    pub view: Option<View>,
}

impl OpResult {
    /// A code without a state.
    pub fn of(status: Status) -> Self {
        Self { status, view: None }
    }
}

/// The client's state of a lock (the C API's cached state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// Got, not held; also after a loss.
    Initialized = 0,
    /// Held exclusively.
    ExclusiveLocked = 1,
    /// Held shared.
    SharedLocked = 2,
    /// Released by this client.
    Unlocked = 3,
    /// An exclusive ticket is held (fair locks).
    ExclusiveTicketed = 4,
    /// A shared ticket is held (fair locks).
    SharedTicketed = 5,
}

impl EntryState {
    /// Whether the lock is held, exclusively or shared.
    pub fn is_held(self) -> bool {
        matches!(self, Self::ExclusiveLocked | Self::SharedLocked)
    }
}

/// What is not known about an entry because an answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doubt {
    None,
    /// Something may be held, or queued, that the caller was not told of.
    Acquire,
    /// A release whose answer was lost: it may have taken effect.
    Release,
    /// A successor was told of the hold or the ticket; what it makes of it is to be asked for.
    /// `may_be_lost`: when it was claimed, another client could have it already.
    Claimed {
        may_be_lost: bool,
    },
    /// The hold did not survive its primary; the caller's next operation on it says `Fail`.
    Lost,
    /// The lock was to be released altogether, and the primary has not answered: its place and its
    /// handle may be another lock's by now.
    Left,
}

/// One lock as one client knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockEntry {
    me: ClientId,
    anchor_s: u32,
    lock: LockId,
    lock_type: LockType,
    handle: Handle,
    slot: Slot,
    desc: LockDesc,
    state: EntryState,
    refs: u32,
    /// Atomic, read-write, held: the word as last known.
    word: u64,
    lease: Lease,
    /// The library renews the lease.
    renewal: Option<Renewal>,
    /// How many holds have begun; the last one that was lost, and why.
    hold: u64,
    loss: Option<(u64, Loss)>,
    /// Claimed, and not confirmed: the incarnation that granted or confirmed the hold last, and its
    /// deadline by the clock of that one.
    granted_at: Option<(Epoch, u32)>,
    fair: Fair,
    cache: View,
    doubt: Doubt,
    wait: u32,
    /// Of the ledger entry of a share or a ticket: changes with every chain that adds to or takes
    /// off a reader count, and with every ticket, so that an entry that reads the same twice has
    /// not moved in between.
    stamp: u32,
    /// How long turns and looks have taken lately.
    pace: Pace,
    means: Means,
    /// The fencing token of the hold.
    token: Token,
    /// Read-write: the end of an exclusive hold is counted, for clients that want tokens.
    counts_end: bool,
    /// What is to be written to the ledger, before anything else follows.
    write: Option<LedgerEntry>,
}

/// What operations may do where the session's executor carries them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Means {
    /// A client that waits may try again before it queues.
    may_try: bool,
    /// The primary executes the chains, and notes in the ledger what they have taken and released.
    by_primary: bool,
    /// Fair: the primary is asked for the readers inside where the words do not tell them.
    asks_readers: bool,
    /// Fair: reads cost nothing, so that views tell the tickets taken as they are.
    reads_free: bool,
    /// Fair: a client that waits may sleep on the word.
    parks: bool,
}

/// The first step of an operation.
#[allow(clippy::large_enum_variant)] // nothing is allocated
#[derive(Debug)]
pub enum Begin {
    /// Decided without the primary.
    Local(OpResult),
    /// To be driven on.
    Run(Machine, Step),
}

/// What a machine wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Execute this chain and call [`Machine::outcome`].
    Chain(Chain),
    /// Send this request and call [`Machine::reply`].
    Request(Request),
    /// Pause for so long and call [`Machine::paused`], or [`Machine::queues`] at once.
    Again {
        /// Nanoseconds.
        pause_ns: u64,
        /// Turns of others before its own; 0: there are no turns, and it may win at any moment.
        ahead: u16,
    },
    /// Sleep until this half of this word is another value, or was woken, and call
    /// [`Machine::paused`], or [`Machine::queues`] at once.
    Park {
        /// The word.
        addr: WordAddr,
        /// Which half.
        half: Half,
        /// What it is.
        value: u32,
        /// For so long at most, nanoseconds.
        limit_ns: u64,
    },
    /// Finished.
    Done(OpResult),
}

impl LockEntry {
    /// An entry for a lock that was just got. Of one that was got before something may be left.
    pub fn new(
        me: ClientId,
        anchor_s: u32,
        lock_type: LockType,
        grant: &LockGrant,
        desc: LockDesc,
    ) -> Self {
        let mut entry = Self {
            me,
            anchor_s,
            lock: grant.lock,
            lock_type,
            handle: grant.handle,
            slot: grant.slot,
            desc,
            state: EntryState::Initialized,
            refs: 0,
            word: 0,
            lease: Lease::NONE,
            renewal: None,
            hold: 0,
            loss: None,
            granted_at: None,
            fair: Fair::default(),
            cache: View::zero(lock_type),
            doubt: if grant.already { Doubt::Acquire } else { Doubt::None },
            wait: 0,
            stamp: 0,
            pace: Pace::default(),
            token: Token::NONE,
            counts_end: grant.tokens,
            means: Means::default(),
            write: None,
        };
        entry.see_lanes(grant.word);
        entry
    }

    /// The lock was got once more: from the next acquire on it gives tokens if any of its users
    /// wants them.
    pub fn may_want_tokens(&mut self, grant: &LockGrant, desc: &LockDesc) {
        self.desc.tokens |= desc.tokens;
        self.counts_end |= grant.tokens;
    }

    /// The public id.
    pub fn lock(&self) -> LockId {
        self.lock
    }
    /// The kind.
    pub fn lock_type(&self) -> LockType {
        self.lock_type
    }
    /// This client's number for the lock.
    pub fn handle(&self) -> Handle {
        self.handle
    }
    /// Where its words are.
    pub fn slot(&self) -> Slot {
        self.slot
    }
    /// Fair locks: the ticket it is held under, or queued with.
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        use EntryState as S;
        let has_one = !matches!(self.state, S::Initialized | S::Unlocked);
        (has_one && self.lock_type == LockType::Fair).then_some(self.fair.ticket)
    }
    /// The descriptor it was got with.
    pub fn desc(&self) -> &LockDesc {
        &self.desc
    }
    /// The state.
    #[inline]
    pub fn state(&self) -> EntryState {
        self.state
    }
    /// The fencing token of the hold; none if the lock is not held, or no tokens were asked for
    /// when it was got.
    pub fn token(&self) -> Option<Token> {
        self.token.some().filter(|_| self.desc.tokens && self.state.is_held())
    }
    /// How often it is held.
    pub fn refs(&self) -> u32 {
        self.refs
    }
    /// The deadline of the hold in seconds since 1970 (read-write locks have none: `u32::MAX`).
    #[inline]
    pub fn deadline_s(&self) -> u32 {
        if self.lock_type == LockType::Rw {
            u32::MAX
        } else {
            self.lease.time_s
        }
    }
    /// An earlier operation's answer was lost, and what it did was not undone yet.
    pub fn in_doubt(&self) -> bool {
        !matches!(self.doubt, Doubt::None | Doubt::Left)
    }

    /// Whether an earlier operation has left something that is to be [undone](Self::undo): its
    /// caller was told that it holds nothing, or not what it holds, or has asked for its end.
    #[inline]
    pub fn is_to_be_undone(&self) -> bool {
        matches!(self.doubt, Doubt::Acquire | Doubt::Release)
    }

    /// Begins an operation: decides it locally, or says what it takes.
    pub fn begin(&mut self, op: Op, now: Now) -> Begin {
        if let Some(local) = self.decided(op, now) {
            return Begin::Local(local);
        }
        let mut machine = Machine::of(op, now);
        let step = self.first_step(&mut machine, now);
        Begin::Run(machine, step)
    }

    /// The result of an operation that needs no primary.
    pub(crate) fn decided(&mut self, op: Op, now: Now) -> Option<OpResult> {
        if self.has_left() && !planted::is(Bug::LeftUsed) {
            return Some(OpResult::of(Status::LockNotGet));
        }
        if let Some(local) = self.decide(op, now) {
            return Some(local);
        }
        if self.doubt == Doubt::Lost {
            if matches!(op, Op::Unlock) && self.refs > 1 {
                self.refs -= 1; // the next release of those who have entered it is told, too
                return Some(OpResult::of(Status::Fail));
            }
            self.end(EntryState::Initialized);
            self.doubt = Doubt::Acquire; // the primary may have it still, or again: a lost answer
            return Some(OpResult::of(Status::Fail));
        }
        None
    }

    /// The first step of a [new](Machine::of) machine.
    pub(crate) fn first_step(&mut self, machine: &mut Machine, now: Now) -> Step {
        let op = machine.op;
        // also for an extend: a release that was asked for may still be carried out
        let undoubted = planted::is(Bug::ExtendInDoubt) && matches!(op, Op::Extend { .. });
        if self.in_doubt() && !undoubted {
            machine.phase = Phase::Resolving;
            Step::Request(self.settles_doubt())
        } else {
            machine.start(self, now)
        }
    }

    /// The lease of a grant may be over before its caller was told: as far as this client knows
    /// it holds nothing, and what it may have is undone before its next operation.
    pub fn give_back(&mut self) {
        self.is_over_by(Loss::Expired);
        self.end(EntryState::Initialized);
        self.doubt = Doubt::Acquire;
    }

    /// Undoes what a lost answer may have left behind; `None` if nothing is in doubt. A release in
    /// doubt is asked for again: the ledger would name the hold for as long as nobody asks.
    pub fn undo(&mut self, now: Now) -> Option<(Machine, Step)> {
        if !self.is_to_be_undone() {
            return None;
        }
        let machine = Machine::new(Op::Unlock, Phase::Resolving, now);
        Some((machine, Step::Request(Request::Resolve { handle: self.handle })))
    }

    /// The request that undoes what a lost answer may have left behind, as [`undo`](Self::undo).
    pub fn undo_request(&mut self, now: Now) -> Option<Request> {
        match self.undo(now)? {
            (_, Step::Request(request)) => Some(request),
            _ => None,
        }
    }

    /// The answers that need no primary: the table of the C API's cached state.
    fn decide(&mut self, op: Op, now: Now) -> Option<OpResult> {
        use EntryState as S;
        let code = |s| Some(OpResult::of(s));
        let held = self.state.is_held();
        match op {
            Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s } => {
                if self.lock_type == LockType::Atomic && mode == Mode::Shared {
                    return code(Status::Invalid);
                }
                if expire_s == 0 {
                    let view = Some(self.cache.without_t());
                    return Some(OpResult { status: Status::Success, view });
                }
                match (self.state, mode) {
                    (S::ExclusiveLocked, Mode::Shared) | (S::SharedLocked, Mode::Exclusive) => {
                        code(Status::Invalid)
                    }
                    (S::ExclusiveTicketed, Mode::Shared) | (S::SharedTicketed, Mode::Exclusive) => {
                        code(Status::Ticket)
                    }
                    _ if held && self.lock_type == LockType::Rw && self.doubt == Doubt::None => {
                        self.refs += 1;
                        let view = Some(self.cache);
                        Some(OpResult { status: Status::AlreadyLocked, view })
                    }
                    _ => None,
                }
            }
            Op::Unlock => match self.state {
                S::Initialized | S::Unlocked => code(Status::AlreadyUnlocked),
                S::ExclusiveTicketed | S::SharedTicketed => None,
                _ if self.refs > 1 && self.doubt != Doubt::Lost => self.released_partly(now),
                _ => None,
            },
            Op::Extend { mode, .. } => {
                let fits = match self.state {
                    S::ExclusiveLocked => mode == Mode::Exclusive,
                    S::SharedLocked => mode == Mode::Shared,
                    _ => false,
                };
                // what became of a claim is asked for first, whether it can be extended or not
                let cannot = self.lock_type == LockType::Rw && !self.is_unconfirmed();
                if !fits || cannot {
                    return code(Status::Invalid);
                }
                None
            }
        }
    }

    fn fence(&self) -> WordAddr {
        WordAddr::new(self.slot, Word::Fence)
    }

    fn w0(&self) -> WordAddr {
        WordAddr::new(self.slot, Word::W0)
    }

    fn next_wait(&mut self) -> WaitNumber {
        self.wait = if self.wait >= DETAIL_MAX { 1 } else { self.wait + 1 };
        WaitNumber(self.wait)
    }

    /// The hold begins, or is entered once more.
    #[inline]
    fn grant(&mut self, mode: Mode, view: View) -> OpResult {
        self.state = match mode {
            Mode::Exclusive => EntryState::ExclusiveLocked,
            Mode::Shared => EntryState::SharedLocked,
        };
        let status = match self.refs {
            0 => {
                self.hold += 1;
                Status::Success
            }
            _ => Status::AlreadyLocked,
        };
        self.refs += 1;
        self.doubt = Doubt::None;
        self.cache = view;
        OpResult { status, view: Some(view) }
    }

    /// The hold is over, by a release (`Unlocked`) or a loss (`Initialized`).
    #[inline]
    fn end(&mut self, state: EntryState) {
        self.state = state;
        self.refs = 0;
        self.word = 0;
        self.fair.place = None;
        self.granted_at = self.granted_at.filter(|_| planted::is(Bug::GrantedAtKept));
        self.doubt = Doubt::None;
        self.lease.may_be_endless = false;
        self.renewal_ends();
        self.cache = View::zero(self.lock_type);
    }

    #[inline]
    fn released(&mut self, view: View) -> OpResult {
        self.end(EntryState::Unlocked);
        self.cache = view;
        OpResult { status: Status::Success, view: Some(view) }
    }

    fn lost(&mut self) -> OpResult {
        self.is_over_by(Loss::Unknown);
        self.end(EntryState::Initialized);
        OpResult::of(Status::Fail)
    }

    /// The primary executes the chains, and notes in the ledger what those on a read-write lock
    /// have taken and released.
    pub fn is_by_primary(&mut self, is: bool) {
        self.means.by_primary = is;
    }

    /// Whether a release asks the primary at once: it would execute the chain, too, and at the last
    /// release others waited, so that it is likely to be asked after that.
    #[inline]
    fn asks_at_once(&self) -> bool {
        self.means.by_primary && self.pace.is_followed()
    }
}
