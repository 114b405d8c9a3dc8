// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter: the primary's state machine for what is rare at a lock.
//!
//! ```text
//!   Request ──▶ atomic | rw | fair ──word operations──▶ lock words
//!                     └─▶ wait queue ──grant──▶ Sent (the reply to a client's Wait)
//!   tick ──▶ expiry, graces, recounts         forget ──▶ undo what a client held that is gone
//! ```
//! The arbiter owns the wait queues and does every repair of several steps. It changes words by the
//! same word operations as the clients, which may operate on the words at the same time. It takes
//! all decisions of a primary one after the other, and blocks on nothing.

mod atomic;
mod confirm;
mod executed;
mod fair;
mod had;
mod hindrance;
mod kept;
mod proxied;
mod rw;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use crate::clock::{Deadline, Lease, ServerTime, NS};
use crate::ids::{ClientId, Handle, Seq, Slot};
use crate::limits::LOOK_S;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::{LedgerEntry, Ticket};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use crate::wire::status::Status;

pub use fair::WORK_MAX as FAIR_WORK_MAX;

pub(crate) use fair::fair_view;
use fair::FairState;
use kept::Keepers;
use proxied::Proxied;
use rw::RwState;
use waits::{cancel_wait, drop_waits, end_earlier_wait, no_wait};

/// A reply to a client, for its command channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The client.
    pub client: ClientId,
    /// The number of the request that this answers.
    pub seq: Seq,
    /// The answer.
    pub reply: Reply,
}

/// A lock, and the clients that have got it.
#[derive(Clone, Copy, Debug)]
pub struct LockRef<'a> {
    /// The slot of the lock.
    pub slot: Slot,
    /// The kind of the lock.
    pub lock_type: LockType,
    /// Whether the lock's grants and the ends of its exclusive holds are counted, for
    /// [tokens](crate::token).
    pub tokens: bool,
    /// Every client that may operate on the lock, with its handle.
    pub refs: &'a [(ClientId, Handle)],
}

/// The client that has sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The client.
    pub client: ClientId,
    /// The client's handle of the lock.
    pub handle: Handle,
    /// The number of the request.
    pub seq: Seq,
}

/// The most compare-and-swaps for one change of a word. Each of them that fails has met another
/// client's word operation. The clients of a contended word come to this arbiter instead, so the
/// limit is far away.
const ROUNDS_MAX: u32 = 100_000;
/// The least time between two attempts at a recount, nanoseconds. It grows with the time for which
/// the arbiter has waited for a client, to [`LOOK_S`](crate::limits::LOOK_S).
const RECOUNT_EVERY_NS: u64 = 1_000_000;
/// A client that is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    caller: Caller,
    wait: WaitNumber,
    mode: Mode,
    lease: Lease,
    /// Of a try: when it fails.
    until: Option<ServerTime>,
}

/// What the arbiter remembers of a lock; absent if there is nothing to remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LockState {
    queue: VecDeque<Waiter>,
    fair: FairState,
    rw: RwState,
    kept: Keepers,
    /// When the arbiter next looks at the lock. `needed`: when it would have to look if no wake-up
    /// could be lost.
    due: Option<ServerTime>,
    needed: Option<ServerTime>,
}

impl LockState {
    /// Whether the arbiter will answer this client later, if its channel lasts.
    fn has_queued(&self, client: ClientId) -> bool {
        self.queue.iter().any(|w| w.caller.client == client) || self.fair.holds_back(client)
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fair.is_empty() && self.rw.is_empty() && self.kept.is_empty()
    }
}

/// The arbiter of one primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arbiter {
    /// Boxed, so that a growing tree moves little at a time.
    locks: BTreeMap<Slot, Box<LockState>>,
    due: BTreeSet<(ServerTime, Slot)>,
    proxied: Proxied,
    /// The locks that each client is queued for, and perhaps some for which it no longer is: where
    /// to look when the client does not wait any more.
    waits: BTreeMap<ClientId, BTreeSet<Slot>>,
    /// Locks that wait for a client that is between two word operations, or does not come back.
    hindered: BTreeSet<Slot>,
    work: Work,
}

/// The work of the last call. Not part of the state: it counts neither in comparisons nor in
/// hashes.
#[derive(Clone, Copy, Debug, Default)]
struct Work(u64);

impl PartialEq for Work {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Work {}

/// For model checkers, which copy, compare and hash states.
impl Hash for Arbiter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.locks, &self.due).hash(state);
    }
}

/// The context of one call.
struct Ctx<'a> {
    now: ServerTime,
    mem: &'a mut dyn LockMemory,
    lock: LockRef<'a>,
    out: &'a mut Vec<Sent>,
    proxied: &'a Proxied,
    /// When this call wants the arbiter to look at the lock again. `look`: when it should look in
    /// case a wake-up is lost.
    due: Option<ServerTime>,
    look: Option<ServerTime>,
    /// How many ledger entries and records were read, and tickets skipped.
    work: u64,
}

