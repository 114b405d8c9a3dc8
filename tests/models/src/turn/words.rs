// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of the lock, and the effect of a chain on them.

/// Clients of every setup.
pub const CLIENTS: usize = 3;

/// How a client holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// The client has the lock alone.
    X,
    /// The client may share the lock with other readers.
    S,
}

/// `w0`: the tickets that were taken, exclusive and shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taken {
    pub mx: u8,
    pub ms: u8,
}

/// `w1`: the tickets that are done, and whether a client sleeps at the arbiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Turn {
    pub told: bool,
    pub nx: u8,
    pub ns: u8,
}

/// A place in the order: the lap, the exclusive and the shared number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub lap: u8,
    pub tx: u8,
    pub ts: u8,
}

/// A ledger entry: nothing, or a claim with an end. Each new claim has a new stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    pub claim: Option<Mode>,
    pub until: u8,
    pub stamp: u8,
}

impl Entry {
    /// Whether the claim runs at that time.
    pub fn runs(&self, now: u8) -> bool {
        self.claim.is_some() && self.until > now
    }
}

/// One word operation of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordOp {
    /// Writes the client's own ledger entry.
    Ledger(Entry),
    /// Takes a ticket, by a fetch-and-add on `w0`.
    Take(Mode),
    /// Reads `w1` and the lap.
    Look,
    /// Compare-and-swap on `w1`.
    Cas(Turn, Turn),
}

/// The values that the word operations of a chain have returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Values {
    pub taken: Option<Taken>,
    pub looked: Option<(Turn, u8)>,
    /// The value that a compare-and-swap has found.
    pub found: Option<Turn>,
}

/// The memory of the lock at the primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    pub w0: Taken,
    pub w1: Turn,
    pub lap: u8,
    pub ledgers: [Entry; CLIENTS],
}

impl Memory {
    /// Carries out one word operation of a client.
    pub fn execute(&mut self, client: usize, op: WordOp, values: &mut Values) {
        match op {
            WordOp::Ledger(entry) => self.ledgers[client] = entry,
            WordOp::Take(mode) => {
                values.taken = Some(self.w0);
                match mode {
                    Mode::X => self.w0.mx += 1,
                    Mode::S => self.w0.ms += 1,
                }
            }
            WordOp::Look => values.looked = Some((self.w1, self.lap)),
            WordOp::Cas(expect, swap) => {
                values.found = Some(self.w1);
                if self.w1 == expect {
                    self.w1 = swap;
                }
            }
        }
    }
}

impl Ticket {
    /// Whether this ticket has its turn by the word.
    pub fn has_turn(&self, mode: Mode, turn: Turn, lap: u8) -> bool {
        let is_head = lap == self.lap && turn.nx == self.tx;
        match mode {
            Mode::X => is_head && turn.ns == self.ts,
            Mode::S => is_head, // the models have no ticket number near the bound of 63 shares
        }
    }

    /// Whether this ticket's place is gone by the word.
    pub fn is_past(&self, turn: Turn, lap: u8) -> bool {
        lap != self.lap || turn.nx > self.tx
    }
}
