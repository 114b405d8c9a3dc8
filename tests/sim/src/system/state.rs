// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything outside the primary: clients, channels, memory, time, and messages under way.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use dlock_core::clock::{Deadline, Now, ServerTime};
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::lock::{FirstOp, LockEntry, Op, OpResult};
pub(crate) use dlock_core::membership::Gone;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, TakenWord, TurnWord};
use dlock_core::operation::{Bounds, Operation};
use dlock_core::session::Heartbeats;
use dlock_core::wire::control::{Claim, ControlRequest, Secret};
use dlock_core::wire::message::{LockType, Reply, Request};
use dlock_core::wire::status::Status;

use super::clock::Clock;
use super::coverage::Coverage;
pub(crate) use super::events::Ev;
use super::memory::Memory;
use super::oracle::Oracle;
use super::plan::{Fabric, Plan};
use super::rng::Rng;
use super::Bugs;

/// The origin of the primaries' clocks. Only a program's question for the time depends on it.
pub(crate) const ANCHOR_S: u32 = 0;

/// What a client sends on its command channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Batch {
        lock: u8,
        tok: u32,
        chain: Chain,
        values: Values,
        /// Whether another chain of the same doorbell follows.
        more: bool,
    },
    Note {
        lock: u8,
        tok: u32,
        handle: Handle,
        entry: LedgerEntry,
    },
    Request {
        seq: Seq,
        request: Request,
    },
    /// The client has closed the channel, or is gone.
    End,
}

impl Unit {
    /// The number of word operations in this message.
    pub fn verbs(&self) -> usize {
        match self {
            Unit::Batch { chain, .. } => chain.ops().len(),
            _ => 1,
        }
    }
}

/// What the primary sends back on the command channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame {
    Outcome {
        lock: u8,
        tok: u32,
        outcome: Outcome,
    },
    /// A ledger write has taken effect: the lock, and the number of the write.
    Noted {
        lock: u8,
        tok: u32,
    },
    Reply {
        seq: Seq,
        reply: Reply,
    },
}

/// A request on a control connection.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Join {
        reinit: Option<(ClientId, Secret)>,
        gen: u32,
    },
    /// A second connection asks to become this command channel, over this fabric. `false`: the
    /// request also proves that the client has the session.
    Attach(u32, Fabric, Secret, bool),
    Get(Vec<u8>),
    Release(u8, dlock_core::ids::LockId),
    Heartbeat,
    Update(Vec<(u8, Claim)>),
    Object(u8, ControlRequest),
    Done,
    Leave,
}

/// What has arrived at the primary and is not handled yet.
#[derive(Debug)]
pub(crate) enum Arrived {
    Unit {
        client: u8,
        inc: u16,
        gen: u32,
        unit: Unit,
    },
    /// A control request, with the true server clock at its arrival.
    Control {
        at: ServerTime,
        client: u8,
        inc: u16,
        conn: u32,
        number: u32,
        ask: Ask,
    },
    Lost {
        client: u8,
        inc: u16,
        conn: u32,
        why: Gone,
    },
}

/// A client as the driver of the primary knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub id: ClientId,
    pub client: u8,
    pub inc: u16,
    /// The client's command channel; 0: it is closed.
    pub gen: u32,
    /// The number of the channel in membership.
    pub channel: u64,
    /// The fabric of the channel.
    pub fabric: Fabric,
    /// The number of the client's process in membership.
    pub process: u64,
    /// The client's control connection; 0: it is closed.
    pub conn: u32,
    pub left: bool,
    /// When the session was requested.
    pub since: u64,
    /// The status with which the client's chains are refused at mapped memory.
    pub revoked: Option<Status>,
    /// Whether the client has mapped the memory, and has not reported that it has unmapped it.
    pub mapped: bool,
}

