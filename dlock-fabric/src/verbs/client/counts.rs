// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of what an executor has posted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Operations that an executor has posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WordOpCounts {
    /// How many compare-and-swaps and fetch-and-adds were posted.
    pub atomics: u64,
    /// How many reads were posted.
    pub reads: u64,
    /// How many ledger writes were posted.
    pub notes: u64,
    /// Lists of verbs, each with one doorbell.
    pub doorbells: u64,
    /// How many messages were sent.
    pub sends: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    atomics: AtomicU64,
    reads: AtomicU64,
    notes: AtomicU64,
    doorbells: AtomicU64,
    /// Doorbells of one atomic each, which are counted only here.
    single_atomics: AtomicU64,
    /// Doorbells of one read each, which are counted only here.
    single_reads: AtomicU64,
    sends: AtomicU64,
}

impl Counts {
    #[inline]
    pub(super) fn add(&self, atomics: u64, reads: u64, notes: u64, doorbells: u64) {
        let pairs = [
            (&self.atomics, atomics),
            (&self.reads, reads),
            (&self.notes, notes),
            (&self.doorbells, doorbells),
        ];
        for (count, n) in pairs {
            if n > 0 {
                count.fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// Counts a list of a single atomic, or of a single read.
    #[inline]
    pub(super) fn single(&self, is_read: bool) {
        let count = if is_read { &self.single_reads } else { &self.single_atomics };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn message(&self) {
        self.sends.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> WordOpCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (single_atomics, single_reads) = (of(&self.single_atomics), of(&self.single_reads));
        WordOpCounts {
            atomics: of(&self.atomics) + single_atomics,
            reads: of(&self.reads) + single_reads,
            notes: of(&self.notes),
            doorbells: of(&self.doorbells) + single_atomics + single_reads,
            sends: of(&self.sends),
        }
    }
}
