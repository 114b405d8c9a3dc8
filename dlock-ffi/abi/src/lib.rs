// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common part of the C libraries of dlock: the types and codes of the headers in `include/`,
//! the guard around every exported function, and the log sink.
//!
//! ```text
//!   C caller ──▶ exported function ──▶ guard::call ──▶ arguments read once ──▶ dlock-client,
//!                                         │panic            (args, types)      dlock-server
//!                                         ▼
//!                                   the function's failure code, and a log line
//! ```
//! This crate exports nothing. It relies only on what the headers demand of arguments: `bool` and
//! `enum` fields are read as integers, because existing programs leave some of them unset.

pub mod args;
pub mod code;
pub mod guard;
pub mod logging;
pub mod tls;
pub mod types;
