// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device reads and writes: protection domains and registrations.
//!
//! ```text
//!   Context ◀── Pd ◀── Mr ──▶ Arc<dyn Region>     arrows: holds, so that drops are in order
//! ```
//! A device may write at any time. So registered memory is never borrowed as `&[u8]`: it is
//! accessed by [`SharedWord`] or copied through raw pointers.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use super::context::Context;
use super::error::{VerbsError, REGISTER};
use super::ffi::{self, ibv_mr, ibv_pd};
use crate::memory::atomic::{self, SharedWord};
use crate::os::fork::Owner;
use crate::os::sys::page_size;

/// A protection domain: a group of registrations and queue pairs. A key is valid only in its group.
#[derive(Debug)]
pub struct Pd {
    pub(super) raw: NonNull<ibv_pd>,
    pub(super) context: Arc<Context>,
}

// SAFETY: libibverbs permits every thread to use this handle.
unsafe impl Send for Pd {}
// SAFETY: libibverbs permits several threads to use this handle at once.
unsafe impl Sync for Pd {}

impl Pd {
    /// A new protection domain.
    ///
    /// # Errors
    /// `Call`; `Forked`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        let lib = context.here()?;
        // SAFETY: an open context.
        let raw = unsafe { (lib.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("make a protection domain"))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    /// The device of the domain.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if let Ok(lib) = self.context.here() {
            // SAFETY: made by `new`, freed once; what was made in it holds it.
            unsafe { (lib.dealloc_pd)(self.raw.as_ptr()) };
        }
    }
}

/// Memory that may be registered.
///
/// # Safety
/// `base..base + bytes` is mapped readable and writable, at the same address, as long as the
/// value lives; `base` is aligned to 8 bytes; and all references to it are [`SharedWord`]s or
/// raw pointers, since a device may write to it at any time. It is not inherited by forked
/// children (`MADV_DONTFORK`), or a child's write would take the pages away from the device.
pub unsafe trait Region: Send + Sync {
    /// The address of the first byte of the memory.
    fn base(&self) -> NonNull<u8>;
    /// The length of the memory in bytes.
    fn bytes(&self) -> usize;
}

/// What a registration permits peers to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Peers may do nothing: for scratch space and message buffers.
    Local,
    /// Read, and 64-bit atomics: slots.
    ReadAtomic,
    /// Read and write: a client's ledger, for that client.
    ReadWrite,
    /// Read, write and atomics. Slots are registered so only for the primary's own queue pair, in a
    /// protection domain without clients.
    Own,
}

impl Access {
    fn flags(self) -> libc::c_int {
        ffi::IBV_ACCESS_LOCAL_WRITE
            | match self {
                Self::Local => 0,
                Self::ReadAtomic => ffi::IBV_ACCESS_REMOTE_READ | ffi::IBV_ACCESS_REMOTE_ATOMIC,
                Self::ReadWrite => ffi::IBV_ACCESS_REMOTE_READ | ffi::IBV_ACCESS_REMOTE_WRITE,
                Self::Own => {
                    ffi::IBV_ACCESS_REMOTE_READ
                        | ffi::IBV_ACCESS_REMOTE_WRITE
                        | ffi::IBV_ACCESS_REMOTE_ATOMIC
                }
            }
    }
}

/// A registration; its keys are valid until it is dropped.
pub struct Mr {
    raw: NonNull<ibv_mr>,
    keys: (u32, u32),
    // dropped in this order, after the registration itself
    region: Option<Arc<dyn Region>>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs permits every thread to use this handle.
unsafe impl Send for Mr {}
// SAFETY: libibverbs permits several threads to use this handle at once.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers memory, and keeps it until the registration is dropped.
    ///
    /// # Errors
    /// `Call`, most often because locked memory is limited; `Forked`.
    ///
    /// # Latency
    /// About 4 µs per page on SoftRoCE.
    pub fn register(
        pd: &Arc<Pd>,
        region: Arc<dyn Region>,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let lib = pd.context.here()?;
        let (base, bytes) = (region.base(), region.bytes());
        // SAFETY: `Region` promises that the memory is mapped until the region is dropped, which
        // is after `dereg_mr`.
        let raw =
            unsafe { (lib.reg_mr)(pd.raw.as_ptr(), base.as_ptr().cast(), bytes, access.flags()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(REGISTER))?;
        // SAFETY: the library's structure, filled in.
        let keys = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Self { raw, keys, region: Some(region), pd: Arc::clone(pd) })
    }

    /// The description of the region with which a peer can operate on it.
    pub fn remote(&self) -> RemoteRegion {
        let region = self.region();
        RemoteRegion {
            base: region.base().as_ptr() as u64,
            bytes: region.bytes() as u64,
            rkey: self.keys.1,
        }
    }

    /// The registered memory.
    pub fn region(&self) -> &Arc<dyn Region> {
        // only `drop` takes it
        self.region.as_ref().expect("a registration has its memory")
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(super) fn lkey(&self) -> u32 {
        self.keys.0
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let Ok(lib) = self.pd.context.here() else { return };
        // SAFETY: made by `register`, freed once.
        let rc = unsafe { (lib.dereg_mr)(self.raw.as_ptr()) };
        if rc != 0 {
            // the device may still write to the memory, so it must not be reused
            std::mem::forget(self.region.take());
        }
    }
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr").field("remote", &self.remote()).finish_non_exhaustive()
    }
}

