// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client was told, one line each.
//!
//! Times are nanoseconds of CLOCK_BOOTTIME, which all processes of a host share. A line is
//! written by one system call, so that it survives the death of its process; the last line of a
//! process that was killed may be torn, and counts as absent.

use std::fmt;

use dlock_core::clock::NS;
use dlock_core::lock::TimeOut;
use dlock_core::wire::message::Mode;

/// A client was told that it holds a lock, or that its hold continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The client: the number of the worker, and how often it has joined.
    pub who: u64,
    /// The number of the lock.
    pub lock: usize,
    /// The mode of the hold.
    pub mode: Mode,
    /// The time at which the call began.
    pub before: u64,
    /// The time right after the call returned.
    pub after: u64,
    /// The end of the lease as the client was told, nanoseconds since 1970 on the server clock;
    /// `None`: the hold has no lease.
    pub until_ns: Option<u64>,
    /// The lease that the call asked for, seconds; 0: it asked for none.
    pub asked_s: u32,
    /// At the first grant of a fair lock: how many exclusive tickets were done before.
    pub ticket: Option<u16>,
    /// The library's own last reading of its clock, after the last answer that it got; 0: none.
    pub checked: u64,
    /// The epoch of the primary; tickets count within one epoch.
    pub epoch: u64,
}

/// One line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A client was told that it holds the lock.
    Granted(Granted),
    /// The client's release began; or an operation began whose effect is not known.
    Ended {
        /// The client: the number of the worker, and how often it has joined.
        who: u64,
        /// The number of the lock.
        lock: usize,
        /// The time of the event.
        at: u64,
    },
    /// The client was told that it does not hold the lock any more.
    Lost {
        /// The client: the number of the worker, and how often it has joined.
        who: u64,
        /// The number of the lock.
        lock: usize,
        /// When the call returned.
        at: u64,
        /// The largest uncertainty of the server clock that the library has read in the call.
        unsure_ns: u64,
    },
    /// A call took long.
    Long {
        /// The client: the number of the worker, and how often it has joined.
        who: u64,
        /// The number of the lock.
        lock: usize,
        /// When the call began.
        before: u64,
        /// When the call returned.
        after: u64,
    },
    /// A client asked for a lock again and again until it had the lock.
    Waited {
        /// The client: the number of the worker, and how often it has joined.
        who: u64,
        /// The number of the lock.
        lock: usize,
        /// When the client began to ask.
        from: u64,
        /// When the client was told that it holds the lock.
        to: u64,
    },
    /// The client has left, or its process was killed after this moment.
    Gone {
        /// The client: the number of the worker, and how often it has joined.
        who: u64,
        /// The time of the event.
        at: u64,
    },
}

impl Record {
    /// The time by which records are sorted.
    pub fn at(&self) -> u64 {
        match *self {
            Self::Granted(Granted { after, .. }) => after,
            Self::Ended { at, .. } | Self::Lost { at, .. } | Self::Gone { at, .. } => at,
            Self::Long { after, .. } => after,
            Self::Waited { to, .. } => to,
        }
    }

    /// The client of this record.
    pub fn who(&self) -> u64 {
        match *self {
            Self::Granted(Granted { who, .. }) => who,
            Self::Ended { who, .. } | Self::Lost { who, .. } | Self::Gone { who, .. } => who,
            Self::Long { who, .. } | Self::Waited { who, .. } => who,
        }
    }

    /// The record of a line; `None`: the line is torn.
    pub fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        let fields: Option<Vec<u64>> =
            rest.split(' ').map(|field| field.parse().ok()).collect::<Option<_>>();
        let fields = fields?;
        let lock = |n: &u64| usize::try_from(*n).ok();
        Some(match (kind, fields.as_slice()) {
            ("granted", [who, l, x, before, after, until, asked, ticket, checked, epoch, 0]) => {
                Self::Granted(Granted {
                    who: *who,
                    lock: lock(l)?,
                    mode: if *x == 1 { Mode::Exclusive } else { Mode::Shared },
                    before: *before,
                    after: *after,
                    until_ns: Some(*until).filter(|&until| until < u64::MAX),
                    asked_s: u32::try_from(*asked).ok()?,
                    ticket: u16::try_from(*ticket).ok(),
                    checked: *checked,
                    epoch: *epoch,
                })
            }
            ("ended", &[who, ref l, at, 0]) => Self::Ended { who, lock: lock(l)?, at },
            ("lost", &[who, ref l, at, unsure_ns, 0]) => {
                Self::Lost { who, lock: lock(l)?, at, unsure_ns }
            }
            ("long", &[who, ref l, before, after, 0]) => {
                Self::Long { who, lock: lock(l)?, before, after }
            }
            ("waited", &[who, ref l, from, to, 0]) => {
                Self::Waited { who, lock: lock(l)?, from, to }
            }
            ("gone", &[who, at, 0]) => Self::Gone { who, at },
            _ => return None,
        })
    }

    /// The records of a log.
    pub fn parse_all(log: &str) -> Vec<Self> {
        log.lines().filter_map(Self::parse).collect()
    }
}

/// Each line ends with a 0, so that a torn line can be recognised.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Granted(g) => {
                let Granted { who, lock, before, after, asked_s, checked, epoch, .. } = g;
                let exclusive = u8::from(g.mode == Mode::Exclusive);
                let until = g.until_ns.unwrap_or(u64::MAX);
                let ticket = g.ticket.map_or(u64::MAX, u64::from);
                write!(f, "granted {who} {lock} {exclusive} {before} {after} {until} ")?;
                write!(f, "{asked_s} {ticket} {checked} {epoch} 0")
            }
            Self::Ended { who, lock, at } => write!(f, "ended {who} {lock} {at} 0"),
            Self::Lost { who, lock, at, unsure_ns } => {
                write!(f, "lost {who} {lock} {at} {unsure_ns} 0")
            }
            Self::Long { who, lock, before, after } => {
                write!(f, "long {who} {lock} {before} {after} 0")
            }
            Self::Waited { who, lock, from, to } => write!(f, "waited {who} {lock} {from} {to} 0"),
            Self::Gone { who, at } => write!(f, "gone {who} {at} 0"),
        }
    }
}

/// When a lease ends, in nanoseconds since 1970; `u64::MAX`: never.
pub fn end_ns(time_out: TimeOut) -> u64 {
    let anchor_ns = u64::from(time_out.anchor_s) * NS;
    anchor_ns.saturating_add(time_out.at.expiry().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_torn_one_is_not() {
        let granted = Granted {
            who: 1 << 40,
            lock: 2,
            mode: Mode::Shared,
            before: 3,
            after: 4,
            until_ns: Some(1 << 40),
            asked_s: 5,
            ticket: None,
            checked: 6,
            epoch: 13,
        };
        let records = [
            Record::Granted(granted),
            Record::Granted(Granted { until_ns: None, ticket: Some(7), ..granted }),
            Record::Ended { who: 8, lock: 9, at: 10 },
            Record::Lost { who: 8, lock: 9, at: 10, unsure_ns: 11 },
            Record::Long { who: 8, lock: 9, before: 10, after: 11 },
            Record::Waited { who: 8, lock: 9, from: 10, to: 11 },
            Record::Gone { who: 12, at: 1_000 },
        ];
        for record in records {
            let line = record.to_string();
            assert_eq!(Record::parse(&line), Some(record));
            for torn in 0..line.len() {
                let torn = Record::parse(&line[..torn]);
                assert!(torn.is_none(), "{torn:?} of {line}");
            }
        }
    }
}
