// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices, registered memory, queue pairs, and the use of a queue pair by both ends.
//!
//! ```text
//!   library ── ffi ──▶ libibverbs.so.1            port_selection, doctor: what was found, judged
//!   context ◀── memory ◀── qp ──▶ completion      timing: how long a device goes on trying
//!                          ▲
//!           poster: chains ┴ messages, credits: SEND and RECV       bare: a benchmark of its own
//! ```
//! This module does not know sessions, clients or primaries. `client` and `primary` use it, but not
//! each other.

pub(super) mod bare;
pub(super) mod completion;
pub(super) mod context;
pub(super) mod credits;
pub mod doctor;
pub(super) mod error;
pub(super) mod ffi;
pub(super) mod library;
pub(super) mod memory;
pub(super) mod messages;
pub mod port_selection;
pub(super) mod poster;
pub(super) mod qp;
pub mod timing;
