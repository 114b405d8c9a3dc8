// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker process: clients that use locks by seed and log what they are told.
//!
//! ```text
//!   thread ─ session: init, get locks ─ turns until dismissed ─ deinit ─┐
//!              ▲            broken? reinit                              │ sometimes, anew
//!              └────────────────────────────────────────────────────────┘
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use dlock_chaos::faults::{checked_ns, take_unsure_ns, Faulty, Rates};
use dlock_chaos::record::{end_ns, Granted, Record};
use dlock_chaos::rng::Rng;
use dlock_client::raw::{AsyncOp, Instance, OpResult, View};
use dlock_client::{ClientConfig, LockDesc, LockId, LockType, Mode, Status};
use dlock_fabric::os::clock::boot_ns;

use super::job::{type_of, Failover, Job, Style};
use super::secured;

#[path = "away.rs"]
mod away;

/// Whether the parent has closed the input, so that the worker has to leave.
static DISMISSED: AtomicBool = AtomicBool::new(false);
/// A call that takes longer is logged with any result.
const LONG_NS: u64 = 4_000_000_000;
/// How long a worker may go on after it was told to leave: one call may take so long.
const LEAVE_MAX: Duration = Duration::from_secs(100);

/// Works until the parent closes the input.
pub fn work(job: &Job) {
    let log = OpenOptions::new().create(true).append(true).open(&job.log).expect("the log");
    // a process that is killed while it joins leaves a client that never comes back
    let joined = Barrier::new(job.threads as usize + 1);
    thread::scope(|scope| {
        let joined = &joined;
        let clients: Vec<_> = (0..job.threads)
            .map(|n| {
                let mut client = Client::new(job, job.number + n, &log);
                scope.spawn(move || client.run(joined))
            })
            .collect();
        joined.wait();
        println!("\nready");
        thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            DISMISSED.store(true, SeqCst);
            thread::sleep(LEAVE_MAX);
            eprintln!("a worker does not come to an end");
            std::process::exit(3);
        });
        for client in clients {
            client.join().expect("no client panics");
        }
    });
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lock,
    Try,
    Async,
    Batch,
}
const WAYS: [Way; 4] = [Way::Lock, Way::Try, Way::Async, Way::Batch];

/// The work of a program while it holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Idle,
    Reenter,
    Extend,
    Ask,
}
const KEEPS: [Keep; 4] = [Keep::Idle, Keep::Reenter, Keep::Extend, Keep::Ask];

/// The ways of the workers of [`Style::One`], by their number.
const ONES: [(Way, Keep); 6] = [
    (Way::Lock, Keep::Idle),
    (Way::Try, Keep::Idle),
    (Way::Lock, Keep::Reenter),
    (Way::Lock, Keep::Extend),
    (Way::Async, Keep::Idle),
    (Way::Batch, Keep::Idle),
];

/// When a call began and returned, and the library's readings of its clock.
#[derive(Clone, Copy, Debug)]
struct Times {
    before: u64,
    after: u64,
    /// As [`Granted::checked`](dlock_chaos::record::Granted).
    checked: u64,
    unsure_ns: u64,
    /// The primary's epoch, if it was the same before and after the call.
    epoch: Option<u64>,
}

/// The state of one lock for one client.
#[derive(Clone, Copy, Debug)]
struct Hand {
    id: LockId,
    held: Option<Mode>,
    refs: u32,
    /// The mode of the client's ticket, if it was told that it has one.
    ticket: Option<Mode>,
}

struct Client<'a> {
    job: &'a Job,
    number: u64,
    joined: u64,
    log: &'a File,
    rng: Rng,
    faulty: Arc<Mutex<Option<Arc<Faulty>>>>,
    hands: Vec<Hand>,
    /// Whether the primary does not answer, and the program has to come back to one.
    is_away: bool,
}

/// One operation on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Acquire(Mode, u32),
    Extend(Mode, u32),
    Unlock,
}

