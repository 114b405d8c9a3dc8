// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a client finds the successor of its primary: what the client does next, without I/O.
//!
//! ```text
//!            ┌──────── answered ────────┐
//!            ▼                          │ every quarter of the silence that the client tolerates
//!          Here ── Heartbeat ───────────┘
//!            │ broken, or silent for too long
//!            ▼
//!          Away ── Ask, one address after the other, with a pause that grows ◀── refused: the next
//!            │ it is there                                                    │
//!            ▼                                                                │
//!          Comes ── Reinit ───────────────────────────────────────────────────┘
//!            │ a successor that recovers          │ one that serves
//!            ▼                                    └─────────────────────┐
//!          Claims ── Claim, Done ─▶ Waits ─ Heartbeat ─ it serves ─▶ Confirms ─▶ Here
//!            └──────────────┴──── broken: Away ──────────────┘          ▲
//!          Away ── removed at one, refused at all others ─▶ Anew ───────┘
//! ```
//! A client that every primary has removed begins anew at the last of them, after
//! [`REMOVED_ROUNDS`] in which all of them say so; everything that it held is lost. If one primary
//! says so and others cannot be reached, one of those may still know the client: the client begins
//! anew only after [`UNREACHED_NS`]. A `Confirm` also undoes what an operation has left in doubt
//! ([`Failover::left_in_doubt`]), once the primary answers, even if the client has never left that
//! primary.
//!
//! The client first asks a primary whether it is there, with a short limit, because it may be
//! stopped. The limit for a primary that is there is long, because that primary may have many
//! clients to let in: a client that gives up too soon, and comes again, costs it the same work
//! twice. One [`Task`] is under way at a time: the executor reports its result, and asks for the
//! next. The executor has its own limits for tasks that can last; a late report counts like any
//! other.

use crate::clock::NS;
use crate::limits::CONTROL_WAIT_S;
use crate::planted::{self, Bug};
use crate::wire::control::ControlReply;
use crate::wire::status::Status;

/// How long a primary may be silent before it counts as away, by default.
pub const SILENCE_NS: u64 = 1_000_000_000;
/// How many heartbeats a client sends in that time.
pub const HEARTBEATS_PER_SILENCE: u64 = 4;
/// The shortest limit for a primary's answer to the question whether it is there. A client that
/// tolerates a longer silence has that as its limit.
pub const ASK_NS_MIN: u64 = 500_000_000;
/// The limit for each answer of a primary that is there while it lets a client in.
pub const ADMISSION_NS: u64 = CONTROL_WAIT_S * NS;
/// The first pause after all addresses have failed, and the longest.
pub const PAUSE_NS: (u64, u64) = (20_000_000, 500_000_000);
/// The first pause before the client asks a primary again that waits for its other clients; each
/// pause is twice the one before.
pub const WAITS_NS: u64 = 10_000_000;
/// How many rounds of confirming claims come before operations go on. The client confirms the rest
/// after later answers.
pub const CONFIRMS_MAX: u32 = 3;
/// How many rounds in which all addresses say that the client is removed come before it begins
/// anew.
pub const REMOVED_ROUNDS: u32 = 2;
/// How long a client that one primary has removed looks for other primaries before it begins anew:
/// as long as its calls wait for a primary.
pub const UNREACHED_NS: u64 = 60 * NS;
/// How many addresses of primaries a client may know.
pub const ADDRESSES_MAX: usize = 16;

/// The next task of the executor. Times are on the client's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Do nothing before `until_ns`, unless the connection breaks ([`Failover::broken`]).
    Wait {
        /// The end of the pause.
        until_ns: u64,
    },
    /// Send a heartbeat, and report [`Failover::heard`], or [`Failover::broken`]. From `until_ns`
    /// on, ask on a separate connection whether the primary is there; while it is, the answer to
    /// the heartbeat may take [`ADMISSION_NS`].
    Heartbeat {
        /// From when on the executor asks whether the primary is there.
        until_ns: u64,
    },
    /// Ask the primary at this address, on a separate connection, whether it is there. Report
    /// [`Failover::asked`].
    Ask {
        /// Index in the list of addresses.
        address: usize,
        /// The limit for the answer.
        wait_ns: u64,
    },
    /// Come back as the same client at this address. Each answer may take [`ADMISSION_NS`]. Report
    /// [`Failover::came`].
    Reinit {
        /// Index in the list of addresses.
        address: usize,
    },
    /// Give up everything that this client held, and become a new client of the primary at this
    /// address, with the same limits as for `Reinit`. Report [`Failover::came`].
    Anew {
        /// Index in the list of addresses.
        address: usize,
    },
    /// Claim all locks at the successor. Report [`Failover::claimed`].
    Claim,
    /// Say that all claims were sent. Report [`Failover::said`].
    Done,
    /// Get the locks again that the primary does not know, ask for the result of each claim, and
    /// undo what is in doubt. Report [`Failover::confirmed`].
    Confirm,
}

