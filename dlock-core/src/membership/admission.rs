// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: which clients the primary lets in, which may come back, and which may have a command
//! channel.

use super::member::{Member, Process};
use super::prepared::Target;
use super::{
    Ending, Exit, Gone, MemberMemory, Membership, State, Task, EVICTION_LOOKS_MAX,
    FILES_PER_CLIENT, ID_ATTEMPTS_MAX, PROCESSES_MAX,
};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Identity};
use crate::locks::{Locks, LOOKS_MAX};
use crate::planted::{self, Bug};
use crate::roster::Change;
use crate::wire::control::{Attach, ControlRequest, Secret, Terms, VERSION, VERSION_MIN};
use crate::wire::fabric::{Executes, FabricKind};
use crate::wire::status::Status;

/// The random values for one admission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    /// The secret of a new client, or of a prepared session.
    pub secret: Secret,
    /// Candidates for the client id.
    pub numbers: [u32; ID_ATTEMPTS_MAX],
}

impl std::fmt::Debug for Draws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Draws")
    }
}

/// A control connection that asks for admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The number of the connection.
    pub control: u64,
    /// The identity of the certificate on the connection; `None`: this primary asks for no
    /// certificate.
    pub identity: Option<Identity>,
    /// The names in that certificate, as rules have them ([`rights`](crate::rights)).
    pub names: Vec<String>,
}

/// A caller without a certificate.
impl From<u64> for Caller {
    fn from(control: u64) -> Self {
        Self { control, identity: None, names: Vec::new() }
    }
}

/// A client that the primary has let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The id of the client.
    pub client: ClientId,
    /// The secret by which the client proves who it is.
    pub secret: Secret,
    /// The protocol version that both sides speak.
    pub version: u8,
    /// Whether the primary is in recovery.
    pub recovering: bool,
    /// The horizon that the primary promises to the client.
    pub terms: Terms,
    /// The proof that the client gave, if the connection is that of a prepared session. The
    /// connection speaks for the client once a request comes on it. The proof stays valid until the
    /// primary knows that the client uses the new secret.
    pub prepared_by: Option<Secret>,
}

/// The answer to `Init` or `Reinit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The client is let in. It gets its answer after the driver has executed the effects.
    Admitted(Admission),
    /// The primary is making room: ask again after a member was forgotten, or was kept after all.
    Wait,
}

/// A connection that is to become a command channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// The fabric of the connection.
    pub fabric: FabricKind,
    /// The process at the other end, if that process is to map the memory.
    pub process: Option<JoiningProcess>,
    /// The identity of the certificate on the connection; `None`: the primary asks for no
    /// certificate on this connection.
    pub identity: Option<Identity>,
}

/// A process that is to map the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoiningProcess {
    /// The process id, by which the primary recognises a process that it already knows.
    pub pid: Option<i32>,
    /// Whether the primary can learn that the process has ended.
    pub is_known: bool,
}

impl Joining {
    /// A connection over a fabric whose clients do not map the memory.
    pub fn over(fabric: FabricKind) -> Self {
        Self { fabric, process: None, identity: None }
    }

    /// The same connection, with this identity of its certificate.
    #[must_use]
    pub fn shown(self, identity: Option<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// A connection by this process, over a fabric whose clients map the memory.
    pub fn by(fabric: FabricKind, pid: Option<i32>, is_known: bool) -> Self {
        Self { fabric, process: Some(JoiningProcess { pid, is_known }), identity: None }
    }
}

/// A command channel that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The number of the channel; a client's first channel has number 1.
    pub number: u64,
    /// The number under which to watch the process; `None`: there is no process, or it is watched
    /// already.
    pub watch: Option<u64>,
    /// Until when the primary does not act on the client's silence.
    pub until: ServerTime,
    /// Whether this is the channel of a prepared session: the primary serves nothing that comes on
    /// it before that session has taken the place of the old one
    /// ([`Effect::Switch`](crate::primary::Effect::Switch)).
    pub is_prepared: bool,
}

/// The contents of an `Init` or `Reinit`.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) version: u8,
    pub(super) horizon_s: u32,
    pub(super) control: u64,
    pub(super) identity: Option<Identity>,
}

