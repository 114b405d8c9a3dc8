// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a worker process is told to do, as text in its environment.

use std::str::FromStr;

use dlock_client::{FabricChoice, LockType};

/// What the clients of a worker do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// All operations, at random.
    Mix,
    /// Each worker has one way to take locks and to keep them, chosen by its number.
    One,
    /// Fair locks without faults: each client asks for one until it holds it.
    Fair,
}

/// How clients come to the successor of a primary that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// No primary is killed.
    None,
    /// The program asks for a primary, comes back to it, and claims its locks.
    ByHand,
    /// The library does all of that.
    ByItself,
}

/// A worker's job.
#[derive(Clone, Debug)]
pub struct Job {
    pub style: Style,
    pub fabric: FabricChoice,
    pub port: u16,
    /// The port of another primary, which waits to take the place; 0: there is none.
    pub second_port: u16,
    pub seed: u64,
    /// The number of the worker's first client.
    pub number: u64,
    pub threads: u64,
    /// The first of the worker's locks, and how many it uses. The number of a lock decides its
    /// type.
    pub locks: (usize, usize),
    /// Whether faults are injected.
    pub faulty: bool,
    pub failover: Failover,
    pub log: String,
}

const STYLES: [Style; 3] = [Style::Mix, Style::One, Style::Fair];
const FAILOVERS: [Failover; 3] = [Failover::None, Failover::ByHand, Failover::ByItself];
const FABRICS: [FabricChoice; 4] =
    [FabricChoice::Shm, FabricChoice::Tcp, FabricChoice::Verbs, FabricChoice::Sealed];

/// A fabric as a number, for a job's text.
pub fn number_of(fabric: FabricChoice) -> usize {
    FABRICS.iter().position(|&f| f == fabric).unwrap_or(0)
}

/// The fabric of a number.
pub fn fabric(number: usize) -> FabricChoice {
    FABRICS[number]
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { port, second_port, seed, number, threads, locks, faulty, log, .. } = self;
        let style = STYLES.iter().position(|&s| s == self.style).unwrap_or(0);
        let fabric = number_of(self.fabric);
        write!(f, "worker {style} {fabric} {port} {second_port} {seed} {number} {threads} ")?;
        let faulty = u8::from(*faulty);
        let failover = FAILOVERS.iter().position(|&f| f == self.failover).unwrap_or(0);
        write!(f, "{} {} {faulty} {failover} {log}", locks.0, locks.1)
    }
}

impl FromStr for Job {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.splitn(12, ' ');
        let mut next = || fields.next().unwrap_or_default();
        Ok(Self {
            style: STYLES[next().parse::<usize>()?],
            fabric: FABRICS[next().parse::<usize>()?],
            port: next().parse()?,
            second_port: next().parse()?,
            seed: next().parse()?,
            number: next().parse()?,
            threads: next().parse()?,
            locks: (next().parse()?, next().parse()?),
            faulty: next() == "1",
            failover: FAILOVERS[next().parse::<usize>()?],
            log: next().to_owned(),
        })
    }
}

/// The type of a lock by its number.
pub fn type_of(style: Style, lock: usize) -> LockType {
    match style {
        Style::Fair => LockType::Fair,
        Style::Mix | Style::One => [LockType::Atomic, LockType::Rw, LockType::Fair][lock % 3],
    }
}
