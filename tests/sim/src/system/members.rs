// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control connections, and the effects of `Primary` on the sockets and processes of the simulator.
//! Nothing is decided here: `dlock-core::primary` decides.

use dlock_core::ids::ClientId;
use dlock_core::membership::{Caller, Connection, Draws, Gone, Joining, MemberMemory, Opened};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::primary::{Effect, Event, Primary};
use dlock_core::roster::{Change, Kept, Process};
use dlock_core::wire::about::About;
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, Secret, VERSION, VERSION_MIN,
};
use dlock_core::wire::status::Status;

use super::control::{desc, Answer};
use super::plan::Fabric;
use super::server::{execute, World, EXITED};
use super::state::{code, Ask, Ev, Session, Sys};

impl MemberMemory for Sys {
    fn is_mapped(&self, client: ClientId) -> bool {
        let session = self.sessions.iter().find(|s| s.id == client);
        session.is_some_and(|s| {
            let process = &self.clients[usize::from(s.client)];
            s.mapped && process.inc == s.inc && process.id == Some(client) && !s.left
        })
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        Outcome::Done(execute(self, client, chain))
    }
}

impl World {
    /// Hands an event to the primary, executes the effects, and returns the answer to the event, if
    /// it has one.
    pub(super) fn handle(&mut self, event: Event) -> Option<Effect> {
        self.tells(event);
        self.settle_members()
    }

    /// Executes all pending effects; returns the answer among them, if there is one.
    pub(super) fn settle_members(&mut self) -> Option<Effect> {
        let mut answer = None;
        while let Some(effect) = self.polled() {
            match effect.is_answer() {
                true => answer = Some(effect),
                false => self.execute_effect(effect),
            }
        }
        answer
    }

    fn execute_effect(&mut self, effect: Effect) {
        if let Effect::Send(sent) = effect {
            return self.out.push(sent);
        }
        self.sys.log(|| format!("membership: {effect:?}"));
        match effect {
            // arrivals that are not served yet are served before the answer
            Effect::Listen => match self.sys.inbox.len() {
                0 => self.tells(Event::Listened),
                unheard => self.unheard = unheard,
            },
            Effect::CloseControl { client, control } => {
                if let Some(s) = self.sys.session(client).filter(|s| u64::from(s.conn) == control) {
                    s.conn = 0;
                }
                self.prepared.retain(|s| u64::from(s.conn) != control);
            }
            Effect::CloseChannel { client, channel } => {
                let is_current = |s: &mut Session| Some(s.channel) == channel;
                let is_current = self.sys.session(client).is_some_and(is_current);
                let unfenced = self.sys.cannot_be_fenced(client, is_current);
                self.close_prepared_channel(client, channel.unwrap_or(0));
                match is_current {
                    true => self.close_channel(client, Event::Done { unfenced }),
                    false => self.tells(Event::Done { unfenced }),
                }
            }
            Effect::Switch { client } => {
                let old = self.sys.session(client).map(|s| (s.process, s.mapped));
                let (process, mapped) = old.unwrap_or((0, false));
                self.sys.sessions.retain(|s| s.id != client);
                let place = self.prepared.iter().position(|s| s.id == client);
                let prepared = place.map(|place| self.prepared.remove(place));
                if let Some(prepared) = &prepared {
                    self.takes_place(prepared);
                }
                self.sys.sessions.extend(prepared.map(|s| Session { process, mapped, ..s }));
                self.tells(Event::Done { unfenced: false });
            }
            Effect::Fence { client } => {
                if let Some((c, inc)) = self.sys.session(client).map(|s| (s.client, s.inc)) {
                    self.sys.is_fenced(c.into(), inc);
                }
                let unfenced = self.sys.cannot_be_fenced(client, true);
                self.close_channel(client, Event::Done { unfenced });
            }
            Effect::Keep(Change::Tokens { below }) => self.kept_tokens = below,
            Effect::Keep(change) => change.apply(&mut self.kept_clients),
            Effect::Revoke { client, status } => {
                if let Some(s) = self.sys.session(client) {
                    s.revoked = Some(status);
                }
            }
            // holds without a lease are ended at once
            Effect::Lapses { .. } => {
                while self.primary.as_ref().is_some_and(Primary::is_lapsing) {
                    self.tells(Event::Upkeep { budget: 0 });
                }
            }
            Effect::Removes { client, exit } => {
                self.is_removed(client, exit);
                self.sys.mix(0xfe ^ u64::from(client.get()));
                let is_leaving = |one: &Primary| one.locks().is_leaving(client);
                if self.primary.as_ref().is_some_and(is_leaving) && self.sys.rng.below(2) == 0 {
                    self.step(); // a part of what the client had is undone at once
                }
            }
            Effect::Forget { client } => {
                self.has_nothing(Some(client));
                self.sys.memory.remove_client(client);
                self.sys.sessions.retain(|s| s.id != client);
                self.prepared.retain(|s| s.id != client);
            }
            Effect::Hinders { client } => self.is_cut_off(client),
            _ => {} // the other effects are only for the log
        }
    }

