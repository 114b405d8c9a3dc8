// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything outside the primary: clients, channels, memory, time, and what is under way.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use dlock_core::clock::{Now, ServerTime};
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::lock::{LockEntry, Op};
pub(crate) use dlock_core::membership::Gone;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, TakenWord, TurnWord};
use dlock_core::operation::{First, Operation};
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

/// What travels on a command channel to the primary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Batch {
        lock: u8,
        tok: u32,
        chain: Chain,
        values: Values,
        /// Another chain of the same doorbell follows.
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
    /// Verbs in it.
    pub fn verbs(&self) -> usize {
        match self {
            Unit::Batch { chain, .. } => chain.ops().len(),
            _ => 1,
        }
    }
}

/// What travels back.
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
    /// A second connection is to become this command channel, over this fabric; `false`: with it
    /// comes a request that shows that the client has the session.
    Attach(u32, Fabric, Secret, bool),
    Get(Vec<u8>),
    Release(u8, dlock_core::ids::LockId),
    Heartbeat,
    Update(Vec<(u8, Claim)>),
    Object(u8, ControlRequest),
    Done,
    Leave,
}

/// What arrived at the primary and is not handled.
#[derive(Debug)]
pub(crate) enum Arrived {
    Unit {
        client: u8,
        inc: u16,
        gen: u32,
        unit: Unit,
    },
    /// With the true server clock at its arrival.
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

/// A client as the primary's driver knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub id: ClientId,
    pub client: u8,
    pub inc: u16,
    /// Its command channel; 0: closed.
    pub gen: u32,
    /// What membership calls it.
    pub channel: u64,
    /// What carries it.
    pub fabric: Fabric,
    /// What membership calls its process.
    pub process: u64,
    /// Its control connection; 0: closed.
    pub conn: u32,
    pub left: bool,
    /// When it was asked for.
    pub since: u64,
    /// Its chains are refused at mapped memory.
    pub revoked: bool,
    /// The memory was handed out to it, and it has not said that it has unmapped it.
    pub mapped: bool,
}

/// Where a thread of a client is. One thread per client and lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Doing {
    /// The lock is not got (yet, or any more).
    Nothing,
    Idle,
    /// The next effect of its operation is to be carried out.
    Effect,
    /// The first chain of a call, what is to be written to the ledger after it, and that it is
    /// written.
    First,
    Writes(LedgerEntry),
    Written,
    Chain,
    /// Before another try, and the session that it began with.
    Pause(u32),
    Reply {
        is_wait: bool,
    },
    /// The result of an asynchronous operation, which the program has not asked for.
    Untold,
    /// Its operations are carried out by the client's batch.
    Batch,
    Control,
}

/// A request whose reply is waited for, and the session that it was sent on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub seq: Seq,
    pub gen: u32,
    pub is_wait: bool,
}

/// What a thread wants in the phases after the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Goal {
    Any,
    Drain,
    Acquire,
    Free,
    Rest,
}

