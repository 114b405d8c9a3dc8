// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers that several test suites share: a model of lock memory, executors that can be held up,
//! random numbers.
#![forbid(unsafe_code)]

mod dice;
pub mod fake;
pub mod late;
mod memory;

pub use dice::Dice;
pub use memory::Memory;
