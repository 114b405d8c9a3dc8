// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exhaustive models of one lock and three clients: every reachable state, by a model checker.
//!
//! ```text
//!   Setup ──▶ LockModel ──states, actions──▶ stateright    safety, "sometimes", shortest traces
//!                │                      └──▶ liveness      the graph: dead ends, fair cycles
//!                └─ a state is the real thing: LockEntry and Operation per client, one Arbiter
//! ```
//! No part of the protocol is written down a second time here: an action calls `dlock-core` with a
//! word, three ledger entries and a clock of this crate. `README.md` says what a model leaves out.
//! [`Bug`]s that can be planted around the core show what a model notices.
#![forbid(unsafe_code)]

mod actions;
mod bug;
mod call;
mod check;
mod client;
mod failover;
mod liveness;
mod noted;
mod recoveries;
mod run;
mod setups;
mod state;
mod turn;

pub use actions::{Action, LockModel};
pub use bug::Bug;
pub use failover::Awaits;
pub use liveness::{walk, Graph};
#[cfg(feature = "planted")]
pub use recoveries::core_recoveries;
pub use recoveries::{large_recoveries, planted_recoveries, recoveries};
pub use run::{exhaust, hunt, Report};
#[cfg(feature = "planted")]
pub use setups::{laps, planted_rules};
pub use setups::{large, planted, small};
pub use state::{Event, Setup, State, CLIENTS};
pub use turn::{explore_turns, turn_bugs, turns, turns_large, TurnSetup};
