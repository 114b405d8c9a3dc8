// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that clients and primaries share: its words, and the operations on them.

pub mod exec;
pub mod word_op;
pub mod words;
