// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary, its memory, and clients whose word operations the primary does not see, unless the
//! test reports them.
#![allow(dead_code, reason = "every program uses a part of it")]

use dlock_core::budget::work::ITEM_WORK_MAX;
use dlock_core::clock::{Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::limits::{BATCH_MAX, LOCKS_MAX};
use dlock_core::locks::{Locks, PrimaryConfig, Sent, Step};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::token::TokenFloor;
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

use super::Memory;

pub const NOW: ServerTime = ServerTime(5_000 * NS);
pub const LEASE_S: u32 = 60;

pub struct World {
    pub primary: Locks,
    pub memory: Memory,
    pub seq: u64,
    pub out: Vec<Sent>,
}

impl World {
    pub fn new(clients_max: usize) -> Self {
        Self::recovering(clients_max, 0)
    }

    /// A primary that waits for the claims of `recovery_clients` clients.
    pub fn recovering(clients_max: usize, recovery_clients: u32) -> Self {
        Self::recovering_as(clients_max, recovery_clients, 1)
    }

    /// As `recovering`, for a primary of this epoch.
    pub fn recovering_as(clients_max: usize, recovery_clients: u32, epoch: u64) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(epoch),
            tp_mode: 0,
            recovery_clients,
            clients_max,
            locks_max: LOCKS_MAX,
            objects_max: 1_000,
            absent_grace_ns: None,
            tokens: TokenFloor::default(),
        };
        let (primary, memory) = (Locks::new(config), Memory::default());
        Self { primary, memory, seq: 0, out: Vec::new() }
    }

    pub fn admit(&mut self, id: u32) -> Result<ClientId, Status> {
        let client = ClientId::new(id).unwrap();
        self.primary.add_client(client).map(|()| client)
    }

    /// Admits a client over a fabric whose word operations the primary does not see.
    pub fn client(&mut self, id: u32, fabric: FabricKind) -> ClientId {
        let client = self.admit(id).unwrap();
        self.primary.attached(NOW, &mut self.memory, client, fabric, &mut self.out);
        client
    }

    pub fn control(&mut self, client: ClientId, request: ControlRequest) -> ControlReply {
        self.primary.control(NOW, &mut self.memory, client, request, &mut self.out)
    }

    pub fn get(
        &mut self,
        client: ClientId,
        names: &[String],
        lock_type: LockType,
    ) -> Vec<LockGrant> {
        let desc = |name: &String| LockDesc {
            name: name.clone().into(),
            lock_type,
            lease_s: 0,
            tokens: false,
        };
        let mut grants = Vec::new();
        for batch in names.chunks(BATCH_MAX) {
            let descs = batch.iter().map(desc).collect();
            match self.control(client, ControlRequest::GetLocks(descs)) {
                ControlReply::Locks(locks) => grants.extend(locks.into_iter().map(Result::unwrap)),
                other => panic!("{other:?}"),
            }
        }
        grants
    }

    /// Takes a free lock for a client, by setting its word.
    pub fn take(&mut self, client: ClientId, grant: &LockGrant, lock_type: LockType) {
        let swap = match lock_type {
            LockType::Atomic => AtomicWord::new()
                .with_client(client.get())
                .with_timeout(NOW.deadline(Lease::secs(LEASE_S)))
                .into_bits(),
            _ => RwWord::new().with_client(client.get()).into_bits(),
        };
        assert_eq!(self.memory.cas(w0(grant), 0, swap), 0);
    }

    pub fn wait(&mut self, client: ClientId, grant: &LockGrant, mode: Mode) -> Seq {
        self.seq += 1;
        let (seq, wait) = (Seq(self.seq), WaitNumber(1));
        let request = Request::Wait {
            handle: grant.handle,
            mode,
            lease: Lease::secs(LEASE_S),
            wait,
            ticket: None,
        };
        let before = self.out.len();
        self.primary.command(NOW, &mut self.memory, client, seq, request, &mut self.out);
        assert_eq!(self.out.len(), before, "it has to wait");
        seq
    }

    pub fn step(&mut self, now: ServerTime, budget: u32) -> Step {
        let step = self.primary.step(now, &mut self.memory, budget, &mut self.out);
        assert!(step.work <= budget + ITEM_WORK_MAX, "{step:?} of {budget}");
        step
    }

    pub fn granted(&self, seq: Seq) -> bool {
        let is = |sent: &&Sent| sent.seq == seq && matches!(sent.reply, Reply::Granted { .. });
        self.out.iter().any(|sent| is(&sent))
    }
}

pub fn w0(grant: &LockGrant) -> WordAddr {
    WordAddr::new(grant.slot, Word::W0)
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("lock {i}")).collect()
}
