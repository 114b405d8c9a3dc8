// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client: its calls, its chain under way, and what it believes to hold.

use super::arbiter::{Reply, Request};
use super::rules::Rule;
use super::words::{Entry, Memory, Mode, Ticket, Turn, Values, WordOp};

/// How long a lease lasts, in ticks.
pub const LEASE: u8 = 2;

/// One call of a client's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Looks at the word once, then waits at the arbiter for its turn.
    Lock(Mode),
    /// The client takes a ticket, and gives it up unless it is its turn at once.
    Try(Mode),
    /// The client asks for a later end of its lease.
    Extend,
    /// The client releases its hold.
    Unlock,
}

/// The purpose of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    Take,
    Look,
    Release,
    Extend(u8),
    /// Clears the ledger entry: the last step of a call.
    Leave,
}

/// A chain under way: `done` of its operations have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    pub why: Why,
    pub ops: Vec<WordOp>,
    pub done: usize,
    pub values: Values,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// The index of the client's present call in its script.
    pub at: usize,
    pub chain: Option<Chain>,
    /// The client's request, on the way to the arbiter; later together with the answer, on the way
    /// back.
    pub asked: Option<Request>,
    pub answer: Option<Reply>,
    pub ticket: Option<Ticket>,
    /// The turn word as the client saw it last.
    pub seen: Turn,
    /// The last ledger entry that the client knows to be written.
    pub claim: Entry,
    pub looks: u8,
    /// The mode of its hold, and until when it relies on it.
    pub holds: Option<(Mode, u8)>,
    /// Whether the program has called the release, so that it relies on nothing any more.
    pub releases: bool,
    /// Whether the compare-and-swap of its release found its own turn (shared: while its lease
    /// ran). Then the release is a success, even if the arbiter answers that the place is gone.
    pub had_turn: bool,
    /// Whether a lost place was taken anew; that is done once for each call.
    pub anew: bool,
    pub gone: bool,
}

/// The error in an answer that a client got; `None`: none.
pub type Wrong = Option<&'static str>;

impl Client {
    /// Whether the client can do something without an answer.
    pub fn can_step(&self, script: &[Call]) -> bool {
        !self.gone
            && (self.chain.is_some()
                || self.answer.is_some()
                || self.asked.is_none() && self.at < script.len())
    }

    /// The mode in which the client relies on the lock now.
    pub fn relies(&self, now: u8) -> Option<Mode> {
        let runs = |until: u8| until > now && !self.gone && !self.releases;
        self.holds.filter(|&(_, until)| runs(until)).map(|(mode, _)| mode)
    }

    fn post(&mut self, why: Why, ops: Vec<WordOp>) {
        self.chain = Some(Chain { why, ops, done: 0, values: Values::default() });
    }

    fn ask(&mut self, request: Request) {
        self.asked = Some(request);
    }

    /// Does the next step of the client: a word operation of its chain, what follows from its
    /// outcome or from an answer, or the next call. `whole`: the primary executes its chains.
    pub fn step(
        &mut self,
        id: usize,
        script: &[Call],
        memory: &mut Memory,
        now: u8,
        (whole, divert, rule): (bool, u8, Option<Rule>),
    ) -> Wrong {
        if let Some(chain) = &mut self.chain {
            while chain.done < chain.ops.len() {
                memory.execute(id, chain.ops[chain.done], &mut chain.values);
                chain.done += 1;
                if !whole && chain.done < chain.ops.len() {
                    return None;
                }
            }
            let chain = self.chain.take()?;
            return self.executed(script, chain, now, (divert, rule));
        }
        match self.answer.take() {
            Some(answer) => self.answered(script, answer, now),
            None => self.begin(script[self.at], now, rule),
        }
    }

