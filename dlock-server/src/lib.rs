// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dlock primary: two threads around [`dlock_core::primary::Primary`].
//!
//! ```text
//!   clients ──control connections──▶ control thread (tokio): frames, limits, time limits
//!                                        │ bounded queue, replies
//!                                        ▼
//!   clients ──command channels─────▶ command thread (epoll): the primary's state and memory
//!   clients ──RDMA atomics──────────▶ the memory itself, through the device
//! ```
//! What this crate does not do: handle signals, print, or change anything of its host process.
//! Messages go to the `log` facade, for the sink of the host program. Every failure to start leaves
//! nothing behind and says in one line what to do; [`Server::stop`] takes less than a second.
#![forbid(unsafe_code)]

mod command;
mod config;
mod control;
mod coordinator;
mod error;
mod host;
mod observe;
mod server;
#[cfg(test)]
mod testing;
mod transport;

pub use config::{
    Orphans, Rule, ServerConfig, VerbsUse, ABSENT_GRACE, FRAMES_PER_SECOND_MAX, RECOVERY_DEADLINE,
};
pub use control::Recovery;
pub use coordinator::standby::{stand_by, StandbyConfig};
pub use error::{thread_remedy, StartError};
pub use host::blocking::{on_a_thread, runtime};
pub use host::capacity::{Bound, Capacity, LockedMemory};
pub use host::cpuset::{CpuSet, CpuSetError};
pub use host::default_files::DefaultFiles;
pub use observe::admin_socket::connect_admin;
pub use server::{Offers, Server};

/// The version as the packages write it, `26.06.100`: they want two digits for the month, and Cargo
/// does not allow the leading zero.
pub const VERSION: &str = match env!("CARGO_PKG_VERSION_MINOR").len() {
    1 => concat!(
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".0",
        env!("CARGO_PKG_VERSION_MINOR"),
        ".",
        env!("CARGO_PKG_VERSION_PATCH")
    ),
    _ => env!("CARGO_PKG_VERSION"),
};
