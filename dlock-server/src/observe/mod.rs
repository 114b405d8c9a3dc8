// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator sees of a primary: the admin socket, its requests, and the limits of the log.

pub(crate) mod acts;
pub(crate) mod admin;
pub(crate) mod admin_socket;
pub(crate) mod json_lines;
pub(crate) mod log_limit;
