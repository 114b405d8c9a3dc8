// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control connections, and what `Membership` wants done with the sockets and processes that the
//! simulator has models of. It decides nothing: `dlock-core::membership` does.

use dlock_core::clock::ServerTime;
use dlock_core::control::{
    Attach, ControlReply, ControlRequest, FabricKind, Secret, UNLIMITED, VERSION, VERSION_MIN,
};
use dlock_core::ids::ClientId;
use dlock_core::membership::{Draws, Effect, Fencing, Gone, Joining, MemberMemory, Opened};
use dlock_core::message::LockType;
use dlock_core::status::Status;
use dlock_core::words::{LedgerEntry, LedgerState};

use super::control::{desc, Answer};
use super::plan::Fabric;
use super::server::{World, EXITED};
use super::state::{code, Ask, Ev, Session, Sys};

/// The first attempt makes room, if need be, and the second takes it.
const OPEN_TRIES: usize = 2;

impl MemberMemory for Sys {
    fn is_mapped(&self, client: ClientId) -> bool {
        let session = self.sessions.iter().find(|s| s.id == client);
        session.is_some_and(|s| {
            let process = &self.clients[usize::from(s.client)];
            let is_shm = process.fabric == Fabric::Shm;
            is_shm && process.inc == s.inc && process.id == Some(client) && !s.left
        })
    }
}

impl World {
    /// Does everything that membership asks for.
    pub(super) fn settle_members(&mut self) {
        while let Some(effect) = self.members.poll() {
            self.execute_effect(effect);
        }
    }

    fn execute_effect(&mut self, effect: Effect) {
        self.sys.log(|| format!("membership: {effect:?}"));
        let now = self.sys.server_now();
        match effect {
            Effect::CloseControl { client, control } => {
                if let Some(s) = self.sys.session(client).filter(|s| u64::from(s.conn) == control) {
                    s.conn = 0;
                }
            }
            Effect::CloseChannel { client } => {
                self.close_channel(client);
                self.members.channel_closed(client, false);
            }
            Effect::Fence { client } => {
                self.close_channel(client);
                let mapped = self.sys.is_mapped(client);
                self.members.fence_tried(client, Fencing { unfenced: false, mapped });
            }
            Effect::Revoke { .. } => {}
            Effect::Look { client } => {
                let Some(primary) = &self.primary else { return };
                let has_something = primary.has_something(now, &mut self.sys, client);
                self.members.looked(client, has_something);
            }
            Effect::Lapse { client } => {
                self.sys.end_untold_leases(client);
                let Some(primary) = &mut self.primary else { return };
                let mut lapse = primary.begin_lapse(client);
                while !primary.lapse(now, &mut self.sys, &mut lapse, &mut self.out) {}
                self.members.lapsed(now, client, lapse.lapsed());
            }
            Effect::Undo { client, .. } => {
                let Some(primary) = &mut self.primary else { return };
                self.sys.mix(0xfe ^ u64::from(client.get()));
                if primary.fenced(client) {
                    self.members.undone(client);
                } else if self.sys.rng.below(2) == 0 {
                    self.step(); // the part that is done at once
                }
            }
            Effect::Forget { client } => {
                self.sys.memory.remove_client(client);
                self.sys.sessions.retain(|s| s.id != client);
            }
        }
    }

    /// Nothing that is under way on the client's channel arrives any more.
    pub(super) fn close_channel(&mut self, id: ClientId) {
        let now = self.sys.server_now();
        let (Some(primary), Some(s)) = (&mut self.primary, self.sys.session(id)) else { return };
        let (c, inc, gen) = (s.client, s.inc, std::mem::take(&mut s.gen));
        if gen != 0 {
            primary.detached(now, &mut self.sys, id, &mut self.out);
            let ns = self.sys.takes(10_000);
            let at = (self.sys.now + ns).max(self.sys.clients[usize::from(c)].blocked_down);
            self.sys.at(at, Ev::Reset(c, inc, gen));
        }
    }

