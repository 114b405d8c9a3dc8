// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory: as files that processes map, and as the primary uses it.

pub mod atomic;
pub mod cpu;
pub mod mapped;
pub(crate) mod owner_mutex;
pub(crate) mod published;
