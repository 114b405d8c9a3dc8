// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many clients the limits of this process allow.
//!
//! ```text
//!   limit of open files  = in use at the start + RESERVE + STRANGERS + what clients may take
//!   what a client takes  = FILES_PER_CLIENT, over shared memory FILES_PER_MAPPING more
//!   limit of locked memory (RDMA, without CAP_IPC_LOCK) = (1 + clients) · (slots + ledger)
//! ```
//! A client for which no descriptors are left is refused with `ServerNoResource` when it comes,
//! before anything fails for want of one; present clients and the admin socket go on. A client
//! needs more of them over shared memory, which is known when it attaches: it may be refused then,
//! and be served over TCP. A client whose registration cannot be locked is refused in the same way
//! when it attaches over verbs.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::membership::{FILES_PER_CLIENT, FILES_PER_MAPPING};
use dlock_fabric::os::threads::ProcessLimits;

use crate::config::ServerConfig;
use crate::error::StartError;

/// Descriptors that are reserved for short uses, as by the admin socket and the state file.
const RESERVE: u64 = 16;
/// Connections without a client that may be open if descriptors are short.
const STRANGERS: u64 = 32;
/// A message asks for a limit that is a multiple of this.
const TOLD_STEP: u64 = 64;
/// The fewest descriptors that a primary itself opens before it knows how many clients fit.
const OWN_MIN: u64 = 6;
/// The most descriptors that one client takes.
const FILES_PER_CLIENT_MAX: u64 = FILES_PER_CLIENT + FILES_PER_MAPPING;

/// What a primary needs for its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) clients_max: usize,
    /// Whether clients may come over shared memory.
    pub(crate) shm: bool,
    /// Bytes that the device locks for each client; 0: there is no device.
    pub(crate) locked_bytes: u64,
}

/// How many clients fit, and what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// How many clients the primary lets in at a time.
    pub clients: usize,
    /// The most clients over shared memory, if fewer fit; `None`: all clients may use it, or it is
    /// not offered.
    pub mapping: Option<usize>,
    /// What limits the clients.
    pub bound: Bound,
    /// The limit on clients over RDMA verbs, if fewer fit; `None`: all fit, as far as is known.
    pub locked: Option<LockedMemory>,
    /// The most descriptors of all clients together.
    pub(crate) files: u64,
}

/// What limits the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The configuration's `clients_max`.
    Configuration,
    /// The limit of open files.
    OpenFiles {
        /// The soft limit of this process.
        limit: u64,
        /// The limit that `clients_max` would need.
        needed: u64,
    },
}

/// The clients that the limit of locked memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// The most clients over RDMA verbs.
    pub clients: usize,
    /// The soft limit of this process, bytes.
    pub limit: u64,
    /// The limit that all clients of the capacity would need.
    pub needed: u64,
}

impl ServerConfig {
    /// Checks the limit of open files. To be called before anything is opened, so that a failure
    /// for want of a descriptor gets the right reason.
    ///
    /// # Errors
    /// `NoRoom`: no client would fit. `Limits`: the limit cannot be read.
    pub fn check_room(&self) -> Result<(), StartError> {
        let mut limits = ProcessLimits::of_this_process().map_err(StartError::Limits)?;
        limits.files_open += OWN_MIN;
        let needs = Needs { clients_max: self.clients_max, shm: true, locked_bytes: 0 };
        Capacity::new(needs, &limits).checked().map(drop)
    }
}

impl Capacity {
    /// Checks that there is room for a client.
    ///
    /// # Errors
    /// `NoRoom`.
    pub(crate) fn checked(self) -> Result<Self, StartError> {
        match self.clients {
            0 => Err(StartError::NoRoom(self)),
            _ => Ok(self),
        }
    }

    /// The capacity of a process with these limits.
    pub(crate) fn new(needs: Needs, limits: &ProcessLimits) -> Self {
        let wanted = needs.clients_max as u64;
        let per_client_max = if needs.shm { FILES_PER_CLIENT_MAX } else { FILES_PER_CLIENT };
        let used = limits.files_open.saturating_add(RESERVE + STRANGERS);
        let files = limits.files.saturating_sub(used);
        let clients = wanted.min(files / FILES_PER_CLIENT);
        let mapping = clients.min(files / per_client_max);
        let bound = match mapping == wanted {
            true => Bound::Configuration,
            false => Bound::OpenFiles {
                limit: limits.files,
                needed: told(used.saturating_add(wanted * per_client_max)),
            },
        };
        let locked = limits.locked_bytes.filter(|_| needs.locked_bytes > 0).map(|limit| {
            // The device counts the memory once for the primary itself, and once for each client.
            let fit = (limit / needs.locked_bytes).saturating_sub(1).min(clients);
            let needed = (clients + 1).saturating_mul(needs.locked_bytes);
            LockedMemory { clients: fit as usize, limit, needed }
        });
        let locked = locked.filter(|locked| (locked.clients as u64) < clients);
        let mapping = (mapping < clients).then_some(mapping as usize);
        Self { clients: clients as usize, mapping, bound, locked, files }
    }
}