/// A primary's answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The primary serves.
    Serves,
    /// The primary recovers.
    Recovers,
    /// No answer in time, an answer to something else, or the connection is gone.
    Nothing,
}

impl Heard {
    /// The meaning of this answer.
    pub fn of(reply: &ControlReply) -> Self {
        match reply {
            ControlReply::Alive { recovering: false, .. } => Self::Serves,
            ControlReply::Alive { .. } | ControlReply::Error(Status::NotReady) => Self::Recovers,
            _ => Self::Nothing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Here,
    /// The client makes no attempt before this time.
    Away {
        from_ns: u64,
    },
    /// The primary is there; the client comes back to it.
    Comes,
    /// No primary knows the client any more; it begins anew.
    Anew,
    Claims,
    Says,
    /// The client waits until the successor serves.
    Waits,
    Confirms,
}

/// The failover of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    addresses: usize,
    /// The address where the client is, or which it tries next.
    at: usize,
    silence_ns: u64,
    stage: Stage,
    /// When the primary answered last, and when the client asks it next.
    heard_ns: u64,
    next_ns: u64,
    /// Attempts since the client left its primary, and rounds of confirming since it came to one.
    tries: u32,
    confirms: u32,
    /// How often the client came to a primary since a primary last answered a heartbeat.
    comes: u32,
    /// In this round: the last address that said that the client is removed, and the number of
    /// addresses that did.
    removed_at: Option<usize>,
    removed_by: usize,
    /// The number of successive rounds in which all addresses said that the client is removed; the
    /// ends of the first and the last round in which an address said so, with less than
    /// [`UNREACHED_NS`] between two such rounds.
    removed_rounds: u32,
    removed_ns: Option<(u64, u64)>,
    /// The next pause before the client asks the primary again, or repeats claims.
    waits_ns: u64,
    /// Whether an operation has left something in doubt; and whether a primary has answered since.
    is_unsettled: bool,
    settles: bool,
    random: u64,
}

impl Failover {
    /// A client that is at the first of `addresses` addresses, and tolerates a silence of
    /// `silence_ns`. `seed` makes the pauses of clients differ.
    pub fn new(now_ns: u64, addresses: usize, silence_ns: u64, seed: u64) -> Self {
        let mut failover = Self {
            addresses: addresses.clamp(1, ADDRESSES_MAX),
            at: 0,
            silence_ns: silence_ns.max(HEARTBEATS_PER_SILENCE),
            stage: Stage::Here,
            heard_ns: now_ns,
            next_ns: now_ns,
            tries: 0,
            confirms: 0,
            comes: 0,
            removed_at: None,
            removed_by: 0,
            removed_rounds: 0,
            removed_ns: None,
            waits_ns: WAITS_NS,
            is_unsettled: false,
            settles: false,
            random: seed | 1,
        };
        failover.is_heard(now_ns);
        failover
    }

    /// Whether operations have no primary to go to, so that they wait or are refused.
    pub fn is_away(&self) -> bool {
        !matches!(self.stage, Stage::Here)
    }

    /// The next task.
    pub fn next(&mut self, now_ns: u64) -> Task {
        match self.stage {
            Stage::Here if self.settles => Task::Confirm,
            Stage::Here | Stage::Waits if now_ns < self.next_ns => {
                Task::Wait { until_ns: self.next_ns }
            }
            Stage::Here | Stage::Waits => {
                // The client itself may have been stopped: it asks before it leaves the primary.
                let quarter_ns = self.silence_ns / HEARTBEATS_PER_SILENCE;
                let until_ns = self.heard_ns.saturating_add(self.silence_ns);
                Task::Heartbeat { until_ns: until_ns.max(now_ns.saturating_add(quarter_ns)) }
            }
            Stage::Away { from_ns } if now_ns < from_ns => Task::Wait { until_ns: from_ns },
            Stage::Away { .. } => {
                Task::Ask { address: self.at, wait_ns: self.silence_ns.max(ASK_NS_MIN) }
            }
            Stage::Comes => Task::Reinit { address: self.at },
            Stage::Anew => Task::Anew { address: self.at },
            Stage::Claims if now_ns < self.next_ns => Task::Wait { until_ns: self.next_ns },
            Stage::Claims => Task::Claim,
            Stage::Says => Task::Done,
            Stage::Confirms => Task::Confirm,
        }
    }

    /// Handles that the connection to the primary is gone. A client that a primary lets in and cuts
    /// off again and again pauses ever longer before it comes back.
    pub fn broken(&mut self, now_ns: u64) {
        if !self.is_looking() {
            let pause_ns = if self.comes > 1 { self.pause(self.relapses()) } else { 0 };
            self.stage = Stage::Away { from_ns: now_ns.saturating_add(pause_ns) };
        }
    }

    /// How often the client came to a primary without an answered heartbeat, less the first time.
    fn relapses(&self) -> u32 {
        self.comes.saturating_sub(1)
    }

