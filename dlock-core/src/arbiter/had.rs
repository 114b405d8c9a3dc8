// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one client has of one lock, as the lock's word, its ledger entry and the queues tell.

use super::{fair, fair_word, Arbiter, LockRef, LockState};
use crate::clock::ServerTime;
use crate::exec::LockMemory;
use crate::ids::{ClientId, Handle, Slot};
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::primary::Had;
use crate::word_op::{Word, WordAddr};
use crate::words::{AtomicWord, LedgerEntry, LedgerState, RwWord};

impl Arbiter {
    /// What the client has of this lock. Something of which it is not known what it is counts as
    /// something without a lease.
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
            LockType::Rw => {
                let owns = RwWord::from_bits(mem.read(w0)).client() == client.get();
                let entry = match self.proxied.contains(client) {
                    true => LedgerEntry::new(),
                    false => mem.ledger(client, handle),
                };
                let noted = entry.state() != LedgerState::None;
                // one that has written since has a share if its ledger says so
                let has_untold = entry == LedgerEntry::new() && state.rw.knows(client);
                match owns || noted || has_untold {
                    true => Had::Unleased,
                    false => Had::Nothing,
                }
            }
            LockType::Fair => {
                let entry = mem.ledger(client, handle);
                let is_proxied = self.proxied.contains(client);
                // a claim that has its turn is held, as far as can be known
                let may_be_held = !is_proxied && !planted::is(Bug::ClaimLapses);
                let entry = match entry.is_claim() && may_be_held {
                    true if fair_word(mem, lock.slot).is_turn_of(entry.ticket()) => {
                        entry.with_state(LedgerState::HeldExclusive)
                    }
                    _ => entry,
                };
                fair_had(now, state, self.anchor_s, client, entry, is_proxied)
            }
        };
        match (had, is_queued) {
            (Had::Nothing | Had::Expired, true) => Had::Unleased,
            (had, _) => had,
        }
    }

    /// Whether a ledger entry that a client is to write makes its hold of a fair lock last longer
    /// than its entry says, and than it was granted: in which mode.
    pub(crate) fn lengthens(
        &self,
        slot: Slot,
        client: ClientId,
        (before, after): (LedgerEntry, LedgerEntry),
        anchor_s: u32,
    ) -> Option<Mode> {
        let named = fair::named(after).filter(|_| holds(after))?;
        let is_same = holds(before) && fair::named(before) == Some(named);
        let noted = is_same.then(|| before.deadline_s(anchor_s));
        let fair = self.locks.get(&slot).map(|state| &state.fair);
        let granted = fair.and_then(|fair| fair.granted_until(client, Some(named)));
        let granted = granted.filter(|_| !planted::is(Bug::NoteNeedsRight));
        (noted.max(granted) < Some(after.deadline_s(anchor_s))).then_some(named.0)
    }
}

/// Whether an entry says that its ticket is served, or that it will be without a word more.
fn holds(entry: LedgerEntry) -> bool {
    let is_held = matches!(entry.state(), LedgerState::HeldExclusive | LedgerState::HeldShared);
    is_held || entry.is_claim()
}

fn fair_had(
    now: ServerTime,
    state: &LockState,
    anchor_s: u32,
    client: ClientId,
    entry: LedgerEntry,
    is_proxied: bool,
) -> Had {
    let fair = &state.fair;
    let live = fair.live.get(&client).copied();
    let known = fair.knows(client);
    let named = fair::named(entry);
    let is_told = match (named, is_proxied) {
        (None, _) => false,
        (Some(named), true) => live == Some(named),
        (Some((mode, ticket)), false) => !fair.is_revoked(client, mode, ticket),
    };
    let is_held = matches!(entry.state(), LedgerState::HeldExclusive | LedgerState::HeldShared);
    // a ticket may have been taken, or is still to be given up
    let is_doubtful = entry.state() == LedgerState::Intent || fair::is_given_up(entry);
    let claims = entry.claims_by_intent().is_some() && !planted::is(Bug::IntentLapses);
    let claimed_until = ServerTime::expiry_of(entry.deadline_s(anchor_s));
    if claims && !is_proxied && now < claimed_until {
        return Had::Leased(claimed_until);
    }
    let noted_s = (is_held && is_told).then(|| entry.deadline_s(anchor_s));
    // its ledger may not say yet what this arbiter has granted or extended
    // one that it gave up may be followed by one that it has not written there yet
    let named = named.filter(|_| !fair::is_given_up(entry));
    let named = if is_proxied { live } else { named };
    match noted_s.max(fair.granted_until(client, named)) {
        Some(deadline_s) => leased_until(now, deadline_s),
        None if is_told || known || is_doubtful => Had::Unleased,
        None => Had::Nothing,
    }
}

/// A hold with this deadline, in seconds since 1970.
fn leased_until(now: ServerTime, deadline_s: u32) -> Had {
    let until = ServerTime::expiry_of(deadline_s);
    match deadline_s {
        u32::MAX => Had::Unleased,
        _ if until <= now => Had::Expired,
        _ => Had::Leased(until),
    }
}
