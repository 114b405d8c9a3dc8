// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one client has of one lock, by the lock's word, the client's ledger entry and the queues.

use super::{atomic, fair, rw, Arbiter, LockRef, LockState, Sent};
use crate::clock::{Deadline, ServerTime};
use crate::ids::{ClientId, Handle, Slot};
use crate::locks::Had;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

impl Arbiter {
    /// What the client has of this lock. If the primary cannot tell whether that has a lease, it
    /// counts as something without one.
    pub(crate) fn had(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        client: ClientId,
        handle: Handle,
    ) -> Had {
        let mut copy = LockState::default();
        let state = match self.locks.get(&lock.slot) {
            Some(state) if !self.is_changing(client) => state,
            Some(state) => {
                copy.clone_from(state);
                self.proxied.tell(&mut copy);
                &copy
            }
            None => &copy,
        };
        let is_queued = self.is_queued(lock.slot, client);
        let w0 = WordAddr::new(lock.slot, Word::W0);
        let had = match lock.lock_type {
            LockType::Atomic => {
                let word = AtomicWord::from_bits(mem.read(w0));
                match word.client() == client.get() {
                    true => leased_until(now, word.timeout()),
                    false => Had::Nothing,
                }
            }
            LockType::Rw if state.rw.leased(client).is_some() => {
                let hold = state.rw.leased(client);
                hold.map_or(Had::Nothing, |hold| leased_until(now, hold.until))
            }
            LockType::Rw => {
                let owns = RwWord::from_bits(mem.read(w0)).client() == client.get();
                let entry = match self.proxied.contains(client) {
                    true => LedgerEntry::new(),
                    false => mem.ledger(client, handle),
                };
                let noted = entry.state() != LedgerState::None;
                // The arbiter may know a shared hold of this client from when it was proxied. Once
                // the client has written its ledger, the ledger alone decides.
                let has_untold = entry == LedgerEntry::new() && state.rw.knows(client);
                match owns || noted || has_untold {
                    true => Had::Unleased,
                    false => Had::Nothing,
                }
            }
            LockType::Fair => {
                let (entry, is_proxied) =
                    (mem.ledger(client, handle), self.proxied.contains(client));
                match fair::hold(&state.fair, client, entry, now, is_proxied) {
                    fair::Hold::Nothing => Had::Nothing,
                    fair::Hold::Place => Had::Unleased,
                    fair::Hold::Claimed(_) if planted::is(Bug::ClaimLapses) => Had::Unleased,
                    fair::Hold::Claimed(until) => leased_until(now, until),
                }
            }
        };
        match (had, is_queued) {
            (Had::Nothing | Had::Expired, true) => Had::Unleased,
            (had, _) => had,
        }
    }

    /// Whether the client holds this lock, or may hold it. A queued client does not, nor one whose
    /// lease is over. A client may hold a fair lock if its ledger claims a turn and its ticket is
    /// not known.
    pub(crate) fn may_hold(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        client: ClientId,
        handle: Handle,
    ) -> bool {
        let is_something =
            matches!(self.had(now, mem, lock, client, handle), Had::Unleased | Had::Leased(_));
        let state = self.locks.get(&lock.slot);
        let is_queued = state.is_some_and(|state| state.has_queued(client));
        let is_place = lock.lock_type == LockType::Fair
            && state.is_some_and(|state| {
                let turn = TurnWord::from_bits(mem.read(WordAddr::new(lock.slot, Word::W1)));
                state.fair.is_before_its_turn(client, turn)
            });
        is_something && !is_queued && !is_place
    }

    /// When the last hold of this lock is over; `None`: there is none, or one has no end. It reads
    /// what each client has that has got the lock.
    pub(crate) fn leases_end(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
    ) -> Option<ServerTime> {
        let mut last = None;
        for &(client, handle) in lock.refs {
            if self.may_hold(now, mem, lock, client, handle) {
                match self.had(now, mem, lock, client, handle) {
                    Had::Leased(until) => last = last.max(Some(until)),
                    _ => return None,
                }
            }
        }
        last
    }

    /// Ends all waits for this lock, because of a drain: no client gets the lock any more.
    pub(crate) fn end_waits(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        out: &mut Vec<Sent>,
    ) {
        if planted::is(Bug::DrainKeepsWaits) {
            return;
        }
        self.with(now, mem, lock, out, |ctx, state| {
            let held_back = std::mem::take(&mut state.fair.held_back);
            let callers = state.queue.drain(..).map(|waiter| waiter.caller);
            let callers: Vec<_> =
                callers.chain(held_back.into_values().map(|one| one.from)).collect();
            if callers.is_empty() {
                return;
            }
            for from in callers {
                ctx.denied(from, Status::NotReady);
                state.fair.waits_no_more(from.client);
                state.fair.begins_grace(from.client, now);
            }
            match lock.lock_type {
                LockType::Atomic => atomic::waits_dropped(ctx, state),
                LockType::Rw => rw::advance(ctx, state),
                LockType::Fair => fair::tick(ctx, state),
            }
        });
    }

    /// If the ledger entry that a client is about to write claims a fair lock for longer than its
    /// present entry, and for longer than the lock was granted, returns the mode of the claim.
    pub(crate) fn lengthens(
        &self,
        slot: Slot,
        client: ClientId,
        (before, after): (LedgerEntry, LedgerEntry),
    ) -> Option<Mode> {
        let mode = after.claims()?;
        let is_same = before.claims() == Some(mode) && before.stamp() == after.stamp();
        let noted = is_same.then(|| before.deadline());
        let fair = self.locks.get(&slot).map(|state| &state.fair);
        let granted = fair.and_then(|fair| fair.granted_until(client, after.stamp()));
        let granted = granted.filter(|_| !planted::is(Bug::NoteNeedsRight));
        (noted.max(granted) < Some(after.deadline())).then_some(mode)
    }
}

/// What a hold with this deadline counts as.
fn leased_until(now: ServerTime, deadline: Deadline) -> Had {
    let until = deadline.expiry();
    match deadline {
        Deadline::NEVER => Had::Unleased,
        _ if until <= now => Had::Expired,
        _ => Had::Leased(until),
    }
}
