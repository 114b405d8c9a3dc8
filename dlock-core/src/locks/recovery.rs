// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recovery: the claims of the predecessor's clients, and their settlement.
//!
//! ```text
//!   UpdateLocks ─▶ a place for each lock; the primary keeps the claims, per (client, lock)
//!   ReinitDone  ─▶ counted, once per client; the last one ends the recovery:
//!                  each lock is settled from all its claims, in any order
//!   Confirm     ─▶ the verdict on one claim, from the word and the client's ledger entry
//! ```
//! A client may repeat a claim; the last one counts. Claims of a client that has not said that it
//! has claimed everything do not count, except for its leases, if its session has lapsed meanwhile.
//! No client operates on a word before all locks are settled.

use super::settlement::{settle, Claimed, Settled};
use super::{lock_ref, valid_name, Had, Locks};
use crate::clock::{Deadline, ServerTime, NS};
use crate::ids::{ClientId, Slot};
use crate::limits::BATCH_MAX;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::planted::{self, Bug};
use crate::wire::control::{Claim, ControlReply, HeldClaim, LockGrant};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

const MS: u64 = NS / 1_000;

impl Locks {
    pub(super) fn update_locks(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        claims: &[Claim],
    ) -> ControlReply {
        if !self.recovering || !self.reinits.contains(&client) {
            return ControlReply::Error(Status::Error);
        }
        if claims.len() > BATCH_MAX || !claims.iter().all(|c| valid_name(&c.desc.name)) {
            return ControlReply::Error(Status::Invalid);
        }
        let results = claims.iter().map(|claim| self.claim(now, mem, client, claim)).collect();
        ControlReply::Locks(results)
    }

    /// Gives the lock a place, and keeps the client's claim.
    fn claim(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        claim: &Claim,
    ) -> Result<LockGrant, Status> {
        self.may_claim(client, claim)?;
        let (mut t, locks, _) = self.registry.split(mem);
        let grant = locks.insert_claimed(&mut t, client, claim.lock, &claim.desc)?;
        let key = (grant.slot, client);
        let Some(held) = claim.held else {
            self.claims.remove(&key);
            return Ok(grant);
        };
        if !is_possible(claim.desc.lock_type, &held) {
            return Err(Status::Fail);
        }
        let claimed = Claimed {
            client,
            mode: held.mode,
            is_held: !held.is_queued,
            deadline: now.deadline_of_rest(held.left_ns),
            granted_at: (held.epoch, held.deadline),
            since: ServerTime(now.0.saturating_sub(u64::from(held.age_ms) * MS)),
            place: held.fair,
            token: held.token,
        };
        self.claims.insert(key, claimed);
        Ok(grant)
    }

    /// Settles all locks from the claims: sets the words and the ledger entries. Returns how many
    /// claims there were, and how many of them were not granted. All locks are settled in one step,
    /// because no client is served before.
    pub(super) fn settle_all(&mut self, mem: &mut dyn LockMemory) -> (usize, usize) {
        self.recovering = false;
        self.removed.clear();
        let mut claims = std::mem::take(&mut self.claims).into_iter().peekable();
        let (mut all, mut granted) = (0, 0);
        let mut of_one = Vec::new();
        while let Some(((slot, _), claim)) = claims.next() {
            let counts = self.counts(&claim) && self.known(claim.client).is_some();
            of_one.extend(counts.then_some(claim));
            if planted::is(Bug::ClaimsCountedTwice) {
                of_one.extend(counts.then_some(claim));
            }
            if claims.peek().is_none_or(|((next, _), _)| *next != slot) {
                all += of_one.len();
                granted += self.settle_one(mem, slot, &of_one);
                of_one.clear();
            }
        }
        (all, all - granted)
    }

    /// Whether a claim counts: its client has claimed everything, or the claim has a lease, which
    /// outlasts the session just as at a primary that serves.
    fn counts(&self, claim: &Claimed) -> bool {
        let is_leased = claim.is_held && claim.deadline != Deadline::NEVER;
        self.has_claimed_all(claim.client) || is_leased && self.is_given_up(claim.client)
    }

    /// Settles one lock; returns how many of the claims were granted.
    fn settle_one(&mut self, mem: &mut dyn LockMemory, slot: Slot, claims: &[Claimed]) -> usize {
        let Some(lock) = lock_ref(&self.registry, slot) else { return claims.len() };
        let fence = mem.read(WordAddr::new(slot, Word::Fence));
        let Settled { word, fence, entries } = settle(lock.lock_type, claims, fence);
        mem.set(WordAddr::new(slot, Word::W0), word);
        mem.set(WordAddr::new(slot, Word::Fence), fence);
        let is_named = lock.lock_type != LockType::Fair && word != 0;
        let granted = entries.len().max(usize::from(is_named));
        for (client, entry, ticket) in entries {
            let known = self.registry.clients.get(client);
            let Some(handle) = known.and_then(|known| known.handle_of(slot)) else { continue };
            // The client makes its channel later; until then only the primary can execute chains
            // for it.
            if !self.one_sided.contains(&client) {
                self.arbiter.proxy(client);
            }
            if !planted::is(Bug::ClaimedShareForgotten) {
                mem.set_ledger(client, handle, entry);
            }
            self.arbiter.claimed(lock, client, entry, ticket);
        }
        granted
    }

    /// The claim of a client to the lock in this slot, before the settlement.
    pub(super) fn has_claimed(&self, now: ServerTime, slot: Slot, client: ClientId) -> Had {
        match self.claims.get(&(slot, client)) {
            None => Had::Nothing,
            Some(claim) if !claim.is_held || claim.deadline.is_never() => Had::Unleased,
            Some(claim) => match claim.deadline.expiry() {
                until if until > now => Had::Leased(until),
                _ => Had::Expired,
            },
        }
    }
}

/// Whether a client can have made such a claim to a lock of this type.
fn is_possible(lock_type: LockType, held: &HeldClaim) -> bool {
    match (lock_type, held.fair) {
        (LockType::Atomic, None) => held.mode == Mode::Exclusive && !held.is_queued,
        (LockType::Rw, None) => !held.is_queued,
        (LockType::Fair, Some(_)) => true,
        _ => false,
    }
}
