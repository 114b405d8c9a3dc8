// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lap rule: which exclusive number comes next where a lane nears its end.
//!
//! ```text
//!   mx ≥ DIVERT ─ no client can act on a number below RING ─▶ the lane starts again at 0
//!              └ else ─▶ the next number of the ring that no ledger names
//! ```
//! A client can act on a number, by a release that takes effect late or by a request, only while
//! its ledger names it, or says that it may have taken one (`Intent`), or until its request was
//! served; and one that was ended it may name once more, as long as that is remembered. So when no
//! ledger does, nothing is remembered, and no such number is open, all of them may be given out
//! again: by fetch-and-add, without anybody looking, up to the next time that the lane comes here.
//! A client that is stopped half-way keeps the lane in the ring for as long as it is stopped: then
//! every ticket costs a message, and nothing else.
//!
//! The word is read before the ledgers and changed only from that very word: a ticket that is taken
//! in between makes the arbiter look again, and one that is taken later has a new number.
//!
//! The shared lane starts again when no exclusive ticket is open, and comes round when one is open
//! for long. An exclusive number is left out then, so that no two shares of one exclusive lap have
//! both numbers in common: a share that was ended, and that its client's ledger names for
//! as long as that client is stopped, must not be taken for the client's next one. Where the
//! exclusive lane nears its end, only the arbiter serves shares, and it refuses such a second one.
//!
//! A queue is never longer than one round: the lane starts again only when the numbers of the ring
//! have not come round in it. And no number is left out, with others open, that a shared ticket
//! waits or waited for: it would seem to lie behind them (`FairWord::is_served`).

use super::super::{Ctx, LockState};
use super::{named, relay, FairState};
use crate::ids::ClientId;
use crate::lane;
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::words::{FairWord, LedgerState, Ticket};

/// Where the lanes go on, from one word.
pub(super) struct Place {
    /// The word to take the ticket from.
    pub(super) base: FairWord,
    /// Exclusive numbers that are left out, if the queue has to come there first.
    pub(super) gap: Option<(u16, u16)>,
}

/// What clients may still act on.
#[derive(Default)]
struct Names {
    tickets: Vec<(Mode, Ticket)>,
    /// Shared tickets of proxied clients: they act on nothing by their numbers, but where the
    /// numbers come to one of them, it seems to wait.
    shares: Vec<Ticket>,
    /// A shared ticket below the ring was given up and has not been skipped yet.
    may_be_skipped: bool,
    may_be_any: bool,
}

/// Where the next ticket is taken; `None` if there is no room. For `caller` nothing is on its way
/// but this request.
pub(super) fn place(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    caller: ClientId,
    mode: Mode,
    word: FairWord,
) -> Option<Place> {
    let mut place = Place { base: word, gap: None };
    if word.mx() >= lane::divert() {
        state.fair.drop_done(word);
        state.fair.records.remove(&caller); // of an earlier ticket
        let names = names(ctx, &mut state.fair, caller);
        let is_idle = word.open_exclusive() == 0;
        let next = match () {
            () if may_start_again(word, &names) => Some(0),
            // readers that come and go must not keep the lane where it cannot start again
            () if mode == Mode::Shared && is_idle && word.mx() < lane::ring() => {
                next_of_the_ring(word, &names).or(Some(word.mx()))
            }
            () if mode == Mode::Shared => Some(word.mx()),
            () => next_of_the_ring(word, &names),
        };
        let next = next?;
        if next != word.mx() {
            if next == 0 {
                relay::starts_again(ctx);
                state.fair.starts_again(word);
            }
            place.base.set_mx(next);
            match is_idle {
                true => place.base.set_nx(next),
                false => place.gap = Some((word.mx(), next)),
            }
        }
    }
    let base = &mut place.base;
    let is_idle = base.open_exclusive() == 0;
    // no exclusive ticket waits for the number of a share
    let starts_again = base.ms() >= lane::divert() && is_idle;
    if starts_again {
        let open = base.open_shared();
        base.set_ms(open);
        base.set_ns(0);
    }
    let comes_round = mode == Mode::Shared && base.ms() == lane::mask();
    let is_left_out = base.mx() < lane::divert() && !planted::is(Bug::SharesComeRound);
    if (starts_again || comes_round) && is_left_out {
        let (left_out, next) = (base.mx(), lane::plus(base.mx(), 1));
        base.set_mx(next);
        match is_idle {
            true => base.set_nx(next),
            false => place.gap = Some((left_out, next)),
        }
    }
    // of a word that nobody forged they are less than a lap together
    let left_out = |sum: u16, (&a, &b): (&u16, &u16)| sum.saturating_add(lane::distance(a, b));
    let left_out = state.fair.gaps.iter().fold(0, left_out);
    let is_full = word.open_exclusive().saturating_sub(left_out) >= lane::queue_max()
        || word.open_shared() >= lane::queue_max();
    (!is_full).then_some(place)
}

