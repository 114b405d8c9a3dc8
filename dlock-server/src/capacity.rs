// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many clients the limits of this process allow.
//!
//! ```text
//!   limit of open files  = in use at the start + RESERVE + STRANGERS + clients · files per client
//!   limit of locked memory (RDMA, without CAP_IPC_LOCK) = (1 + clients) · (slots + ledger)
//! ```
//! A client that has no descriptors is refused with `ServerNoResource` when it comes, before
//! anything fails for want of one; clients that are there, and the admin socket, go on. A client
//! whose registration cannot be locked is refused in the same way when it attaches over verbs; over
//! TCP it is served.

use std::fmt;

use dlock_fabric::threads::ProcessLimits;

use crate::control::CONNECTIONS_MAX;

/// Descriptors that are free for what lasts for a moment: the admin socket, the state file.
const RESERVE: u64 = 16;
/// Connections that may be open besides those of clients, where descriptors are short.
const STRANGERS: u64 = 32;
/// A client's control connection and command channel.
const FILES_PER_CLIENT: u64 = 2;
/// Of an shm client also its ledger, and its process, unless that has another client: 3 each for
/// many clients of one process.
const FILES_PER_SHM_CLIENT: u64 = 4;

/// What a primary needs for its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) clients_max: usize,
    /// Clients may come over shared memory.
    pub(crate) shm: bool,
    /// Bytes that the device of the memory locks for each client; 0: there is none.
    pub(crate) locked_bytes: u64,
}

/// How many clients fit, and why no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// So many clients are let in.
    pub clients: usize,
    /// What allows no more.
    pub bound: Bound,
    /// Fewer of them can come over RDMA verbs; `None`: all of them, as far as is known.
    pub locked: Option<LockedMemory>,
    /// Connections of the control thread at a time.
    pub(crate) connections: usize,
}

/// What allows no more clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The configuration's `clients_max`.
    Configuration,
    /// The limit of open files, and the limit that all of `clients_max` need.
    OpenFiles {
        /// The soft limit of this process.
        limit: u64,
        /// What it would have to be.
        needed: u64,
    },
}

/// What the limit of locked memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// So many clients over RDMA verbs.
    pub clients: usize,
    /// The soft limit of this process, bytes.
    pub limit: u64,
    /// What it would have to be for all clients that are let in.
    pub needed: u64,
}

impl Capacity {
    /// Of a process with these limits.
    pub(crate) fn new(needs: Needs, limits: &ProcessLimits) -> Self {
        let wanted = needs.clients_max as u64;
        let per_client = if needs.shm { FILES_PER_SHM_CLIENT } else { FILES_PER_CLIENT };
        let used = limits.files_open.saturating_add(RESERVE);
        let spare = limits.files.saturating_sub(used);
        let by_files = spare.saturating_sub(STRANGERS) / per_client;
        let clients = wanted.min(by_files);
        let bound = match clients == wanted {
            true => Bound::Configuration,
            false => Bound::OpenFiles {
                limit: limits.files,
                needed: used.saturating_add(STRANGERS + wanted * per_client),
            },
        };
        let locked = limits.locked_bytes.filter(|_| needs.locked_bytes > 0).map(|limit| {
            // One share is the primary's own.
            let fit = (limit / needs.locked_bytes).saturating_sub(1).min(clients);
            let needed = (clients + 1).saturating_mul(needs.locked_bytes);
            LockedMemory { clients: fit as usize, limit, needed }
        });
        let locked = locked.filter(|locked| (locked.clients as u64) < clients);
        // Every connection that is no command channel: each client's, and those of strangers.
        let connections = spare.saturating_sub(clients * (per_client - 1)).max(1);
        let connections = connections.min(CONNECTIONS_MAX as u64) as usize;
        Self { clients: clients as usize, bound, locked, connections }
    }
}

impl fmt::Display for Capacity {
    /// What it means and, if the configuration is not what bounds it, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = self.clients;
        match self.bound {
            Bound::Configuration => write!(f, "clients_max lets {clients} clients in"),
            Bound::OpenFiles { limit, needed } => write!(
                f,
                "the limit of {limit} open files allows {clients} clients: for clients_max raise \
                 it to {needed} (ulimit -n, or LimitNOFILE= of a systemd unit)"
            ),
        }
    }
}

impl fmt::Display for LockedMemory {
    /// What it means, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, limit, needed } = self;
        write!(
            f,
            "the limit of {limit} bytes of locked memory allows {clients} clients over RDMA: for \
             all raise it to {needed} (ulimit -l, or LimitMEMLOCK= of a systemd unit)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(clients_max: usize) -> Needs {
        Needs { clients_max, shm: true, locked_bytes: 0 }
    }

    fn limits(files: u64) -> ProcessLimits {
        ProcessLimits { files, files_open: 12, locked_bytes: Some(8 << 20) }
    }

    #[test]
    fn clients_that_are_let_in_and_strangers_never_need_more_files_than_there_are() {
        for files in (0..6_000).chain([20_000, 1 << 20, u64::MAX]) {
            for shm in [false, true] {
                for clients_max in [1, 250, 1_000] {
                    let fits = Capacity::new(Needs { shm, ..needs(clients_max) }, &limits(files));
                    assert!(fits.clients <= clients_max);
                    let per_client = if shm { 4 } else { 2 };
                    let most = 12 + fits.connections + fits.clients * (per_client - 1);
                    assert!(most as u64 <= files.max(13), "{fits:?} of {files}");
                    assert!(fits.connections >= fits.clients.max(1));
                }
            }
        }
    }

    #[test]
    fn the_limit_that_binds_is_named_with_its_remedy() {
        let fits = Capacity::new(needs(1_000), &limits(1_024));
        assert_eq!(fits.clients, 241);
        assert_eq!(fits.bound, Bound::OpenFiles { limit: 1_024, needed: 4_060 });
        assert!(fits.to_string().contains("LimitNOFILE="), "{fits}");
        assert_eq!(Capacity::new(needs(1_000), &limits(4_060)).bound, Bound::Configuration);
        assert_eq!(Capacity::new(needs(1_000), &limits(4_059)).clients, 999);

        let pinned = Needs { shm: false, locked_bytes: 3 << 20, ..needs(1_000) };
        let fits = Capacity::new(pinned, &limits(20_000));
        assert_eq!((fits.clients, fits.bound), (1_000, Bound::Configuration), "over TCP");
        let locked = fits.locked.unwrap();
        let (limit, needed) = (8 << 20, 3_003 << 20);
        assert_eq!(locked, LockedMemory { clients: 1, limit, needed });
        assert!(locked.to_string().contains("LimitMEMLOCK="), "{locked}");
        for locked_bytes in [None, Some(needed)] {
            let enough = ProcessLimits { locked_bytes, ..limits(20_000) };
            assert_eq!(Capacity::new(pinned, &enough).locked, None);
        }
        let short = ProcessLimits { locked_bytes: Some(needed - 1), ..limits(20_000) };
        assert_eq!(Capacity::new(pinned, &short).locked.map(|locked| locked.clients), Some(999));
        let nothing = ProcessLimits { locked_bytes: Some(0), ..limits(20_000) };
        assert_eq!(Capacity::new(pinned, &nothing).locked.map(|locked| locked.clients), Some(0));
    }
}
