// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA verbs: devices, registered memory, queue pairs.
//!
//! ```text
//!   library() ── dlopen ──▶ libibverbs.so.1                         absent: a state, not a crash
//!   devices() ─▶ choose() ─▶ Context ◀── Pd ◀── Mr ──▶ Region       arrows: holds
//!                              ▲          ▲
//!                              └── Cq ◀── Qp ◀── Poster (chains), Messages (SEND/RECV)
//!
//!   client   VerbsExecutor ─▶ CompletionPump ─▶ PosterSlots, Ring ─▶ Posters   chains, ledger
//!                          └▶ Talk ─▶ Messages, Inbox                   requests and replies
//!   primary  VerbsHost ─admit─▶ VerbsPeer ─▶ Messages, registrations    one per client
//!            NicMemory ─▶ Loopback ─▶ Poster                            its own operations
//! ```
//! What this module does not do: decide anything about locks, speak on the control channel (but
//! for the attach exchange of a client), or start threads.
//!
//! Drops are in order by ownership: a queue pair is destroyed before the memory it was given, its
//! completion queues and its protection domain. A forked child destroys nothing of its parent.
//!
//! Nothing of RDMA is needed to build this, and nothing is loaded before it is asked for.

mod attach;
mod bare;
mod completion;
mod completion_pump;
mod counts;
mod credits;
mod device;
pub mod doctor;
mod error;
mod executor;
mod ffi;
mod health;
mod host;
mod late;
mod library;
mod loopback;
mod memory;
mod messages;
mod nic_memory;
mod peer;
pub mod port_selection;
mod poster;
mod poster_slot;
mod qp;
mod ring;
mod talk;
pub mod timing;

#[cfg(test)]
mod device_tests;

pub use bare::BareFaa;
pub use completion::{Channel, Completion, Cq, WorkId};
pub use counts::WordOpCounts;
pub use credits::RING_SLOTS_MIN;
pub use device::{devices, Context};
pub use error::VerbsError;
pub use executor::{VerbsExecutor, VerbsOptions, EFFECT_NS_MAX};
pub use host::{Arrival, PeerId, VerbsHost, ARRIVALS_MAX};
pub use late::VerbsPath;
pub use library::{library, Absent, Library};
pub use memory::{Access, Mr, Pages, Pd, Region, RemoteRegion, RemoteWord};
pub use messages::{Event, MessageError, MessageSpec, Messages};
pub use nic_memory::{DeviceLost, NicMemory};
pub use peer::VerbsPeer;
pub use port_selection::{choose, DeviceInfo, Gid, NoPort, PortSelection};
pub use poster::{Batch, Notify, PostError, PostedList, Poster, RemoteOp, Settled};
pub use qp::{Endpoint, Qp, QpSpec};

/// Receive buffers of a message ring: requests under way to a primary, or replies to a client.
pub const RING_SLOTS: u16 = 16;
/// Bytes of a message buffer; the longest frame of the arbiter's has less than half of it.
pub const MESSAGE_BYTES: u32 = 128;
/// Bytes inline in a work request of verbs: the value of a write.
const WORD_OP_BYTES: u32 = 8;
