// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C libraries of dlock share: the types and codes of the headers in `include/`, the
//! guard around every exported function, and the log sink.
//!
//! ```text
//!   C caller ──▶ exported function ──▶ guard::call ──▶ arguments read once ──▶ dlock-client,
//!                                         │panic            (args, types)      dlock-server
//!                                         ▼
//!                                   the function's failure code, and a log line
//! ```
//! What this crate does not do: export anything. No argument is trusted to be more than what
//! the headers demand of it; `bool` and `enum` fields are read as integers, because existing
//! programs leave some of them unset.

pub mod args;
pub mod code;
pub mod guard;
pub mod logging;
pub mod tls;
pub mod types;
