// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between clients and primaries, and their bytes.

pub mod about;
pub mod codec;
pub mod control;
pub mod fabric;
pub mod message;
pub mod status;
