// SPDX-License-Identifier: MIT OR Apache-2.0
//! State objects: 64-bit values that clients add to, compare-and-swap and read, one word operation
//! each.
//!
//! A handle is this client's reference to an object: while the client has it, the slot has no other
//! occupant. The slot's generation says whether the object still exists. On shm a read is free, so
//! the chain also reads the generation; on tcp the primary checks it. Over verbs it is not checked,
//! because that would take a second word operation: an operation on a destroyed object changes a
//! word that belongs to no object any more.
//!
//! ```text
//!   objects: RwLock<HashMap<ObjectId, Got>>   locked for a look-up (shm: and the memory access),
//!                                    │        never during a wait
//!                                    └─ in_use: RwLock  operations share it for their round trip;
//!                                                       a release of the object waits for it
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use dlock_core::clock::{Lease, COARSE_NS_MAX};
use dlock_core::counters::Counter;
use dlock_core::ids::{Epoch, ObjectId};
use dlock_core::limits::DESC_LEN_MAX;
use dlock_core::memory::exec::{Executor, Single};
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::rights::Right;
use dlock_core::wire::control::{ControlReply, ControlRequest, ObjectGrant};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_coarse_ns, boot_ns, deadline_in, left_until};
use parking_lot::RwLock;

use super::{call_on, done, Instance, SessionState};
use crate::control::CONTROL_WAIT;
use crate::denied;
use crate::execute::{DATA_WAIT, DATA_WAIT_NS};

/// An object that this client has got, at one incarnation of the primary.
#[derive(Clone, Debug)]
pub(super) struct Got(Arc<ObjectHandle>);

#[derive(Debug)]
struct ObjectHandle {
    grant: ObjectGrant,
    epoch: Epoch,
    /// Each operation under way holds the read lock. A release takes the write lock, so it waits
    /// for them, and the slot stays this object's meanwhile. After the release no operation begins.
    in_use: RwLock<Released>,
    /// The answer of an operation was lost: the operation may still be on its way to the slot.
    in_doubt: AtomicBool,
}

/// Whether the client has given the object back.
#[derive(Debug)]
struct Released(bool);

impl Got {
    pub(super) fn new(grant: ObjectGrant, epoch: Epoch) -> Self {
        let (in_use, in_doubt) = (RwLock::new(Released(false)), AtomicBool::new(false));
        Self(Arc::new(ObjectHandle { grant, epoch, in_use, in_doubt }))
    }

    /// The same reference as a new handle, for operations that begin from now on.
    fn renewed(&self) -> Self {
        let got = Self::new(self.0.grant, self.0.epoch);
        let in_doubt = self.0.in_doubt.load(Ordering::Relaxed);
        got.0.in_doubt.store(in_doubt, Ordering::Relaxed);
        got
    }
}

