// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control connections, and what `Membership` wants done with the sockets and processes that the
//! simulator has models of. It decides nothing: `dlock-core::membership` does.

use dlock_core::control::{
    Attach, ControlReply, ControlRequest, FabricKind, Secret, VERSION, VERSION_MIN,
};
use dlock_core::ids::ClientId;
use dlock_core::membership::{
    Caller, Connection, Draws, Effect, Fencing, Gone, Joining, MemberMemory, Opened,
};
use dlock_core::roster::{Change, Process};
use dlock_core::status::Status;

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
            s.mapped && process.inc == s.inc && process.id == Some(client) && !s.left
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
            // the last of what has come is served before it is told
            Effect::Listen => match self.sys.inbox.len() {
                0 => self.members.listened(),
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
                if is_current {
                    self.close_channel(client);
                }
                self.close_prepared_channel(client, channel.unwrap_or(0));
                self.members.channel_closed(client, channel, unfenced);
            }
            Effect::Switch { client, fabric } => {
                let old = self.sys.session(client).map(|s| (s.process, s.mapped));
                let (process, mapped) = old.unwrap_or((0, false));
                self.sys.sessions.retain(|s| s.id != client);
                let place = self.prepared.iter().position(|s| s.id == client);
                let prepared = place.map(|place| self.prepared.remove(place));
                if let Some(prepared) = &prepared {
                    self.takes_place(prepared);
                }
                self.sys.sessions.extend(prepared.map(|s| Session { process, mapped, ..s }));
                if let (Some(fabric), Some(primary)) = (fabric, &mut self.primary) {
                    primary.attached(now, &mut self.sys, client, fabric, &mut self.out);
                }
            }
            Effect::Fence { client } => {
                if let Some((c, inc)) = self.sys.session(client).map(|s| (s.client, s.inc)) {
                    self.sys.is_fenced(c.into(), inc);
                }
                let unfenced = self.sys.cannot_be_fenced(client, true);
                self.close_channel(client);
                let mapped = self.sys.is_mapped(client);
                let Some(primary) = &mut self.primary else { return };
                let fencing = Fencing { unfenced, mapped };
                self.members.fence_tried(primary, client, fencing);
            }
            Effect::Keep(change) => change.apply(&mut self.kept_clients),
            Effect::Revoke { client } => {
                if let Some(s) = self.sys.session(client) {
                    s.revoked = true;
                }
            }
            Effect::Look { client } => {
                let Some(primary) = &self.primary else { return };
                let has_something = primary.has_something(now, &mut self.sys, client);
                self.members.looked(client, has_something);
            }
            Effect::Lapse { client } => {
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
                self.has_nothing(Some(client));
                self.sys.memory.remove_client(client);
                self.sys.sessions.retain(|s| s.id != client);
                self.prepared.retain(|s| s.id != client);
            }
        }
    }

    /// The certificate of a client is revoked: it is fenced, and may come back with another one.
    pub(super) fn revoke(&mut self, c: usize) {
        let client = &self.sys.clients[c];
        let Some((id, control)) = client.id.map(|id| (id, u64::from(client.conn))) else { return };
        if !self.members.speaks(id, control) {
            return;
        }
        self.step();
        self.members.revoked(id, Connection::Control(control));
        self.is_cut_off(id);
        self.finish_turn();
        self.schedule_tick();
    }

    /// A client is fenced that has not been silent. Without a horizon nothing protects it, but a
    /// process that has the memory mapped, in which the primary knows what it has.
    pub(super) fn is_cut_off(&mut self, client: ClientId) {
        let is_known = self.primary.as_ref().is_some_and(|primary| primary.has_told_all(client));
        let Some(s) = self.sys.session(client).copied() else { return };
        let c = usize::from(s.client);
        if self.sys.clients[c].fabric != Fabric::Shm || !is_known {
            self.sys.has_no_horizon(c, (s.inc, s.conn), self.sys.now);
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
        let who = (c as u8, inc, conn, false);
        let is_it = |s: &&Session| (s.client, s.inc, s.conn, s.left) == who;
        let mut sessions = self.sys.sessions.iter().chain(&self.prepared);
        let Some(Session { id, .. }) = sessions.find(is_it).copied() else {
            return Some(Answer::Closed);
        };
        // a client that does not attach first shows that it has the session before it does
        let moves = match ask {
            Ask::Attach(.., attaches_first) => !attaches_first,
            _ => true,
        };
        if let Some(primary) = self.primary.as_mut().filter(|_| moves) {
            self.members.is_shown(self.sys.server_now(), primary, id, conn.into());
            self.settle_members();
        }
        if let Ask::Attach(gen, fabric, secret, _) = ask {
            return Some(self.attach(c, (id, secret), gen, fabric));
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
        let who = self.sys.session(id).map(|s| usize::from(s.client));
        let before = who.and_then(|c| Some((c, self.before(c, None)?)));
        let Self { sys, primary, members, out, .. } = self;
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
            Ask::Join { .. } | Ask::Attach(..) => Answer::Closed,
            Ask::Get(wanted) => {
                let descs = wanted.iter().map(|&l| desc(sys, l.into())).collect();
                match locks(call(sys, ControlRequest::GetLocks(descs))) {
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
            Ask::Release(l, lock) => match call(sys, ControlRequest::ReleaseLocks(vec![lock])) {
                ControlReply::Statuses(statuses) => {
                    if statuses[0] == Status::Success {
                        self.is_given(id, l, false);
                    }
                    Answer::Released(l, statuses[0])
                }
                ControlReply::Error(status) => Answer::Released(l, status),
                _ => Answer::Released(l, Status::BadResponse),
            },
            Ask::Heartbeat => match call(sys, ControlRequest::Heartbeat) {
                ControlReply::Alive { now, until, recovering } => {
                    Answer::Alive(now, until, recovering)
                }
                ControlReply::Error(status) => {
                    if self.members.speaks(id, conn.into()) {
                        self.sys.fail(format!("session: {id:?} beats and is refused: {status}"));
                    }
                    Answer::Refused(status)
                }
                _ => Answer::Refused(Status::Error),
            },
            Ask::Update(claims) => {
                let told: Vec<_> = claims.iter().map(|(_, claim)| claim.clone()).collect();
                let held: Vec<_> = claims.iter().map(|(l, c)| (*l, c.held.is_some())).collect();
                match locks(call(sys, ControlRequest::UpdateLocks(told))) {
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
                let reply = call(sys, request.clone());
                if let Some((c, before)) = before {
                    self.object_lawful(c, &request, &reply, before);
                }
                Answer::Object(o, reply)
            }
            Ask::Done => match call(sys, ControlRequest::ReinitDone) {
                ControlReply::Done => Answer::Done,
                _ => Answer::Refused(Status::Error),
            },
            Ask::Leave => {
                let done = call(sys, ControlRequest::Deinit) == ControlReply::Done;
                if !done {
                    if members.speaks(id, conn.into()) {
                        sys.fail(format!("session: {id:?} wants to leave, and is waited for"));
                    }
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
        let horizon_s = match self.sys.plan.horizons_vary {
            true => self.sys.rng.range(1, 12) as u32,
            false => self.sys.plan.horizon_s,
        };
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
        let is_member = reinit.is_some_and(|(client, _)| self.members.state(client).is_some());
        let mut opened = Opened::Wait;
        for _ in 0..OPEN_TRIES {
            let mut number = || numbers.bits() as u32;
            self.secrets += 1;
            let secret = Secret(self.secrets.to_be_bytes());
            let draws = Draws { secret, number: &mut number };
            let now = self.sys.server_now();
            let (identity, names) = self.sys.certificate(c);
            let Self { sys, primary, members, .. } = self;
            let Some(primary) = primary else { return Err(Status::NotReady) };
            let is_full = primary.is_full() || members.len() >= primary.config().clients_max;
            let caller = Caller { control: conn.into(), identity, names: &names };
            let answer = members.open(now, primary, sys, &request, caller, draws);
            if let (None, Err(status)) = (reinit, answer) {
                self.is_let_in(c, Err(status), is_full);
            }
            self.is_known_by_its_proof((c, inc, conn), reinit, answer.err());
            opened = answer?;
            self.settle_members();
            if opened != Opened::Wait {
                break;
            }
        }
        // the server lets it wait; here it comes again
        let Opened::Admitted(admitted) = opened else { return Err(Status::ServerNoResource) };
        let id = admitted.client;
        if !is_member && self.sys.has_no_memory() {
            self.members.has_no_memory(self.sys.server_now(), id, &request);
            self.settle_members();
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
            revoked: false,
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
            sys.after(ns, Ev::Lost(client, inc, EXITED)); // it came from a process that has ended
        } else if sys.clients[c].conn != conn {
            let ns = sys.takes(50_000);
            sys.after(ns, Ev::Lost(client, inc, conn)); // nobody is at the other end any more
        }
        sys.mix(code(Status::Success) ^ u64::from(gen) << 8);
        Ok(Answer::Joined {
            id,
            secret: admitted.secret,
            epoch: sys.epoch,
            anchor_s: self.primary.as_ref().map_or(0, |primary| primary.config().anchor_s),
            now: sys.server_now(),
            terms: admitted.terms,
            recovering: admitted.recovering,
            gen,
        })
    }

    /// No client forges a proof: whoever shows the one of its session is the one that it says.
    fn is_known_by_its_proof(
        &mut self,
        (c, inc, conn): (usize, u16, u32),
        reinit: Option<(ClientId, Secret)>,
        refused: Option<Status>,
    ) {
        let client = &self.sys.clients[c];
        let shows = client.id.map(|id| (id, client.secret));
        // what comes late may show the proof of a session long over
        let is_its = (client.inc, client.conn) == (inc, conn) && reinit == shows;
        if let Some((id, _)) = reinit.filter(|_| is_its && refused == Some(Status::Error)) {
            self.sys.fail(format!("session: {id:?} comes back, and is taken for another"));
        }
    }

    /// Those processes of the predecessor's clients that have ended are not waited for.
    fn predecessors_processes(&mut self) {
        let Some(primary) = &mut self.primary else { return };
        let has_ended = |process| self.sys.has_ended(process);
        self.awaited.retain(|client, kept| {
            let is_dead = kept.is_dead(has_ended);
            if is_dead {
                self.members.predecessors_process_ended(primary, *client);
            }
            !is_dead
        });
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
        let attach = Attach { client: id, secret, fabric, verbs: None };
        let now = self.sys.server_now();
        let Some(primary) = &mut self.primary else { return Answer::Closed };
        let status = match self.members.begin_attach(now, primary, &attach, joining) {
            // the simulator's cards refuse chains in recovery
            Status::NotReady if fabric == FabricKind::Verbs => Status::Success,
            status => status,
        };
        if status != Status::Success {
            return Answer::Refused(status);
        }
        self.settle_members();
        let channel = match self.members.finish_attach(&attach, joining) {
            Ok(channel) => channel,
            Err(status) => return Answer::Refused(status),
        };
        let Some(primary) = &mut self.primary else { return Answer::Closed };
        match channel.is_prepared {
            true => primary.will_attach(id, fabric),
            false => primary.attached(now, &mut self.sys, id, fabric, &mut self.out),
        }
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
            let now = self.sys.server_now();
            let Some(primary) = &mut self.primary else { return };
            self.members.control_ended(now, primary, (s.id, s.conn.into()), why);
            self.settle_members();
        }
        let hits: Vec<Session> = self.sys.sessions_of(c, inc).filter(hit).copied().collect();
        for s in hits {
            let now = self.sys.server_now();
            let Some(primary) = &mut self.primary else { return };
            self.sys.log(|| format!("client {c} ({}) is lost: {why:?}", s.id.get()));
            // the grace is not for one of which the primary does not know what it holds
            let is_known = primary.has_told_all(s.id);
            self.members.control_ended(now, primary, (s.id, s.conn.into()), why);
            let is_protected = self.sys.clients[c].fabric == Fabric::Shm;
            if why != Gone::Silent && is_known && !is_protected {
                self.sys.has_no_horizon(c, (inc, s.conn), self.sys.now + self.sys.plan.grace_ns);
            }
            if conn == EXITED && s.process != 0 {
                self.members.process_ended(s.id, s.process);
            }
            if let Some(s) = self.sys.session(s.id) {
                s.conn = 0;
            }
        }
    }
}

impl Sys {
    /// The process of a client, as its host tells it from others.
    fn process(&self, c: usize) -> Process {
        Process { pid: c as i32, started: self.clients[c].inc.into() }
    }

    /// Whether a process has ended.
    pub(super) fn has_ended(&self, process: Process) -> bool {
        self.process(process.pid as usize) != process
    }

    /// Of a client without a horizon nothing is promised but its leases beyond the grace after its
    /// host has closed its connection, and once it is fenced: it has kept others waiting in the
    /// midst of an operation, or its certificate was revoked. It cannot know; see docs/leases.md.
    pub(super) fn has_no_horizon(&mut self, c: usize, (inc, conn): (u16, u32), until: u64) {
        let who = (c as u64) << 32 | u64::from(inc);
        if self.plan.horizon_s > 0 || self.clients[c].inc != inc {
            return;
        }
        self.clients[c].cut = (conn, until);
        for l in 0..self.plan.locks.len() {
            // one that has passed comes again with a session that carries the lock, and not before
            let until = until.min(self.oracle.horizon_of(l, who));
            if let Err(why) = self.oracle.horizon(l, who, self.now, until) {
                self.fail(why);
            }
        }
    }
}