fn names(ctx: &mut Ctx<'_>, fair: &mut FairState, caller: ClientId) -> Names {
    let mut names = Names::default();
    for &(client, handle) in ctx.lock.refs {
        if ctx.is_proxied(client) {
            continue; // what it has is known without its ledger
        }
        let entry = ctx.ledger(client, handle);
        let is_intent = entry.state() == LedgerState::Intent;
        fair.told(client, entry);
        names.may_be_any |= is_intent && client != caller;
        let Some((mode, ticket)) = named(entry) else { continue };
        let is_given_up =
            matches!(entry.state(), LedgerState::GivenUpShared | LedgerState::GivenUpExclusive);
        let is_settled = client == caller || fair.settled.get(&client) == Some(&ticket);
        if !(is_given_up && is_settled) {
            names.tickets.push((mode, ticket));
        }
    }
    ctx.worked(fair.records.len());
    names.tickets.extend(fair.records.values().map(|r| (r.mode, r.ticket)));
    for (&client, ended) in &fair.revoked {
        // a proxied client acts on none; of the numbers of the ring it takes none by itself either
        let is_proxied = ctx.is_proxied(client);
        let counts = |t: &Ticket| !is_proxied || t.tx < lane::ring();
        let ended = ended.iter().map(|r| (r.mode, r.ticket));
        names.tickets.extend(ended.filter(|(_, ticket)| counts(ticket)));
    }
    let shares = fair.live.values().filter(|(mode, _)| *mode == Mode::Shared);
    names.shares.extend(shares.map(|(_, ticket)| *ticket));
    names.may_be_skipped = fair.shares_given_up.range(..lane::ring()).next().is_some();
    names
}

/// Whether going on at `next` would leave a number out that a share has, while others are open.
fn leaves_out_a_share(word: FairWord, names: &Names, next: u16) -> bool {
    let jump = lane::distance(word.mx(), next);
    let is_left_out = |tx: u16| (1..=jump).contains(&lane::distance(word.mx(), tx));
    let named = names.tickets.iter().filter(|(mode, _)| *mode == Mode::Shared).map(|(_, t)| t);
    word.open_exclusive() != 0 && named.chain(&names.shares).any(|t| is_left_out(t.tx))
}

fn may_start_again(word: FairWord, names: &Names) -> bool {
    let is_open_below_or_round =
        word.open_exclusive() != 0 && (word.nx() < lane::ring() || word.nx() > word.mx());
    let tickets = names.tickets.iter().map(|(_, ticket)| ticket);
    let is_named = tickets.chain(&names.shares).any(|t| t.tx < lane::ring());
    !is_open_below_or_round
        && !names.may_be_skipped
        && !leaves_out_a_share(word, names, 0)
        && (!is_named || planted::is(Bug::LapWithNames))
        && (!names.may_be_any || planted::is(Bug::LapWithIntents))
}

fn next_of_the_ring(word: FairWord, names: &Names) -> Option<u16> {
    let is_named = |n: u16| {
        names.tickets.iter().any(|&(mode, t)| match mode {
            Mode::Exclusive => t.tx == n,
            // one with the number that is next anyway was taken just now
            Mode::Shared => t.tx == n + 1 || t.tx == n && n != word.mx(),
        })
    };
    let is_idle = word.open_exclusive() == 0;
    let is_free = |n: u16| !word.is_open(n) && (is_idle || n + 1 != word.nx());
    let (first, end) = (lane::ring(), lane::ring_end());
    let start = word.mx().clamp(first, end);
    let mut all = (start..end).chain(first..start);
    all.find(|&n| is_free(n) && !is_named(n)).filter(|&n| !leaves_out_a_share(word, names, n))
}