/// The state of a client's thread. There is one thread per client and lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Doing {
    /// The client has no handle of the lock.
    Nothing,
    Idle,
    /// The next effect of its operation is to be executed.
    Effect,
    /// The first effect of a call is under way. `Writes` follows: the ledger write after it, and
    /// the result of the call.
    First,
    Writes(LedgerEntry, OpResult),
    Chain,
    /// The thread pauses between two tries; the number is that of the session in which the pause
    /// began.
    Pause(u32),
    Reply {
        is_wait: bool,
    },
    /// The result of an asynchronous operation, which the program has not polled yet.
    Untold,
    /// The client's batch executes its operations.
    Batch,
    Control,
}

/// A request whose reply is awaited, and the session on which it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub seq: Seq,
    pub gen: u32,
    pub is_wait: bool,
}

/// The aim of a thread in the phases after the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Goal {
    Any,
    Drain,
    Acquire,
    Free,
    Rest,
}

/// A thread of a client: its lock, and its operation on it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub entry: Option<LockEntry>,
    /// The epoch to which the slot of the lock belongs.
    pub epoch: u32,
    /// The clock of that epoch, if the client has come to a later epoch.
    pub old_clock: Option<Clock>,
    /// The session that carries its operations, and the horizon of that on the client's own clock.
    pub gen: u32,
    pub horizon_ns: u64,
    pub doing: Doing,
    pub operation: Option<Operation>,
    /// The first effect of an operation, until it has ended; the clock before it, and the bounds.
    pub first: Option<(FirstOp, Now, Bounds)>,
    pub op: Op,
    /// The number of the event that the thread awaits.
    pub tok: u32,
    /// When the call began: the epoch, and the true server clock.
    pub called: (u32, ServerTime),
    /// The lap of the fair lock's place when the call began.
    pub lap: u64,
    /// When the clock had last gone on after a standstill, if it was right again at the call.
    pub is_right: Option<u64>,
    /// When the call began: how often the rules had changed, and the deadline of the hold.
    pub law: (u32, Deadline),
    /// The last reading of the client's clock.
    pub last_now: Now,
    /// The deadline of the present wait, on the client's own clock.
    pub until_ns: u64,
    pub goal: Goal,
    /// A chain that the client's own CPU executes.
    pub chain: Option<(Chain, Values)>,
    /// The outcome of the thread's chain, which the thread has not looked at yet.
    pub outcome: Option<Outcome>,
    /// The request for whose reply the thread waits.
    pub asked: Option<Asked>,
    /// The probe that is under way, and whether it was answered.
    pub ping: Option<(Seq, u32)>,
    pub pinged: bool,
    /// The answer that the thread has not looked at.
    pub answer: Option<Result<Reply, Status>>,
    /// The fabric of chains and ledger writes: that of the session in which the operation began.
    pub fabric: Fabric,
    /// The number of ledger writes sent, and of the last that has taken effect for sure.
    pub noted: u32,
    pub noted_acked: u32,
    /// The deadline of an asynchronous operation; 0: the operation is not asynchronous.
    pub async_until: u64,
    /// Whether the program has polled the asynchronous operation.
    pub polled: bool,
    /// Whether the result of the asynchronous operation was checked again since the program polled.
    pub judged: bool,
    /// Whether the next event is known without the primary, and does not wait for the program.
    pub at_once: bool,
    /// How often the thread's operation has paused.
    pub pauses: u16,
    /// Whether the last chain has found other clients queued.
    pub past_queue: bool,
    pub action: super::coverage::Action,
    /// Whether the thread has sent something that is unanswered, and nothing after it was answered.
    pub unflushed: bool,
    /// Whether the thread sleeps on the word.
    pub is_parked: bool,
    /// Whether a new session takes over when the operation under way is over.
    pub moves: bool,
    /// Whether the thread's hold without a lease was ended during the operation under way.
    pub lapse: bool,
    /// How many attempts the thread has made to reach its goal.
    pub attempts: u32,
    /// Whether the thread has held its lock for the goal `Rest`, as the last client of all.
    pub swept: bool,
    /// The renewal that the program wants.
    pub renewed: super::renewed::Asked,
    /// The events that the program has seen.
    pub listener: super::heard::Listener,
    pub cached: super::cached::Cached,
}

