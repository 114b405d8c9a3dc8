// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's control thread: it joins, rejoins, sends heartbeats, gets locks and releases them,
//! and reports to a successor what it holds.
//!
//! ```text
//!   Joining ─Init──▶ Up ─channel or primary gone─▶ Broken ─Reinit─▶ Up
//!      ▲                                              │        └─ at a successor: claims, Done
//!      └── a new incarnation, with nothing ◀──────────┘ ClientRemoved
//! ```

use dlock_core::clock::{ClockEstimate, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch};
use dlock_core::limits::CONTROL_WAIT_S;
use dlock_core::lock::LockEntry;
use dlock_core::session::{was_heard, Binding, Failover, Heartbeats};
use dlock_core::wire::control::{ControlReply, ControlRequest, LockDesc, LockGrant, Secret, Terms};
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::plan::Fabric;
use super::state::{Ask, Doing, Ev, Life, Sys, ANCHOR_S};
use super::tokens::wants;

const CONTROL_WAIT_NS: u64 = CONTROL_WAIT_S * NS;
/// Of a thousand releases, those whose answer the program does not await.
const UNANSWERED: u32 = 150;
/// Of a thousand clients that come to a recovering primary, those that report nothing to it.
const MUTE: u32 = 20;
/// Of a thousand clients that were cut off from a new session, those that come back late.
const LATE_IF_CUT: u32 = 600;

/// What a control thread awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing: the thread sleeps until its next heartbeat.
    Sleep,
    /// The answer to the last request, which was sent at this true time.
    Answer(u64),
}

/// An answer on a control connection.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Joined {
        id: ClientId,
        secret: Secret,
        epoch: u32,
        now: ServerTime,
        terms: Terms,
        recovering: bool,
        gen: u32,
    },
    Attached,
    Refused(Status),
    Locks(Vec<(u8, Result<LockGrant, Status>)>),
    Released(u8, Status),
    Updated(Vec<(u8, bool, Result<LockGrant, Status>)>),
    /// The server clock, until when the primary does not act on silence, and whether it recovers.
    Alive(ServerTime, ServerTime, bool),
    /// The primary has closed this connection.
    Closed,
    Done,
    Left,
    Object(u8, ControlReply),
}

impl Answer {
    /// Whether only a member of the primary can get this answer: then the primary knows this
    /// session.
    fn is_of_the_session(&self) -> bool {
        match self {
            // answers about a session that the client does not have yet, or has left
            Answer::Joined { .. } | Answer::Attached | Answer::Left => false,
            Answer::Refused(_) | Answer::Closed => false,
            Answer::Released(_, status) => *status == Status::Success,
            Answer::Object(_, reply) => was_heard(reply),
            Answer::Locks(_) | Answer::Updated(_) | Answer::Alive(..) | Answer::Done => true,
        }
    }
}

/// The descriptor of a lock of the plan, as a client requests it.
pub(crate) fn desc(sys: &Sys, c: usize, l: usize) -> LockDesc {
    let (name, tokens) = (vec![b'a' + l as u8], wants(sys, c, l));
    LockDesc { name, lock_type: sys.plan.locks[l], lease_s: 0, tokens }
}

impl Sys {
    /// Schedules the next step of the control thread. `slowly`: it may take up to seconds, as after
    /// a failure.
    pub(super) fn control_soon(&mut self, c: usize, slowly: bool) {
        let late = if self.clients[c].is_cut { LATE_IF_CUT } else { self.plan.late };
        let ns = match slowly && !self.calm {
            true if self.rng.chance(late) => self.rng.below(2 * self.plan.grace_ns),
            true => match self.rng.below(3) {
                0 => self.rng.below(200_000_000),
                _ => self.rng.below(1_000_000),
            },
            false => self.takes(20_000),
        };
        let ns = if slowly && self.calm { 50_000_000 } else { ns };
        let client = &mut self.clients[c];
        client.control = Stage::Sleep;
        self.control_after(c, ns);
    }

