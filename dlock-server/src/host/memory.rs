// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock memory of this primary, in one atomicity domain.
//!
//! ```text
//!   Cpu   CPU atomics: shm clients map it, chains of tcp clients are executed here
//!   Nic   the device's atomics: verbs clients operate on it, this primary by its loopback queue
//!         pair, for itself and for tcp clients; no client maps it
//! ```

use dlock_core::counters::Told;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::membership::MemberMemory;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::status::Status;
use dlock_fabric::memory::cpu::Shared;
use dlock_fabric::{CpuMemory, FabricError, NicMemory};

/// The slots and ledgers.
#[derive(Debug)]
pub(crate) enum Memory {
    /// The memory is in the domain of the CPU.
    Cpu(CpuMemory),
    /// The memory is in the domain of a device.
    Nic(NicMemory),
}

/// Makes the same call on either kind of memory.
macro_rules! either {
    ($self:ident, $memory:ident => $call:expr) => {
        match $self {
            Memory::Cpu($memory) => $call,
            Memory::Nic($memory) => $call,
        }
    };
}

impl Memory {
    /// Slots of the memory.
    pub(crate) fn slots(&self) -> u32 {
        either!(self, memory => memory.slots())
    }

    /// Entries of every ledger.
    pub(crate) fn ledger_entries(&self) -> u32 {
        either!(self, memory => memory.ledger_entries())
    }

    /// Gives a client an empty ledger, unless it has one.
    pub(crate) fn add_client(&mut self, client: ClientId) -> Result<(), FabricError> {
        either!(self, memory => memory.add_client(client))
    }

    /// Forgets the ledger of a client that is fenced.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        either!(self, memory => memory.remove_client(client));
    }

    /// Marks the calling thread as the server: shm clients see in the memory when it ends.
    pub(crate) fn serve(&mut self) -> Result<(), FabricError> {
        match self {
            Self::Cpu(memory) => memory.serve(),
            Self::Nic(_) => Ok(()),
        }
    }

    /// Refuses the chains of all shm clients with this status, or permits them. If a device holds
    /// the memory, no client can reach it before the recovery has ended, so none is refused.
    pub(crate) fn set_gate(&mut self, status: Option<Status>) {
        if let Self::Cpu(memory) = self {
            memory.set_gate(status);
        }
    }

    /// Hands out the mapped memory; `None`: a device holds the memory.
    pub(crate) fn share(&mut self, client: ClientId) -> Option<Result<Shared<'_>, FabricError>> {
        match self {
            Self::Cpu(memory) => Some(memory.share(client)),
            Self::Nic(_) => None,
        }
    }

    /// Records that the client did not get the memory of the last [`share`](Self::share), so that
    /// its ledger does not count as mapped.
    pub(crate) fn unshare(&mut self, client: ClientId) {
        if let Self::Cpu(memory) = self {
            memory.unshare(client);
        }
    }

    /// Refuses the chains of this shm client from now on.
    pub(crate) fn revoke(&mut self, client: ClientId, status: Status) {
        if let Self::Cpu(memory) = self {
            memory.revoke(client, status);
        }
    }
}

impl MemberMemory for Memory {
    fn is_mapped(&self, client: ClientId) -> bool {
        match self {
            Self::Cpu(memory) => !memory.detached(client),
            Self::Nic(_) => false,
        }
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        either!(self, memory => memory.execute_chain(client, chain))
    }
}

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        either!(self, memory => memory.cas(addr, expect, swap))
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        either!(self, memory => memory.faa(addr, add))
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        either!(self, memory => memory.read(addr))
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        either!(self, memory => memory.set(addr, value));
    }
    fn set_all(&mut self, words: &[(WordAddr, u64)]) {
        either!(self, memory => memory.set_all(words));
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        either!(self, memory => memory.ledger(client, handle))
    }
    fn told(&mut self, client: ClientId) -> Told {
        either!(self, memory => memory.told(client))
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        either!(self, memory => memory.set_ledger(client, handle, entry));
    }
}
