// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter: the rare side of every lock.
//!
//! ```text
//!   Request ──▶ atomic | rw | fair ──verbs──▶ lock words
//!                     └─▶ wait queue ──grant──▶ Sent (a reply to somebody's Wait)
//!   tick ──▶ expiry, graces, recounts         forget ──▶ what a gone client held is undone
//! ```
//! It owns the wait queues and every multi-step repair. It changes words by the same verbs as
//! everybody else, so clients may operate on them at the same time. Every decision on one
//! primary is taken here one after the other; nothing of it blocks.

mod atomic;
mod confirm;
mod executed;
mod fair;
mod had;
mod proxied;
mod rw;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use crate::clock::{ServerTime, NS};
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
use proxied::Proxied;
use rw::RwState;
use waits::{cancel_wait, drop_waits, end_earlier_wait, no_wait};

/// A reply on its way to a client's command channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// To whom.
    pub client: ClientId,
    /// The request it answers.
    pub seq: Seq,
    /// The answer.
    pub reply: Reply,
}

/// A lock and everybody who has got it.
#[derive(Clone, Copy, Debug)]
pub struct LockRef<'a> {
    /// Where it is.
    pub slot: Slot,
    /// Its kind.
    pub lock_type: LockType,
    /// Its grants and the ends of its exclusive holds are counted, for [tokens](crate::token).
    pub tokens: bool,
    /// Every client that may operate on it, with its handle.
    pub refs: &'a [(ClientId, Handle)],
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The client.
    pub client: ClientId,
    /// Its handle of the lock.
    pub handle: Handle,
    /// The number of its request.
    pub seq: Seq,
}

/// Compare-and-swap rounds of one change of a word. Each lost round is another client's word
/// operation; the clients of a contended word are diverted to this arbiter, so the bound is far
/// away.
const ROUNDS_MAX: u32 = 100_000;
/// Time between two attempts at a recount at least, nanoseconds. It grows with the time for which
/// somebody was waited for, to [`LOOK_S`](crate::limits::LOOK_S).
const RECOUNT_EVERY_NS: u64 = 1_000_000;
/// Somebody who is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    caller: Caller,
    wait: WaitNumber,
    mode: Mode,
    expire_s: u32,
}

/// What the arbiter remembers of a lock; absent if there is nothing to remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LockState {
    queue: VecDeque<Waiter>,
    fair: FairState,
    rw: RwState,
    /// When it is to be looked at; the same if no wake-up were ever lost.
    due: Option<ServerTime>,
    needed: Option<ServerTime>,
}

impl LockState {
    /// Whether the client is to be answered later, if its channel lasts.
    fn has_queued(&self, client: ClientId) -> bool {
        self.queue.iter().any(|w| w.caller.client == client) || self.fair.holds_back(client)
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fair.is_empty() && self.rw.is_empty()
    }
}

/// The arbiter of one primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arbiter {
    anchor_s: u32,
    /// Boxed, so that what a tree moves when it grows is little.
    locks: BTreeMap<Slot, Box<LockState>>,
    due: BTreeSet<(ServerTime, Slot)>,
    proxied: Proxied,
    /// The locks each client is queued for, and perhaps some for which it no longer is: where
    /// to look when it does not wait any more.
    waits: BTreeMap<ClientId, BTreeSet<Slot>>,
    /// Locks that wait for a client which is between two verbs, or does not come back.
    hindered: BTreeSet<Slot>,
    work: Work,
}

/// What the last call took: no part of the state.
#[derive(Clone, Copy, Debug)]
struct Work(u64);

impl PartialEq for Work {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Work {}

/// For model checkers, whose states are copied, compared and hashed.
impl Hash for Arbiter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.anchor_s, &self.locks, &self.due).hash(state);
    }
}

/// What one call works with.
struct Ctx<'a> {
    now: ServerTime,
    mem: &'a mut dyn LockMemory,
    lock: LockRef<'a>,
    anchor_s: u32,
    out: &'a mut Vec<Sent>,
    proxied: &'a Proxied,
    /// When this lock wants to be looked at again, and in case that a wake-up was lost.
    due: Option<ServerTime>,
    look: Option<ServerTime>,
    /// Ledger entries and records looked at, and tickets skipped.
    work: u64,
}

