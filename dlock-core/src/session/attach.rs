// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which executor a session's data path gets.
//!
//! ```text
//!   named in the configuration    that one, or no session
//!   auto                          verbs, if the primary offers them and this host has a port
//!                                 that can be used; else shared memory; else tcp
//! ```
//! A device that was named must work if the primary offers verbs.

use crate::control::{FabricKind, Session};
use crate::status::Status;

/// The order in which executors are tried.
const ORDER: [FabricKind; 3] = [FabricKind::Verbs, FabricKind::Shm, FabricKind::Tcp];

/// What the configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// The first that works.
    Auto,
    /// This one, or no session.
    Only(FabricKind),
}

/// Why an executor did not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The primary recovers, and lets no client near its memory yet.
    NotReady,
    /// Anything else.
    Other,
}

/// The search for a session's executor.
#[derive(Clone, Debug)]
pub struct PathSearch {
    choice: PathChoice,
    /// An RDMA device was named: verbs must work where they are offered.
    is_device_named: bool,
    offered: [bool; 3],
    at: usize,
}

impl PathSearch {
    /// Of a session with these offers.
    pub fn new(choice: PathChoice, is_device_named: bool, session: &Session) -> Self {
        let offered = ORDER.map(|kind| match kind {
            FabricKind::Verbs => session.verbs,
            FabricKind::Shm => session.shm_socket.is_some(),
            FabricKind::Tcp => session.tcp,
        });
        Self { choice, is_device_named, offered, at: 0 }
    }

    /// The executor to try next; `None`: none is left, and the session has no data path.
    pub fn next_kind(&mut self) -> Option<FabricKind> {
        while let Some(&kind) = ORDER.get(self.at) {
            self.at += 1;
            let is_wanted = match self.choice {
                PathChoice::Auto => true,
                PathChoice::Only(only) => only == kind,
            };
            if is_wanted && self.offered[self.at - 1] {
                return Some(kind);
            }
        }
        None
    }

    /// The one told last did not attach.
    ///
    /// # Errors
    /// No other one may be tried: `NotReady`, or `Error`.
    pub fn failed(&self, kind: FabricKind, failure: Failure) -> Result<(), Status> {
        let must_work = match kind {
            FabricKind::Verbs => self.is_device_named || self.choice != PathChoice::Auto,
            FabricKind::Shm => self.choice != PathChoice::Auto,
            FabricKind::Tcp => true,
        };
        match (must_work, failure) {
            (false, _) => Ok(()),
            (true, Failure::NotReady) => Err(Status::NotReady),
            (true, Failure::Other) => Err(Status::Error),
        }
    }
}
