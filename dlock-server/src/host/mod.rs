// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary uses of its host: memory, device, processors, folders, clock, threads.

pub(crate) mod blocking;
pub(crate) mod capacity;
pub(crate) mod clock;
pub(crate) mod cpuset;
pub(crate) mod default_files;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod random;
pub(crate) mod threads;
