// SPDX-License-Identifier: MIT OR Apache-2.0
//! The turns of the primary, as on its command thread (`dlock-server/src/command/turns.rs`):
//! `dlock_core::budget::shares` decides them, and `dlock_core::budget::rate` decides how many
//! frames of a channel are served.
//!
//! ```text
//!   inbox ─▶ of each client: control first, then frames, unless its channel rests ─▶ a turn each
//! ```
//! A client without a debt waits for at most one turn of each other client, however many requests
//! another one sends; and no channel is served beyond its rate and its burst.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dlock_core::budget::rate::{Pace, Rate};
use dlock_core::budget::shares::Shares;
use dlock_core::budget::work::{of_chain, FRAME_WORK, QUANTUM};
use dlock_core::clock::NS;
use dlock_core::wire::message::Request;

use super::plan::Fabric;
use super::server::World;
use super::state::{Arrived, Ask, Life, Sys, Unit};

/// All connections without a client, together.
const STRANGERS: u8 = u8::MAX;
/// Frames of a channel a second.
const FRAMES_PER_SECOND: u32 = 100;

/// The order of the turns, and how much each client was served.
#[derive(Debug)]
pub(crate) struct Turns {
    shares: Shares<u8>,
    /// The client of the present turn, its budget, and the work done.
    turn: Option<(u8, u32, u32)>,
    paces: BTreeMap<u8, Pace>,
    /// For each waiting client, the turns that each other client has had since.
    waits: BTreeMap<u8, BTreeMap<u8, u32>>,
    /// The clients whose last turn was more work than its budget.
    indebted: BTreeSet<u8>,
    /// When frames of each channel were served in the last second.
    served: BTreeMap<u8, VecDeque<u64>>,
}

impl Turns {
    pub fn new() -> Self {
        Self {
            shares: Shares::new(QUANTUM),
            turn: None,
            paces: BTreeMap::new(),
            waits: BTreeMap::new(),
            indebted: BTreeSet::new(),
            served: BTreeMap::new(),
        }
    }

    /// The first message of each client that may be served now; and when the first resting channel
    /// goes on.
    fn first(&mut self, inbox: &VecDeque<Arrived>, now: u64) -> (BTreeMap<u8, usize>, u64) {
        let (mut control, mut frames) = (BTreeMap::new(), BTreeMap::new());
        // the messages of a flood mostly are of one client, so the last lookup is remembered
        let mut last = None;
        for (i, arrived) in inbox.iter().enumerate() {
            let next @ (who, is_frame) = whose(arrived);
            if last.replace(next) != Some(next) {
                let first = if is_frame { &mut frames } else { &mut control };
                first.entry(who).or_insert(i);
            }
        }
        let mut rests_until = u64::MAX;
        frames.retain(|&who, _| match self.pace(who).rests_until(now) {
            Some(until) => {
                rests_until = rests_until.min(until);
                false
            }
            None => true,
        });
        frames.extend(control); // control messages of a client are served before its frames
        (frames, rests_until)
    }

    fn pace(&mut self, who: u8) -> &mut Pace {
        self.paces.entry(who).or_insert(Pace::new(Rate::even(FRAMES_PER_SECOND)))
    }

    /// Begins a turn; an error: another client has waited for too long.
    fn begins(&mut self, who: u8) -> Result<(), String> {
        self.waits.remove(&who);
        for (&other, turns) in &mut self.waits {
            let of_it = turns.entry(who).or_default();
            *of_it += 1;
            if *of_it > 1 && !self.indebted.contains(&other) {
                return Err(format!("shares: {who} has {of_it} turns, and {other} waits"));
            }
        }
        Ok(())
    }

    fn ends(&mut self, (who, budget, done): (u8, u32, u32), more: bool) {
        match done > budget {
            true => self.indebted.insert(who),
            false => self.indebted.remove(&who),
        };
        self.shares.done(who, done, more);
        if more {
            self.waits.entry(who).or_default();
        }
    }
}

/// The client of a message, and whether the message is a frame of a channel.
fn whose(arrived: &Arrived) -> (u8, bool) {
    match *arrived {
        Arrived::Unit { client, .. } => (client, true),
        Arrived::Control { ask: Ask::Join { .. } | Ask::Attach(..), .. } => (STRANGERS, false),
        Arrived::Control { client, .. } | Arrived::Lost { client, .. } => (client, false),
    }
}

impl World {
    /// The place in the inbox of the message to serve next. `Err`: the time before which no message
    /// may be served.
    pub(super) fn next_to_serve(&mut self) -> Result<usize, u64> {
        if !self.sys.plan.shares {
            return Ok(0);
        }
        let (now, turns) = (self.sys.now, &mut self.turns);
        let (first, rests_until) = turns.first(&self.sys.inbox, now);
        if let Some(turn @ (who, budget, done)) = turns.turn.take() {
            match first.get(&who) {
                Some(&i) if done < budget => {
                    turns.turn = Some(turn);
                    return Ok(i);
                }
                more => turns.ends(turn, more.is_some()),
            }
        }
        for &who in first.keys() {
            turns.shares.add(who);
            turns.waits.entry(who).or_default();
        }
        while let Some(turn) = turns.shares.next_turn() {
            let Some(&i) = first.get(&turn.who) else {
                // the client's channel rests, or the client is gone, so its turn ends
                turns.shares.done(turn.who, 0, false);
                turns.waits.remove(&turn.who);
                continue;
            };
            if let Err(why) = turns.begins(turn.who) {
                self.sys.fail(why);
            }
            self.turns.turn = Some((turn.who, turn.budget, 0));
            return Ok(i);
        }
        Err(rests_until.max(now + 1))
    }

    /// Records that this message is served.
    pub(super) fn is_served(&mut self, arrived: &Arrived) {
        if !self.sys.plan.shares {
            return;
        }
        let now = self.sys.now;
        let (who, is_frame) = whose(arrived);
        if is_frame {
            self.turns.pace(who).used(now, 1);
            let served = self.turns.served.entry(who).or_default();
            served.push_back(now);
            while served.front().is_some_and(|&at| at + NS <= now) {
                served.pop_front();
            }
            let (frames, rate) = (served.len(), Rate::even(FRAMES_PER_SECOND));
            if frames as u64 > u64::from(rate.per_second) + u64::from(rate.burst) + 1 {
                self.sys.fail(format!("rate: {frames} frames of client {who} in a second"));
            }
        }
    }

    /// Records the work of the message that was served.
    pub(super) fn was_served(&mut self, work: u32) {
        let asked = self.primary.as_mut().map_or(0, |primary| primary.take_work());
        self.twin.iter_mut().for_each(|twin| _ = twin.primary.take_work());
        if let Some((.., done)) = &mut self.turns.turn {
            *done += work.max(asked).max(FRAME_WORK);
        }
    }
}

/// The work of serving this message, beside what the primary counts.
pub(super) fn work_of(arrived: &Arrived) -> u32 {
    match arrived {
        Arrived::Unit { unit: Unit::Batch { chain, .. }, .. } => FRAME_WORK + of_chain(chain),
        _ => FRAME_WORK,
    }
}

impl Sys {
    /// A client sends many requests at once.
    pub(super) fn floods(&mut self, c: usize) {
        if self.clients[c].life != Life::Up || self.clients[c].fabric == Fabric::Shm {
            return;
        }
        let requests = self.rng.range(20, 150);
        self.log(|| format!("FAULT client {c} sends {requests} requests"));
        for _ in 0..requests {
            self.send_request(c, Request::Ping);
        }
    }
}
