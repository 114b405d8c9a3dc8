// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dlock protocol, pure: no I/O, no clock, no threads, no `unsafe`.
//!
//! What this crate does not do: talk to anybody. It turns operations into [chains](word_op::Chain)
//! and [messages](message::Request), and outcomes and replies into results; somebody else
//! executes them and says what time it is.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod clock;
pub mod codec;
pub mod control;
pub mod counters;
pub mod exec;
pub mod fabric;
pub mod ids;
pub mod limits;
pub mod lock;
pub mod locks;
pub mod membership;
pub mod message;
pub mod operation;
pub mod planted;
pub mod primary;
pub mod rate;
pub mod registry;
pub mod rights;
pub mod roster;
pub mod session;
pub mod shares;
pub mod standby;
pub mod status;
pub mod word_op;
pub mod words;
pub mod work;
