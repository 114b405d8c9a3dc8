// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handles of one client: dense numbers for the locks and objects that it has got.
//!
//! ```text
//!   0 … HANDLES_MAX: locks, each with an entry in the client's ledger │ from there on: objects
//!
//!   Lock(id) ──release──▶ gone
//!   Object(id, generation) ──release──▶ gone
//!         └─object freed by others──▶ Stale(id) ──release, or superseded──▶ gone
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{Generation, Handle, LockId, ObjectId, Slot};
use crate::limits::HANDLES_MAX;
use crate::wire::message::LockType;

/// How many stale handles of one object id a client keeps. The client may still use the newest one;
/// it has stopped using the others, because it has got the object again since.
pub const STALE_HANDLES_MAX: usize = 2;

/// The lock or object of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A lock, and its kind.
    Lock(LockId, LockType),
    /// An object, and the generation of its slot while the object lives.
    Object(ObjectId, Generation),
    /// An object that no longer exists. Its slot must not be touched, and is not reused while the
    /// client may not know that the object is gone.
    Stale(ObjectId),
}

/// One handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleEntry {
    /// The slot that the client knows under this handle.
    pub slot: Slot,
    /// The lock or object that the client got.
    pub what: What,
}

/// The first handle of an object. Objects come last because they have no ledger entries, which take
/// memory on a device.
const OBJECTS_FROM: u32 = HANDLES_MAX as u32;

/// Handles of locks or of objects, counted from 0.
#[derive(Debug, Default)]
struct Numbers {
    entries: Vec<Option<HandleEntry>>,
    /// Free numbers below `entries.len()`, the oldest first.
    unused: VecDeque<u32>,
}

impl Numbers {
    fn is_full(&self, max: usize) -> bool {
        self.unused.is_empty() && self.entries.len() >= max
    }

    fn add(&mut self, entry: HandleEntry) -> u32 {
        let number = self.unused.pop_front().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] = Some(entry);
        number
    }

    fn remove(&mut self, number: u32) -> Option<HandleEntry> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.unused.push_back(number);
        Some(entry)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, HandleEntry)> + '_ {
        (0..).zip(&self.entries).filter_map(|(i, entry)| entry.map(|entry| (i, entry)))
    }
}

/// All handles of one client.
#[derive(Debug, Default)]
pub(super) struct Handles {
    locks: Numbers,
    objects: Numbers,
    by_slot: BTreeMap<Slot, Handle>,
    /// Stale handles of each object, the oldest first; no list is empty.
    stale: BTreeMap<ObjectId, VecDeque<Handle>>,
}

impl Handles {
    pub fn at(&self, handle: Handle) -> Option<HandleEntry> {
        match handle.0.checked_sub(OBJECTS_FROM) {
            Some(number) => *self.objects.entries.get(number as usize)?,
            None => *self.locks.entries.get(handle.0 as usize)?,
        }
    }

    pub fn of(&self, slot: Slot) -> Option<Handle> {
        self.by_slot.get(&slot).copied()
    }

