// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gets and releases locks: their life cycle, over the control connection.

use std::sync::Arc;

use dlock_core::ids::LockId;
use dlock_core::limits::{BATCH_MAX, DESC_LEN_MAX};
use dlock_core::lock::{EntryState, LockEntry};
use dlock_core::rights::Right;
use dlock_core::session::{is_decided, refusal, released, Call};
use dlock_core::wire::control::{ControlReply, ControlRequest, LockDesc, LockGrant};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{deadline_in, left_until};

use super::{call_on, Instance};
use crate::control::CONTROL_WAIT;
use crate::denied;
use crate::execute::{settle, DATA_WAIT};
use crate::table::{Busy, ClientLock, LockSlotGuard, LockSlotIndex};

/// A lock's id and whether the lock is new to this client; or why the client has not got it.
pub(super) type GotLock = Result<(LockId, bool), Status>;

/// What became of a lock that the primary has granted.
enum Adopted {
    Got(GotLock),
    /// This client knows the lock, and another thread has its slot locked.
    InUse(LockSlotIndex),
}

impl Instance {
    /// Gets a lock by its name; the primary creates it if it does not exist. While the lock exists,
    /// it has the same id for all clients.
    ///
    /// # Errors
    /// `Invalid` (name empty or longer than 512 bytes), `Error` with the id (this client has got
    /// the lock already), `Error` without an id (a lock of this name has another type, or the
    /// client has left), `NotReady`, `ServerNoResource`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn get_lock(&self, desc: LockDesc) -> (Status, Option<LockId>) {
        if !is_valid(&desc) {
            return (Status::Invalid, None);
        }
        match self.get_locks(vec![desc], deadline_in(CONTROL_WAIT)).map(|mut all| all.pop()) {
            Ok(Some(Ok((id, true)))) => (Status::Success, Some(id)),
            Ok(Some(Ok((id, false)))) => (Status::Error, Some(id)),
            Ok(Some(Err(status))) | Err(status) => (status, None),
            Ok(None) => (Status::BadResponse, None),
        }
    }

    /// Gets up to 31 locks in one round trip. A lock that this client has got before is no error.
    ///
    /// # Errors
    /// `Invalid` (no item, more than 31, or an invalid name), `Error` (the client has left),
    /// `NotReady`, `BadResponse`. Of an item: `Error` (the lock has another type),
    /// `ServerNoResource`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn batch_get_lock(
        &self,
        descs: Vec<LockDesc>,
    ) -> Result<Vec<Result<LockId, Status>>, Status> {
        let is_size_valid = (1..=BATCH_MAX).contains(&descs.len());
        if !is_size_valid || !descs.iter().all(is_valid) {
            return Err(Status::Invalid);
        }
        let got = self.get_locks(descs, deadline_in(CONTROL_WAIT))?;
        Ok(got.into_iter().map(|item| item.map(|(id, _)| id)).collect())
    }

    /// Gets these locks: their ids, and whether they are new to this client.
    pub(super) fn get_locks(
        &self,
        descs: Vec<LockDesc>,
        until_ns: u64,
    ) -> Result<Vec<GotLock>, Status> {
        self.check(Call::Locks)?;
        let _lifecycle = self.lifecycle_until(until_ns)?;
        let mut got: Vec<Option<GotLock>> = vec![None; descs.len()];
        while let Some(index) = self.get_those_left(&descs, &mut got, until_ns)? {
            // another thread operates on that lock, or releases it
            let lock_slot = self.table.lock_slot(index);
            drop(lock_slot.lock_until(|| until_ns).ok_or(Status::BadResponse)?);
        }
        Ok(got.into_iter().flatten().collect())
    }

    /// Gets those locks that have no answer yet. A grant of a lock that this client knows is
    /// compared with the known one. If such a lock is in use, returns its slot; the caller then
    /// gets it once more.
    fn get_those_left(
        &self,
        descs: &[LockDesc],
        got: &mut [Option<GotLock>],
        until_ns: u64,
    ) -> Result<Option<LockSlotIndex>, Status> {
        let left: Vec<usize> = (0..got.len()).filter(|&i| got[i].is_none()).collect();
        // locked until the locks are in the table, so that no release comes between
        let mut control =
            self.control.try_lock_for(left_until(until_ns)).ok_or(Status::BadResponse)?;
        let control = control.as_mut().ok_or(Status::BadResponse)?;
        let wanted = left.iter().map(|&i| descs[i].clone()).collect();
        let reply = call_on(control, ControlRequest::GetLocks(wanted), until_ns)?;
        let ControlReply::Locks(grants) = reply else { return Err(Status::BadResponse) };
        if grants.len() != left.len() {
            return Err(Status::BadResponse);
        }
        let mut in_use = None;
        for (grant, i) in grants.into_iter().zip(left) {
            got[i] = match grant {
                Ok(grant) if grant.lock.0 > 0 => match self.adopt(&grant, descs[i].clone()) {
                    Adopted::Got(got) => Some(got),
                    Adopted::InUse(index) => {
                        in_use = Some(index);
                        None
                    }
                },
                Ok(_) => Some(Err(Status::Error)),
                Err(status) => {
                    if status == Status::Denied {
                        denied::tell(Right::Get, &descs[i].name);
                    }
                    Some(Err(refusal(status)))
                }
            };
        }
        Ok(in_use)
    }

    /// Takes a granted lock into the table. If the primary has granted the lock before, but the
    /// reply was lost, the lock is new to this client.
    fn adopt(&self, grant: &LockGrant, desc: LockDesc) -> Adopted {
        let link = self.link.load();
        // a lock of this name that was not claimed, or whose release was not answered
        let known = self.table.known(grant.lock).or_else(|| self.table.named(&desc.name));
        match known.map(|id| (id, self.table.find(id))) {
            Some((id, Some(index))) => self.adopt_as(id, index, grant, desc),
            Some((_, None)) => self.adopt(grant, desc), // another thread has released it meanwhile
            None => {
                let mut entry =
                    LockEntry::new(link.client, link.anchor_s, desc.lock_type, grant, desc);
                link.is_primary_of(&mut entry);
                let (exec, pulse) = (Arc::clone(&link.exec), Arc::clone(&link.pulse));
                let mut lock = ClientLock::new(grant.lock, entry, exec, pulse, link.epoch);
                lock.undo_what_is_left();
                self.may_cache(&mut lock);
                let (id, _) = self.table.insert(lock);
                Adopted::Got(Ok((id, true)))
            }
        }
    }

    /// Takes over the grant of a lock that this client knows by this id.
    fn adopt_as(
        &self,
        id: LockId,
        index: LockSlotIndex,
        grant: &LockGrant,
        desc: LockDesc,
    ) -> Adopted {
        let link = self.link.load();
        // not waited for: a thread that releases the lock has the slot locked, and waits for the
        // control connection
        let Some(mut guard) = self.table.lock_slot(index).try_lock() else {
            return Adopted::InUse(index);
        };
        let Some(held) = guard.as_mut().filter(|held| held.id == id) else {
            return Adopted::InUse(index);
        };
        let at = (link.epoch, link.anchor_s);
        let before = held.entry.lock();
        let Some(is_new) = held.binding.adopt(&mut held.entry, link.client, grant, &desc, at)
        else {
            // the id that the primary had for this lock now belongs to a lock of another name
            if !held.binding.loses_place(&held.entry, link.epoch) {
                return Adopted::Got(Err(Status::Error));
            }
            self.table.rename(id, grant.lock, None);
            drop(guard);
            return self.adopt(grant, desc);
        };
        if is_new {
            link.is_primary_of(&mut held.entry);
            held.go_over_to(Arc::clone(&link.exec), Arc::clone(&link.pulse));
            held.undo_what_is_left();
            self.may_cache(held);
            self.table.rename(id, before, Some(grant.lock));
        }
        Adopted::Got(Ok((id, is_new)))
    }

    /// Releases a lock that this client does not hold.
    ///
    /// # Errors
    /// `Error` (the client has left, has not got the lock, or holds it), `Async` (an asynchronous
    /// operation is under way on it), `TicketToUnlock`, `NotReady`, `BadResponse`. With any other
    /// status of the primary this client has not got the lock any more.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn release_lock(&self, lock: LockId) -> Status {
        if let Err(status) = self.check(Call::Locks) {
            return status;
        }
        if self.is_async_on(lock) {
            return self.refuse(super::ASYNC);
        }
        let until_ns = deadline_in(CONTROL_WAIT);
        let Ok(_lifecycle) = self.lifecycle_until(until_ns) else { return Status::BadResponse };
        let Some(index) = self.table.find(lock) else { return Status::Error };
        let mut guard = match self.releasable(lock, index, until_ns) {
            Ok(guard) => guard,
            Err(status) => return status,
        };
        let Some(held) = guard.as_ref() else { return Status::Error };
        let at_primary = held.entry.lock();
        if self.was_left_elsewhere(&guard) {
            self.table.remove(index, &mut guard);
            return Status::Success;
        }
        let status = match held.entry.state() {
            EntryState::ExclusiveLocked | EntryState::SharedLocked => return Status::Error,
            EntryState::ExclusiveTicketed | EntryState::SharedTicketed => {
                return Status::TicketToUnlock
            }
            EntryState::Initialized | EntryState::Unlocked => {
                let data_until_ns = until_ns.min(deadline_in(DATA_WAIT));
                if let Err(status) = settle(self.table.lock_slot(index), &mut guard, data_until_ns)
                {
                    return status;
                }
                let request = ControlRequest::ReleaseLocks(vec![at_primary]);
                self.release_at_primary(request, 1, until_ns, |_, answer| {
                    self.release_answered(index, &mut guard, answer)
                })
            }
        };
        self.table.lock_slot(index).changed.notify_all();
        status
    }

    /// Whether another incarnation of the primary did not answer the lock's release. This one has
    /// never granted the lock, and may have another lock with its id.
    fn was_left_elsewhere(&self, guard: &LockSlotGuard<'_>) -> bool {
        let epoch = self.link.load().epoch;
        let is_it = |held: &ClientLock| held.entry.has_left() && !held.binding.is_at(epoch);
        guard.as_ref().is_some_and(is_it)
    }

    /// Takes over the primary's answer to a release. If the primary has decided, the lock is gone
    /// from the table. If an earlier release was not answered, "not got" is the answer to that one.
    fn release_answered(
        &self,
        index: LockSlotIndex,
        guard: &mut LockSlotGuard<'_>,
        status: Status,
    ) -> Status {
        let Some(held) = guard.as_mut() else { return status };
        let was_unanswered = held.entry.has_left();
        if is_decided(status) {
            self.table.remove(index, guard);
        } else if status == Status::BadResponse {
            held.entry.leaves();
        }
        released(status, was_unanswered)
    }

    /// The lock slot of a lock, once no other thread waits for its grant.
    fn releasable(
        &self,
        lock: LockId,
        index: LockSlotIndex,
        until_ns: u64,
    ) -> Result<LockSlotGuard<'_>, Status> {
        let lock_slot = self.table.lock_slot(index);
        let mut guard = lock_slot.lock_until(|| until_ns).ok_or(Status::BadResponse)?;
        loop {
            match guard.as_ref() {
                Some(held) if held.id == lock => match held.busy {
                    Busy::No => return Ok(guard),
                    Busy::Async => return Err(self.refuse(super::ASYNC)),
                    Busy::Waiting => {}
                },
                _ => return Err(Status::Error),
            }
            if lock_slot.changed.wait_until(&mut guard, until_ns) {
                return Err(Status::BadResponse);
            }
        }
    }

    /// Sends a release, and calls `each` with the status of every item while the control connection
    /// is locked; if the release was not sent, with none. Returns the first status that is no
    /// success.
    fn release_at_primary(
        &self,
        request: ControlRequest,
        items: usize,
        until_ns: u64,
        mut each: impl FnMut(usize, Status) -> Status,
    ) -> Status {
        let Some(mut control) = self.control.try_lock_for(left_until(until_ns)) else {
            return Status::BadResponse;
        };
        let Some(control) = control.as_mut() else { return Status::BadResponse };
        let statuses = match call_on(control, request, until_ns) {
            Ok(ControlReply::Statuses(statuses)) if statuses.len() == items => statuses,
            Ok(_) => vec![Status::BadResponse; items],
            Err(status) => vec![status; items],
        };
        let told = statuses.into_iter().enumerate().map(|(i, status)| each(i, status));
        told.fold(Status::Success, |first, status| match first {
            Status::Success => status,
            first => first,
        })
    }

    /// Releases up to 31 locks in one round trip. In `ids`, items that cannot be released (an
    /// asynchronous operation is under way, not got, held, in doubt) are set to 0. A lock with a
    /// ticket can be released here.
    ///
    /// # Errors
    /// `Invalid` (no item, or more than 31), `Error` (the client has left, or no item can be
    /// released), `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn batch_release_lock(&self, ids: &mut [i32]) -> Status {
        if !(1..=BATCH_MAX).contains(&ids.len()) {
            return Status::Invalid;
        }
        if let Err(status) = self.check(Call::Locks) {
            return status;
        }
        let until_ns = deadline_in(CONTROL_WAIT);
        let Ok(_lifecycle) = self.lifecycle_until(until_ns) else { return Status::BadResponse };
        let mut wanted: Vec<(LockSlotIndex, usize)> = Vec::new();
        for (i, id) in ids.iter_mut().enumerate() {
            let lock = LockId(*id);
            match self.table.find(lock).filter(|_| !self.is_async_on(lock)) {
                // a lock that is named twice is released once; its second item is set to 0
                Some(index) if !wanted.iter().any(|&(other, _)| other == index) => {
                    wanted.push((index, i));
                }
                _ => *id = 0,
            }
        }
        let data_until_ns = until_ns.min(deadline_in(DATA_WAIT));
        wanted.sort_unstable(); // lock slots are locked in the order of their indices
        let mut lock_slots: Vec<(LockSlotIndex, LockSlotGuard<'_>)> =
            Vec::with_capacity(wanted.len());
        let mut locks: Vec<LockId> = Vec::with_capacity(wanted.len());
        let mut has_released = false;
        for (index, i) in wanted {
            let guard = self.releasable(LockId(ids[i]), index, data_until_ns).ok();
            let guard = guard.filter(|g| g.as_ref().is_some_and(|held| held.entry.refs() == 0));
            let Some(mut guard) = guard else {
                ids[i] = 0;
                continue;
            };
            if self.was_left_elsewhere(&guard) {
                self.table.remove(index, &mut guard);
                has_released = true;
                continue;
            }
            match settle(self.table.lock_slot(index), &mut guard, data_until_ns) {
                Ok(()) => {
                    locks.extend(guard.as_ref().map(|held| held.entry.lock()));
                    lock_slots.push((index, guard));
                }
                Err(Status::NotReady) => return Status::NotReady,
                Err(_) => ids[i] = 0,
            }
        }
        if lock_slots.is_empty() {
            return if has_released { Status::Success } else { Status::Error };
        }
        let items = locks.len();
        let request = ControlRequest::ReleaseLocks(locks);
        let status = self.release_at_primary(request, items, until_ns, |i, answer| {
            let (index, guard) = &mut lock_slots[i];
            self.release_answered(*index, guard, answer)
        });
        match status {
            Status::NotReady | Status::BadResponse => status,
            _ => Status::Success,
        }
    }
}

fn is_valid(desc: &LockDesc) -> bool {
    (1..=DESC_LEN_MAX).contains(&desc.name.len())
}
