// SPDX-License-Identifier: MIT OR Apache-2.0
//! State objects: 64-bit values that clients add to, compare-and-swap and read, one verb each.
//!
//! A handle is this client's reference: while it has one, the slot is nobody else's. Its
//! generation tells whether the object still lives; where reads are free (shm) it is read in the
//! same chain, on tcp the primary checks. Over verbs nobody does, since that would be a second
//! verb: what is done to a dead object there reaches a word that nobody reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dlock_core::control::{ControlReply, ControlRequest, ObjectGrant};
use dlock_core::exec::{Executor, Single};
use dlock_core::ids::{Epoch, ObjectId};
use dlock_core::limits::DESC_LEN_MAX;
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, Verb, Word, WordAddr};
use dlock_fabric::clock::{monotonic_coarse_ns, monotonic_ns};

use super::{call_on, done, Instance};
use crate::control::CONTROL_WAIT;
use crate::execute::{DATA_WAIT, DATA_WAIT_NS};
use crate::stats::Stat;

/// An object this client has got, in this incarnation of the primary.
#[derive(Debug)]
pub(super) struct Got {
    grant: ObjectGrant,
    epoch: Epoch,
    /// An operation was not answered: it may still be on its way to the slot.
    in_doubt: AtomicBool,
}

impl Got {
    pub(super) fn new(grant: ObjectGrant, epoch: Epoch) -> Self {
        Self { grant, epoch, in_doubt: AtomicBool::new(false) }
    }
}

