// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's end: the clients it has admitted, and its own operations on the lock memory.
//!
//! ```text
//!   VerbsHost ─admit─▶ VerbsPeer                 one per client that operates on the memory itself
//!             ─admit_sealed─▶ SealedPeer         one per client that sends sealed frames
//!   NicMemory ───────▶ Loopback, Health          the primary's own operations
//! ```

mod health;
pub(super) mod host;
mod loopback;
pub(super) mod nic_memory;
pub(super) mod peer;
pub(super) mod sealed;
