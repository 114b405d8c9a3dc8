// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulator's checker (b): histories of lock operations against a sequential lock, by
//! stateright's linearizability tester. It knows nothing of time but the order of calls and
//! returns.
#![forbid(unsafe_code)]

use dlock_core::wire::message::Mode;
use dlock_sim::system::Oracle;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// What a thread asks of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockOp {
    /// `TryLock`, exclusive.
    TryExclusive(u8),
    /// `TryLock`, shared.
    TryShared(u8),
    /// `Unlock`.
    Unlock(u8),
}

/// The result that a thread was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// The thread holds the lock, or has released it.
    Ok,
    /// Another client holds the lock.
    Refused,
}

/// A lock as one thread alone would see it: holders and their modes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequentialLock {
    writer: Option<u8>,
    readers: Vec<u8>,
}

impl SequentialSpec for SequentialLock {
    type Op = LockOp;
    type Ret = Told;

    fn invoke(&mut self, op: &LockOp) -> Told {
        match *op {
            LockOp::TryExclusive(who) if self.writer.is_none() && self.readers.is_empty() => {
                self.writer = Some(who);
                Told::Ok
            }
            LockOp::TryShared(who) if self.writer.is_none() => {
                self.readers.push(who);
                self.readers.sort_unstable();
                Told::Ok
            }
            LockOp::Unlock(who) if self.writer == Some(who) => {
                self.writer = None;
                Told::Ok
            }
            LockOp::Unlock(who) if self.readers.contains(&who) => {
                self.readers.retain(|r| *r != who);
                Told::Ok
            }
            _ => Told::Refused,
        }
    }
}

/// One line of a history: a call, or its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A call: the thread, and its operation.
    Call(u8, LockOp),
    /// A return: the thread, and the result that it was told.
    Return(u8, Told),
}

/// Reads a history such as `1X 1+ 2S 2- 1U 1+`: `X` exclusive, `S` shared, `U` unlock; `+` told
/// yes, `-` told no.
///
/// # Panics
/// If the text is not a history.
pub fn history(text: &str) -> Vec<Line> {
    let line = |word: &str| {
        let (who, what) = word.split_at(1);
        let who: u8 = who.parse().expect("a thread");
        match what {
            "X" => Line::Call(who, LockOp::TryExclusive(who)),
            "S" => Line::Call(who, LockOp::TryShared(who)),
            "U" => Line::Call(who, LockOp::Unlock(who)),
            "+" => Line::Return(who, Told::Ok),
            "-" => Line::Return(who, Told::Refused),
            _ => panic!("{word}"),
        }
    };
    text.split_whitespace().map(line).collect()
}

/// Whether the history is linearizable, by stateright.
///
/// # Panics
/// If the history is not well formed.
pub fn is_linearizable(history: &[Line]) -> bool {
    let mut tester = LinearizabilityTester::new(SequentialLock::default());
    for line in history {
        match *line {
            Line::Call(who, op) => tester.on_invoke(who, op).expect("one call at a time"),
            Line::Return(who, told) => tester.on_return(who, told).expect("a call before"),
        };
    }
    tester.is_consistent()
}

/// Whether checker (a) accepts the same history: services last from the return of the acquire to
/// the call of the release.
pub fn is_exclusive(history: &[Line]) -> bool {
    let mut oracle = Oracle::new(1);
    let mut asked = [None; 10];
    for (now, line) in (1..).zip(history) {
        match *line {
            Line::Call(who, op) => {
                asked[usize::from(who)] = Some(op);
                if let LockOp::Unlock(_) = op {
                    oracle.ended(0, who.into());
                }
            }
            Line::Return(who, Told::Ok) => {
                let mode = match asked[usize::from(who)] {
                    Some(LockOp::TryExclusive(_)) => Mode::Exclusive,
                    Some(LockOp::TryShared(_)) => Mode::Shared,
                    _ => continue,
                };
                if oracle.granted(0, who.into(), mode, now, u64::MAX, true).is_err() {
                    return false;
                }
            }
            Line::Return(..) => {}
        }
    }
    true
}
