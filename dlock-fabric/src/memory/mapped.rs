// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory and ledgers as memory files that processes map.
//!
//! ```text
//!   header  | magic, slots, gate, owner mutex |               written by the primary alone
//!   slots   | slot 0 | slot 1 | …  32 bytes each              written by all
//!   ledger  | magic, entries, gate, detaches | counts    | entry 0 | …
//!             64 bytes                         128 bytes   8 bytes each
//!             written by one client, and the gate by the primary
//! ```
//! Each is a file of its own. All are sealed against shrinking and growing, so that no access can
//! fault. The header is also sealed against writing once the primary has mapped it: the kernel then
//! refuses every later mapping, call or change of protection that would make it writable, in every
//! process. Of words that clients can write the primary reads only those it checks; its mutex, with
//! the pointers of the C library, lies in the header. Forked children do not inherit the mappings,
//! so all accesses of a process end with it.
//!
//! A *gate* is 0 while chains may be executed, else the number of the status with which they are
//! refused. It stops clients that check it; it is no fence for a client that has checked it before.

use std::ffi::{c_void, CStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use dlock_core::counters::{Counter, Told, TOLD_MAX};
use dlock_core::ids::Handle;
use dlock_core::memory::word_op::WordAddr;
use dlock_core::wire::codec::{status_from_wire, status_to_wire};
use dlock_core::wire::status::Status;
use rustix::fs::{
    fcntl_add_seals, fcntl_get_seals, flock, fstat, ftruncate, memfd_create, FlockOperation,
    MemfdFlags, SealFlags,
};
use rustix::io::Errno;
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use crate::error::FabricError;
use crate::memory::atomic::{self, SharedWord};
use crate::memory::owner_mutex::{self, OWNER_WORD};
use crate::os::fork::Owner;
use crate::os::sys::named;

/// Bytes of the header file: a page on most machines.
const HEADER_BYTES: usize = 4 * 1024;
/// Words at the front of the header and of a ledger: a cache line.
const HEADER_WORDS: usize = 8;
/// "dlkslot" and the version of the layout. Version 2 has the header in a file of its own, and the
/// offset of the server clock counts from CLOCK_BOOTTIME.
const SLOT_MAGIC: u64 = u64::from_le_bytes(*b"dlkslot\x02");
/// "dlkledg" and the version of the layout. Version 2 has counts.
const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"dlkledg\x02");
/// Words of a ledger in front of its entries.
const LEDGER_WORDS: usize = HEADER_WORDS + TOLD_MAX;
/// Slots that a `WordAddr` can name.
pub const SLOTS_LIMIT: u32 = u32::MAX / 4;

/// The header words of both kinds of memory.
#[derive(Clone, Copy)]
enum HeaderWord {
    Magic = 0,
    Len = 1,
    Gate = 2,
    Detaches = 3,
}

/// The words of locks and objects: one memory per primary and epoch.
#[derive(Debug)]
pub struct SlotMemory {
    header: Mapping,
    map: Mapping,
    /// The files; only in the primary.
    files: Option<SlotFiles>,
    slots: u32,
}

#[derive(Debug)]
struct SlotFiles {
    header: OwnedFd,
    slots: OwnedFd,
}

impl SlotMemory {
    /// New memory of this many slots, all zero.
    ///
    /// # Errors
    /// `TooManySlots`; `Memory` if the system has none.
    pub fn create(slots: u32) -> Result<Self, FabricError> {
        let bytes = Self::bytes(slots)?;
        let file = memory_file(c"dlock-slots", bytes)?;
        fcntl_add_seals(&file, SEALS).map_err(not_sealed(bytes))?;
        let map = Mapping::of_file(file.as_fd(), bytes)?;
        let (header_file, header) = written_here_alone(c"dlock-header", HEADER_BYTES)?;
        let files = Some(SlotFiles { header: header_file, slots: file });
        let memory = Self { header, map, files, slots };
        memory.header(HeaderWord::Magic).store(SLOT_MAGIC);
        memory.header(HeaderWord::Len).store(u64::from(slots));
        Ok(memory)
    }

