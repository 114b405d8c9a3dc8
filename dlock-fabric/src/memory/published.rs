// SPDX-License-Identifier: MIT OR Apache-2.0
//! A few words that every operation reads and that rarely change. Readers write nothing, so that
//! threads do not take cache lines from each other.
//!
//! ```text
//!   version   even ──▶ odd ── the words ──▶ even      writers: one at a time
//!   a reader  reads it before and after; if it was odd, or has changed, it waits for the writer
//! ```
//! `tests/loom` has a copy, and checks its memory order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use crate::stream::inbox::lock;

/// Words that are read and replaced together.
#[derive(Debug)]
pub(crate) struct Published<const N: usize> {
    version: AtomicU64,
    words: [AtomicU64; N],
    writing: Mutex<()>,
}

impl<const N: usize> Published<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self { words: words.map(AtomicU64::new), ..Self::zero() }
    }

    /// All words 0.
    pub(crate) const fn zero() -> Self {
        let words = [const { AtomicU64::new(0) }; N];
        Self { version: AtomicU64::new(0), words, writing: Mutex::new(()) }
    }

    /// The words of one write, never a mix of two.
    #[inline]
    pub(crate) fn get(&self) -> [u64; N] {
        let version = self.version.load(Ordering::Acquire);
        let words = self.words();
        // A read that has seen a part of a later write also sees its version here.
        if version % 2 == 0 && self.version.load(Ordering::Relaxed) == version {
            return words;
        }
        self.get_in_turn()
    }

    #[cold]
    fn get_in_turn(&self) -> [u64; N] {
        let _writing = lock(&self.writing);
        self.words()
    }

    #[inline]
    fn words(&self) -> [u64; N] {
        std::array::from_fn(|index| self.words[index].load(Ordering::Acquire))
    }

    /// Replaces the words by the result of `change`, unless that is `None`. One thread at a time
    /// changes them.
    pub(crate) fn update<T>(&self, change: impl FnOnce([u64; N]) -> (Option<[u64; N]>, T)) -> T {
        let _writing = lock(&self.writing);
        let (new, result) = change(self.words());
        if let Some(new) = new {
            let version = self.version.load(Ordering::Relaxed);
            self.version.store(version.wrapping_add(1), Ordering::Relaxed);
            for (word, new) in self.words.iter().zip(new) {
                word.store(new, Ordering::Release);
            }
            self.version.store(version.wrapping_add(2), Ordering::Release);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written() {
        const ROUNDS: u64 = 100_000;
        let nth = |n: u64| [n, u64::MAX / 2 - n, u64::MAX - n, n ^ 5];
        let published = Published::new(nth(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < ROUNDS {
                        let seen = published.get();
                        assert_eq!(seen, nth(seen[0]));
                        assert!(seen[0] >= last);
                        last = seen[0];
                    }
                });
            }
            for n in 1..=ROUNDS {
                published.update(|_| (Some(nth(n)), ()));
            }
        });
    }

    #[test]
    fn words_that_are_not_replaced_stay() {
        let published = Published::new([1, 2]);
        assert_eq!(published.update(|words| (None, words)), [1, 2]);
        assert_eq!(published.get(), [1, 2]);
    }
}
