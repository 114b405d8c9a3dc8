// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts verbs: a list of work requests, one doorbell, one signalled completion.
//!
//! ```text
//!   slot (request)    0      1      2      3      4      5      6      7     a power of two
//!                  settled ─▶ |Cas|Faa|Read*|Write|            posted ─▶     *: signalled
//!   scratch word      .      o      o      o      -      .      .      .     o: old value
//! ```
//! A poster has a fixed share of its queue pair's send queue, two scratch words per slot, and is
//! used by one thread at a time; any number of posters use a queue pair at once. Nothing is
//! allocated after it was made, and no lock is held while posting.
//!
//! Order: one queue pair's requests reach the memory in order, with two exceptions that a fence is
//! set for (it waits until the reads and atomics before it have been answered): anything that
//! writes after a `Read`, and a `Write` after an atomic. Fences are set within a chain, not across
//! [`next_chain`](Batch::next_chain).
//!
//! SoftRoCE (Linux 6.1) differs from the standard in two ways, both seen with lost packets.
//! *Fences*: a fenced request that has to be sent again while an atomic behind it, or it itself,
//! counts as under way, waits for that for ever. It executes all requests of a queue pair in order
//! anyway, so it gets no fences. What is lost: a read whose answer was lost is read again, and may
//! then see what stands behind it in its chain. *Values*: a write that is sent again is
//! acknowledged together with an atomic behind it that was executed; the atomic then completes with
//! success and without its value. So scratch words are blanked before, and a value that is blank
//! still is none.
//!
//! *Reads*: where both ends are on one host, SoftRoCE executes an atomic in the call that posts it,
//! and puts a read off to a softirq, for which a busy processor switches to another thread and
//! back. So a read is posted there as an addition of nothing, unless a write stands before it in
//! its list: with that the addition's value could be lost, as above.

use std::collections::hash_map::RandomState;
use std::ffi::c_uint;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use super::completion::{Completion, WorkId};
use super::error::VerbsError;
use super::ffi::{self, ibv_send_wr, ibv_sge};
use super::memory::{Pages, RemoteWord};
use super::qp::{PostFailed, Qp, Share};

/// A word operation on a word of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOp {
    /// Compare and swap; its value is the old word.
    Cas {
        /// The word.
        word: RemoteWord,
        /// What it must be.
        expect: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Fetch and add; its value is the old word.
    Faa {
        /// The word.
        word: RemoteWord,
        /// What is added.
        add: u64,
    },
    /// Read; its value is the word.
    Read {
        /// The word.
        word: RemoteWord,
    },
    /// Read of a word and the one after it, in one request: two values.
    ReadPair {
        /// The first word.
        word: RemoteWord,
    },
    /// Write; it has no value (what is found in its place is what was written).
    Write {
        /// The word.
        word: RemoteWord,
        /// What it becomes.
        value: u64,
    },
}

impl RemoteOp {
    fn word(&self) -> RemoteWord {
        match *self {
            Self::Cas { word, .. }
            | Self::Faa { word, .. }
            | Self::Read { word }
            | Self::ReadPair { word }
            | Self::Write { word, .. } => word,
        }
    }
}

/// A word operation that brings a value, as the device wants it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct RemoteFetch {
    word: RemoteWord,
    opcode: c_uint,
    compare_add: u64,
    swap: u64,
}

impl RemoteFetch {
    #[inline]
    pub(in crate::verbs) fn cas(word: RemoteWord, expect: u64, swap: u64) -> Self {
        Self { word, opcode: ffi::IBV_WR_ATOMIC_CMP_AND_SWP, compare_add: expect, swap }
    }

    #[inline]
    pub(in crate::verbs) fn faa(word: RemoteWord, add: u64) -> Self {
        Self { word, opcode: ffi::IBV_WR_ATOMIC_FETCH_AND_ADD, compare_add: add, swap: 0 }
    }

    #[inline]
    pub(in crate::verbs) fn read(word: RemoteWord) -> Self {
        Self { word, opcode: ffi::IBV_WR_RDMA_READ, compare_add: 0, swap: 0 }
    }

    #[inline]
    pub(in crate::verbs) fn is_read(&self) -> bool {
        self.opcode == ffi::IBV_WR_RDMA_READ
    }
}

/// Whether a completion is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// One for the list.
    Yes,
    /// None; but from time to time one comes, so that slots become free again.
    No,
}