impl Membership {
    /// Handles an `Init` or `Reinit` on a control connection.
    ///
    /// # Errors
    /// `VersionMismatch`; `NotReady`; `ServerNoResource`; `ClientRemoved`. `Error`: another
    /// tp_mode, a wrong secret, the certificate of another client, no id found, or no admission
    /// request. `Denied`: no rule names the certificate.
    pub(crate) fn open<M: MemberMemory>(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        mem: &mut M,
        request: &ControlRequest,
        caller: &Caller,
        draws: Draws,
    ) -> Result<Opened, Status> {
        use ControlRequest as R;
        let (min, max, tp_mode, horizon_s, back, about) = match *request {
            R::Init { version_min, version_max, tp_mode, horizon_s, ref about } => {
                (version_min, version_max, tp_mode, horizon_s, None, about)
            }
            R::Reinit {
                version_min,
                version_max,
                tp_mode,
                horizon_s,
                client,
                secret,
                ref about,
            } => (version_min, version_max, tp_mode, horizon_s, Some((client, secret)), about),
            _ => return Err(Status::Error),
        };
        let version = max.min(VERSION);
        if min > max || version < min || version < VERSION_MIN {
            return Err(Status::VersionMismatch);
        }
        if tp_mode != self.rules.tp_mode {
            return Err(Status::Error);
        }
        let horizon_s = self.rules.horizon_s(horizon_s);
        let &Caller { control, identity, ref names } = caller;
        let wanted = Wanted { version, horizon_s, control, identity };
        match back {
            None if locks.is_recovering() => return Err(Status::NotReady),
            Some((client, proof)) if self.members.contains_key(&client) => {
                let who = (client, proof);
                let admission = self.come_back(now, locks, who, wanted, draws.secret)?;
                self.with(client, |member| member.about.clone_from(about));
                return Ok(self.admitted(admission, identity));
            }
            Some((client, proof)) => locks.may_adopt(client, proof, identity)?,
            None => {}
        }
        // A client that was let in before stays a client under new rules, also at the next primary.
        if back.is_none_or(|(client, _)| !locks.is_of_predecessor(client)) {
            locks.admit(identity, names, self.len_of(identity))?;
        }
        // a member keeps its place until everything that it has is undone
        let has_place = !locks.is_full() && self.members.len() < locks.config().clients_max;
        if !has_place || !self.has_files(FILES_PER_CLIENT) {
            return match self.makes_room(now, locks, mem) {
                true => Ok(Opened::Wait),
                false => Err(Status::ServerNoResource),
            };
        }
        let (client, secret) = match back {
            Some(known) => known,
            None => (self.draw_id(locks, &draws.numbers).ok_or(Status::Error)?, draws.secret),
        };
        locks.add_client(client)?;
        locks.enters(client, identity, names);
        self.members.insert(client, Member::new(secret, wanted.control));
        self.removers.remove(&client);
        self.with(client, |member| {
            (member.horizon_s, member.identity) = (wanted.horizon_s, wanted.identity);
            member.about.clone_from(about);
            if let Some(until) = locks.promised_until(client) {
                member.is_promised(until);
            }
        });
        let admission = self.welcome(now, locks, (client, version), back.is_some());
        Ok(self.admitted(admission, identity))
    }

    fn admitted(&mut self, admission: Admission, identity: Option<Identity>) -> Opened {
        self.tasks.push_back(Task::Keep(Change::admitted(&admission, identity)));
        Opened::Admitted(admission)
    }

    /// How many clients of this identity the primary has that have not ended.
    fn len_of(&self, identity: Option<Identity>) -> usize {
        let has_ended = |state| matches!(state, State::Undoing | State::Ending(Ending::All(_)));
        let counts = |member: &&Member| member.identity == identity && !has_ended(member.state);
        self.members.values().filter(counts).count()
    }

    /// An id that no client has.
    fn draw_id(&self, locks: &Locks, numbers: &[u32]) -> Option<ClientId> {
        let ids = numbers.iter().filter_map(|number| ClientId::new(number & ClientId::MAX));
        { ids }.find(|id| !self.members.contains_key(id) && !locks.is_idle(*id))
    }

    /// Lets a member in again. If the member still has connections, they stay as they are, and it
    /// gets a prepared session that is to take their place.
    fn come_back(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        (client, proof): (ClientId, Secret),
        wanted: Wanted,
        fresh: Secret,
    ) -> Result<Admission, Status> {
        let Some(member) = self.members.get(&client) else {
            return Err(Status::ClientRemoved);
        };
        if !member.proves(proof) || !member.is_of(wanted.identity) {
            return Err(Status::Error);
        }
        let has_session = member.has_session();
        let was_cut_off = matches!(member.state, State::Fenced(_) | State::Ending(_));
        match member.state {
            _ if member.is_barred && !planted::is(Bug::RemovedReturns) => {
                return Err(Status::ClientRemoved);
            }
            // If it came back, it would keep others waiting again, and its horizon would begin
            // anew.
            State::Fenced(Exit::Hindered) => return Err(Status::NotReady),
            State::Lapsing(_) if member.condemned.is_none() => return Err(Status::NotReady),
            // The session of a laggard is about to end.
            State::Absent { .. } | State::Fenced(_) | State::Ending(Ending::Fence(_))
                if member.lags && locks.is_recovering() =>
            {
                return Err(Status::NotReady);
            }
            _ if !member.may_return() => return Err(Status::ClientRemoved),
            _ => {}
        }
        // A client that comes back has given up the session that was prepared for it before.
        self.give_up_prepared(client);
        if has_session {
            let prepared = self.prepare(now, locks, (client, proof), wanted, fresh);
            return prepared.ok_or(Status::ClientRemoved);
        }
        if was_cut_off {
            locks.goes_on(now, client);
        }
        // Tries again to fence queue pairs that could not be fenced.
        if !planted::is(Bug::UnfencedNotTried) {
            self.tasks.push_back(Task::CloseChannel { client, channel: None, serves: false });
        }
        self.with(client, |member| {
            (member.secret, member.previous) = (proof, None);
            member.control = Some(wanted.control);
            member.state = State::Present;
            (member.is_quiet, member.lags) = (false, false);
            member.horizon_s = wanted.horizon_s;
        });
        Ok(self.welcome(now, locks, (client, wanted.version), true))
    }

