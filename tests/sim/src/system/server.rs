// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of the primary: what `dlock-server` does around `Primary`, without the sockets.
//!
//! ```text
//!   inbox ─▶ Serve ─▶ check_chain, execute, executed | command | admit | control
//!   connection gone ─▶ absent ─ grace ─▶ channel closed ─▶ fenced
//! ```

use dlock_core::clock::ServerTime;
use dlock_core::control::{ControlReply, ControlRequest, FabricKind, Secret, VERSION, VERSION_MIN};
use dlock_core::ids::{ClientId, Epoch, Seq, Slot};
use dlock_core::message::LockType;
use dlock_core::primary::{Primary, PrimaryConfig, Sent};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, Values, Verb};
use dlock_core::words::{AtomicWord, RwWord};

use super::control::{desc, Answer};
use super::plan::Fabric;
use super::state::{
    code, Arrived, Ask, Client, Doing, Ev, Frame, Life, Session, Sys, Thread, Unit,
};

/// The connection number by which a shm client says that no thread of it is inside any more.
pub(crate) const DETACHED: u32 = u32::MAX;
/// The connection number that stands for every connection of a process that has ended.
pub(crate) const EXITED: u32 = u32::MAX - 1;

/// The primary, if there is one, and the rest of the world.
pub(crate) struct World {
    pub sys: Sys,
    pub primary: Option<Primary>,
    out: Vec<Sent>,
}

impl World {
    pub fn new(sys: Sys) -> Self {
        let mut world = Self { sys, primary: None, out: Vec::new() };
        world.primary = Some(world.fresh_primary(0));
        world
    }

    fn fresh_primary(&self, recovery_clients: u32) -> Primary {
        let sys = &self.sys;
        Primary::new(PrimaryConfig {
            epoch: Epoch(sys.epoch.into()),
            anchor_s: sys.server_now().seconds(),
            tp_mode: 0,
            recovery_clients,
            clients_max: sys.plan.clients_max,
            locks_max: sys.plan.locks_max,
            objects_max: sys.plan.objects_max,
            absent_grace_ns: Some(sys.plan.grace_ns),
        })
    }

    /// The primary is gone, with its memory and all its connections.
    pub fn crash_primary(&mut self) {
        let sys = &mut self.sys;
        self.primary = None;
        sys.alive = false;
        sys.inbox.clear();
        sys.sessions.clear();
        sys.dead = std::mem::take(&mut sys.memory);
        for c in 0..sys.clients.len() {
            if sys.clients[c].life == Life::Leaving {
                sys.exit(c); // the successor does not wait for it
                continue;
            }
            let ns = sys.takes(20_000);
            let (inc, gen) = (sys.clients[c].inc, sys.clients[c].gen);
            sys.after(ns, Ev::Reset(c as u8, inc, gen));
        }
        let ns = sys.rng.below(3_000_000_000);
        sys.after(ns, Ev::Successor);
        sys.log(|| "the primary is gone".to_string());
    }

    /// A successor starts; it waits for everybody who was let in and is alive.
    pub fn successor(&mut self) {
        let sys = &mut self.sys;
        sys.epoch += 1;
        sys.alive = true;
        sys.memory = super::memory::Memory::new(sys.plan.locks_max + sys.plan.objects_max);
        if sys.plan.drift {
            sys.offset += sys.rng.below(20_000_000_000) as i64 - 10_000_000_000;
        }
        let stays = |life| matches!(life, Life::Up | Life::Broken);
        let expected = sys.clients.iter().filter(|c| c.id.is_some() && stays(c.life));
        let expected = expected.count() as u32;
        sys.log(|| format!("a successor waits for {expected} clients"));
        let primary = self.fresh_primary(expected);
        self.sys.recovering = primary.is_recovering();
        self.primary = Some(primary);
        self.schedule_tick();
    }

    /// Handles one thing that has arrived.
    pub fn serve(&mut self) {
        self.sys.serve_pending = false;
        if let Some(primary) = &mut self.primary {
            if let Some(arrived) = self.sys.inbox.pop_front() {
                self.sys.serve_pending = true; // whatever arrives meanwhile waits its turn
                match arrived {
                    Arrived::Unit { client, inc, gen, unit } => {
                        unit_arrived(primary, &mut self.sys, &mut self.out, client, inc, gen, unit);
                    }
                    Arrived::Control { client, inc, conn, number, ask } => {
                        let c = usize::from(client);
                        let answer =
                            control(primary, &mut self.sys, &mut self.out, c, (inc, conn), ask);
                        if let Some(answer) = answer {
                            answer_control(&mut self.sys, c, (inc, conn, number), answer);
                        }
                    }
                    Arrived::Lost { client, inc, conn } => {
                        lost(primary, &mut self.sys, &mut self.out, client.into(), inc, conn);
                    }
                }
                self.sys.recovering = primary.is_recovering();
                self.sys.deliver(&mut self.out);
                self.waiters_bits();
            }
        }
        self.sys.serve_pending = !self.sys.inbox.is_empty();
        if self.sys.serve_pending {
            let ns = self.sys.takes(200);
            let at = (self.sys.now + ns).max(self.sys.frozen_until);
            self.sys.at(at, Ev::Serve);
        }
        self.schedule_tick();
    }