    /// Maps the header and slots whose descriptors a primary sent, with the announced size.
    ///
    /// # Errors
    /// `MemoryRefused` if it is not sealed memory of that size; `Memory` if it cannot be mapped.
    pub fn open(header: OwnedFd, slots_file: OwnedFd, slots: u32) -> Result<Self, FabricError> {
        let bytes = Self::bytes(slots)?;
        check_file(header.as_fd(), HEADER_BYTES)?;
        check_file(slots_file.as_fd(), bytes)?;
        let header = Mapping::of_file_to_read(header.as_fd(), HEADER_BYTES)?;
        let map = Mapping::of_file(slots_file.as_fd(), bytes)?;
        let memory = Self { header, map, files: None, slots };
        let header = [HeaderWord::Magic, HeaderWord::Len].map(|word| memory.header(word).load());
        if header != [SLOT_MAGIC, u64::from(slots)] {
            return Err(FabricError::MemoryRefused("its slots have another layout"));
        }
        Ok(memory)
    }

    fn bytes(slots: u32) -> Result<usize, FabricError> {
        if slots > SLOTS_LIMIT {
            return Err(FabricError::TooManySlots { slots, max: SLOTS_LIMIT });
        }
        let bytes = (slots as usize).checked_mul(32);
        // An empty file cannot be mapped.
        let bytes = bytes.map(|bytes| bytes.max(HEADER_BYTES));
        bytes.ok_or(FabricError::TooManySlots { slots, max: SLOTS_LIMIT })
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The descriptors to hand to clients, of the header and of the slots; `None` in a client.
    pub fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.files.as_ref().map(|files| [files.header.as_fd(), files.slots.as_fd()])
    }

    /// The word at an address; `None` if it lies outside the memory.
    #[inline]
    pub fn word(&self, addr: WordAddr) -> Option<&SharedWord> {
        let words = self.slots as usize * 4;
        self.map.words(0, words).get(addr.index() as usize)
    }

    /// The status with which chains of all clients of this memory are refused now.
    #[inline]
    pub fn gate(&self) -> Option<Status> {
        let header = self.header.words(0, HEADER_WORDS);
        gate_of(&header[HeaderWord::Gate as usize])
            .or_else(|| owner_mutex::refusal(header[OWNER_WORD].load()))
    }

    /// The address of the mutex of [`owner_mutex`]. Only for the primary.
    pub(crate) fn owner_place(&self) -> *mut u8 {
        debug_assert!(self.files.is_some(), "clients cannot write the header");
        self.header.words(OWNER_WORD, 1).as_ptr().cast_mut().cast()
    }

    /// Refuses all chains with this status from now on, or permits them. Only for the primary.
    pub(crate) fn set_gate(&self, status: Option<Status>) {
        debug_assert!(self.files.is_some(), "clients cannot write the header");
        self.header(HeaderWord::Gate).store(gate_word(status));
    }

    #[inline]
    fn header(&self, word: HeaderWord) -> &SharedWord {
        &self.header.words(0, HEADER_WORDS)[word as usize]
    }
}

/// A client's ledger; written by that client, read by the primary.
#[derive(Debug)]
pub struct LedgerMemory {
    map: Mapping,
    fd: Option<OwnedFd>,
    entries: u32,
}

impl LedgerMemory {
    /// A new, empty ledger that can be handed to a client. Its pages are allocated when written.
    ///
    /// # Errors
    /// `Memory` if the system has none.
    pub fn create(entries: u32) -> Result<Self, FabricError> {
        let bytes = Self::bytes(entries);
        let fd = memory_file(c"dlock-ledger", bytes)?;
        fcntl_add_seals(&fd, SEALS).map_err(not_sealed(bytes))?;
        let map = Mapping::of_file(fd.as_fd(), bytes)?;
        Ok(Self { map, fd: Some(fd), entries }.with_header())
    }

    /// A new, empty ledger of a client that does not map it; needs no descriptor.
    ///
    /// # Errors
    /// `Memory` if the system has none.
    pub fn create_private(entries: u32) -> Result<Self, FabricError> {
        let map = Mapping::anonymous(Self::bytes(entries))?;
        Ok(Self { map, fd: None, entries }.with_header())
    }

    /// Maps the ledger whose descriptor a primary sent, with the announced size.
    ///
    /// # Errors
    /// `MemoryRefused` if it is not sealed memory of that size; `Memory` if it cannot be mapped.
    pub fn open(fd: OwnedFd, entries: u32) -> Result<Self, FabricError> {
        let bytes = Self::bytes(entries);
        check_file(fd.as_fd(), bytes)?;
        let map = Mapping::of_file(fd.as_fd(), bytes)?;
        let memory = Self { map, fd: None, entries };
        let header = [HeaderWord::Magic, HeaderWord::Len].map(|word| memory.header(word).load());
        if header != [LEDGER_MAGIC, u64::from(entries)] {
            return Err(FabricError::MemoryRefused("its ledger has another layout"));
        }
        Ok(memory)
    }