/// A thread of a client: its lock and what it does with it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub entry: Option<LockEntry>,
    /// The epoch the entry's place belongs to.
    pub epoch: u32,
    /// The clock as of that epoch, if the client has come to a later one.
    pub old_clock: Option<Clock>,
    /// The session that carries what it does, and its horizon on the client's own clock.
    pub gen: u32,
    pub horizon_ns: u64,
    pub doing: Doing,
    pub operation: Option<Operation>,
    /// An operation up to its first chain.
    pub first: Option<First>,
    pub op: Op,
    /// The number of the step that is waited for.
    pub tok: u32,
    /// When the call began: the epoch, and the true server clock.
    pub called: (u32, ServerTime),
    /// The lap of the fair lock's place at that time.
    pub lap: u64,
    /// The clock had stood still before, and was right again when the call began: until when.
    pub is_right: Option<u64>,
    /// How often the rules had changed when the call began, and the deadline of the hold then.
    pub law: (u32, u32),
    /// The client's clock as its driver has read it last.
    pub last_now: Now,
    /// Until when something is waited for, on the client's own clock.
    pub until_ns: u64,
    pub goal: Goal,
    /// A chain executed by its own CPU.
    pub chain: Option<(Chain, Values)>,
    /// The outcome of its chain, which it has not looked at; of a flush: that there is none.
    pub outcome: Option<Outcome>,
    /// The request whose reply is waited for.
    pub asked: Option<Asked>,
    /// The probe that is out, and whether it was answered.
    pub ping: Option<(Seq, u32)>,
    pub pinged: bool,
    /// Its answer, which the thread has not looked at.
    pub answer: Option<Result<Reply, Status>>,
    /// What carries its chains and ledger writes: its session's, to the end of an operation.
    pub fabric: Fabric,
    /// Ledger writes sent, and the last that is known to have taken effect.
    pub noted: u32,
    pub noted_acked: u32,
    /// Until when an asynchronous operation may take; 0: it is none.
    pub async_until: u64,
    /// Its program has asked for it.
    pub polled: bool,
    /// Its result was judged once more since the program has asked.
    pub judged: bool,
    /// What it waits for is decided on this side, and no program is waited for.
    pub at_once: bool,
    /// How often its operation has paused.
    pub pauses: u16,
    /// Its last chain found that others are queued.
    pub past_queue: bool,
    /// What it is about, to the coverage report.
    pub action: super::coverage::Action,
    /// Something was sent that is not answered, and nothing after it was answered yet.
    pub unflushed: bool,
    /// It sleeps on the word.
    pub is_parked: bool,
    /// A new session takes over once the operation under way is over.
    pub moves: bool,
    /// What it had without a lease was ended while the operation under way was.
    pub lapse: bool,
    /// Attempts to reach its goal.
    pub attempts: u32,
    /// It has held its lock as the last of all.
    pub swept: bool,
    /// What its program wants to have renewed.
    pub renewed: super::renewed::Asked,
    /// What its program has heard.
    pub listener: super::heard::Listener,
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
    /// The fabric of the session that it asks for.
    pub next_fabric: Fabric,
    /// The note of a share was lost (of the fault `Stray`).
    pub strayed: bool,
    pub id: Option<ClientId>,
    pub secret: Secret,
    /// The last answer of its last attempt to join was lost.
    pub is_cut: bool,
    pub clock: Clock,
    /// It came to a recovering primary and has not told all its claims.
    pub claims_open: bool,
    /// In this session it tells a recovering primary nothing, but that it lives.
    pub is_mute: bool,
    pub epoch: u32,
    pub anchor_s: u32,
    /// How often the primary has ended what it had without a lease.
    pub lapses: u32,
    /// A connection that the primary has lost, and when it ends what has no lease.
    pub cut: (u32, u64),
    /// The connection of its last session.
    pub session_conn: u32,
    pub gen: u32,
    pub seq: u64,
    pub up: VecDeque<(u16, u32, Unit)>,
    /// Arrivals of it that are still to happen.
    pub up_events: u64,
    pub up_last: u64,
    /// Word operations that were posted on an earlier channel: its queue pair is another one.
    pub stragglers: VecDeque<(u16, u32, Unit)>,
    pub down: VecDeque<(u16, u32, Frame)>,
    pub down_last: u64,
    pub conn: u32,
    /// Connections that it has made.
    pub conns: u32,
    /// Its session that comes, beside the one that it has.
    pub renewal: super::renewal::Renewal,
    /// With the epoch of the primary that the connection is to; 0: there is no primary yet.
    pub control_up: VecDeque<(u32, u16, u32, u32, Ask)>,
    pub control_down: VecDeque<(u16, u32, u32, super::control::Answer)>,
    pub control_up_last: u64,
    pub control_down_last: u64,
    pub control_tok: u32,
    pub control: super::control::Stage,
    /// The heartbeats of its session.
    pub beats: Heartbeats,
    /// What it does about the silence of its primary, if it finds the successor by itself.
    pub failover: Option<dlock_core::session::Failover>,
    /// When it asks for the time, if no heartbeat does before.
    pub clock_at: u64,
    pub paused_until: u64,
    pub blocked_up: u64,
    pub blocked_down: u64,
    pub releases: VecDeque<u8>,
    /// What the control thread was last about.
    pub control_action: super::coverage::Action,
    /// A session whose command channel is not attached yet, and when it was asked for.
    pub session: Option<(u64, super::control::Answer)>,
    pub threads: Vec<Thread>,
    /// The batch under way.
    pub batch: Option<super::batch::BatchRun>,
    /// Outcomes that are told when the last chain of the doorbell was executed.
    pub completions: Vec<Frame>,
    pub objects: Vec<super::object::ObjectThread>,
    /// What the control thread is asked for by those of the objects.
    pub object_asks: VecDeque<(u8, super::coverage::Action, ControlRequest)>,
    /// When the lease that was last asked for an object ends, at the earliest.
    pub object_lease_end: u64,
}

/// The whole world but the primary.
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
    /// Those whom the recovery waits for and who are not here, and until when.
    pub missing: Vec<(ClientId, Option<ServerTime>)>,
    /// Of clients that were fenced, or have given their channels up.
    pub losses: super::losses::Losses,
    /// Queue pairs that could not be fenced yet.
    pub unfenced: Vec<super::unfenced::Unfenced>,
    /// Server clock minus true time.
    pub offset: i64,
    /// What it was at earlier incarnations.
    pub dead_offsets: Vec<(u32, i64)>,
    pub clients: Vec<Client>,
    pub sessions: Vec<Session>,
    pub inbox: VecDeque<Arrived>,
    pub serve_pending: bool,
    pub tick_at: Option<u64>,
    pub frozen_until: u64,
    /// What was put off until then is done then, though it thaws earlier; the next slice, too.
    pub put_off_until: u64,
    /// The first occupant of a lock's slot has its lanes.
    pub lanes_set: Vec<bool>,
    pub law: super::rules::Law,
    /// What operators have done.
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

    /// The server clock at the true time of now.
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

    /// Takes the next event, and the time it happens at.
    pub fn pop(&mut self) -> Option<Ev> {
        let Reverse((at, _, ev)) = self.heap.pop()?;
        self.now = self.now.max(at);
        Some(ev)
    }

    #[inline]
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(MIX).rotate_left(29);
    }

    /// A line of the trace, if there is one.
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

    /// How long something takes that usually takes `base` nanoseconds.
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

    /// Lets whoever is due before one word operation of the primary go first; sometimes that is
    /// long.
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

    /// The word that tells how a lock is held: of a fair one, the turns.
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

    /// A word operation on memory, as its client's executor has it executed.
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

/// A status as a number of the trace.
pub(crate) fn code(status: Status) -> u64 {
    dlock_core::wire::codec::status_to_wire(status) as u64
}
