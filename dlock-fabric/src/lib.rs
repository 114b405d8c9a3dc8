// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the verbs and carries the messages of `dlock-core`.
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
//! What this crate does not do: decide anything about locks, serve connections (it has the pieces
//! a server needs), or start threads (but for the echo peers of [`baseline`], and that of
//! [`os::sink`]).
//!
//! Everything that two processes operate on goes through [`memory::atomic`]; every access is
//! bounded by the memory it belongs to. A memory belongs to one atomicity domain: [`CpuMemory`] to
//! the CPU's, [`NicMemory`] to that of an RDMA device. Certificates, keys and the rules for peers'
//! are in [`tls`].

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
