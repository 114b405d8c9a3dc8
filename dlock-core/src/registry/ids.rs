// SPDX-License-Identifier: MIT OR Apache-2.0
//! How locks and objects get their numbers: from their names where possible, so that programs
//! find the ids they know (the rule of the C API).

/// The hash of a name that ids are derived from: djb2, seed 5381, `h * 33 + byte` modulo 2^32.
pub fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h: u32, &byte| h.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// The numbers for names whose hash cannot be their id.
#[derive(Debug)]
pub(super) struct Ids {
    next: i32,
}

impl Ids {
    /// The first number handed out by the counter (C API).
    const FIRST: i32 = 2;

    pub fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// A positive number that is not used. `wished` is preferred to the hash of the name, and
    /// the hash to the counter. Of the counter's values at most `used_len` are used.
    pub fn pick(
        &mut self,
        wished: Option<i32>,
        name: &[u8],
        used_len: usize,
        is_used: impl Fn(i32) -> bool,
    ) -> Option<i32> {
        let named = [wished, Some(name_hash(name) as i32)];
        let named = named.into_iter().flatten().find(|&id| id > 0 && !is_used(id));
        named.or_else(|| (0..=used_len).map(|_| self.count()).find(|&id| !is_used(id)))
    }

    fn count(&mut self) -> i32 {
        let id = self.next;
        self.next = id.checked_add(1).unwrap_or(Self::FIRST);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_hash_is_the_one_programs_know() {
        assert_eq!(name_hash(b"lock desc 1"), 1_252_963_582);
        assert_eq!(name_hash(b""), 5_381);
    }

    #[test]
    fn an_id_is_the_hash_if_positive_and_free_else_counted_from_2() {
        let mut ids = Ids::new();
        let mut used = HashSet::new();
        let mut pick = |wished, name: &[u8]| {
            let id = ids.pick(wished, name, used.len(), |id| used.contains(&id)).unwrap();
            used.insert(id);
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
        let mut ids = Ids { next: i32::MAX };
        assert_eq!(ids.pick(None, b"abcdef", 2, |id| id > 100), Some(2));
        assert_eq!(Ids::new().pick(None, b"a", 3, |_| true), None);
    }
}
