// SPDX-License-Identifier: MIT OR Apache-2.0
//! What travels between clients and primaries, and its bytes.

pub mod codec;
pub mod control;
pub mod fabric;
pub mod message;
pub mod status;
