// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's counters: of its own answers, of the chains that it executes for tcp clients, and
//! of what other clients have counted for it.
//!
//! | decided by | counted by |
//! |---|---|
//! | the arbiter | the primary, by its answer |
//! | a tcp client, from the outcome of a chain | the primary, from the same outcome |
//! | an shm or verbs client, from words that it operates on | that client, in its ledger |
//!
//! The primary collects the counts in ledgers when an operator reads the counters, in turns while
//! metrics are shown, when the client gets a new channel, and before the client's ledger is
//! forgotten.

use std::sync::Arc;

use super::{lock_ref, Locks};
use crate::clock::ServerTime;
use crate::counters::{Counter, Counters, TOLD};
use crate::ids::ClientId;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Chain, Values, WordAddr, WordOp};
use crate::memory::words::{AtomicWord, RwWord, TakenWord, TurnWord};
use crate::wire::message::{LockType, Mode, Reply, Request};
use crate::wire::status::Status;

impl Locks {
    /// The counters, shared with all threads that count for the primary.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Counts one event.
    pub fn count(&self, counter: Counter) {
        self.counters.count(counter);
    }

    /// Sets all counters to 0.
    pub fn clear_stats(&mut self, mem: &mut dyn LockMemory) {
        self.collect_all(mem);
        self.counters.clear();
    }

    /// Adds what all clients have counted for the primary since the last call.
    pub fn collect_all(&mut self, mem: &mut dyn LockMemory) {
        let clients: Vec<ClientId> =
            self.registry.clients.iter().map(|client| client.id()).collect();
        for client in clients {
            self.collect(mem, client);
        }
    }

    /// Like [`collect_all`](Self::collect_all), for `max` clients at most: those that follow the
    /// ones of the call before, in the order of their ids, and then the first ones again.
    pub fn collect_some(&mut self, mem: &mut dyn LockMemory, max: usize) {
        let ids = || self.registry.clients.iter().map(|client| client.id());
        let last = self.collected;
        let following = ids().filter(|&client| last.is_none_or(|last| client > last));
        let clients: Vec<ClientId> = following.take(max).collect();
        self.collected = match clients.len() < max {
            true => None,
            false => clients.last().copied(),
        };
        for client in clients {
            self.collect(mem, client);
        }
    }

    /// Like `collect`, for the last time: the driver is about to forget the ledger of a client that
    /// has left.
    pub fn collect_last(&mut self, mem: &mut dyn LockMemory, client: ClientId) {
        self.collect(mem, client);
        self.told.remove(&client);
    }

    /// Adds what a client has counted for the primary since the last call. A client can write any
    /// numbers into its ledger, but that spoils only the counters.
    pub(super) fn collect(&mut self, mem: &mut dyn LockMemory, client: ClientId) {
        let told = mem.told(client);
        let known = self.told.get(&client).copied().unwrap_or_default();
        if told == known {
            return;
        }
        for (place, counter) in TOLD.into_iter().enumerate() {
            let (new, old) = (told[place], known[place]);
            // Less than before: the client counts from 0 again, on another channel.
            self.counters.add(counter, if new < old { new } else { new - old });
        }
        self.told.insert(client, told);
    }

    /// Counts the failures in a chain that the primary has executed for a tcp client, as a
    /// one-sided client would count them itself. A compare-and-swap that succeeded is not counted
    /// here.
    pub fn count_chain(&self, now: ServerTime, client: ClientId, chain: &Chain, values: &Values) {
        for (word_op, &old) in chain.ops().iter().zip(values.as_slice()) {
            let (addr, is_as_expected) = match *word_op {
                WordOp::Cas { addr, expect, .. } => (addr, old == expect),
                WordOp::Faa { addr, .. } => (addr, false),
                WordOp::Read { .. } | WordOp::ReadPair { .. } | WordOp::WriteLedger { .. } => {
                    continue
                }
            };
            if is_as_expected {
                continue;
            }
            let counter = self.type_of(addr).and_then(|lock_type| match lock_type {
                LockType::Atomic => of_atomic(now, client, word_op, old),
                LockType::Rw => of_rw(client, word_op, old, chain.ops().len()),
                LockType::Fair => of_fair(word_op, old, values),
            });
            if let Some(counter) = counter {
                self.count(counter);
            }
        }
    }

    fn type_of(&self, addr: WordAddr) -> Option<LockType> {
        lock_ref(&self.registry, addr.slot()).map(|lock| lock.lock_type)
    }