    /// A channel whose client has not read for too long is dropped.
    pub fn stalled(&mut self, c: u8, inc: u16, gen: u32) {
        let sys = &mut self.sys;
        let until = sys.clients[usize::from(c)].blocked_down;
        let stalled = sys.bugs.undo_before_fence || until > sys.now;
        let mut sessions = sys.sessions.iter_mut();
        let session = sessions.find(|s| (s.client, s.inc, s.gen) == (c, inc, gen) && gen != 0);
        let Some(s) = session.filter(|_| stalled) else { return };
        s.gen = 0;
        let id = s.id;
        sys.at(until, Ev::Reset(c, inc, gen));
        if let Some(primary) = &mut self.primary {
            primary.detached(sys.server_now(), sys, id, &mut self.out);
            sys.deliver(&mut self.out);
            self.schedule_tick();
        }
    }

    fn schedule_tick(&mut self) {
        let Some(primary) = &self.primary else { return };
        let sessions = &self.sys.sessions;
        let doomed = |id: ClientId| sessions.iter().any(|s| s.id == id && s.doomed);
        if let Some(at) = primary.next_wakeup_skipping(&doomed) {
            let mut at = self.sys.true_time(at).max(self.sys.now).max(self.sys.frozen_until);
            if primary.is_undoing() {
                at += self.sys.takes(2_000); // others are served between two slices
            }
            if self.sys.tick_at.is_none_or(|known| known > at) {
                self.sys.tick_at = Some(at);
                self.sys.at(at, Ev::Tick(at));
            }
        }
    }

    /// Everything whose time has come.
    pub fn tick(&mut self, at: u64) {
        if self.sys.tick_at != Some(at) {
            return;
        }
        self.sys.tick_at = None;
        let Some(primary) = &mut self.primary else { return };
        let now = self.sys.server_now();
        self.sys.mix(0x71c ^ now.0);
        step(primary, &mut self.sys, &mut self.out);
        loop {
            let sessions = &self.sys.sessions;
            let doomed = |id: ClientId| sessions.iter().any(|s| s.id == id && s.doomed);
            let Some(id) = primary.must_fence(now, &doomed) else { break };
            fence_when_possible(primary, &mut self.sys, &mut self.out, id);
        }
        self.sys.recovering = primary.is_recovering();
        self.sys.deliver(&mut self.out);
        self.waiters_bits();
        self.schedule_tick();
    }

    /// A free read-write lock with waiters, and nothing under way that could wake them.
    pub fn nobody_sleeps_before_a_free_lock(&mut self) {
        let Some(primary) = &self.primary else { return };
        let sys = &self.sys;
        if !sys.inbox.is_empty()
            || sys.serve_pending
            || sys.clients.iter().any(|c| !c.up.is_empty())
        {
            return;
        }
        for l in (0..sys.plan.locks.len()).filter(|&l| sys.plan.locks[l] == LockType::Rw) {
            let threads = || sys.clients.iter().map(|c| &c.threads[l]);
            let Some(slot) = sys.slot_of(l) else { continue };
            let word = sys.memory.words[Sys::w0(slot).index() as usize];
            let free = RwWord::from_bits(word).with_waiters(false) == RwWord::new();
            let asleep = |t: &Thread| match t.doing {
                // who is in doubt of its release has not sent its wake-up: its next operation does
                Doing::Idle | Doing::Nothing => !t.entry.as_ref().is_some_and(|e| e.in_doubt()),
                Doing::Reply { is_wait } => is_wait,
                _ => false,
            };
            if free && primary.waiters(slot) > 0 && threads().all(asleep) {
                let why = format!("liveness: lock {l} is free, and its waiters are asleep");
                return self.sys.fail(why);
            }
        }
    }

