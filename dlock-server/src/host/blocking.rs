// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that may wait, on a thread of its own. The runtime's own pool is not used, because it
//! panics if the system refuses a thread.

use std::any::Any;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::Builder;

use dlock_fabric::os::named;
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};
use tokio::sync::oneshot;

/// Creates a runtime that runs on the thread that calls `block_on`. `set` sets further options.
///
/// The first runtime of a process makes a pair of sockets for signals, and panics if the system
/// refuses it. That panic is caught and returned as an error. So the process must not have a panic
/// hook that aborts yet.
///
/// # Errors
/// The system refuses a descriptor; the error names the calls that make descriptors.
pub fn runtime(
    set: impl FnOnce(&mut RuntimeBuilder) -> &mut RuntimeBuilder,
) -> io::Result<Runtime> {
    let make = || set(RuntimeBuilder::new_current_thread().enable_io().enable_time()).build();
    let refused = |panic: Box<dyn Any + Send>| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panics");
        Err(io::Error::other(words.to_string()))
    };
    let made = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(refused);
    made.map_err(|error| named("epoll, eventfd, socketpair, fcntl, getrandom", error))
}

/// Does `work` on a thread of its own, which goes on if the future is dropped.
///
/// # Errors
/// The system refuses the thread (`EAGAIN`: a limit of processes or threads is reached). `Other`:
/// the work has panicked.
pub async fn on_a_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        let _ = done.send(work()); // the future may have been dropped
    };
    Builder::new().name(format!("dlock-{name}")).spawn(work)?;
    result.await.map_err(|_| io::Error::other("its thread has ended by a panic"))
}
