// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of log lines, so that no thread that logs waits for their reader.
//!
//! ```text
//!   any thread ── put ──▶ queue: LINES_MAX, LINES_BYTES_MAX ──▶ sink thread ── deliver ──▶ stderr,
//!                          │ full                                              or a callback
//!                          └▶ counted; the count is logged when lines are delivered again
//!   exit, flush ── wait until the queue is empty, FLUSH_MAX at most
//! ```
//! The thread starts with the first line, and ends a second after the last one. If the system
//! refuses a thread, each line tries again, and is delivered at once if that needs no waiting. A
//! forked child has none of its parent's threads, and must not write its parent's lines: it gets a
//! queue of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use log::Level;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::os::clock::{boot_ns, deadline_in, left_until};
use crate::os::fork;
use crate::os::sys::poll_until;
use crate::os::threads::spawn_without_signals;

/// Lines in the queue at most.
pub const LINES_MAX: usize = 4_096;
/// Bytes of the lines in the queue at most.
pub const LINES_BYTES_MAX: usize = 1 << 20;
/// How long the end of a process waits for its last lines to be delivered.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How long the thread waits for another line before it ends.
const IDLE: Duration = Duration::from_secs(1);
/// Bytes that a pipe takes as a whole or not at all (`PIPE_BUF`).
const PIPE_BUF: usize = 4_096;

/// One message of the log.
#[derive(Debug)]
pub struct Line {
    /// The level of the message.
    pub level: Level,
    /// The whole text.
    pub text: String,
}

/// Delivers a line; `false` if it is lost. `may_wait`: the caller is the sink thread. Otherwise the
/// call must not wait, and returns `false` if it would have to.
pub type Deliver = fn(line: &Line, may_wait: bool) -> bool;

static SINK: Sink = Sink::new(|line, may_wait| DELIVER.get_or_init(|| to_stderr)(line, may_wait));
static DELIVER: OnceLock<Deliver> = OnceLock::new();

/// Delivers this process's lines by `deliver` instead of standard error. The first call, before the
/// first line, decides.
pub fn deliver_by(deliver: Deliver) {
    let _ = DELIVER.set(deliver); // only the first call sets the function
}

/// Queues a line; never waits for its delivery.
pub fn put(line: Line) {
    SINK.put(line);
}

/// Waits, at most [`FLUSH_MAX`], until all earlier lines are delivered. The exit of a process does
/// this by itself; code that aborts must call it.
pub fn flush() {
    SINK.flush(FLUSH_MAX);
}

/// How many lines of this process were lost so far: there was no room, or they were not taken.
pub fn lost_total() -> u64 {
    SINK.queue.load().as_ref().map_or(0, |queue| queue.state.lock().lost_total)
}

/// A queue and its thread.
struct Sink {
    deliver: Deliver,
    queue: ArcSwapOption<Queue>,
}

/// The queue of one process.
struct Queue {
    process: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    has_thread: bool,
    /// Whether the thread is delivering a line.
    is_busy: bool,
    /// Whether the last line could not be delivered.
    is_broken: bool,
    /// Lost lines that were not reported yet.
    lost: u64,
    /// Lost lines so far.
    lost_total: u64,
}

impl State {
    fn push(&mut self, line: Line) {
        let bytes = self.bytes.saturating_add(line.text.len());
        let has_room = self.lines.len() < LINES_MAX && bytes <= LINES_BYTES_MAX;
        if has_room || self.lines.is_empty() {
            self.bytes = bytes;
            self.lines.push_back(line);
        } else {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.lost = self.lost.saturating_add(1);
        self.lost_total = self.lost_total.saturating_add(1);
    }

    fn pop(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.text.len();
        Some(line)
    }

    /// Whether the thread has nothing to do. Lost lines are reported after all others, and only
    /// while delivery works: else the report would be lost, too.
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && (self.lost == 0 || self.is_broken)
    }
}

impl Sink {
    const fn new(deliver: Deliver) -> Self {
        Self { deliver, queue: ArcSwapOption::const_empty() }
    }

    fn put(&'static self, line: Line) {
        let queue = self.mine();
        let mut state = queue.state.lock();
        state.push(line);
        if !state.has_thread {
            self.start(&queue, &mut state);
        }
        drop(state);
        queue.changed.notify_all();
    }