    pub(super) fn control(
        &mut self,
        c: usize,
        (inc, conn): (u16, u32),
        ask: Ask,
    ) -> Option<Answer> {
        if let Ask::Join { reinit, gen } = ask {
            let joined = self.join(c, (inc, conn, gen), reinit);
            return Some(joined.unwrap_or_else(Answer::Refused));
        }
        let session = self.sys.sessions_of(c, inc).find(|s| s.conn == conn && !s.left).copied();
        let Some(Session { id, .. }) = session else { return Some(Answer::Closed) };
        if let Ask::Attach(gen) = ask {
            return Some(self.attach(c, id, gen));
        }
        if !self.members.speaks(id, conn.into()) {
            return Some(Answer::Closed);
        }
        let now = self.sys.server_now();
        self.sys.mix(0xc7 ^ now.0);
        Some(self.answer(id, conn, ask))
    }

    fn answer(&mut self, id: ClientId, conn: u32, ask: Ask) -> Answer {
        let now = self.sys.server_now();
        let Self { sys, primary, members, out } = self;
        let Some(primary) = primary else { return Answer::Closed };
        let locks = |reply: ControlReply| match reply {
            ControlReply::Locks(grants) => Ok(grants),
            ControlReply::Error(status) => Err(status),
            _ => Err(Status::BadResponse),
        };
        let mut call = |sys: &mut Sys, request| {
            members.control(now, primary, sys, (id, conn.into()), request, out)
        };
        match ask {
            Ask::Join { .. } | Ask::Attach(_) => Answer::Closed,
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
                ControlReply::Alive { now, until, .. } => {
                    Answer::Alive(now, true_until(sys, until))
                }
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
                    return Answer::Refused(Status::NotReady);
                }
                if let Some(s) = sys.session(id) {
                    s.left = true;
                }
                Answer::Left
            }
        }
    }

    fn join(
        &mut self,
        c: usize,
        (inc, conn, gen): (u16, u32, u32),
        reinit: Option<(ClientId, Secret)>,
    ) -> Result<Answer, Status> {
        let (version_min, version_max, tp_mode) = (VERSION_MIN, VERSION, 0);
        let horizon_s = Some(self.sys.plan.horizon_s(self.sys.clients[c].fabric));
        let request = match reinit {
            None => ControlRequest::Init { version_min, version_max, tp_mode, horizon_s },
            Some((client, secret)) => ControlRequest::Reinit {
                version_min,
                version_max,
                tp_mode,
                horizon_s,
                client,
                secret,
            },
        };
        let mut numbers = self.sys.rng.clone();
        self.sys.rng.bits();
        let mut opened = Opened::Wait;
        for _ in 0..OPEN_TRIES {
            let mut number = || numbers.bits() as u32;
            let draws = Draws { secret: Secret([c as u8 + 1; 16]), number: &mut number };
            let now = self.sys.server_now();
            let Self { sys, primary, members, .. } = self;
            let Some(primary) = primary else { return Err(Status::NotReady) };
            opened = members.open(now, primary, sys, &request, conn.into(), draws)?;
            self.settle_members();
            if opened != Opened::Wait {
                break;
            }
        }
        // the server lets it wait; here it comes again
        let Opened::Admitted(admitted) = opened else { return Err(Status::ServerNoResource) };
        let id = admitted.client;
        let sys = &mut self.sys;
        sys.memory.add_client(id);
        let process = sys.session(id).map_or(0, |s| s.process);
        sys.sessions.retain(|s| s.id != id);
        let client = c as u8;
        let session = Session { id, client, inc, gen: 0, channel: 0, process, conn, left: false };
        sys.sessions.push(session);
        if sys.clients[c].inc != inc {
            let ns = sys.takes(50_000);
            sys.after(ns, Ev::Lost(client, inc, EXITED)); // it came from a process that has ended
        } else if sys.clients[c].conn != conn {
            let ns = sys.takes(50_000);
            sys.after(ns, Ev::Lost(client, inc, conn)); // nobody is at the other end any more
        }
        sys.mix(code(Status::Success) ^ u64::from(gen) << 8);
        let terms = admitted.terms;
        Ok(Answer::Joined {
            id,
            secret: admitted.secret,
            epoch: sys.epoch,
            anchor_s: self.primary.as_ref().map_or(0, |primary| primary.config().anchor_s),
            now: sys.server_now(),
            until: true_until(sys, terms.map(|terms| terms.until)),
            lapses: terms.map_or(0, |terms| terms.lapses),
            recovering: admitted.recovering,
            gen,
        })
    }

    fn attach(&mut self, c: usize, id: ClientId, gen: u32) -> Answer {
        let process = &self.sys.clients[c];
        let (fabric, joining) = match process.fabric {
            Fabric::Shm => {
                let pid = Some(i32::from(process.inc));
                (FabricKind::Shm, Joining::by(FabricKind::Shm, pid, true))
            }
            Fabric::Tcp => (FabricKind::Tcp, Joining::over(FabricKind::Tcp)),
            Fabric::Verbs => (FabricKind::Verbs, Joining::over(FabricKind::Verbs)),
        };
        let secret = Secret([c as u8 + 1; 16]);
        let attach = Attach { client: id, secret, fabric, verbs: None, version: Some(VERSION) };
        let Some(primary) = &self.primary else { return Answer::Closed };
        let status = match self.members.begin_attach(primary, &attach, joining) {
            // the simulator's cards refuse chains in recovery
            Status::NotReady if fabric == FabricKind::Verbs => Status::Success,
            status => status,
        };
        if status != Status::Success {
            return Answer::Refused(status);
        }
        self.settle_members();
        let channel = match self.members.finish_attach(id, fabric, joining) {
            Ok(channel) => channel,
            Err(status) => return Answer::Refused(status),
        };
        let now = self.sys.server_now();
        let Some(primary) = &mut self.primary else { return Answer::Closed };
        primary.attached(now, &mut self.sys, id, fabric, &mut self.out);
        if let Some(s) = self.sys.session(id) {
            (s.gen, s.channel) = (gen, channel.number);
            s.process = channel.watch.unwrap_or(s.process);
        }
        Answer::Attached
    }

    pub(super) fn lost(&mut self, c: usize, inc: u16, conn: u32, why: Gone) {
        let hit = |s: &&Session| !s.left && (conn == EXITED || s.conn == conn);
        let hits: Vec<Session> = self.sys.sessions_of(c, inc).filter(hit).copied().collect();
        for s in hits {
            let now = self.sys.server_now();
            let Some(primary) = &mut self.primary else { return };
            self.sys.log(|| format!("client {c} ({}) is lost: {why:?}", s.id.get()));
            self.members.control_ended(now, primary, (s.id, s.conn.into()), why);
            if conn == EXITED && self.sys.clients[c].fabric == Fabric::Shm {
                self.members.process_ended(s.id, s.process);
            }
            if let Some(s) = self.sys.session(s.id) {
                s.conn = 0;
            }
        }
    }
}