/// The limit that a message asks for: rounded up, so that a few descriptors do not change it.
fn told(needed: u64) -> u64 {
    needed.checked_next_multiple_of(TOLD_STEP).unwrap_or(u64::MAX)
}

/// The descriptors left for connections that do not, or not yet, belong to a client.
#[derive(Debug)]
pub(crate) struct FilesLeft {
    max: u64,
    /// Descriptors that clients take, or that are kept for them.
    taken: AtomicU64,
}

impl FilesLeft {
    /// All descriptors of this capacity, before there is a client.
    pub(crate) fn new(capacity: &Capacity) -> Self {
        Self { max: capacity.files, taken: AtomicU64::new(0) }
    }

    /// Without a limit; for tests.
    #[cfg(test)]
    pub(crate) fn unbounded() -> Self {
        Self { max: u64::MAX, taken: AtomicU64::new(0) }
    }

    /// Sets the number of descriptors that clients take.
    pub(crate) fn set_taken(&self, files: u64) {
        self.taken.store(files, Ordering::Relaxed);
    }

    /// The most connections without a client at present. A connection that becomes a client's uses
    /// descriptors that are reserved for clients.
    pub(crate) fn strangers_max(&self) -> usize {
        let left = self.max.saturating_sub(self.taken.load(Ordering::Relaxed));
        usize::try_from(STRANGERS + left / FILES_PER_CLIENT_MAX).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Capacity {
    /// The capacity in words and, if the configuration does not bound it, the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = self.clients;
        match self.bound {
            Bound::Configuration => write!(f, "clients_max lets {clients} clients in"),
            Bound::OpenFiles { limit, needed } => {
                write!(f, "the limit of {limit} open files allows {clients} clients")?;
                if let Some(mapping) = self.mapping {
                    write!(f, ", or {mapping} over shared memory")?;
                }
                write!(
                    f,
                    ": for clients_max raise it to {needed} (ulimit -n, or LimitNOFILE= of a \
                     systemd unit)"
                )
            }
        }
    }
}

impl fmt::Display for LockedMemory {
    /// Writes the limit of locked memory in words, and the remedy.
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
                    let left = FilesLeft::new(&fits);
                    let mapping = fits.mapping.unwrap_or(if shm { fits.clients } else { 0 });
                    for mapping in [0, mapping] {
                        let most = (fits.files - mapping as u64 * 2) / 2;
                        let clients = most.min(clients_max as u64);
                        left.set_taken(clients * 2 + mapping as u64 * 2);
                        let strangers = (left.strangers_max() as u64).min(20_000);
                        let all = 12 + clients * 2 + mapping as u64 * 2 + strangers;
                        assert!(clients < 1 || all <= files, "{fits:?} of {files}: {all}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_connection_that_becomes_a_client_leaves_no_less_for_the_others() {
        let left = FilesLeft::new(&Capacity::new(needs(1_000), &limits(1_024)));
        let mut strangers = left.strangers_max();
        for client in 1..=241 {
            left.set_taken(client * 4);
            strangers -= 1;
            assert!(left.strangers_max() >= strangers, "{client}");
        }
        assert_eq!(left.strangers_max(), 32);
    }

    #[test]
    fn the_limit_that_binds_is_named_with_its_remedy() {
        let fits = Capacity::new(needs(1_000), &limits(1_024));
        assert_eq!((fits.clients, fits.mapping), (482, Some(241)));
        assert_eq!(fits.bound, Bound::OpenFiles { limit: 1_024, needed: 4_096 });
        let told = "482 clients, or 241 over shared memory: for clients_max raise it to 4096";
        assert!(fits.to_string().contains(told), "{fits}");
        assert!(fits.to_string().contains("LimitNOFILE="), "{fits}");
        assert_eq!(Capacity::new(needs(1_000), &limits(4_060)).bound, Bound::Configuration);
        let fits = Capacity::new(needs(1_000), &limits(4_059));
        assert_eq!((fits.clients, fits.mapping), (1_000, Some(999)));
        let tcp = Needs { shm: false, ..needs(1_000) };
        let fits = Capacity::new(tcp, &limits(1_024));
        assert_eq!((fits.clients, fits.mapping), (482, None));
        assert_eq!(fits.bound, Bound::OpenFiles { limit: 1_024, needed: 2_112 });

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
