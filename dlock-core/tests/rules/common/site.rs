// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary, its members and its memory on a clock that the test turns.

use std::collections::{BTreeSet, HashMap, HashSet};

use dlock_core::clock::{ServerTime, NS};
use dlock_core::control::{
    Attach, ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant, Secret, Terms, VERSION,
};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Epoch};
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::membership::{
    Admission, Draws, Effect, Exit, Fencing, Gone, Joining, MemberMemory, Membership, Opened,
    Orphans, Rules, State,
};
use dlock_core::message::LockType;
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::words::{AtomicWord, RwWord};

use super::Memory;

pub const START: ServerTime = ServerTime(5_000 * NS);
pub const GRACE_S: u64 = 30;

/// A client as a test knows it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub id: ClientId,
    pub secret: Secret,
    pub control: u64,
    pub fabric: FabricKind,
    pub terms: Terms,
}

pub struct Site {
    pub members: Membership,
    pub primary: Locks,
    pub memory: Memory,
    pub now: ServerTime,
    /// Everything that membership asked for.
    pub effects: Vec<Effect>,
    /// Clients whose queue pairs cannot be fenced now.
    pub unfenced: HashSet<ClientId>,
    /// Clients of which nothing can act: fenced since they last attached.
    pub fenced: BTreeSet<ClientId>,
    /// The number of each client's process.
    pub watched: HashMap<ClientId, u64>,
    /// Clients whose processes have ended.
    pub dead: HashSet<ClientId>,
    /// Undoing takes until the test says that it is done.
    pub slow: bool,
    /// Nothing that has come is handed in before the test says so.
    pub deaf: bool,
    pub undoing: Vec<ClientId>,
    pub controls: u64,
    /// The command channel of each client's session, and of the one that is prepared.
    pub channels: HashMap<ClientId, u64>,
    pub prepared: HashMap<ClientId, u64>,
    pub out: Vec<Sent>,
    draws: u32,
}

impl Site {
    pub fn new() -> Self {
        Self::with(Some(GRACE_S), Orphans::Lease, 8)
    }

