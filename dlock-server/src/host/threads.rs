// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of a primary: started when they are ready, and joined.

use std::io;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::thread::{self, JoinHandle};

use dlock_fabric::os::threads;

use crate::error::StartError;
use crate::host::cpuset::CpuSet;

/// Starts a thread that pins itself to its CPUs, calls `prepare`, and then does the work that
/// `prepare` returned. Returns the other result of `prepare`.
pub(crate) fn spawn<T, W>(
    name: &'static str,
    cpus: Option<CpuSet>,
    prepare: impl FnOnce() -> io::Result<(T, W)> + Send + 'static,
) -> Result<(JoinHandle<()>, T), StartError>
where
    T: Clone + Send + 'static,
    W: FnOnce(T),
{
    let failed = |source| StartError::thread(name, source);
    let (ready, prepared) = sync_channel(1);
    let body = move || {
        if let Some((work, handed)) = begin(name, cpus, prepare, &ready) {
            work(handed);
        }
    };
    let thread = thread::Builder::new().name(format!("dlock-{name}")).spawn(body);
    let thread = thread.map_err(failed)?;
    match prepared.recv() {
        Ok(Ok(handed)) => Ok((thread, handed)),
        Ok(Err(error)) => {
            join(thread);
            Err(error)
        }
        Err(_) => {
            join(thread);
            Err(failed(io::Error::other("it ended at once")))
        }
    }
}

fn begin<T: Clone, W>(
    name: &'static str,
    cpus: Option<CpuSet>,
    prepare: impl FnOnce() -> io::Result<(T, W)>,
    ready: &SyncSender<Result<T, StartError>>,
) -> Option<(W, T)> {
    let pinned = match &cpus {
        None => Ok(()),
        Some(set) => threads::pin_current_thread(set.cpus()).map_err(|source| {
            let text = set.to_string();
            StartError::Affinity { thread: name, text, source }
        }),
    };
    let prepared = pinned
        .and_then(|()| prepare().map_err(|source| StartError::Thread { thread: name, source }));
    // The thread that started this one waits for the result.
    match prepared {
        Ok((handed, work)) => {
            ready.send(Ok(handed.clone())).ok()?;
            Some((work, handed))
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            None
        }
    }
}

pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        log::error!("a thread of the primary has ended by a panic");
    }
}
