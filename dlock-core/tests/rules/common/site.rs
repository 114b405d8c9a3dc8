// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary, its members and its memory, on a clock that the test moves.

use std::collections::{BTreeSet, HashMap, HashSet};

use dlock_core::clock::{Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::membership::{
    Admission, Draws, Exit, Gone, Joining, MemberMemory, Membership, Opened, Orphans, Rules, State,
};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::primary::{Effect, Event, Primary};
use dlock_core::token::TokenFloor;
use dlock_core::wire::about::About;
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant, Secret, Terms, VERSION,
};
use dlock_core::wire::message::{LockType, Request};
use dlock_core::wire::status::Status;

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
    pub primary: Primary,
    pub memory: Memory,
    pub now: ServerTime,
    /// All effects of the primary so far, except answers.
    pub effects: Vec<Effect>,
    /// Clients whose queue pairs cannot be fenced now.
    pub unfenced: HashSet<ClientId>,
    /// Clients that were fenced since they last attached, so that nothing can act for them.
    pub fenced: BTreeSet<ClientId>,
    /// The number of each client's process.
    pub watched: HashMap<ClientId, u64>,
    /// Clients whose processes have ended.
    pub dead: HashSet<ClientId>,
    /// Whether undoing goes on only when the test asks for it.
    pub slow: bool,
    /// Whether requests that have come are passed to the primary only when the test asks for it.
    pub deaf: bool,
    /// Clients that attach do not come back by themselves.
    pub stays: bool,
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
            tp_mode: 0,
            recovery_clients: 0,
            clients_max,
            locks_max: 1_000,
            objects_max: 16,
            absent_grace_ns: grace_s.map(|s| s * NS),
            tokens: TokenFloor::default(),
        };
        let rules = Rules { orphans, ..Rules::of(&config) };
        Self {
            primary: Primary::new(config, rules),
            memory: Memory::default(),
            now: START,
            effects: Vec::new(),
            unfenced: HashSet::new(),
            fenced: BTreeSet::new(),
            dead: HashSet::new(),
            watched: HashMap::new(),
            slow: false,
            deaf: false,
            stays: false,
            controls: 0,
            channels: HashMap::new(),
            prepared: HashMap::new(),
            out: Vec::new(),
            draws: 100,
        }
    }

    /// A primary with these rules begins.
    pub fn begins(&mut self, rules: Rules) {
        self.primary = Primary::new(self.locks().config().clone(), rules);
    }

    /// A primary begins that waits for the claims of so many clients.
    pub fn begins_recovering(&mut self, recovery_clients: u32) {
        let config = PrimaryConfig { recovery_clients, ..self.locks().config().clone() };
        self.primary = Primary::new(config.clone(), Rules::of(&config));
    }

    pub fn members(&self) -> &Membership {
        self.primary.members()
    }

    pub fn locks(&self) -> &Locks {
        self.primary.locks()
    }

    /// Hands an event to the primary, and executes no effect.
    pub fn tell(&mut self, event: Event) {
        self.primary.handle(self.now, &mut self.memory, event);
    }

    /// Hands an event to the primary, executes the effects, and returns the answer, if there is
    /// one.
    pub fn handle(&mut self, event: Event) -> Option<Effect> {
        self.tell(event);
        self.executes()
    }

    /// Executes all pending effects of the primary.
    pub fn settle(&mut self) {
        self.handle(Event::Collect); // an event without an effect of its own
    }

    /// Executes all pending effects, and checks that fencing comes before undoing. Returns the
    /// answer, if there is one.
    fn executes(&mut self) -> Option<Effect> {
        let mut answer = None;
        loop {
            while let Some(effect) = self.primary.poll() {
                match effect {
                    effect if effect.is_answer() => answer = Some(effect),
                    Effect::Send(sent) => self.out.push(sent),
                    Effect::Listen if self.deaf => {}
                    Effect::Listen => self.listened(),
                    effect => self.do_effect(effect),
                }
            }
            let has_more = self.primary.is_lapsing() || self.locks().is_undoing();
            if self.slow || !has_more {
                break;
            }
            self.tell(Event::Upkeep { budget: u32::MAX });
        }
        assert_eq!(self.primary.assert_consistent(), Ok(()));
        answer
    }

    fn do_effect(&mut self, effect: Effect) {
        self.effects.push(effect.clone());
        match effect {
            Effect::CloseChannel { client, channel } => {
                let unfenced = self.unfenced.contains(&client);
                if channel.is_some() && self.channels.get(&client).copied() == channel {
                    self.channels.remove(&client);
                }
                self.tell(Event::Done { unfenced });
            }
            Effect::Switch { client } => {
                if let Some(channel) = self.prepared.remove(&client) {
                    self.fenced.remove(&client);
                    self.channels.insert(client, channel);
                }
                self.tell(Event::Done { unfenced: false });
            }
            Effect::Fence { client } => {
                let unfenced = self.unfenced.contains(&client);
                let mapped = self.memory.is_mapped(client);
                if !unfenced && (!mapped || self.dead.contains(&client)) {
                    self.fenced.insert(client);
                }
                self.channels.remove(&client);
                self.tell(Event::Done { unfenced });
            }
            Effect::Lapses { client } | Effect::Removes { client, .. } => {
                assert!(self.fenced.contains(&client), "{client} is not fenced");
            }
            Effect::Forget { client } => _ = self.fenced.remove(&client),
            _ => {}
        }
    }

    /// Reports that all requests that had come were passed on, and has the primary do what is due.
    pub fn listened(&mut self) {
        self.tell(Event::Listened);
        self.tell(Event::Tick);
    }

    /// `Init` or `Reinit` on a new control connection.
    pub fn open(&mut self, request: &ControlRequest) -> Result<Opened, Status> {
        self.controls += 1;
        let numbers = std::array::from_fn(|n| self.draws + 1 + n as u32);
        self.draws += 1;
        // no secret is given out twice
        let secret = Secret((7 + u128::from(self.controls)).to_le_bytes());
        let (caller, draws) = (self.controls.into(), Draws { secret, numbers });
        match self.handle(Event::Open { request: request.clone(), caller, draws }) {
            Some(Effect::Opened { opened, .. }) => opened,
            other => panic!("{other:?}"),
        }
    }

    /// Sends the request as the server does: once more, if the primary makes room for the client
    /// first.
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

    /// Attaches the peer's channel, as a client that shows later that it has the answer.
    pub fn attach(&mut self, peer: Peer) -> Status {
        let joining = match peer.fabric {
            FabricKind::Shm => Joining::by(peer.fabric, Some(peer.id.get() as i32), true),
            fabric => Joining::over(fabric),
        };
        let Peer { id: client, secret, fabric, .. } = peer;
        let attach = Attach { client, secret, fabric, verbs: None, returns: !self.stays };
        let channel = match self.handle(Event::Attach { attach, joining }) {
            Some(Effect::Attached { channel: Ok(channel), .. }) => channel,
            Some(Effect::Attached { channel: Err(status), .. }) => return status,
            other => panic!("{other:?}"),
        };
        if let Some(process) = channel.watch {
            self.watched.insert(client, process);
        }
        self.fenced.remove(&client);
        if fabric == FabricKind::Shm {
            self.memory.mapped.insert(client);
        }
        match channel.is_prepared {
            true => self.prepared.insert(client, channel.number),
            false => self.channels.insert(client, channel.number),
        };
        Status::Success
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

    /// Requests a session that is prepared beside the peer's present one.
    pub fn ask_back(&mut self, peer: Peer) -> Result<Peer, Status> {
        let horizon_s = peer.terms.horizon_s;
        let admission = self.open_twice(&reinit(peer, horizon_s))?;
        Ok(self.peer(admission, peer.fabric))
    }

    pub fn control(&mut self, peer: Peer, request: ControlRequest) -> ControlReply {
        let Peer { id: client, control, .. } = peer;
        match self.handle(Event::Control { client, control, request }) {
            Some(Effect::Answer { reply, .. }) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Passes a request of a command channel to the primary; replies are put into `out`.
    pub fn command(&mut self, client: ClientId, seq: Seq, request: Request) {
        self.handle(Event::Command { client, seq, request });
    }

    /// Has the primary do all of its own work that is due now.
    pub fn upkeep(&mut self) {
        while self.primary.has_upkeep(self.now) {
            self.tell(Event::Upkeep { budget: u32::MAX });
        }
        self.settle();
    }

    pub fn lose(&mut self, peer: Peer, why: Gone) {
        self.handle(Event::ControlEnded { client: peer.id, control: peer.control, why });
    }

    /// Ends the peer's process, whose memory the system unmaps, and reports that to the primary.
    pub fn die(&mut self, peer: Peer) {
        let process = self.process_of(peer);
        self.dead.insert(peer.id);
        self.handle(Event::ProcessEnded { client: peer.id, process });
    }

    fn process_of(&self, peer: Peer) -> u64 {
        self.watched.get(&peer.id).copied().unwrap_or(0)
    }

    /// Moves the clock to this moment; the primary does everything at the moment when it is due.
    pub fn until(&mut self, at: ServerTime) {
        for _ in 0..10_000 {
            let next = self.primary.next_wakeup().filter(|&next| next <= at);
            self.now = next.unwrap_or(at).max(self.now);
            while self.primary.has_upkeep(self.now) {
                self.tell(Event::Upkeep { budget: u32::MAX });
            }
            self.tell(Event::Tick);
            self.settle();
            if next.is_none() {
                return;
            }
        }
        panic!("there is always something to do");
    }

    pub fn get(&mut self, peer: Peer, name: &str, lock_type: LockType) -> LockGrant {
        let desc =
            LockDesc { name: name.as_bytes().to_vec(), lock_type, lease_s: 0, tokens: false };
        match self.control(peer, ControlRequest::GetLocks(vec![desc])) {
            ControlReply::Locks(locks) => locks[0].unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Executes a chain of this client in the way of its fabric.
    pub fn execute(&mut self, peer: Peer, chain: &Chain) -> Values {
        let Outcome::Done(values) = self.memory.execute_chain(peer.id, chain) else { panic!() };
        if peer.fabric == FabricKind::Tcp {
            self.primary.parts().1.executed(&mut self.memory, peer.id, chain, &values);
        }
        values
    }

    /// Takes an atomic lock with a lease of so many seconds.
    pub fn take_lease(&mut self, peer: Peer, lease_s: u32) {
        let grant = self.get(peer, "leased", LockType::Atomic);
        let timeout = self.now.deadline(Lease::secs(lease_s));
        let word = AtomicWord::new().with_client(peer.id.get()).with_timeout(timeout);
        let cas = WordOp::Cas { addr: w0(&grant), expect: 0, swap: word.into_bits() };
        self.execute(peer, &Chain::one(cas));
    }

    /// Takes a read-write lock without a lease; returns the lock word afterwards.
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
        self.members().state(peer.id)
    }

    pub fn exits(&self, peer: Peer) -> Vec<Exit> {
        let exit = |effect: &Effect| match effect {
            Effect::Removes { client, exit } if *client == peer.id => Some(*exit),
            _ => None,
        };
        self.effects.iter().filter_map(exit).collect()
    }
}

pub fn w0(grant: &LockGrant) -> WordAddr {
    WordAddr::new(grant.slot, Word::W0)
}

pub fn init(horizon_s: u32) -> ControlRequest {
    ControlRequest::Init {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s,
        about: About::NOTHING,
    }
}

pub fn reinit(peer: Peer, horizon_s: u32) -> ControlRequest {
    ControlRequest::Reinit {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s,
        client: peer.id,
        secret: peer.secret,
        about: About::NOTHING,
    }
}
