// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices, registered memory, queue pairs, and what both ends do with a queue pair.
//!
//! ```text
//!   library ── ffi ──▶ libibverbs.so.1            port_selection, doctor: what was found, judged
//!   context ◀── memory ◀── qp ──▶ completion      timing: how long a device goes on trying
//!                          ▲
//!           poster: chains ┴ messages, credits: SEND and RECV       bare: a benchmark of its own
//! ```
//! What this module does not do: know of sessions, clients or primaries. Those are `client` and
//! `primary`, which both use it, and neither the other.

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