impl<'a> Client<'a> {
    fn new(job: &'a Job, number: u64, log: &'a File) -> Self {
        let rng = Rng::new(job.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (faulty, hands) = (Arc::default(), Vec::new());
        Self { job, number, joined: 0, log, rng, faulty, hands, is_away: false }
    }

    fn who(&self) -> u64 {
        self.number << 32 | self.joined
    }

    fn write(&self, record: Record) {
        let line = format!("{record}\n");
        // the tests do not expect a full disk
        { self.log }.write_all(line.as_bytes()).expect("the log can be written");
    }

    fn run(&mut self, joined: &Barrier) {
        while !DISMISSED.load(SeqCst) {
            self.joined += 1;
            let instance = self.join();
            if self.joined == 1 {
                joined.wait();
            }
            let Some(instance) = instance else { continue };
            let turns = match self.job.style {
                Style::One => u64::MAX,
                Style::Mix | Style::Fair => self.rng.range(20, 2_000),
            };
            for _ in 0..turns {
                if DISMISSED.load(SeqCst) || !self.turn(&instance) {
                    break;
                }
            }
            self.write(Record::Gone { who: self.who(), at: boot_ns() });
            self.leave(&instance);
        }
    }

    fn join(&mut self) -> Option<Arc<Instance>> {
        let (port, fabric) = (self.job.port, self.job.fabric);
        let is_by_itself = self.job.failover == Failover::ByItself;
        let ports = [port, self.job.second_port].into_iter().filter(|&port| port != 0);
        let primaries =
            ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).collect();
        let primaries = is_by_itself.then_some(primaries);
        // with TLS each question whether a primary is there costs a handshake: 1 s, the default
        let silence = (!secured::is_on()).then_some(Duration::from_millis(200));
        let config = ClientConfig { port, fabric, primaries, silence, ..Default::default() };
        let (slot, seeds) = (Arc::clone(&self.faulty), Mutex::new(Rng::new(self.rng.bits())));
        let is_faulty = self.job.faulty;
        let is_traced = std::env::var_os("DLOCK_CHAOS_TRACE").is_some();
        let trace = is_traced.then(|| format!("{}.{}.trace", self.job.log, self.who()));
        let wrap = move |exec| {
            let mut seeds = seeds.lock().expect("nobody panics with it");
            let rates = if is_faulty { Rates::drawn(&mut seeds) } else { Rates::default() };
            let mut faulty = Faulty::new(exec, seeds.bits(), rates);
            if let Some(name) = &trace {
                let file = OpenOptions::new().create(true).append(true).open(name);
                faulty = faulty.traced(file.expect("the trace"));
            }
            let faulty = Arc::new(faulty);
            *slot.lock().expect("nobody panics with it") = Some(Arc::clone(&faulty));
            faulty as Arc<dyn dlock_core::memory::exec::Executor>
        };
        let instance = Instance::init_shared_wrapped(&config, "127.0.0.1", Arc::new(wrap));
        let instance = match instance {
            Ok(instance) => instance,
            Err(status) => {
                if self.joined == 1 {
                    eprintln!("a worker cannot join: {status:?}");
                }
                thread::sleep(Duration::from_millis(20)); // pauses before the next attempt to join
                return None;
            }
        };
        self.hands.clear();
        self.is_away = false;
        for lock in self.job.locks.0..self.job.locks.0 + self.job.locks.1 {
            let Some(id) = self.get(&instance, lock) else {
                self.leave(&instance);
                return None;
            };
            self.hands.push(Hand { id, held: None, refs: 0, ticket: None });
        }
        Some(instance)
    }

    fn get(&self, instance: &Instance, lock: usize) -> Option<LockId> {
        let lock_type = type_of(self.job.style, lock);
        let name = format!("lock {lock}").into();
        instance.get_lock(LockDesc { name, lock_type, lease_s: 0, tokens: false }).1
    }

    /// One turn; `false`: the session is of no more use.
    fn turn(&mut self, instance: &Instance) -> bool {
        let is_broken = {
            let faulty = self.faulty.lock().expect("nobody panics with it");
            faulty.as_ref().is_some_and(|faulty| faulty.is_broken())
        };
        if is_broken && self.rng.chance(300) {
            return match self.rng.chance(900) {
                true => instance.reinit("127.0.0.1") == Status::Success,
                false => false,
            };
        }
        if self.is_away && !self.comes_back(instance) {
            return true; // the client comes back in a later turn
        }
        match self.job.style {
            Style::Mix => self.mix(instance),
            Style::One => self.one(instance),
            Style::Fair => self.fair(instance),
        }
        true
    }