    /// Whoever is queued is seen by everybody else: the waiters bit is set on an atomic word iff
    /// somebody is queued, and on a read-write word if somebody is.
    fn waiters_bits(&mut self) {
        let Some(primary) = &self.primary else { return };
        for l in 0..self.sys.plan.locks.len() {
            let Some(slot) = self.sys.slot_of(l) else { continue };
            let word = *self.sys.memory.word(Sys::w0(slot));
            let queued = primary.waiters(slot);
            let bit = match self.sys.plan.locks[l] {
                LockType::Atomic => AtomicWord::from_bits(word).waiters(),
                LockType::Rw => RwWord::from_bits(word).waiters() || queued == 0,
                LockType::Fair => continue,
            };
            let atomic = self.sys.plan.locks[l] == LockType::Atomic;
            if queued > 0 && !bit || atomic && bit && queued == 0 {
                self.sys.fail(format!("queue: {queued} are queued for lock {l}: {word:#x}"));
            }
        }
    }
}

impl Sys {
    /// Where the lock is now, told by somebody who has got it and whom the primary knows: whose
    /// lock was destroyed unknowingly may remember a place that another lock has now.
    fn slot_of(&self, l: usize) -> Option<Slot> {
        let knows = |c: &&Client| self.sessions.iter().any(|s| Some(s.id) == c.id && !s.left);
        let threads = self.clients.iter().filter(knows).map(|c| &c.threads[l]);
        let bound = |t: &&Thread| t.epoch == self.epoch && t.doing != Doing::Control;
        threads.filter(bound).find_map(|t| Some(t.entry.as_ref()?.slot()))
    }
}

fn unit_arrived(
    primary: &mut Primary,
    sys: &mut Sys,
    out: &mut Vec<Sent>,
    client: u8,
    inc: u16,
    gen: u32,
    unit: Unit,
) {
    let c = usize::from(client);
    let open = sys.sessions_of(c, inc).find(|s| s.gen == gen && gen != 0);
    let Some(id) = open.map(|s| s.id) else { return };
    let now = sys.server_now();
    match unit {
        Unit::Batch { lock, tok, chain, .. } => {
            let outcome = match primary.check_chain(now, sys, id, &chain) {
                Ok(_) => Outcome::Done(execute(sys, id, &chain)),
                Err(status) => Outcome::Refused(status),
            };
            if let Outcome::Done(values) = &outcome {
                primary.executed(id, &chain, values);
            }
            sys.send_down(c, inc, gen, Frame::Outcome { lock, tok, outcome });
        }
        Unit::Note { handle, entry, .. } => {
            if primary.check_note(id, handle).is_ok() {
                let chain = Chain::one(Verb::Note { handle, value: entry.into_bits() });
                let values = execute(sys, id, &chain);
                primary.executed(id, &chain, &values);
            }
        }
        Unit::End => {
            primary.detached(now, sys, id, out);
            if let Some(s) = sys.session(id) {
                s.gen = 0;
            }
        }
        Unit::Request { seq, request } => {
            sys.log(|| format!("primary: {} {seq} {request:?}", id.get()));
            let seq = Seq(u64::from(gen) << 32 | seq.0); // no two channels share a number
            primary.command(now, sys, id, seq, request, out);
        }
    }
}

/// The primary's own processor executes a chain; others' verbs come between its verbs.
fn execute(sys: &mut Sys, id: ClientId, chain: &Chain) -> Values {
    let mut values = Values::new();
    for verb in chain.verbs() {
        sys.others();
        let value = match *verb {
            Verb::Cas { addr, expect, swap } if sys.bugs.split_cas => {
                dlock_core::exec::LockMemory::cas(sys, addr, expect, swap)
            }
            _ => sys.verb(sys.epoch, id, verb),
        };
        values.push(value);
    }
    values
}

fn answer_control(sys: &mut Sys, c: usize, to: (u16, u32, u32), answer: Answer) {
    let ns = sys.takes(10_000);
    let client = &mut sys.clients[c];
    let at = (sys.now + ns).max(client.control_down_last + 1).max(client.blocked_down);
    client.control_down_last = at;
    client.control_down.push_back((to.0, to.1, to.2, answer));
    sys.at(at, Ev::ControlDown(c as u8));
}

