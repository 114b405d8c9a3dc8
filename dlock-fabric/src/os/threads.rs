// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads, CPUs and limits of this process.

use std::ffi::CString;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};

use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use crate::os::sys::{self, check};

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>` (glibc, musl).
const CANCEL_DISABLE: libc::c_int = 1;

extern "C" {
    // declared in <pthread.h>; the `libc` crate does not declare this function for Linux
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Sets the cancelability of the calling thread to `state`; returns the former one.
fn set_cancelability(state: libc::c_int) -> libc::c_int {
    let mut old = CANCEL_DISABLE;
    // SAFETY: `old` is a valid place for the answer; an invalid `state` is refused, and changes
    // nothing.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Runs `body`, in which the calling thread is not cancelled: a cancellation would unwind through
/// locks that are held and answers that are under way. It stays pending until `body` is over.
pub fn uncancelled<R>(body: impl FnOnce() -> R) -> R {
    struct Restore(libc::c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            if self.0 != CANCEL_DISABLE {
                set_cancelability(self.0);
            }
        }
    }
    let _restore = Restore(set_cancelability(CANCEL_DISABLE));
    body()
}

/// CPUs with which the system is configured, online or not; at least 1.
pub fn cpus_configured() -> usize {
    // SAFETY: no arguments that could be wrong.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// CPUs on which this process may run, by its first thread, because other threads may be pinned; at
/// least 1. A container's limit of CPU time is not considered.
pub fn cpus_of_process() -> usize {
    match sched_getaffinity(Pid::from_raw(std::process::id() as i32)) {
        Ok(set) => usize::try_from(set.count()).unwrap_or(1).max(1),
        Err(_) => cpus_configured(), // more CPUs than a set can name, or the first thread has ended
    }
}

/// Restricts the calling thread to these CPUs.
///
/// # Errors
/// `InvalidInput` for no CPU, or one beyond what a CPU set can name; an error of the system
/// (`EINVAL` if this process may use none of them).
pub fn pin_current_thread(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() || cpus.iter().any(|&cpu| cpu >= CpuSet::MAX_CPU) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run only while a CPU has nothing else to run (`SCHED_IDLE`).
///
/// # Errors
/// An error of the system.
pub fn yield_current_thread_to_all() -> io::Result<()> {
    // SAFETY: zero is a valid value, and the priority that `SCHED_IDLE` asks for.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: `param` is valid for reads; 0 means the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) }).map(drop)
}

/// Lets the thread with this number (0: the calling one) run before all threads without real-time
/// priority (`SCHED_FIFO`).
///
/// # Errors
/// An error of the system (`EPERM` without root or `RLIMIT_RTPRIO`).
pub fn run_before_all(thread: libc::pid_t) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: `param` is valid for reads.
    check(unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &param) }).map(drop)
}

/// Raises this process's soft limit of open files to its hard limit, and returns it. For programs,
/// and for the C library of the server, whose clients need more than the usual soft limit.
///
/// # Errors
/// An error of the system.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = limit_of(libc::RLIMIT_NOFILE)?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is valid for reads.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    }
    Ok(limit.rlim_cur)
}

/// Makes the allocator merge small pieces of memory as they are freed. The GNU C library otherwise
/// merges all of them at the next large allocation, which takes milliseconds after a client has
/// left with 51,200 locks. For programs; a library leaves the allocator of its program alone.
pub fn free_memory_as_it_goes() {
    // SAFETY: sets a parameter of the allocator, and has no other effect. It refuses no value
    // that is documented; nothing but speed depends on it.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// The function of a thread.
type Work = Box<dyn FnOnce() + Send>;

/// The stack of a thread of the library, bytes: as that of a thread of the standard library.
const STACK_LEN: usize = 2 << 20;

/// Starts a thread that takes no signals: they go to the program's other threads, as if the library
/// had none.
///
/// The thread is one of the C library. A thread of the standard library aborts the process if it
/// has got its stack, but then no memory for a stack of its signal handlers.
///
/// # Errors
/// An error of the system (`EAGAIN`: the limit of threads is reached, or there is no memory for the
/// stack).
pub fn spawn_without_signals(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let name = name.to_owned();
    let work: Work = Box::new(move || {
        // tools such as `ps` show the name
        let _ = rustix::thread::set_name(&CString::new(name).unwrap_or_default());
        run();
    });
    // SAFETY: zero is a valid value of a signal set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: zero is a valid value of a signal set.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid places; a new thread inherits the mask of this one.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let started = start(work);
    // SAFETY: `before` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started
}

/// Starts a thread that is not joined.
fn start(work: Work) -> io::Result<()> {
    let ok = |code| if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) };
    // SAFETY: zero is a valid value of attributes, which are initialised before they are used.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` is a valid place.
    ok(unsafe { libc::pthread_attr_init(&mut attributes) })?;
    let work = Box::into_raw(Box::new(work));
    let mut thread = 0;
    // SAFETY: the attributes are initialised; `begin` takes what `work` points to.
    let started = ok(unsafe {
        libc::pthread_attr_setstacksize(&mut attributes, STACK_LEN);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_create(&mut thread, &attributes, begin, work.cast())
    });
    if started.is_err() {
        // SAFETY: no thread has begun, so this is the only owner.
        drop(unsafe { Box::from_raw(work) });
    }
    // SAFETY: the attributes are initialised, and not used any more.
    unsafe { libc::pthread_attr_destroy(&mut attributes) };
    started
}