    pub fn with(grace_s: Option<u64>, orphans: Orphans, clients_max: usize) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            anchor_s: START.seconds(),
            tp_mode: 0,
            recovery_clients: 0,
            clients_max,
            locks_max: 1_000,
            objects_max: 16,
            absent_grace_ns: grace_s.map(|s| s * NS),
        };
        Self {
            members: Membership::new(Rules { orphans, ..Rules::of(&config) }),
            primary: Locks::new(config),
            memory: Memory::default(),
            now: START,
            effects: Vec::new(),
            unfenced: HashSet::new(),
            fenced: BTreeSet::new(),
            dead: HashSet::new(),
            watched: HashMap::new(),
            slow: false,
            deaf: false,
            undoing: Vec::new(),
            controls: 0,
            channels: HashMap::new(),
            prepared: HashMap::new(),
            out: Vec::new(),
            draws: 100,
        }
    }

    /// Does what membership asks for, and checks the order of fencing and undoing.
    pub fn settle(&mut self) {
        while let Some(effect) = self.members.poll() {
            if effect == Effect::Listen {
                if !self.deaf {
                    self.listened();
                }
                continue;
            }
            self.effects.push(effect.clone());
            match effect {
                Effect::Listen => {}
                Effect::CloseControl { .. } => {}
                Effect::CloseChannel { client, channel } => {
                    let unfenced = self.unfenced.contains(&client);
                    let (now, out) = (self.now, &mut self.out);
                    if channel.is_some() && self.channels.get(&client).copied() == channel {
                        self.channels.remove(&client);
                        self.primary.detached(now, &mut self.memory, client, out);
                    }
                    self.members.channel_closed(client, channel, unfenced);
                }
                Effect::Switch { client, fabric } => {
                    let (now, out) = (self.now, &mut self.out);
                    if let Some(fabric) = fabric {
                        self.fenced.remove(&client);
                        self.primary.attached(now, &mut self.memory, client, fabric, out);
                        self.channels.extend(self.prepared.remove(&client).map(|n| (client, n)));
                    }
                }
                Effect::Fence { client } => {
                    let unfenced = self.unfenced.contains(&client);
                    let mapped = self.memory.is_mapped(client);
                    if !unfenced && (!mapped || self.dead.contains(&client)) {
                        self.fenced.insert(client);
                    }
                    let (now, out) = (self.now, &mut self.out);
                    self.channels.remove(&client);
                    self.primary.detached(now, &mut self.memory, client, out);
                    let fencing = Fencing { unfenced, mapped };
                    self.members.fence_tried(&mut self.primary, client, fencing);
                }
                Effect::Keep(_) | Effect::Revoke { .. } => {}
                Effect::Look { client } => {
                    let has = self.primary.has_something(self.now, &mut self.memory, client);
                    self.members.looked(client, has);
                }
                Effect::Lapse { client } => {
                    assert!(self.fenced.contains(&client), "{client} is not fenced");
                    let (now, out) = (self.now, &mut self.out);
                    let mut lapse = self.primary.begin_lapse(client);
                    while !self.primary.lapse(now, &mut self.memory, &mut lapse, out) {}
                    self.members.lapsed(now, client, lapse.lapsed());
                }
                Effect::Undo { client, .. } => {
                    assert!(self.fenced.contains(&client), "{client} is not fenced");
                    let (now, out) = (self.now, &mut self.out);
                    self.primary.fenced(client);
                    self.primary.tick(now, &mut self.memory, out);
                    match self.slow {
                        true => self.undoing.push(client),
                        false => self.members.undone(client),
                    }
                }
                Effect::Forget { client } => _ = self.fenced.remove(&client),
            }
        }
        assert_eq!(self.members.assert_consistent(), Ok(()));
        assert_eq!(self.primary.assert_consistent(), Ok(()));
    }

    /// Everything that has come was handed in: what is due is done.
    pub fn listened(&mut self) {
        self.members.listened();
        self.members.tick(self.now, &mut self.primary);
    }

    /// `Init` or `Reinit` on a new control connection.
    pub fn open(&mut self, request: &ControlRequest) -> Result<Opened, Status> {
        self.controls += 1;
        let draws = &mut self.draws;
        let mut number = || {
            *draws += 1;
            *draws
        };
        // none is given out twice
        let secret = Secret((7 + u128::from(self.controls)).to_le_bytes());
        let draws = Draws { secret, number: &mut number };
        let (primary, memory, control) = (&mut self.primary, &mut self.memory, self.controls);
        let opened = self.members.open(self.now, primary, memory, request, control, draws);
        self.settle();
        opened
    }

    /// As the server does: asks again if room is made for it.
    pub fn open_twice(&mut self, request: &ControlRequest) -> Result<Admission, Status> {
        for _ in 0..2 {
            if let Opened::Admitted(admission) = self.open(request)? {
                return Ok(admission);
            }
        }
        Err(Status::Again)
    }

    pub fn join(&mut self, fabric: FabricKind, horizon_s: u32) -> Peer {
        let admission = self.open_twice(&init(horizon_s)).expect("there is room");
        let peer = self.peer(admission, fabric);
        assert_eq!(self.attach(peer), Status::Success);
        peer
    }

    pub fn peer(&self, admission: Admission, fabric: FabricKind) -> Peer {
        let Admission { client: id, secret, terms, .. } = admission;
        Peer { id, secret, control: self.controls, fabric, terms }
    }

    /// Attaches as a client that will show that it has the answer.
    pub fn attach(&mut self, peer: Peer) -> Status {
        let joining = match peer.fabric {
            FabricKind::Shm => Joining::by(peer.fabric, Some(peer.id.get() as i32), true),
            fabric => Joining::over(fabric),
        };
        let Peer { id: client, secret, fabric, .. } = peer;
        let attach = Attach { client, secret, fabric, verbs: None };
        let status = self.members.begin_attach(self.now, &mut self.primary, &attach, joining);
        self.settle();
        if status != Status::Success {
            return status;
        }
        match self.members.finish_attach(&attach, joining) {
            Ok(channel) => {
                if let Some(process) = channel.watch {
                    self.watched.insert(client, process);
                }
                self.fenced.remove(&client);
                if fabric == FabricKind::Shm {
                    self.memory.mapped.insert(client);
                }
                let (now, out) = (self.now, &mut self.out);
                if channel.is_prepared {
                    self.primary.will_attach(client, fabric);
                    self.prepared.insert(client, channel.number);
                } else {
                    self.primary.attached(now, &mut self.memory, client, fabric, out);
                    self.channels.insert(client, channel.number);
                }
                Status::Success
            }
            Err(status) => status,
        }
    }

    pub fn come_back(&mut self, peer: Peer) -> Result<Peer, Status> {
        let horizon_s = peer.terms.horizon_s;
        let admission = self.open_twice(&reinit(peer, horizon_s))?;
        let peer = self.peer(admission, peer.fabric);
        assert_eq!(self.attach(peer), Status::Success);
        let reply = self.control(peer, ControlRequest::Heartbeat);
        assert!(matches!(reply, ControlReply::Alive { .. }), "{reply:?}");
        Ok(peer)
    }

    /// Asks for a session beside the one that the peer has.
    pub fn ask_back(&mut self, peer: Peer) -> Result<Peer, Status> {
        let horizon_s = peer.terms.horizon_s;
        let admission = self.open_twice(&reinit(peer, horizon_s))?;
        Ok(self.peer(admission, peer.fabric))
    }

    pub fn control(&mut self, peer: Peer, request: ControlRequest) -> ControlReply {
        let who = (peer.id, peer.control);
        self.members.is_shown(self.now, &mut self.primary, who.0, who.1);
        self.settle();
        let (now, primary, out) = (self.now, &mut self.primary, &mut self.out);
        let reply = self.members.control(now, primary, &mut self.memory, who, request, out);
        self.settle();
        reply
    }

    pub fn lose(&mut self, peer: Peer, why: Gone) {
        let who = (peer.id, peer.control);
        self.members.control_ended(self.now, &mut self.primary, who, why);
        self.settle();
    }

    /// The peer's process ends: its memory is unmapped by the system, and that is noticed.
    pub fn die(&mut self, peer: Peer) {
        let process = self.process_of(peer);
        self.dead.insert(peer.id);
        self.members.process_ended(peer.id, process);
        self.settle();
    }

    fn process_of(&self, peer: Peer) -> u64 {
        self.watched.get(&peer.id).copied().unwrap_or(0)
    }

    /// The time goes on to this moment, and everything is done when it is due.
    pub fn until(&mut self, at: ServerTime) {
        for _ in 0..10_000 {
            let due = [self.primary.next_wakeup(), self.members.next_wakeup(&self.primary)];
            let next = due.into_iter().flatten().min().filter(|&next| next <= at);
            self.now = next.unwrap_or(at).max(self.now);
            let (now, out) = (self.now, &mut self.out);
            self.primary.tick(now, &mut self.memory, out);
            self.members.tick(now, &mut self.primary);
            if let Some(laggard) = self.primary.take_laggard(now) {
                self.members.lags(now, laggard);
            }
            self.settle();
            if next.is_none() {
                return;
            }
        }
        panic!("there is always something to do");
    }

    pub fn get(&mut self, peer: Peer, name: &str, lock_type: LockType) -> LockGrant {
        let desc = LockDesc { name: name.as_bytes().to_vec(), lock_type, lease_s: 0 };
        match self.control(peer, ControlRequest::GetLocks(vec![desc])) {
            ControlReply::Locks(locks) => locks[0].unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A chain of this client, executed by its fabric.
    pub fn execute(&mut self, peer: Peer, chain: &Chain) -> Values {
        let mut values = Values::new();
        for word_op in chain.ops() {
            let value = match *word_op {
                WordOp::Cas { addr, expect, swap } => self.memory.cas(addr, expect, swap),
                WordOp::Faa { addr, add } => self.memory.faa(addr, add),
                WordOp::Read { addr } => self.memory.read(addr),
                WordOp::ReadPair { addr } => {
                    values.push(self.memory.read(addr));
                    self.memory.read(addr.next())
                }
                WordOp::WriteLedger { handle, value } => {
                    let entry = dlock_core::words::LedgerEntry::from_bits(value);
                    self.memory.ledgers.insert((peer.id, handle), entry);
                    0
                }
            };
            values.push(value);
        }
        if peer.fabric == FabricKind::Tcp {
            self.primary.executed(&mut self.memory, peer.id, chain, &values);
        }
        values
    }

    /// Takes an atomic lock with a lease of so many seconds.
    pub fn take_lease(&mut self, peer: Peer, lease_s: u32) {
        let grant = self.get(peer, "leased", LockType::Atomic);
        let timeout = self.now.deadline(lease_s);
        let word = AtomicWord::new().with_client(peer.id.get()).with_timeout(timeout);
        let cas = WordOp::Cas { addr: w0(&grant), expect: 0, swap: word.into_bits() };
        self.execute(peer, &Chain::one(cas));
    }

    /// Takes a read-write lock, which has no lease; its word then.
    pub fn take_rw(&mut self, peer: Peer) -> u64 {
        let grant = self.get(peer, "rw", LockType::Rw);
        let swap = RwWord::new().with_client(peer.id.get()).into_bits();
        self.execute(peer, &Chain::one(WordOp::Cas { addr: w0(&grant), expect: 0, swap }));
        self.word(&grant)
    }

    pub fn word(&mut self, grant: &LockGrant) -> u64 {
        self.memory.read(w0(grant))
    }

    pub fn state(&self, peer: Peer) -> Option<State> {
        self.members.state(peer.id)
    }

    pub fn exits(&self, peer: Peer) -> Vec<Exit> {
        let exit = |effect: &Effect| match effect {
            Effect::Undo { client, exit } if *client == peer.id => Some(*exit),
            _ => None,
        };
        self.effects.iter().filter_map(exit).collect()
    }
}

pub fn w0(grant: &LockGrant) -> WordAddr {
    WordAddr::new(grant.slot, Word::W0)
}

pub fn init(horizon_s: u32) -> ControlRequest {
    ControlRequest::Init { version_min: 1, version_max: VERSION, tp_mode: 0, horizon_s }
}

pub fn reinit(peer: Peer, horizon_s: u32) -> ControlRequest {
    ControlRequest::Reinit {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s,
        client: peer.id,
        secret: peer.secret,
    }
}