fn control(
    primary: &mut Primary,
    sys: &mut Sys,
    out: &mut Vec<Sent>,
    c: usize,
    (inc, conn): (u16, u32),
    ask: Ask,
) -> Option<Answer> {
    if let Ask::Join { reinit, gen } = ask {
        return Some(match admit(primary, sys, out, c, (inc, conn, gen), reinit) {
            Ok(answer) => answer,
            Err(status) => Answer::Refused(status),
        });
    }
    let session = sys.sessions_of(c, inc).find(|s| s.conn == conn && !s.left);
    let Some(id) = session.map(|s| s.id) else { return Some(Answer::Closed) };
    let now = sys.server_now();
    sys.mix(0xc7 ^ now.0);
    let locks = |reply: ControlReply| match reply {
        ControlReply::Locks(grants) => Ok(grants),
        ControlReply::Error(status) => Err(status),
        _ => Err(Status::BadResponse),
    };
    let mut call = |sys: &mut Sys, request| primary.control(now, sys, id, request, out);
    Some(match ask {
        Ask::Join { .. } => return None,
        Ask::Attach(gen) => {
            let fabric = match sys.clients[c].fabric {
                Fabric::Shm => FabricKind::Shm,
                Fabric::Tcp => FabricKind::Tcp,
                Fabric::Verbs => FabricKind::Verbs,
            };
            primary.attached(now, sys, id, fabric, out);
            if let Some(s) = sys.session(id) {
                s.gen = gen;
            }
            Answer::Attached
        }
        Ask::Get(wanted) => {
            let descs = wanted.iter().map(|&l| desc(sys, l.into())).collect();
            match locks(call(sys, ControlRequest::GetLocks(descs))) {
                Ok(grants) => {
                    let mut grants: Vec<_> = wanted.into_iter().zip(grants).collect();
                    sys.high_lanes(&mut grants);
                    Answer::Locks(grants)
                }
                Err(status) => Answer::Refused(status),
            }
        }
        Ask::Release(l, lock) => match call(sys, ControlRequest::ReleaseLocks(vec![lock])) {
            ControlReply::Statuses(statuses) => Answer::Released(l, statuses[0]),
            ControlReply::Error(status) => Answer::Released(l, status),
            _ => Answer::Released(l, Status::BadResponse),
        },
        Ask::Heartbeat => match call(sys, ControlRequest::Heartbeat) {
            ControlReply::Alive { now, .. } => Answer::Alive(now),
            ControlReply::Error(status) => Answer::Refused(status),
            _ => Answer::Refused(Status::Error),
        },
        Ask::Update(claims) => {
            let told: Vec<_> = claims.iter().map(|(_, claim)| claim.clone()).collect();
            let held: Vec<_> = claims.iter().map(|(l, c)| (*l, c.held.is_some())).collect();
            match locks(call(sys, ControlRequest::UpdateLocks(told))) {
                Ok(grants) => {
                    let zipped = held.into_iter().zip(grants);
                    Answer::Updated(zipped.map(|((l, held), g)| (l, held, g)).collect())
                }
                Err(status) => Answer::Refused(status),
            }
        }
        Ask::Object(o, request) => Answer::Object(o, call(sys, request)),
        Ask::Done => match call(sys, ControlRequest::ReinitDone) {
            ControlReply::Done => Answer::Done,
            _ => Answer::Refused(Status::Error),
        },
        Ask::Leave => {
            let done = call(sys, ControlRequest::Deinit) == ControlReply::Done;
            if !done {
                return Some(Answer::Refused(Status::NotReady));
            }
            if let Some(s) = sys.session(id) {
                s.left = true;
            }
            fence(primary, sys, out, id);
            Answer::Left
        }
    })
}

fn admit(
    primary: &mut Primary,
    sys: &mut Sys,
    out: &mut Vec<Sent>,
    c: usize,
    (inc, conn, gen): (u16, u32, u32),
    reinit: Option<(ClientId, Secret)>,
) -> Result<Answer, Status> {
    let secret = Secret([c as u8 + 1; 16]);
    let (version_min, version_max, tp_mode) = (VERSION_MIN, VERSION, 0);
    let request = match reinit {
        None => ControlRequest::Init { version_min, version_max, tp_mode },
        Some((client, secret)) => {
            ControlRequest::Reinit { version_min, version_max, tp_mode, client, secret }
        }
    };
    let mut draws = sys.rng.clone();
    let mut draw = || draws.bits() as u32;
    let mut admitted = primary.admit(&request, &mut draw, secret);
    if admitted == Err(Status::ServerNoResource) {
        let sessions = &sys.sessions;
        let fenceable = |id: ClientId| sessions.iter().any(|s| s.id == id && can_fence(sys, s));
        if let Some(id) = primary.eviction_candidate(&|id| !fenceable(id)) {
            // announced: an absent client keeps its place only while nobody else needs it
            if let Some(s) = sys.sessions.iter().find(|s| s.id == id).copied() {
                sys.oracle.evicted(u64::from(s.client) << 32 | u64::from(s.inc));
            }
            fence(primary, sys, out, id);
            while primary.is_undoing() {
                step(primary, sys, out); // the new client waits for the place
            }
            admitted = primary.admit(&request, &mut draw, secret);
        }
    }
    sys.rng.bits();
    let admitted = admitted?;
    let id = admitted.client;
    sys.memory.add_client(id);
    if sys.sessions.iter().any(|s| s.id == id && s.gen != 0) {
        primary.detached(sys.server_now(), sys, id, out); // its old channel is closed first
    }
    sys.sessions.retain(|s| s.id != id);
    let session = Session { id, client: c as u8, inc, gen: 0, conn, left: false, doomed: false };
    sys.sessions.push(session);
    if sys.clients[c].inc != inc {
        let ns = sys.takes(50_000);
        sys.after(ns, Ev::Lost(c as u8, inc, EXITED)); // it came from a process that has ended
    } else if sys.clients[c].conn != conn {
        let ns = sys.takes(50_000);
        sys.after(ns, Ev::Lost(c as u8, inc, conn)); // nobody is at the other end any more
    }
    sys.mix(code(Status::Success) ^ u64::from(gen) << 8);
    Ok(Answer::Joined {
        id,
        secret: admitted.secret,
        epoch: sys.epoch,
        anchor_s: primary.config().anchor_s,
        now: sys.server_now(),
        recovering: admitted.recovering,
        gen,
    })
}

