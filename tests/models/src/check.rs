// SPDX-License-Identifier: MIT OR Apache-2.0
//! The properties that every state and every step must have.

use dlock_core::memory::words::{AtomicWord, RwWord, TakenWord, Ticket, TurnWord};
use dlock_core::wire::message::{LockType, Mode, Request};
use stateright::Model;

use crate::actions::LockModel;
use crate::call::{Call, What};
use crate::state::{Doing, Setup, State, CLIENTS};

/// Whether two clients believe to hold the lock, and one of them exclusively.
pub(crate) fn two_hold(state: &State) -> bool {
    let live = |i: usize| match state.clients[i].holds {
        Some((mode, until)) if until > state.now => Some(mode),
        _ => None,
    };
    (0..CLIENTS).any(|i| {
        (0..i).any(|j| match (live(i), live(j)) {
            (Some(a), Some(b)) => a == Mode::Exclusive || b == Mode::Exclusive,
            _ => false,
        })
    })
}

/// Between two calls of the arbiter: if a client is queued, the waiters bit is set.
pub(crate) fn waiters_are_seen(state: &State, setup: &Setup) -> bool {
    let bit = match setup.lock_type {
        LockType::Atomic => AtomicWord::from_bits(state.word).waiters(),
        LockType::Rw => RwWord::from_bits(state.word).waiters(),
        LockType::Fair => return true,
    };
    state.call.is_some() || state.arbiter.waiters(state.slot) == 0 || bit
}

/// Checks a grant of a fair lock: it must not pass over a client that has waited at the arbiter
/// since before this ticket was taken, and whose mode excludes this one.
pub(crate) fn overtakes(state: &mut State, granted: usize, mode: Mode, ticket: Ticket) {
    let passed_over = (0..CLIENTS).any(|i| {
        let c = &state.clients[i];
        let Doing::Await { request, cancelled: false, seq, .. } = &c.doing else { return false };
        let Request::Wait { mode: theirs, ticket: Some(their), .. } = *request else {
            return false;
        };
        // a request that is being served does not count as queued: its answer may be a refusal
        let is_served = match &state.call {
            Some(Call { what: What::Request(who, s, _), .. }) => (who, s) == (&i, seq),
            _ => false,
        };
        let is_unserved = c.sent.iter().any(|(s, _)| s == seq) || is_served;
        let queued = !is_unserved && c.inbox.is_empty();
        let excludes = (theirs, mode) != (Mode::Shared, Mode::Shared);
        i != granted && !c.gone && queued && excludes && precedes(their, ticket)
    });
    if passed_over {
        state.violate("a waiter of a fair lock is passed over");
    }
}

/// Whether ticket `its` was taken before ticket `other`.
pub(crate) fn precedes(its: Ticket, other: Ticket) -> bool {
    (its.lap, its.order()) < (other.lap, other.order())
}

/// The words of the fair lock: the tickets taken, and the tickets done.
pub(crate) fn fair_words(state: &State) -> (TakenWord, TurnWord) {
    (TakenWord::from_bits(state.word), TurnWord::from_bits(state.turn))
}

/// Checks the words after every step.
pub(crate) fn step(state: &mut State, setup: &Setup) {
    if setup.lock_type == LockType::Fair {
        let (taken, turn) = fair_words(state);
        if turn.nx() > taken.mx() || turn.ns() > taken.ms() {
            state.violate("more tickets are done than were taken");
        }
    }
    if setup.lock_type == LockType::Rw {
        let w = RwWord::from_bits(state.word);
        if w.rcount() as usize > CLIENTS {
            state.violate("the count of readers is above the number of clients");
        }
    }
}

/// Whether no action is left that a fair run takes, not even later, although a client is not
/// finished or the word does not show the holders.
pub(crate) fn is_dead_end(model: &LockModel, state: &State) -> bool {
    if state.violation.is_some() {
        return false; // another property reports this
    }
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    if actions.iter().any(|a| a.is_fair()) {
        return false;
    }
    let unfinished =
        (0..CLIENTS).any(|i| !state.clients[i].gone && !state.finished(i, &model.setup));
    unfinished || !settled(state, &model.setup)
}

