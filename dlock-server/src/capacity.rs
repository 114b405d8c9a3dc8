// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many clients the limits of this process allow.
//!
//! ```text
//!   limit of open files  = in use at the start + RESERVE + STRANGERS + clients · files per client
//!   limit of locked memory (RDMA, without CAP_IPC_LOCK) = (1 + clients) · (slots + ledger)
//! ```
//! A client that does not fit is refused with `ServerNoResource` when it comes, before anything
//! fails for want of a descriptor; clients that are there, and the admin socket, go on.

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
    /// The limit of locked memory, in bytes, and the limit that all of `clients_max` need.
    LockedMemory {
        /// The soft limit of this process.
        limit: u64,
        /// What it would have to be.
        needed: u64,
    },
}

impl Capacity {
    /// Of a process with these limits.
    pub(crate) fn new(needs: Needs, limits: &ProcessLimits) -> Self {
        let wanted = needs.clients_max as u64;
        let per_client = if needs.shm { FILES_PER_SHM_CLIENT } else { FILES_PER_CLIENT };
        let used = limits.files_open.saturating_add(RESERVE);
        let spare = limits.files.saturating_sub(used);
        let by_files = spare.saturating_sub(STRANGERS) / per_client;
        let by_memory = match (needs.locked_bytes, limits.locked_bytes) {
            (0, _) | (_, None) => u64::MAX,
            // One share is the primary's own.
            (bytes, Some(limit)) => (limit / bytes).saturating_sub(1),
        };
        let clients = wanted.min(by_files).min(by_memory);
        let bound = match clients {
            _ if clients == wanted => Bound::Configuration,
            _ if clients == by_memory => Bound::LockedMemory {
                limit: limits.locked_bytes.unwrap_or(u64::MAX),
                needed: (wanted + 1).saturating_mul(needs.locked_bytes),
            },
            _ => Bound::OpenFiles {
                limit: limits.files,
                needed: used.saturating_add(STRANGERS + wanted * per_client),
            },
        };
        // Every connection that is no command channel: each client's, and those of strangers.
        let connections = spare.saturating_sub(clients * (per_client - 1)).max(1);
        let connections = connections.min(CONNECTIONS_MAX as u64) as usize;
        Self { clients: clients as usize, bound, connections }
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
            Bound::LockedMemory { limit, needed } => write!(
                f,
                "the limit of {limit} bytes of locked memory allows {clients} clients: for \
                 clients_max raise it to {needed} (ulimit -l, or LimitMEMLOCK= of a systemd unit)"
            ),
        }
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
        let needed = 3_003 << 20;
        assert_eq!(fits.bound, Bound::LockedMemory { limit: 8 << 20, needed });
        assert_eq!(fits.clients, 1);
        assert!(fits.to_string().contains("LimitMEMLOCK="), "{fits}");
        let privileged = ProcessLimits { locked_bytes: None, ..limits(20_000) };
        assert_eq!(Capacity::new(pinned, &privileged).clients, 1_000);
    }
}
