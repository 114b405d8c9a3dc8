// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator sees of a primary: the admin socket, its requests, metrics and probes over
//! HTTP, and the limits of the log.

pub(crate) mod acts;
pub(crate) mod admin;
pub(crate) mod admin_socket;
pub(crate) mod http;
pub(crate) mod json_lines;
pub(crate) mod log_limit;
pub(crate) mod metrics;
pub(crate) mod roles;
pub(crate) mod snapshot;