/// Whether nothing of a client can act once its channel is closed.
fn can_fence(sys: &Sys, s: &Session) -> bool {
    let client = &sys.clients[usize::from(s.client)];
    let dead = client.inc != s.inc || client.life == Life::Dead;
    let unmapped = client.id != Some(s.id);
    client.fabric != Fabric::Shm || dead || s.left || unmapped
}

fn fence_when_possible(primary: &mut Primary, sys: &mut Sys, out: &mut Vec<Sent>, id: ClientId) {
    let Some(s) = sys.sessions.iter().find(|s| s.id == id).copied() else { return };
    if can_fence(sys, &s) || sys.bugs.fence_shm {
        return fence(primary, sys, out, id);
    }
    if let Some(s) = sys.session(id) {
        s.doomed = true;
    }
}

/// A slice of what the primary has to do by itself; small ones, so that others come between.
fn step(primary: &mut Primary, sys: &mut Sys, out: &mut Vec<Sent>) {
    let budget = 1 + sys.rng.below(30) as u32;
    let step = primary.step(sys.server_now(), sys, budget, out);
    if let Some(id) = step.gone {
        sys.memory.remove_client(id);
    }
}

/// Closes everything of a client, then has what it holds undone.
fn fence(primary: &mut Primary, sys: &mut Sys, out: &mut Vec<Sent>, id: ClientId) {
    let Some(s) = sys.sessions.iter().find(|s| s.id == id).copied() else { return };
    sys.log(|| format!("client {} ({}) is fenced", s.client, id.get()));
    sys.mix(0xfe ^ u64::from(id.get()));
    if sys.bugs.undo_before_fence {
        primary.fenced(id); // its channel is still open
        while primary.is_leaving(id) {
            step(primary, sys, out);
        }
        let ns = sys.rng.below(50_000_000);
        let (gen, conn) = (s.gen, s.conn);
        let _ = (gen, conn);
        sys.after(ns, Ev::Stalled(s.client, s.inc, s.gen));
        return;
    }
    if let Some(s) = sys.session(id) {
        s.gen = 0;
    }
    if primary.fenced(id) {
        sys.memory.remove_client(id);
    } else if sys.rng.below(2) == 0 {
        step(primary, sys, out); // the part that is done at once
    }
    sys.sessions.retain(|s| s.id != id);
    let ns = sys.takes(10_000);
    let at = (sys.now + ns).max(sys.clients[usize::from(s.client)].blocked_down);
    sys.at(at, Ev::Reset(s.client, s.inc, s.gen));
}

fn lost(primary: &mut Primary, sys: &mut Sys, out: &mut Vec<Sent>, c: usize, inc: u16, conn: u32) {
    let hit = |s: &&Session| match conn {
        DETACHED => s.doomed,
        EXITED => !s.left,
        conn => s.conn == conn && !s.left,
    };
    let hits: Vec<Session> = sys.sessions_of(c, inc).filter(hit).copied().collect();
    for s in hits {
        let now: ServerTime = sys.server_now();
        sys.log(|| format!("client {c} ({}) is absent", s.id.get()));
        primary.absent(now, s.id);
        if let Some(s) = sys.session(s.id) {
            s.conn = 0;
        }
        let shm = sys.clients[c].fabric == Fabric::Shm;
        if (shm || sys.bugs.no_grace) && can_fence(sys, &s) {
            fence(primary, sys, out, s.id);
        }
    }
}
