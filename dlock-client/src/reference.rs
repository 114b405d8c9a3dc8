// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks and objects that a client has got. An instance has one counted reference to each,
//! which all lock objects of the same name share. When the program drops the last of these, the
//! client gives the lock or object back.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::ids::{LockId, ObjectId};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use parking_lot::{Condvar, Mutex};

use crate::clock::wait_until;
use crate::driver::futures::Tasks;
use crate::error::Error;
use crate::instance::Instance;
use crate::mutex::Threads;

/// A lock or a state object: what a reference refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A lock.
    Lock(LockId),
    /// A state object.
    Object(ObjectId),
}

/// The longest time that a get waits for other threads that give the same lock or object back.
/// Giving back takes up to two control calls: that of an earlier get, and its own.
const GIVEN_BACK_WAIT: Duration = Duration::from_secs(20);

/// An instance, and the references to its locks and objects.
#[derive(Debug)]
pub(crate) struct References {
    instance: Arc<Instance>,
    live: Mutex<Live>,
    /// Signalled when a get has ended, or a lock or object was given back.
    changed: Condvar,
    tasks: Arc<Tasks>,
}

/// The references in use. No thread calls the primary under their mutex: a call may take 10 s.
///
/// ```text
///   get   begins ── call ── ends: the get takes over a kept key
///   drop  the key is kept until earlier gets have ended ── call: the key is going ── gone
/// ```
/// So the result of a get is valid if no thread was giving the same lock or object back when the
/// get began, even if a thread drops it later. A get learns its lock or object only when it ends.
#[derive(Debug, Default)]
struct Live {
    references: HashMap<Key, Weak<Reference>>,
    /// The locks and objects that threads are giving back now.
    going: HashSet<Key>,
    /// The locks and objects that are to be given back, each with the number of its drop.
    kept: HashMap<Key, u64>,
    /// The numbers of the gets under way.
    gets: BTreeSet<u64>,
    /// The number of the next get or drop.
    next: u64,
}

impl Live {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_dropped(&self, key: Key) -> bool {
        self.going.contains(&key) || self.kept.contains_key(&key)
    }
}

/// A get under way.
struct Get<'a> {
    references: &'a References,
    number: u64,
    before: Before,
}

/// What was going, and what was kept, when a get began. Giving back waits only for gets that began
/// earlier; those keys do not wait for this get.
#[derive(Default)]
struct Before {
    going: HashSet<Key>,
    kept: HashMap<Key, u64>,
}

impl Before {
    /// Whether no thread has given the result of the get back since the get began.
    fn has_got(&self, key: Key, live: &Live) -> bool {
        let kept = self.kept.get(&key);
        !self.going.contains(&key) && (kept.is_none() || live.kept.get(&key) == kept)
    }
}

impl Drop for Get<'_> {
    fn drop(&mut self) {
        self.references.live.lock().gets.remove(&self.number);
        self.references.changed.notify_all();
    }
}

impl References {
    pub(crate) fn new(instance: Arc<Instance>) -> Self {
        let (live, changed) = (Mutex::default(), Condvar::new());
        let tasks = Arc::clone(instance.tasks());
        Self { instance, live, changed, tasks }
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn shared(&self) -> &Arc<Instance> {
        &self.instance
    }

    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.tasks
    }

    /// Gets a lock or an object from the primary, and counts the reference. If another thread was
    /// giving it back meanwhile, gets it again.
    pub(crate) fn obtain(
        self: &Arc<Self>,
        get: impl Fn(&Instance) -> Result<Key, Error>,
    ) -> Result<Arc<Reference>, Error> {
        let mut got = None;
        loop {
            let under_way = self.begin(got)?;
            let key = get(&self.instance)?;
            let mut live = self.live.lock();
            if under_way.before.has_got(key, &live) {
                live.kept.remove(&key);
                if let Some(reference) = live.references.get(&key).and_then(Weak::upgrade) {
                    drop(live);
                    return Ok(reference);
                }
                let (references, threads) = (Arc::clone(self), Threads::default());
                let reference = Arc::new(Reference { references, key, threads });
                live.references.insert(key, Arc::downgrade(&reference));
                drop(live);
                return Ok(reference);
            }
            drop(live);
            got = Some(key);
        }
    }

    /// Begins a get. If the key is known from an earlier try, waits until no thread gives it back.
    fn begin(&self, of: Option<Key>) -> Result<Get<'_>, Error> {
        let until_ns = deadline_in(GIVEN_BACK_WAIT);
        let mut live = self.live.lock();
        while of.is_some_and(|key| live.is_dropped(key)) {
            if wait_until(&self.changed, &mut live, until_ns) {
                return Err(Error::Disconnected);
            }
        }
        let number = live.number();
        live.gets.insert(number);
        let before = Before { going: live.going.clone(), kept: live.kept.clone() };
        Ok(Get { references: self, number, before })
    }
}

/// A counted reference to a lock or an object.
#[derive(Debug)]
pub(crate) struct Reference {
    references: Arc<References>,
    key: Key,
    threads: Threads,
}

impl Reference {
    #[inline]
    pub(crate) fn instance(&self) -> &Instance {
        &self.references.instance
    }

    pub(crate) fn shared(&self) -> &Arc<Instance> {
        &self.references.instance
    }

    /// The futures of the client.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.references.tasks
    }

    /// Whether this process has made the client: a forked child has not.
    pub(crate) fn is_here(&self) -> bool {
        self.references.tasks.is_here()
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// The threads of this program that use the lock as a [`Mutex`](crate::Mutex).
    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let references = &self.references;
        let mut live = references.live.lock();
        let its = live.references.get(&self.key);
        if !its.is_some_and(|weak| std::ptr::eq(weak.as_ptr(), self)) {
            return; // another get has made a new reference in the meantime
        }
        live.references.remove(&self.key);
        let number = live.number();
        live.kept.insert(self.key, number);
        while live.gets.first().is_some_and(|&get| get < number) {
            references.changed.wait(&mut live);
        }
        if live.kept.get(&self.key) != Some(&number) {
            return; // a get has taken the key over
        }
        live.kept.remove(&self.key);
        live.going.insert(self.key);
        drop(live);
        let (what, status) = match self.key {
            Key::Lock(id) => (id.0, references.instance.release_lock(id)),
            Key::Object(id) => (id.0, references.instance.object_release(id)),
        };
        references.live.lock().going.remove(&self.key);
        references.changed.notify_all();
        let is_harmless = matches!(status, Status::Success | Status::Error | Status::ClientNotInit);
        if !is_harmless {
            log::warn!("{what} was not given back: {status}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_has_got_what_nobody_gave_back_after_it_began() {
        let key = Key::Lock(LockId(7));
        let kept = |by: Option<u64>| by.map(|by| (key, by)).into_iter().collect::<HashMap<_, _>>();
        for (was_going, was_kept, is_kept, has_got) in [
            (false, None, None, true),
            (false, None, Some(2), true), // dropped meanwhile; the drop waits for this get
            (true, None, None, false),
            (true, None, Some(2), false), // another thread got it anew meanwhile, and dropped it
            (false, Some(1), Some(1), true),
            (false, Some(1), None, false), // the key is being given back, or was given back
            (false, Some(1), Some(2), false),
        ] {
            let going = was_going.then_some(key).into_iter().collect();
            let before = Before { going, kept: kept(was_kept) };
            let live = Live { kept: kept(is_kept), ..Live::default() };
            let case = (was_going, was_kept, is_kept);
            assert_eq!(before.has_got(key, &live), has_got, "{case:?}");
        }
    }
}