    /// Waits for the delivery of all lines; returns whether all were delivered in time. If the log
    /// thread makes no progress, the caller delivers the rest: it may be the log thread itself, in
    /// a panic.
    fn flush(&'static self, wait: Duration) -> bool {
        let until_ns = deadline_in(wait);
        let loaded = self.queue.load();
        let Some(queue) = loaded.as_ref().filter(|queue| queue.process == fork::process()) else {
            return true;
        };
        // Not `lock`: a thread that panicked while it holds the lock would wait for itself.
        let Some(mut state) = queue.state.try_lock_for(left_until(until_ns)) else { return false };
        if !state.has_thread && !state.lines.is_empty() {
            self.start(queue, &mut state);
        }
        while state.has_thread && (state.is_busy || !state.is_idle()) {
            if queue.changed.wait_for(&mut state, left_until(until_ns)).timed_out() {
                if state.is_busy {
                    return false;
                }
                self.deliver_at_once(&mut state);
                break;
            }
        }
        state.lines.is_empty()
    }

    /// The queue of this process.
    fn mine(&'static self) -> Arc<Queue> {
        let process = fork::process();
        let is_mine = |queue: &&Arc<Queue>| queue.process == process;
        if let Some(queue) = self.queue.load().as_ref().filter(is_mine) {
            return Arc::clone(queue);
        }
        let (state, changed) = (Mutex::default(), Condvar::new());
        let new = Arc::new(Queue { process, state, changed });
        self.queue.rcu(|queue| match queue.as_ref().filter(is_mine) {
            Some(queue) => Some(Arc::clone(queue)),
            None => Some(Arc::clone(&new)),
        });
        // a queue that was set is never removed, so this is the queue of the process
        self.queue.load_full().unwrap_or(new)
    }

    /// Starts the thread; if that fails, delivers the lines that need no waiting.
    fn start(&'static self, queue: &Arc<Queue>, state: &mut MutexGuard<'_, State>) {
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            extern "C" fn at_exit() {
                flush();
            }
            // If this fails for want of memory, the last lines may be lost.
            // SAFETY: the function takes nothing, and is there as long as this code.
            let _ = unsafe { libc::atexit(at_exit) };
        });
        let of_thread = Arc::clone(queue);
        match spawn_without_signals("dlock-log", move || self.run(&of_thread)) {
            Ok(()) => state.has_thread = true,
            Err(_) => self.deliver_at_once(state),
        }
    }

    /// Delivers lines while that needs no waiting.
    fn deliver_at_once(&self, state: &mut State) {
        while state.lines.front().is_some_and(|line| (self.deliver)(line, false)) {
            state.pop();
        }
    }

    /// The code of the sink thread.
    fn run(&'static self, queue: &Queue) {
        let mut state = queue.state.lock();
        loop {
            if state.is_idle() {
                queue.changed.notify_all();
                let is_over = queue.changed.wait_for(&mut state, IDLE).timed_out();
                if is_over && state.is_idle() {
                    state.has_thread = false;
                    return;
                }
                continue;
            }
            state.is_busy = true;
            let line = state.pop();
            let lost = if line.is_none() { std::mem::take(&mut state.lost) } else { 0 };
            let is_delivered = MutexGuard::unlocked(&mut state, || match line {
                Some(line) => (self.deliver)(&line, true),
                None => {
                    log::error!("{lost} log lines before this one were lost: they were not taken");
                    true
                }
            });
            state.is_busy = false;
            state.is_broken = !is_delivered;
            if !is_delivered {
                state.lose();
            }
        }
    }
}

/// Writes a line to standard error: a [`Deliver`].
pub fn to_stderr(line: &Line, may_wait: bool) -> bool {
    let until_ns = if may_wait { u64::MAX } else { 0 };
    write_until(io::stderr().as_fd(), line.text.as_bytes(), until_ns).is_ok()
}

/// Writes a line to standard output; the line is lost if that takes longer than `wait`.
///
/// # Errors
/// `TimedOut`; an error of the file.
pub fn to_stdout_within(line: &str, wait: Duration) -> io::Result<()> {
    write_until(io::stdout().as_fd(), line.as_bytes(), deadline_in(wait))
}