    /// Any operation on any lock.
    fn mix(&mut self, instance: &Instance) {
        let mut n = self.rng.below(self.hands.len() as u64) as usize;
        let mine: Vec<usize> =
            (0..self.hands.len()).filter(|&n| self.hands[n].held.is_some()).collect();
        if mine.len() > 1 && self.rng.chance(700) {
            n = self.rng.pick(&mine);
        }
        let mut way = self.rng.pick(&WAYS);
        let Hand { id, held, ticket, .. } = self.hands[n];
        if way == Way::Lock && !mine.is_empty() && self.rng.chance(980) {
            way = Way::Try; // a holder that waits would keep the waiters of its own lock waiting
        }
        match (held, ticket) {
            (None, None) if self.rng.chance(30) => {
                instance.release_lock(id);
                if let Some(id) = self.get(instance, self.job.locks.0 + n) {
                    self.hands[n].id = id;
                }
            }
            (None, None) => {
                let mode = self.mode(n);
                self.acquire(instance, n, way, mode);
            }
            (None, Some(_)) if self.rng.chance(100) => {
                self.perform(instance, way, &[(n, Op::Unlock)]);
            }
            (None, Some(mode)) => {
                self.acquire(instance, n, way, mode);
            }
            (Some(mode), _) => match self.rng.below(10) {
                0..=5 => self.perform(instance, way, &[(n, Op::Unlock)]),
                6 => self.keep(instance, n, Keep::Reenter, way, mode),
                7 => self.keep(instance, n, Keep::Extend, way, mode),
                8 => self.keep(instance, n, Keep::Ask, way, mode),
                _ => self.pause(),
            },
        }
        if self.rng.chance(2) {
            instance.heartbeat(5);
        }
    }

    /// Mostly a moment, sometimes longer than a lease.
    fn pause(&mut self) {
        let ms = match self.rng.chance(10) {
            true => self.rng.range(900, 2_500),
            false => self.rng.below(5),
        };
        thread::sleep(Duration::from_millis(ms));
    }

    fn mode(&mut self, n: usize) -> Mode {
        let is_atomic = type_of(self.job.style, self.job.locks.0 + n) == LockType::Atomic;
        if is_atomic || self.rng.chance(500) {
            Mode::Exclusive
        } else {
            Mode::Shared
        }
    }

    /// Takes a lock in this worker's way, keeps it, and gives it back.
    fn one(&mut self, instance: &Instance) {
        let n = self.rng.below(self.hands.len() as u64) as usize;
        let (way, keep) = ONES[(self.number % ONES.len() as u64) as usize];
        let mode = self.hands[n].ticket.unwrap_or_else(|| self.mode(n));
        for _ in 0..500 {
            if DISMISSED.load(SeqCst) || self.acquire(instance, n, way, mode) || self.is_away {
                break;
            }
            thread::sleep(Duration::from_millis(1 + self.rng.below(10)));
        }
        let times = self.rng.range(1, 30);
        for _ in 0..times {
            if self.hands[n].held.is_none() || DISMISSED.load(SeqCst) {
                break;
            }
            self.keep(instance, n, keep, Way::Try, mode);
            thread::sleep(Duration::from_millis(1 + self.rng.below(10)));
            if self.job.failover == Failover::ByHand {
                self.looks(instance);
            }
        }
        for _ in 0..40 {
            if self.hands[n].held.is_some() || self.hands[n].ticket.is_some() {
                self.perform(instance, way, &[(n, Op::Unlock)]);
            }
        }
    }

