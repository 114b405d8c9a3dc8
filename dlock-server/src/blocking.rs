// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that may wait, on a thread of its own. The runtime's own pool panics where the system
//! refuses a thread.

use std::io;
use std::thread::Builder;

use tokio::sync::oneshot;

/// Does this on a thread of its own, which goes on if the future is dropped.
///
/// # Errors
/// What the system says where it refuses the thread (`EAGAIN`: a limit of processes or threads is
/// reached); `Other` if the work has panicked.
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