    fn begin(&mut self, call: Call, now: u8, rule: Option<Rule>) -> Wrong {
        match call {
            Call::Lock(mode) | Call::Try(mode) => {
                let stamp = self.claim.stamp + 1;
                self.claim = Entry { claim: Some(mode), until: now + LEASE, stamp };
                let note = WordOp::Ledger(self.claim);
                let ops = match rule {
                    Some(Rule::IntentFirst) => vec![WordOp::Take(mode), note, WordOp::Look],
                    _ => vec![note, WordOp::Take(mode), WordOp::Look],
                };
                self.post(Why::Take, ops);
            }
            Call::Extend => match (self.holds, self.ticket) {
                (Some((mode, until)), Some(ticket)) if until > now => {
                    let entry = Entry { until: now + LEASE, ..self.claim };
                    if until > self.claim.until {
                        // only the arbiter may extend what it has granted
                        self.ask(Request::Extend(mode, ticket));
                    } else {
                        self.post(Why::Extend(until), vec![WordOp::Ledger(entry), WordOp::Look]);
                    }
                }
                (Some((mode, _)), Some(ticket)) => self.ask(Request::Extend(mode, ticket)),
                _ => self.at += 1,
            },
            Call::Unlock => match (self.holds, self.ticket) {
                (Some((mode, until)), Some(ticket)) => {
                    self.releases = true;
                    self.release(mode, until, ticket, now, rule);
                }
                _ => self.leave(),
            },
        }
        None
    }

    fn release(&mut self, mode: Mode, until: u8, ticket: Ticket, now: u8, rule: Option<Rule>) {
        let seen = self.seen;
        let is_late = until <= now && rule != Some(Rule::LateRelease);
        let is_gone = seen.nx != ticket.tx;
        if is_late || is_gone || seen.told && rule != Some(Rule::ToldIsTheArbiters) {
            return self.ask(Request::Release(mode, ticket));
        }
        match mode {
            Mode::X => {
                let none = WordOp::Ledger(Entry { claim: None, ..self.claim });
                let swap = Turn { nx: seen.nx + 1, ..seen };
                self.post(Why::Release, vec![WordOp::Cas(seen, swap), none]);
            }
            Mode::S => {
                let swap = Turn { ns: seen.ns + 1, ..seen };
                self.post(Why::Release, vec![WordOp::Cas(seen, swap)]);
            }
        }
    }

    /// Forgets the hold and the ticket.
    fn lets_go(&mut self) {
        (self.holds, self.ticket) = (None, None);
        (self.releases, self.had_turn) = (false, false);
    }

    /// Ends the call; its last step clears the ledger entry.
    fn leave(&mut self) {
        self.lets_go();
        let none = WordOp::Ledger(Entry { claim: None, ..self.claim });
        self.post(Why::Leave, vec![none]);
    }

    fn executed(
        &mut self,
        script: &[Call],
        chain: Chain,
        now: u8,
        (divert, rule): (u8, Option<Rule>),
    ) -> Wrong {
        let Chain { why, values, ops, .. } = chain;
        match why {
            Why::Take => {
                let (taken, (_, lap)) = (values.taken?, values.looked?);
                let is_high = taken.mx >= divert || taken.ms >= divert;
                if is_high && rule != Some(Rule::HighIsNoTicket) {
                    let (Call::Lock(mode) | Call::Try(mode)) = script[self.at] else { return None };
                    // so high a number is no ticket: the arbiter gives one
                    self.ask(Request::Take(mode));
                    return None;
                }
                self.ticket = Some(Ticket { lap, tx: taken.mx, ts: taken.ms });
                self.looks = 1;
                self.looked(script, values, now, rule);
            }
            Why::Look => self.looked(script, values, now, rule),
            Why::Release => return self.released(ops[0], values, now, rule),
            Why::Extend(until) => {
                self.claim.until = match ops[0] {
                    WordOp::Ledger(entry) => entry.until,
                    _ => self.claim.until,
                };
                self.seen = values.looked?.0;
                let (mode, _) = self.holds?;
                if until > now || rule == Some(Rule::ExtendWhileItRuns) {
                    self.holds = Some((mode, self.claim.until));
                    self.at += 1;
                } else {
                    self.ask(Request::Extend(mode, self.ticket?));
                }
            }
            Why::Leave => self.at += 1,
        }
        None
    }