/// Writes all bytes. May take longer than `until_ns` if a file's storage does not answer, or if
/// another process fills the pipe meanwhile.
fn write_until(fd: BorrowedFd<'_>, mut bytes: &[u8], until_ns: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match poll_until(fd, PollFlags::OUT, until_ns) {
            Ok(events) if events.is_empty() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(_) if boot_ns() < until_ns => {} // the write itself may wait
            Err(error) => return Err(error),
        }
        let part = &bytes[..bytes.len().min(PIPE_BUF)];
        match without_sigpipe(|| rustix::io::write(fd, part)) {
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if boot_ns() < until_ns => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes without SIGPIPE for a pipe that has no reader: its default action ends the process.
fn without_sigpipe<T>(write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // SAFETY: zero is a valid value of a signal set.
    let mut pipe: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: zero is a valid value of a pair of signal sets.
    let (mut before, mut pending): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: all sets are valid places; SIGPIPE is a signal.
    let was_pending = unsafe {
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        libc::sigpending(&mut pending);
        libc::sigismember(&pending, libc::SIGPIPE) == 1
    };
    let result = write();
    if matches!(result, Err(Errno::PIPE)) && !was_pending {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: takes the signal that the write has raised in this thread; does not wait.
        unsafe { libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once) };
    }
    // SAFETY: `before` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}

/// Logs a panic before `then`, and waits no longer than [`FLUSH_MAX`] for standard error.
pub fn log_panics(then: fn()) {
    std::panic::set_hook(Box::new(move |panic| {
        let trace = std::backtrace::Backtrace::capture();
        match trace.status() {
            std::backtrace::BacktraceStatus::Captured => log::error!("{panic}\n{trace}"),
            _ => log::error!("{panic}"),
        }
        then();
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Receiver, Sender};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn line(text: &str) -> Line {
        Line { level: Level::Warn, text: text.into() }
    }

    #[test]
    fn lines_beyond_the_bounds_are_counted() {
        let mut state = State::default();
        for _ in 0..LINES_MAX + 7 {
            state.push(line("x"));
        }
        assert_eq!((state.lines.len(), state.lost, state.bytes), (LINES_MAX, 7, LINES_MAX));
        assert_eq!((std::mem::take(&mut state.lost), state.lost_total), (7, 7));
        state.push(line("x"));
        assert_eq!((state.lost, state.lost_total), (1, 8), "a report does not reset it");
        let mut state = State::default();
        state.push(line(&"x".repeat(LINES_BYTES_MAX + 1)));
        state.push(line("x"));
        assert_eq!((state.lines.len(), state.lost), (1, 1), "one line may always wait");
        state.pop();
        assert_eq!(state.bytes, 0);
    }

    #[test]
    fn what_was_lost_is_told_only_while_lines_are_delivered() {
        let mut state = State { lost: 3, is_broken: true, ..State::default() };
        assert!(state.is_idle());
        state.is_broken = false;
        assert!(!state.is_idle());
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_neither_a_line_nor_longer_than_said_a_flush() {
        static GATE: Mutex<()> = Mutex::new(());
        static HEARD: OnceLock<Mutex<Sender<String>>> = OnceLock::new();
        static STUCK: Sink = Sink::new(|line, may_wait| {
            assert!(may_wait, "there is a thread");
            drop(GATE.lock());
            HEARD.get().unwrap().lock().send(line.text.clone()).is_ok()
        });
        let (heard, lines): (_, Receiver<String>) = channel();
        HEARD.set(Mutex::new(heard)).unwrap();
        let shut = GATE.lock();
        for number in 0..3 {
            STUCK.put(line(&number.to_string()));
        }
        while !STUCK.mine().state.lock().is_busy {
            std::thread::yield_now();
        }
        assert!(!STUCK.flush(Duration::from_millis(10)));
        drop(shut);
        assert!(STUCK.flush(SOON));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn a_thread_that_has_nothing_to_deliver_ends_and_the_next_line_has_another() {
        static SINK: Sink = Sink::new(|_, may_wait| may_wait);
        for _ in 0..2 {
            SINK.put(line("x"));
            assert!(SINK.flush(SOON));
            let until_ns = deadline_in(SOON);
            while SINK.mine().state.lock().has_thread {
                assert!(boot_ns() < until_ns, "the thread goes on");
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(SINK.mine().state.lock().lost, 0);
        }
    }

    #[test]
    fn what_a_thread_that_does_not_go_on_has_left_is_delivered_by_the_flush() {
        static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        static SINK: Sink = Sink::new(|line, may_wait| {
            HEARD.lock().push(line.text.clone());
            !may_wait
        });
        // the queue believes that it has a thread, as after a panic of that thread
        SINK.mine().state.lock().has_thread = true;
        SINK.put(line("the panic"));
        assert!(SINK.flush(Duration::from_millis(1)));
        assert_eq!(*HEARD.lock(), ["the panic"]);
    }

    #[test]
    fn a_forked_child_delivers_its_own_lines() {
        static SINK: Sink = Sink::new(|_, _| true);
        SINK.put(line("parent"));
        let parent = SINK.mine();
        let held = parent.state.lock();
        // SAFETY: the child makes a thread, and ends without the test harness.
        let child = unsafe { libc::fork() };
        if child == 0 {
            SINK.put(line("child"));
            let is_delivered = SINK.flush(SOON);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_delivered)) };
        }
        drop(held);
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_full_pipe_is_given_up_at_the_deadline_and_a_dead_one_raises_no_signal() {
        let (near, far) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let whole = vec![b'x'; 1 << 22];
        let error =
            write_until(far.as_fd(), &whole, deadline_in(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(near);
        // SAFETY: sets the default action of a signal; this process runs a single test.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let error = write_until(far.as_fd(), b"x", deadline_in(SOON)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // SAFETY: sets the disposition of a signal, as the test harness had it.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
}
