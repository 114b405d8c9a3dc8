// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dlock client.
//!
//! What this crate does not do: decide what a lock is (that is `dlock-core`), touch memory or
//! sockets of the data path (`dlock-fabric`), or change anything of the process it lives in. It
//! starts one thread for all clients of the process when it is first needed: for heartbeats,
//! futures and failover. Work of that thread that takes long runs in a thread of its own, which
//! ends with the work.
//!
//! ```text
//!   Client, guards ──▶ Instance ──▶ table of locks ──▶ core machines ──▶ executor
//!   (Rust programs)    (C calls)       └──────────── control connection ──▶ primary
//! ```
//! * [`Client`] is for Rust programs: locks by name, guards that release on drop, typed errors.
//!   An [`Acquire`] ends in `.guard()`, which borrows the lock, in `.owned()`, which keeps it, or
//!   in `.await`, on any runtime.
//! * [`raw::Instance`] has the calls, codes and checks of the C API; the C library is built on it.
//!
//! ```no_run
//! use dlock_client::{Client, Mode};
//!
//! let client = Client::connect("10.0.0.1")?;
//! let table = client.fair_lock("table 7")?;
//! let guard = table.acquire(Mode::Exclusive).guard()?; // waits 5 s at most, for a lease of 30 s
//! // … no other client is here …
//! guard.unlock()?;
//! # Ok::<(), dlock_client::Error>(())
//! ```
#![forbid(unsafe_code)]

mod about;
mod ask;
mod attach;
mod backoff;
mod client;
mod clock;
mod config;
mod control;
mod denied;
mod driver;
mod error;
mod events;
mod execute;
mod fabrics;
mod guard;
mod host;
mod instance;
mod lock;
mod logged_once;
mod mutex;
mod object;
mod options;
mod perform;
mod reference;
mod refused;
mod secure;
mod stats;
mod table;

pub use about::LABEL_VARIABLE;
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use attach::Wrap;
pub use client::{Client, LEASE_MAX, LEASE_MIN};
#[doc(hidden)]
pub use config::ClientConfig;
pub use config::{
    FabricChoice, CACHE_VARIABLE, FABRIC_VARIABLE, HORIZON_S_DEFAULT, HORIZON_VARIABLE,
    PRIMARIES_VARIABLE, SILENCE_VARIABLE,
};
pub use dlock_core::counters::COUNTERS;
pub use dlock_core::ids::{ClientId, LockId, ObjectId};
pub use dlock_core::lock::Loss;
pub use dlock_core::token::Token;
pub use dlock_core::wire::control::LockDesc;
pub use dlock_core::wire::fabric::FabricKind;
pub use dlock_core::wire::message::{LockType, Mode};
pub use dlock_core::wire::status::Status;
pub use dlock_fabric::tls::{
    FilePassword, FixedPassword, KeyPassword, NoPassword, Tls, TlsError, TlsFiles,
};
pub use dlock_fabric::verbs::WordOpCounts;
pub use driver::futures::FUTURES_MAX;
pub use driver::renewals::Renew;
pub use error::Error;
pub use events::{Event, Events, HoldEvent, EVENTS_MAX};
pub use guard::{Guard, OwnedGuard};
pub use host::{Address, NoAddress};
pub use lock::{Acquire, AcquireFuture, Lock, Wait, LEASE_DEFAULT, WAIT_DEFAULT};
pub use mutex::{Mutex, MutexGuard};
pub use object::Object;
pub use options::{Config, QueuePairs, HORIZON_MAX};
pub use secure::{
    TlsUse, TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_CRL_VARIABLE, TLS_KEY_VARIABLE,
    TLS_PASSWORD_VARIABLE,
};

/// The calls of the C API: locks and objects by number, results as codes and views.
pub mod raw {
    pub use crate::host::Removal;
    pub use crate::instance::{AsyncOp, Instance};
    pub use dlock_core::lock::{OpResult, TimeOut, View};
}
