// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client may use of the primary: work in a turn, shares of what is limited, rates.

pub mod rate;
pub mod shares;
pub mod work;
