// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of everything that frames carry.

use super::*;
use crate::clock::{Deadline, Lease};

/// A small generator of values (splitmix64): the same on every run.
pub(super) struct Gen(pub(super) u64);

impl Gen {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(super) fn bool(&mut self) -> bool {
        self.below(2) == 1
    }
    pub(super) fn u16(&mut self) -> u16 {
        self.next() as u16
    }
    pub(super) fn u32(&mut self) -> u32 {
        self.next() as u32
    }
    pub(super) fn name(&mut self) -> Vec<u8> {
        let len = [1, 2, 17, DESC_LEN_MAX][self.below(4)];
        (0..len).map(|_| self.next() as u8).collect()
    }
    pub(super) fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = [0, 1, 2, BATCH_MAX][self.below(4)];
        (0..len).map(|_| item(self)).collect()
    }
    /// Something told: after nothing a later version could add no field.
    pub(super) fn about(&mut self) -> About {
        let label = ["", "orders", "ümläut"][self.below(3)];
        About::new(label, "node1", "7", self.u32() | 1).unwrap()
    }
    pub(super) fn client(&mut self) -> ClientId {
        ClientId::new(self.u32() & ClientId::MAX | 1).unwrap()
    }
    pub(super) fn secret(&mut self) -> Secret {
        Secret(std::array::from_fn(|_| self.next() as u8))
    }
    pub(super) fn status(&mut self) -> Status {
        Status::ALL[self.below(Status::ALL.len())]
    }
    pub(super) fn refusal(&mut self) -> Status {
        match self.status() {
            Status::Success | Status::Done => Status::Fail,
            status => status,
        }
    }
    pub(super) fn mode(&mut self) -> Mode {
        [Mode::Exclusive, Mode::Shared][self.below(2)]
    }
    pub(super) fn ticket(&mut self) -> Ticket {
        Ticket { lap: self.next(), tx: self.u32(), ts: self.u32() }
    }
    pub(super) fn wait(&mut self) -> WaitNumber {
        WaitNumber(self.u32())
    }
    pub(super) fn handle(&mut self) -> Handle {
        Handle(self.u32())
    }
    pub(super) fn lease(&mut self) -> Lease {
        Lease(self.u32() | 1)
    }
    pub(super) fn desc(&mut self) -> LockDesc {
        let lock_type = [LockType::Atomic, LockType::Rw, LockType::Fair][self.below(3)];
        LockDesc { name: self.name(), lock_type, lease_s: self.u32(), tokens: self.bool() }
    }
    pub(super) fn act(&mut self) -> Act {
        let whose = match self.below(4) {
            0 => Whose::Client(self.client()),
            1 => Whose::Holders { name: self.name(), client: Some(self.client()) },
            2 => Whose::Departed,
            _ => Whose::All,
        };
        match self.bool() {
            true => Act::TakeAway { whose, grace_s: self.u32(), now: self.bool() },
            false => Act::Drain { is_on: self.bool() },
        }
    }
    pub(super) fn claim(&mut self) -> Claim {
        let lock = LockId(self.u32() as i32);
        let desc = self.desc();
        let held = self.bool().then(|| HeldClaim {
            mode: self.mode(),
            is_queued: self.bool(),
            left_ns: self.next(),
            age_ms: self.u32(),
            epoch: Epoch(self.next()),
            deadline: Deadline(self.u32()),
            fair: self.bool().then(|| self.place()),
            token: Token(self.next()),
        });
        Claim { lock, desc, held }
    }
    pub(super) fn place(&mut self) -> Place {
        Place { epoch: Epoch(self.next()), ticket: self.ticket() }
    }
    pub(super) fn word_op(&mut self) -> WordOp {
        let addr = WordAddr::from_index(self.u32());
        match self.below(4) {
            0 => WordOp::Cas { addr, expect: self.next(), swap: self.next() },
            1 => WordOp::Faa { addr, add: self.next() },
            2 => WordOp::Read { addr },
            _ => WordOp::WriteLedger { handle: self.handle(), value: self.next() },
        }
    }
    pub(super) fn chain(&mut self) -> Chain {
        let mut chain = Chain::one(self.word_op());
        for _ in 0..self.below(CHAIN_OPS_MAX) {
            chain = chain.then(self.word_op());
        }
        chain
    }
    pub(super) fn outcome(&mut self) -> Outcome {
        match self.below(3) {
            0 => {
                let mut values = Values::new();
                for _ in 0..self.below(CHAIN_OPS_MAX + 1) {
                    values.push(self.next());
                }
                Outcome::Done(values)
            }
            1 => Outcome::Unknown,
            _ => Outcome::Refused(self.refusal()),
        }
    }
    pub(super) fn endpoint(&mut self) -> VerbsEndpoint {
        VerbsEndpoint {
            qp_num: self.u32() >> 8,
            psn: self.u32() >> 8,
            gid: self.secret().0,
            lid: self.u16(),
            mtu: 1 + self.below(5) as u8,
            reads: self.next() as u8 | 1,
        }
    }
    pub(super) fn maybe_endpoint(&mut self) -> Option<VerbsEndpoint> {
        self.bool().then(|| self.endpoint())
    }
    pub(super) fn region(&mut self) -> VerbsRegion {
        VerbsRegion { base: self.next() >> 1, bytes: self.next() >> 1, rkey: self.u32() }
    }
    pub(super) fn verbs_attach(&mut self) -> VerbsAttach {
        VerbsAttach {
            chains: self.endpoint(),
            messages: self.maybe_endpoint(),
            ring_slots: [VERBS_RING_SLOTS_MIN, 9, VERBS_RING_SLOTS_MAX][self.below(3)],
            message_bytes: [VERBS_MESSAGE_BYTES_MIN, VERBS_MESSAGE_BYTES_MAX][self.below(2)],
        }
    }
    pub(super) fn verbs_attached(&mut self) -> VerbsAttached {
        let VerbsAttach { chains, messages, ring_slots, message_bytes } = self.verbs_attach();
        let (slots, ledger) = (self.region(), self.region());
        VerbsAttached { chains, messages, slots, ledger, ring_slots, message_bytes }
    }
    pub(super) fn session(&mut self) -> Session {
        let version = self.next() as u8;
        let mut offers = Offers::none();
        for (kind, place) in
            [(FabricKind::Shm, &b"dlock-1-a"[..]), (FabricKind::Tcp, &[]), (FabricKind::Verbs, &[])]
        {
            if self.bool() {
                offers = offers.with(kind, place);
            }
        }
        Session {
            version,
            client: self.client(),
            secret: self.secret(),
            epoch: Epoch(self.next()),
            anchor_s: self.u32(),
            now: ServerTime(self.next()),
            recovering: self.bool(),
            offers,
            terms: Terms {
                horizon_s: self.u32(),
                until: ServerTime(self.next()),
                lapses: self.u32(),
            },
        }
    }
}