    /// Revokes a client's certificate: the client is fenced, and may come back with another one.
    pub(super) fn revoke(&mut self, c: usize) {
        let client = &self.sys.clients[c];
        let Some((id, control)) = client.id.map(|id| (id, u64::from(client.conn))) else { return };
        if !self.speaks(id, control) {
            return;
        }
        self.step();
        let connection = Connection::Control(control);
        self.tells(Event::Revoked { client: id, connection });
        self.is_cut_off(id);
        self.finish_turn();
        self.schedule_tick();
    }

    /// The primary fences a client that may still be active. A client without a horizon may rely on
    /// its holds only if it has the memory mapped, so that the primary waits for its process, and
    /// if the primary knows its holds.
    pub(super) fn is_cut_off(&mut self, client: ClientId) {
        let is_known = self.primary.as_ref().is_some_and(|one| one.locks().has_told_all(client));
        let Some(s) = self.sys.session(client).copied() else { return };
        let c = usize::from(s.client);
        if self.sys.clients[c].fabric != Fabric::Shm || !is_known {
            self.sys.has_no_horizon(c, (s.inc, s.conn), self.sys.now);
        }
    }

    /// Whether this control connection speaks for this client.
    fn speaks(&self, id: ClientId, control: u64) -> bool {
        self.primary.as_ref().is_some_and(|primary| primary.members().speaks(id, control))
    }

