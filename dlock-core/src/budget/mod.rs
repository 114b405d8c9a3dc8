// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of one client at the primary: work in a turn, shares of the command thread, rates.

pub mod rate;
pub mod shares;
pub mod work;