/// A list that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedList {
    /// The poster's count with this list: its completion's [`WorkId::seq`].
    pub seq: u32,
    /// Verbs in it.
    pub len: u16,
    /// Whether a completion comes.
    pub signalled: bool,
}

/// Why nothing, or not all, was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No slot is free until completions were polled. Nothing was posted.
    #[error("the send queue is full")]
    Full,
    /// A word is not aligned to 8 bytes. Nothing was posted.
    #[error("a word is not aligned to 8 bytes")]
    Misaligned,
    /// The queue pair is in error, and is of no use any more.
    #[error("the queue pair has failed (error {code})")]
    Broken {
        /// The system's number.
        code: i32,
        /// Whether a front part of the list may have taken, or may yet take effect.
        part: bool,
    },
}

/// One thread's share of a send queue.
#[derive(Debug)]
pub struct Poster {
    owner: u16,
    mask: u32,
    posted: u32,
    settled: u32,
    /// `posted` after the last signalled request.
    signalled: u32,
    broken: bool,
    inline: u32,
    fence: u32,
    /// Reads are posted as additions of nothing.
    reads_by_adding: bool,
    /// What stands in a scratch word until the device puts a value there.
    blank: u64,
    requests: Box<[ibv_send_wr]>,
    /// Kept at its place: `requests` point to it.
    scatter: Box<[ibv_sge]>,
    /// Of all posters of the queue pair; this one's words begin at `first`, two for each slot.
    scratch: Arc<Pages>,
    first: usize,
    qp: Arc<Qp>,
}

// SAFETY: the raw pointers in `requests` lead to `scatter` and within `requests` themselves,
// both owned by this value and reached through `&mut self` alone.
unsafe impl Send for Poster {}
// SAFETY: `&self` reads counters, and scratch words by atomics.
unsafe impl Sync for Poster {}

/// Largest share: `WorkId::len` has 16 bits.
const SLOTS_MAX: u32 = 1 << 15;

impl Poster {
    /// Takes a share of at least `slots` requests (rounded up to a power of two).
    ///
    /// # Errors
    /// `QueueTooSmall` if the queue pair has not as many left; `Call` if memory is short.
    pub fn new(qp: &Arc<Qp>, slots: u32) -> Result<Self, VerbsError> {
        let small = VerbsError::QueueTooSmall { wanted: slots, has: SLOTS_MAX };
        let slots = slots.max(2).checked_next_power_of_two().filter(|&n| n <= SLOTS_MAX);
        let slots = slots.ok_or(small)?;
        let (scratch, lkey) = qp.scratch()?;
        let Share { owner, first } = qp.take_share(slots)?;
        let first = 2 * first as usize;
        let addr = |word| std::ptr::from_ref(word) as u64;
        let words = scratch.words()[first..][..2 * slots as usize].iter().step_by(2);
        let mut scatter: Box<[ibv_sge]> =
            words.map(|word| ibv_sge { addr: addr(word), length: 8, lkey }).collect();
        let requests = scatter
            .iter_mut()
            .map(|sge| ibv_send_wr { sg_list: sge, num_sge: 1, ..ibv_send_wr::empty() })
            .collect();
        let inline = if qp.inline_bytes() >= 8 { ffi::IBV_SEND_INLINE } else { 0 };
        let softroce = qp.pd().context().device().is_softroce;
        let fence = if softroce { 0 } else { ffi::IBV_SEND_FENCE };
        Ok(Self {
            owner,
            mask: slots - 1,
            posted: 0,
            settled: 0,
            signalled: 0,
            broken: false,
            inline,
            fence,
            reads_by_adding: softroce,
            blank: RandomState::new().build_hasher().finish(),
            requests,
            scatter,
            scratch,
            first,
            qp: Arc::clone(qp),
        })
    }

    /// Its number in its completions.
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Slots that are free now.
    pub fn free(&self) -> usize {
        (self.mask + 1 - self.under_way()) as usize
    }

    fn under_way(&self) -> u32 {
        self.posted.wrapping_sub(self.settled)
    }

    /// Counts on from here, as after that many requests.
    #[cfg(test)]
    pub(in crate::verbs) fn start_at(&mut self, seq: u32) {
        assert_eq!(self.posted, 0);
        (self.posted, self.settled, self.signalled) = (seq, seq, seq);
    }

