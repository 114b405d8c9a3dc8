// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ids of locks and objects. An id is made from the name where possible, so that programs find
//! the ids that they know (a rule of the C API).

use std::collections::BTreeMap;

/// The hash of a name from which ids are made: djb2, seed 5381, `h * 33 + byte` modulo 2^32.
pub fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h: u32, &byte| h.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// The ids in use, and the next one of the counter.
///
/// Clients choose names, and so hashes: the table finds the next free id without walking the used
/// ones.
#[derive(Debug)]
pub(super) struct Ids {
    next: i32,
    /// The used ids, as ranges that do not touch each other: the first and the last id of each.
    used: BTreeMap<i32, i32>,
    /// Ranges looked up so far.
    #[cfg(test)]
    looks: std::cell::Cell<u32>,
}

impl Ids {
    /// The first number that the counter gives (C API).
    const FIRST: i32 = 2;

    pub fn new() -> Self {
        Self {
            next: Self::FIRST,
            used: BTreeMap::new(),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    /// A positive free id; [`uses`](Self::uses) then takes it. `wished` comes before the hash of
    /// the name, and the hash before the counter.
    pub fn pick(&mut self, wished: Option<i32>, name: &[u8]) -> Option<i32> {
        let named = [wished, Some(name_hash(name) as i32)];
        let named = named.into_iter().flatten().find(|&id| id > 0 && self.range_of(id).is_none());
        named.or_else(|| self.count())
    }

    /// Marks an id as used.
    pub fn uses(&mut self, id: i32) {
        debug_assert!(id > 0 && self.range_of(id).is_none());
        let first = match self.range_of(id - 1) {
            Some((first, _)) => first,
            None => id,
        };
        let after = id.checked_add(1).and_then(|after| self.used.remove(&after));
        self.used.insert(first, after.unwrap_or(id));
    }

    /// Marks an id as free.
    pub fn frees(&mut self, id: i32) {
        let Some((first, last)) = self.range_of(id) else { return };
        match first == id {
            true => _ = self.used.remove(&first),
            false => _ = self.used.insert(first, id - 1),
        }
        if id < last {
            self.used.insert(id + 1, last);
        }
    }

    /// Whether exactly these ids, which are in order, are used; for tests and the simulator.
    pub fn are(&self, mut ids: impl Iterator<Item = i32>) -> bool {
        self.used.iter().flat_map(|(&first, &last)| first..=last).eq(ids.by_ref())
    }

    /// The next free id from the counter on; after the highest id the counter starts again.
    fn count(&mut self) -> Option<i32> {
        let id = self.free_from(self.next).or_else(|| self.free_from(Self::FIRST))?;
        self.next = id.checked_add(1).unwrap_or(Self::FIRST);
        Some(id)
    }

    fn free_from(&self, id: i32) -> Option<i32> {
        match self.range_of(id) {
            // ranges do not touch each other, so the next id is free
            Some((_, last)) => last.checked_add(1),
            None => Some(id),
        }
    }

    /// The range of used ids that contains `id`.
    fn range_of(&self, id: i32) -> Option<(i32, i32)> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let (&first, &last) = self.used.range(..=id).next_back()?;
        (id <= last).then_some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_hash_is_the_one_programs_know() {
        assert_eq!(name_hash(b"lock desc 1"), 1_252_963_582);
        assert_eq!(name_hash(b""), 5_381);
    }

    #[test]
    fn an_id_is_the_hash_if_positive_and_free_else_counted_from_2() {
        let mut ids = Ids::new();
        let mut pick = |wished, name: &[u8]| {
            let id = ids.pick(wished, name).unwrap();
            ids.uses(id);
            id
        };
        let hash = name_hash(b"lock desc 1") as i32;
        assert_eq!(pick(None, b"lock desc 1"), hash);
        assert_eq!(pick(None, b"lock desc 1"), 2);
        assert_eq!(pick(Some(3), b"x"), 3);
        assert_eq!(pick(Some(hash), b"lock desc 1"), 4);
        let negative = b"buffer";
        assert!((name_hash(negative) as i32) < 0);
        assert_eq!(pick(None, negative), 5);
        assert_eq!(pick(Some(-1), negative), 6);
    }

    #[test]
    fn the_counter_starts_again_after_its_last_value() {
        let mut ids = Ids { next: i32::MAX, ..Ids::new() };
        assert_eq!(ids.pick(None, b"buffer"), Some(i32::MAX));
        ids.uses(i32::MAX);
        assert_eq!(ids.pick(None, b"buffer"), Some(2));
        let mut ids = Ids { next: i32::MAX, used: [(i32::MAX, i32::MAX)].into(), ..Ids::new() };
        assert_eq!(ids.pick(None, b"buffer"), Some(2));
        let mut all = Ids { used: [(1, i32::MAX)].into(), ..Ids::new() };
        assert_eq!(all.pick(None, b"a"), None);
    }

    /// Clients choose names, and so hashes: they may use up all numbers that the counter would try
    /// next.
    #[test]
    fn a_number_is_found_in_a_bounded_number_of_looks_whatever_numbers_are_used() {
        for step in [1, 2, 3] {
            let mut ids = Ids::new();
            let crafted = (2..).step_by(step).take(51_160);
            crafted.clone().for_each(|id| ids.uses(id));
            for _ in 0..100 {
                ids.looks.set(0);
                let id = ids.pick(Some(2), b"buffer").unwrap();
                ids.uses(id);
                assert!(ids.looks.get() <= 8, "{} looks", ids.looks.get());
                ids.looks.set(0);
                ids.frees(id);
                assert!(ids.looks.get() <= 1);
            }
            assert!(ids.are(crafted));
        }
    }

    /// The ids are the same as those of a simple model: a set of used numbers, and a counter that
    /// is tried until its number is free.
    #[test]
    fn the_numbers_are_those_of_a_plain_set() {
        let (mut ids, mut set, mut next) = (Ids::new(), BTreeSet::new(), Ids::FIRST);
        let mut draw = 1_u64;
        for round in 0..20_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wished = (draw >> 40) as i32 % 64 - 4;
            if draw >> 63 == 0 && set.remove(&wished) {
                ids.frees(wished);
            } else {
                let is_free = |id: &i32| *id > 0 && !set.contains(id);
                let id = Some(wished).filter(is_free).unwrap_or_else(|| {
                    while set.contains(&next) {
                        next += 1;
                    }
                    next += 1;
                    next - 1
                });
                assert_eq!(ids.pick(Some(wished), b"buffer"), Some(id), "round {round}");
                ids.uses(id);
                set.insert(id);
            }
            assert!(ids.are(set.iter().copied()), "round {round}");
        }
    }
}