impl Ctx<'_> {
    fn is_proxied(&self, client: ClientId) -> bool {
        self.proxied.contains(client)
    }
    fn w0(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::W0)
    }
    /// The word that tells how the lock is held; of a fair lock, the turn word.
    fn read(&mut self) -> u64 {
        let word = match self.lock.lock_type {
            LockType::Fair => Word::W1,
            LockType::Atomic | LockType::Rw => Word::W0,
        };
        self.mem.read(WordAddr::new(self.lock.slot, word))
    }
    /// Changes the lock word to what `f` returns; the new word, or `None` if `f` wants no change.
    fn update(&mut self, mut f: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let (addr, mut seen) = (self.w0(), self.read());
        for _ in 0..ROUNDS_MAX {
            let wanted = f(seen)?;
            let old = self.mem.cas(addr, seen, wanted);
            if old == seen {
                return Some(wanted);
            }
            seen = old;
        }
        None
    }
    fn worked(&mut self, units: usize) {
        self.work += units as u64;
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.work += 1;
        self.mem.ledger(client, handle)
    }
    fn answer(&mut self, to: Caller, reply: Reply) {
        self.out.push(Sent { client: to.client, seq: to.seq, reply });
    }
    fn denied(&mut self, to: Caller, status: Status) {
        let word = self.read();
        self.answer(to, Reply::Denied { status, word });
    }
    /// Answers with a grant. The word has the hold already, so the token that is taken now is above
    /// every earlier one.
    fn granted(
        &mut self,
        to: Caller,
        mode: Mode,
        word: u64,
        deadline: Deadline,
        ticket: Option<Ticket>,
    ) {
        let (at, token) = (self.now, self.token(mode));
        self.answer(to, Reply::Granted { word, deadline, at, ticket, token });
    }
    /// The token of a hold, where clients want tokens. A fair hold's client has the token in its
    /// ticket.
    fn token(&mut self, mode: Mode) -> Token {
        let fence = self.fence();
        match self.lock.lock_type {
            _ if !self.lock.tokens => Token::NONE,
            LockType::Atomic if planted::is(Bug::HandOverWithoutToken) => Token::NONE,
            LockType::Atomic => Token::of_atomic(self.mem.faa(fence, 1)),
            LockType::Rw => Token::of_rw(mode, self.mem.read(fence)),
            LockType::Fair => Token::NONE,
        }
    }
    fn fence(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::Fence)
    }
    fn wake_at(&mut self, at: ServerTime) {
        if at.0 != u64::MAX {
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }
    /// Sets a further look at the lock, because the client that should report a release may die
    /// before it does.
    fn looks_again(&mut self) {
        self.look = (!planted::is(Bug::NoLook)).then(|| self.now.plus_ns(u64::from(LOOK_S) * NS));
    }
}

impl Arbiter {
    /// The work of the last call, in the units of [`FAIR_WORK_MAX`].
    pub fn work(&self) -> u64 {
        self.work.0
    }

    /// Handles one request about one lock. The caller has checked that the request's handle names
    /// `lock`.
    pub fn request(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        from: Caller,
        request: Request,
        out: &mut Vec<Sent>,
    ) {
        self.with(now, mem, lock, out, |ctx, state| {
            use Request::{Downgrade, Release, Resolve};
            // after a downgrade the program uses the share
            if matches!(request, Release { .. } | Resolve { .. } | Downgrade { .. }) {
                state.kept.end(from.client);
            }
            match lock.lock_type {
                LockType::Atomic => atomic::request(ctx, state, from, request),
                LockType::Rw => rw::request(ctx, state, from, request),
                LockType::Fair => fair::request(ctx, state, from, request),
            }
        });
        if self.locks.get(&lock.slot).is_some_and(|state| state.has_queued(from.client)) {
            self.waits.entry(from.client).or_default().insert(lock.slot);
        }
    }

    /// Records that the client is not queued for this lock any more.
    pub(crate) fn waits_no_more(&mut self, client: ClientId, slot: Slot) {
        no_wait(&mut self.waits, client, slot);
    }

    /// Undoes what a client holds or waits for that can no longer act on the lock (it is fenced, or
    /// has given its reference back). Reads the client's ledger entry, and does not clear it.
    pub fn forget(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        client: ClientId,
        handle: Handle,
        out: &mut Vec<Sent>,
    ) {
        self.with(now, mem, lock, out, |ctx, state| undo(ctx, state, client, handle));
    }

    /// The state of a lock, for a change. The caller drops the state if it is empty afterwards.
    fn state(&mut self, slot: Slot) -> &mut LockState {
        let state = self.locks.entry(slot).or_default();
        self.proxied.tell(state);
        state
    }