impl Instance {
    /// Creates an object with a first value. To use it, also its creator must
    /// [`object_get`](Self::object_get) it.
    ///
    /// # Errors
    /// `Invalid` (name empty or longer than 512 bytes, lease 0), `ClientNotInit` (the client has
    /// left), `ObjectCreated` (created by this client before: its lease is extended),
    /// `ObjectExisted` (another client's), `ObjectDestroyed` (destroyed, but still in use),
    /// `ObjectTooMany`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn object_create(&self, name: &[u8], lease_s: u32, init: u64) -> Result<ObjectId, Status> {
        self.check_object(name, lease_s)?;
        let name = name.to_vec();
        match self.call(ControlRequest::ObjectCreate { name, lease_s, init })? {
            ControlReply::Created(object) => Ok(object),
            _ => Err(Status::BadResponse),
        }
    }

    /// Gets an object by its name.
    ///
    /// # Errors
    /// `Invalid` (name empty or longer than 512 bytes, lease 0), `ClientNotInit` (the client has
    /// left), `ObjectNotCreate`, `ObjectDestroyed`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn object_get(&self, name: &[u8], lease_s: u32) -> Result<ObjectId, Status> {
        self.check_object(name, lease_s)?;
        let deadline = Instant::now() + CONTROL_WAIT;
        let _lifecycle = self.lifecycle_until(deadline)?;
        // held until the handle is in the map, so that no release comes between
        let mut control = self.control.try_lock_until(deadline).ok_or(Status::BadResponse)?;
        let control = control.as_mut().ok_or(Status::BadResponse)?;
        let request = ControlRequest::ObjectGet { name: name.to_vec(), lease_s };
        let ControlReply::Object(grant) = call_on(control, request, deadline)? else {
            return Err(Status::BadResponse);
        };
        let got = Got::new(grant, self.link.load().epoch);
        let mut objects = self.objects.write();
        let same = |old: &&Got| old.grant.generation == grant.generation && old.epoch == got.epoch;
        if let Some(old) = objects.get(&grant.object).filter(same) {
            let in_doubt = old.in_doubt.load(Ordering::Relaxed);
            got.in_doubt.store(in_doubt, Ordering::Relaxed);
        }
        objects.insert(grant.object, got);
        Ok(grant.object)
    }

    fn check_object(&self, name: &[u8], lease_s: u32) -> Result<(), Status> {
        if !(1..=DESC_LEN_MAX).contains(&name.len()) || lease_s == 0 {
            return Err(Status::Invalid);
        }
        self.present().map_err(|_| Status::ClientNotInit)
    }

    /// Gives an object back. The handle is gone unless the primary was not asked, or is not ready:
    /// where there is no answer, the slot may be another object's by now. An operation that was
    /// not answered must be over first.
    ///
    /// # Errors
    /// `ClientNotInit` (the client has left), `ObjectNotGet`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most, and 5 s more if an operation was not answered.
    pub fn object_release(&self, object: ObjectId) -> Status {
        if self.present().is_err() {
            return Status::ClientNotInit;
        }
        let deadline = Instant::now() + CONTROL_WAIT;
        let Ok(_lifecycle) = self.lifecycle_until(deadline) else { return Status::BadResponse };
        let Some(mut control) = self.control.try_lock_until(deadline) else {
            return Status::BadResponse;
        };
        // operations under way end first, and none begins until the primary has decided
        let Some(mut objects) = self.objects.try_write_until(deadline) else {
            return Status::BadResponse;
        };
        let got = objects.remove(&object);
        drop(objects);
        let settled = got.as_ref().is_none_or(|got| self.is_settled(got));
        let (status, is_kept) = match control.as_mut().filter(|_| settled) {
            None => (Status::BadResponse, true),
            Some(control) => {
                // once it is known that nothing is under way, the primary is asked for sure
                let deadline = deadline.max(Instant::now() + DATA_WAIT);
                let request = ControlRequest::ObjectRelease(object);
                let status = done(call_on(control, request, deadline));
                (status, status == Status::NotReady)
            }
        };
        if let Some(got) = got.filter(|_| is_kept) {
            self.objects.write().insert(object, got);
        }
        status
    }

    /// Whether no operation on this object can take effect any more: what is answered now came
    /// behind them. A late one would reach whatever is in the slot by then.
    fn is_settled(&self, got: &Got) -> bool {
        let link = self.link.load();
        if !got.in_doubt.load(Ordering::Relaxed) || got.epoch != link.epoch {
            return true;
        }
        let addr = WordAddr::new(got.grant.slot, Word::W0);
        let read = Verb::Read { addr };
        let settled = match link.exec.execute_one(&read, monotonic_ns() + DATA_WAIT_NS) {
            Single::Done(_) => true,
            Single::Unknown => false,
            Single::Refused(status) => {
                matches!(status, Status::ObjectNotGet | Status::LockNotGet)
            }
        };
        got.in_doubt.store(!settled, Ordering::Relaxed);
        settled
    }

    /// Destroys an object of this client's, or an ownerless one. Who has got it can go on using
    /// it while its lease lasts.
    ///
    /// # Errors
    /// `ClientNotInit` (the client has left), `ObjectNotCreate`, `ObjectInvalidOwner`,
    /// `ObjectDestroyed`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn object_destroy(&self, object: ObjectId) -> Status {
        if self.present().is_err() {
            return Status::ClientNotInit;
        }
        let deadline = Instant::now() + CONTROL_WAIT;
        match self.lifecycle_until(deadline) {
            Ok(_lifecycle) => {
                done(self.call_until(ControlRequest::ObjectDestroy(object), deadline))
            }
            Err(status) => status,
        }
    }

    /// Adds modulo 2^64; the value before.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `ObjectNotGet` (not got, or destroyed and freed), `Fail`,
    /// `BadResponse` (no answer: it may or may not have been added).
    ///
    /// # Latency
    /// One round trip, one verb; 5 s at most.
    pub fn faa(&self, object: ObjectId, add: u64) -> Result<u64, Status> {
        self.operate(object, |addr| Verb::Faa { addr, add })
    }

    /// Sets the value to `swap` if it is `expect`.
    ///
    /// # Errors
    /// As [`faa`](Self::faa); `ObjectCasFailed` if it has another value.
    ///
    /// # Latency
    /// One round trip, one verb; 5 s at most.
    pub fn cas(&self, object: ObjectId, expect: u64, swap: u64) -> Status {
        match self.operate(object, |addr| Verb::Cas { addr, expect, swap }) {
            Ok(old) if old == expect => Status::Success,
            Ok(_) => {
                self.stats.add(Stat::ObjectCasFailed);
                Status::ObjectCasFailed
            }
            Err(status) => {
                if status == Status::BadResponse {
                    self.stats.add(Stat::ObjectCasFailed);
                }
                status
            }
        }
    }

    /// The value.
    ///
    /// # Errors
    /// As [`faa`](Self::faa).
    ///
    /// # Latency
    /// One round trip, one verb; 5 s at most.
    pub fn snapshot(&self, object: ObjectId) -> Result<u64, Status> {
        self.operate(object, |addr| Verb::Read { addr })
    }

    fn operate(&self, object: ObjectId, verb: impl Fn(WordAddr) -> Verb) -> Result<u64, Status> {
        self.admit()?;
        // held during the operation: a release waits for it, and the slot stays ours
        let mut since_ns = None;
        let objects = match self.objects.try_read() {
            Some(objects) => objects,
            None => {
                since_ns = Some(monotonic_ns());
                let deadline = Instant::now() + DATA_WAIT;
                self.objects.try_read_until(deadline).ok_or(Status::BadResponse)?
            }
        };
        let link = self.link.load();
        let got = objects.get(&object).filter(|got| got.epoch == link.epoch);
        let Some(Got { grant, in_doubt, .. }) = got else {
            self.stats.add(Stat::ObjectNotGet);
            return Err(Status::ObjectNotGet);
        };
        let op = verb(WordAddr::new(grant.slot, Word::W0));
        let single = match link.exec.reads_are_free() {
            true => of_generation(&*link.exec, grant, op),
            false => {
                let since_ns = since_ns.unwrap_or_else(monotonic_coarse_ns);
                link.exec.execute_one(&op, since_ns + DATA_WAIT_NS)
            }
        };
        match single {
            Single::Done(value) => Ok(value),
            Single::Unknown => {
                in_doubt.store(true, Ordering::Relaxed);
                self.stats.add(Stat::NetworkFail);
                Err(Status::BadResponse)
            }
            Single::Refused(status) => Err(self.object_refused(status)),
        }
    }

    fn object_refused(&self, status: Status) -> Status {
        match status {
            Status::ObjectNotGet | Status::ObjectDestroyed => {
                self.stats.add(Stat::ObjectNotGet);
                Status::ObjectNotGet
            }
            Status::NotReady => Status::NotReady,
            _ => Status::Fail,
        }
    }
}

/// Executes the verb, and tells whether the slot was the object's by then.
fn of_generation(exec: &dyn Executor, grant: &ObjectGrant, op: Verb) -> Single {
    let read = Verb::Read { addr: WordAddr::new(grant.slot, Word::Gen) };
    let mut outcome = [Outcome::Unknown];
    exec.execute(&[Chain::one(read).then(op)], &mut outcome, DATA_WAIT);
    match outcome[0] {
        Outcome::Done(values) => match *values.as_slice() {
            [generation, _] if generation != grant.generation.0 => {
                Single::Refused(Status::ObjectNotGet)
            }
            [_, value] => Single::Done(value),
            _ => Single::Unknown,
        },
        Outcome::Unknown => Single::Unknown,
        Outcome::Refused(status) => Single::Refused(status),
    }
}