    /// Counts the answer to a request.
    pub(super) fn count_reply(&self, lock_type: LockType, request: &Request, reply: &Reply) {
        use Counter as C;
        let counter = match (reply, request, lock_type) {
            (Reply::Queued { .. }, _, _) => C::Again,
            (Reply::Denied { status: Status::Invalid, .. }, _, _) => C::InvalidOp,
            (
                Reply::Denied { .. },
                Request::Release { mode, .. } | Request::Keep { mode, .. },
                kind,
            ) => match (kind, mode) {
                (LockType::Atomic, _) => C::AtomicUnlockFail,
                (LockType::Rw, Mode::Exclusive) => C::RwUnlockExFail,
                (LockType::Rw, Mode::Shared) => C::RwUnlockShFail,
                (LockType::Fair, Mode::Exclusive) => C::FairUnlockExFail,
                (LockType::Fair, Mode::Shared) => C::FairUnlockShFail,
            },
            (
                Reply::Denied { .. },
                Request::Poll { mode, .. } | Request::Wait { mode, .. },
                kind,
            ) => match (kind, mode) {
                (LockType::Fair, Mode::Exclusive) => C::FairExTicketPassed,
                (LockType::Fair, Mode::Shared) => C::FairShTicketPassed,
                _ => return,
            },
            (Reply::Denied { .. }, Request::TakeTicket { .. }, _) => C::FairQueueLimit,
            (Reply::Denied { .. }, Request::Steal { mode, .. }, kind) => match (kind, mode) {
                (LockType::Rw, Mode::Exclusive) => C::RwTryLockExFail,
                (LockType::Rw, Mode::Shared) => C::RwTryLockShFail,
                _ => C::AtomicTryLockFail,
            },
            _ => return,
        };
        self.count(counter);
    }
}

/// The counter for a failed word operation on an atomic lock: an acquire of a lock that is held, or
/// a release or extend of a hold that is lost.
fn of_atomic(now: ServerTime, client: ClientId, word_op: &WordOp, old: u64) -> Option<Counter> {
    let WordOp::Cas { expect, swap, .. } = *word_op else { return None };
    let found = AtomicWord::from_bits(old);
    let was_mine = AtomicWord::from_bits(expect).client() == client.get();
    match (was_mine, swap) {
        _ if found.client() == client.get() => None,
        (true, 0) => Some(Counter::AtomicUnlockFail),
        (true, _) => Some(Counter::AtomicExtendFail),
        // If the hold has expired, the client asks again.
        (false, _) if found.waiters() || now < found.timeout().expiry() => {
            (old != 0).then_some(Counter::AtomicTryLockFail)
        }
        (false, _) => None,
    }
}

/// The counter for a failed operation on a read-write lock. `verbs`: the number of word operations
/// in the chain. A share is taken or given back in one chain with a ledger write; an addition that
/// corrects the count comes alone.
fn of_rw(client: ClientId, word_op: &WordOp, old: u64, verbs: usize) -> Option<Counter> {
    let found = RwWord::from_bits(old);
    let is_held = found.client() != 0 || found.waiters();
    match *word_op {
        WordOp::Cas { expect: 0, .. } => Some(Counter::RwTryLockExFail),
        WordOp::Cas { .. } if found.client() != client.get() => Some(Counter::RwUnlockExFail),
        WordOp::Faa { add: 1, .. } if verbs == 2 && is_held => Some(Counter::RwTryLockShFail),
        WordOp::Faa { add: u64::MAX, .. } if verbs == 3 && found.rcount() == 0 => {
            Some(Counter::RwUnlockShFail)
        }
        _ => None,
    }
}

/// The counter for a ticket of a fair lock that is not served at once, or for the release of an
/// exclusive hold that is over.
fn of_fair(word_op: &WordOp, old: u64, values: &Values) -> Option<Counter> {
    match *word_op {
        WordOp::Faa { add, .. } => {
            let mode = match add {
                TakenWord::TAKE_EXCLUSIVE => Mode::Exclusive,
                _ => Mode::Shared,
            };
            let &[.., turn, lap] = values.as_slice() else { return None };
            let ticket = TakenWord::from_bits(old).next(lap);
            let is_served = TurnWord::from_bits(turn).serves(mode, ticket);
            (!is_served).then_some(Counter::Again)
        }
        WordOp::Cas { expect, swap, .. } => {
            let [old, expected, swap] = [old, expect, swap].map(TurnWord::from_bits);
            let is_lost = old.nx() != expected.nx() && swap == expected.done(Mode::Exclusive);
            is_lost.then_some(Counter::FairUnlockExFail)
        }
        _ => None,
    }
}
