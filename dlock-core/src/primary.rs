// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a primary decides.

pub use crate::locks::{Locks as Primary, *};
