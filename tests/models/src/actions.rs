// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model: which actions are possible in a state, and what each of them does.

use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::arbiter::Sent;
use dlock_core::clock::{Deadline, ServerTime, NS};
use dlock_core::limits::FAIR_GRACE;
use dlock_core::lock::EntryState;
use dlock_core::wire::message::{LockType, Reply, Request};
use stateright::{Model, Property};

use crate::bug::Bug;
use crate::call::{advance, in_doubt, Advanced, Call, What};
use crate::check;
use crate::client::Around;
use crate::failover::{server_time, true_time};
use crate::state::{Doing, Event, Setup, State, CLIENTS, EVENTS, START, UNCERTAINTY_NS};

/// A run that takes more time than this is a livelock: no model needs as much.
const TIME_MAX: ServerTime = ServerTime(START.0 + 600 * NS);

/// One thing that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client does its next word operation, message or decision.
    Step(usize),
    /// A waiter gives up.
    Cancel(usize),
    /// The outcome or reply that a client waits for is lost. `true`: its chain has taken effect as
    /// a whole; `false`: as far as it had come.
    Lose(usize, bool),
    /// A client dies.
    Die(usize),
    /// The arbiter begins to serve a client's oldest request.
    Serve(usize),
    /// The arbiter begins to serve a request a second time, because the request has arrived twice.
    Repeat(usize),
    /// A client is fenced, and the arbiter begins to undo what it held.
    Forget(usize),
    /// The arbiter begins a look at the lock, because a time that it asked for has come.
    Tick,
    /// The arbiter's next word operation.
    Arbiter,
    /// Time passes to the next moment that matters, although a client could go on: all clients are
    /// paused.
    Pause,
    /// The primary dies.
    Fail,
    /// A client comes to the successor, and claims what it has. `true`: before its operation hears
    /// that the session with the predecessor has ended.
    Move(usize, bool),
    /// A client tells the successor that it has made all claims.
    Say(usize),
    /// Time passes, because no other action is possible.
    Wait,
}

impl Action {
    /// Whether a fair run takes this action in the end if it stays possible. The other actions are
    /// accidents, which need not happen.
    pub fn is_fair(self) -> bool {
        use Action::{Cancel, Die, Fail, Lose, Pause, Repeat};
        !matches!(self, Cancel(_) | Lose(..) | Die(_) | Repeat(_) | Pause | Fail)
    }
}

/// A [`Setup`] as a model, with the events that were seen while it was explored.
#[derive(Debug)]
pub struct LockModel {
    /// What is explored.
    pub setup: Setup,
    seen: AtomicU32,
}

impl LockModel {
    /// The model of a setup.
    pub fn new(setup: Setup) -> Self {
        Self { setup, seen: AtomicU32::new(0) }
    }

    fn note(&self, event: Event) {
        self.seen.fetch_or(1 << event as u32, Ordering::Relaxed);
    }

    /// Whether an event was seen.
    pub fn has_seen(&self, event: Event) -> bool {
        const { assert!(EVENTS <= u32::BITS) };
        self.seen.load(Ordering::Relaxed) & 1 << event as u32 != 0
    }

