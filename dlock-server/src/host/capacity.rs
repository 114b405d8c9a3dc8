// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many clients the limits of this process allow.
//!
//! ```text
//!   limit of open files  = in use at the start + RESERVE + STRANGERS + what clients may take
//!   what a client takes  = FILES_PER_CLIENT, over shared memory FILES_PER_MAPPING more
//!   limit of locked memory (RDMA, without CAP_IPC_LOCK) = (1 + clients) · (slots + ledger)
//! ```
//! A client that has no descriptors is refused with `ServerNoResource` when it comes, before
//! anything fails for want of one; clients that are there, and the admin socket, go on. How many
//! it needs is known when it attaches: over shared memory it may be refused then, and be served
//! over TCP. A client whose registration cannot be locked is refused in the same way when it
//! attaches over verbs.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::membership::{FILES_PER_CLIENT, FILES_PER_MAPPING};
use dlock_fabric::os::threads::ProcessLimits;

use crate::config::ServerConfig;
use crate::error::StartError;

/// Descriptors that are free for what lasts for a moment: the admin socket, the state file.
const RESERVE: u64 = 16;
/// Connections that may be open besides those of clients, where descriptors are short.
const STRANGERS: u64 = 32;
/// The limit that is asked for is a multiple of this.
const TOLD_STEP: u64 = 64;
/// Descriptors that a primary itself opens before it knows how many clients fit, at least.
const OWN_MIN: u64 = 6;
/// What one client takes at most.
const FILES_PER_CLIENT_MAX: u64 = FILES_PER_CLIENT + FILES_PER_MAPPING;

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
    /// Fewer of them can come over shared memory; `None`: all of them, or it is not offered.
    pub mapping: Option<usize>,
    /// What allows no more.
    pub bound: Bound,
    /// Fewer of them can come over RDMA verbs; `None`: all of them, as far as is known.
    pub locked: Option<LockedMemory>,
    /// Descriptors that all clients may take together.
    pub(crate) files: u64,
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

impl ServerConfig {
    /// Checks the limit of open files. To be called before anything is opened, so that what cannot
    /// be opened for want of a descriptor is not taken for the cause.
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
    /// That there is room for a client.
    ///
    /// # Errors
    /// `NoRoom`.
    pub(crate) fn checked(self) -> Result<Self, StartError> {
        match self.clients {
            0 => Err(StartError::NoRoom(self)),
            _ => Ok(self),
        }
    }

    /// Of a process with these limits.
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
            // One share is the primary's own.
            let fit = (limit / needs.locked_bytes).saturating_sub(1).min(clients);
            let needed = (clients + 1).saturating_mul(needs.locked_bytes);
            LockedMemory { clients: fit as usize, limit, needed }
        });
        let locked = locked.filter(|locked| (locked.clients as u64) < clients);
        let mapping = (mapping < clients).then_some(mapping as usize);
        Self { clients: clients as usize, mapping, bound, locked, files }
    }
}

/// The limit that is asked for: the same for a few descriptors more or less that are open just now.
fn told(needed: u64) -> u64 {
    needed.checked_next_multiple_of(TOLD_STEP).unwrap_or(u64::MAX)
}

/// What is left of the descriptors for connections that are not, or not yet, those of clients.
#[derive(Debug)]
pub(crate) struct FilesLeft {
    max: u64,
    /// What clients take, or what is kept for them.
    taken: AtomicU64,
}

impl FilesLeft {
    /// Of this capacity, while there is no client.
    pub(crate) fn new(capacity: &Capacity) -> Self {
        Self { max: capacity.files, taken: AtomicU64::new(0) }
    }

    /// Without a bound.
    #[cfg(test)]
    pub(crate) fn unbounded() -> Self {
        Self { max: u64::MAX, taken: AtomicU64::new(0) }
    }

    /// Clients take so many now.
    pub(crate) fn set_taken(&self, files: u64) {
        self.taken.store(files, Ordering::Relaxed);
    }

    /// How many such connections there may be now. Each may become a client, and then takes what
    /// was kept for it.
    pub(crate) fn strangers_max(&self) -> usize {
        let left = self.max.saturating_sub(self.taken.load(Ordering::Relaxed));
        usize::try_from(STRANGERS + left / FILES_PER_CLIENT_MAX).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Capacity {
    /// What it means and, if the configuration is not what bounds it, what to do.
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
