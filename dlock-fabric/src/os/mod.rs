// SPDX-License-Identifier: MIT OR Apache-2.0
//! Services of the operating system: descriptors, sockets, threads, processes, clocks.

pub mod clock;
pub mod environment;
pub mod fds;
pub mod fork;
pub mod net;
pub mod signals;
pub mod sink;
pub(crate) mod sys;
pub mod threads;
pub mod users;
pub mod wake;

pub use sys::{denied, named};
