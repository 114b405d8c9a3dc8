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
mod fair;
mod rw;

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::clock::ServerTime;
use crate::exec::LockMemory;
use crate::ids::{ClientId, Handle, Seq, Slot};
use crate::message::{LockType, Mode, Reply, Request, WaitNumber};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::verb::{Chain, Values, Verb, Word, WordAddr};
use crate::words::{FairWord, LedgerEntry, Ticket};

use fair::FairState;
use rw::RwState;

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
    /// Every client that may operate on it, with its handle.
    pub refs: &'a [(ClientId, Handle)],
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The client.
    pub client: ClientId,
    /// Its handle of the lock.
    pub handle: Handle,
    /// The number of its request.
    pub seq: Seq,
}

/// Compare-and-swap rounds of one change of a word. Each lost round is another client's verb;
/// the clients of a contended word are diverted to this arbiter, so the bound is far away.
const ROUNDS_MAX: u32 = 100_000;
/// Time between two attempts at a recount, nanoseconds.
const RECOUNT_EVERY_NS: u64 = 1_000_000;

/// Somebody who is queued.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    caller: Caller,
    wait: WaitNumber,
    mode: Mode,
    expire_s: u32,
}

/// What the arbiter remembers of a lock; absent if there is nothing to remember.
#[derive(Debug, Default)]
struct LockState {
    queue: VecDeque<Waiter>,
    fair: FairState,
    rw: RwState,
    due: Option<ServerTime>,
}

impl LockState {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fair.is_empty() && self.rw.is_empty()
    }
}

/// The arbiter of one primary.
#[derive(Debug)]
pub struct Arbiter {
    anchor_s: u32,
    locks: HashMap<Slot, LockState>,
    due: BTreeSet<(ServerTime, Slot)>,
}

/// What one call works with.
struct Ctx<'a> {
    now: ServerTime,
    mem: &'a mut dyn LockMemory,
    lock: LockRef<'a>,
    anchor_s: u32,
    out: &'a mut Vec<Sent>,
    /// When this lock wants to be looked at again.
    due: Option<ServerTime>,
}

impl Ctx<'_> {
    fn w0(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::W0)
    }
    fn read(&mut self) -> u64 {
        let addr = self.w0();
        self.mem.read(addr)
    }
    /// Changes the word as `f` says; the new word, or `None` if `f` did not want to.
    fn update(&mut self, mut f: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let addr = self.w0();
        let mut seen = self.mem.read(addr);
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
    fn cas(&mut self, expect: u64, swap: u64) -> bool {
        let addr = self.w0();
        self.mem.cas(addr, expect, swap) == expect
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.mem.ledger(client, handle)
    }
    fn answer(&mut self, to: Caller, reply: Reply) {
        self.out.push(Sent { client: to.client, seq: to.seq, reply });
    }
    fn denied(&mut self, to: Caller, status: Status) {
        let word = self.read();
        self.answer(to, Reply::Denied { status, word });
    }
    fn granted(&mut self, to: Caller, word: u64, deadline_s: u32, ticket: Option<Ticket>) {
        let at = self.now;
        self.answer(to, Reply::Granted { word, deadline_s, at, ticket });
    }
    fn wake_at(&mut self, at: ServerTime) {
        if at.0 != u64::MAX {
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }
}

impl Arbiter {
    /// An arbiter with empty queues. `anchor_s` is what ledger deadlines count from.
    pub fn new(anchor_s: u32) -> Self {
        Self { anchor_s, locks: HashMap::new(), due: BTreeSet::new() }
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
        self.with(now, mem, lock, out, |ctx, state| match lock.lock_type {
            LockType::Atomic => atomic::forget(ctx, state, client),
            LockType::Rw => rw::forget(ctx, state, client, handle),
            LockType::Fair => fair::forget(ctx, state, client, handle),
        });
    }

    /// The primary has executed a chain for this client (a tcp client): the ticket it may have
    /// taken is known from now on, even before its note arrives.
    pub fn executed(
        &mut self,
        lock: LockRef<'_>,
        client: ClientId,
        chain: &Chain,
        values: &Values,
    ) {
        if lock.lock_type != LockType::Fair {
            return;
        }
        for (verb, &old) in chain.verbs().iter().zip(values.as_slice()) {
            let Verb::Faa { addr, add } = *verb else { continue };
            let mode = match add {
                FairWord::TAKE_EXCLUSIVE => Mode::Exclusive,
                FairWord::TAKE_SHARED => Mode::Shared,
                _ => continue,
            };
            if addr == WordAddr::new(lock.slot, Word::W0) {
                let w = FairWord::from_bits(old);
                let ticket = Ticket { tx: w.mx(), ts: w.ms() };
                self.locks.entry(lock.slot).or_default().fair.issued(client, mode, ticket);
            }
        }
    }

    /// A note of a client whose notes this primary executes has taken effect.
    pub fn noted(&mut self, slot: Slot, client: ClientId) {
        if let Some(state) = self.locks.get_mut(&slot) {
            fair::noted(&mut state.fair, client);
        }
    }

    /// A share of this client on a read-write lock was installed in recovery.
    pub(crate) fn claimed(&mut self, slot: Slot, client: ClientId) {
        self.locks.entry(slot).or_default().rw.claimed(client);
    }

    /// The lock is gone, and nobody knows it any more.
    pub fn destroyed(&mut self, slot: Slot) {
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
            LockType::Fair => fair::advance(ctx, state),
        });
    }

    /// When the next lock wants to be looked at.
    pub fn next_wakeup(&self) -> Option<ServerTime> {
        self.due.first().map(|&(at, _)| at)
    }

    /// See [`Primary::assert_consistent`](crate::primary::Primary::assert_consistent). `refs` has
    /// everybody who has got the lock of a slot.
    pub(crate) fn assert_consistent<'a>(
        &self,
        refs: &dyn Fn(Slot) -> &'a [(ClientId, Handle)],
    ) -> Result<(), String> {
        for (&slot, state) in &self.locks {
            if state.due != self.due.iter().find(|d| d.1 == slot).map(|d| d.0) {
                return Err(format!("{slot:?} has two times to be looked at"));
            }
            let known = |c: &ClientId| refs(slot).iter().any(|r| r.0 == *c);
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

    /// How many are queued for this lock.
    pub fn waiters(&self, slot: Slot) -> usize {
        self.locks.get(&slot).map_or(0, |state| state.queue.len())
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
        let mut ctx = Ctx { now, mem, lock, anchor_s: self.anchor_s, out, due: None };
        f(&mut ctx, state);
        // every path ends in an `advance`, which says anew when it wants to be called again
        let due = ctx.due;
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

/// Takes a wait out of the queue and answers it with `Cancelled`.
fn cancel_wait(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, wait: WaitNumber) -> bool {
    let at = state.queue.iter().position(|w| w.caller.client == from.client && w.wait == wait);
    let Some(waiter) = at.and_then(|at| state.queue.remove(at)) else { return false };
    let word = ctx.read();
    ctx.answer(waiter.caller, Reply::Cancelled { word });
    true
}

fn drop_waits(state: &mut LockState, client: ClientId) {
    if !planted::is(Bug::ForgetKeepsWaits) {
        state.queue.retain(|w| w.caller.client != client);
    }
}