    /// Records that a client is let in; returns the answer to the client.
    fn welcome(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        (client, version): (ClientId, u8),
        is_back: bool,
    ) -> Admission {
        if is_back {
            locks.came_back(now, client);
            let owes_claims = locks.is_recovering() && !locks.has_told_all(client);
            self.with(client, |member| member.owes_claims = owes_claims);
        }
        let told = self.with(client, |member| {
            member.heard(now);
            let (horizon_s, until) = (member.horizon_s, member.until);
            (member.secret, Terms { horizon_s, until, lapses: member.lapses })
        });
        // Every caller has just made the client a member.
        let (secret, terms) = told.expect("a member is welcomed");
        let recovering = locks.is_recovering();
        Admission { client, secret, version, recovering, terms, prepared_by: None }
    }

    /// Handles that the primary cannot give memory to a client that it has let in. A new client has
    /// nothing, and is removed. A client that comes back may hold locks that the primary does not
    /// know yet, so it becomes absent as if its connection had been reset, and may try again; no
    /// other event would report its end.
    pub(crate) fn has_no_memory(&mut self, now: ServerTime, client: ClientId, is_new: bool) {
        if is_new || planted::is(Bug::ReturnsInVain) {
            return self.end(client, Ending::All(Exit::NoMemory));
        }
        if self.members.get(&client).is_some_and(|member| member.prepared.is_some()) {
            return self.give_up_prepared(client);
        }
        self.hang_up(now, client, Gone::Closed);
    }

    /// Makes room for one more client; returns whether room is coming. Only an absent client that
    /// has nothing loses its place. One call checks the next [`EVICTION_LOOKS_MAX`] absent clients
    /// in the order of their ids, and fewer if they have more than [`LOOKS_MAX`] handles together.
    fn makes_room<M: MemberMemory>(&mut self, now: ServerTime, locks: &Locks, mem: &mut M) -> bool {
        let goes = |member: &Member| {
            matches!(member.state, State::Undoing | State::Ending(Ending::Evict { .. }))
        };
        if self.members.values().any(goes) {
            return true;
        }
        let above = self.looked_at.take();
        let is_absent = |member: &Member| {
            let is_away = matches!(member.state, State::Absent { .. } | State::Fenced(_));
            is_away && member.prepared.is_none()
        };
        let absent = self.members.iter().filter(|(_, member)| is_absent(member));
        let ids: Vec<ClientId> = absent.map(|(&client, _)| client).collect();
        let first = ids.partition_point(|&client| Some(client) <= above) % ids.len().max(1);
        let mut looks = 0;
        for turn in 0..ids.len().min(EVICTION_LOOKS_MAX) {
            let client = ids[(first + turn) % ids.len()];
            looks += locks.looks(client);
            if turn > 0 && looks > LOOKS_MAX {
                break;
            }
            let lives = mem.is_mapped(client) && !self.members[&client].all_processes_ended();
            let has_something = locks.has_something(now, mem, client);
            if !lives && (!has_something || planted::is(Bug::EvictsHolder)) {
                match self.members[&client].state {
                    State::Absent { since, is_closed } => {
                        self.end(client, Ending::Evict { since, is_closed });
                        return true;
                    }
                    State::Fenced(_) => {
                        self.undo(client, Exit::Evicted);
                        return true;
                    }
                    _ => {}
                }
            }
            self.looked_at = Some(client);
        }
        false
    }