    /// Drops everything that is under way on the client's channel, and tells the primary.
    pub(super) fn close_channel(&mut self, id: ClientId, told: Event) {
        let session = self.sys.session(id);
        let closed = session.map(|s| (s.client, s.inc, std::mem::take(&mut s.gen)));
        self.tells(told);
        if let Some((c, inc, gen)) = closed.filter(|&(.., gen)| gen != 0) {
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
        let who = (c as u8, inc, conn, false);
        let is_it = |s: &&Session| (s.client, s.inc, s.conn, s.left) == who;
        let mut sessions = self.sys.sessions.iter().chain(&self.prepared);
        let Some(Session { id, .. }) = sessions.find(is_it).copied() else {
            return Some(Answer::Closed);
        };
        // a client that does not attach first proves with this request that it has its session
        let moves = match ask {
            Ask::Attach(.., attaches_first) => !attaches_first,
            _ => true,
        };
        if moves {
            self.handle(Event::Shown { client: id, control: conn.into() });
        }
        if let Ask::Attach(gen, fabric, secret, _) = ask {
            return Some(self.attach(c, (id, secret), gen, fabric));
        }
        if !self.speaks(id, conn.into()) {
            return Some(Answer::Closed);
        }
        let now = self.sys.server_now();
        self.sys.mix(0xc7 ^ now.0);
        Some(self.answer((c, id), conn, ask))
    }

    fn answer(&mut self, (c, id): (usize, ClientId), conn: u32, ask: Ask) -> Answer {
        let who = self.sys.session(id).map(|s| usize::from(s.client));
        let before = who.and_then(|c| Some((c, self.before(c, None)?)));
        if self.primary.is_none() {
            return Answer::Closed;
        }
        let locks = |reply: ControlReply| match reply {
            ControlReply::Locks(grants) => Ok(grants),
            ControlReply::Error(status) => Err(status),
            _ => Err(Status::BadResponse),
        };
        match ask {
            Ask::Join { .. } | Ask::Attach(..) => Answer::Closed,
            Ask::Get(wanted) => {
                let descs = wanted.iter().map(|&l| desc(&self.sys, c, l.into())).collect();
                match locks(self.call((id, conn), ControlRequest::GetLocks(descs))) {
                    Ok(grants) => {
                        let mut grants: Vec<_> = wanted.into_iter().zip(grants).collect();
                        if let Some((c, before)) = before {
                            self.were_given((c, id), &grants, before);
                        }
                        self.sys.high_lanes(&mut grants);
                        Answer::Locks(grants)
                    }
                    Err(status) => Answer::Refused(status),
                }
            }
            Ask::Release(l, lock) => {
                match self.call((id, conn), ControlRequest::ReleaseLocks(vec![lock])) {
                    ControlReply::Statuses(statuses) => {
                        if statuses[0] == Status::Success {
                            self.is_given(id, l, false);
                        }
                        Answer::Released(l, statuses[0])
                    }
                    ControlReply::Error(status) => Answer::Released(l, status),
                    _ => Answer::Released(l, Status::BadResponse),
                }
            }
            Ask::Heartbeat => match self.call((id, conn), ControlRequest::Heartbeat) {
                ControlReply::Alive { now, until, recovering, .. } => {
                    Answer::Alive(now, until, recovering)
                }
                ControlReply::Error(status) => {
                    if self.speaks(id, conn.into()) {
                        self.sys.fail(format!("session: {id:?} beats and is refused: {status}"));
                    }
                    Answer::Refused(status)
                }
                _ => Answer::Refused(Status::Error),
            },
            Ask::Update(claims) => {
                let told: Vec<_> = claims.iter().map(|(_, claim)| claim.clone()).collect();
                let held: Vec<_> = claims.iter().map(|(l, c)| (*l, c.held.is_some())).collect();
                match locks(self.call((id, conn), ControlRequest::UpdateLocks(told))) {
                    Ok(grants) => {
                        for ((l, _), grant) in held.iter().zip(&grants) {
                            if grant.is_ok() {
                                self.is_given(id, *l, true);
                            }
                        }
                        let zipped = held.into_iter().zip(grants);
                        Answer::Updated(zipped.map(|((l, held), g)| (l, held, g)).collect())
                    }
                    Err(status) => Answer::Refused(status),
                }
            }
            Ask::Object(o, request) => {
                let reply = self.call((id, conn), request.clone());
                if let Some((c, before)) = before {
                    self.object_lawful(c, &request, &reply, before);
                }
                Answer::Object(o, reply)
            }
            Ask::Done => match self.call((id, conn), ControlRequest::ReinitDone) {
                ControlReply::Done => Answer::Done,
                _ => Answer::Refused(Status::Error),
            },
            Ask::Leave => {
                let done = self.call((id, conn), ControlRequest::Deinit) == ControlReply::Done;
                if !done {
                    if self.speaks(id, conn.into()) {
                        self.sys.fail(format!("session: {id:?} wants to leave, and is waited for"));
                    }
                    return Answer::Refused(Status::NotReady);
                }
                if let Some(s) = self.sys.session(id) {
                    s.left = true;
                }
                Answer::Left
            }
        }
    }

    /// Passes a request of a control connection to the primary; returns the answer.
    fn call(&mut self, (client, conn): (ClientId, u32), request: ControlRequest) -> ControlReply {
        match self.handle(Event::Control { client, control: conn.into(), request }) {
            Some(Effect::Answer { reply, .. }) => reply,
            other => {
                self.sys.fail(format!("session: a request has {other:?}"));
                ControlReply::Error(Status::BadResponse)
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
        let horizon_s = match self.sys.plan.horizons_vary {
            true => self.sys.rng.range(1, 12) as u32,
            false => self.sys.plan.horizon_s,
        };
        let request = match reinit {
            None => ControlRequest::Init {
                version_min,
                version_max,
                tp_mode,
                horizon_s,
                about: About::NOTHING,
            },
            Some((client, secret)) => ControlRequest::Reinit {
                version_min,
                version_max,
                tp_mode,
                horizon_s,
                client,
                secret,
                about: About::NOTHING,
            },
        };
        let mut numbers = self.sys.rng.clone();
        self.sys.rng.bits();
        let is_member = reinit.is_some_and(|(client, _)| self.state(client).is_some());
        self.secrets += 1;
        let secret = Secret(self.secrets.to_be_bytes());
        let draws = Draws { secret, numbers: std::array::from_fn(|_| numbers.bits() as u32) };
        let (identity, names) = self.sys.certificate(c);
        let Some(primary) = &self.primary else { return Err(Status::NotReady) };
        let clients_max = primary.locks().config().clients_max;
        let is_full = primary.locks().is_full() || primary.members().len() >= clients_max;
        let caller = Caller { control: conn.into(), identity, names: names.to_vec() };
        let is_new = reinit.is_none();
        let opened = self.handle(Event::Open { request, caller, draws });
        let Some(Effect::Opened { opened, .. }) = opened else {
            return Err(Status::BadResponse);
        };
        if let (true, Err(status)) = (is_new, opened) {
            self.is_let_in(c, Err(status), is_full);
        }
        self.is_known_by_its_proof((c, inc, conn), reinit, opened.err());
        // the server would let the client wait; in the simulator the client repeats its request
        let Opened::Admitted(admitted) = opened? else { return Err(Status::ServerNoResource) };
        let id = admitted.client;
        self.sys.law.of.insert(id, c as u8);
        if !is_member && self.sys.has_no_memory() {
            self.handle(Event::NoMemory { client: id, is_new });
            return Err(Status::ServerNoResource);
        }
        let sys = &mut self.sys;
        sys.memory.add_client(id);
        let (process, mapped) = sys.session(id).map_or((0, false), |s| (s.process, s.mapped));
        let client = c as u8;
        let session = Session {
            id,
            client,
            inc,
            gen: 0,
            channel: 0,
            fabric: sys.clients[c].next_fabric,
            process,
            conn,
            left: false,
            since: sys.now,
            revoked: None,
            mapped,
        };
        if admitted.prepared_by.is_some() {
            self.prepared.push(session);
        } else {
            sys.sessions.retain(|s| s.id != id);
            sys.sessions.push(session);
        }
        if reinit.is_none() {
            self.is_let_in(c, Ok(()), false);
        }
        let sys = &mut self.sys;
        if sys.clients[c].inc != inc {
            let ns = sys.takes(50_000);
            // the pidfd reports that the client's process has ended
            sys.after(ns, Ev::Lost(client, inc, EXITED));
        } else if sys.clients[c].conn != conn {
            let ns = sys.takes(50_000);
            sys.after(ns, Ev::Lost(client, inc, conn)); // the control connection of the client ends
        }
        sys.mix(code(Status::Success) ^ u64::from(gen) << 8);
        Ok(Answer::Joined {
            id,
            secret: admitted.secret,
            epoch: sys.epoch,
            now: sys.server_now(),
            terms: admitted.terms,
            recovering: admitted.recovering,
            gen,
        })
    }

    /// Checks that a client is not refused if it shows the proof of its own session.
    fn is_known_by_its_proof(
        &mut self,
        (c, inc, conn): (usize, u16, u32),
        reinit: Option<(ClientId, Secret)>,
        refused: Option<Status>,
    ) {
        let client = &self.sys.clients[c];
        let shows = client.id.map(|id| (id, client.secret));
        // a late request may carry the secret of an earlier session, which is rightly refused
        let is_its = (client.inc, client.conn) == (inc, conn) && reinit == shows;
        if let Some((id, _)) = reinit.filter(|_| is_its && refused == Some(Status::Error)) {
            self.sys.fail(format!("session: {id:?} comes back, and is taken for another"));
        }
    }

    /// Reports the predecessor's clients whose processes have ended.
    fn predecessors_processes(&mut self) {
        let is_dead = |kept: &Kept| kept.is_dead(|process| self.sys.has_ended(process));
        let dead = self.awaited.iter().filter(|(_, kept)| is_dead(kept));
        let dead: Vec<ClientId> = dead.map(|(&client, _)| client).collect();
        for client in dead {
            self.awaited.remove(&client);
            self.tells(Event::PredecessorEnded { client });
        }
    }

    fn attach(
        &mut self,
        c: usize,
        (id, secret): (ClientId, Secret),
        gen: u32,
        fabric: Fabric,
    ) -> Answer {
        let process = &self.sys.clients[c];
        let carrier = fabric;
        let (fabric, joining) = match fabric {
            Fabric::Shm => {
                let pid = Some(i32::from(process.inc));
                (FabricKind::Shm, Joining::by(FabricKind::Shm, pid, true))
            }
            Fabric::Tcp => (FabricKind::Tcp, Joining::over(FabricKind::Tcp)),
            Fabric::Verbs => (FabricKind::Verbs, Joining::over(FabricKind::Verbs)),
        };
        let joining = joining.shown(self.sys.certificate(c).0);
        let attach = Attach { client: id, secret, fabric, verbs: None, returns: true };
        let channel = match self.handle(Event::Attach { attach, joining }) {
            Some(Effect::Attached { channel: Ok(channel), .. }) => channel,
            Some(Effect::Attached { channel: Err(status), .. }) => return Answer::Refused(status),
            _ => return Answer::Closed,
        };
        let made = match channel.is_prepared {
            true => self.prepared.iter_mut().find(|s| s.id == id),
            false => self.sys.session(id),
        };
        if let Some(s) = made {
            (s.gen, s.channel, s.fabric) = (gen, channel.number, carrier);
        }
        if let Some(s) = self.sys.session(id) {
            s.mapped |= fabric == FabricKind::Shm;
            s.process = channel.watch.unwrap_or(s.process);
            let (inc, is_watched) = (s.inc, channel.watch.is_some());
            if is_watched && inc != self.sys.clients[c].inc {
                // the process has ended since it sent this, and now the primary sees that
                self.sys.oracle.gone((c as u64) << 32 | u64::from(inc));
            }
        }
        self.may_reach(c, carrier);
        if channel.watch.is_some() {
            let change = Change::Mapped { client: id, process: self.sys.process(c) };
            change.apply(&mut self.kept_clients);
        }
        Answer::Attached
    }

    pub(super) fn lost(&mut self, c: usize, inc: u16, conn: u32, why: Gone) {
        self.predecessors_processes();
        let is_of = |s: &&Session| usize::from(s.client) == c && s.inc == inc;
        let hit = |s: &&Session| !s.left && (conn == EXITED || s.conn == conn);
        let given_up: Vec<Session> =
            self.prepared.iter().filter(is_of).filter(hit).copied().collect();
        for s in given_up {
            self.handle(Event::ControlEnded { client: s.id, control: s.conn.into(), why });
        }
        let hits: Vec<Session> = self.sys.sessions_of(c, inc).filter(hit).copied().collect();
        for s in hits {
            let Some(primary) = &self.primary else { return };
            self.sys.log(|| format!("client {c} ({}) is lost: {why:?}", s.id.get()));
            // the grace applies only to a client whose holds are all known to the primary
            let is_known = primary.locks().has_told_all(s.id);
            self.tells(Event::ControlEnded { client: s.id, control: s.conn.into(), why });
            let is_protected = self.sys.clients[c].fabric == Fabric::Shm;
            if why != Gone::Silent && is_known && !is_protected {
                self.sys.has_no_horizon(c, (inc, s.conn), self.sys.now + self.sys.plan.grace_ns);
            }
            if conn == EXITED && s.process != 0 {
                self.tells(Event::ProcessEnded { client: s.id, process: s.process });
            }
            if let Some(s) = self.sys.session(s.id) {
                s.conn = 0;
            }
        }
    }
}

impl Sys {
    /// The process of a client, as its host identifies it.
    fn process(&self, c: usize) -> Process {
        Process { pid: c as i32, started: self.clients[c].inc.into() }
    }

    /// Whether a process has ended.
    pub(super) fn has_ended(&self, process: Process) -> bool {
        self.process(process.pid as usize) != process
    }

    /// Ends the reliance of a client without a horizon at `until`, except on its leases: because
    /// its host has closed its connection and the grace is over, because it has kept others waiting
    /// in the middle of an operation, or because its certificate was revoked. The client cannot
    /// know that; see docs/leases.md.
    pub(super) fn has_no_horizon(&mut self, c: usize, (inc, conn): (u16, u32), until: u64) {
        let who = (c as u64) << 32 | u64::from(inc);
        if self.plan.horizon_s > 0 || self.clients[c].inc != inc {
            return;
        }
        self.clients[c].cut = (conn, until);
        for l in 0..self.plan.locks.len() {
            // a horizon that has passed counts again only when the lock moves to a new session
            let until = until.min(self.oracle.horizon_of(l, who));
            if let Err(why) = self.oracle.horizon(l, who, self.now, until) {
                self.fail(why);
            }
        }
    }
}