    /// Begins a list.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { poster: self, len: 0, order: Order::default(), writes: false }
    }

    /// Posts one chain.
    ///
    /// # Errors
    /// As [`Batch::push`] and [`Batch::ring`].
    #[inline]
    pub fn post(&mut self, chain: &[RemoteOp], notify: Notify) -> Result<PostedList, PostError> {
        let mut batch = self.batch();
        for word_op in chain {
            batch.push(word_op)?;
        }
        batch.ring(notify)
    }

    /// Posts one of these with a completion, `behind` others that may be under way: the shortest
    /// way there is, and otherwise as [`post`](Self::post). The count with it.
    #[inline]
    pub(in crate::verbs) fn post_fetch(
        &mut self,
        fetch: &RemoteFetch,
        behind: bool,
    ) -> Result<u32, PostError> {
        self.may_take(fetch.word, 0)?;
        let (at, seq) = ((self.posted & self.mask) as usize, self.posted.wrapping_add(1));
        let flags = ffi::IBV_SEND_SIGNALED | if behind { self.fence } else { 0 };
        let wr_id = WorkId { owner: self.owner, len: 1, seq }.bits();
        let request = match fetch.is_read() {
            true => self.fill_fetch(at, &self.read(fetch.word, false)),
            false => self.fill_fetch(at, fetch),
        };
        (request.send_flags, request.wr_id, request.next) = (flags, wr_id, std::ptr::null_mut());
        let first: *mut _ = request;
        // SAFETY: a list of one in `requests`; `may_take` saw to it that it fits into the share.
        unsafe { self.submit(first) }?;
        (self.posted, self.signalled) = (seq, seq);
        Ok(seq)
    }

    /// Whether a word operation can be posted behind so many that are not posted yet.
    #[inline]
    fn may_take(&self, word: RemoteWord, len: u32) -> Result<(), PostError> {
        if self.broken {
            return Err(PostError::Broken { code: libc::ENOTCONN, part: false });
        }
        // A forked child has no scratch words.
        if !self.qp.pd().context().owner.is_here() {
            return Err(PostError::Broken { code: libc::EPERM, part: false });
        }
        // Devices differ in when they refuse that, and with what consequences.
        if word.addr % 8 != 0 {
            return Err(PostError::Misaligned);
        }
        if self.under_way() + len > self.mask {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// How a read is posted; `behind_write`: a write stands before it in its list.
    #[inline]
    fn read(&self, word: RemoteWord, behind_write: bool) -> RemoteFetch {
        match self.reads_by_adding && !behind_write {
            true => RemoteFetch::faa(word, 0),
            false => RemoteFetch::read(word),
        }
    }

    /// Makes the request in a slot, and its scratch word. What the device does there comes after
    /// the doorbell, which orders the CPU's stores before it.
    fn fill(&mut self, at: usize, word_op: &RemoteOp, flags: c_uint, behind_write: bool) {
        let RemoteWord { addr: remote_addr, rkey } = word_op.word();
        match *word_op {
            RemoteOp::Cas { word, expect, swap } => {
                self.fill_fetch(at, &RemoteFetch::cas(word, expect, swap));
            }
            RemoteOp::Faa { word, add } => {
                self.fill_fetch(at, &RemoteFetch::faa(word, add));
            }
            RemoteOp::Read { word } => {
                self.fill_fetch(at, &self.read(word, behind_write));
            }
            RemoteOp::ReadPair { word } => {
                self.scratch.words()[self.first + 2 * at + 1].store_relaxed(self.blank);
                self.fill_fetch(at, &RemoteFetch::read(word));
                self.scatter[at].length = 16;
            }
            RemoteOp::Write { value, .. } => {
                self.requests[at].opcode = ffi::IBV_WR_RDMA_WRITE;
                self.requests[at].wr.rdma = ffi::rdma { remote_addr, rkey };
                self.scratch.words()[self.first + 2 * at].store_relaxed(value);
                self.scatter[at].length = 8;
            }
        }
        let inline = if matches!(word_op, RemoteOp::Write { .. }) { self.inline } else { 0 };
        self.requests[at].send_flags = flags | inline;
    }

    #[inline]
    fn fill_fetch(&mut self, at: usize, fetch: &RemoteFetch) -> &mut ibv_send_wr {
        let RemoteFetch { word, opcode, compare_add, swap } = *fetch;
        let RemoteWord { addr: remote_addr, rkey } = word;
        self.scratch.words()[self.first + 2 * at].store_relaxed(self.blank);
        self.scatter[at].length = 8;
        let request = &mut self.requests[at];
        request.opcode = opcode;
        match opcode {
            ffi::IBV_WR_RDMA_READ => request.wr.rdma = ffi::rdma { remote_addr, rkey },
            _ => request.wr.atomic = ffi::atomic { remote_addr, compare_add, swap, rkey },
        }
        request
    }

    /// Rings the doorbell for a list.
    ///
    /// # Safety
    /// It is one of filled `requests`, in slots that are free.
    #[inline]
    unsafe fn submit(&mut self, first: *mut ibv_send_wr) -> Result<(), PostError> {
        // SAFETY: as the caller promises; the scatter entries lead to scratch words of a
        // registration that the queue pair keeps.
        match unsafe { self.qp.post_send(first) } {
            Ok(()) => Ok(()),
            Err(failed) => Err(self.failed(failed)),
        }
    }

    #[cold]
    fn failed(&mut self, failed: PostFailed) -> PostError {
        self.broken = true;
        // What was taken of the list must not hang in the queue without an end.
        let stopped = self.qp.to_error().is_ok();
        PostError::Broken { code: failed.code, part: failed.part || !stopped }
    }

    /// Takes note that everything up to this count was executed, as [`settle`](Self::settle) does
    /// of one completion; older news than what is known already is ignored.
    #[inline]
    pub(in crate::verbs) fn settle_to(&mut self, seq: u32) {
        if seq.wrapping_sub(self.settled) <= self.under_way() {
            self.settled = seq;
        }
    }

    /// The value of the word operation with this count, if its slot was not used again since.
    /// `None`: the device said that it was executed, but brought no value.
    #[inline]
    pub(in crate::verbs) fn value(&self, seq: u32) -> Option<u64> {
        self.scratch_value(seq, 0)
    }

    /// The second value of a pair that was read.
    #[inline]
    pub(in crate::verbs) fn second_value(&self, seq: u32) -> Option<u64> {
        self.scratch_value(seq, 1)
    }

    #[inline]
    fn scratch_value(&self, seq: u32, which: usize) -> Option<u64> {
        let at = (seq.wrapping_sub(1) & self.mask) as usize;
        let value = self.scratch.words()[self.first + 2 * at + which].load();
        (value != self.blank).then_some(value)
    }

    /// Takes note of a completion of this poster, and gives access to the values of its list.
    ///
    /// # Panics
    /// If it is of another poster, or comes a second time: the thread that polls sorts by
    /// [`owner`](Self::owner), and hands each completion on once.
    #[inline]
    pub fn settle(&mut self, completion: &Completion) -> Settled<'_> {
        let WorkId { owner, len, seq } = completion.work();
        let progress = seq.wrapping_sub(self.settled);
        assert!(owner == self.owner && progress <= self.under_way(), "not of this poster");
        let success = completion.is_success();
        if success {
            assert!(progress > 0 && u32::from(len) <= progress, "settled already");
            self.settled = seq;
        } else {
            // Those behind come back flushed; none of them may be posted over before.
            self.broken = true;
        }
        Settled { poster: self, seq, len: if success { len } else { 0 }, success }
    }
}