/// Whether the word shows the clients that hold the lock, at the end of a run.
fn settled(state: &State, setup: &Setup) -> bool {
    let live =
        |c: &&crate::state::Client| !c.gone && c.holds.is_some_and(|(_, until)| until > state.now);
    let holders = state.clients.iter().filter(live).count();
    match setup.lock_type {
        LockType::Atomic => {
            let word = AtomicWord::from_bits(state.word);
            let held = usize::from(word.client() != 0);
            // an expired hold stays in the word until a client wants the lock
            !word.waiters() && held >= holders
        }
        LockType::Rw => {
            let word = RwWord::from_bits(state.word);
            let held = usize::from(word.client() != 0) + word.rcount() as usize;
            !word.waiters() && held == holders
        }
        LockType::Fair => {
            let (taken, turn) = fair_words(state);
            let open = taken.mx() - turn.nx() + taken.ms() - turn.ns();
            // in a fair lock, an expired hold and a ticket without a claim also stay
            open as usize >= holders
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setups::small;
    use crate::state::{HANDLE, START};
    use dlock_core::clock::Lease;
    use dlock_core::clock::Now;
    use dlock_core::ids::Seq;
    use dlock_core::lock::{Begin, Op};
    use dlock_core::wire::message::WaitNumber;

    const X: Mode = Mode::Exclusive;
    const S: Mode = Mode::Shared;

    fn fair() -> State {
        let setup = small().into_iter().find(|s| s.lock_type == LockType::Fair).unwrap();
        State::new(&setup)
    }

    /// Client 1 is queued with one ticket, client 0 is granted another one.
    fn is_passed_over(theirs: (Mode, Ticket), granted: (Mode, Ticket)) -> bool {
        let mut state = fair();
        let (mode, ticket) = theirs;
        let op = Op::Lock { mode, lease: Lease::secs(9) };
        let begun = state.clients[1].entry.begin(op, Now::exact(START));
        assert!(matches!(begun, Begin::Run(..)));
        let (handle, wait, ticket) = (HANDLE, WaitNumber(1), Some(ticket));
        let request = Request::Wait { handle, mode, lease: Lease::secs(9), wait, ticket };
        let seq = Seq(1);
        state.clients[1].doing = Doing::Await { seq, request, cancelled: false };
        overtakes(&mut state, 0, granted.0, granted.1);
        state.violation.is_some()
    }

    #[test]
    fn who_is_granted_a_later_ticket_passes_an_earlier_one_over() {
        let ticket = |tx, ts| Ticket { lap: 0, tx, ts };
        assert!(is_passed_over((X, ticket(1, 0)), (X, ticket(2, 0))));
        assert!(is_passed_over((X, ticket(1, 0)), (S, ticket(2, 0))));
        assert!(is_passed_over((S, ticket(1, 4)), (X, ticket(1, 5))));
        let anew = Ticket { lap: 9, tx: 0, ts: 0 };
        assert!(is_passed_over((X, ticket(7, 0)), (X, anew)), "of the lap before");
        assert!(!is_passed_over((X, ticket(2, 0)), (X, ticket(1, 0))));
        assert!(!is_passed_over((S, ticket(1, 4)), (S, ticket(1, 5))), "readers share");
        assert!(!is_passed_over((X, ticket(2, 1)), (S, ticket(2, 0))), "it came before");
    }

    #[test]
    fn two_readers_may_hold_a_lock_and_a_writer_only_alone() {
        let mut state = fair();
        let later = state.now.plus_ns(1);
        state.clients[0].holds = Some((S, later));
        state.clients[1].holds = Some((S, later));
        assert!(!two_hold(&state));
        state.clients[2].holds = Some((X, later));
        assert!(two_hold(&state));
        state.now = later;
        assert!(!two_hold(&state), "the leases are over");
    }
}