    fn looked(&mut self, script: &[Call], values: Values, now: u8, rule: Option<Rule>) {
        let (Some((turn, lap)), Some(ticket)) = (values.looked, self.ticket) else { return };
        let (Call::Lock(mode) | Call::Try(mode)) = script[self.at] else { return };
        self.seen = turn;
        let in_time = self.claim.until > now || rule == Some(Rule::ClaimRuns);
        if ticket.has_turn(mode, turn, lap) && in_time {
            self.holds = Some((mode, self.claim.until.max(now + 1)));
            self.anew = false;
            self.at += 1;
            return;
        }
        if let Call::Try(_) = script[self.at] {
            self.skip_unlock(script);
            return self.leave();
        }
        if ticket.is_past(turn, lap) {
            return self.lost(script);
        }
        match self.looks {
            0 => self.ask(Request::Wait(mode, ticket)),
            _ => {
                self.looks -= 1;
                self.post(Why::Look, vec![WordOp::Look]);
            }
        }
    }

    /// Skips the calls for a hold that the client did not get.
    fn skip_unlock(&mut self, script: &[Call]) {
        while matches!(script.get(self.at + 1), Some(Call::Unlock | Call::Extend)) {
            self.at += 1;
        }
    }

    /// The place is gone: takes a new one once, then gives the call up.
    fn lost(&mut self, script: &[Call]) {
        self.ticket = None;
        if std::mem::replace(&mut self.anew, true) {
            self.anew = false;
            self.skip_unlock(script);
            self.leave();
        }
    }

    fn released(&mut self, op: WordOp, values: Values, now: u8, rule: Option<Rule>) -> Wrong {
        let (WordOp::Cas(expect, _), Some(found)) = (op, values.found) else { return None };
        let ((mode, until), ticket) = (self.holds?, self.ticket?);
        if found == expect {
            match mode {
                Mode::X => {
                    self.lets_go();
                    self.at += 1;
                }
                Mode::S => self.leave(),
            }
            return None;
        }
        self.seen = found;
        self.had_turn = found.nx == ticket.tx && (mode == Mode::X || until > now);
        match mode {
            Mode::X => self.ask(Request::Release(mode, ticket)),
            Mode::S => self.release(mode, until, ticket, now, rule),
        }
        None
    }

    fn answered(&mut self, script: &[Call], answer: Reply, now: u8) -> Wrong {
        let asked = self.asked.take()?;
        let runs = self.holds.is_some_and(|(_, until)| until > now);
        match (asked, answer) {
            (Request::Take(_), Reply::Anew) => {} // a new lap has begun, and the call begins again
            (Request::Take(mode), Reply::Ticket(ticket)) => {
                self.ticket = Some(ticket);
                self.ask(Request::Wait(mode, ticket));
            }
            (Request::Wait(mode, _) | Request::Extend(mode, _), Reply::Granted { until, turn }) => {
                self.seen = turn;
                self.holds = Some((mode, until));
                self.anew = false;
                self.at += 1;
            }
            (Request::Wait(..), Reply::Refused) => self.lost(script),
            (Request::Extend(..), Reply::Refused) => {
                self.holds = None;
                self.at += 1;
                if runs {
                    return Some("an extend is refused while the lease runs");
                }
            }
            (Request::Release(..), Reply::Done) | (Request::Resolve, _) => self.leave(),
            (Request::Release(..), Reply::Refused) => {
                let is_wrong = runs && !self.had_turn;
                self.leave();
                if is_wrong {
                    return Some("a release is refused while the lease runs");
                }
            }
            _ => return Some("an answer to something else"),
        }
        None
    }

    /// The client's session has ended, and nothing of it is under way any more. The client goes on
    /// with its next call.
    pub fn fenced(&mut self, script: &[Call]) {
        (self.chain, self.answer, self.asked) = (None, None, None);
        self.lets_go();
        if self.at < script.len() {
            if !matches!(script[self.at], Call::Unlock) {
                self.skip_unlock(script);
            }
            self.at += 1;
        }
    }

    /// The answer to the client's chain or request is lost. What has taken effect stays, and
    /// nothing more takes effect. The client reports that to the arbiter, and gives the call up.
    pub fn loses(&mut self, script: &[Call]) {
        (self.chain, self.answer) = (None, None);
        self.lets_go();
        self.skip_unlock(script);
        self.asked = Some(Request::Resolve);
    }
}