    /// Schedules the next step of the control thread, unless the thread awaits an answer.
    pub(super) fn control_wake(&mut self, c: usize) {
        if self.clients[c].control == Stage::Sleep {
            self.control_soon(c, false);
        }
    }

    pub(super) fn control_after(&mut self, c: usize, ns: u64) {
        let client = &mut self.clients[c];
        client.control_tok += 1;
        let ev = Ev::Control(c as u8, client.inc, client.control_tok);
        self.after(ns, ev);
    }

    pub(super) fn ask(&mut self, c: usize, ask: Ask) {
        self.ask_for(c, ask, CONTROL_WAIT_NS);
    }

    /// Sends a request, and awaits the answer for `wait_ns`.
    pub(super) fn ask_for(&mut self, c: usize, ask: Ask, wait_ns: u64) {
        let ns = self.takes(10_000);
        let to = if self.alive { self.epoch } else { 0 };
        let client = &mut self.clients[c];
        client.control = Stage::Answer(self.now);
        self.control_after(c, wait_ns);
        let client = &mut self.clients[c];
        let at = (self.now + ns).max(client.control_up_last + 1).max(client.blocked_up);
        client.control_up_last = at;
        let (inc, conn, number) = (client.inc, client.conn, client.control_tok);
        client.control_up.push_back((to, inc, conn, number, ask));
        self.at(at, Ev::ControlUp(c as u8));
    }

    /// The control thread wakes up: to do its next task, or because no answer came in time.
    pub(super) fn control_wakes(&mut self, c: usize) {
        if let Stage::Answer(_) = self.clients[c].control {
            return self.connection_ends(c, true);
        }
        let life = self.clients[c].life;
        match life {
            Life::Dead => {}
            Life::Broken if self.looks_later(c) => {}
            Life::Joining | Life::Broken => self.join(c),
            Life::Leaving => self.leave_if_idle(c),
            Life::Up => self.tend(c),
        }
    }

    /// Handles the loss of the control connection.
    pub(super) fn connection_lost(&mut self, c: usize) {
        self.connection_ends(c, false);
    }

    /// As [`connection_lost`](Self::connection_lost); `is_late`: no answer came in time.
    fn connection_ends(&mut self, c: usize, is_late: bool) {
        self.log(|| format!("client {c}: its control connection is gone"));
        let (inc, conn) = (self.clients[c].inc, self.clients[c].conn);
        if self.renewal_fails(c, is_late) {
            return;
        }
        let at = self.ends_for_the_primary(c);
        self.at(at, Ev::Lost(c as u8, inc, conn));
        self.clients[c].connects();
        if self.clients[c].life == Life::Leaving {
            return self.exit(c);
        }
        if self.clients[c].life == Life::Up {
            self.lead(c, Failover::broken);
            self.break_command(c);
            return;
        }
        self.came_in_vain(c, Status::BadResponse);
    }

    /// Handles a refusal or a missing answer while the client joins or rejoins.
    fn came_in_vain(&mut self, c: usize, status: Status) {
        let is_led = self.clients[c].life == Life::Broken && self.clients[c].failover.is_some();
        self.lead(c, |failover, now_ns| failover.came(now_ns, Err(status)));
        match is_led {
            true => {
                self.clients[c].control = Stage::Sleep;
                self.control_after(c, 1);
            }
            false => self.control_soon(c, true),
        }
    }

    pub(super) fn join(&mut self, c: usize) {
        if self.is_busy_on_cpu(c) {
            return self.control_after(c, 5_000_000);
        }
        let client = &mut self.clients[c];
        client.connects();
        let gen = client.conn; // both connections are new
        let reinit = client.id.map(|id| (id, client.secret));
        self.roams(c);
        self.cover(if reinit.is_some() { Action::Rejoin } else { Action::Join }, c);
        self.ask(c, Ask::Join { reinit, gen });
    }

