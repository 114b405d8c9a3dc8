// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole system under one seed: clients, primary, memory, channels, clocks and faults as
//! events on virtual time.
//!
//! ```text
//!   seed ─▶ Plan ─▶ World: Sys (clients, channels, memory, time) + Primary
//!                     │  faults ─▶ heal ─▶ each client is granted once ─▶ nothing is left behind
//!                     └─▶ Oracle (which client relies on what, when) · trace hash · coverage
//! ```
//! The clients' [`LockEntry`](dlock_core::lock::LockEntry) and the
//! [`Primary`](dlock_core::primary::Primary) are the real ones. One schedule is one call of
//! [`run`]; the same seed gives the same trace on every build.

mod apart;
mod asynchronous;
mod batch;
mod bugs;
mod cached;
mod channel;
mod claims;
mod clock;
mod control;
mod coverage;
mod ended;
mod events;
mod faults;
mod first;
mod goals;
mod heard;
mod horizon;
mod jump;
mod kept;
mod led;
mod losses;
mod members;
mod memory;
mod object;
mod object_oracle;
mod operators;
mod oracle;
mod pause;
mod plan;
mod renewal;
mod renewed;
mod rng;
mod rules;
mod scenarios;
mod server;
mod settle;
mod standby;
mod state;
mod thread;
mod token_oracle;
mod tokens;
mod told;
mod turns;
mod twin;
mod unfenced;

use std::panic::{catch_unwind, AssertUnwindSafe};

use dlock_core::clock::{Deadline, Now, ServerTime, NS};
use dlock_core::lock::Op;
use dlock_core::memory::word_op::Outcome;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::session::Heartbeats;
use dlock_core::wire::control::{LockGrant, Secret};
use dlock_core::wire::status::Status;

pub use apart::APART;
#[cfg(feature = "planted")]
pub use bugs::{plant, plantable, scenario_of};
pub use bugs::{Bugs, DRIVER_BUGS};
pub use clock::Clock;
pub use coverage::{Action, Coverage, ACTIONS};
pub use oracle::{Oracle, Service};
pub use plan::{Fabric, Fault, Plan, FAULTS};
pub use rng::Rng;
pub use scenarios::{Scenario, SCENARIOS};

use server::World;
use state::{Client, Doing, Ev, Goal, Life, Sys, Thread};

/// The result of one schedule.
#[derive(Clone, Debug)]
pub struct Run {
    /// How many events the schedule had.
    pub events: u64,
    /// The schedule's time at its end, nanoseconds.
    pub lasted_ns: u64,
    /// Grants that the checker has counted.
    pub grants: u64,
    /// Operations on objects that were acknowledged.
    pub objects: usize,
    /// The hash of the trace.
    pub hash: u64,
    /// The first property that was violated.
    pub violation: Option<String>,
    /// Which actions met which faults.
    pub coverage: Coverage,
    /// The trace, a line for each event; empty if the caller did not ask for it.
    pub trace: Vec<String>,
}

/// Events of one schedule; more is a livelock.
const EVENTS_MAX: u64 = 150_000;

/// Runs the schedule of one seed. `None`: there is no such scenario.
pub fn run(scenario: &str, seed: u64, bugs: Bugs, trace: bool) -> Option<Run> {
    run_for(scenario, seed, bugs, trace, 0)
}

/// As [`run`], with a fault phase of at least `lasts_s` seconds of virtual time.
pub fn run_for(scenario: &str, seed: u64, bugs: Bugs, trace: bool, lasts_s: u64) -> Option<Run> {
    run_with(scenario, seed, bugs, trace, lasts_s, false)
}

/// As [`run`], with a second primary that gets the same events: its effects, its accesses to the
/// memory and its whole state must be the same.
pub fn run_twice(scenario: &str, seed: u64) -> Option<Run> {
    run_with(scenario, seed, Bugs::default(), false, 0, true)
}

fn run_with(
    scenario: &str,
    seed: u64,
    bugs: Bugs,
    trace: bool,
    lasts_s: u64,
    is_twice: bool,
) -> Option<Run> {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
    let mut plan = Plan::draw(scenario, &mut rng)?;
    plan.lasts_ns = lasts_s.saturating_mul(NS);
    let mut world = World::new(build(plan, rng, bugs, trace), is_twice);
    let whole = AssertUnwindSafe(|| {
        world.faults_phase();
        if world.sys.violation.is_none() {
            world.settle();
        }
    });
    if let Err(panic) = catch_unwind(whole) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        world.sys.fail(format!("panic: {text}"));
    }
    let sys = world.sys;
    Some(Run {
        events: sys.events,
        lasted_ns: sys.now,
        grants: sys.oracle.grants,
        objects: sys.oracle.objects.acknowledged(),
        hash: sys.hash,
        violation: sys.violation,
        coverage: sys.cover,
        trace: sys.trace.unwrap_or_default(),
    })
}