    /// Whether the client is at no primary yet.
    fn is_looking(&self) -> bool {
        matches!(self.stage, Stage::Away { .. } | Stage::Comes | Stage::Anew)
    }

    /// Handles the answer to [`Task::Ask`].
    pub fn asked(&mut self, now_ns: u64, heard: Heard) {
        match (self.stage, heard) {
            (Stage::Away { .. }, Heard::Nothing) => self.tries_elsewhere(now_ns),
            (Stage::Away { .. }, Heard::Serves | Heard::Recovers) => self.stage = Stage::Comes,
            _ => {}
        }
    }

    /// Handles that an operation has failed: the client asks the primary at once.
    pub fn doubted(&mut self, now_ns: u64) {
        if self.stage == Stage::Here {
            self.next_ns = now_ns;
        }
    }

    /// Records that an operation has left something in doubt: a release that no primary has
    /// received, a lost answer, or a hold that was reported lost. The program may never operate on
    /// that lock again, so the client asks a primary at once.
    pub fn left_in_doubt(&mut self, now_ns: u64) {
        self.is_unsettled = !planted::is(Bug::UnheardUnsettled);
        self.doubted(now_ns);
    }

    /// Handles the result of a heartbeat; [`Heard::Nothing`]: the primary does not answer.
    pub fn heard(&mut self, now_ns: u64, heard: Heard) {
        match (self.stage, heard) {
            (Stage::Here | Stage::Waits, Heard::Nothing) => {
                self.tries_elsewhere(now_ns);
            }
            (Stage::Here, Heard::Serves | Heard::Recovers) => {
                self.is_heard(now_ns);
                self.comes = 0;
                self.settles = self.is_unsettled && heard == Heard::Serves;
            }
            (Stage::Waits, Heard::Recovers) => {
                self.heard_ns = now_ns;
                self.next_ns = now_ns.saturating_add(self.pauses());
            }
            (Stage::Waits, Heard::Serves) => {
                self.is_heard(now_ns);
                self.stage = Stage::Confirms;
            }
            _ => {}
        }
    }

    /// Handles the end of an attempt to come back. `Ok`: whether that primary recovers.
    pub fn came(&mut self, now_ns: u64, result: Result<bool, Status>) {
        if !self.is_looking() {
            return;
        }
        match result {
            Ok(recovers) => {
                self.is_heard(now_ns);
                // If this primary is lost again, the client begins with short pauses: another
                // primary may be as near.
                (self.tries, self.confirms, self.waits_ns) = (0, 0, WAITS_NS);
                self.comes = self.comes.saturating_add(1);
                self.next_ns = now_ns;
                (self.removed_at, self.removed_by) = (None, 0);
                (self.removed_rounds, self.removed_ns) = (0, None);
                self.stage = match recovers {
                    true if planted::is(Bug::FailoverUntold) => Stage::Says,
                    true => Stage::Claims,
                    false => Stage::Confirms,
                };
            }
            Err(_) if self.stage == Stage::Anew => {
                // A failure to begin anew counts like the last failure of a round.
                let addresses = self.addresses as u32;
                self.at = self.addresses - 1;
                self.tries = (self.tries / addresses).saturating_mul(addresses) + addresses - 1;
                self.tries_elsewhere(now_ns);
            }
            Err(status) => {
                let is_removed = status == Status::ClientRemoved;
                self.removed_at = is_removed.then_some(self.at).or(self.removed_at);
                self.removed_by += usize::from(is_removed);
                self.tries_elsewhere(now_ns);
            }
        }
    }

    /// Handles the result of [`Task::Claim`]. `Again`: claims are left.
    pub fn claimed(&mut self, now_ns: u64, status: Status) {
        if self.stage != Stage::Claims {
            return;
        }
        match status {
            // `Error`: the recovery ended before the client learned of it.
            Status::Success | Status::Error => self.stage = Stage::Says,
            Status::Again => {
                self.heard_ns = now_ns;
                self.next_ns = now_ns.saturating_add(self.pauses());
            }
            _ => self.tries_elsewhere(now_ns),
        }
    }

    /// The pause before the client asks the recovering primary again: twice the last one.
    fn pauses(&mut self) -> u64 {
        let longest_ns = self.silence_ns / HEARTBEATS_PER_SILENCE;
        let pause_ns = self.waits_ns;
        self.waits_ns = pause_ns.saturating_mul(2).min(longest_ns);
        pause_ns
    }

    /// Handles the result of [`Task::Done`].
    pub fn said(&mut self, now_ns: u64, status: Status) {
        if self.stage != Stage::Says {
            return;
        }
        match status {
            Status::Success | Status::Error => {
                (self.stage, self.next_ns) = (Stage::Waits, now_ns);
                self.heard_ns = now_ns;
            }
            _ => self.tries_elsewhere(now_ns),
        }
    }

