// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claims of a predecessor's clients.
//!
//! A claim names a lock and what is held of it. Each counts once per (client, lock), however
//! often it is told. Who comes second with a claim that conflicts gets `Fail`, and holds nothing.
//! Tickets of fair locks do not survive their primary: a claim of a fair hold gets `Fail`, too.

use super::{valid_name, Primary};
use crate::clock::ServerTime;
use crate::control::{Claim, ControlReply, HeldClaim, LockGrant};
use crate::exec::LockMemory;
use crate::ids::ClientId;
use crate::limits::BATCH_MAX;
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::word_op::{Word, WordAddr};
use crate::words::{AtomicWord, RwWord};

impl Primary {
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

    fn claim(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        claim: &Claim,
    ) -> Result<LockGrant, Status> {
        let (mut t, locks, _) = self.registry.split(mem);
        let mut grant = locks.insert_claimed(&mut t, client, claim.lock, &claim.desc)?;
        let Some(held) = claim.held else { return Ok(grant) };
        let addr = WordAddr::new(grant.slot, Word::W0);
        let again = self.claimed.contains(&(client, grant.lock));
        if again && !planted::is(Bug::ClaimsCountedTwice) {
            grant.word = mem.read(addr);
            return Ok(grant);
        }
        if !install(now, mem, client, claim.desc.lock_type, held, &grant) {
            return Err(Status::Fail);
        }
        grant.word = mem.read(addr); // the deadline is one of this primary's clock now
        self.claimed.insert((client, grant.lock));
        if (claim.desc.lock_type, held.mode) == (LockType::Rw, Mode::Shared) {
            self.arbiter.claimed(grant.slot, client);
        }
        Ok(grant)
    }
}

fn install(
    now: ServerTime,
    mem: &mut dyn LockMemory,
    client: ClientId,
    lock_type: LockType,
    held: HeldClaim,
    grant: &LockGrant,
) -> bool {
    let addr = WordAddr::new(grant.slot, Word::W0);
    let seen = mem.read(addr);
    let wanted = match (lock_type, held.mode) {
        (LockType::Atomic, Mode::Exclusive) if seen == 0 => AtomicWord::new()
            .with_client(client.get())
            .with_timeout(now.deadline(held.remaining_s))
            .into_bits(),
        (LockType::Rw, Mode::Exclusive) if seen == 0 => {
            RwWord::new().with_client(client.get()).into_bits()
        }
        (LockType::Rw, Mode::Shared) if RwWord::from_bits(seen).client() == 0 => seen + 1,
        (LockType::Rw, Mode::Shared) if planted::is(Bug::ShareOverOwner) => seen + 1,
        _ => return false,
    };
    mem.cas(addr, seen, wanted) == seen
}