/// The entry of a thread that [`start`] has made.
extern "C" fn begin(work: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `start` has given up what this points to, for this thread alone.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    // A panic ends this thread alone; it was reported when it began.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        std::mem::forget(payload); // the payload is leaked, because dropping it might panic again
    }
    std::ptr::null_mut()
}

/// Limits of this process, and its use of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// The soft limit of open files.
    pub files: u64,
    /// Files that are open now.
    pub files_open: u64,
    /// The soft limit of locked memory, bytes; `None`: it does not apply (no limit, or
    /// CAP_IPC_LOCK).
    pub locked_bytes: Option<u64>,
}

impl ProcessLimits {
    /// The limits and use of this process, now.
    ///
    /// # Errors
    /// An error of the system.
    pub fn of_this_process() -> io::Result<Self> {
        let limit = |of| limit_of(of).map_err(|error| sys::named("prlimit64", error));
        let locked = limit(libc::RLIMIT_MEMLOCK)?.rlim_cur;
        let open = std::fs::read_dir("/proc/self/fd");
        let open =
            open.map_err(|error| sys::named("openat, newfstatat of /proc/self/fd", error))?;
        Ok(Self {
            files: limit(libc::RLIMIT_NOFILE)?.rlim_cur,
            // one of these descriptors is that of the folder itself
            files_open: open.count().saturating_sub(1) as u64,
            locked_bytes: (locked != libc::RLIM_INFINITY && !may_lock_memory()).then_some(locked),
        })
    }
}

/// A limit of this process. The `getrlimit` of `rustix` panics if the system denies the call.
pub(crate) fn limit_of(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok(limit)
}

/// Whether this process has CAP_IPC_LOCK.
fn may_lock_memory() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use parking_lot::{Condvar, Mutex};

    use super::*;

    // no `Arc`, because ThreadSanitizer does not see the fence with which its last owner drops it
    static TOLD: (Mutex<Option<(String, u64)>>, Condvar) = (Mutex::new(None), Condvar::new());

    /// Reports its contents when it is dropped.
    struct Tells((String, u64));

    impl Drop for Tells {
        fn drop(&mut self) {
            *TOLD.0.lock() = Some(std::mem::take(&mut self.0));
            TOLD.1.notify_all();
        }
    }

    #[test]
    fn a_thread_without_signals_has_its_name_and_ends_alone_when_it_panics() {
        spawn_without_signals("a-name", || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
            let blocked = u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap();
            // dropped when the panic unwinds, which tells the test
            let _tells = Tells((name, blocked));
            std::panic::resume_unwind(Box::new("the end of this thread"));
        })
        .unwrap();
        let mut told = TOLD.0.lock();
        while told.is_none() {
            TOLD.1.wait(&mut told);
        }
        let (name, blocked) = told.take().unwrap();
        assert_eq!(name, "a-name\n");
        assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "signals go to the other threads");
    }

    #[test]
    fn a_thread_can_be_pinned_to_a_cpu_it_may_use_and_to_no_other() {
        let result = std::thread::spawn(|| {
            assert!(pin_current_thread(&[]).is_err());
            assert!(pin_current_thread(&[CpuSet::MAX_CPU]).is_err());
            // Some configured CPU is usable: this thread runs.
            (0..cpus_configured()).any(|cpu| pin_current_thread(&[cpu]).is_ok())
        });
        assert!(result.join().unwrap());
    }

    #[test]
    fn a_thread_that_is_pinned_changes_nothing_of_its_process() {
        let before = cpus_of_process();
        assert!((1..=cpus_configured()).contains(&before));
        let pinned = std::thread::spawn(move || {
            let is_one = (0..cpus_configured()).any(|cpu| pin_current_thread(&[cpu]).is_ok());
            is_one && cpus_of_process() == before
        });
        assert!(pinned.join().unwrap());
    }

    #[test]
    fn an_open_file_counts() {
        let before = ProcessLimits::of_this_process().unwrap();
        let files: Vec<_> =
            (0..50).map(|_| std::fs::File::open("/proc/self/status").unwrap()).collect();
        let after = ProcessLimits::of_this_process().unwrap();
        // Other tests of this process open and close some.
        assert!(after.files_open + 20 > before.files_open + files.len() as u64);
        assert!(after.files_open <= after.files);
    }

    #[test]
    fn the_file_limit_ends_at_the_hard_limit() {
        assert_eq!(raise_file_limit().unwrap(), raise_file_limit().unwrap());
    }
}