    /// Handles the result of [`Task::Confirm`]; `false`: the primary has not answered everything.
    pub fn confirmed(&mut self, now_ns: u64, is_all: bool) {
        if !matches!(self.stage, Stage::Confirms | Stage::Here) {
            return;
        }
        self.settles = false;
        // if this was not all, the client confirms again after the next answer
        self.is_unsettled &= !is_all;
        if self.stage == Stage::Here {
            return;
        }
        self.confirms += 1;
        match is_all || self.confirms >= CONFIRMS_MAX {
            true => {
                self.is_unsettled = !is_all && !planted::is(Bug::UnheardUnsettled);
                (self.stage, self.tries) = (Stage::Here, 0);
                self.is_heard(now_ns);
            }
            false => (self.stage, self.next_ns) = (Stage::Waits, now_ns),
        }
    }

    fn is_heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.next_ns = now_ns.saturating_add(self.silence_ns / HEARTBEATS_PER_SILENCE);
    }

    /// Goes to the next address; after the last address with a random pause, which grows up to a
    /// limit.
    fn tries_elsewhere(&mut self, now_ns: u64) {
        self.tries = self.tries.saturating_add(1);
        self.at = (self.at + 1) % self.addresses;
        let rounds = (self.tries / self.addresses as u32).saturating_add(self.relapses());
        let pause_ns = match self.tries % self.addresses as u32 {
            0 => self.pause(rounds),
            _ => 0,
        };
        if self.tries % self.addresses as u32 == 0 {
            if let Some(at) = self.is_given_up(now_ns) {
                (self.at, self.stage) = (at, Stage::Anew);
                return;
            }
        }
        let stays = planted::is(Bug::FailoverStays);
        let from_ns = if stays { u64::MAX } else { now_ns.saturating_add(pause_ns) };
        self.stage = Stage::Away { from_ns };
    }

    /// The pause after this number of rounds.
    fn pause(&mut self, rounds: u32) -> u64 {
        let longest_ns = PAUSE_NS.0.saturating_mul(1 << rounds.min(16)).min(PAUSE_NS.1);
        longest_ns / 2 + self.draw() % (longest_ns / 2)
    }

    /// At the end of a round: the address at which the client may begin anew because no primary
    /// knows it any more; `None`: not yet.
    fn is_given_up(&mut self, now_ns: u64) -> Option<usize> {
        let is_by_all = std::mem::take(&mut self.removed_by) == self.addresses;
        self.removed_rounds = if is_by_all { self.removed_rounds + 1 } else { 0 };
        // A primary that is slow, or stood still, may be silent for some rounds, again and again.
        let recent =
            self.removed_ns.filter(|(_, last)| now_ns.saturating_sub(*last) < UNREACHED_NS);
        self.removed_ns = recent;
        let at = self.removed_at.take()?;
        let since_ns = recent.map_or(now_ns, |(first, _)| first);
        self.removed_ns = Some((since_ns, now_ns));
        let is_over = self.removed_rounds >= REMOVED_ROUNDS
            || now_ns.saturating_sub(since_ns) >= UNREACHED_NS;
        if !is_over {
            return None;
        }
        (self.removed_rounds, self.removed_ns) = (0, None);
        Some(at)
    }

    /// xorshift64
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at_two() -> Failover {
        Failover::new(0, 2, SILENCE_NS, 7)
    }

    /// Answers the next question of the client: the primary at that address is there.
    fn comes(f: &mut Failover, now: u64) -> Task {
        let Task::Ask { address, .. } = f.next(now) else { panic!("{f:?}") };
        f.asked(now, Heard::Recovers);
        assert_eq!(f.next(now), Task::Reinit { address });
        Task::Reinit { address }
    }

    #[test]
    fn a_primary_that_answers_is_asked_four_times_in_the_silence_that_is_borne() {
        let mut f = at_two();
        let mut now = 0;
        for _ in 0..40 {
            let Task::Wait { until_ns } = f.next(now) else { panic!("{f:?}") };
            assert_eq!(until_ns - now, SILENCE_NS / HEARTBEATS_PER_SILENCE);
            now = until_ns;
            let Task::Heartbeat { until_ns } = f.next(now) else { panic!("{f:?}") };
            assert!(until_ns > now);
            f.heard(now, Heard::Serves);
            assert!(!f.is_away());
        }
    }

    #[test]
    fn a_silent_primary_is_left_within_the_silence_that_is_borne() {
        let mut f = at_two();
        let Task::Wait { until_ns } = f.next(0) else { panic!() };
        let Task::Heartbeat { until_ns } = f.next(until_ns) else { panic!() };
        assert_eq!(until_ns, SILENCE_NS, "counted from when it was heard last");
        f.heard(until_ns, Heard::Nothing);
        assert!(f.is_away());
        let wait_ns = SILENCE_NS;
        let first = Task::Ask { address: 0, wait_ns };
        assert_eq!(f.next(until_ns), Task::Ask { address: 1, wait_ns }, "at once");
        f.came(until_ns, Err(Status::NotReady));
        let Task::Wait { until_ns } = f.next(until_ns) else { panic!("{f:?}") };
        assert_eq!(f.next(until_ns), first, "it may have stood still");
        let mut hasty = Failover::new(0, 2, 1, 7);
        hasty.broken(0);
        assert_eq!(hasty.next(0), Task::Ask { address: 0, wait_ns: ASK_NS_MIN });
    }

