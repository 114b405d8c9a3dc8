// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C libraries of dlock share: the types of the headers in `include/`, the guard
//! around every exported function, and the log sink.
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
pub mod guard;
pub mod logging;
pub mod types;

use std::os::raw::c_int;

use dlock_core::status::Status;

/// The codes of the data path that are returned before an operation exists.
pub mod code {
    use super::{c_int, Status};

    /// Plain failure.
    pub const ERROR: c_int = Status::Error as c_int;
    /// Success.
    pub const SUCCESS: c_int = Status::Success as c_int;
    /// An argument is invalid.
    pub const EINVAL: c_int = Status::Invalid as c_int;
    /// Asked too often.
    pub const EAGAIN: c_int = Status::Again as c_int;
    /// No such client.
    pub const CLIENT_NOT_INIT: c_int = Status::ClientNotInit as c_int;
    /// The client library is not initialised.
    pub const CLIENTMGR_NOT_INIT: c_int = Status::ClientMgrNotInit as c_int;
    /// No answer, or nonsense.
    pub const BAD_RESPONSE: c_int = Status::BadResponse as c_int;
    /// No room.
    pub const SERVER_NO_RESOURCE: c_int = Status::ServerNoResource as c_int;
}