/// The state of a client's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Dead,
    Joining,
    Up,
    Broken,
    Leaving,
}

/// A client's process.
#[derive(Debug)]
pub(crate) struct Client {
    pub inc: u16,
    pub life: Life,
    pub fabric: Fabric,
    /// The fabric of the session that the client requests.
    pub next_fabric: Fabric,
    /// Whether the ledger write of a shared hold was lost (fault `Stray`).
    pub strayed: bool,
    pub id: Option<ClientId>,
    pub secret: Secret,
    /// Whether the last answer of the client's last attempt to join was lost.
    pub is_cut: bool,
    pub clock: Clock,
    /// Whether the client came to a recovering primary and has not reported all its claims.
    pub claims_open: bool,
    /// Whether the client reports only that it lives to a recovering primary in this session.
    pub is_mute: bool,
    pub epoch: u32,
    /// How often the primary has ended this client's holds without a lease.
    pub lapses: u32,
    /// A connection that the primary has lost, and when this client's holds without a lease end.
    pub cut: (u32, u64),
    /// The connection of the client's last session.
    pub session_conn: u32,
    pub gen: u32,
    pub seq: u64,
    pub up: VecDeque<(u16, u32, Unit)>,
    /// How many of the client's messages have not arrived yet.
    pub up_events: u64,
    pub up_last: u64,
    /// Word operations that were posted on an earlier channel, and so on another queue pair.
    pub stragglers: VecDeque<(u16, u32, Unit)>,
    pub down: VecDeque<(u16, u32, Frame)>,
    pub down_last: u64,
    pub conn: u32,
    /// The number of connections that the client has made.
    pub conns: u32,
    /// The session that is made beside the client's present one.
    pub renewal: super::renewal::Renewal,
    /// Requests with the epoch of the primary to which they go; 0: there is no primary yet.
    pub control_up: VecDeque<(u32, u16, u32, u32, Ask)>,
    pub control_down: VecDeque<(u16, u32, u32, super::control::Answer)>,
    pub control_up_last: u64,
    pub control_down_last: u64,
    pub control_tok: u32,
    pub control: super::control::Stage,
    /// The heartbeats of the client's session.
    pub beats: Heartbeats,
    /// How the client reacts to the silence of its primary, if it finds the successor by itself.
    pub failover: Option<dlock_core::session::Failover>,
    /// When the client asks for the server's time, unless a heartbeat does so before.
    pub clock_at: u64,
    pub paused_until: u64,
    pub blocked_up: u64,
    pub blocked_down: u64,
    pub releases: VecDeque<u8>,
    /// The last action of the control thread, for the coverage report.
    pub control_action: super::coverage::Action,
    /// A session whose command channel is not attached yet, and when it was requested.
    pub session: Option<(u64, super::control::Answer)>,
    pub threads: Vec<Thread>,
    /// The client's batch that is under way.
    pub batch: Option<super::batch::BatchRun>,
    /// Outcomes that are delivered when the last chain of the doorbell was executed.
    pub completions: Vec<Frame>,
    pub objects: Vec<super::object::ObjectThread>,
    /// Requests for the control thread by the threads of the objects.
    pub object_asks: VecDeque<(u8, super::coverage::Action, ControlRequest)>,
    /// The earliest end of the lease that was last requested for an object.
    pub object_lease_end: u64,
}

