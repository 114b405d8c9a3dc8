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
//! [`LockEntry::take_ledger_write`] and [`LockEntry::take_wake`] return, then carries out the step.
//! The driver sends a request without a reply ([`Request::has_reply`]) and calls `reply` at once
//! with any `Ok`. One machine runs per entry at a time.
//!
//! The client never guesses what it does not know: an operation whose answer was lost ends with
//! `BadResponse` and leaves the entry *in doubt*. The next operation on the entry first asks the
//! arbiter to undo what the lost operation did ([`Request::Resolve`]), unless the library has
//! asked already ([`Operation::undo`](crate::operation::Operation::undo)).

mod atomic;
mod claimed;
mod contended;
mod downgrade;
mod fair;
mod first;
mod heard;
mod kept;
mod ledger;
mod machine;
mod op;
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
pub use kept::Wanted;
pub use machine::Machine;
pub use op::{Op, OpResult};
pub use renewal::{Due, LOST_AHEAD_NS};
pub use view::{TimeOut, View};

use fair::Fair;
use kept::Cache;
use machine::Phase;
use renewal::Renewal;
use tries::Pace;
use validity::Term;

use crate::clock::{Deadline, Now};
use crate::ids::{ClientId, Epoch, Handle, LockId, Slot};
use crate::memory::word_op::{Chain, Word, WordAddr};
use crate::memory::words::{LedgerEntry, Ticket};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::control::{LockDesc, LockGrant};
use crate::wire::message::{LockType, Mode, Request, WaitNumber};
use crate::wire::status::Status;

/// The state of a lock as its client knows it (the C API's cached state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// The client has got the lock and does not hold it; also after a loss.
    Initialized = 0,
    /// The client holds the lock exclusively.
    ExclusiveLocked = 1,
    /// The client holds the lock shared.
    SharedLocked = 2,
    /// The client has released the lock.
    Unlocked = 3,
    /// Fair locks: the client has an exclusive ticket whose turn it has not seen.
    ExclusiveTicketed = 4,
    /// Fair locks: the client has a shared ticket whose turn it has not seen.
    SharedTicketed = 5,
}

impl EntryState {
    /// Whether the client holds the lock, exclusively or shared.
    pub fn is_held(self) -> bool {
        matches!(self, Self::ExclusiveLocked | Self::SharedLocked)
    }
}

/// What the client does not know about an entry because an answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doubt {
    None,
    /// The client may hold the lock, or be queued for it, without its caller knowing.
    Acquire,
    /// A release whose answer was lost: it may have taken effect.
    Release,
    /// The client has claimed the hold or the ticket at a successor, and has to ask what the
    /// successor makes of the claim. `may_be_lost`: at the time of the claim another client could
    /// already have had the lock.
    Claimed {
        may_be_lost: bool,
    },
    /// The client has asked the arbiter to make its exclusive hold a share: it has the one or the
    /// other, and counts on the share.
    Downgrade,
    /// The hold did not survive its primary; the caller's next operation on the lock returns
    /// `Fail`.
    Lost,
    /// The client has asked the primary to give the lock back altogether, and has no answer: the
    /// lock's slot and handle may belong to another lock by now.
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
    /// Atomic and read-write locks, while held: the value of the lock word as last known.
    word: u64,
    lease: Term,
    /// The renewal of the lease by the library; `None`: the library does not renew it.
    renewal: Option<Renewal>,
    /// How many holds have begun, and (`loss`) the number of the last hold that was lost, with the
    /// reason.
    hold: u64,
    loss: Option<(u64, Loss)>,
    /// For a claimed hold that no primary has confirmed: the incarnation that last granted or
    /// confirmed the hold, and the hold's deadline by the clock of that incarnation.
    granted_at: Option<(Epoch, Deadline)>,
    fair: Fair,
    cache: View,
    doubt: Doubt,
    wait: u32,
    /// A number in the ledger entry of a share or a ticket. It changes with every chain that adds
    /// to or takes from a reader count, and with every ticket. So an entry that the arbiter reads
    /// twice with the same value has not changed in between.
    stamp: u32,
    /// What the client has seen of the lock lately: how long a turn takes, whether others follow.
    pace: Pace,
    means: Means,
    /// Read-write locks: whether the lease that an acquire names counts. The C API names one in
    /// each acquire, and gives it no meaning for these locks.
    takes_leases: bool,
    /// The fencing token of the hold.
    token: Token,
    /// Read-write locks: the end of an exclusive hold is counted in the fence word, because some
    /// client wants tokens.
    counts_end: bool,
    /// The ledger entry to write before the next chain or request.
    write: Option<LedgerEntry>,
    /// What the client keeps after a release.
    kept: Cache,
}

/// What the session's executor makes possible for operations on this lock; it depends on the
/// fabric. By default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Means {
    /// A client that waits may try again before it queues.
    may_try: bool,
    /// The primary executes the chains, and writes into the ledger what they have taken and
    /// released.
    by_primary: bool,
    /// Fair locks: where the words do not tell how many readers hold the lock, the client asks the
    /// primary.
    asks_readers: bool,
    /// Fair locks: a read is free, so each view has the number of tickets taken as the word has it
    /// now.
    reads_free: bool,
    /// Fair locks: a client that waits may sleep on the word.
    parks: bool,
}