impl Sys {
    /// A lease on a fair lock is a promise once the primary knows of it. That of a tcp client whose
    /// ledger write has not arrived is not: it ends at the horizon, as what has no lease.
    fn end_untold_leases(&mut self, id: ClientId) {
        let Some(s) = self.session(id).copied() else { return };
        let c = usize::from(s.client);
        if self.clients[c].fabric != Fabric::Tcp || self.clients[c].inc != s.inc {
            return;
        }
        let who = u64::from(s.client) << 32 | u64::from(s.inc);
        for l in 0..self.plan.locks.len() {
            let entry = self.clients[c].threads[l].entry.as_ref();
            let Some(handle) = entry.map(|entry| entry.handle()) else { continue };
            let noted = LedgerEntry::from_bits(self.memory.entry(id, handle)).state();
            let is_told = matches!(noted, LedgerState::HeldExclusive | LedgerState::HeldShared);
            if self.plan.locks[l] == LockType::Fair && !is_told {
                self.oracle.ended(l, who);
            }
        }
    }
}

/// The true time until which the primary does not act on silence.
fn true_until(sys: &Sys, until: Option<ServerTime>) -> u64 {
    match until {
        None | Some(UNLIMITED) => u64::MAX,
        Some(until) => sys.true_time(until),
    }
}