/// The whole world except the primary.
#[derive(Debug)]
pub(crate) struct Sys {
    pub now: u64,
    next: u32,
    heap: BinaryHeap<Reverse<(u64, u32, Ev)>>,
    pub rng: Rng,
    pub plan: Plan,
    pub bugs: Bugs,
    pub memory: Memory,
    /// The memory of the predecessor, which its clients may still have mapped.
    pub dead: Vec<(u32, Memory)>,
    pub epoch: u32,
    pub alive: bool,
    pub recovering: bool,
    /// Clients that the recovery awaits although they are absent, and until when it awaits them.
    pub missing: Vec<(ClientId, Option<ServerTime>)>,
    /// Losses of clients that were fenced, or have given their channels up.
    pub losses: super::losses::Losses,
    /// Queue pairs that could not be fenced yet.
    pub unfenced: Vec<super::unfenced::Unfenced>,
    /// Server clock minus true time.
    pub offset: i64,
    /// Such offsets of earlier primaries, each with the primary's epoch.
    pub dead_offsets: Vec<(u32, i64)>,
    pub clients: Vec<Client>,
    pub sessions: Vec<Session>,
    pub inbox: VecDeque<Arrived>,
    pub serve_pending: bool,
    pub tick_at: Option<u64>,
    pub frozen_until: u64,
    /// When events that a frozen primary has put off happen, even if the primary thaws earlier; the
    /// next slice happens then, too.
    pub put_off_until: u64,
    /// Whether the first occupant of a lock's slot has got its lanes.
    pub lanes_set: Vec<bool>,
    pub law: super::rules::Law,
    /// The acts of the operators.
    pub operators: super::operators::Operators,
    /// How many clients are queued for each lock, where programs listen.
    pub queued: Vec<usize>,
    /// Until when each fault lasts.
    pub active: [u64; super::plan::FAULTS.len()],
    pub calm: bool,
    pub goal: Goal,
    pub oracle: Oracle,
    pub cover: Coverage,
    pub violation: Option<String>,
    pub hash: u64,
    pub events: u64,
    pub trace: Option<Vec<String>>,
    depth: u32,
}

const MIX: u64 = 0xff51_afd7_ed55_8ccd;

impl Sys {
    pub fn new(plan: Plan, rng: Rng, bugs: Bugs, trace: bool) -> Self {
        let slots = plan.locks_max + plan.objects_max;
        let offset = plan.start_ns as i64;
        Self {
            losses: super::losses::Losses::new(plan.locks.len()),
            now: 0,
            next: 0,
            heap: BinaryHeap::with_capacity(256),
            rng,
            bugs,
            memory: Memory::new(slots),
            dead: Vec::new(),
            epoch: 1,
            alive: true,
            recovering: false,
            missing: Vec::new(),
            unfenced: Vec::new(),
            offset,
            dead_offsets: Vec::new(),
            clients: Vec::new(),
            sessions: Vec::new(),
            inbox: VecDeque::new(),
            serve_pending: false,
            tick_at: None,
            frozen_until: 0,
            put_off_until: 0,
            operators: Default::default(),
            queued: Vec::new(),
            lanes_set: vec![false; plan.locks.len()],
            law: super::rules::Law::default(),
            active: [0; super::plan::FAULTS.len()],
            calm: false,
            goal: Goal::Any,
            oracle: Oracle::new(plan.locks.len()),
            cover: Coverage::new(),
            violation: None,
            hash: 0x1234_5678_9abc_def0,
            events: 0,
            trace: trace.then(Vec::new),
            depth: 0,
            plan,
        }
    }

    /// The server clock at the present true time.
    pub fn server_now(&self) -> ServerTime {
        ServerTime((self.now as i64 + self.offset) as u64)
    }

    /// The true time of a reading of the server clock.
    pub fn true_time(&self, at: ServerTime) -> u64 {
        (at.0 as i64).saturating_sub(self.offset).max(0) as u64
    }

    pub fn at(&mut self, at: u64, ev: Ev) {
        self.next += 1;
        self.heap.push(Reverse((at.max(self.now), self.next, ev)));
    }

    pub fn after(&mut self, ns: u64, ev: Ev) {
        let at = self.now.saturating_add(ns);
        self.at(at, ev);
    }

    pub fn peek(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Takes the next event, and sets the time to it.
    pub fn pop(&mut self) -> Option<Ev> {
        let Reverse((at, _, ev)) = self.heap.pop()?;
        self.now = self.now.max(at);
        Some(ev)
    }

    #[inline]
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(MIX).rotate_left(29);
    }