impl Instance {
    /// Creates an object with a first value. A client that uses the object, also its creator, must
    /// [`object_get`](Self::object_get) it.
    ///
    /// # Errors
    /// `Invalid` (name empty or longer than 512 bytes, lease 0), `ClientNotInit` (the client has
    /// left), `ObjectCreated` (this client has created it before: its lease is extended),
    /// `ObjectExisted` (another client has created it), `ObjectDestroyed` (destroyed, but still in
    /// use), `ObjectTooMany`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn object_create(&self, name: &[u8], lease: Lease, init: u64) -> Result<ObjectId, Status> {
        self.check_object(name, lease)?;
        let request = ControlRequest::ObjectCreate { name: name.to_vec(), lease, init };
        match self.call(request).inspect_err(|&status| tell_if_denied(status, name))? {
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
    pub fn object_get(&self, name: &[u8], lease: Lease) -> Result<ObjectId, Status> {
        self.check_object(name, lease)?;
        let until_ns = deadline_in(CONTROL_WAIT);
        let _lifecycle = self.lifecycle_until(until_ns)?;
        // locked until the handle is in the map, so that no release comes between
        let mut control =
            self.control.try_lock_for(left_until(until_ns)).ok_or(Status::BadResponse)?;
        let control = control.as_mut().ok_or(Status::BadResponse)?;
        let request = ControlRequest::ObjectGet { name: name.to_vec(), lease };
        let reply = call_on(control, request, until_ns);
        let reply = reply.inspect_err(|&status| tell_if_denied(status, name))?;
        let ControlReply::Object(grant) = reply else {
            return Err(Status::BadResponse);
        };
        let got = Got::new(grant, self.link.load().epoch);
        let mut objects = self.objects.write();
        let is_same = |old: &Got| old.0.grant == grant && old.0.epoch == got.0.epoch;
        // a handle that the client has already stays, because it knows which operations were not
        // answered
        if !objects.get(&grant.object).is_some_and(is_same) {
            objects.insert(grant.object, got);
        }
        Ok(grant.object)
    }

    fn check_object(&self, name: &[u8], lease: Lease) -> Result<(), Status> {
        if !(1..=DESC_LEN_MAX).contains(&name.len()) || lease.is_none() {
            return Err(Status::Invalid);
        }
        self.present().map_err(|_| Status::ClientNotInit)
    }

    /// Gives an object back. The client keeps the handle only if it did not ask the primary, or if
    /// the primary is not ready. After a lost answer the handle is gone, because the slot may be
    /// another object's by now. An operation whose answer was lost must be over first.
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
        let until_ns = deadline_in(CONTROL_WAIT);
        let Ok(_lifecycle) = self.lifecycle_until(until_ns) else { return Status::BadResponse };
        let Some(mut control) = self.control.try_lock_for(left_until(until_ns)) else {
            return Status::BadResponse;
        };
        let got = self.objects.read().get(&object).cloned();
        if let Some(Got(handle)) = &got {
            // operations under way end first, and no other begins until the primary has decided
            let Some(mut released) = handle.in_use.try_write_for(left_until(until_ns)) else {
                return Status::BadResponse;
            };
            let Some(mut objects) = self.objects.try_write_for(left_until(until_ns)) else {
                return Status::BadResponse;
            };
            objects.remove(&object);
            released.0 = true;
        }
        let settled = got.as_ref().is_none_or(|got| self.is_settled(got));
        let (status, is_kept) = match control.as_mut().filter(|_| settled) {
            None => (Status::BadResponse, true),
            Some(control) => {
                // when no operation is under way, the primary is asked in any case
                let until_ns = until_ns.max(deadline_in(DATA_WAIT));
                let request = ControlRequest::ObjectRelease(object);
                let status = done(call_on(control, request, until_ns));
                (status, status == Status::NotReady)
            }
        };
        if let Some(got) = got.filter(|_| is_kept) {
            self.objects.write().insert(object, got.renewed());
        }
        status
    }

    /// Whether no operation on this object can take effect any more. The client reads the word: the
    /// answer comes behind earlier operations. A late one would change the next object in the slot.
    fn is_settled(&self, Got(got): &Got) -> bool {
        let link = self.link.load();
        if !got.in_doubt.load(Ordering::Relaxed) || got.epoch != link.epoch {
            return true;
        }
        let addr = WordAddr::new(got.grant.slot, Word::W0);
        let read = WordOp::Read { addr };
        let settled = match link.exec.execute_one(&read, boot_ns() + DATA_WAIT_NS) {
            Single::Done(_) => true,
            Single::Unknown => false,
            Single::Refused(status) => {
                matches!(status, Status::ObjectNotGet | Status::LockNotGet)
            }
        };
        got.in_doubt.store(!settled, Ordering::Relaxed);
        settled
    }

