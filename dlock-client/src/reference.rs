// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks and objects a client has got, counted: an instance has one reference to each, which
//! all lock objects of the same name share. The last one to be dropped gives it back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dlock_core::ids::{LockId, ObjectId};
use dlock_core::status::Status;
use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::instance::Instance;
use crate::tasks::Tasks;

/// What a reference is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A lock.
    Lock(LockId),
    /// A state object.
    Object(ObjectId),
}

/// Longest time that a get waits for other threads that give the same back.
const GIVEN_BACK_WAIT: Duration = Duration::from_secs(10);

/// An instance, and what of it is in use.
#[derive(Debug)]
pub(crate) struct References {
    instance: Instance,
    live: Mutex<Live>,
    /// Something was given back.
    given_back: Condvar,
    tasks: Arc<Tasks>,
}

/// No call to the primary is made under its mutex: one may take 10 s.
#[derive(Debug, Default)]
struct Live {
    references: HashMap<Key, Weak<Reference>>,
    /// What is being given back.
    going: HashSet<Key>,
    /// What was begun to be given back while something is got: a get may have come before it.
    gone: Vec<Key>,
    /// Gets under way.
    gets: usize,
}

impl References {
    pub(crate) fn new(instance: Instance) -> Self {
        let (live, given_back) = (Mutex::default(), Condvar::new());
        Self { instance, live, given_back, tasks: Arc::new(Tasks::new()) }
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Gets something of the primary and counts the reference. It is got once more if another
    /// thread has given it back meanwhile.
    pub(crate) fn obtain(
        self: &Arc<Self>,
        get: impl Fn(&Instance) -> Result<Key, Error>,
    ) -> Result<Arc<Reference>, Error> {
        let until = Instant::now() + GIVEN_BACK_WAIT;
        loop {
            let gone = {
                let mut live = self.live.lock();
                live.gets += 1;
                live.gone.len()
            };
            let key = get(&self.instance);
            let mut live = self.live.lock();
            live.gets -= 1;
            let was_given_back = key.as_ref().is_ok_and(|key| live.gone[gone..].contains(key));
            if live.gets == 0 {
                live.gone.clear();
            }
            let key = key?;
            if !was_given_back && !live.going.contains(&key) {
                if let Some(reference) = live.references.get(&key).and_then(Weak::upgrade) {
                    return Ok(reference);
                }
                let reference = Arc::new(Reference { references: Arc::clone(self), key });
                live.references.insert(key, Arc::downgrade(&reference));
                return Ok(reference);
            }
            while live.going.contains(&key) && Instant::now() < until {
                self.given_back.wait_until(&mut live, until);
            }
            if Instant::now() >= until {
                return Err(Error::Disconnected);
            }
        }
    }
}

/// A counted reference to a lock or an object.
#[derive(Debug)]
pub(crate) struct Reference {
    references: Arc<References>,
    key: Key,
}

impl Reference {
    #[inline]
    pub(crate) fn instance(&self) -> &Instance {
        &self.references.instance
    }

    /// The futures of the client.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.references.tasks
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let references = &self.references;
        let mut live = references.live.lock();
        let its = live.references.get(&self.key);
        if !its.is_some_and(|weak| std::ptr::eq(weak.as_ptr(), self)) {
            return; // got anew in the meantime
        }
        live.references.remove(&self.key);
        live.going.insert(self.key);
        if live.gets > 0 {
            live.gone.push(self.key);
        }
        drop(live);
        let (what, status) = match self.key {
            Key::Lock(id) => (id.0, references.instance.release_guarded(id)),
            Key::Object(id) => (id.0, references.instance.object_release(id)),
        };
        references.live.lock().going.remove(&self.key);
        references.given_back.notify_all();
        let is_harmless = matches!(status, Status::Success | Status::Error | Status::ClientNotInit);
        if !is_harmless {
            log::warn!("{what} was not given back: {status}");
        }
    }
}