    #[test]
    fn a_successor_that_recovers_is_told_everything_and_asked_for_it_again() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Err(Status::Error));
        assert_eq!(comes(&mut f, 6), Task::Reinit { address: 1 });
        f.came(7, Ok(true));
        assert_eq!(f.next(7), Task::Claim);
        let (mut now, mut pauses) = (8, Vec::new());
        for _ in 0..12 {
            f.claimed(now, Status::Again);
            let Task::Wait { until_ns } = f.next(now) else { panic!("{f:?}") };
            pauses.push(until_ns - now);
            now = until_ns;
            assert_eq!(f.next(now), Task::Claim);
        }
        let longest_ns = SILENCE_NS / HEARTBEATS_PER_SILENCE;
        assert!(pauses.is_sorted() && pauses[0] == WAITS_NS, "{pauses:?}");
        assert_eq!(pauses.last(), Some(&longest_ns));
        let (mut f, now) = (at_two(), 9);
        f.broken(5);
        f.came(7, Ok(true));
        f.claimed(now, Status::Success);
        assert_eq!(f.next(9), Task::Done);
        f.said(10, Status::Success);
        for now in [10, 10 + SILENCE_NS / 2] {
            assert!(matches!(f.next(now), Task::Heartbeat { .. }), "{f:?}");
            f.heard(now, Heard::Recovers);
        }
        let now = 2 * SILENCE_NS;
        assert!(matches!(f.next(now), Task::Heartbeat { .. }));
        f.heard(now, Heard::Serves);
        assert!(f.is_away(), "what was claimed is not known yet");
        assert_eq!(f.next(now), Task::Confirm);
        f.confirmed(now, false);
        assert!(matches!(f.next(now), Task::Heartbeat { .. }));
        f.heard(now, Heard::Serves);
        f.confirmed(now, true);
        assert!(!f.is_away());
    }

    /// The client is still with its primary, which was silent for a while.
    #[test]
    fn what_was_left_in_doubt_is_undone_once_the_primary_answers() {
        let mut f = at_two();
        f.left_in_doubt(5);
        assert!(matches!(f.next(5), Task::Heartbeat { .. }), "at once");
        f.heard(6, Heard::Recovers);
        assert!(matches!(f.next(6), Task::Wait { .. }), "it answers nothing else");
        for (now, is_all) in [(2 * SILENCE_NS, false), (3 * SILENCE_NS, true)] {
            assert!(matches!(f.next(now), Task::Heartbeat { .. }));
            f.heard(now, Heard::Serves);
            assert!(!f.is_away(), "operations go on");
            assert_eq!(f.next(now), Task::Confirm);
            f.confirmed(now, is_all);
            assert!(matches!(f.next(now), Task::Wait { .. }));
        }
        let now = 4 * SILENCE_NS;
        f.heard(now, Heard::Serves);
        assert!(matches!(f.next(now), Task::Wait { .. }), "nothing is left");
        // the client has come back to a primary by another way
        f.left_in_doubt(now);
        f.broken(now);
        f.came(now, Ok(false));
        f.confirmed(now, true);
        f.heard(now, Heard::Serves);
        assert!(matches!(f.next(now), Task::Wait { .. }));
    }

    #[test]
    fn the_same_primary_is_gone_on_with() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Ok(false));
        assert_eq!(f.next(6), Task::Confirm, "locks that were not claimed in time are got again");
        f.confirmed(7, true);
        assert!(!f.is_away());
    }

    #[test]
    fn a_client_that_is_refused_asks_the_others_and_comes_again() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Err(Status::ClientRemoved));
        assert_eq!(comes(&mut f, 6), Task::Reinit { address: 1 }, "who is there may know it");
        f.came(7, Err(Status::NotReady));
        let Task::Wait { until_ns } = f.next(7) else { panic!("{f:?}") };
        assert_eq!(comes(&mut f, until_ns), Task::Reinit { address: 0 });
    }

    #[test]
    fn a_client_that_no_primary_knows_begins_anew_where_one_serves() {
        let mut f = at_two();
        f.broken(5);
        let mut now = 6;
        for round in 1..=REMOVED_ROUNDS {
            for (address, status) in [(0, Status::ClientRemoved), (1, Status::ClientRemoved)] {
                if let Task::Wait { until_ns } = f.next(now) {
                    now = until_ns;
                }
                assert_eq!(comes(&mut f, now), Task::Reinit { address }, "{round}");
                f.came(now, Err(status));
            }
        }
        assert!(f.is_away());
        assert_eq!(f.next(now), Task::Anew { address: 1 });
        f.broken(now);
        assert_eq!(f.next(now), Task::Anew { address: 1 }, "a report that comes late");
        // that primary recovers by now, and admits no new clients
        let mut refused = f.clone();
        refused.came(now, Err(Status::NotReady));
        let Task::Wait { until_ns } = refused.next(now) else { panic!("{refused:?}") };
        let Task::Reinit { address } = comes(&mut refused, until_ns) else { panic!() };
        refused.came(until_ns, Ok(true));
        assert_eq!((address, refused.next(until_ns)), (0, Task::Claim), "it is known after all");
        f.came(now, Ok(false));
        assert_eq!(f.next(now), Task::Confirm, "its locks are got again");
        f.confirmed(now, true);
        assert!(!f.is_away());
    }

    /// A primary that cannot be reached at present may still know the client.
    #[test]
    fn a_client_is_not_given_up_for_a_round_in_which_nobody_removes_it() {
        let mut f = at_two();
        f.broken(5);
        for _ in 0..2 {
            for status in [Status::ClientRemoved, Status::NotReady] {
                f.came(6, Err(status));
            }
            assert!(!matches!(f.next(u64::MAX), Task::Anew { .. }), "{f:?}");
            // the primary knows the client after all, which then loses its connection again
            f.came(6, Ok(false));
            f.broken(6);
        }
        let mut f = at_two();
        f.broken(5);
        let mut now = 6;
        for round in 0..20 {
            for at in 0..2 {
                if let Task::Wait { until_ns } = f.next(now) {
                    now = until_ns;
                }
                comes(&mut f, now);
                let is_removed = at == 0 && round % 2 == 0;
                f.came(now, Err(if is_removed { Status::ClientRemoved } else { Status::NotReady }));
            }
        }
    }

    /// On a busy machine even a primary that has removed the client may answer slowly.
    #[test]
    fn a_client_is_given_up_although_no_primary_answers_in_many_rounds() {
        for silent_rounds in [1, 7] {
            let mut f = at_two();
            f.broken(5);
            let (mut now, mut first, mut asked) = (5, None, 0);
            loop {
                match f.next(now) {
                    Task::Wait { until_ns } => now = until_ns,
                    Task::Ask { address, wait_ns } => {
                        asked += u32::from(address == 1);
                        let answers = address == 1 && asked % (silent_rounds + 1) == 0;
                        now += if answers { 0 } else { wait_ns };
                        let heard = if answers { Heard::Serves } else { Heard::Nothing };
                        f.asked(now, heard);
                    }
                    Task::Reinit { address: 1 } => {
                        first.get_or_insert(now);
                        f.came(now, Err(Status::ClientRemoved));
                    }
                    other => {
                        assert_eq!(other, Task::Anew { address: 1 });
                        break;
                    }
                }
                assert!(now < 4 * UNREACHED_NS, "{silent_rounds}");
            }
            assert!(now - first.unwrap() >= UNREACHED_NS, "{silent_rounds}");
        }
        // long after a primary has said that the client is removed
        let mut f = at_two();
        f.broken(5);
        f.came(6, Err(Status::ClientRemoved));
        f.came(6, Err(Status::NotReady));
        let mut late = 6 + UNREACHED_NS;
        let not_ready = Status::NotReady;
        for status in [not_ready, not_ready, Status::ClientRemoved, not_ready] {
            if let Task::Wait { until_ns } = f.next(late) {
                late = until_ns;
            }
            comes(&mut f, late);
            f.came(late, Err(status));
        }
        assert!(!matches!(f.next(u64::MAX), Task::Anew { .. }), "{f:?}");
    }

    /// The primary that knows the client may just be starting again.
    #[test]
    fn a_client_that_only_strangers_have_removed_looks_for_the_others_for_a_minute() {
        let mut f = at_two();
        f.broken(5);
        let (mut now, mut first) = (5, None);
        loop {
            match f.next(now) {
                Task::Wait { until_ns } => now = until_ns,
                Task::Ask { address: 0, .. } => f.asked(now, Heard::Nothing),
                Task::Ask { .. } => f.asked(now, Heard::Serves),
                Task::Reinit { address } => {
                    assert_eq!(address, 1);
                    first.get_or_insert(now);
                    f.came(now, Err(Status::ClientRemoved));
                }
                other => {
                    assert_eq!(other, Task::Anew { address: 1 });
                    break;
                }
            }
        }
        let looked_ns = now - first.unwrap();
        assert!((UNREACHED_NS..UNREACHED_NS + NS).contains(&looked_ns), "{looked_ns}");
        // the count begins anew after a round without such an answer
        f.came(now, Ok(false));
        f.broken(now);
        f.came(now, Err(Status::NotReady));
        f.came(now, Err(Status::ClientRemoved));
        now += UNREACHED_NS;
        for _ in 0..2 {
            f.came(now, Err(Status::NotReady));
        }
        f.came(now, Err(Status::NotReady));
        f.came(now, Err(Status::ClientRemoved));
        assert!(!matches!(f.next(u64::MAX), Task::Anew { .. }), "{f:?}");
    }

    /// Cases that the other tests do not reach, as a mutation test has shown.
    #[test]
    fn claims_that_are_not_answered_are_not_said_to_be_all_and_questions_are_counted_anew() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Ok(true));
        f.claimed(7, Status::BadResponse);
        assert!(matches!(f.next(u64::MAX), Task::Ask { .. }), "{f:?}");
        for _ in 0..2 {
            f.broken(8);
            f.came(8, Ok(false));
            for _ in 1..CONFIRMS_MAX {
                assert_eq!(f.next(9), Task::Confirm);
                f.confirmed(9, false);
                f.heard(9, Heard::Serves);
            }
            assert!(f.is_away(), "{f:?}");
        }
        f.broken(10);
        f.came(10, Ok(true));
        f.claimed(10, Status::Success);
        f.said(5 * SILENCE_NS, Status::Success);
        let Task::Heartbeat { until_ns } = f.next(5 * SILENCE_NS) else { panic!("{f:?}") };
        assert_eq!(until_ns, 6 * SILENCE_NS, "it was heard when it took that");
    }

    #[test]
    fn rounds_in_which_all_have_removed_it_follow_each_other() {
        let mut f = at_two();
        f.broken(5);
        for second in [Status::ClientRemoved, Status::NotReady, Status::ClientRemoved] {
            f.came(6, Err(Status::ClientRemoved));
            f.came(6, Err(second));
            assert!(!matches!(f.next(u64::MAX), Task::Anew { .. }), "{f:?}");
            f.asked(6, Heard::Serves);
        }
        (0..2).for_each(|_| f.came(6, Err(Status::ClientRemoved)));
        assert!(matches!(f.next(6), Task::Anew { .. }), "{f:?}");
    }

    /// The next primary may be as quick to find as the first.
    #[test]
    fn after_a_primary_was_there_pauses_are_short_again() {
        let mut f = at_two();
        f.broken(5);
        (0..20).for_each(|_| f.came(6, Err(Status::NotReady)));
        f.came(6, Ok(true));
        f.broken(7);
        (0..2).for_each(|_| f.came(7, Err(Status::NotReady)));
        let Task::Wait { until_ns } = f.next(7) else { panic!("{f:?}") };
        assert!(until_ns <= 7 + 2 * PAUSE_NS.0, "{until_ns}");
    }

    /// A client that is admitted and cut off again and again, at any stage of the failover, comes
    /// back after ever longer pauses.
    #[test]
    fn a_client_that_is_let_in_and_cut_off_again_and_again_pauses_ever_longer() {
        for addresses in [1, 2] {
            for how in 0..4 {
                let mut f = Failover::new(0, addresses, SILENCE_NS, 7);
                f.broken(0);
                let (mut now, mut comes) = (0, 0);
                while now < 10 * SILENCE_NS {
                    match f.next(now) {
                        Task::Wait { until_ns } => now = until_ns,
                        Task::Ask { address: 1, .. } => f.asked(now, Heard::Nothing),
                        Task::Ask { .. } => f.asked(now, Heard::Serves),
                        Task::Reinit { .. } => {
                            comes += 1;
                            f.came(now, Ok(how < 2));
                        }
                        Task::Claim if how == 0 => f.claimed(now, Status::BadResponse),
                        Task::Claim => f.claimed(now, Status::Success),
                        Task::Done => f.said(now, Status::BadResponse),
                        Task::Confirm if how == 2 => f.broken(now),
                        Task::Confirm => f.confirmed(now, true),
                        Task::Heartbeat { .. } => f.broken(now),
                        Task::Anew { .. } => panic!("{f:?}"),
                    }
                }
                let bound = 10 * SILENCE_NS / (PAUSE_NS.1 / 2) + 10;
                assert!(comes <= bound, "{addresses} {how}: {comes} times in 10 s");
            }
        }
    }

    #[test]
    fn a_primary_that_recovers_is_not_asked_by_calls_and_counts_as_heard() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Ok(true));
        f.claimed(6, Status::Success);
        f.said(6, Status::Success);
        let now = 5 * SILENCE_NS;
        f.heard(now, Heard::Recovers);
        f.doubted(now);
        let Task::Wait { until_ns } = f.next(now) else { panic!("{f:?}") };
        let Task::Heartbeat { until_ns } = f.next(until_ns) else { panic!("{f:?}") };
        assert_eq!(until_ns, now + SILENCE_NS);
    }

    /// A client that a primary refuses to admit anew starts a new round over all addresses.
    #[test]
    fn a_client_that_is_not_taken_anew_asks_all_of_them_again() {
        let mut f = Failover::new(0, 3, SILENCE_NS, 7);
        f.broken(5);
        for _ in 0..REMOVED_ROUNDS {
            (0..3).for_each(|_| f.came(6, Err(Status::ClientRemoved)));
        }
        assert_eq!(f.next(6), Task::Anew { address: 2 });
        f.came(6, Err(Status::NotReady));
        let mut asked = Vec::new();
        for _ in 0..3 {
            let Task::Reinit { address } = comes(&mut f, u64::MAX) else { panic!("{f:?}") };
            asked.push(address);
            f.came(6, Err(Status::NotReady));
        }
        assert_eq!(asked, [0, 1, 2]);
    }

    /// The recovery may be over already. The client says in any case that it has made all claims.
    #[test]
    fn a_claim_that_comes_too_late_is_followed_by_that_it_is_all() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Ok(true));
        f.claimed(7, Status::Error);
        assert_eq!(f.next(7), Task::Done);
    }

    #[test]
    fn what_is_not_answered_keeps_operations_waiting_for_some_rounds_alone() {
        let mut f = at_two();
        f.broken(5);
        f.came(6, Ok(false));
        for round in 1..=CONFIRMS_MAX {
            assert_eq!(f.next(7), Task::Confirm);
            f.confirmed(7, false);
            assert_eq!(f.is_away(), round < CONFIRMS_MAX);
            f.heard(7, Heard::Serves);
        }
        assert_eq!(f.next(7), Task::Confirm, "after each answer, while operations go on");
        f.confirmed(7, true);
        f.heard(7, Heard::Serves);
        assert!(matches!(f.next(7), Task::Wait { .. }));
    }

    #[test]
    fn a_doubted_primary_is_asked_at_once_and_one_that_recovers_ever_less_often() {
        let mut f = at_two();
        f.doubted(5);
        assert!(matches!(f.next(5), Task::Heartbeat { .. }));
        f.heard(6, Heard::Serves);
        assert!(matches!(f.next(6), Task::Wait { .. }));
        f.broken(6);
        f.came(6, Ok(true));
        f.claimed(6, Status::Success);
        f.said(6, Status::Success);
        let (mut now, mut pauses) = (6, Vec::new());
        for _ in 0..10 {
            assert!(matches!(f.next(now), Task::Heartbeat { .. }));
            f.heard(now, Heard::Recovers);
            let Task::Wait { until_ns } = f.next(now) else { panic!("{f:?}") };
            pauses.push(until_ns - now);
            now = until_ns;
        }
        assert_eq!(pauses[..2], [WAITS_NS, 2 * WAITS_NS]);
        assert_eq!(pauses[9], SILENCE_NS / HEARTBEATS_PER_SILENCE);
    }

    #[test]
    fn a_client_that_was_stopped_asks_before_it_leaves() {
        let mut f = at_two();
        let now = 600 * SILENCE_NS;
        assert_eq!(f.next(now), Task::Heartbeat { until_ns: now + SILENCE_NS / 4 });
    }

    /// The primary fails again, at any moment of the recovery, with any task under way.
    #[test]
    fn a_second_failure_begins_it_again() {
        let stages: [fn(&mut Failover); 4] = [
            |f| f.came(6, Ok(true)),
            |f| f.claimed(7, Status::Success),
            |f| f.said(8, Status::Success),
            |f| f.heard(9, Heard::Serves),
        ];
        for until in 0..stages.len() {
            let reached = || {
                let mut f = at_two();
                f.broken(5);
                stages[..=until].iter().for_each(|stage| stage(&mut f));
                f
            };
            let mut f = reached();
            f.broken(20);
            assert_eq!(comes(&mut f, 20), Task::Reinit { address: 0 }, "{until}");
            // late reports about earlier tasks change nothing
            let before = f.clone();
            f.asked(21, Heard::Nothing);
            f.claimed(21, Status::Success);
            f.said(21, Status::Success);
            f.heard(21, Heard::Serves);
            f.confirmed(21, true);
            assert_eq!(f, before);
        }
    }

    #[test]
    fn pauses_grow_to_their_bound_and_no_two_clients_pause_alike() {
        let mut pauses = Vec::new();
        for seed in 1..=50 {
            let mut f = Failover::new(0, 3, SILENCE_NS, seed * 977);
            f.broken(0);
            let (mut now, mut mine) = (0, Vec::new());
            for attempt in 0..60 {
                let address = match f.next(now) {
                    Task::Wait { until_ns } => {
                        assert_eq!(attempt % 3, 0, "only after all have failed");
                        mine.push(until_ns - now);
                        now = until_ns;
                        let Task::Ask { address, .. } = f.next(now) else { panic!("{f:?}") };
                        address
                    }
                    Task::Ask { address, .. } => address,
                    other => panic!("{other:?}"),
                };
                assert_eq!(address, attempt % 3);
                f.asked(now, Heard::Nothing);
            }
            assert!(mine[0] >= PAUSE_NS.0 && mine[0] <= 2 * PAUSE_NS.0, "{mine:?}");
            assert!(mine.iter().all(|pause| *pause <= PAUSE_NS.1));
            assert!(mine[10..].iter().all(|pause| *pause >= PAUSE_NS.1 / 2), "{mine:?}");
            pauses.push(mine);
        }
        pauses.sort_unstable();
        pauses.dedup();
        assert_eq!(pauses.len(), 50);
        assert!(pauses.iter().any(|mine| mine[0] < 30 * MS));
    }
}