    /// If the client was refused the fabric that it asked for, asks for a command channel over tcp
    /// instead. Returns `false` if tcp itself was refused.
    fn attaches_over_tcp(&mut self, c: usize) -> bool {
        let client = &mut self.clients[c];
        let Some((_, Answer::Joined { gen, secret, .. })) = client.session else { return false };
        if client.next_fabric == Fabric::Tcp {
            return false;
        }
        client.next_fabric = Fabric::Tcp;
        self.ask(c, Ask::Attach(gen, Fabric::Tcp, secret, self.plan.prepares));
        true
    }

    /// Chooses the fabric of the next session at random. A client whose clock drifts from the
    /// primary's is on another host, so it cannot change to or from shared memory.
    fn roams(&mut self, c: usize) {
        let is_here = self.clients[c].clock.ppm == 0;
        let others = match self.plan.is_of_card {
            true => [Fabric::Verbs, Fabric::Tcp],
            false if is_here => [Fabric::Shm, Fabric::Tcp],
            false => return,
        };
        if self.rng.chance(self.plan.roams) {
            self.clients[c].next_fabric = self.rng.pick(&others);
        }
    }

    /// The client's new session may run over another fabric. A client that leaves shared memory
    /// tells the primary that the memory is unmapped.
    fn goes_over(&mut self, c: usize) {
        let fabric = self.clients[c].next_fabric;
        if self.clients[c].fabric != fabric {
            self.log(|| format!("client {c} goes over to {fabric:?}"));
        }
        let client = &mut self.clients[c];
        client.fabric = fabric;
        client.clock.is_here = fabric == Fabric::Shm;
        let id = client.id;
        let mut sessions = self.sessions.iter_mut();
        if let Some(s) = sessions.find(|s| Some(s.id) == id && fabric != Fabric::Shm) {
            s.mapped = false;
        }
    }

    /// Whether a thread executes word operations or effects that await no message. A reinit waits
    /// until none does.
    pub(super) fn is_busy_on_cpu(&self, c: usize) -> bool {
        let client = &self.clients[c];
        let is_local = client.fabric == Fabric::Shm;
        let acts = |t: &super::state::Thread| {
            t.chain.is_some() || is_local && matches!(t.doing, Doing::Effect | Doing::Batch)
        };
        client.threads.iter().any(acts) || client.objects.iter().any(|t| t.chain.is_some())
    }

