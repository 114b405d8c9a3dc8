// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of statuses, in one table: in frames, and in the gate words of shared memory.
//!
//! A number never changes its meaning, and a new status gets a number that no version has used.
//! 0x2007, 0x200b and 0x200c are not used.

use crate::wire::status::Status;

macro_rules! numbers {
    ($($name:ident = $number:literal;)*) => {
        /// The number of a status in frames and gate words.
        #[inline]
        pub const fn status_to_wire(status: Status) -> i32 {
            // Exhaustive, so a new status without a number does not compile.
            match status { $(Status::$name => $number,)* }
        }

        /// The status with this number; `None`: the number is not used.
        #[inline]
        pub const fn status_from_wire(number: i32) -> Option<Status> {
            match number { $($number => Some(Status::$name),)* _ => None }
        }
    };
}

numbers! {
    Error = -1;
    Success = 0;
    Done = 1;
    Again = 0x1000;
    NoMemory = 0x1001;
    TimedOut = 0x1002;
    Invalid = 0x1003;
    Ticket = 0x1004;
    Async = 0x1005;
    ClientNotInit = 0x2000;
    LockNotGet = 0x2001;
    AlreadyLocked = 0x2002;
    AlreadyUnlocked = 0x2003;
    TicketToUnlock = 0x2004;
    BadResponse = 0x2005;
    Fail = 0x2006;
    NotReady = 0x2008;
    NoAsync = 0x2009;
    AsyncAgain = 0x200a;
    ClientRemoved = 0x200d;
    VersionMismatch = 0x200e;
    ServerNoResource = 0x200f;
    ObjectExisted = 0x3000;
    ObjectCreated = 0x3001;
    ObjectNotCreate = 0x3002;
    ObjectInvalidOwner = 0x3003;
    ObjectNotGet = 0x3004;
    ObjectDestroyed = 0x3005;
    ObjectTooMany = 0x3006;
    ObjectCasFailed = 0x3007;
    Denied = 0x4000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_number_of_its_own_and_converts_back() {
        for &status in Status::ALL {
            assert_eq!(status_from_wire(status_to_wire(status)), Some(status));
        }
        for number in [-2, 2, 0x2007, 0x200b, 0x200c, 0x2010, 0x4001] {
            assert_eq!(status_from_wire(number), None, "{number:#x}");
        }
    }

    /// The numbers, which no version may change: written down once more, in the
    /// order of the statuses, where the table cannot be changed with it by a slip.
    #[test]
    fn the_numbers_never_change() {
        let firsts = [-1..=1, 0x1000..=0x1005, 0x2000..=0x2006, 0x2008..=0x200a, 0x200d..=0x200f];
        let expected = firsts.into_iter().flatten().chain(0x3000..=0x3007).chain([0x4000]);
        let numbers = Status::ALL.iter().map(|&status| status_to_wire(status));
        assert!(numbers.eq(expected));
    }
}
