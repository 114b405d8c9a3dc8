// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts verbs: a list of work requests, one doorbell, one signalled completion.
//!
//! ```text
//!   slot (request)    0      1      2      3      4      5      6      7     a power of two
//!                  settled ─▶ |Cas|Faa|Read*|Write|            posted ─▶     *: signalled
//!   scratch word      .      o      o      o      -      .      .      .     o: old value
//! ```
//! A poster has a fixed share of its queue pair's send queue, and two scratch words per slot. One
//! thread at a time uses it; any number of posters use a queue pair at once. Posting allocates
//! nothing, and holds no lock.
//!
//! Order: the requests of one queue pair reach the memory in order, with two exceptions, for which
//! a fence is set (the request waits until earlier reads and atomics have been answered): anything
//! that writes after a `Read`, and a `Write` after an atomic. Fences are set within a chain, not
//! across [`next_chain`](Batch::next_chain).
//!
//! SoftRoCE (Linux 6.1) differs from the standard in two ways, both seen with lost packets.
//! *Fences*: a fenced request that has to be sent again waits for ever if it, or an atomic behind
//! it, counts as under way. SoftRoCE executes all requests of a queue pair in order anyway, so it
//! gets no fences. The price: a read whose answer was lost is repeated, and may see effects of
//! later requests of its chain. *Values*: a write that is sent again is acknowledged together with
//! an atomic behind it that was executed; the atomic then completes with success but without its
//! value. So scratch words are set to a blank value before, and a word that is still blank has no
//! value.
//!
//! *Reads*: if both ends are on one host, SoftRoCE executes an atomic in the call that posts it,
//! but leaves a read to a softirq, for which a busy processor switches to another thread and back.
//! So there a read is posted as an addition of 0, unless a write is before it in its list: then its
//! value could be lost.

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
    /// Compare and swap. The value is the old word.
    Cas {
        /// The word.
        word: RemoteWord,
        /// The expected value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch and add. The value is the old word.
    Faa {
        /// The word.
        word: RemoteWord,
        /// The addend.
        add: u64,
    },
    /// Read. The value is the word.
    Read {
        /// The word.
        word: RemoteWord,
    },
    /// Read a word and the next one, in one request: two values.
    ReadPair {
        /// The first word.
        word: RemoteWord,
    },
    /// Write. The operation has no value: its scratch word has the value that is written.
    Write {
        /// The word.
        word: RemoteWord,
        /// The new value.
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

/// A word operation with a value, in the device's terms.
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

/// Whether a completion is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// A completion is requested for the list.
    Yes,
    /// No completion, except from time to time, so that slots become free.
    No,
}

/// A posted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedList {
    /// The poster's count after this list: its completion's [`WorkId::seq`].
    pub seq: u32,
    /// The number of verbs.
    pub len: u16,
    /// Whether a completion comes.
    pub signalled: bool,
}

/// Why nothing, or not everything, was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No slot is free before completions are polled. Nothing was posted.
    #[error("the send queue is full")]
    Full,
    /// A word is not aligned to 8 bytes. Nothing was posted.
    #[error("a word is not aligned to 8 bytes")]
    Misaligned,
    /// The queue pair is in error, and cannot be used any more.
    #[error("the queue pair has failed (error {code})")]
    Broken {
        /// The system's error number.
        code: i32,
        /// Whether the first verbs of the list may have taken effect, or may still do so.
        part: bool,
    },
}

/// A share of a send queue, used by one thread at a time.
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
    /// Whether reads are posted as additions of 0.
    reads_by_adding: bool,
    /// The value of a scratch word before the device writes it.
    blank: u64,
    requests: Box<[ibv_send_wr]>,
    /// Must not move, because `requests` point to it.
    scatter: Box<[ibv_sge]>,
    /// The words of all posters of the queue pair; those of this one begin at `first`, two for each
    /// slot.
    scratch: Arc<Pages>,
    first: usize,
    qp: Arc<Qp>,
}

// SAFETY: the raw pointers in `requests` lead to `scatter` and within `requests` themselves. Both
// are owned by this value and reached only through `&mut self`.
unsafe impl Send for Poster {}
// SAFETY: `&self` reads counters, and scratch words by atomics.
unsafe impl Sync for Poster {}

/// The largest share: `WorkId::len` has 16 bits.
const SLOTS_MAX: u32 = 1 << 15;

impl Poster {
    /// Takes a share of at least `slots` requests (rounded up to a power of two).
    ///
    /// # Errors
    /// `QueueTooSmall` if the queue pair has fewer left; `Call` if there is no memory.
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

    /// The number by which completions name this poster: [`WorkId::owner`].
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// How many slots are free now.
    pub fn free(&self) -> usize {
        (self.mask + 1 - self.under_way()) as usize
    }

    fn under_way(&self) -> u32 {
        self.posted.wrapping_sub(self.settled)
    }

    /// Sets the count to that after so many requests.
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

