// SPDX-License-Identifier: MIT OR Apache-2.0
//! The epoch of a primary that starts: the wall clock in nanoseconds, or one more than every epoch
//! of its predecessors, whichever is larger. So epochs grow even if the clock was set back.

use crate::clock::NS;
use crate::ids::Epoch;

/// A lease that begins now must have an end for as long as a primary may run.
const YEAR_S: u64 = 366 * 86_400;

/// Why a primary gets no epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEpoch {
    /// The wall clock, in seconds, is so late that 32 bits of seconds could not tell the end of a
    /// lease.
    Clock(u64),
    /// The last epoch in the primary's own state file is the largest possible one.
    OwnIsLast,
    /// The last epoch in the state file of another primary is the largest possible one.
    OthersIsLast,
}

/// The epoch of a primary that starts at `wall_ns`. `own`: the last epoch in its state file;
/// `others`: the last epoch of predecessors with other state files.
///
/// # Errors
/// See [`NoEpoch`].
pub fn next(wall_ns: u64, own: Option<u64>, others: Option<u64>) -> Result<Epoch, NoEpoch> {
    let wall_s = wall_ns / NS;
    if wall_s + YEAR_S > u64::from(u32::MAX) {
        return Err(NoEpoch::Clock(wall_s));
    }
    let after = match own.max(others) {
        None => 1,
        Some(last) => last.checked_add(1).ok_or(match own == Some(last) {
            true => NoEpoch::OwnIsLast,
            false => NoEpoch::OthersIsLast,
        })?,
    };
    Ok(Epoch(after.max(wall_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_does_not_start_so_late_that_no_lease_could_be_told() {
        let end_ns = u64::from(u32::MAX) * NS;
        assert!(next(end_ns / 2, None, None).is_ok());
        for late in [end_ns, end_ns * 2, u64::MAX] {
            assert_eq!(next(late, None, None), Err(NoEpoch::Clock(late / NS)));
        }
    }

    #[test]
    fn epochs_grow_even_if_the_clock_goes_back() {
        assert_eq!(next(0, None, None), Ok(Epoch(1)), "0 is no epoch");
        assert_eq!(next(9, None, None), Ok(Epoch(9)));
        assert_eq!(next(9, Some(3), Some(4)), Ok(Epoch(9)));
        assert_eq!(next(9, Some(9), None), Ok(Epoch(10)));
        assert_eq!(next(9, Some(20), Some(30)), Ok(Epoch(31)));
        assert_eq!(next(9, Some(40), Some(30)), Ok(Epoch(41)));
    }

    #[test]
    fn no_epoch_comes_after_the_last() {
        let last = Some(u64::MAX);
        for others in [None, Some(1), last] {
            assert_eq!(next(9, last, others), Err(NoEpoch::OwnIsLast));
        }
        assert_eq!(next(9, Some(1), last), Err(NoEpoch::OthersIsLast));
    }
}