    /// Adds a line to the trace, if there is one.
    #[inline]
    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>14.6} {}", self.now as f64 / 1e9, line()));
        }
    }

    pub fn fail(&mut self, why: String) {
        if self.violation.is_none() {
            self.log(|| format!("VIOLATION {why}"));
            self.violation = Some(why);
        }
    }

    /// The time for something that usually takes `base` nanoseconds.
    pub fn takes(&mut self, base: u64) -> u64 {
        let tail = if self.calm { 0 } else { self.plan.tail };
        if !self.rng.chance(tail) {
            return base + self.rng.below(base * 3);
        }
        match self.rng.below(10) {
            0..=4 => self.rng.below(1_000_000),
            5..=7 => self.rng.below(300_000_000),
            _ => self.rng.below(3_500_000_000),
        }
    }

    /// Lets the clients that are due act before one word operation of the primary; sometimes that
    /// takes long.
    pub fn others(&mut self) {
        if !self.rng.chance(self.plan.interleave) || self.depth > 0 {
            return;
        }
        let steps = self.rng.range(1, 6);
        let until = self.now + self.rng.pick(&[200, 5_000, 100_000, 20_000_000]);
        self.depth += 1;
        for _ in 0..steps {
            if self.peek().is_none_or(|at| at > until) || self.violation.is_some() {
                break;
            }
            if let Some(ev) = self.pop() {
                self.client_event(ev);
            }
        }
        self.depth -= 1;
    }

    /// The session of a client, by its id.
    pub fn session(&mut self, id: ClientId) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|s| s.id == id)
    }

    pub fn w0(slot: Slot) -> WordAddr {
        WordAddr::new(slot, Word::W0)
    }

    /// The word that shows how a lock is held; of a fair lock, the word of the turns.
    pub fn lock_word(&self, slot: Slot, lock_type: LockType) -> u64 {
        let word = if lock_type == LockType::Fair { Word::W1 } else { Word::W0 };
        self.memory.words[WordAddr::new(slot, word).index() as usize]
    }

    /// The words of a fair lock.
    pub fn fair_words(&self, slot: Slot) -> (TakenWord, TurnWord) {
        let [taken, turn] = [Word::W0, Word::W1]
            .map(|word| self.memory.words[WordAddr::new(slot, word).index() as usize]);
        (TakenWord::from_bits(taken), TurnWord::from_bits(turn))
    }

    /// The lap of a fair lock.
    pub fn fair_lap(&self, slot: Slot) -> u64 {
        let at = WordAddr::new(slot, Word::Fence).index() as usize;
        self.memory.words.get(at).copied().unwrap_or_default()
    }

    /// Executes a word operation of a chain, with all its values.
    pub fn executes(&mut self, epoch: u32, id: ClientId, word_op: &WordOp, values: &mut Values) {
        values.push(self.word_op(epoch, id, word_op));
        if let WordOp::ReadPair { addr } = *word_op {
            values.push(self.word_op(epoch, id, &WordOp::Read { addr: addr.next() }));
        }
    }

    /// Executes a word operation on the memory of this epoch, as its client's executor has it done.
    pub fn word_op(&mut self, epoch: u32, id: ClientId, word_op: &WordOp) -> u64 {
        let is_here = epoch == self.epoch && self.alive;
        let memory = match self.dead.iter_mut().find(|(dead, _)| *dead == epoch) {
            Some((_, dead)) if !is_here => dead,
            _ => &mut self.memory,
        };
        let value = memory.execute(id, word_op);
        self.mix(value ^ u64::from(id.get()) << 32);
        self.log(|| format!("  {} {word_op:x?} = {value:#x}", id.get()));
        value
    }
}

/// The number of a status in the trace.
pub(crate) fn code(status: Status) -> u64 {
    dlock_core::wire::codec::status_to_wire(status) as u64
}