    fn tend(&mut self, c: usize) {
        let (now, epoch) = (self.now, self.clients[c].epoch);
        let client = &mut self.clients[c];
        let local_ns = client.clock.local(now).max(0) as u64;
        if local_ns >= client.beats.next_ns() {
            client.beats.sent(local_ns);
            return self.ask(c, Ask::Heartbeat);
        }
        if client.is_mute {
            let next_ns = client.beats.next_ns();
            let at = client.clock.when(next_ns).saturating_add(1_000);
            return self.control_after(c, at.saturating_sub(now).max(1));
        }
        let lacks = |t: &super::state::Thread| match &t.entry {
            None => true,
            Some(entry) => entry.has_left() && t.doing == Doing::Control,
        };
        let claims = client.threads.iter().any(|t| t.entry.is_some() && t.epoch != epoch);
        if claims && self.may_claim(c) {
            let client = &self.clients[c];
            // a lock is claimed when no operation is under way on it
            let acts = |t: &super::state::Thread| {
                let is_free = matches!(
                    t.doing,
                    Doing::Idle | Doing::Control | Doing::Pause(_) | Doing::Reply { is_wait: true }
                );
                t.entry.is_some() && t.epoch != epoch && !is_free
            };
            if client.threads.iter().any(acts) {
                return self.control_after(c, 1_000_000);
            }
            if !self.clients[c].claims_open {
                self.gives_claims_up(c);
                return self.control_soon(c, false);
            }
            self.cover(Action::Claim, c);
            let claims = self.claims(c);
            return self.ask(c, Ask::Update(claims));
        }
        let led_until = match self.clients[c].failover {
            None => u64::MAX,
            Some(_) => match self.led(c) {
                Some(until_ns) => until_ns,
                None => return,
            },
        };
        let client = &mut self.clients[c];
        if let Some(l) = client.releases.front().copied() {
            if !self.is_settled(c, l.into()) {
                return self.control_after(c, 1_000_000);
            }
            self.clients[c].releases.pop_front();
            let entry = self.clients[c].threads[l as usize].entry.as_ref();
            if let Some(lock) = entry.map(|e| e.lock()) {
                self.cover(Action::Release, c);
                self.ask(c, Ask::Release(l, lock));
                if self.rng.chance(UNANSWERED) {
                    self.release_unanswered(c, l.into());
                }
                return;
            }
        }
        if self.renews(c) {
            return;
        }
        if let Some((o, action, request)) = self.clients[c].object_asks.pop_front() {
            if let ControlRequest::ObjectGet { lease, .. } = request {
                self.clients[c].object_lease_end = now + lease.ns();
            }
            self.cover(action, c);
            return self.ask(c, Ask::Object(o, request));
        }
        let client = &mut self.clients[c];
        if client.threads.iter().any(lacks) {
            let wanted = (0..client.threads.len()).filter(|&l| lacks(&client.threads[l]));
            let wanted = wanted.map(|l| l as u8).collect();
            self.cover(Action::Get, c);
            return self.ask(c, Ask::Get(wanted));
        }
        // With a horizon, heartbeats tell the time. Without one the client asks for the time when
        // its estimate is stale: because it comes from a long exchange, or its clock may drift from
        // the primary's.
        let is_stale = |e: ClockEstimate| !client.clock.is_here || e.took_long();
        let asks_for_time =
            client.beats.next_ns() == u64::MAX && client.clock.estimate().is_none_or(is_stale);
        if asks_for_time && now >= client.clock_at {
            return self.ask(c, Ask::Heartbeat);
        }
        let at = match asks_for_time {
            true => client.clock_at,
            false => client.clock.when(client.beats.next_ns()).saturating_add(1_000),
        };
        let at = at.min(client.clock.when(led_until).saturating_add(1_000));
        if at < u64::MAX {
            self.control_after(c, at.saturating_sub(now).max(1));
        }
    }

