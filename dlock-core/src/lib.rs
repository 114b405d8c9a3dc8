// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dlock protocol, pure: no I/O, no clock, no threads, no `unsafe`.
//!
//! This crate does not send, and does not wait. It turns operations into
//! [chains](memory::word_op::Chain) and [messages](wire::message::Request), and outcomes and
//! replies into results. Its drivers execute the chains, carry the messages, and pass the time as
//! an argument.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod budget;
pub mod clock;
pub mod counters;
pub mod ids;
pub mod limits;
pub mod lock;
pub mod locks;
pub mod membership;
pub mod memory;
pub mod operation;
pub mod planted;
pub mod primary;
pub mod registry;
pub mod rights;
pub mod roster;
pub mod session;
pub mod standby;
pub mod token;
pub mod wire;