    fn around<R>(&self, f: impl FnOnce(&Around<'_>) -> R) -> R {
        f(&Around { setup: &self.setup, seen: &|event| self.note(event) })
    }

    fn may_die(&self, state: &State, i: usize) -> bool {
        let nobody_died = !state.clients.iter().any(|c| c.gone);
        self.setup.mortal == Some(i) && nobody_died && !state.finished(i, &self.setup)
    }

    /// The next moment at which a client or the arbiter may decide differently because time has
    /// passed.
    fn next_moment(&self, state: &State) -> Option<ServerTime> {
        let mut moments: Vec<ServerTime> = self.due(state).into_iter().collect();
        for c in state.clients.iter().filter(|c| c.entry.refs() > 0) {
            if self.setup.lock_type != LockType::Rw && c.entry.deadline() != Deadline::NEVER {
                let expiry = true_time(c.entry.deadline().expiry(), c.epoch);
                moments.push(expiry);
                // Clients judge expired atomic locks by their own clocks: so also the moment before
                // which only a wrong clock takes the hold for over, and the one from which on every
                // clock does.
                if self.setup.lock_type == LockType::Atomic {
                    let early = ServerTime(expiry.0.saturating_sub(UNCERTAINTY_NS));
                    moments.extend([early, expiry.plus_ns(2 * UNCERTAINTY_NS)]);
                }
            }
        }
        moments.into_iter().filter(|&at| at > state.now).min()
    }

    fn somebody_runs(&self, state: &State) -> bool {
        (0..CLIENTS).any(|i| {
            state.can_step(i, &self.setup)
                || self.may_die(state, i)
                || state.can_cancel(i, &self.setup)
                || state.can_lose(i, &self.setup)
        })
    }

    fn arbiter_at(&self, state: &State) -> ServerTime {
        match self.setup.bug {
            Some(Bug::ArbiterAhead) => state.now.plus_ns(100 * NS),
            _ => server_time(state.now, state.served),
        }
    }

    /// The true time up to which the arbiter's timers have expired by its own clock.
    fn tick_until(&self, state: &State) -> ServerTime {
        true_time(self.arbiter_at(state), state.served)
    }

    fn call(&self, state: &mut State, what: What) {
        state.call = Some(Call { what, at: self.arbiter_at(state), values: Vec::new() });
        self.run_alone(state);
    }

    /// Executes word operations of the arbiter's call, up to one before which the order of other
    /// clients' operations matters.
    fn run_alone(&self, state: &mut State) {
        let whole = self.setup.by_primary || !self.somebody_runs(state);
        loop {
            match advance(state, &self.setup, whole, |event| self.note(event)) {
                Some(Advanced::Done(out)) => return self.deliver(state, out),
                // only this client writes the entry, and it cannot do so before the call is over
                Some(Advanced::BeforeLedger(i))
                    if !state.can_step(i, &self.setup) && !state.can_lose(i, &self.setup) => {}
                _ => return,
            }
        }
    }

    fn deliver(&self, state: &mut State, out: Vec<Sent>) {
        let rw = self.setup.lock_type == LockType::Rw;
        if rw && state.arbiter.next_need().is_some() {
            self.note(Event::RecountPutOff);
        }
        for sent in out {
            let i = sent.client.get() as usize - 1;
            self.delivered(state, i, &sent);
            let c = &mut state.clients[i];
            let waits = matches!(&c.doing, Doing::Await { seq, .. } if *seq == sent.seq);
            if waits && !c.gone {
                c.inbox.push_back((sent.seq, sent.reply));
                self.around(|around| state.settle(i, around));
            }
        }
    }

    /// Records the events that an answer shows, and checks that a granted ticket passes over no
    /// waiter.
    fn delivered(&self, state: &mut State, i: usize, sent: &Sent) {
        let Reply::Granted { ticket, .. } = sent.reply else { return };
        let expired = state.clients.iter().enumerate().any(|(j, c)| {
            j != i && !c.gone && c.entry.state() == EntryState::ExclusiveLocked && c.holds.is_some()
        });
        if expired {
            self.note(Event::Expired);
        }
        let Doing::Await { request: Request::Wait { mode, .. }, seq, .. } = state.clients[i].doing
        else {
            return;
        };
        if seq == sent.seq {
            self.note(Event::GrantAfterWait);
        }
        if let Some(ticket) = ticket {
            check::overtakes(state, i, mode, ticket);
        }
    }

    fn forget(&self, state: &mut State, i: usize) {
        if state.recovers() {
            return self.around(|around| state.fenced(i, around));
        }
        let c = &mut state.clients[i];
        c.known = false;
        c.sent.clear();
        if self.setup.bug != Some(Bug::ForgottenBeforeFenced) {
            c.doing = Doing::Nothing; // no chain or request of the client is on its way any more
        }
        if self.setup.lock_type == LockType::Rw && in_doubt(state.ledgers[i]) {
            self.note(Event::Suspect);
        }
        self.call(state, What::Forget(i));
    }

    /// When the arbiter wants to be called. Its further looks, in case a wake-up is lost, are left
    /// out: no client may depend on them.
    fn due(&self, state: &State) -> Option<ServerTime> {
        let told = self.setup.bug != Some(Bug::TimersLost);
        let needs = state.arbiter.next_need().map(|at| true_time(at, state.served));
        needs.or(state.recovery_due()).filter(|_| told)
    }

    /// The actions that are possible before time has to pass.
    fn busy(&self, state: &State, actions: &mut Vec<Action>) {
        for i in 0..CLIENTS {
            let c = &state.clients[i];
            if state.can_step(i, &self.setup) {
                actions.push(Action::Step(i));
            }
            if state.can_cancel(i, &self.setup) {
                actions.push(Action::Cancel(i));
            }
            if state.can_lose(i, &self.setup) {
                actions.push(Action::Lose(i, false));
                if matches!(c.doing, Doing::Chain { .. }) {
                    actions.push(Action::Lose(i, true));
                }
            }
            if self.may_die(state, i) {
                actions.push(Action::Die(i));
            }
            if state.call.is_some() {
                continue;
            }
            if c.known && !c.sent.is_empty() {
                actions.push(Action::Serve(i));
                if state.repeats > 0 {
                    actions.push(Action::Repeat(i));
                }
            }
            if state.can_forget(i) {
                actions.push(Action::Forget(i));
            }
            if state.can_move(i) {
                actions.push(Action::Move(i, false));
            }
            if state.can_move_late(i) {
                actions.push(Action::Move(i, true));
            }
            if state.can_say(i) {
                actions.push(Action::Say(i));
            }
        }
        if state.can_fail(&self.setup) {
            actions.push(Action::Fail);
        }
        if state.call.is_some() {
            actions.push(Action::Arbiter);
        } else if self.due(state).is_some_and(|at| at <= self.tick_until(state)) {
            actions.push(Action::Tick);
        }
    }
}

impl Model for LockModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.setup.enter();
        let mut state = State::new(&self.setup);
        for i in 0..CLIENTS {
            self.around(|around| state.settle(i, around));
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.setup.enter();
        if state.violation.is_some() {
            return;
        }
        self.busy(state, actions);
        let moment = self.next_moment(state).is_some();
        if actions.iter().any(|a| a.is_fair()) {
            if moment && state.pauses > 0 {
                actions.push(Action::Pause);
            }
        } else if self.due(state).is_some() {
            actions.push(Action::Wait);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.setup.enter();
        let mut state = last.clone();
        match action {
            Action::Step(i) => self.around(|around| state.step(i, around)),
            Action::Cancel(i) => self.around(|around| state.cancel(i, around)),
            Action::Lose(i, all) => self.around(|around| state.lose(i, all, around)),
            Action::Die(i) => self.around(|around| state.die(i, around)),
            Action::Serve(i) => {
                let (seq, request) = state.clients[i].sent.pop_front()?;
                self.call(&mut state, What::Request(i, seq, request));
            }
            Action::Repeat(i) => {
                let (seq, request) = *state.clients[i].sent.front()?;
                state.repeats -= 1;
                self.call(&mut state, What::Request(i, seq, request));
            }
            Action::Forget(i) => self.forget(&mut state, i),
            Action::Fail => state.fail(),
            Action::Move(i, late) => self.around(|around| state.moves(i, late, around)),
            Action::Say(i) => self.around(|around| state.says(i, around)),
            Action::Tick if state.recovers() => {
                self.around(|around| state.recovery_time_passes(around));
            }
            Action::Tick => self.call(&mut state, What::Tick),
            Action::Arbiter => self.run_alone(&mut state),
            Action::Pause | Action::Wait => {
                let mut next = self.next_moment(&state)?;
                if action == Action::Pause {
                    state.pauses -= 1;
                    // the arbiter may look often for a while, and a pause is to last longer than
                    // that
                    if next.0 - state.now.0 < NS / 100 {
                        next = state.now.plus_ns(FAIR_GRACE.ns());
                    }
                }
                state.now = next;
                if state.now > TIME_MAX {
                    state.violate("no end in sight: time passes and nobody gets on");
                }
            }
        }
        check::step(&mut state, &self.setup);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut list = vec![
            Property::always("nothing goes wrong", |_, s: &State| s.violation.is_none()),
            Property::always("exclusion", |_, s: &State| !check::two_hold(s)),
            Property::always("who waits is seen", |m: &LockModel, s: &State| {
                check::waiters_are_seen(s, &m.setup)
            }),
            Property::always("nobody is left behind", |m: &LockModel, s: &State| {
                !check::is_dead_end(m, s)
            }),
        ];
        list.extend(self.setup.sometimes.iter().map(|&event| sometimes(event)));
        list
    }
}

/// The property that an event is seen. Stateright takes only plain functions, so there is one
/// function for each event.
fn sometimes(event: Event) -> Property<LockModel> {
    macro_rules! properties {
        ($($name:ident),* $(,)?) => {
            match event {
                $(Event::$name => Property::sometimes(stringify!($name), |m: &LockModel, _| {
                    m.has_seen(Event::$name)
                }),)*
            }
        };
    }
    properties!(
        SharedTogether,
        GrantAfterWait,
        DiedHolding,
        DiedInChain,
        TakenOver,
        Stolen,
        LateRelease,
        Expired,
        Suspect,
        Recounted,
        RecountPutOff,
        SteppedBack,
        Woken,
        TicketSkipped,
        GrantCrossedCancel,
        Cancelled,
        Resolved,
        TicketByArbiter,
        ArbiterRaced,
        SawTurn,
        ReleaseRaced,
        LapBegun,
        Parked,
        CutInChain,
        GrantLost,
        LeftBehind,
        HoldClaimed,
        PlaceServed,
        GivenUp,
        DiedInRecovery,
    )
}
