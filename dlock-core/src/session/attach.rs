// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which executor a session's data path gets.
//!
//! ```text
//!   named in the configuration    that one, or no session
//!   auto                          verbs, if the primary offers them and this host has a port
//!                                 that can be used; else shared memory; else tcp
//! ```
//! A device that was named must work if the primary offers verbs, and an eid must be a port's if
//! this host has ports that can be used.

use crate::control::{FabricKind, Session};
use crate::status::Status;

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
    /// The configuration names a port that this host does not have.
    WrongAddress,
    /// Anything else.
    Other,
}

/// The search for a session's executor.
///
/// ```text
///   next_kind ─ Some(kind) ─▶ attach ─ Ok ──▶ done
///       ▲  └─ None ─▶ exhausted    └─ Err ─▶ failed ─ Ok ─▶ next_kind
///       └──────────────────────────────────────────┘ └ Err ─▶ no session
/// ```
#[derive(Clone, Debug)]
pub struct PathSearch {
    choice: PathChoice,
    /// An RDMA device was named: verbs must work where they are offered.
    is_device_named: bool,
    offered: [bool; 3],
    at: usize,
    /// An executor that was not demanded was refused because the primary recovers.
    is_not_ready: bool,
}

impl PathSearch {
    /// Of a session with these offers.
    pub fn new(choice: PathChoice, is_device_named: bool, session: &Session) -> Self {
        let offered = FabricKind::ALL.map(|kind| match kind {
            FabricKind::Verbs => session.verbs,
            FabricKind::Shm => session.shm_socket.is_some(),
            FabricKind::Tcp => session.tcp,
        });
        Self { choice, is_device_named, offered, at: 0, is_not_ready: false }
    }

    /// The executor to try next; `None`: none is left, and the session has no data path.
    pub fn next_kind(&mut self) -> Option<FabricKind> {
        while let Some(&kind) = FabricKind::ALL.get(self.at) {
            self.at += 1;
            if self.is_wanted(kind) && self.offered[self.at - 1] {
                return Some(kind);
            }
        }
        None
    }

    /// The fabrics that this client would use, and the primary does not offer.
    pub fn missing(&self) -> impl Iterator<Item = FabricKind> + '_ {
        let all = FabricKind::ALL.into_iter().zip(self.offered);
        all.filter(|&(kind, offered)| !offered && self.is_wanted(kind)).map(|(kind, _)| kind)
    }

    fn is_wanted(&self, kind: FabricKind) -> bool {
        match self.choice {
            PathChoice::Auto => true,
            PathChoice::Only(only) => only == kind,
        }
    }

    /// Whether the session fails if this fabric does, where it is offered.
    pub fn is_demanded(&self, kind: FabricKind) -> bool {
        self.choice == PathChoice::Only(kind) || (kind == FabricKind::Verbs && self.is_device_named)
    }

    /// The executor told last did not attach.
    ///
    /// # Errors
    /// No other one may be tried: `NotReady`, or `Error`.
    pub fn failed(&mut self, kind: FabricKind, failure: Failure) -> Result<(), Status> {
        match (self.is_demanded(kind), failure) {
            (_, Failure::WrongAddress) => Err(Status::Error),
            (true, Failure::NotReady) => Err(Status::NotReady),
            (true, Failure::Other) => Err(Status::Error),
            (false, Failure::NotReady) => {
                self.is_not_ready = true;
                Ok(())
            }
            (false, Failure::Other) => Ok(()),
        }
    }

    /// What the session is refused with when no executor is left: `NotReady`, if the primary
    /// refused one for that reason, so that asking again may help; else `Error`.
    pub fn exhausted(&self) -> Status {
        match self.is_not_ready {
            true => Status::NotReady,
            false => Status::Error,
        }
    }
}