    /// Posts one operation with a completion, by the shortest path; returns the count after it.
    /// `behind`: earlier ones may be under way.
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
        // SAFETY: a list of one in `requests`; `may_take` has checked that it fits into the share.
        unsafe { self.submit(first) }?;
        (self.posted, self.signalled) = (seq, seq);
        Ok(seq)
    }

    /// Whether a word operation can be posted behind `len` others that are not posted yet.
    #[inline]
    fn may_take(&self, word: RemoteWord, len: u32) -> Result<(), PostError> {
        if self.broken {
            return Err(PostError::Broken { code: libc::ENOTCONN, part: false });
        }
        // a forked child has no scratch words
        if !self.qp.pd().context().owner.is_here() {
            return Err(PostError::Broken { code: libc::EPERM, part: false });
        }
        // devices differ in when they refuse such a word, and in the consequences
        if word.addr % 8 != 0 {
            return Err(PostError::Misaligned);
        }
        if self.under_way() + len > self.mask {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// The request with which a read is posted. `behind_write`: a write is before it in its list.
    #[inline]
    fn read(&self, word: RemoteWord, behind_write: bool) -> RemoteFetch {
        match self.reads_by_adding && !behind_write {
            true => RemoteFetch::faa(word, 0),
            false => RemoteFetch::read(word),
        }
    }

    /// Fills the request in a slot, and its scratch word. The doorbell orders these stores before
    /// the device's accesses.
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
    /// `first` begins a list of filled `requests`, in free slots.
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
        // accepted requests must not stay in the queue for ever
        let stopped = self.qp.to_error().is_ok();
        PostError::Broken { code: failed.code, part: failed.part || !stopped }
    }

    /// Records that all requests up to this count were executed; ignores an older count.
    #[inline]
    pub(in crate::verbs) fn settle_to(&mut self, seq: u32) {
        if seq.wrapping_sub(self.settled) <= self.under_way() {
            self.settled = seq;
        }
    }

    /// The value of the word operation with this count, unless its slot was used again. `None`: the
    /// device reported success, but wrote no value.
    #[inline]
    pub(in crate::verbs) fn value(&self, seq: u32) -> Option<u64> {
        self.scratch_value(seq, 0)
    }

    /// The second value of a `ReadPair`.
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

    /// Handles a completion of this poster, and gives access to the values of its list.
    ///
    /// # Panics
    /// If the completion is of another poster, or comes a second time: the polling thread sorts by
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
            // later requests come back flushed; no slot may be used again before
            self.broken = true;
        }
        Settled { poster: self, seq, len: if success { len } else { 0 }, success }
    }
}

/// A list under construction; nothing is posted before [`ring`](Self::ring).
#[derive(Debug)]
pub struct Batch<'a> {
    poster: &'a mut Poster,
    len: u32,
    order: Order,
    /// Whether a write is in the list.
    writes: bool,
}

/// Which operations may be under way before the next one of a chain.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    reads: bool,
    atomics: bool,
}

impl Order {
    /// Whether the next word operation needs a fence; after a fence nothing earlier is under way.
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

    /// Records that earlier reads or atomics may be under way, and must not be overtaken.
    #[inline]
    pub(in crate::verbs) fn behind(&mut self, reads: bool, atomics: bool) {
        self.order = Order { reads, atomics };
    }

    /// Begins another chain in the list: no fence between the two.
    #[inline]
    pub fn next_chain(&mut self) {
        self.order = Order::default();
    }

    /// The number of verbs in the list.
    pub fn verbs(&self) -> usize {
        self.len as usize
    }

    /// Posts the list with one doorbell. An empty list succeeds without a completion.
    ///
    /// # Errors
    /// `Broken`.
    #[inline]
    pub fn ring(self, notify: Notify) -> Result<PostedList, PostError> {
        let Self { poster, len, .. } = self;
        let end = poster.posted.wrapping_add(len);
        let unsignalled = end.wrapping_sub(poster.signalled);
        let signalled = len > 0 && (notify == Notify::Yes || unsignalled > poster.mask / 2);
        // a share is at most SLOTS_MAX
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
            // the last request stands for the list, whether it is signalled or comes as an error
            let id = WorkId { owner: poster.owner, len: if last { list.len } else { 0 }, seq };
            request.wr_id = id.bits();
            request.next = next;
            if last && signalled {
                request.send_flags |= ffi::IBV_SEND_SIGNALED;
            }
            next = request;
        }
        // SAFETY: a list in `requests`; `push` has checked that it fits into the share.
        unsafe { poster.submit(next) }?;
        poster.posted = end;
        if signalled {
            poster.signalled = end;
        }
        Ok(list)
    }
}

/// A completed list.
#[derive(Debug)]
pub struct Settled<'a> {
    poster: &'a Poster,
    seq: u32,
    len: u16,
    success: bool,
}

impl Settled<'_> {
    /// Whether every word operation of this and all earlier lists was executed. If not, the result
    /// of everything that was not settled before is unknown, and the queue pair is in error.
    pub fn success(&self) -> bool {
        self.success
    }

    /// The poster's count after the list: [`PostedList::seq`].
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// The values of the list, in order; none if the list failed, or if the device wrote no value
    /// for one of its verbs.
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
        // An upper-case letter is a fenced operation.
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