    /// Handles of locks, then those of objects.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, HandleEntry)> + '_ {
        let objects = self.objects.iter().map(|(i, entry)| (Handle(OBJECTS_FROM + i), entry));
        self.locks.iter().map(|(i, entry)| (Handle(i), entry)).chain(objects)
    }

    /// The first number from `from` on that is, or was, a handle.
    pub fn number_from(&self, from: Handle) -> Option<Handle> {
        let end = |numbers: &Numbers| numbers.entries.len() as u32;
        if from.0 < end(&self.locks) {
            return Some(from);
        }
        let number = from.0.max(OBJECTS_FROM);
        (number - OBJECTS_FROM < end(&self.objects)).then_some(Handle(number))
    }

    pub fn locks_len(&self) -> usize {
        self.locks.entries.len() - self.locks.unused.len()
    }

    pub fn len(&self) -> usize {
        self.by_slot.len()
    }

    /// Whether the limit of locks is reached.
    pub fn is_full_of_locks(&self, locks_max: usize) -> bool {
        self.locks.is_full(locks_max.min(HANDLES_MAX))
    }

    /// Whether the limit of objects, stale handles included, is reached.
    pub fn is_full_of_objects(&self, objects_max: usize) -> bool {
        self.objects.is_full(objects_max)
    }

    /// A new handle. The caller has checked that there is room.
    pub fn add(&mut self, entry: HandleEntry) -> Handle {
        let handle = match entry.what {
            What::Lock(..) => Handle(self.locks.add(entry)),
            What::Object(..) | What::Stale(_) => Handle(OBJECTS_FROM + self.objects.add(entry)),
        };
        let before = self.by_slot.insert(entry.slot, handle);
        assert_eq!(before, None, "two handles of one client for {:?}", entry.slot);
        handle
    }

    pub fn remove(&mut self, handle: Handle) -> HandleEntry {
        let entry = match handle.0.checked_sub(OBJECTS_FROM) {
            Some(number) => self.objects.remove(number),
            None => self.locks.remove(handle.0),
        };
        let entry = entry.unwrap_or_else(|| panic!("{handle:?} is not in use"));
        self.by_slot.remove(&entry.slot);
        if let What::Stale(object) = entry.what {
            // A stale handle is in its object's list.
            let list = self.stale.get_mut(&object).expect("a list of stale handles");
            list.retain(|&other| other != handle);
            if list.is_empty() {
                self.stale.remove(&object);
            }
        }
        entry
    }

    /// Makes a handle stale, because its object is gone. If that gives up an older stale handle,
    /// returns the slot of the older one.
    pub fn make_stale(&mut self, handle: Handle) -> Option<Slot> {
        let number = handle.0.checked_sub(OBJECTS_FROM).map(|number| number as usize);
        let entry = number.and_then(|number| self.objects.entries.get_mut(number)?.as_mut());
        let entry = entry.unwrap_or_else(|| panic!("{handle:?} is no object's in use"));
        let What::Object(object, _) = entry.what else {
            panic!("{handle:?} is no object's");
        };
        entry.what = What::Stale(object);
        let list = self.stale.entry(object).or_default();
        list.push_back(handle);
        if list.len() > STALE_HANDLES_MAX {
            let oldest = list[0];
            return Some(self.remove(oldest).slot);
        }
        None
    }

    /// Gives up all stale handles of an object. Returns their slots.
    pub fn remove_stale(&mut self, object: ObjectId) -> Vec<Slot> {
        let list = self.stale.get(&object).cloned().unwrap_or_default();
        list.into_iter().map(|handle| self.remove(handle).slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(slot: u32) -> HandleEntry {
        HandleEntry { slot: Slot(slot), what: What::Lock(LockId(slot as i32), LockType::Atomic) }
    }

    fn object(slot: u32) -> HandleEntry {
        HandleEntry { slot: Slot(slot), what: What::Object(ObjectId(1), Generation(2)) }
    }

    #[test]
    fn handles_are_dense_and_reused() {
        let mut handles = Handles::default();
        for i in 0..5 {
            assert_eq!(handles.add(lock(10 + i)), Handle(i));
        }
        handles.remove(Handle(3));
        handles.remove(Handle(1));
        assert_eq!((handles.at(Handle(3)), handles.of(Slot(13))), (None, None));
        assert_eq!(handles.add(lock(20)), Handle(3));
        assert_eq!(handles.add(lock(21)), Handle(1));
        assert_eq!(handles.add(lock(22)), Handle(5));
        assert_eq!((handles.of(Slot(21)), handles.len()), (Some(Handle(1)), 6));
        assert_eq!(handles.at(Handle(1)), Some(lock(21)));
        assert_eq!(handles.at(Handle(6)), None);
        assert!(handles.is_full_of_locks(6) && !handles.is_full_of_locks(7));
    }

    #[test]
    fn objects_take_no_numbers_from_locks() {
        let mut handles = Handles::default();
        let [a, b] = [object(1), object(2)].map(|entry| handles.add(entry));
        assert_eq!(handles.add(lock(3)), Handle(0));
        assert!(a.0 >= HANDLES_MAX as u32 && b.0 == a.0 + 1);
        assert_eq!((handles.at(a), handles.of(Slot(2))), (Some(object(1)), Some(b)));
        assert!(handles.is_full_of_locks(1) && handles.is_full_of_objects(2));
        handles.remove(a);
        assert_eq!((handles.at(a), handles.at(Handle(0))), (None, Some(lock(3))));
        assert!(handles.is_full_of_locks(1) && !handles.is_full_of_objects(2));
        let all: Vec<Handle> = handles.iter().map(|(handle, _)| handle).collect();
        assert_eq!(all, [Handle(0), b]);
    }

    #[test]
    fn only_the_newest_stale_handles_of_an_object_are_kept() {
        let mut handles = Handles::default();
        for slot in 0..STALE_HANDLES_MAX as u32 {
            let handle = handles.add(object(slot));
            assert_eq!(handles.make_stale(handle), None);
        }
        let handle = handles.add(object(77));
        assert_eq!(handles.make_stale(handle), Some(Slot(0)));
        assert_eq!(handles.len(), STALE_HANDLES_MAX);
        let last = handles.at(handle).unwrap().what;
        assert_eq!(last, What::Stale(ObjectId(1)));
        assert_eq!(handles.remove_stale(ObjectId(1)), [Slot(1), Slot(77)]);
        assert_eq!(handles.remove_stale(ObjectId(1)), []);
        assert_eq!(handles.len(), 0);
    }
}