/// A peer's registration. The description comes from the network, and the device checks each
/// access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The address in the peer's process.
    pub base: u64,
    /// The length of the memory in bytes.
    pub bytes: u64,
    /// The key of the registration.
    pub rkey: u32,
}

impl RemoteRegion {
    /// The word at `index`, counted from the beginning; `None`: it lies outside the region.
    #[inline]
    pub fn word(&self, index: u64) -> Option<RemoteWord> {
        let end = index.checked_add(1)?.checked_mul(8)?;
        let addr = self.base.checked_add(end - 8)?;
        (end <= self.bytes).then_some(RemoteWord { addr, rkey: self.rkey })
    }
}

/// An 8-byte word of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWord {
    /// The address in the peer's process; a multiple of 8.
    pub addr: u64,
    /// The key of the word's registration.
    pub rkey: u32,
}

/// Zeroed pages to which devices may write. Forked children do not inherit them.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: accessed by `SharedWord` and raw pointers only.
unsafe impl Send for Pages {}
// SAFETY: several threads access the pages by `SharedWord` and raw pointers only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least this many bytes, in whole pages.
    ///
    /// # Errors
    /// `Call` if the system has no memory.
    pub fn new(bytes: usize) -> Result<Arc<Self>, VerbsError> {
        let failed = |source: Errno| VerbsError::call("map memory for a device", source.into());
        let bytes = bytes.max(1).checked_next_multiple_of(page_size());
        let bytes = bytes.ok_or(Errno::INVAL).map_err(failed)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses; nothing is replaced.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let base = NonNull::new(base.map_err(failed)?.cast::<u8>()).ok_or(Errno::NOMEM);
        let pages = Self { base: base.map_err(failed)?, bytes, owner: Owner::current() };
        // SAFETY: exactly the mapping made above. Sharing the pages with a child would, at the
        // first write of either, take them away from the device.
        unsafe { madvise(pages.base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
            .map_err(failed)?;
        Ok(Arc::new(pages))
    }

    /// All words of the pages.
    #[inline]
    pub fn words(&self) -> &[SharedWord] {
        // SAFETY: page-aligned, of this length, mapped while `self` lives (a forked child, which
        // has not got the pages, faults: its parent's executor refuses it before), and accessed
        // by `SharedWord` or raw pointers only.
        unsafe { atomic::words(self.base.as_ptr(), self.bytes / 8) }
    }

    /// Copies bytes into the pages; a device must not be writing there.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: within the mapping (asserted), which no Rust reference covers but those of
        // atomics; a `&[u8]` cannot overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len());
        }
    }

    /// Appends bytes of the pages to `into`; a device must have finished writing there.
    ///
    /// # Panics
    /// If the pages are shorter.
    pub(super) fn get(&self, at: usize, len: usize, into: &mut Vec<u8>) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes));
        into.reserve(len);
        // SAFETY: the source is within the mapping (asserted) and the target was reserved; they
        // cannot overlap. The length grows over what was just written.
        unsafe {
            let to = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), to, len);
            into.set_len(into.len() + len);
        }
    }
}

// SAFETY: mapped until drop; see `words`, `put` and `get` for all accesses.
unsafe impl Region for Pages {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // a forked child has no such mapping, and may have another one at this address
        if self.owner.is_here() {
            // SAFETY: exactly the mapping made in `new`; references to it borrow `self`.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_outside_a_remote_region_has_no_address() {
        let region = RemoteRegion { base: 4_096, bytes: 20, rkey: 7 };
        assert_eq!(region.word(1), Some(RemoteWord { addr: 4_104, rkey: 7 }));
        assert_eq!(region.word(2), None, "half a word");
        assert_eq!(region.word(u64::MAX), None);
        assert_eq!(region.word(u64::MAX / 8), None);
        let high = RemoteRegion { base: u64::MAX - 7, bytes: u64::MAX, rkey: 7 };
        assert_eq!(high.word(1), None, "the address wraps");
    }

    #[test]
    fn pages_are_zero_and_keep_what_is_put_there() {
        let pages = Pages::new(1).unwrap();
        assert_eq!(pages.words().len() * 8, page_size());
        assert!(pages.words().iter().all(|word| word.load() == 0));
        pages.put(3, b"abc");
        let mut copy = b"x".to_vec();
        pages.get(3, 3, &mut copy);
        assert_eq!(copy, b"xabc");
        assert!(Pages::new(usize::MAX).is_err());
    }

    #[test]
    fn slots_can_never_be_written_remotely() {
        assert_eq!(Access::ReadAtomic.flags() & ffi::IBV_ACCESS_REMOTE_WRITE, 0);
        assert_eq!(Access::ReadWrite.flags() & ffi::IBV_ACCESS_REMOTE_ATOMIC, 0);
        assert_eq!(Access::Local.flags(), ffi::IBV_ACCESS_LOCAL_WRITE);
    }
}
