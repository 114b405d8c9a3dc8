// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocator of slots in the lock memory.
//!
//! ```text
//!   Free ──give──▶ Occupied ──retire──▶ Retired ──free──▶ Free (at the back of the queue)
//!                               └ Gen changes at once    └ it cannot be touched any more
//! ```
//! The allocator gives out slots one after the other that lie far apart, because a NIC serialises
//! atomics whose addresses share bits 3–11, and a CPU serialises atomics on one cache line. A slot
//! is 32 bytes, so [`SPREAD`] adjacent slots have all values of these bits; so have any [`SPREAD`]
//! successive allocations from a fresh memory.

use std::collections::VecDeque;

use crate::ids::{Generation, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::planted::{self, Bug};

/// The number of slots in 4 KiB.
const SPREAD: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Occupied,
    Retired,
}

/// The allocator of slots.
#[derive(Debug)]
pub struct Slots {
    states: Vec<State>,
    /// How many slots have been given out at least once.
    fresh: u32,
    /// Slots that were used and freed, the oldest first.
    freed: VecDeque<Slot>,
    /// The last generation given to any slot. Generations are never reused.
    generation: u64,
    occupied: usize,
    retired: usize,
}

impl Slots {
    /// `total` slots, all free.
    ///
    /// # Panics
    /// If the words of the slots could not be numbered by 32 bits.
    pub fn new(total: usize) -> Self {
        assert!(total <= (u32::MAX / 4) as usize, "{total} slots");
        Self {
            states: vec![State::Free; total],
            fresh: 0,
            freed: VecDeque::new(),
            generation: 0,
            occupied: 0,
            retired: 0,
        }
    }

    /// The number of slots.
    pub fn total(&self) -> usize {
        self.states.len()
    }
    /// How many slots have an occupant.
    pub fn occupied(&self) -> usize {
        self.occupied
    }
    /// How many slots have no occupant and must not be reused yet.
    pub fn retired(&self) -> usize {
        self.retired
    }

    /// Gives a slot out, and sets its words: `w0`, an empty `w1`, the fence counter, a new
    /// generation. `None`: no slot is free.
    pub fn give(
        &mut self,
        mem: &mut dyn LockMemory,
        w0: u64,
        fence: u64,
    ) -> Option<(Slot, Generation)> {
        let total = self.states.len() as u32;
        let slot = if self.fresh < total {
            self.fresh += 1;
            place(self.fresh - 1, total)
        } else {
            self.freed.pop_front()?
        };
        self.change(slot, State::Free, State::Occupied);
        self.occupied += 1;
        self.generation += 1;
        let words =
            [(Word::W0, w0), (Word::W1, 0), (Word::Fence, fence), (Word::Gen, self.generation)];
        mem.set_all(&words.map(|(word, value)| (WordAddr::new(slot, word), value)));
        Some((slot, Generation(self.generation)))
    }

    /// Retires a slot whose occupant is destroyed: changes its generation.
    ///
    /// # Panics
    /// If the slot has no occupant.
    pub fn retire(&mut self, mem: &mut dyn LockMemory, slot: Slot) {
        self.change(slot, State::Occupied, State::Retired);
        self.occupied -= 1;
        self.retired += 1;
        if !planted::is(Bug::GenerationKept) {
            self.next_generation(mem, slot);
        }
    }

    /// Frees a retired slot: no client can touch the last occupant any more.
    ///
    /// # Panics
    /// If the slot is not retired.
    pub fn free(&mut self, slot: Slot) {
        self.change(slot, State::Retired, State::Free);
        self.retired -= 1;
        self.freed.push_back(slot);
    }

    fn next_generation(&mut self, mem: &mut dyn LockMemory, slot: Slot) -> Generation {
        self.generation += u64::from(!planted::is(Bug::GenerationReused) || self.generation == 0);
        mem.set(WordAddr::new(slot, Word::Gen), self.generation);
        Generation(self.generation)
    }

    fn change(&mut self, slot: Slot, from: State, to: State) {
        let state = &mut self.states[slot.0 as usize];
        assert_eq!(*state, from, "{slot:?} cannot become {to:?}");
        *state = to;
    }
}