impl FairState {
    /// Nothing that is remembered of earlier numbers may be taken for one of the new lap.
    fn starts_again(&mut self, word: FairWord) {
        self.drop_done(word);
        let done: Vec<u16> =
            self.given_up.keys().copied().filter(|&tx| !word.is_open(tx)).collect();
        for tx in done {
            if let Some(client) = self.given_up.remove(&tx) {
                self.skipped(client);
            }
        }
        self.crowd = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{FAIR_LANE_DIVERT as DIVERT, FAIR_LANE_MAX as RING};
    use Mode::{Exclusive, Shared};

    fn word(nx: u16, mx: u16) -> FairWord {
        FairWord::new().with_nx(nx).with_mx(mx)
    }

    fn names(all: &[(Mode, u16)]) -> Names {
        let tickets = all.iter().map(|&(mode, tx)| (mode, Ticket { tx, ts: 0 })).collect();
        Names { tickets, ..Names::default() }
    }

    #[test]
    fn a_lap_begins_if_no_number_below_the_ring_is_open_or_named() {
        for (nx, mx, may) in [
            (DIVERT, DIVERT, true),
            (DIVERT - 1, DIVERT, false),
            (RING - 1, RING, false),
            (RING, RING + 1, true),
            (RING + 3, RING + 4, true),
            (RING + 3, RING + 1, false), // they have come round
        ] {
            assert_eq!(may_start_again(word(nx, mx), &names(&[])), may, "{nx:x}..{mx:x}");
        }
        let idle = word(RING, RING);
        assert!(!may_start_again(idle, &names(&[(Exclusive, RING - 1)])));
        assert!(!may_start_again(idle, &names(&[(Shared, 0)])));
        assert!(may_start_again(idle, &names(&[(Exclusive, RING), (Shared, RING + 1)])));
        assert!(!may_start_again(idle, &Names { may_be_any: true, ..names(&[]) }));
    }

    /// A shared ticket `tx` is served while `nx` is `tx`, so the exclusive number before it must
    /// not be done once more; nor may `tx` itself, unless it is the next number anyway.
    #[test]
    fn the_next_number_of_the_ring_is_none_that_is_named() {
        let next = |word, all: &[(Mode, u16)]| next_of_the_ring(word, &names(all));
        let idle = word(RING + 3, RING + 3);
        assert_eq!(next(word(DIVERT, DIVERT), &[]), Some(RING));
        assert_eq!(next(idle, &[]), Some(RING + 3));
        assert_eq!(next(idle, &[(Exclusive, RING + 3)]), Some(RING + 4));
        assert_eq!(next(idle, &[(Exclusive, RING + 4)]), Some(RING + 3));
        assert_eq!(next(idle, &[(Shared, RING + 3)]), Some(RING + 3), "it was taken just now");
        assert_eq!(next(idle, &[(Shared, RING + 4)]), Some(RING + 5));
        assert_eq!(next(idle, &[(Exclusive, RING + 3), (Shared, RING + 9)]), Some(RING + 4));
        let last = u16::MAX;
        let rest: Vec<_> = (RING + 3..last).map(|n| (Exclusive, n)).collect();
        assert_eq!(next(idle, &rest), Some(RING), "round the ring");
    }

    /// With the number before the head taken, a full ring would look like an empty one.
    #[test]
    fn the_number_before_the_head_stays_free_while_the_queue_is_not_empty() {
        let next = |word, free: u16| {
            let others = (RING..u16::MAX).filter(|&n| n != free).map(|n| (Exclusive, n));
            next_of_the_ring(word, &names(&others.collect::<Vec<_>>()))
        };
        let (open, idle) = (word(RING + 5, RING + 8), word(RING + 8, RING + 8));
        assert_eq!(next(open, RING + 4), None);
        assert_eq!(next(open, RING + 3), Some(RING + 3));
        assert_eq!(next(open, RING + 6), None, "it is open");
        assert_eq!(next(idle, RING + 7), Some(RING + 7));
    }

    /// It would seem to lie behind them. One that is next anyway was taken behind them.
    #[test]
    fn a_share_is_left_out_up_to_the_number_at_which_others_go_on() {
        let word = word(RING + 5, RING + 8);
        for (tx, is_left_out) in [(8, false), (9, true), (10, true), (11, false), (5, false)] {
            let names = names(&[(Shared, RING + tx)]);
            assert_eq!(leaves_out_a_share(word, &names, RING + 10), is_left_out, "{tx}");
        }
    }

    /// However the word came to pass their numbers.
    #[test]
    fn what_was_given_up_and_is_done_counts_for_nobody_in_the_next_lap() {
        let (mut fair, client) = (FairState::default(), ClientId::new(7).unwrap());
        for tx in [5, RING + 1] {
            fair.give_up(client, Exclusive, Ticket { tx, ts: 0 });
        }
        let open = word(RING + 1, RING + 2);
        fair.starts_again(open);
        assert_eq!(fair.next_after_skipped(open, 2), Some(RING + 2), "it is open");
        fair.has_skipped(open, RING + 2);
        assert!(fair == FairState::default(), "{fair:?}");
    }

    /// Until then the exclusive numbers may come to its own once more.
    #[test]
    fn a_share_that_had_its_turn_keeps_it_until_the_lanes_have_started_again() {
        let (client, ticket) = (ClientId::new(7).unwrap(), Ticket { tx: 9, ts: 1 });
        let mut fair = FairState::default();
        fair.have_their_turn([(client, ticket)].into_iter());
        let ahead = word(5, DIVERT);
        fair.drop_done(ahead);
        assert!(fair.is_served(ahead, client, ticket));
        let again = word(5, DIVERT - 1);
        fair.drop_done(again);
        assert!(!fair.is_served(again, client, ticket));
    }
}