    /// Looks at this lock at `at` at the latest.
    fn looks_at(&mut self, slot: Slot, at: ServerTime) {
        let Some(state) = self.locks.get_mut(&slot) else { return };
        let due = state.due.map_or(at, |due| due.min(at));
        if let Some(old) = state.due.replace(due) {
            self.due.remove(&(old, slot));
        }
        state.needed = Some(state.needed.map_or(at, |needed| needed.min(at)));
        self.due.insert((due, slot));
    }

    fn drop_if_empty(&mut self, slot: Slot) {
        if self.locks.get(&slot).is_some_and(|s| s.is_empty() && s.due.is_none()) {
            self.locks.remove(&slot);
        }
    }

    /// Forgets a client that is gone; every lock that it had got has forgotten it.
    pub fn gone(&mut self, client: ClientId) {
        self.proxied.forget(client);
        self.waits.remove(&client);
    }

    /// How many locks this client is queued for, or may be.
    pub fn waits_len(&self, client: ClientId) -> usize {
        self.waits.get(&client).map_or(0, BTreeSet::len)
    }

    /// Takes the locks that this client is queued for, and perhaps others.
    pub fn take_waits(&mut self, client: ClientId) -> BTreeSet<Slot> {
        self.waits.remove(&client).unwrap_or_default()
    }

    /// Removes this client from the queue, because no channel carries the answers any more.
    pub fn drop_waits(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        client: ClientId,
        out: &mut Vec<Sent>,
    ) {
        self.with(now, mem, lock, out, |ctx, state| {
            drop_waits(state, client);
            match lock.lock_type {
                LockType::Atomic => atomic::waits_dropped(ctx, state),
                LockType::Rw => rw::advance(ctx, state),
                LockType::Fair => fair::waits_dropped(ctx, state, client),
            }
        });
    }

    /// Forgets a lock that does not exist any more.
    pub fn destroyed(&mut self, slot: Slot) {
        self.hindered.remove(&slot);
        if let Some(state) = self.locks.remove(&slot) {
            if let Some(due) = state.due {
                self.due.remove(&(due, slot));
            }
        }
    }

    /// Takes the next slot whose time has come.
    pub fn pop_due(&mut self, now: ServerTime) -> Option<Slot> {
        let &(due, slot) = self.due.first()?;
        if due > now {
            return None;
        }
        self.due.remove(&(due, slot));
        if let Some(state) = self.locks.get_mut(&slot) {
            state.due = None;
        }
        Some(slot)
    }

    /// Looks at one lock: expiry, graces, recounts, grants.
    pub fn tick(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        out: &mut Vec<Sent>,
    ) {
        self.with(now, mem, lock, out, |ctx, state| match lock.lock_type {
            LockType::Atomic => atomic::advance(ctx, state),
            LockType::Rw => rw::advance(ctx, state),
            LockType::Fair => fair::tick(ctx, state),
        });
    }

