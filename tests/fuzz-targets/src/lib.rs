// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fuzzers do with a byte string, as plain functions.
//!
//! ```text
//!   tests/fuzz (libFuzzer) ──bytes──▶ run(data) ◀──corpora, noise── cargo test (this crate)
//! ```
//! A target panics if what it drives breaks a promise; nothing else counts. `tests/fuzz/README.md`
//! tells how to run them.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod calls;
#[path = "../../../dlock-server/tests/common/certs.rs"]
mod certs;
pub mod client;
pub mod config;
pub mod frames;
pub mod handshake;
mod peers;
pub mod samples;
pub mod sealed;
mod tape;
pub mod tls_bytes;
// the source of dlockd that config.rs includes expects these modules in the root of the crate
#[path = "../../../dlock-server/src/bin/dlockd/format.rs"]
#[allow(dead_code)]
mod format;
#[path = "../../../dlock-server/src/bin/dlockd/rules.rs"]
#[allow(dead_code)]
mod rules;
#[path = "../../../dlock-server/src/bin/dlockd/tls.rs"]
#[allow(dead_code)]
mod tls;

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// The function that processes an input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target { name: "frames", run: frames::run },
    Target { name: "config", run: config::run },
    Target { name: "handshake", run: handshake::run },
    Target { name: "arbiter", run: arbiter::run },
    Target { name: "client", run: client::run },
    Target { name: "calls", run: calls::run },
    Target { name: "sealed", run: sealed::run },
    Target { name: "tls_bytes", run: tls_bytes::run },
];
