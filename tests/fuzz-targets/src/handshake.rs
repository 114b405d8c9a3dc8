// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission and control: frames of three connections, as strangers may send them, into one small
//! primary, and the driver's own events between them.

use std::collections::BTreeSet;

use dlock_core::clock::{Deadline, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, LockId, ObjectId, Seq};
use dlock_core::membership::{Draws, Gone, Joining, Opened, Orphans, Rules, State};
use dlock_core::memory::words::Ticket;
use dlock_core::primary::{Effect, Event, Primary, PrimaryConfig};
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame, FrameError, Kind, HEADER_LEN};
use dlock_core::wire::control::{
    Attach, Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, Place, Secret,
    HORIZON_FOREVER,
};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use crate::tape::Tape;
use dlock_core::token::{Token, TokenFloor};
use dlock_test_support::Memory;

const CLIENTS_MAX: usize = 3;
const LOCKS_MAX: usize = 4;
const OBJECTS_MAX: usize = 3;
const STEPS_MAX: usize = 400;

struct World {
    primary: Primary,
    memory: Memory,
    now: ServerTime,
    /// For each connection, the client to which it is bound, and the number of the connection.
    links: [Option<(ClientId, u64)>; 3],
    /// How many connections there were.
    controls: u64,
    /// Clients that are fenced and were not permitted to attach since then.
    fenced: BTreeSet<ClientId>,
    /// Every secret that was ever given out. Clients come back with their own, or with that of
    /// another client.
    sessions: Vec<(ClientId, Secret)>,
    /// Every lock id that a client was ever told.
    locks: Vec<LockId>,
    live: BTreeSet<ClientId>,
    draws: u32,
}

/// Drives a primary by the choices in these bytes.
///
/// # Panics
/// If the primary panics, lets in a client that it must refuse, exceeds a limit, gives an answer
/// that cannot be encoded, or keeps state of clients that are gone.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut world = World::new(&mut tape);
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            break;
        }
        world.step(&mut tape);
        world.check();
    }
    world.end();
}