    /// A client that has been between two word operations of one operation for
    /// [`HINDRANCE_S`](crate::limits::HINDRANCE_S), while others wait for what it is about to do;
    /// or a client whose claim of a fair lock is over, and keeps the arbiter from resetting the
    /// ticket counters; or a client that keeps a lock and does not answer.
    pub fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let states = self.hindered.iter().filter_map(|slot| self.locks.get(slot));
        states.into_iter().find_map(|state| {
            let others = || state.fair.hinderer(skip).or_else(|| state.kept.hinderer(skip));
            state.rw.hinderer(skip).or_else(others)
        })
    }

    /// Gives a client that is between two word operations as much time for the rest as if it had
    /// just begun.
    pub fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        for slot in &self.hindered {
            if let Some(state) = self.locks.get_mut(slot) {
                state.rw.goes_on(now, client);
                state.fair.goes_on(now, client);
                state.kept.goes_on(now, client);
            }
        }
    }

    /// When the arbiter would have to look at the next lock if no wake-up were ever lost. For
    /// models: there, no client may depend on later looks.
    pub fn next_need(&self) -> Option<ServerTime> {
        self.locks.values().filter_map(|state| state.needed).min()
    }

    /// When the arbiter next looks at a lock.
    pub fn next_wakeup(&self) -> Option<ServerTime> {
        self.due.first().map(|&(at, _)| at)
    }

    /// See [`Locks::assert_consistent`](crate::locks::Locks::assert_consistent). `refs`: the
    /// clients that have got the lock of a slot; `is_deaf`: whether a client's waits are about to
    /// be dropped.
    pub(crate) fn assert_consistent<'a>(
        &self,
        refs: &dyn Fn(Slot) -> &'a [(ClientId, Handle)],
        is_deaf: &dyn Fn(ClientId, Slot) -> bool,
    ) -> Result<(), String> {
        for (&slot, state) in &self.locks {
            if state.due != self.due.iter().find(|d| d.1 == slot).map(|d| d.0) {
                return Err(format!("{slot:?} has two times to be looked at"));
            }
            let known = |c: &ClientId| refs(slot).iter().any(|r| r.0 == *c);
            let noted = |c: &ClientId| self.waits.get(c).is_some_and(|s| s.contains(&slot));
            if let Some(w) = state
                .queue
                .iter()
                .find(|w| !noted(&w.caller.client) && !is_deaf(w.caller.client, slot))
            {
                return Err(format!("{:?} is queued for {slot:?} unnoticed", w.caller.client));
            }
            if let Some(w) = state.queue.iter().find(|w| !known(&w.caller.client)) {
                return Err(format!("{:?} is queued for {slot:?}, and gone", w.caller.client));
            }
        }
        match self.due.iter().find(|d| !self.locks.contains_key(&d.1)) {
            Some((_, slot)) => {
                Err(format!("{slot:?} is to be looked at, and nothing is known of it"))
            }
            None => Ok(()),
        }
    }

    /// How many clients are no longer proxied while some of their locks do not know that yet. A
    /// lock that is used must first learn of each of them.
    pub(crate) fn changing_len(&self) -> usize {
        self.proxied.changing_len()
    }

    /// How many records a call about this lock visits apart from its references: the queued
    /// clients, the holds that have a lease (read-write locks), and the clients that are
    /// [changing](Self::changing_len).
    pub(crate) fn searched(&self, slot: Slot) -> usize {
        let leased = self.locks.get(&slot).map_or(0, |state| state.rw.leased_len());
        self.waiters(slot) + leased + self.changing_len()
    }

    /// Whether this client is queued for this lock.
    pub fn is_queued(&self, slot: Slot, client: ClientId) -> bool {
        self.waits.get(&client).is_some_and(|slots| slots.contains(&slot))
    }

    /// The deadline of a turn of a fair lock that was granted to this client and keeps others
    /// waiting; `None` if the client has released the turn by itself. For checkers and simulators.
    pub fn turn_until(
        &self,
        mem: &mut dyn LockMemory,
        slot: Slot,
        client: ClientId,
    ) -> Option<Deadline> {
        let state = self.locks.get(&slot).filter(|state| !state.queue.is_empty())?;
        fair::turn_until(&state.fair, mem, slot, client)
    }

    /// How many clients are queued for this lock.
    pub fn waiters(&self, slot: Slot) -> usize {
        self.locks.get(&slot).map_or(0, |state| state.queue.len())
    }

    /// How many other clients are queued for this lock.
    pub(crate) fn others_wait(&self, slot: Slot, client: ClientId) -> usize {
        let is_other = |waiter: &&Waiter| waiter.caller.client != client;
        self.locks.get(&slot).map_or(0, |state| state.queue.iter().filter(is_other).count())
    }

    fn with(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        out: &mut Vec<Sent>,
        f: impl FnOnce(&mut Ctx<'_>, &mut LockState),
    ) {
        let state = self.locks.entry(lock.slot).or_default();
        self.proxied.tell(state);
        let (proxied, before) = (&self.proxied, out.len());
        let mut ctx = Ctx { now, mem, lock, out, proxied, due: None, look: None, work: 0 };
        let was_kept = !state.kept.is_empty();
        kept::look(&mut ctx, state);
        f(&mut ctx, state);
        kept::schedule(&mut ctx, state);
        if was_kept && state.kept.is_empty() && lock.lock_type == LockType::Rw {
            rw::clear_kept(&mut ctx);
        }
        // every path ends in an `advance`, which sets anew when it wants to be called again
        let (needed, look, work) = (ctx.due, ctx.look, ctx.work);
        let due = needed.into_iter().chain(look).min();
        state.needed = needed;
        for answered in &out[before..] {
            if !state.has_queued(answered.client) {
                no_wait(&mut self.waits, answered.client, lock.slot);
            }
        }
        self.work = Work(work);
        match state.rw.is_hindered() || state.fair.is_hindered() || state.kept.is_hindered() {
            true => self.hindered.insert(lock.slot),
            false => self.hindered.remove(&lock.slot),
        };
        if due != state.due {
            if let Some(old) = state.due {
                self.due.remove(&(old, lock.slot));
            }
            if let Some(new) = due {
                self.due.insert((new, lock.slot));
            }
            state.due = due;
        }
        if state.is_empty() && state.due.is_none() {
            self.locks.remove(&lock.slot);
        }
    }
}

/// Undoes what a client has of the lock that can no longer act on it.
fn undo(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    state.kept.end(client);
    match ctx.lock.lock_type {
        LockType::Atomic => atomic::forget(ctx, state, client),
        LockType::Rw => rw::forget(ctx, state, client, handle),
        LockType::Fair => fair::forget(ctx, state, client),
    }
}