/// The first step of an operation.
#[allow(clippy::large_enum_variant)] // not boxed: the first step allocates nothing
#[derive(Debug)]
pub enum Begin {
    /// The entry has decided the operation without the primary.
    Local(OpResult),
    /// The driver executes this step, then drives the machine until `Done`.
    Run(Machine, Step),
}

/// What a machine wants the driver to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Execute this chain and call [`Machine::outcome`].
    Chain(Chain),
    /// Send this request and call [`Machine::reply`].
    Request(Request),
    /// Pause for `pause_ns` and call [`Machine::paused`], or call [`Machine::queues`] at once.
    Again {
        /// Nanoseconds.
        pause_ns: u64,
        /// How many turns of other clients come before this one's; 0: the lock has no turns, and
        /// the operation may succeed at any moment.
        ahead: u16,
    },
    /// Sleep until this half of the word is no longer `value`, or until another process wakes the
    /// sleeper; then call [`Machine::paused`]. Or call [`Machine::queues`] at once.
    Park {
        /// The word to sleep on.
        addr: WordAddr,
        /// The half of the word.
        half: Half,
        /// The value that this half has.
        value: u32,
        /// The longest sleep, nanoseconds.
        limit_ns: u64,
    },
    /// The operation has ended.
    Done(OpResult),
}