/// The `i`-th slot of `total` to give out; `place` is a permutation. Whole pages come first: their
/// number of slots is a multiple of [`SPREAD`], so the stride keeps its remainders apart.
fn place(i: u32, total: u32) -> Slot {
    let pages = if total < 2 * SPREAD { total } else { total - total % SPREAD };
    let (base, i, len) = if i < pages { (0, i, pages) } else { (pages, i - pages, total - pages) };
    Slot(base + (u64::from(i) * u64::from(stride(len)) % u64::from(len)) as u32)
}

/// A number coprime to `len`, near the golden section of `len`, so that few multiples of it come
/// close to each other modulo `len`.
fn stride(len: u32) -> u32 {
    let golden = (u64::from(len) * 618_034 / 1_000_000).max(1) as u32;
    // One of the next few numbers is coprime; `len + 1` always is.
    (golden..=len + 1).find(|&k| gcd(k, len) == 1).unwrap_or(1)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SLOTS_MAX;
    use crate::registry::tests::Memory;
    use std::collections::HashSet;

    #[test]
    fn every_slot_is_given_once_whatever_their_number() {
        for total in (0..300).chain([511, 512, 1_000, 4_097]) {
            let (mut mem, mut slots) = (Memory::default(), Slots::new(total));
            let given: HashSet<_> =
                (0..total).map(|_| slots.give(&mut mem, 0, 0).unwrap().0).collect();
            assert_eq!(given.len(), total);
            assert!(given.iter().all(|slot| (slot.0 as usize) < total));
            assert!(slots.give(&mut mem, 0, 0).is_none());
        }
    }

    #[test]
    fn successive_slots_share_neither_cache_line_nor_address_bits_3_to_11() {
        for total in [SLOTS_MAX, 1_024, 10_000] {
            let (mut mem, mut slots) = (Memory::default(), Slots::new(total));
            let pages = total as u32 / SPREAD * SPREAD;
            let given: Vec<u32> =
                (0..pages).map(|_| slots.give(&mut mem, 0, 0).unwrap().0 .0).collect();
            // A window of one page; beyond a thousand slots only some of the windows.
            for window in given.windows(SPREAD as usize).step_by(pages as usize / 512) {
                let bits: HashSet<u32> =
                    window.iter().map(|slot| (slot * 32) >> 3 & 0x1ff).collect();
                assert_eq!(bits.len(), window.len());
                let apart = if total > 100_000 { window.len() } else { 16 };
                let lines: HashSet<u32> = window[..apart].iter().map(|slot| slot / 2).collect();
                assert_eq!(lines.len(), apart);
            }
        }
    }

    #[test]
    fn a_slot_is_reused_only_after_it_was_freed_and_the_oldest_first() {
        let (mut mem, mut slots) = (Memory::default(), Slots::new(3));
        let [a, b, c] = std::array::from_fn(|_| slots.give(&mut mem, 0, 0).unwrap().0);
        slots.retire(&mut mem, b);
        slots.retire(&mut mem, a);
        assert_eq!((slots.occupied(), slots.retired()), (1, 2));
        assert!(slots.give(&mut mem, 0, 0).is_none());
        slots.free(b);
        slots.free(a);
        slots.retire(&mut mem, c);
        slots.free(c);
        let again = std::array::from_fn(|_| slots.give(&mut mem, 0, 0).unwrap().0);
        assert_eq!([b, a, c], again);
    }

    #[test]
    fn a_new_occupant_finds_its_words_set_and_a_generation_nobody_saw() {
        let (mut mem, mut slots) = (Memory::default(), Slots::new(1));
        let mut seen = HashSet::new();
        for round in 0..10 {
            let (slot, generation) = slots.give(&mut mem, 7, round).unwrap();
            let words = [Word::W0, Word::W1, Word::Fence, Word::Gen].map(|w| mem.word(slot, w));
            assert_eq!(words, [7, 0, round, generation.0]);
            assert!(seen.insert(generation.0));
            for word in [Word::W0, Word::W1, Word::Fence] {
                mem.faa(WordAddr::new(slot, word), 1_000);
            }
            slots.retire(&mut mem, slot);
            assert!(seen.insert(mem.word(slot, Word::Gen)));
            slots.free(slot);
        }
    }

    #[test]
    #[should_panic(expected = "cannot become Free")]
    fn a_slot_is_not_freed_twice() {
        let (mut mem, mut slots) = (Memory::default(), Slots::new(2));
        let (slot, _) = slots.give(&mut mem, 0, 0).unwrap();
        slots.retire(&mut mem, slot);
        slots.free(slot);
        slots.free(slot);
    }
}