    /// Handles the arrival of the next answer.
    pub(super) fn control_receive(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some((inc, conn, number, answer)) = client.control_down.pop_front() else { return };
        let Stage::Answer(sent) = client.control else { return };
        if client.inc != inc || client.conn != conn || client.control_tok != number {
            return;
        }
        client.control = Stage::Sleep;
        client.control_tok += 1;
        self.mix(0xc0 ^ c as u64);
        self.log(|| format!("client {c} control: {answer:?}"));
        if self.renewal_is_cut(c, &answer) {
            return self.connection_lost(c);
        }
        if self.clients[c].renewal.is_shown() {
            return self.show_answered(c, sent, answer);
        }
        if answer.is_of_the_session() {
            let sent_ns = self.clients[c].clock.local(sent).max(0) as u64;
            self.clients[c].beats.answered(sent_ns);
            self.horizon_moves(c);
        }
        match answer {
            Answer::Joined { gen, secret, .. } => {
                self.clients[c].session = Some((sent, answer));
                self.renewal_answered(c);
                let fabric = self.clients[c].next_fabric;
                self.ask(c, Ask::Attach(gen, fabric, secret, self.plan.prepares));
            }
            Answer::Attached if self.plan.prepares && self.clients[c].id.is_some() => self.shows(c),
            Answer::Attached if self.is_cut(c) => self.connection_lost(c),
            Answer::Attached => {
                if let Some((asked, session)) = self.clients[c].session.take() {
                    self.joined(c, asked, session);
                }
            }
            // the client may not use the memory: try the next fabric that is offered
            Answer::Refused(Status::Denied) if self.attaches_over_tcp(c) => {}
            Answer::Refused(_) if self.clients[c].renewal.is_beside() => self.connection_lost(c),
            Answer::Refused(status @ Status::ClientRemoved) => match self.clients[c].life {
                // a client with failover asks once more before it believes that it was removed
                Life::Broken if self.clients[c].failover.is_some() => self.came_in_vain(c, status),
                _ => self.start_anew(c),
            },
            Answer::Refused(status) if self.clients[c].life == Life::Broken => {
                self.came_in_vain(c, status);
            }
            Answer::Refused(status) => {
                // an `Error` answers the client's claims: the recovery is over, so there is nothing
                // more to claim
                self.clients[c].claims_open &= status != Status::Error;
                self.lead(c, |failover, now_ns| failover.said(now_ns, status));
                self.control_soon(c, true);
            }
            Answer::Locks(grants) => self.got(c, grants),
            Answer::Released(l, status) => self.released(c, l.into(), status),
            Answer::Updated(grants) => self.updated(c, grants),
            Answer::Alive(at, until, recovering) => {
                self.is_heard(c, recovering);
                self.learn(c, sent, at);
                if sent >= self.clients[c].clock.jumped {
                    self.gives_up_first(c, until);
                }
                self.clients[c].is_mute &= recovering;
                self.control_soon(c, false);
            }
            Answer::Closed => self.connection_lost(c),
            Answer::Done => {
                self.lead(c, |failover, now_ns| failover.said(now_ns, Status::Success));
                self.control_soon(c, false);
            }
            Answer::Left => self.exit(c),
            Answer::Object(o, reply) => {
                self.object_answered(c, o.into(), Some(reply));
                self.control_soon(c, false);
            }
        }
    }

