// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has a name: an index of locks, or of objects, by their names.
//!
//! It is a tree of keyed hashes. A hash table would be faster to look up, but from time to time
//! one insertion moves all of it: for 51,200 names that takes milliseconds, which all clients
//! would wait for.

use std::collections::hash_map::RandomState;
use std::collections::BTreeSet;
use std::hash::BuildHasher;

/// The index. The names themselves are with those that have them.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Of this process alone: no client can choose names that collide.
    hasher: RandomState,
    /// Only looked up, never walked: its order must not matter.
    ids: BTreeSet<(u64, i32)>,
}

impl Names {
    /// Who has this name. `has_name` tells whether it is this one's.
    pub fn find(&self, name: &[u8], has_name: impl Fn(i32) -> bool) -> Option<i32> {
        let hash = self.hasher.hash_one(name);
        let same_hash = self.ids.range((hash, i32::MIN)..=(hash, i32::MAX));
        same_hash.map(|&(_, id)| id).find(|&id| has_name(id))
    }

    /// The name, which is free, is this one's.
    pub fn insert(&mut self, name: &[u8], id: i32) {
        self.ids.insert((self.hasher.hash_one(name), id));
    }

    /// The name is not this one's any more.
    pub fn remove(&mut self, name: &[u8], id: i32) {
        self.ids.remove(&(self.hasher.hash_one(name), id));
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_names_with_one_hash_each_is_found() {
        let mut names = Names::default();
        let hash = names.hasher.hash_one(b"a".as_slice());
        names.ids.extend([(hash, i32::MIN), (hash, i32::MAX), (hash, 7)]);
        for id in [i32::MIN, 7, i32::MAX] {
            assert_eq!(names.find(b"a", |found| found == id), Some(id));
        }
        assert_eq!(names.find(b"a", |_| false), None);
        names.remove(b"a", 7);
        assert_eq!((names.find(b"a", |found| found == 7), names.len()), (None, 2));
    }
}
