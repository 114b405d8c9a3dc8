// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of the executor for a session's data path.
//!
//! ```text
//!   named in the configuration    that executor, or no session
//!   auto                          the first in the order of `FabricKind::ALL` that the primary
//!                                 offers and that works from this host
//! ```
//! If the configuration names a device, the device must work if the primary offers verbs or sealed.
//! If it names an eid (a GID), that must be the eid of a port, if this host has usable ports.

use crate::wire::control::Session;
use crate::wire::fabric::{FabricKind, FabricSet};
use crate::wire::status::Status;

/// How a client chooses the fabric of its data path.
///
/// In programs and on command lines the name of a choice is `auto`, or that of a fabric. For each
/// [`FabricKind`] there is `Only(kind)`, or `kind.into()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The first of [`FabricKind::ALL`] that the primary offers and that works from this host:
    /// RDMA verbs where this host has a port that can be used, shared memory where the primary is
    /// on this host and permits it, sealed verbs where there are a port and TLS, tcp from
    /// everywhere. The environment variable `DLOCK_FABRIC` overrides it.
    #[default]
    Auto,
    /// This fabric, or no session.
    Only(FabricKind),
}

#[expect(non_upper_case_globals, reason = "read like the variants of an enum, and so they may be")]
impl PathChoice {
    /// Shared memory, or no session.
    pub const Shm: Self = Self::Only(FabricKind::Shm);
    /// Sealed frames over RDMA queue pairs, or no session.
    pub const Sealed: Self = Self::Only(FabricKind::Sealed);
    /// Frames over TCP, or no session.
    pub const Tcp: Self = Self::Only(FabricKind::Tcp);
    /// RDMA verbs, or no session.
    pub const Verbs: Self = Self::Only(FabricKind::Verbs);
}

impl From<FabricKind> for PathChoice {
    /// This fabric, or no session.
    fn from(kind: FabricKind) -> Self {
        Self::Only(kind)
    }
}

impl PathChoice {
    /// All choices: `Auto`, and one for each fabric.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Auto).chain(FabricKind::ALL.into_iter().map(Self::Only))
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(kind) => kind.name(),
        }
    }
}

impl std::fmt::Display for PathChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a name that no [`PathChoice`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPath;

impl std::fmt::Display for UnknownPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = PathChoice::all().map(PathChoice::name).collect();
        write!(f, "must be one of {}", names.join(", "))
    }
}

impl std::error::Error for UnknownPath {}

impl std::str::FromStr for PathChoice {
    type Err = UnknownPath;

    fn from_str(name: &str) -> Result<Self, UnknownPath> {
        Self::all().find(|choice| choice.name() == name).ok_or(UnknownPath)
    }
}

/// Why an executor has not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The primary recovers, and gives no client access to its memory yet.
    NotReady,
    /// The primary has no room for one more client of this fabric.
    NoRoom,
    /// The configuration names a port that this host does not have.
    WrongAddress,
    /// Any other reason.
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
    /// Whether the configuration names an RDMA device: then the fabrics that need one must work
    /// where the primary offers them.
    is_device_named: bool,
    offered: FabricSet,
    at: usize,
    /// Whether the primary has refused an executor that was not demanded, because the primary
    /// recovers.
    is_not_ready: bool,
    /// Whether the primary has refused an executor because it had no room.
    is_full: bool,
}

impl PathSearch {
    /// The search for a session with these offers.
    pub fn new(choice: PathChoice, is_device_named: bool, session: &Session) -> Self {
        let offered = session.offers.kinds();
        Self { choice, is_device_named, offered, at: 0, is_not_ready: false, is_full: false }
    }

    /// The executor to try next; `None`: no executor is left, and the session has no data path.
    pub fn next_kind(&mut self) -> Option<FabricKind> {
        while let Some(&kind) = FabricKind::ALL.get(self.at) {
            self.at += 1;
            if self.is_wanted(kind) && self.offered.has(kind) {
                return Some(kind);
            }
        }
        None
    }

    /// The fabrics that this client would use but the primary does not offer.
    pub fn missing(&self) -> impl Iterator<Item = FabricKind> + '_ {
        let all = FabricKind::ALL.into_iter();
        all.filter(|&kind| !self.offered.has(kind) && self.is_wanted(kind))
    }

    fn is_wanted(&self, kind: FabricKind) -> bool {
        match self.choice {
            PathChoice::Auto => true,
            PathChoice::Only(only) => only == kind,
        }
    }

    /// Whether the session fails if this fabric fails although the primary offers it.
    pub fn is_demanded(&self, kind: FabricKind) -> bool {
        self.choice == PathChoice::Only(kind) || (kind.needs_device() && self.is_device_named)
    }

    /// Records that the executor of this kind could not be attached; the next kind may be tried.
    ///
    /// # Errors
    /// The search ends here: `NotReady`, `ServerNoResource`, or `Error`.
    pub fn failed(&mut self, kind: FabricKind, failure: Failure) -> Result<(), Status> {
        match (self.is_demanded(kind), failure) {
            (_, Failure::WrongAddress) => Err(Status::Error),
            (true, Failure::NotReady) => Err(Status::NotReady),
            (true, Failure::NoRoom) => Err(Status::ServerNoResource),
            (true, Failure::Other) => Err(Status::Error),
            (false, Failure::NotReady) => {
                self.is_not_ready = true;
                Ok(())
            }
            (false, Failure::NoRoom) => {
                self.is_full = true;
                Ok(())
            }
            (false, Failure::Other) => Ok(()),
        }
    }

    /// The status if no executor is left: `NotReady` if the primary refused one because it
    /// recovers, so that another attempt may help; `ServerNoResource` if the primary had no room
    /// for one; else `Error`.
    pub fn exhausted(&self) -> Status {
        match (self.is_not_ready, self.is_full) {
            (true, _) => Status::NotReady,
            (false, true) => Status::ServerNoResource,
            (false, false) => Status::Error,
        }
    }
}