    /// Destroys an object that this client owns, or that has no owner. Clients that have got it can
    /// go on using it while its lease lasts.
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
        let until_ns = deadline_in(CONTROL_WAIT);
        match self.lifecycle_until(until_ns) {
            Ok(_lifecycle) => {
                done(self.call_until(ControlRequest::ObjectDestroy(object), until_ns))
            }
            Err(status) => status,
        }
    }

    /// Adds modulo 2^64 and returns the value before.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `ObjectNotGet` (not got, or destroyed and freed), `Fail`,
    /// `BadResponse` (no answer, or the horizon has passed: the object may or may not have
    /// changed).
    ///
    /// # Latency
    /// One round trip, one word operation; 5 s at most.
    pub fn faa(&self, object: ObjectId, add: u64) -> Result<u64, Status> {
        self.operate(object, |addr| WordOp::Faa { addr, add })
    }

    /// Sets the value to `swap` if it is `expect`.
    ///
    /// # Errors
    /// As [`faa`](Self::faa); `ObjectCasFailed` if the object has another value.
    ///
    /// # Latency
    /// One round trip, one word operation; 5 s at most.
    pub fn cas(&self, object: ObjectId, expect: u64, swap: u64) -> Status {
        match self.operate(object, |addr| WordOp::Cas { addr, expect, swap }) {
            Ok(old) if old == expect => Status::Success,
            Ok(_) => {
                self.stats.add(Counter::ObjectCasFailed);
                Status::ObjectCasFailed
            }
            Err(status) => {
                if status == Status::BadResponse {
                    self.stats.add(Counter::ObjectCasFailed);
                }
                status
            }
        }
    }

    /// Reads the value.
    ///
    /// # Errors
    /// As [`faa`](Self::faa).
    ///
    /// # Latency
    /// One round trip, one word operation; 5 s at most.
    pub fn snapshot(&self, object: ObjectId) -> Result<u64, Status> {
        self.operate(object, |addr| WordOp::Read { addr })
    }

    fn operate(
        &self,
        object: ObjectId,
        word_op: impl Fn(WordAddr) -> WordOp,
    ) -> Result<u64, Status> {
        self.admit()?;
        let link = self.link.load();
        let value = match link.exec.reads_are_free() {
            true => self.operate_locally(&link, object, word_op),
            false => self.operate_remotely(&link, object, word_op),
        };
        // past the horizon a successor of the primary may have the objects
        let horizon_ns = link.pulse.horizon_ns();
        match horizon_ns != u64::MAX && boot_coarse_ns() + COARSE_NS_MAX >= horizon_ns {
            true => value.and(Err(Status::BadResponse)),
            false => value,
        }
    }

    /// An operation that is an access to memory: it does not wait, and it locks the map meanwhile.
    #[inline]
    fn operate_locally(
        &self,
        link: &SessionState,
        object: ObjectId,
        word_op: impl Fn(WordAddr) -> WordOp,
    ) -> Result<u64, Status> {
        let objects = self.objects.try_read().or_else(|| self.objects.try_read_for(DATA_WAIT));
        let objects = objects.ok_or(Status::BadResponse)?;
        let Some(Got(handle)) = objects.get(&object).filter(|got| got.0.epoch == link.epoch) else {
            return Err(self.object_refused(Status::ObjectNotGet));
        };
        let op = word_op(WordAddr::new(handle.grant.slot, Word::W0));
        self.operated(handle, of_generation(&*link.exec, &handle.grant, op))
    }

    /// An operation that waits for its answer: it locks only the object meanwhile, not the map.
    fn operate_remotely(
        &self,
        link: &SessionState,
        object: ObjectId,
        word_op: impl Fn(WordAddr) -> WordOp,
    ) -> Result<u64, Status> {
        let Some(Got(handle)) = self.objects.read().get(&object).cloned() else {
            return Err(self.object_refused(Status::ObjectNotGet));
        };
        let mut since_ns = None;
        let released = match handle.in_use.try_read() {
            Some(released) => released,
            None => {
                since_ns = Some(boot_ns());
                handle.in_use.try_read_for(DATA_WAIT).ok_or(Status::BadResponse)?
            }
        };
        if released.0 || handle.epoch != link.epoch {
            return Err(self.object_refused(Status::ObjectNotGet));
        }
        let op = word_op(WordAddr::new(handle.grant.slot, Word::W0));
        let since_ns = since_ns.unwrap_or_else(boot_coarse_ns);
        self.operated(&handle, link.exec.execute_one(&op, since_ns + DATA_WAIT_NS))
    }

    #[inline]
    fn operated(&self, handle: &ObjectHandle, single: Single) -> Result<u64, Status> {
        match single {
            Single::Done(value) => Ok(value),
            Single::Unknown => {
                handle.in_doubt.store(true, Ordering::Relaxed);
                self.stats.add(Counter::NetworkFail);
                Err(Status::BadResponse)
            }
            Single::Refused(status) => Err(self.object_refused(status)),
        }
    }

    fn object_refused(&self, status: Status) -> Status {
        match status {
            Status::Denied => Status::Denied,
            Status::ObjectNotGet | Status::ObjectDestroyed => {
                self.stats.add(Counter::ObjectNotGet);
                Status::ObjectNotGet
            }
            Status::NotReady => Status::NotReady,
            _ => Status::Fail,
        }
    }
}