/// A list being made; nothing is posted before [`ring`](Self::ring).
#[derive(Debug)]
pub struct Batch<'a> {
    poster: &'a mut Poster,
    len: u32,
    order: Order,
    /// A write is in it.
    writes: bool,
}

/// What of a chain may still be under way in front of its next word operation.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    reads: bool,
    atomics: bool,
}

impl Order {
    /// Whether the next word operation needs a fence, after which nothing before it is under way.
    #[inline]
    fn fence(&mut self, word_op: &RemoteOp) -> bool {
        let (fence, after) = match word_op {
            RemoteOp::Read { .. } | RemoteOp::ReadPair { .. } => {
                (false, Self { reads: true, atomics: false })
            }
            RemoteOp::Cas { .. } | RemoteOp::Faa { .. } => {
                (self.reads, Self { reads: false, atomics: true })
            }
            RemoteOp::Write { .. } => (self.reads || self.atomics, Self::default()),
        };
        let before = if fence { Self::default() } else { *self };
        *self =
            Self { reads: before.reads || after.reads, atomics: before.atomics || after.atomics };
        fence
    }
}

impl Batch<'_> {
    /// Adds a word operation to the chain.
    ///
    /// # Errors
    /// `Full`, `Misaligned`, `Broken`.
    #[inline]
    pub fn push(&mut self, word_op: &RemoteOp) -> Result<(), PostError> {
        let poster = &mut *self.poster;
        poster.may_take(word_op.word(), self.len)?;
        let fence = if self.order.fence(word_op) { poster.fence } else { 0 };
        let at = poster.posted.wrapping_add(self.len) & poster.mask;
        poster.fill(at as usize, word_op, fence, self.writes);
        self.writes |= matches!(word_op, RemoteOp::Write { .. });
        self.len += 1;
        Ok(())
    }

    /// Reads or atomics that were posted before may still be under way, and must not be overtaken.
    #[inline]
    pub(in crate::verbs) fn behind(&mut self, reads: bool, atomics: bool) {
        self.order = Order { reads, atomics };
    }

    /// The verbs from here on belong to another chain: no fence between the two.
    #[inline]
    pub fn next_chain(&mut self) {
        self.order = Order::default();
    }

    /// Verbs in the list.
    pub fn verbs(&self) -> usize {
        self.len as usize
    }

    /// Posts the list with one doorbell. An empty list is posted at once, without a completion.
    ///
    /// # Errors
    /// `Broken`.
    #[inline]
    pub fn ring(self, notify: Notify) -> Result<PostedList, PostError> {
        let Self { poster, len, .. } = self;
        let end = poster.posted.wrapping_add(len);
        let unsignalled = end.wrapping_sub(poster.signalled);
        let signalled = len > 0 && (notify == Notify::Yes || unsignalled > poster.mask / 2);
        // A share is at most SLOTS_MAX.
        let list = PostedList { seq: end, len: len as u16, signalled };
        if len == 0 {
            return Ok(list);
        }
        let mut next = std::ptr::null_mut();
        for back in 0..len {
            let seq = end.wrapping_sub(back);
            let at = (seq.wrapping_sub(1) & poster.mask) as usize;
            let request = &mut poster.requests[at];
            let last = back == 0;
            // The last one stands for the list, whether it is signalled or comes as an error.
            let id = WorkId { owner: poster.owner, len: if last { list.len } else { 0 }, seq };
            request.wr_id = id.bits();
            request.next = next;
            if last && signalled {
                request.send_flags |= ffi::IBV_SEND_SIGNALED;
            }
            next = request;
        }
        // SAFETY: a list in `requests`; `push` saw to it that it fits into the share.
        unsafe { poster.submit(next) }?;
        poster.posted = end;
        if signalled {
            poster.signalled = end;
        }
        Ok(list)
    }
}