    /// Whether a client may have a command channel. A verbs client is checked before its queue
    /// pairs are made, and again by [`begin_attach`](Self::begin_attach).
    pub(crate) fn may_attach(&self, locks: &Locks, attach: &Attach, joining: Joining) -> Status {
        let Some(member) = self.members.get(&attach.client) else {
            return Status::ClientRemoved;
        };
        if self.target(attach).is_none() {
            return Status::Error;
        }
        // A process of this host shows its credentials to the transport instead of a certificate.
        if joining.process.is_none() && !member.is_of(joining.identity) {
            return Status::Error;
        }
        if member.channels + 1 >= self.rules.channels_max {
            return Status::ServerNoResource;
        }
        if !matches!(member.state, State::Present | State::Absent { .. }) {
            return Status::ClientRemoved;
        }
        if attach.fabric != joining.fabric || !self.rules.offered.has(attach.fabric) {
            return Status::Error;
        }
        match (attach.fabric.executes(), joining.process) {
            (Executes::Primary, _) => Status::Success,
            // A client that reaches the memory itself could take locks in a drain.
            _ if locks.is_draining() => Status::NotReady,
            // A client that maps the memory could touch words that its rights do not cover.
            _ if !locks.may_map(attach.client) => Status::Denied,
            // This memory cannot refuse chains, so no client may reach it in recovery.
            (Executes::Device, _) if locks.is_recovering() && !self.rules.device_refuses => {
                Status::NotReady
            }
            (Executes::Device, _) => Status::Success,
            // A process that the primary cannot tell from others could never be fenced.
            (Executes::Client, Some(JoiningProcess { pid, is_known: true })) => {
                let living = || member.processes.iter().filter(|p| !p.has_ended);
                let has_too_many =
                    living().count() >= PROCESSES_MAX && !living().any(|p| p.pid == pid);
                // The client may then come over a fabric that needs no further descriptors.
                let has_room = self.has_files(member.more_files_for(pid));
                match has_too_many || !has_room {
                    true => Status::ServerNoResource,
                    false => Status::Success,
                }
            }
            (Executes::Client, _) => Status::Error,
        }
    }

    /// Begins to make a connection a client's command channel. If the client may have one, the old
    /// channel of the same session is closed; [`finish_attach`](Self::finish_attach) follows after
    /// the effects.
    pub(crate) fn begin_attach(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        attach: &Attach,
        joining: Joining,
    ) -> Status {
        self.give_up_late(now, attach.client);
        let status = self.may_attach(locks, attach, joining);
        if status != Status::Success {
            return status;
        }
        let client = attach.client;
        let (target, member) = (self.target(attach), self.members.get(&client));
        let Some((target, member)) = target.zip(member) else { return Status::Error };
        let prepared = member.prepared;
        let channel = match target {
            Target::Session => member.channel,
            Target::Prepared if planted::is(Bug::MovesUnshown) => {
                self.take_place(now, locks, client);
                return Status::Success;
            }
            Target::Prepared => prepared.and_then(|prepared| prepared.channel),
        };
        let serves = target == Target::Session;
        self.tasks.push_back(Task::CloseChannel { client, channel, serves });
        Status::Success
    }

    /// Makes the connection the client's command channel.
    ///
    /// # Errors
    /// `Error`: the client's old queue pairs could not be fenced, or the session was given up.
    /// `ClientRemoved`: the primary does not know the client any more.
    #[doc(hidden)] // public for tests of single rules
    pub fn finish_attach(&mut self, attach: &Attach, joining: Joining) -> Result<Channel, Status> {
        let target = self.target(attach);
        let Some(member) = self.members.get_mut(&attach.client) else {
            return Err(Status::ClientRemoved);
        };
        if member.unfenced && !planted::is(Bug::UnfencedAttached) {
            return Err(Status::Error);
        }
        let (number, fabric) = (member.channels + 1, Some(attach.fabric));
        let until = match (target, &mut member.prepared) {
            (Some(Target::Prepared), Some(prepared)) => {
                (prepared.channel, prepared.fabric) = (Some(number), fabric);
                prepared.until
            }
            (Some(Target::Session), _) => {
                (member.channel, member.fabric) = (Some(number), fabric);
                member.until
            }
            _ => return Err(Status::Error),
        };
        (member.channels, member.returns) = (number, attach.returns);
        let is_prepared = target == Some(Target::Prepared);
        let mut watch = None;
        if let Some(JoiningProcess { pid, .. }) = joining.process {
            // The known process has not ended, so its process id cannot have been reused.
            let is_same = |p: &Process| p.pid == pid && !p.has_ended;
            if pid.is_none() || !member.processes.iter().any(is_same) {
                self.processes += 1;
                let number = self.processes;
                self.mapping_files -= member.mapping_files();
                // the ended processes have it no longer mapped
                member.processes.retain(|p| !p.has_ended);
                member.processes.push(Process { number, pid, has_ended: false });
                self.mapping_files += member.mapping_files();
                watch = Some(number);
            }
        }
        Ok(Channel { number, watch, until, is_prepared })
    }
}