    /// Asks for a fair lock until it is held, or gives up the place in the queue.
    fn fair(&mut self, instance: &Instance) {
        let n = self.rng.below(self.hands.len() as u64) as usize;
        let mode = self.mode(n);
        let gives_up = self.rng.chance(150);
        let from = boot_ns();
        while !DISMISSED.load(SeqCst) {
            let way = self.rng.pick(&WAYS);
            if self.acquire(instance, n, way, mode) {
                let (who, lock) = (self.who(), self.job.locks.0 + n);
                self.write(Record::Waited { who, lock, from, to: boot_ns() });
                break;
            }
            if gives_up && self.rng.chance(300) {
                break;
            }
            if way != Way::Lock {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if self.hands[n].held.is_some() {
            let us = if self.rng.chance(30) { 20_000 } else { 2_000 };
            thread::sleep(Duration::from_micros(self.rng.below(us)));
            let keep = self.rng.pick(&KEEPS);
            self.keep(instance, n, keep, Way::Try, mode);
        }
        for _ in 0..4 {
            let Hand { held, ticket, .. } = self.hands[n];
            if held.is_some() || ticket.is_some() {
                let way = self.rng.pick(&WAYS);
                self.perform(instance, way, &[(n, Op::Unlock)]);
            }
        }
        if self.rng.chance(50) {
            instance.release_lock(self.hands[n].id);
            if let Some(id) = self.get(instance, self.job.locks.0 + n) {
                self.hands[n].id = id;
            }
        }
    }

    /// Asks for a lock once; returns whether the lock is held.
    fn acquire(&mut self, instance: &Instance, n: usize, way: Way, mode: Mode) -> bool {
        let expire_s = self.lease_s();
        let mut ops = vec![(n, Op::Acquire(mode, expire_s))];
        if way == Way::Batch && self.job.style != Style::Fair {
            // adds locks that are neither held nor waited for
            for other in 0..self.hands.len() {
                let Hand { held, ticket, .. } = self.hands[other];
                if other != n && held.is_none() && ticket.is_none() && self.rng.chance(300) {
                    ops.push((other, Op::Acquire(self.mode(other), expire_s)));
                }
            }
        }
        self.perform(instance, way, &ops);
        for &(other, _) in ops.iter().filter(|op| op.0 != n && self.job.style == Style::One) {
            if self.hands[other].held.is_some() || self.hands[other].ticket.is_some() {
                self.perform(instance, Way::Try, &[(other, Op::Unlock)]);
            }
        }
        self.hands[n].held.is_some()
    }

    fn lease_s(&mut self) -> u32 {
        match self.job.style {
            Style::One if self.job.failover != Failover::None => self.rng.pick(&[1, 5, 20]),
            Style::One => 1,
            Style::Mix => self.rng.pick(&[1, 1, 2, 4]),
            Style::Fair => 60,
        }
    }

    fn keep(&mut self, instance: &Instance, n: usize, keep: Keep, way: Way, mode: Mode) {
        let expire_s = self.lease_s();
        let op = match keep {
            Keep::Idle => return,
            Keep::Reenter => Op::Acquire(mode, expire_s),
            Keep::Extend => Op::Extend(mode, expire_s),
            Keep::Ask => Op::Extend(mode, 0),
        };
        self.perform(instance, way, &[(n, op)]);
    }

    /// Performs operations and logs their results. Several operations must be of the same kind and
    /// form a batch.
    fn perform(&mut self, instance: &Instance, way: Way, ops: &[(usize, Op)]) {
        let before = boot_ns();
        for &(n, _) in ops.iter().filter(|(_, op)| *op == Op::Unlock) {
            if self.hands[n].held.is_some() && self.hands[n].refs <= 1 {
                let (who, lock) = (self.who(), self.job.locks.0 + n);
                self.write(Record::Ended { who, lock, at: before });
            }
        }
        take_unsure_ns();
        let epoch = instance.epoch();
        let results = self.call(instance, way, ops);
        // these are read right after the call
        let (after, checked) = (boot_ns(), checked_ns());
        let epoch = Some(epoch).filter(|&epoch| epoch == instance.epoch());
        let at = Times { before, after, checked, unsure_ns: take_unsure_ns(), epoch };
        for (&(n, op), result) in ops.iter().zip(results) {
            self.told(n, op, &result, at);
        }
    }

    fn call(&self, instance: &Instance, way: Way, ops: &[(usize, Op)]) -> Vec<OpResult> {
        let (n, op) = ops[0];
        let id = self.hands[n].id;
        match (way, op) {
            (Way::Batch, _) => self.batch(instance, ops),
            (Way::Async, _) => vec![self.asynchronously(instance, id, op)],
            (Way::Lock, Op::Acquire(mode, expire_s)) => vec![instance.lock(id, mode, expire_s)],
            (_, Op::Acquire(mode, expire_s)) => vec![instance.trylock(id, mode, expire_s)],
            (_, Op::Extend(mode, expire_s)) => vec![instance.extend(id, mode, expire_s)],
            (_, Op::Unlock) => vec![instance.unlock(id)],
        }
    }

    fn batch(&self, instance: &Instance, ops: &[(usize, Op)]) -> Vec<OpResult> {
        let mut out = vec![OpResult::of(Status::Error); ops.len()];
        let items: Vec<_> = ops
            .iter()
            .map(|&(n, op)| match op {
                Op::Acquire(mode, expire_s) | Op::Extend(mode, expire_s) => {
                    (self.hands[n].id, mode, expire_s)
                }
                Op::Unlock => (self.hands[n].id, Mode::Exclusive, 0),
            })
            .collect();
        let status = match ops[0].1 {
            Op::Acquire(..) => instance.batch_trylock(&items, &mut out),
            Op::Extend(..) => instance.batch_extend(&items, &mut out),
            Op::Unlock => {
                let ids: Vec<_> = items.iter().map(|item| item.0).collect();
                instance.batch_unlock(&ids, &mut out)
            }
        };
        match status {
            Status::Success => out,
            status => vec![OpResult::of(status); ops.len()],
        }
    }

    fn asynchronously(&self, instance: &Instance, id: LockId, op: Op) -> OpResult {
        let op = match op {
            Op::Acquire(mode, expire_s) => AsyncOp::TryLock { mode, expire_s },
            Op::Extend(mode, expire_s) => AsyncOp::Extend { mode, expire_s },
            Op::Unlock => AsyncOp::Unlock,
        };
        let status = instance.request_async(id, op);
        if status != Status::Success {
            return OpResult::of(status);
        }
        loop {
            let result = instance.result_check();
            match result.status {
                Status::AsyncAgain => thread::sleep(Duration::from_micros(200)),
                Status::NoAsync if op == AsyncOp::Unlock => return OpResult::of(status),
                // the library has begun another session, and has forgotten the operation
                Status::NoAsync => return OpResult::of(Status::BadResponse),
                _ => return result,
            }
        }
    }

    /// Logs the result of a call.
    fn told(&mut self, n: usize, op: Op, result: &OpResult, at: Times) {
        let Times { before, after, unsure_ns, .. } = at;
        let (who, lock) = (self.who(), self.job.locks.0 + n);
        if after - before > LONG_NS {
            self.write(Record::Long { who, lock, before, after });
        }
        let hand = self.hands[n];
        let was_held = hand.held.is_some();
        let fails_over = self.job.failover != Failover::None;
        if fails_over && matches!(result.status, Status::BadResponse | Status::NotReady) {
            self.is_away = self.job.failover == Failover::ByHand;
            if was_held && op != Op::Unlock {
                return; // the hold goes on as the client knew it
            }
        }
        let ends = |hand: &mut Hand| (hand.held, hand.refs) = (None, 0);
        match (op, result.status) {
            (Op::Acquire(mode, asked_s), Status::Success | Status::AlreadyLocked) => {
                let is_first = result.status == Status::Success;
                let hand = &mut self.hands[n];
                hand.refs = if is_first { 1 } else { hand.refs + 1 };
                hand.held = Some(mode);
                hand.ticket = None;
                // a re-entry need not move the end of the lease
                let asked_s = if is_first { asked_s } else { 0 };
                self.granted((n, mode, asked_s), result.view, is_first, at);
            }
            (Op::Extend(mode, asked_s), Status::Success) => {
                self.granted((n, mode, asked_s), result.view, false, at);
            }
            (Op::Acquire(mode, _), Status::Again) => {
                self.hands[n].ticket = Some(mode);
            }
            (Op::Unlock, Status::AlreadyLocked) => {
                self.hands[n].refs = hand.refs.saturating_sub(1).max(1);
            }
            (Op::Unlock, _) => {
                if was_held && hand.refs > 1 {
                    self.write(Record::Ended { who, lock, at: before });
                }
                self.hands[n].ticket = None;
                ends(&mut self.hands[n]);
            }
            (_, Status::Fail | Status::AlreadyUnlocked) => {
                if was_held {
                    self.write(Record::Lost { who, lock, at: after, unsure_ns });
                }
                self.hands[n].ticket = None;
                ends(&mut self.hands[n]);
            }
            // refused (another thread's operation, the wrong mode, no lease): nothing has changed
            (_, Status::Invalid | Status::Ticket | Status::Async) => {}
            _ => {
                // it is not known whether the lock is still held
                if was_held {
                    self.write(Record::Ended { who, lock, at: before });
                }
                self.hands[n].ticket = None;
                ends(&mut self.hands[n]);
            }
        }
    }

    fn granted(
        &self,
        (n, mode, asked_s): (usize, Mode, u32),
        view: Option<View>,
        is_first: bool,
        Times { before, after, checked, epoch, .. }: Times,
    ) {
        let (who, lock) = (self.who(), self.job.locks.0 + n);
        let lock_type = type_of(self.job.style, lock);
        let (until_ns, ticket) = match view {
            Some(View::Atomic { time_out, .. }) => (Some(end_ns(time_out)), None),
            // `nx`: the exclusive tickets that are done, the place that the queue has reached
            Some(View::Fair { time_out, nx, .. }) => (Some(end_ns(time_out)), Some(nx)),
            Some(View::Rw { .. }) => (None, None),
            None if lock_type == LockType::Rw => (None, None),
            None => return, // without the end of the lease the client relies on nothing more
        };
        // a ticket counts within one epoch
        let ticket = ticket.filter(|_| is_first && epoch.is_some());
        let asked_s = if until_ns.is_some() { asked_s } else { 0 };
        let epoch = epoch.unwrap_or(0);
        let grant =
            Granted { who, lock, mode, before, after, until_ns, asked_s, ticket, checked, epoch };
        self.write(Record::Granted(grant));
    }
}
