// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of the simulation.

/// An event that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ev {
    /// A client's thread continues: client, incarnation, lock, number of its step.
    Step(u8, u16, u8, u32),
    /// A client's thread has waited long enough.
    Timer(u8, u16, u8, u32),
    /// A look at a hold that is renewed: client, incarnation, lock.
    Renewal(u8, u16, u8),
    /// A client looks after what it keeps of a lock: client, incarnation, lock.
    Kept(u8, u16, u8),
    /// The CPU of a client executes the next word operation of its chain (shm).
    WordOp(u8, u16, u8, u32),
    /// The next unit of a client's channel arrives at the primary.
    Up(u8),
    /// The next word operation that a client posted on an earlier channel is executed, unless its
    /// queue pair is fenced.
    Straggle(u8),
    /// The next frame of a client's channel arrives at the client.
    Down(u8),
    /// The next request of a client's control connections arrives at the primary.
    ControlUp(u8),
    /// The next reply arrives at a client.
    ControlDown(u8),
    /// A client's control thread continues, or has waited long enough.
    Control(u8, u16, u32),
    /// The primary notices that a control connection is gone: client, incarnation, connection.
    Lost(u8, u16, u32),
    /// The primary closes a control connection because its peer does not answer.
    Silent(u8, u16, u32),
    /// A client notices that its channel is gone: client, incarnation, channel.
    Reset(u8, u16, u32),
    /// The primary drops a channel whose client does not read.
    Stalled(u8, u16, u32),
    /// The primary handles the next message in its inbox.
    Serve,
    /// The primary looks at its clock.
    Tick(u64),
    /// A successor is started.
    Successor,
    /// The standby continues: the number of its step.
    Standby(u32),
    /// An operator checks on the standby.
    Operator,
    /// A new process is started for a client whose process has ended.
    Restart(u8),
}