/// One number for the traces of the first 1,000 schedules; the same on every build.
pub fn digest() -> u64 {
    (1..=1_000).fold(0, |sum: u64, seed| {
        let run = run("all", seed, Bugs::default(), false).expect("the scenario");
        sum.rotate_left(7) ^ run.hash
    })
}

fn build(plan: Plan, rng: Rng, bugs: Bugs, trace: bool) -> Sys {
    let mut sys = Sys::new(plan, rng, bugs, trace);
    if sys.plan.drift {
        sys.active[Fault::Drift as usize] = u64::MAX;
    }
    if sys.plan.limits {
        sys.active[Fault::Limits as usize] = u64::MAX;
    }
    let plan = format!("{:?}", sys.plan);
    sys.log(|| plan);
    for c in 0..sys.plan.fabrics.len() {
        let client = client(&mut sys, c);
        sys.clients.push(client);
        sys.control_soon(c, false);
    }
    sys
}

/// The reading of a client that has not read its clock yet.
const NEVER: Now = Now {
    time: ServerTime(0),
    uncertainty_ns: u64::MAX / 2,
    local_ns: 0,
    horizon_ns: u64::MAX,
    discontinuities: 0,
};

fn client(sys: &mut Sys, c: usize) -> Client {
    let fabric = sys.plan.fabrics[c];
    let drifts = sys.plan.drift && fabric != Fabric::Shm;
    let ppm = match drifts {
        true => sys.rng.pick(&[-500, -499, -200, 0, 300, 499, 500]),
        false => 0,
    };
    let is_here = fabric == Fabric::Shm;
    // a client on the primary's host may be in another time namespace
    let base = match sys.rng.below(1_000 * NS) as i64 {
        base if is_here && base % 2 == 0 => 0,
        base => base,
    };
    let thread = || Thread {
        entry: None,
        epoch: 0,
        old_clock: None,
        gen: 0,
        law: (0, Deadline::NONE),
        is_right: None,
        horizon_ns: u64::MAX,
        doing: Doing::Nothing,
        operation: None,
        first: None,
        op: Op::Unlock,
        tok: 0,
        called: (0, ServerTime(0)),
        lap: 0,
        last_now: NEVER,
        until_ns: 0,
        goal: Goal::Any,
        action: Action::Get,
        unflushed: false,
        is_parked: false,
        moves: false,
        lapse: false,
        attempts: 0,
        asked: None,
        ping: None,
        pinged: false,
        answer: None,
        noted: 0,
        noted_acked: 0,
        fabric: Fabric::Shm,
        async_until: 0,
        polled: false,
        judged: false,
        at_once: false,
        pauses: 0,
        past_queue: false,
        chain: None,
        outcome: None,
        swept: false,
        renewed: Default::default(),
        listener: Default::default(),
        cached: Default::default(),
    };
    Client {
        inc: 1,
        life: Life::Joining,
        fabric,
        next_fabric: fabric,
        strayed: false,
        id: None,
        secret: Secret([0; 16]),
        is_cut: false,
        clock: Clock { ppm, base, is_here, ..Clock::default() },
        claims_open: false,
        is_mute: false,
        epoch: 0,
        lapses: 0,
        cut: (0, u64::MAX),
        session_conn: 0,
        gen: 0,
        seq: 0,
        up: Default::default(),
        up_events: 0,
        up_last: 0,
        stragglers: Default::default(),
        down: Default::default(),
        down_last: 0,
        conn: 0,
        conns: 0,
        renewal: renewal::Renewal::default(),
        control_up: Default::default(),
        control_down: Default::default(),
        control_up_last: 0,
        control_down_last: 0,
        control_tok: 0,
        control: control::Stage::Sleep,
        beats: Heartbeats::new(0, 0),
        failover: None,
        clock_at: 0,
        paused_until: 0,
        blocked_up: 0,
        blocked_down: 0,
        releases: Default::default(),
        control_action: Action::Join,
        threads: sys.plan.locks.iter().map(|_| thread()).collect(),
        objects: (0..sys.plan.objects).map(|_| Default::default()).collect(),
        session: None,
        batch: Default::default(),
        completions: Vec::new(),
        object_asks: Default::default(),
        object_lease_end: 0,
    }
}

