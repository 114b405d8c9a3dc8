// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shm path does not allocate, call the kernel, or touch anything after a fork.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use dlock_core::clock::ServerTime;
use dlock_core::ids::{ClientId, Handle, Slot};
use dlock_core::memory::exec::{Executor, LockMemory, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, Attached, FabricKind, Secret, UNLIMITED};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_fabric::{stream::handshake, ClockEstimate, CpuMemory, ShmExecutor};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting touches a thread-local that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn me() -> ClientId {
    ClientId::new(1).expect("a client id")
}

/// An executor on the memory, and the primary's end of its socket.
fn attached(memory: &mut CpuMemory) -> (ShmExecutor, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    let attach = Attach {
        client: me(),
        secret: Secret([0; 16]),
        fabric: FabricKind::Shm,
        verbs: None,
        returns: true,
    };
    let now_ns = boot_ns();
    let clock = ClockEstimate::from_exchange(now_ns, now_ns, ServerTime(now_ns));
    let client = std::thread::spawn(move || ShmExecutor::attach_on(near.into(), &attach, clock));
    let mut request = Vec::new();
    codec::encode(&Frame::Attach(attach), &mut request);
    std::io::Read::read_exact(&mut &far, &mut request).expect("an attach");
    let answer = Attached {
        status: Status::Success,
        slots: memory.slots(),
        ledger_entries: memory.ledger_entries(),
        clock_offset_ns: 0,
        verbs: None,
        until: UNLIMITED,
    };
    let shared = memory.share(me()).expect("a ledger");
    let until_ns = deadline_in(Duration::from_secs(10));
    handshake::answer(far.as_fd(), &answer, Some(&shared), until_ns).expect("an answer");
    (client.join().expect("no panic").expect("attached"), far)
}

/// Runs everything that must be fast; returns whether all of it gave the right results.
fn fast_path(executor: &ShmExecutor, rounds: u64) -> bool {
    let addr = WordAddr::new(Slot(1), Word::W0);
    let fence = WordAddr::new(Slot(1), Word::Fence);
    let mut right = true;
    for round in 1..=rounds {
        let take = Chain::one(WordOp::Cas { addr, expect: 0, swap: round })
            .then(WordOp::Faa { addr: fence, add: 1 })
            .then(WordOp::Read { addr })
            .then(WordOp::WriteLedger { handle: Handle(2), value: round });
        let give = Chain::one(WordOp::Cas { addr, expect: round, swap: 0 });
        let mut outcomes = [Outcome::Unknown; 2];
        executor.execute(&[take, take], &mut outcomes, deadline_in(Duration::from_secs(1)));
        right &= matches!(outcomes[0], Outcome::Done(values) if values[2] == round);
        executor.write_ledger(Handle(3), LedgerEntry::from_bits(round));
        right &= matches!(executor.post(&give), Posted::Ready(Outcome::Done(_)));
        let one = executor.execute_one(&WordOp::Read { addr }, deadline_in(Duration::from_secs(1)));
        right &= one == Single::Done(0);
        right &= executor.now().time.0 > 0 && executor.is_alive();
    }
    right
}

#[test]
fn the_path_allocates_nothing() {
    let mut memory = CpuMemory::create(4, 4).expect("memory");
    let (executor, _far) = attached(&mut memory);
    let before = ALLOCATIONS.with(Cell::get);
    let right = fast_path(&executor, 10_000);
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    assert!(right);
    assert_eq!(memory.read(WordAddr::new(Slot(1), Word::Fence)), 20_000);
    let counted = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), counted + 1, "the counter counts");
}

const WORKER: &str = "DLOCK_SHM_PATH_WORKER";

/// Not a test by itself: in its process every system call except exit is fatal.
#[test]
fn worker() {
    let Ok(task) = std::env::var(WORKER) else { return };
    let mut memory = CpuMemory::create(4, 4).expect("memory");
    let (executor, _far) = attached(&mut memory);
    forbid_system_calls();
    let right = match task.as_str() {
        "path" => fast_path(&executor, 10_000),
        // SAFETY: no arguments, cannot fail; here it cannot even return.
        _ => unsafe { libc::getpid() > 0 },
    };
    // SAFETY: ends the process by the one call that is permitted.
    unsafe { libc::_exit(i32::from(!right)) };
}

/// From here on, any system call of this thread except exit kills the process.
fn forbid_system_calls() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let allow = |call: libc::c_long| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: call as u32,
    };
    let mut filter = [
        // The number of the call stands first in `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        allow(libc::SYS_exit_group),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid while the calls last; they change only this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, std::ptr::from_ref(&program)), 0);
    }
}

fn run_worker(task: &str) -> ExitStatus {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "worker"])
        .env(WORKER, task)
        .status()
        .expect("another process")
}

#[test]
fn the_path_makes_no_system_call() {
    let control = run_worker("control");
    assert_eq!(control.signal(), Some(libc::SIGSYS), "a system call is noticed: {control:?}");
    let path = run_worker("path");
    assert!(path.success(), "{path:?}");
}

#[test]
fn a_forked_child_is_refused_and_touches_nothing() {
    let mut memory = CpuMemory::create(4, 4).expect("memory");
    let (executor, _far) = attached(&mut memory);
    let chain = Chain::one(WordOp::Faa { addr: WordAddr::new(Slot(0), Word::W0), add: 1 });
    // SAFETY: the child allocates nothing and takes no lock before it ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = executor.post(&chain) == Posted::Ready(Outcome::Refused(Status::BadResponse));
        executor.write_ledger(Handle(0), LedgerEntry::from_bits(1));
        let silent = executor.reply(dlock_core::ids::Seq(1), deadline_in(Duration::from_secs(60)))
            == Err(Status::BadResponse);
        drop(executor);
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(i32::from(!(refused && silent))) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let status = ExitStatus::from_raw(status);
    assert!(status.success(), "{status:?}");
    assert!(!memory.detached(me()), "the parent may still act");
    assert!(matches!(executor.post(&chain), Posted::Ready(Outcome::Done(_))));
    drop(executor);
    assert!(memory.detached(me()));
    assert_eq!(memory.ledger(me(), Handle(0)), LedgerEntry::new());
}

#[test]
fn a_forked_child_that_lives_on_keeps_no_session_open() {
    let mut memory = CpuMemory::create(4, 4).expect("memory");
    let (executor, far) = attached(&mut memory);
    let (hold, held) = UnixStream::pair().expect("sockets");
    // SAFETY: the child calls only `recv` and `_exit`, which are async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: waits for the end of `hold`, with a valid place for one byte; the child's own
        // copy of `hold` is closed before.
        unsafe {
            libc::close(std::os::fd::AsRawFd::as_raw_fd(&hold));
            let mut byte = 0u8;
            let place = std::ptr::from_mut(&mut byte).cast();
            libc::recv(std::os::fd::AsRawFd::as_raw_fd(&held), place, 1, 0);
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    drop(executor);
    far.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let end = std::io::Read::read(&mut &far, &mut [0]).expect("closed, not only given up here");
    assert_eq!(end, 0);
    assert!(memory.detached(me()));
    // Other tests' children may have copies of `hold`: a shutdown ends them all.
    hold.shutdown(std::net::Shutdown::Both).expect("a socket");
    // SAFETY: waits for the child made above; its status is of no interest.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}
