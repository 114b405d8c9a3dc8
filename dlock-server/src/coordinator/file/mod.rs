// SPDX-License-Identifier: MIT OR Apache-2.0
//! The coordinator that is a file on this host, which primaries and standbys reach.
//!
//! ```text
//!   STATE                  epoch.rs     the last epoch
//!   STATE.clients          roster.rs    the clients        open.rs  read at the start
//!   STATE.clients.lock     owner.rs     whose they are     name.rs  and by which name on this host
//! ```

pub(crate) mod epoch;
mod files;
mod fresh;
mod name;
mod open;
mod owner;
mod roster;

pub(crate) use files::{opened, others_may_write, resolved};
pub(crate) use fresh::{remove_unfinished, Fresh};
pub(crate) use open::{found, Found};
pub(crate) use owner::{has_ended, list_of, owner, process, signature, Ownership};
pub(crate) use roster::FileKeeper;