impl World {
    fn faults_phase(&mut self) {
        let lasts = |sys: &Sys| sys.events < sys.plan.events || sys.now < sys.plan.lasts_ns;
        while lasts(&self.sys) && self.sys.violation.is_none() {
            if !self.turn() {
                break;
            }
            if self.sys.plan.faults.is_empty() {
                self.nobody_sleeps_before_a_free_lock();
            }
            self.fault();
        }
    }

    /// Handles one event; `false`: there is none.
    fn turn(&mut self) -> bool {
        let Some(ev) = self.sys.pop() else { return false };
        match ev {
            Ev::Serve => {
                if self.sys.now < self.sys.frozen_until {
                    let at = self.sys.frozen_until;
                    self.sys.at(at, ev);
                } else {
                    self.sys.count(ev);
                    self.serve();
                }
            }
            Ev::Tick(at) => {
                if self.sys.now < self.sys.frozen_until {
                    let at = self.sys.frozen_until;
                    self.sys.at(at, ev);
                } else {
                    self.sys.count(ev);
                    self.tick(at);
                }
            }
            Ev::Successor => {
                self.sys.count(ev);
                self.successor();
            }
            // not counted as events of the schedule: how many there are depends on how long the
            // schedule lasts
            Ev::Standby(tok) => self.watches(tok),
            Ev::Operator => self.promotes(),
            Ev::Stalled(c, inc, gen) => {
                self.sys.count(ev);
                self.stalled(c, inc, gen);
            }
            ev => self.sys.client_event(ev),
        }
        self.nobody_is_kept_waiting();
        self.nobody_waits_for_an_idle_lock();
        true
    }
}

impl Sys {
    fn count(&mut self, ev: Ev) {
        self.events += 1;
        let (kind, a) = match ev {
            Ev::Step(c, ..) => (1, c),
            Ev::Timer(c, ..) => (2, c),
            Ev::WordOp(c, ..) => (3, c),
            Ev::Up(c) => (4, c),
            Ev::Down(c) => (5, c),
            Ev::ControlUp(c) => (6, c),
            Ev::ControlDown(c) => (7, c),
            Ev::Control(c, ..) => (8, c),
            Ev::Lost(c, ..) => (9, c),
            Ev::Reset(c, ..) => (10, c),
            Ev::Stalled(c, ..) => (11, c),
            Ev::Serve => (12, 0),
            Ev::Tick(_) => (13, 0),
            Ev::Successor => (14, 0),
            Ev::Standby(_) => (18, 0),
            Ev::Operator => (19, 0),
            Ev::Straggle(c) => (20, c),
            Ev::Renewal(c, ..) => (21, c),
            Ev::Kept(c, ..) => (22, c),
            Ev::Restart(c) => (15, c),
            Ev::Silent(c, ..) => (16, c),
        };
        self.mix(self.now ^ (kind << 56) ^ (u64::from(a) << 48));
    }

    /// Handles an event in which the primary has no part; other events are put off.
    pub(crate) fn client_event(&mut self, ev: Ev) {
        let paused = |sys: &Sys, c: u8| sys.clients[usize::from(c)].paused_until;
        let process = match ev {
            Ev::Step(c, inc, ..) | Ev::Timer(c, inc, ..) | Ev::WordOp(c, inc, ..) => Some((c, inc)),
            Ev::Control(c, inc, _)
            | Ev::Reset(c, inc, _)
            | Ev::Renewal(c, inc, _)
            | Ev::Kept(c, inc, _) => Some((c, inc)),
            Ev::Down(c) | Ev::ControlDown(c) => Some((c, self.clients[usize::from(c)].inc)),
            _ => None,
        };
        if let Some((c, inc)) = process {
            if self.clients[usize::from(c)].inc != inc {
                return;
            }
            let until = paused(self, c);
            if until > self.now {
                // the pause may end earlier, when the faults are healed
                return self.at(until.min(self.now + NS), ev);
            }
        }
        match ev {
            Ev::Step(c, _, l, tok) | Ev::Timer(c, _, l, tok) | Ev::WordOp(c, _, l, tok) => {
                let (c, l) = (usize::from(c), usize::from(l));
                let object = self.object_of(l);
                let current = match object {
                    Some(o) => self.object(c, o).tok,
                    None => self.thread(c, l).tok,
                };
                if current != tok {
                    return;
                }
                self.count(ev);
                match (ev, object) {
                    (Ev::Step(..), None) => self.thread_steps(c, l),
                    (Ev::Timer(..), None) => self.timer(c, l),
                    (_, None) => self.cpu_word_op(c, l),
                    (Ev::Step(..), Some(o)) => self.object_steps(c, o),
                    (Ev::Timer(..), Some(o)) => self.object_outcome(c, o, Outcome::Unknown),
                    (_, Some(o)) => self.object_cpu_op(c, o),
                }
            }
            // not counted as an event of the schedule, because the number of looks depends on its
            // duration
            Ev::Renewal(c, _, l) => self.looks_at_renewal(c.into(), l.into()),
            Ev::Kept(c, _, l) => {
                self.count(ev);
                self.cache_turn(c.into(), l.into());
            }
            Ev::Control(c, _, tok) if self.clients[usize::from(c)].control_tok != tok => {}
            Ev::Serve | Ev::Tick(_) | Ev::Successor | Ev::Stalled(..) => {
                self.after(1_000, ev);
            }
            Ev::Standby(_) | Ev::Operator => {
                self.after(1_000, ev);
            }
            _ => {
                self.count(ev);
                self.channel_event(ev);
            }
        }
    }