impl World {
    fn new(tape: &mut Tape<'_>) -> Self {
        let choice = tape.u8();
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: choice & 1,
            recovery_clients: u32::from(choice >> 1 & 3),
            clients_max: CLIENTS_MAX,
            locks_max: LOCKS_MAX,
            objects_max: OBJECTS_MAX,
            absent_grace_ns: (choice & 8 == 0).then_some(10 * NS),
            tokens: TokenFloor::default(),
        };
        let orphans = if choice & 16 == 0 { Orphans::Lease } else { Orphans::Grace };
        let rules = Rules { orphans, ..Rules::of(&config) };
        Self {
            primary: Primary::new(config, rules),
            memory: Memory::default(),
            now: ServerTime(1_000 * NS),
            links: [None; 3],
            controls: 0,
            fenced: BTreeSet::new(),
            sessions: Vec::new(),
            locks: Vec::new(),
            live: BTreeSet::new(),
            draws: 0,
        }
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let link = tape.below(3);
        match tape.below(8) {
            0 | 1 => self.raw(tape, link),
            2..=4 => {
                let request = self.structured(tape, link);
                self.request(tape, link, Seq(1), request);
            }
            5 => self.lose(link, if tape.flip() { Gone::Closed } else { Gone::Silent }),
            6 => {
                self.now = self.now.plus_ns(u64::from(tape.u16()) * (NS / 16));
                self.tick();
            }
            _ => {
                let bound = self.links[link].map(|(client, _)| client);
                let client = bound.or(self.sessions.last().map(|s| s.0));
                let known = self.session(tape);
                if let (Some(client), Some((_, secret))) = (client, known) {
                    self.attach(client, secret, tape.flip());
                }
            }
        }
    }

    fn attach(&mut self, client: ClientId, secret: Secret, tcp: bool) {
        let (fabric, joining) = match tcp {
            true => (FabricKind::Tcp, Joining::over(FabricKind::Tcp)),
            false => (FabricKind::Shm, Joining::by(FabricKind::Shm, Some(7), true)),
        };
        let attach = Attach { client, secret, fabric, verbs: None, returns: true };
        let is_known = self.sessions.contains(&(client, secret));
        match self.handle(Event::Attach { attach, joining }) {
            Some(Effect::Attached { channel: Ok(_), .. }) => {
                assert!(is_known, "the secret of another is accepted");
                self.fenced.remove(&client);
            }
            Some(Effect::Attached { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Hands an event to the primary, executes the effects, and returns the answer, if there is
    /// one.
    fn handle(&mut self, event: Event) -> Option<Effect> {
        let mut answer = None;
        self.tell(event);
        while let Some(effect) = self.primary.poll() {
            if effect.is_reported() {
                if let Effect::Fence { client } = effect {
                    self.fenced.insert(client);
                }
                self.tell(Event::Done { unfenced: false });
                continue;
            }
            match effect {
                // all earlier events were handled already
                Effect::Listen => self.tell(Event::Listened),
                Effect::CloseControl { client, control } => {
                    for link in self.links.iter_mut().filter(|l| **l == Some((client, control))) {
                        *link = None;
                    }
                }
                Effect::Lapses { client } | Effect::Removes { client, .. } => {
                    assert!(self.fenced.contains(&client), "{client} is not fenced");
                }
                Effect::Forget { client } => {
                    self.live.remove(&client);
                    let is_its =
                        |link: &Option<(ClientId, u64)>| link.is_some_and(|l| l.0 == client);
                    self.links.iter_mut().filter(|l| is_its(l)).for_each(|l| *l = None);
                }
                Effect::Send(sent) => panic!("no client waits: {sent:?}"),
                Effect::Unfenced { client } => panic!("{client} can always be fenced"),
                effect if effect.is_answer() => answer = Some(effect),
                _ => {}
            }
        }
        assert_eq!(self.primary.members().assert_consistent(), Ok(()));
        answer
    }

    fn tell(&mut self, event: Event) {
        self.primary.handle(self.now, &mut self.memory, event);
    }

    /// Decodes random bytes as a frame, and handles it.
    fn raw(&mut self, tape: &mut Tape<'_>, link: usize) {
        let foreign = tape.u8() == 0xff;
        let len = usize::from(tape.u8());
        let kind = if foreign { Kind::ForeignControl } else { Kind::Control };
        match codec::decode(kind, tape.bytes(len)) {
            Ok(Frame::Control(seq, request)) => self.request(tape, link, seq, request),
            Ok(other) => panic!("a control frame decoded to {other:?}"),
            Err(FrameError::Version { seq, .. }) => {
                answer(seq, ControlReply::Error(Status::VersionMismatch));
                self.lose(link, Gone::Closed);
            }
            Err(_) => self.lose(link, Gone::Closed),
        }
    }

    fn structured(&mut self, tape: &mut Tape<'_>, link: usize) -> ControlRequest {
        use ControlRequest as R;
        let tp_mode = self.primary.locks().config().tp_mode;
        let (version_min, version_max) = (1, 1 + tape.flip() as u8);
        let horizon_s = if tape.flip() { 3 } else { HORIZON_FOREVER };
        let bound = self.links[link].is_some();
        match (bound, tape.below(14)) {
            (false, 0..=6) => {
                R::Init { version_min, version_max, tp_mode, horizon_s, about: About::NOTHING }
            }
            (_, 7 | 8) => {
                let known = self.session(tape);
                let stranger = ClientId::new(u32::from(tape.u8())).zip(Some(Secret([9; 16])));
                match known.or(stranger) {
                    Some((client, secret)) => R::Reinit {
                        version_min,
                        version_max,
                        tp_mode,
                        horizon_s,
                        client,
                        secret,
                        about: About::NOTHING,
                    },
                    None => R::Heartbeat,
                }
            }
            (_, 0 | 1) => R::GetLocks((0..tape.below(34)).map(|_| desc(tape)).collect()),
            (_, 2) => R::ReleaseLocks((0..tape.below(34)).map(|_| self.lock(tape)).collect()),
            (_, 3) => R::UpdateLocks((0..tape.below(34)).map(|_| self.claim(tape)).collect()),
            (_, 4) => R::ObjectCreate { name: name(tape), lease: tape.lease(), init: 5 },
            (_, 5) => R::ObjectGet { name: name(tape), lease: tape.lease() },
            (_, 6) => R::ObjectRelease(ObjectId(i32::from(tape.u8()))),
            (_, 9) => R::ObjectDestroy(ObjectId(i32::from(tape.u8()))),
            (_, 10) => R::ReinitDone,
            (_, 11) => R::Deinit,
            _ => R::Heartbeat,
        }
    }

    /// Handles a control request in the way of the server.
    fn request(&mut self, tape: &mut Tape<'_>, link: usize, seq: Seq, request: ControlRequest) {
        let admission =
            matches!(request, ControlRequest::Init { .. } | ControlRequest::Reinit { .. });
        let Some(bound) = self.links[link] else {
            if admission {
                self.admit(tape, link, &request);
            }
            return;
        };
        let asked = match &request {
            ControlRequest::GetLocks(list) => Some(list.len()),
            ControlRequest::ReleaseLocks(list) => Some(list.len()),
            ControlRequest::UpdateLocks(list) => Some(list.len()),
            _ => None,
        };
        let (client, control) = bound;
        let reply = match self.handle(Event::Control { client, control, request }) {
            Some(Effect::Answer { reply, .. }) => reply,
            other => panic!("{other:?}"),
        };
        match &reply {
            ControlReply::Locks(list) => {
                assert_eq!(Some(list.len()), asked);
                self.locks.extend(list.iter().flatten().map(|grant| grant.lock));
                self.locks.sort();
                self.locks.dedup();
            }
            ControlReply::Statuses(list) => assert_eq!(Some(list.len()), asked),
            ControlReply::Session(_) => panic!("a session without an admission"),
            _ => {}
        }
        answer(seq, reply);
    }

    fn admit(&mut self, tape: &mut Tape<'_>, link: usize, request: &ControlRequest) {
        let narrow = tape.u8() & 3;
        let mut draws = self.draws;
        let numbers = std::array::from_fn(|_| {
            draws = draws.wrapping_add(1);
            // few different numbers, so that they repeat; some are not valid client ids
            if narrow == 0 {
                draws % 5
            } else {
                draws.wrapping_mul(0x9e37_79b9)
            }
        });
        self.draws = draws;
        let secret = Secret((self.sessions.len() as u128 + 1).to_le_bytes());
        let control = self.controls + 1;
        self.controls = control;
        let draws = Draws { secret, numbers };
        let event = Event::Open { request: request.clone(), caller: control.into(), draws };
        let opened = match self.handle(event) {
            Some(Effect::Opened { opened, .. }) => opened,
            other => panic!("{other:?}"),
        };
        let Ok(opened) = opened else { return };
        let Opened::Admitted(admitted) = opened else { panic!("one eviction makes room") };
        let client = admitted.client;
        let is_fresh = self.live.insert(client);
        if let ControlRequest::Reinit { client: claimed, secret: proof, .. } = *request {
            assert_eq!(client, claimed);
            assert!(admitted.secret == proof || admitted.prepared_by == Some(proof));
            let known = self.sessions.contains(&(claimed, proof));
            assert!(known || is_fresh, "a proof that was never given out");
        }
        self.links[link] = Some((client, control));
        self.sessions.push((client, admitted.secret));
    }

    /// A lock id that a client was told, or a random one.
    fn lock(&self, tape: &mut Tape<'_>) -> LockId {
        match self.locks.get(tape.below(6)) {
            Some(&lock) => lock,
            None => LockId(i32::from(tape.u8()) + 1),
        }
    }

    fn claim(&self, tape: &mut Tape<'_>) -> Claim {
        let held = tape.flip().then(|| HeldClaim {
            mode: if tape.flip() { Mode::Shared } else { Mode::Exclusive },
            is_queued: tape.below(8) == 0,
            left_ns: match tape.below(4) {
                0 => u64::MAX,
                _ => u64::from(tape.seconds()) * NS,
            },
            age_ms: tape.seconds(),
            epoch: Epoch(tape.below(3) as u64),
            deadline: Deadline(tape.u32()),
            fair: tape.flip().then(|| {
                let (tx, ts) = (tape.u16().into(), tape.u16().into());
                let ticket = Ticket { lap: tape.below(3) as u64, tx, ts };
                Place { epoch: Epoch(tape.below(3) as u64), ticket }
            }),
            token: Token::NONE,
        });
        Claim { lock: self.lock(tape), desc: desc(tape), held }
    }

    /// One of the latest sessions that were given out.
    fn session(&self, tape: &mut Tape<'_>) -> Option<(ClientId, Secret)> {
        self.sessions.iter().rev().nth(tape.below(8)).copied()
    }

    fn lose(&mut self, link: usize, why: Gone) {
        if let Some(bound) = self.links[link].take() {
            let (client, control) = bound;
            self.handle(Event::ControlEnded { client, control, why });
        }
    }

    fn tick(&mut self) {
        self.upkeep();
        self.handle(Event::Tick);
        self.upkeep();
    }

    fn upkeep(&mut self) {
        while self.primary.has_upkeep(self.now) {
            self.handle(Event::Upkeep { budget: u32::MAX });
        }
    }

    fn check(&mut self) {
        let (clients, locks, objects) = self.primary.locks().totals();
        assert_eq!(clients, self.live.len());
        assert!(clients <= CLIENTS_MAX && locks <= LOCKS_MAX && objects <= OBJECTS_MAX);
        let members = self.primary.members();
        for client in self.primary.locks().clients_snapshot() {
            assert!(self.live.contains(&client.client));
            let mut bound = self.links.iter().flatten();
            let is_bound = bound.any(|b| b.0 == client.client && members.speaks(b.0, b.1));
            let is_present = members.state(client.client) == Some(State::Present);
            assert_eq!(is_present, is_bound);
        }
        let locks = self.primary.locks();
        for lock in locks.locks_snapshot(ServerTime(0), &mut self.memory, LockId(0), LOCKS_MAX + 1)
        {
            assert!(lock.refs > 0 && lock.refs <= clients && lock.waiters == 0, "{lock:?}");
        }
    }

    /// Removes all clients, and checks that no state of theirs stays behind.
    fn end(mut self) {
        for client in self.live.clone() {
            self.handle(Event::removes(client));
            self.upkeep();
        }
        let (clients, locks, _) = self.primary.locks().totals();
        assert_eq!((clients, locks), (0, 0));
    }
}

/// Encodes a reply as the server would, and reads it as the client would.
fn answer(seq: Seq, reply: ControlReply) {
    let frame = Frame::ControlReply(seq, reply);
    let mut bytes = Vec::new();
    codec::encode(&frame, &mut bytes);
    let Ok(header) = codec::header(bytes.first_chunk().expect("a header")) else {
        panic!("its own header")
    };
    assert_eq!(codec::decode(header.kind, &bytes[HEADER_LEN..]), Ok(frame));
}

fn name(tape: &mut Tape<'_>) -> Vec<u8> {
    match tape.u8() {
        255 => vec![b'n'; 512],
        254 => vec![b'n'; 513],
        253 => Vec::new(),
        small => vec![b'a' + small % 6],
    }
}

fn desc(tape: &mut Tape<'_>) -> LockDesc {
    let types = [LockType::Atomic, LockType::Rw, LockType::Fair];
    LockDesc { name: name(tape), lock_type: types[tape.below(3)], lease_s: 0, tokens: false }
}