fn tell_if_denied(status: Status, name: &[u8]) {
    if status == Status::Denied {
        denied::tell(Right::Objects, name);
    }
}

/// Executes the word operation, and checks that the slot was still the object's.
fn of_generation(exec: &dyn Executor, grant: &ObjectGrant, op: WordOp) -> Single {
    let read = WordOp::Read { addr: WordAddr::new(grant.slot, Word::Gen) };
    let mut outcome = [Outcome::Unknown];
    let until_ns = deadline_in(DATA_WAIT);
    exec.execute(&[Chain::one(read).then(op)], &mut outcome, until_ns);
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

#[cfg(test)]
mod tests {
    use std::thread;

    use dlock_server::{Server, ServerConfig, VerbsUse};

    use super::*;
    use crate::config::{ClientConfig, FabricChoice};
    use dlock_test_support::late::{Late, Point};

    /// A client of a primary of its own, whose verbs can be held up.
    fn join_late(fabric: FabricChoice) -> (Server, Instance, Arc<Late>) {
        let config = ServerConfig { port: 0, verbs: VerbsUse::Off, ..Default::default() };
        let server = Server::start(config).unwrap();
        let addr = server.local_addr();
        let config = ClientConfig { port: addr.port(), fabric, ..Default::default() };
        let instance = Instance::init(&config, &addr.ip().to_string()).unwrap();
        let link = instance.link.load_full();
        let late = Arc::new(Late::new(Arc::clone(&link.exec), 0));
        let exec: Arc<dyn Executor> = late.clone();
        let pulse = Arc::clone(&link.pulse);
        instance.link.store(Arc::new(SessionState { exec, verbs: None, pulse, ..*link }));
        (server, instance, late)
    }

    fn made(instance: &Instance, name: &[u8]) -> ObjectId {
        instance.object_create(name, Lease::secs(600), 0).unwrap();
        instance.object_get(name, Lease::secs(600)).unwrap()
    }

    #[test]
    fn an_operation_on_one_object_holds_up_no_other() {
        let (_server, instance, late) = join_late(FabricChoice::Tcp);
        let [slow, other] = [b"slow".as_slice(), b"other"].map(|name| made(&instance, name));
        late.hold(Point::Chain, 0);
        thread::scope(|scope| {
            let held = scope.spawn(|| instance.faa(slow, 1));
            assert!(late.is_reached(|| held.is_finished()), "the operation is under way");
            let others = scope.spawn(|| {
                let third = made(&instance, b"third");
                assert_eq!(instance.faa(other, 2), Ok(0));
                assert_eq!(instance.object_release(other), Status::Success);
                assert_eq!(instance.snapshot(third), Ok(0));
                assert_eq!(instance.snapshot(other), Err(Status::ObjectNotGet));
                assert_eq!(
                    instance.object_get(b"slow", Lease::secs(600)),
                    Ok(slow),
                    "got while in use"
                );
            });
            let until_ns = deadline_in(CONTROL_WAIT);
            while !others.is_finished() && boot_ns() < until_ns {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            let have_ended = others.is_finished();
            late.let_go();
            assert_eq!(held.join().unwrap(), Ok(0));
            assert!(have_ended, "they waited for the operation on another object");
            others.join().unwrap();
        });
        assert_eq!(instance.snapshot(slow), Ok(1));
    }

    #[test]
    fn a_release_waits_for_the_operations_on_its_object() {
        for fabric in [FabricChoice::Shm, FabricChoice::Tcp] {
            let (_server, instance, late) = join_late(fabric);
            let object = made(&instance, b"o");
            late.hold(Point::Chain, 0);
            thread::scope(|scope| {
                let held = scope.spawn(|| instance.faa(object, 1));
                assert!(late.is_reached(|| held.is_finished()), "the operation is under way");
                let release = scope.spawn(|| instance.object_release(object));
                // the release has begun if it holds the control connection
                while instance.control.try_lock().is_some() && !release.is_finished() {
                    thread::yield_now();
                }
                assert!(!release.is_finished());
                late.let_go();
                assert_eq!(held.join().unwrap(), Ok(0));
                assert_eq!(release.join().unwrap(), Status::Success);
            });
            assert_eq!(instance.faa(object, 1), Err(Status::ObjectNotGet));
        }
    }
}
