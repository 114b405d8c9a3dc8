// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks whether a client may do what it asks for ([`Access`] decides).
//!
//! ```text
//!   GetLocks      get (contained in the rights to lock)       quota locks_max
//!   UpdateLocks   the right to the claimed mode               quota locks_max
//!   Object*       objects                                     quota objects_max
//!   chains, Wait, Poll, TakeTicket, Steal, Extend   the right to the mode, on the lock's name
//!   Wait, TakeTicket                                          quota waits_max
//!   writes that make the hold of a fair lock last longer      the right to the mode
//!   release, cancel, abandon, resolve, and reads of words     none: a holder may always give back
//! ```
//! The primary does not see the chains of a client that operates on the words itself, so only a
//! client that may do everything can do so ([`Locks::may_map`]).

use super::Locks;
use crate::arbiter::Arbiter;
use crate::ids::{ClientId, Handle, Identity, ObjectId};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::LedgerEntry;
use crate::planted::{self, Bug};
use crate::registry::What;
use crate::rights::{Access, Refusal, Right, Rule};
use crate::wire::control::{Claim, ControlRequest, LockDesc, LockGrant};
use crate::wire::message::{LockType, Request};
use crate::wire::status::Status;

impl Locks {
    /// Replaces the rules. Without rules everything is allowed.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.access.set_rules(rules);
    }

    /// Whether a client may have the memory mapped, or reach it by a device.
    pub fn may_map(&self, client: ClientId) -> bool {
        self.access.allows_everything(client)
    }

    /// The client's name for the log, if a rule gives the client the right to operate the primary:
    /// with an empty prefix, or for one lock with a prefix of its name. Without rules no client may
    /// do so over the network.
    ///
    /// # Errors
    /// `Denied`: no rule gives the right.
    pub(crate) fn operator(&mut self, client: ClientId, lock: &[u8]) -> Result<String, Status> {
        if self.access.is_open() && !planted::is(Bug::AdminUnchecked) {
            return Err(Status::Denied);
        }
        if !planted::is(Bug::AdminUnchecked) {
            self.access.check(client, Right::Admin, lock)?;
        }
        let name = self.access.first_name(client).unwrap_or_default();
        Ok(format!("client {client} ({name:?})"))
    }

    /// Takes the refusals since the last call, for want of a right or because of a quota; they are
    /// for the log.
    pub fn take_refusals(&mut self) -> Vec<Refusal> {
        self.access.take_refusals()
    }

    pub(crate) fn admit(
        &mut self,
        identity: Option<Identity>,
        names: &[String],
        has: usize,
    ) -> Result<(), Status> {
        self.access.admit(identity, names, has)
    }

    pub(crate) fn enters(&mut self, client: ClientId, id: Option<Identity>, names: &[String]) {
        self.access.enter(client, id, names);
    }

    /// Records for the log that a chain of this client was denied.
    pub fn chain_was_denied(&mut self, mem: &mut dyn LockMemory, client: ClientId, chain: &Chain) {
        if let Some((right, name)) = self.missing(mem, client, chain) {
            let _ = self.access.check(client, right, &name); // records the refusal
        }
    }

    fn missing(
        &self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        chain: &Chain,
    ) -> Option<(Right, Vec<u8>)> {
        let known = self.known(client)?;
        chain.ops().iter().find_map(|word_op| {
            let addr = match *word_op {
                WordOp::Read { addr }
                | WordOp::ReadPair { addr }
                | WordOp::Cas { addr, .. }
                | WordOp::Faa { addr, .. } => addr,
                WordOp::WriteLedger { handle, value } => {
                    let entry = LedgerEntry::from_bits(value);
                    let missing = self.missing_for_note(mem, client, handle, entry);
                    return missing.map(|(right, name)| (right, name.to_vec()));
                }
            };
            let what = known.handle(known.handle_of(addr.slot())?)?.what;
            let (right, name) = self.needed(what, word_op)?;
            (!self.access.allows(client, right, name)).then(|| (right, name.to_vec()))
        })
    }

    /// The right that this operation on a lock or object needs.
    fn needed(&self, what: What, word_op: &WordOp) -> Option<(Right, &[u8])> {
        match what {
            What::Lock(lock, lock_type) => {
                let right = Right::for_word_op(lock_type, word_op)?;
                Some((right, self.registry.locks.by_id(lock)?.name()))
            }
            What::Object(object, _) => {
                Some((Right::Objects, self.registry.objects.by_id(object)?.name()))
            }
            What::Stale(_) => None,
        }
    }

    /// Whether the primary may execute this word operation for this client.
    pub(super) fn may_operate(
        &self,
        client: ClientId,
        what: What,
        word_op: &WordOp,
    ) -> Result<(), Status> {
        if let What::Lock(_, lock_type) = what {
            if self.refuses_op(client, lock_type, word_op) {
                return Err(Status::NotReady);
            }
        }
        if self.access.is_open() || planted::is(Bug::RightUnchecked) {
            return Ok(());
        }
        match self.needed(what, word_op) {
            Some((right, name)) if !self.access.allows(client, right, name) => Err(Status::Denied),
            _ => Ok(()),
        }
    }

    /// The right that the client lacks for a ledger write that lengthens its hold of a fair lock.
    pub(super) fn missing_for_note(
        &self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        handle: Handle,
        entry: LedgerEntry,
    ) -> Option<(Right, &[u8])> {
        if self.access.is_open() {
            return None;
        }
        let known = self.known(client)?.handle(handle)?;
        let What::Lock(lock, LockType::Fair) = known.what else { return None };
        let entries = (mem.ledger(client, handle), entry);
        let mode = self.arbiter.lengthens(known.slot, client, entries)?;
        let (right, name) = (Right::to_lock(mode), self.registry.locks.by_id(lock)?.name());
        (!self.access.allows(client, right, name)).then_some((right, name))
    }

    /// The work units of counting the locks of a client's identity.
    pub(super) fn quota_work(&self, client: ClientId) -> usize {
        match self.access.quotas(client).locks_max {
            Some(_) => self.access.fellows(client).count(),
            None => 0,
        }
    }

    pub(super) fn get_lock(
        &mut self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        desc: &LockDesc,
    ) -> Result<LockGrant, Status> {
        self.access.check(client, Right::Get, &desc.name)?;
        self.may_have_one_more(client, &desc.name)?;
        let (mut t, locks, _) = self.registry.split(mem);
        locks.get(&mut t, client, desc)
    }

    fn may_have_one_more(&mut self, client: ClientId, name: &[u8]) -> Result<(), Status> {
        let Some(max) = self.access.quotas(client).locks_max else { return Ok(()) };
        let clients = &self.registry.clients;
        let got = |client| clients.get(client).map_or(0, |client| client.locks_len());
        let has: usize = self.access.fellows(client).map(got).sum();
        match has >= max as usize && !self.has_got(client, name) {
            true => Err(self.access.over(client, "locks_max", max)),
            false => Ok(()),
        }
    }

    fn has_got(&self, client: ClientId, name: &[u8]) -> bool {
        let slot = self.registry.locks.by_name(name).map(|lock| lock.slot());
        let known = self.registry.clients.get(client);
        slot.is_some_and(|slot| known.is_some_and(|known| known.handle_of(slot).is_some()))
    }

    pub(super) fn may_claim(&mut self, client: ClientId, claim: &Claim) -> Result<(), Status> {
        let right = claim.held.map_or(Right::Get, |held| match claim.desc.lock_type {
            LockType::Atomic => Right::LockExclusive,
            LockType::Rw | LockType::Fair => Right::to_lock(held.mode),
        });
        self.access.check(client, right, &claim.desc.name)?;
        // Otherwise one identity could fill the table before other clients have claimed their
        // locks.
        self.may_have_one_more(client, &claim.desc.name)
    }

    /// Whether a client may make this request about an object.
    pub(super) fn may_use_object(
        &mut self,
        client: ClientId,
        request: &ControlRequest,
    ) -> Result<(), Status> {
        use ControlRequest as R;
        if self.access.is_open() {
            return Ok(());
        }
        let objects = &self.registry.objects;
        let name = match request {
            R::ObjectCreate { name, .. } | R::ObjectGet { name, .. } => name.clone(),
            R::ObjectDestroy(object) => match objects.by_id(*object) {
                Some(record) => record.name().to_vec(),
                None => return Ok(()), // the request fails anyway
            },
            _ => return Ok(()),
        };
        self.access.check(client, Right::Objects, &name)?;
        match request {
            R::ObjectCreate { name, .. } if !objects.is_alive(name) => {
                self.access.may_create(client, |object| objects.by_id(object).is_some())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn has_created(&mut self, client: ClientId, object: ObjectId) {
        let objects = &self.registry.objects;
        self.access.created(client, object);
        self.access.tidy(self.config.objects_max, |object| objects.by_id(object).is_some());
    }
}

/// Whether a client may make this request about a lock that it has got.
pub(super) fn may_request(
    access: &mut Access,
    arbiter: &Arbiter,
    client: ClientId,
    name: &[u8],
    request: &Request,
) -> Result<(), Status> {
    if access.is_open() {
        return Ok(());
    }
    if let Some(right) = Right::for_request(request) {
        access.check(client, right, name)?;
    }
    use Request::{TakeTicket, Try, Wait};
    let queues = matches!(request, Wait { .. } | Try { .. } | TakeTicket { .. });
    let queues = queues && !planted::is(Bug::WaitsUncounted);
    match access.quotas(client).waits_max.filter(|_| queues) {
        Some(max) => {
            let waits = access.fellows(client).map(|fellow| arbiter.waits_len(fellow));
            match waits.sum::<usize>() < max as usize {
                true => Ok(()),
                false => Err(access.over(client, "waits_max", max)),
            }
        }
        None => Ok(()),
    }
}
