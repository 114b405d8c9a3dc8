// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA verbs: devices, registered memory, queue pairs.
//!
//! ```text
//!   device   library() ── dlopen ──▶ libibverbs.so.1                absent: a state, not a crash
//!            devices() ─▶ choose() ─▶ Context ◀── Pd ◀── Mr ──▶ Region        arrows: holds
//!                                       ▲          ▲
//!                                       └── Cq ◀── Qp ◀── Poster (chains), Messages (SEND/RECV)
//!
//!   client   VerbsExecutor ─▶ CompletionPump ─▶ PosterSlots, Ring ─▶ Posters   chains, ledger
//!                          └▶ Requests ─▶ Messages, Inbox                   requests and replies
//!            SealedEnd ─▶ Messages, Sealer, Opener                 frames of a TLS session
//!   primary  VerbsHost ─admit─▶ VerbsPeer ─▶ Messages, registrations    one per client
//!            NicMemory ─▶ Loopback ─▶ Poster                            its own operations
//! ```
//! Each of the three parts is a folder. `client` and `primary` use `device`, which uses neither of
//! them. Both share the receiving part of a sealed path (`unsealed`).
//!
//! This module decides nothing about locks, starts no threads, and uses the control channel only
//! for the attach exchange of a client.
//!
//! A queue pair is destroyed before its memory, its completion queues and its protection domain:
//! each keeps the ones that it needs alive. A forked child destroys nothing of its parent.
//!
//! Building this crate needs no RDMA library; the library is loaded at the first use.

mod client;
mod device;
mod primary;
mod unsealed;

#[cfg(test)]
mod device_tests;

pub use client::counts::WordOpCounts;
pub use client::deferred::VerbsPath;
pub use client::executor::{VerbsExecutor, VerbsOptions, EFFECT_NS_MAX};
pub(crate) use client::sealed::SealedEnd;
pub use device::bare::BareFaa;
pub use device::completion::{Channel, Completion, Cq, WorkId};
pub use device::context::{devices, Context};
pub use device::credits::RING_SLOTS_MIN;
pub use device::error::VerbsError;
pub use device::library::{library, Absent, Library};
pub use device::memory::{Access, Mr, Pages, Pd, Region, RemoteRegion, RemoteWord};
pub use device::messages::{Event, MessageError, MessageSpec, Messages, MESSAGE_BYTES, RING_SLOTS};
pub use device::port_selection::{choose, DeviceInfo, Gid, NoPort, PortSelection};
pub use device::poster::{Batch, Notify, PostError, PostedList, Poster, RemoteOp, Settled};
pub use device::qp::{Endpoint, Qp, QpSpec};
pub use device::{doctor, port_selection, timing};
pub use primary::host::{Arrival, PeerId, VerbsHost, ARRIVALS_MAX};
pub use primary::nic_memory::{DeviceLost, NicMemory};
pub use primary::peer::VerbsPeer;
pub use primary::sealed::SealedPeer;