    pub(super) fn joined(&mut self, c: usize, sent: u64, answer: Answer) {
        let Answer::Joined { id, secret, epoch, now, terms, recovering, gen } = answer else {
            return;
        };
        let Terms { horizon_s, until, lapses } = terms;
        let stale = !self.alive || epoch != self.epoch;
        if stale && self.clients[c].id.is_none() {
            // the primary that admitted the client has ended meanwhile
            return self.control_soon(c, true);
        }
        let old_clock = self.clients[c].clock;
        let anew = self.clients[c].epoch != epoch;
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            let is_idle = matches!(t.doing, Doing::Idle | Doing::Control);
            if anew && is_idle && t.entry.as_ref().is_some_and(LockEntry::has_left) {
                // the client has not claimed this lock, so its program gets the handle again
                self.forget_lock(c, l);
            }
        }
        let client = &mut self.clients[c];
        if anew {
            for t in client.threads.iter_mut().filter(|t| t.entry.is_some()) {
                t.old_clock = t.old_clock.or(Some(old_clock));
            }
            client.clock.tracked = None;
        }
        (client.id, client.secret, client.gen) = (Some(id), secret, gen);
        (client.epoch, client.seq) = (epoch, 0);
        client.session_conn = client.conn;
        self.has_channel(c);
        self.leaves_stragglers(c);
        self.goes_over(c);
        let client = &mut self.clients[c];
        client.life = Life::Up;
        client.claims_open = recovering;
        let sent_ns = client.clock.local(sent).max(0) as u64;
        let beats = Heartbeats::new(u64::from(horizon_s) * NS, sent_ns);
        let mut old_beats = std::mem::replace(&mut client.beats, beats);
        // holds that the primary ended meanwhile are lost before the new session's horizon counts
        // for any
        let has_lapsed = !anew && lapses != self.clients[c].lapses;
        self.clients[c].lapses = lapses;
        for l in 0..self.clients[c].threads.len() {
            if has_lapsed && self.clients[c].threads[l].epoch == epoch {
                self.lapse(c, l);
            }
        }
        self.learn(c, sent, now);
        if sent >= self.clients[c].clock.jumped {
            self.gives_up_first(c, until);
        }
        if stale {
            let inc = self.clients[c].inc;
            // the primary has ended since it answered
            self.after(20_000, Ev::Reset(c as u8, inc, gen));
        }
        self.forget_async(c);
        self.objects_rejoin(c, anew || recovering);
        if has_lapsed {
            old_beats.end();
        }
        self.move_all(c, old_beats);
        let bound = |t: &super::state::Thread| t.entry.is_none() || t.epoch == epoch;
        let bound = self.clients[c].threads.iter().all(bound);
        self.is_led(c, recovering);
        self.clients[c].is_mute = recovering && horizon_s > 0 && self.rng.chance(MUTE);
        if self.clients[c].is_mute {
            self.log(|| format!("client {c} tells nothing"));
            return self.control_soon(c, false);
        }
        if recovering && horizon_s > 0 && self.is_stopped(c) {
            self.log(|| format!("client {c} is stopped"));
        }
        if recovering && bound {
            self.clients[c].claims_open = false;
            if self.clients[c].failover.is_none() {
                return self.ask(c, Ask::Done);
            }
        }
        self.control_soon(c, false);
    }

    /// The primary has forgotten this client, which comes back as a new one, without holds.
    pub(super) fn start_anew(&mut self, c: usize) {
        self.reset_process(c);
        self.clients[c].life = Life::Joining;
        self.control_soon(c, false);
    }

    fn got(&mut self, c: usize, grants: Vec<(u8, Result<LockGrant, Status>)>) {
        let client = &self.clients[c];
        let (Some(id), epoch) = (client.id, client.epoch) else {
            return;
        };
        let (gen, fabric) = (client.gen, client.fabric);
        let mut refused = false;
        for (l, grant) in grants {
            let l = usize::from(l);
            let Ok(grant) = grant else {
                refused = true;
                continue;
            };
            let (lock_type, desc) = (self.plan.locks[l], desc(self, c, l));
            let (rw_leases, caches) = (self.plan.rw_leases, self.may_cache());
            let t = self.thread(c, l);
            let is_new = match &mut t.entry {
                None => {
                    let mut entry = LockEntry::new(id, ANCHOR_S, lock_type, &grant, desc);
                    if rw_leases {
                        entry.takes_leases();
                    }
                    entry.caches(caches);
                    t.entry = Some(entry);
                    t.listener = Default::default();
                    true
                }
                Some(entry) => {
                    let mut binding = Binding::new(Epoch(t.epoch.into()));
                    let at = (Epoch(epoch.into()), ANCHOR_S);
                    binding.adopt(entry, id, &grant, &desc, at) == Some(true)
                }
            };
            (t.epoch, t.old_clock, t.gen, t.doing) = (epoch, None, gen, Doing::Idle);
            t.is_carried_by(fabric);
            t.cached.asks_anew(is_new);
            self.takes_horizon(c, l);
            if is_new {
                self.undoes_what_is_left(c, l);
            }
            let ns = self.takes(1_000);
            self.step_after(c, l, ns);
        }
        self.control_soon(c, refused);
    }

    fn released(&mut self, c: usize, l: usize, status: Status) {
        let gone = !matches!(status, Status::NotReady | Status::BadResponse);
        let t = self.thread(c, l);
        if gone {
            self.forget_lock(c, l);
        } else {
            t.doing = Doing::Idle;
            self.step_after(c, l, 1_000_000);
        }
        self.control_soon(c, true);
    }

    /// Leaves as soon as no operation is under way.
    fn leave_if_idle(&mut self, c: usize) {
        let idle = |t: &super::state::Thread| {
            matches!(t.doing, Doing::Idle | Doing::Nothing | Doing::Control)
        };
        if self.clients[c].threads.iter().all(idle) && self.objects_idle(c) {
            let who = self.who(c);
            self.oracle.gone(who);
            return self.ask(c, Ask::Leave);
        }
        self.control_after(c, 5_000_000);
    }
}