    fn channel_event(&mut self, ev: Ev) {
        match ev {
            Ev::Up(c) => self.arrive(c.into()),
            Ev::Straggle(c) => self.straggles(c.into()),
            Ev::Down(c) => self.receive(c.into()),
            Ev::Control(c, ..) => self.control_wakes(c.into()),
            Ev::ControlUp(c) => self.control_arrives(c.into()),
            Ev::ControlDown(c) => self.control_receive(c.into()),
            Ev::Lost(client, inc, conn) if self.alive => {
                self.queue(state::Arrived::Lost { client, inc, conn, why: state::Gone::Closed });
            }
            Ev::Silent(client, inc, conn) if self.alive => {
                self.queue(state::Arrived::Lost { client, inc, conn, why: state::Gone::Silent });
            }
            Ev::Reset(c, _, gen) => {
                let c = usize::from(c);
                let client = &self.clients[c];
                if client.gen == gen && gen != 0 {
                    self.break_command(c);
                } else if client.conn == gen && client.renewal.is_shown() {
                    self.connection_lost(c); // the primary has closed both connections
                } else if client.conn == gen && client.session.is_some() {
                    self.after(1_000, ev); // the client notices that only after it has attached
                }
            }
            Ev::Restart(c) => self.restart(c.into()),
            _ => {}
        }
    }

    /// Handles the arrival of a request on a control connection; without a primary it is lost.
    fn control_arrives(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some((to, inc, conn, number, ask)) = client.control_up.pop_front() else { return };
        // a request reaches the primary to which its connection was made; if no primary is named
        // yet, it reaches the present one as long as the client's process lives
        let reaches = to == self.epoch || to == 0 && client.inc == inc;
        if self.alive && reaches {
            let (at, client) = (self.server_now(), c as u8);
            return self.queue(state::Arrived::Control { at, client, inc, conn, number, ask });
        }
        let at = (self.now + 20_000).max(self.clients[c].control_down_last + 1);
        self.clients[c].control_down_last = at;
        let refused = control::Answer::Refused(Status::NotReady);
        self.clients[c].control_down.push_back((inc, conn, number, refused));
        self.at(at, Ev::ControlDown(c as u8));
    }

    /// Starts the counters of a new fair lock's lanes at the numbers of the plan.
    pub(crate) fn high_lanes(&mut self, grants: &mut [(u8, Result<LockGrant, Status>)]) {
        use dlock_core::memory::words::{TakenWord, TurnWord};
        use dlock_core::wire::message::LockType;
        for (l, grant) in grants {
            let Ok(grant) = grant else { continue };
            let fresh = !std::mem::replace(&mut self.lanes_set[usize::from(*l)], true);
            if fresh && self.plan.locks[usize::from(*l)] == LockType::Fair {
                let (x, s) = self.plan.lanes;
                let s = s.max(TakenWord::START.ms());
                grant.word = TakenWord::new().with_mx(x).with_ms(s).into_bits();
                *self.memory.word(Sys::w0(grant.slot)) = grant.word;
                let turn = TurnWord::new().with_nx(x).with_ns(s).into_bits();
                *self.memory.word(WordAddr::new(grant.slot, Word::W1)) = turn;
            }
        }
    }
}
