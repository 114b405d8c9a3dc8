// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults between real clients and a real primary, and what is checked from outside.
//!
//! ```text
//!   worker processes ─ Instance ─ Faulty ─ shm | tcp | verbs ─▶ primary (this process or a child)
//!        └─ log: what was told, when (CLOCK_BOOTTIME of the one host) ─▶ check ─▶ violations
//! ```
//! The programs are in `tests/harness`, used by `tests/chaos.rs` and `examples/chaos.rs`
//! (`scripts/chaos.sh`). The simulator's own checker judges exclusion and the order of tickets: the
//! same source file is compiled here.
#![forbid(unsafe_code)]

pub mod check;
pub mod faults;
pub mod record;
pub mod waits;

#[path = "../../sim/src/system/object_oracle.rs"]
#[allow(dead_code, reason = "only the simulator uses objects")]
mod object_oracle;
#[path = "../../sim/src/system/oracle.rs"]
#[allow(dead_code, reason = "the simulator uses more of it")]
mod oracle;
#[path = "../../sim/src/system/rng.rs"]
pub mod rng;
#[path = "../../sim/src/system/token_oracle.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the simulator")]
mod token_oracle;