    fn with_header(self) -> Self {
        self.header(HeaderWord::Magic).store(LEDGER_MAGIC);
        self.header(HeaderWord::Len).store(u64::from(self.entries));
        self
    }

    fn bytes(entries: u32) -> usize {
        (LEDGER_WORDS + entries as usize) * 8
    }

    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The descriptor to hand to the client; `None` in the client, and for private ledgers.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// A descriptor for the client. The file is opened anew and locked (`flock`). The lock belongs
    /// to this opening, and lasts while a process has the descriptor open or has mapped the memory
    /// by it; when a process executes another program, both end.
    ///
    /// # Errors
    /// An error of the system; without `/proc` the file cannot be opened anew.
    pub(crate) fn lend(&self) -> io::Result<OwnedFd> {
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(file.into())
    }

    /// Whether a [lent](Self::lend) descriptor may still be open, or mapped, in any process.
    pub(crate) fn is_lent(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        match flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => flock(fd, FlockOperation::Unlock).is_err(),
            Err(_) => true,
        }
    }

    /// The entry with this number; `None` if it lies outside the ledger.
    #[inline]
    pub fn entry(&self, handle: Handle) -> Option<&SharedWord> {
        self.map.words(LEDGER_WORDS, self.entries as usize).get(handle.0 as usize)
    }

    /// Counts an event for the primary.
    pub(crate) fn count(&self, counter: Counter) {
        if let Some(place) = counter.place() {
            self.map.words(HEADER_WORDS, TOLD_MAX)[place].faa(1);
        }
    }

    /// The counts for the primary.
    pub(crate) fn told(&self) -> Told {
        let words = self.map.words(HEADER_WORDS, TOLD_MAX);
        std::array::from_fn(|place| words[place].load())
    }

    /// The status with which this client's chains are refused.
    #[inline]
    pub fn gate(&self) -> Option<Status> {
        gate_of(self.header(HeaderWord::Gate))
    }

    /// Refuses this client's chains with this status from now on, or permits them.
    pub(crate) fn set_gate(&self, status: Option<Status>) {
        self.header(HeaderWord::Gate).store(gate_word(status));
    }

    /// Records that a user of the memory in the client's process will not touch it again. Must be
    /// its last access.
    pub(crate) fn detach(&self) {
        self.header(HeaderWord::Detaches).faa(1);
    }

    /// How often [`detach`](Self::detach) was called.
    pub(crate) fn detaches(&self) -> u64 {
        self.header(HeaderWord::Detaches).load()
    }

    /// Copies the first `entries` of a ledger of the same size. Reading all entries would cost a
    /// page fault for each page: milliseconds in which the primary serves no client.
    pub(crate) fn copy_from(&self, other: &LedgerMemory, entries: u32) {
        for index in 0..entries.min(self.entries) {
            let handle = Handle(index);
            if let (Some(to), Some(from)) = (self.entry(handle), other.entry(handle)) {
                // Pages that were never written stay unallocated.
                if from.load() != 0 {
                    to.store(from.load());
                }
            }
        }
        self.set_gate(other.gate());
    }

    #[inline]
    fn header(&self, word: HeaderWord) -> &SharedWord {
        &self.map.words(0, HEADER_WORDS)[word as usize]
    }
}

#[inline]
fn gate_of(word: &SharedWord) -> Option<Status> {
    let raw = word.load();
    if raw == 0 {
        return None;
    }
    // A number of no status still means "closed".
    Some(status_from_wire(raw as u32 as i32).unwrap_or(Status::BadResponse))
}

fn gate_word(status: Option<Status>) -> u64 {
    // The bit in the upper half is set for every status, also for `Success`, whose number is 0.
    status.map_or(0, |status| 1 << 32 | u64::from(status_to_wire(status) as u32))
}

/// Files of this crate change neither their size nor their seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A file in memory of this size, closed on exec.
fn memory_file(name: &CStr, bytes: usize) -> Result<OwnedFd, FabricError> {
    let failed =
        |what| move |source: Errno| FabricError::Memory { what, bytes, source: source.into() };
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed("create (memfd_create) a shared memory file"))?;
    ftruncate(&file, bytes as u64).map_err(failed("size (ftruncate) a shared memory file"))?;
    Ok(file)
}

fn not_sealed<E: Into<io::Error>>(bytes: usize) -> impl FnOnce(E) -> FabricError {
    move |source| {
        let source = source.into();
        FabricError::Memory { what: "seal (fcntl) a shared memory file", bytes, source }
    }
}