impl Ctx<'_> {
    fn is_proxied(&self, client: ClientId) -> bool {
        self.proxied.contains(client)
    }
    fn w0(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::W0)
    }
    /// The word that tells how the lock is held: of a fair lock, the turns.
    fn read(&mut self) -> u64 {
        let word = match self.lock.lock_type {
            LockType::Fair => Word::W1,
            LockType::Atomic | LockType::Rw => Word::W0,
        };
        self.mem.read(WordAddr::new(self.lock.slot, word))
    }
    /// Changes the word as `f` says; the new word, or `None` if `f` did not want to.
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
    /// The word has the hold: its token is taken after that, so that it is above every earlier one.
    fn granted(
        &mut self,
        to: Caller,
        mode: Mode,
        word: u64,
        deadline_s: u32,
        ticket: Option<Ticket>,
    ) {
        let (at, token) = (self.now, self.token(mode));
        self.answer(to, Reply::Granted { word, deadline_s, at, ticket, token });
    }
    /// The token of a hold, where clients want tokens. A fair ticket tells its own.
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
    /// Whoever is to tell of a release may die before.
    fn looks_again(&mut self) {
        self.look = (!planted::is(Bug::NoLook)).then(|| self.now.plus_ns(u64::from(LOOK_S) * NS));
    }
}

impl Arbiter {
    /// An arbiter with empty queues. `anchor_s` is what ledger deadlines count from.
    pub fn new(anchor_s: u32) -> Self {
        Self {
            anchor_s,
            locks: BTreeMap::new(),
            due: BTreeSet::new(),
            proxied: Proxied::default(),
            waits: BTreeMap::new(),
            hindered: BTreeSet::new(),
            work: Work(0),
        }
    }

    /// What the last call took, in the units of [`FAIR_WORK_MAX`].
    pub fn work(&self) -> u64 {
        self.work.0
    }

    /// Handles one request about one lock. The caller has checked that `lock` is what the
    /// request's handle names.
    pub fn request(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        from: Caller,
        request: Request,
        out: &mut Vec<Sent>,
    ) {
        self.with(now, mem, lock, out, |ctx, state| match lock.lock_type {
            LockType::Atomic => atomic::request(ctx, state, from, request),
            LockType::Rw => rw::request(ctx, state, from, request),
            LockType::Fair => fair::request(ctx, state, from, request),
        });
        if self.locks.get(&lock.slot).is_some_and(|state| state.has_queued(from.client)) {
            self.waits.entry(from.client).or_default().insert(lock.slot);
        }
    }

    /// The client is not queued for this lock.
    pub(crate) fn waits_no_more(&mut self, client: ClientId, slot: Slot) {
        no_wait(&mut self.waits, client, slot);
    }

    /// A client that can no longer act on the lock (fenced, or it gave its reference back):
    /// whatever it holds or waits for is undone. Its ledger entry is read, not cleared.
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

    /// What is remembered of a lock, to be changed; the caller drops it if it is empty then.
    fn state(&mut self, slot: Slot) -> &mut LockState {
        let state = self.locks.entry(slot).or_default();
        self.proxied.tell(state);
        state
    }

    fn drop_if_empty(&mut self, slot: Slot) {
        if self.locks.get(&slot).is_some_and(|s| s.is_empty() && s.due.is_none()) {
            self.locks.remove(&slot);
        }
    }

    /// The client is gone, and every lock it had got has forgotten it.
    pub fn gone(&mut self, client: ClientId) {
        self.proxied.forget(client);
        self.waits.remove(&client);
    }

    /// How many locks this client is queued for, or may be.
    pub fn waits_len(&self, client: ClientId) -> usize {
        self.waits.get(&client).map_or(0, BTreeSet::len)
    }

    /// The locks this client is queued for, and perhaps others, once.
    pub fn take_waits(&mut self, client: ClientId) -> BTreeSet<Slot> {
        self.waits.remove(&client).unwrap_or_default()
    }

