// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's end: chains, ledger writes and messages over the queue pairs of one session.
//!
//! ```text
//!   VerbsPath ─attach─▶ VerbsExecutor ─▶ CompletionPump ─▶ PosterSlots, Ring   chains, ledger
//!                                     └▶ Requests                    requests, replies
//!   TcpExecutor ─▶ Stream ─▶ SealedEnd      sealed: the frames of tcp, over one queue pair
//! ```

mod attach;
mod completion_pump;
pub(super) mod counts;
pub(super) mod deferred;
pub(super) mod executor;
mod memory;
mod poster_slot;
mod requests;
mod ring;
pub(super) mod sealed;