/// A file that can be written only through the returned mapping, and its descriptor.
///
/// Linux before 5.1 has no such seal. There the descriptor is read-only; a process of the same
/// user could still open the file anew by its entry in /proc.
fn written_here_alone(name: &CStr, bytes: usize) -> Result<(OwnedFd, Mapping), FabricError> {
    let file = memory_file(name, bytes)?;
    let map = Mapping::of_file(file.as_fd(), bytes)?;
    match fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE) {
        Ok(()) => Ok((file, map)),
        Err(Errno::INVAL) => {
            fcntl_add_seals(&file, SEALS).map_err(not_sealed(bytes))?;
            Ok((read_only(file.as_fd()).map_err(not_sealed(bytes))?, map))
        }
        Err(error) => Err(not_sealed(bytes)(error)),
    }
}

/// The same file, opened for reading.
fn read_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map(OwnedFd::from)
}

/// Refuses a file that is not sealed to exactly this size.
fn check_file(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), FabricError> {
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let seals = fcntl_get_seals(fd)
        .map_err(|_| FabricError::MemoryRefused("its seals cannot be read (fcntl)"))?;
    if !seals.contains(fixed) {
        return Err(FabricError::MemoryRefused("it could change its size"));
    }
    let stat =
        fstat(fd).map_err(|_| FabricError::MemoryRefused("its size cannot be read (fstat)"))?;
    if u64::try_from(stat.st_size) != Ok(bytes as u64) {
        return Err(FabricError::MemoryRefused("it has another size than announced"));
    }
    Ok(())
}