    /// Nobody reads the answers to what this client waits for any more: it is not queued.
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

    /// The lock is gone, and nobody knows it any more.
    pub fn destroyed(&mut self, slot: Slot) {
        self.hindered.remove(&slot);
        if let Some(state) = self.locks.remove(&slot) {
            if let Some(due) = state.due {
                self.due.remove(&(due, slot));
            }
        }
    }

    /// The next slot whose time has come, once.
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

    /// A client that was seen to be between two verbs of an operation for
    /// [`HINDRANCE_S`](crate::limits::HINDRANCE_S), while others wait for what it is about to do;
    /// or whose claim of a fair lock is over, and keeps the lanes from starting again.
    pub fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let states = self.hindered.iter().filter_map(|slot| self.locks.get(slot));
        states
            .into_iter()
            .find_map(|state| state.rw.hinderer(skip).or_else(|| state.fair.hinderer(skip)))
    }

    /// A client that is between two verbs may take as long for the rest as if it had just begun.
    pub fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        for slot in &self.hindered {
            if let Some(state) = self.locks.get_mut(slot) {
                state.rw.goes_on(now, client);
                state.fair.goes_on(now, client);
            }
        }
    }

    /// When the next lock would have to be looked at if no wake-up were ever lost: for models, none
    /// of whose clients may depend on that.
    pub fn next_need(&self) -> Option<ServerTime> {
        self.locks.values().filter_map(|state| state.needed).min()
    }

    /// When the next lock wants to be looked at.
    pub fn next_wakeup(&self) -> Option<ServerTime> {
        self.due.first().map(|&(at, _)| at)
    }

    /// See [`Locks::assert_consistent`](crate::locks::Locks::assert_consistent). `refs` has
    /// everybody who has got the lock of a slot, `is_deaf` whose waits are about to be dropped.
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

    /// How many clients a lock is told of.
    pub(crate) fn changing_len(&self) -> usize {
        self.proxied.changing_len()
    }

    /// Records that a call about this lock searches, apart from its references: who is queued, and
    /// who may be told of.
    pub(crate) fn searched(&self, slot: Slot) -> usize {
        self.waiters(slot) + self.changing_len()
    }

    /// Whether this client is queued for this lock.
    pub fn is_queued(&self, slot: Slot, client: ClientId) -> bool {
        self.waits.get(&client).is_some_and(|slots| slots.contains(&slot))
    }

    /// The deadline of the turn of a fair lock that was granted to this client and keeps others
    /// waiting, in seconds since 1970. A client that has released it by itself has none. For
    /// checkers and simulators.
    pub fn turn_until(
        &self,
        mem: &mut dyn LockMemory,
        slot: Slot,
        client: ClientId,
    ) -> Option<u32> {
        let state = self.locks.get(&slot).filter(|state| !state.queue.is_empty())?;
        fair::turn_until(&state.fair, mem, slot, client)
    }

    /// How many are queued for this lock.
    pub fn waiters(&self, slot: Slot) -> usize {
        self.locks.get(&slot).map_or(0, |state| state.queue.len())
    }

    /// How many but this client are queued for this lock.
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
        let mut ctx = Ctx {
            now,
            mem,
            lock,
            anchor_s: self.anchor_s,
            out,
            proxied,
            due: None,
            look: None,
            work: 0,
        };
        f(&mut ctx, state);
        // every path ends in an `advance`, which says anew when it wants to be called again
        let (needed, look, work) = (ctx.due, ctx.look, ctx.work);
        let due = needed.into_iter().chain(look).min();
        state.needed = needed;
        for answered in &out[before..] {
            if !state.has_queued(answered.client) {
                no_wait(&mut self.waits, answered.client, lock.slot);
            }
        }
        self.work = Work(work);
        match state.rw.is_hindered() || state.fair.is_hindered() {
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

/// Undoes what a client that can no longer act on the lock has of it.
fn undo(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    match ctx.lock.lock_type {
        LockType::Atomic => atomic::forget(ctx, state, client),
        LockType::Rw => rw::forget(ctx, state, client, handle),
        LockType::Fair => fair::forget(ctx, state, client),
    }
}