/// A list that completed.
#[derive(Debug)]
pub struct Settled<'a> {
    poster: &'a Poster,
    seq: u32,
    len: u16,
    success: bool,
}

impl Settled<'_> {
    /// Whether every word operation of it, and of all lists before it, was executed. If not,
    /// nothing is known of what was not settled before, and the queue pair is in error.
    pub fn success(&self) -> bool {
        self.success
    }

    /// The poster's count: [`PostedList::seq`] of the list.
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// The values of its verbs, in order; none if it failed, or if the device brought none for
    /// one of them.
    pub fn values(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let first = self.seq.wrapping_sub(u32::from(self.len));
        let value = move |i| self.poster.value(first.wrapping_add(i + 1));
        let len = u32::from(self.len);
        let len = if (0..len).all(|i| value(i).is_some()) { len } else { 0 };
        (0..len as usize).map(move |i| value(i as u32).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_writes_overtakes_a_read_and_no_write_an_atomic() {
        let word = RemoteWord { addr: 0, rkey: 0 };
        let verbs = [
            ('r', RemoteOp::Read { word }),
            ('c', RemoteOp::Cas { word, expect: 0, swap: 0 }),
            ('f', RemoteOp::Faa { word, add: 0 }),
            ('w', RemoteOp::Write { word, value: 0 }),
        ];
        // Upper case: fenced.
        for fenced in ["wf", "cfr", "rC", "rF", "rW", "cW", "fW", "rCW", "wwfWwf", "crFW", "rCrF"] {
            let mut order = Order::default();
            let chain = fenced.chars().map(|c| {
                let found = verbs.iter().find(|(name, _)| *name == c.to_ascii_lowercase());
                if order.fence(&found.unwrap().1) {
                    c.to_ascii_uppercase()
                } else {
                    c.to_ascii_lowercase()
                }
            });
            assert_eq!(chain.collect::<String>(), fenced);
        }
    }
}
