// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a worker process is told to do, as text in its environment.

use std::str::FromStr;

use dlock_client::{FabricChoice, LockType};

/// What the clients of a worker do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Everything, at random.
    Mix,
    /// One way to take and keep locks each, chosen by the worker's number.
    One,
    /// Fair locks without a fault, waiting for each until it is held.
    Fair,
}

/// A worker's job.
#[derive(Clone, Debug)]
pub struct Job {
    pub style: Style,
    pub fabric: FabricChoice,
    pub port: u16,
    pub seed: u64,
    /// The number of its first client.
    pub number: u64,
    pub threads: u64,
    /// The first lock it uses, and how many; the type goes by the number.
    pub locks: (usize, usize),
    /// Whether faults are injected.
    pub faulty: bool,
    /// Whether the primary is killed now and then, and has a successor.
    pub fails_over: bool,
    pub log: String,
}

const STYLES: [Style; 3] = [Style::Mix, Style::One, Style::Fair];
const FABRICS: [FabricChoice; 3] = [FabricChoice::Shm, FabricChoice::Tcp, FabricChoice::Verbs];

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
        let Self { port, seed, number, threads, locks, faulty, fails_over, log, .. } = self;
        let style = STYLES.iter().position(|&s| s == self.style).unwrap_or(0);
        let fabric = number_of(self.fabric);
        write!(f, "worker {style} {fabric} {port} {seed} {number} {threads} ")?;
        let (faulty, fails_over) = (u8::from(*faulty), u8::from(*fails_over));
        write!(f, "{} {} {faulty} {fails_over} {log}", locks.0, locks.1)
    }
}

impl FromStr for Job {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.splitn(11, ' ');
        let mut next = || fields.next().unwrap_or_default();
        Ok(Self {
            style: STYLES[next().parse::<usize>()?],
            fabric: FABRICS[next().parse::<usize>()?],
            port: next().parse()?,
            seed: next().parse()?,
            number: next().parse()?,
            threads: next().parse()?,
            locks: (next().parse()?, next().parse()?),
            faulty: next() == "1",
            fails_over: next() == "1",
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
