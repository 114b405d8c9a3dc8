// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks and objects a client has got, counted: an instance has one reference to each, which
//! all lock objects of the same name share. The last one to be dropped gives it back.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use dlock_core::ids::{LockId, ObjectId};
use dlock_core::status::Status;
use parking_lot::Mutex;

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

/// An instance, and what of it is in use.
#[derive(Debug)]
pub(crate) struct References {
    instance: Instance,
    live: Mutex<HashMap<Key, Weak<Reference>>>,
    tasks: Arc<Tasks>,
}

impl References {
    pub(crate) fn new(instance: Instance) -> Self {
        Self { instance, live: Mutex::default(), tasks: Arc::new(Tasks::new()) }
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Gets something of the primary and counts the reference. One at a time, so that no last
    /// drop comes between.
    pub(crate) fn obtain(
        self: &Arc<Self>,
        get: impl FnOnce(&Instance) -> Result<Key, Error>,
    ) -> Result<Arc<Reference>, Error> {
        let mut live = self.live.lock();
        let key = get(&self.instance)?;
        if let Some(reference) = live.get(&key).and_then(Weak::upgrade) {
            return Ok(reference);
        }
        let reference = Arc::new(Reference { references: Arc::clone(self), key });
        live.insert(key, Arc::downgrade(&reference));
        Ok(reference)
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
        let mut live = self.references.live.lock();
        let is_mine = live.get(&self.key).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), self));
        if !is_mine {
            return; // got anew in the meantime
        }
        live.remove(&self.key);
        let (what, status) = match self.key {
            Key::Lock(id) => (id.0, self.references.instance.release_guarded(id)),
            Key::Object(id) => (id.0, self.references.instance.object_release(id)),
        };
        drop(live); // whoever reads the log may get something
        let is_harmless = matches!(status, Status::Success | Status::Error | Status::ClientNotInit);
        if !is_harmless {
            log::warn!("{what} was not given back: {status}");
        }
    }
}
