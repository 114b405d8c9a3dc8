// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the word operations and carries the messages of `dlock-core`.
//!
//! ```text
//!             client side                                        server side
//!   ShmExecutor ── CPU atomics in the caller's thread ──▶ SlotMemory, LedgerMemory ◀── CpuMemory
//!        └─ Stream ── messages, Unix socket ─────────────▶ command thread
//!   TcpExecutor ─ Stream ── chains and messages, TCP ────▶ command thread ── chains ──▶ CpuMemory
//!   VerbsExecutor ── NIC atomics ──▶ slots, ledger ◀── NIC atomics, by a loopback ── NicMemory
//!        └─ SEND/RECV ─────────────▶ VerbsHost ──▶ command thread
//!   TcpExecutor ─ Stream ─ SealedEnd ─ SEND/RECV ─▶ SealedPeer ──▶ command thread: as of tcp
//! ```
//!
//! This crate decides nothing about locks, does not serve connections (it has the parts that a
//! server needs), and starts no threads except the echo peers of [`baseline`] and the thread of
//! [`os::sink`].
//!
//! All access to words that two processes share goes through [`memory::atomic`], within the bounds
//! of their memory. A memory belongs to one domain of atomicity: [`CpuMemory`] to that of the CPU,
//! [`NicMemory`] to that of an RDMA device. Certificates, keys and the rules for peers are in
//! [`tls`].

pub mod baseline;
mod ended;
mod error;
pub mod memory;
pub mod os;
mod refuse;
mod server_clock;
mod shm;
pub mod stream;
mod tcp;
pub mod tls;
pub mod verbs;

pub use dlock_core::clock::ClockEstimate;
pub use ended::Ended;
pub use error::FabricError;
pub use memory::cpu::CpuMemory;
pub use refuse::Refuse;
pub use shm::ShmExecutor;
pub use tcp::TcpExecutor;
pub use verbs::{
    DeviceLost, NicMemory, SealedPeer, VerbsExecutor, VerbsHost, VerbsOptions, VerbsPath, VerbsPeer,
};