/// Shared pages at one address of this process.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: the pages are accessed only through `SharedWord`, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: all threads access the pages through `SharedWord` only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of_file(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, FabricError> {
        // SAFETY: a new mapping at an address the kernel chooses; nothing is replaced.
        Self::made(bytes, || unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)
        })
    }

    fn of_file_to_read(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, FabricError> {
        // SAFETY: a new mapping at an address the kernel chooses; nothing is replaced.
        Self::made(bytes, || unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, fd, 0)
        })
    }

    fn anonymous(bytes: usize) -> Result<Self, FabricError> {
        // SAFETY: a new mapping at an address the kernel chooses; nothing is replaced.
        Self::made(bytes, || unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        })
    }

    /// Checks the mapping that `map` has made, and keeps it from forked children.
    fn made(
        bytes: usize,
        map: impl FnOnce() -> rustix::io::Result<*mut c_void>,
    ) -> Result<Self, FabricError> {
        let failed = |call: &str, source: Errno| FabricError::Memory {
            what: "map shared memory",
            bytes,
            source: named(call, source),
        };
        let base = map().map_err(|error| failed("mmap", error))?.cast::<u8>();
        let base = NonNull::new(base).ok_or_else(|| failed("mmap", Errno::NOMEM))?;
        let map = Self { base, bytes, owner: Owner::current() };
        // SAFETY: exactly the mapping made above.
        unsafe { madvise(map.base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
            .map_err(|error| failed("madvise", error))?;
        Ok(map)
    }

    /// `len` words from index `from` on.
    #[inline]
    fn words(&self, from: usize, len: usize) -> &[SharedWord] {
        debug_assert!((from + len) * 8 <= self.bytes);
        // SAFETY: the callers' ranges are those the mapping was sized for (asserted above), pages
        // are aligned, the file cannot shrink, and all access is by SharedWord.
        unsafe { atomic::words(self.base.as_ptr().add(from * 8), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child has no such mapping, and may have another one at this address.
        if self.owner.is_here() {
            // SAFETY: exactly the mapping that `made` was given; references to it borrow `self`.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ids::Slot;
    use dlock_core::memory::word_op::Word;

    fn copy(fd: BorrowedFd<'_>) -> OwnedFd {
        fd.try_clone_to_owned().unwrap()
    }

    fn open(primary: &SlotMemory, slots: u32) -> Result<SlotMemory, FabricError> {
        let [header, file] = primary.fds().unwrap();
        SlotMemory::open(copy(header), copy(file), slots)
    }

    #[test]
    fn two_mappings_of_one_memory_see_each_other() {
        let primary = SlotMemory::create(10).unwrap();
        let client = open(&primary, 10).unwrap();
        let addr = WordAddr::new(Slot(9), Word::Gen);
        client.word(addr).unwrap().store(5);
        assert_eq!(primary.word(addr).unwrap().faa(1), 5);
        assert_eq!(client.word(addr).unwrap().load(), 6);
    }

    #[test]
    fn words_and_entries_outside_do_not_exist() {
        let slots = SlotMemory::create(2).unwrap();
        assert!(slots.word(WordAddr::from_index(7)).is_some());
        assert!(slots.word(WordAddr::from_index(8)).is_none());
        assert!(slots.word(WordAddr::from_index(u32::MAX)).is_none());
        let ledger = LedgerMemory::create_private(3).unwrap();
        assert!(ledger.entry(Handle(2)).is_some());
        assert!(ledger.entry(Handle(3)).is_none());
        assert!(matches!(
            SlotMemory::create(SLOTS_LIMIT + 1),
            Err(FabricError::TooManySlots { .. })
        ));
    }

    #[test]
    fn memory_of_another_size_or_kind_is_refused() {
        let slots = SlotMemory::create(200).unwrap();
        let ledger = LedgerMemory::create(200 * 4 - 8).unwrap();
        let refused = |result| matches!(result, Err(FabricError::MemoryRefused(_)));
        assert!(open(&slots, 200).is_ok());
        assert!(refused(open(&slots, 199)));
        assert!(refused(open(&slots, 201)));
        let [header, file] = slots.fds().unwrap();
        let other = ledger.fd().unwrap();
        assert!(refused(SlotMemory::open(copy(file), copy(header), 200)));
        assert!(refused(SlotMemory::open(copy(other), copy(file), 200)));
        assert!(File::from(copy(file)).set_len(1).is_err(), "sealed");
        let plain = memory_file(c"plain", 200 * 32).unwrap();
        assert!(refused(SlotMemory::open(copy(header), plain, 200)), "not sealed");
        let another = SlotMemory::create(128).unwrap();
        let [header, _] = another.fds().unwrap();
        assert!(refused(SlotMemory::open(copy(header), copy(file), 200)), "another's header");
    }

    /// Maps a file for writing; returns whether the kernel permits it.
    fn maps_to_write(fd: BorrowedFd<'_>) -> bool {
        Mapping::of_file(fd, HEADER_BYTES).is_ok()
    }

    #[test]
    fn the_kernel_refuses_every_way_for_a_client_to_write_the_header() {
        let primary = SlotMemory::create(1).unwrap();
        let client = open(&primary, 1).unwrap();
        let [header, slots] = primary.fds().unwrap();
        assert!(!maps_to_write(header));
        assert!(maps_to_write(slots), "the test would notice");
        let base = client.header.base.as_ptr().cast();
        // SAFETY: a mapping of this test; what is written to it goes through no reference.
        let rc = unsafe { libc::mprotect(base, HEADER_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(rc, -1, "a mapping was made writable");
        // SAFETY: `bytes` is valid for reads of its length.
        let writes = |fd: BorrowedFd<'_>| unsafe {
            let bytes = [0xff_u8; 64];
            libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0)
        };
        assert_eq!(writes(header), -1);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an operation on a descriptor, without pointers.
        let rc = unsafe { libc::fallocate(header.as_raw_fd(), punch, 0, HEADER_BYTES as i64) };
        assert_eq!(rc, -1, "the header was erased");
        // any process of this user can open the file again
        let path = format!("/proc/self/fd/{}", header.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        assert!(!maps_to_write(again.as_fd()));
        assert_eq!(writes(again.as_fd()), -1);
        assert!(again.set_len(0).is_err());
        // The primary can still write, and the client sees the result.
        primary.set_gate(Some(Status::NotReady));
        assert_eq!(client.gate(), Some(Status::NotReady));
    }

    #[test]
    fn a_read_only_descriptor_is_all_a_client_gets_where_there_is_no_such_seal() {
        let file = memory_file(c"header", HEADER_BYTES).unwrap();
        assert!(maps_to_write(file.as_fd()));
        let handed_out = read_only(file.as_fd()).unwrap();
        assert!(!maps_to_write(handed_out.as_fd()));
        assert!(Mapping::of_file_to_read(handed_out.as_fd(), HEADER_BYTES).is_ok());
    }

    #[test]
    fn a_gate_is_seen_by_the_client_with_its_status() {
        let primary = SlotMemory::create(1).unwrap();
        let client = open(&primary, 1).unwrap();
        assert_eq!(client.gate(), None);
        for status in [Status::NotReady, Status::Error, Status::Success] {
            primary.set_gate(Some(status));
            assert_eq!(client.gate(), Some(status));
        }
        primary.set_gate(None);
        assert_eq!(client.gate(), None);
    }
}