impl LockEntry {
    /// An entry for a lock that the client has just got. If the client had got the lock before
    /// (`grant.already`), something of that time may be left: the entry begins in doubt.
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
            lease: Term::of(lock_type),
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
            takes_leases: false,
            write: None,
            kept: Cache::OFF,
        };
        entry.see_lanes(grant.word);
        entry
    }

    /// The client has got the lock once more: from the next acquire on the lock gives tokens if any
    /// of its users wants them.
    pub fn may_want_tokens(&mut self, grant: &LockGrant, desc: &LockDesc) {
        self.desc.tokens |= desc.tokens;
        self.counts_end |= grant.tokens;
    }

    /// From now on the lease that an acquire of a read-write lock names counts; until now such a
    /// lock has none.
    pub fn takes_leases(&mut self) {
        self.takes_leases = true;
    }

    /// The lock's public id.
    pub fn lock(&self) -> LockId {
        self.lock
    }
    /// The kind of the lock.
    pub fn lock_type(&self) -> LockType {
        self.lock_type
    }
    /// This client's number for the lock.
    pub fn handle(&self) -> Handle {
        self.handle
    }
    /// The slot of the lock's words.
    pub fn slot(&self) -> Slot {
        self.slot
    }
    /// Fair locks: the ticket under which the client holds the lock or waits for it.
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        use EntryState as S;
        let has_one = !matches!(self.state(), S::Initialized | S::Unlocked);
        (has_one && self.lock_type == LockType::Fair).then_some(self.fair.ticket)
    }
    /// The descriptor with which the client got the lock.
    pub fn desc(&self) -> &LockDesc {
        &self.desc
    }
    /// The lock's state as this client knows it.
    #[inline]
    pub fn state(&self) -> EntryState {
        match self.is_idle() {
            true => EntryState::Unlocked,
            false => self.state,
        }
    }
    /// The fencing token of the hold; `None` if the client does not hold the lock, or did not ask
    /// for tokens when it got the lock.
    pub fn token(&self) -> Option<Token> {
        let is_known = self.desc.tokens && self.state().is_held() && !self.is_downgrading();
        self.token.some().filter(|_| is_known)
    }
    /// How many acquires of this hold are not released yet (re-entry); 0: not held.
    pub fn refs(&self) -> u32 {
        self.refs
    }
    /// The deadline of the hold.
    #[inline]
    pub fn deadline(&self) -> Deadline {
        self.lease.time
    }
    /// Whether the answer to an earlier operation was lost, and the client does not yet know what
    /// that operation did.
    pub fn in_doubt(&self) -> bool {
        !matches!(self.doubt, Doubt::None | Doubt::Left)
    }

    /// Whether the client has to [undo](Self::undo) something of an earlier operation: that
    /// operation's caller got a result by which it holds nothing, or has asked for the end of the
    /// hold.
    #[inline]
    pub fn is_to_be_undone(&self) -> bool {
        matches!(self.doubt, Doubt::Acquire | Doubt::Release)
    }

    /// Begins an operation: decides it locally, or returns its machine and first step.
    pub fn begin(&mut self, op: Op, now: Now) -> Begin {
        if let Some(local) = self.decided(op, now) {
            return Begin::Local(local);
        }
        let mut machine = Machine::of(op, now);
        let step = self.first_step(&mut machine, now);
        Begin::Run(machine, step)
    }

    /// The result of an operation that needs no primary; `None`: the operation needs one.
    pub(crate) fn decided(&mut self, op: Op, now: Now) -> Option<OpResult> {
        if self.has_left() && !planted::is(Bug::LeftUsed) {
            return Some(OpResult::of(Status::LockNotGet));
        }
        if let Some(local) = self.decide(op, now) {
            return Some(local);
        }
        if self.doubt == Doubt::Lost {
            if matches!(op, Op::Unlock) && self.refs > 1 {
                self.refs -= 1; // the next release of a re-entered hold fails, too
                return Some(OpResult::of(Status::Fail));
            }
            self.end(EntryState::Initialized);
            // the primary may still have the hold, or have it again, because an answer was lost
            self.doubt = Doubt::Acquire;
            return Some(OpResult::of(Status::Fail));
        }
        None
    }

    /// The first step of a [new](Machine::of) machine.
    pub(crate) fn first_step(&mut self, machine: &mut Machine, now: Now) -> Step {
        let op = machine.op;
        // extends, too, resolve a doubt first: a release without an answer may still take effect
        let undoubted = planted::is(Bug::ExtendInDoubt) && matches!(op, Op::Extend { .. });
        if self.in_doubt() && !undoubted {
            machine.phase = Phase::Resolving;
            Step::Request(self.settles_doubt())
        } else {
            machine.start(self, now)
        }
    }

    /// Gives up a grant whose lease may be over before the caller learns of the grant. The client
    /// then counts as holding nothing; its next operation first undoes what it may still have.
    pub fn give_back(&mut self) {
        self.is_over_by(Loss::Expired);
        self.end(EntryState::Initialized);
        self.doubt = Doubt::Acquire;
    }

    /// The request that undoes what an operation without an answer may have left, and its machine;
    /// `None` if there is nothing to undo. A release in doubt is asked for again, because otherwise
    /// the ledger would name the hold until the next operation on the lock.
    pub fn undo(&mut self, now: Now) -> Option<(Machine, Step)> {
        if !self.is_to_be_undone() {
            return None;
        }
        let machine = Machine::new(Op::Unlock, Phase::Resolving, now);
        Some((machine, Step::Request(Request::Resolve { handle: self.handle })))
    }

    /// Like [`undo`](Self::undo), but only the request.
    pub fn undo_request(&mut self, now: Now) -> Option<Request> {
        match self.undo(now)? {
            (_, Step::Request(request)) => Some(request),
            _ => None,
        }
    }

    /// The result of an operation that needs no primary, by the table of the C API's cached state;
    /// `None`: it needs one.
    fn decide(&mut self, op: Op, now: Now) -> Option<OpResult> {
        if self.is_kept() {
            if let Some(served) = self.served(op, now) {
                return Some(served);
            }
        }
        use EntryState as S;
        let code = |s| Some(OpResult::of(s));
        let held = self.state.is_held();
        match op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => {
                if self.lock_type == LockType::Atomic && mode == Mode::Shared {
                    return code(Status::Invalid);
                }
                if lease.is_none() {
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
                    _ if held && self.is_on_word() && self.doubt == Doubt::None => {
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
                // an operation on a claim first asks the primary to confirm it, even if it cannot
                // be extended
                let cannot = self.is_on_word() && !self.is_unconfirmed();
                if !fits || cannot {
                    return code(Status::Invalid);
                }
                None
            }
            Op::Downgrade => {
                let is_shared = self.state == S::SharedLocked;
                let may = is_shared || self.refs == 1 || self.doubt == Doubt::Lost;
                let may = may && held && self.lock_type != LockType::Atomic;
                (!may).then(|| OpResult::of(Status::Invalid))
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
        self.wait = self.wait.checked_add(1).unwrap_or(1);
        WaitNumber(self.wait)
    }

    /// A hold begins, or the client enters its hold once more.
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
    fn end(&mut self, state: EntryState) {
        self.ends_with(state, View::zero(self.lock_type));
    }

    #[inline(always)]
    fn ends_with(&mut self, state: EntryState, view: View) {
        self.state = state;
        self.refs = 0;
        self.word = 0;
        self.fair.place = None;
        self.granted_at = self.granted_at.filter(|_| planted::is(Bug::GrantedAtKept));
        self.doubt = Doubt::None;
        self.lease.may_be_endless = false;
        if self.lease.by_arbiter {
            // the next hold has no lease unless the arbiter grants one
            (self.lease.time, self.lease.by_arbiter) = (Deadline::NEVER, false);
        }
        self.renewal_ends();
        self.keeps_nothing();
        self.cache = view;
    }

    #[inline]
    fn released(&mut self, view: View) -> OpResult {
        self.ends_with(EntryState::Unlocked, view);
        OpResult { status: Status::Success, view: Some(view) }
    }

    fn lost(&mut self) -> OpResult {
        self.is_over_by(Loss::Unknown);
        self.end(EntryState::Initialized);
        OpResult::of(Status::Fail)
    }

    /// Says whether the primary executes the chains, and writes into the ledger what those on a
    /// read-write lock have taken and released.
    pub fn is_by_primary(&mut self, is: bool) {
        self.means.by_primary = is;
    }

    /// Whether a release asks the arbiter at once, without a chain: the primary would execute the
    /// chain, too, and because others waited at the last release, the arbiter will probably be
    /// needed anyway.
    #[inline]
    fn asks_at_once(&self) -> bool {
        self.means.by_primary && self.pace.is_followed()
    }
}
