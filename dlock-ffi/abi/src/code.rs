// SPDX-License-Identifier: MIT OR Apache-2.0
//! The codes of the C API in one table: `dlock_status_t` of `include/dlock_types.h`, and the status
//! of [`dlock_core`] for each.

use std::os::raw::c_int;

use dlock_core::wire::status::Status;

macro_rules! codes {
    ($($name:ident = $code:literal $(, $status:ident)?;)*) => {
        $(
            #[doc = concat!("`DLOCK_", stringify!($name), "`.")]
            pub const $name: c_int = $code;
        )*

        /// The code of a status.
        #[inline]
        pub const fn of(status: Status) -> c_int {
            // Exhaustive, so a new status without a code does not compile.
            match status {
                Status::Error | Status::Denied => ERROR,
                $($(Status::$status => $name,)?)*
            }
        }

        /// Every code with its name, for comparison with the header.
        #[cfg(test)]
        const TABLE: &[(&str, c_int)] =
            &[$((concat!("DLOCK_", stringify!($name)), $name)),*];
    };
}

/// The call failed, and the log says why; the only code that is not in `dlock_status_t`.
pub const ERROR: c_int = -1;

// A code without a status is returned by the C libraries themselves, or never.
codes! {
    SUCCESS = 0, Success;
    DONE = 1, Done;
    EAGAIN = 0x1000, Again;
    ENOMEM = 0x1001, NoMemory;
    ETIMEOUT = 0x1002, TimedOut;
    EINVAL = 0x1003, Invalid;
    ETICKET = 0x1004, Ticket;
    EASYNC = 0x1005, Async;
    CLIENT_NOT_INIT = 0x2000, ClientNotInit;
    LOCK_NOT_GET = 0x2001, LockNotGet;
    ALREADY_LOCKED = 0x2002, AlreadyLocked;
    ALREADY_UNLOCKED = 0x2003, AlreadyUnlocked;
    TICKET_TO_UNLOCK = 0x2004, TicketToUnlock;
    BAD_RESPONSE = 0x2005, BadResponse;
    FAIL = 0x2006, Fail;
    CLIENTMGR_NOT_INIT = 0x2007;
    NOT_READY = 0x2008, NotReady;
    NO_ASYNC = 0x2009, NoAsync;
    ASYNC_AGAIN = 0x200a, AsyncAgain;
    REPLICA_INIT_FAIL = 0x200b;
    SERVER_NOT_INIT = 0x200c;
    CLIENT_REMOVED_BY_SERVER = 0x200d, ClientRemoved;
    PROTO_VERSION_NEGOTIATION_FAIL = 0x200e, VersionMismatch;
    SERVER_NO_RESOURCE = 0x200f, ServerNoResource;
    OBJECT_ALREADY_EXISTED = 0x3000, ObjectExisted;
    OBJECT_ALREADY_CREATED = 0x3001, ObjectCreated;
    OBJECT_NOT_CREATE = 0x3002, ObjectNotCreate;
    OBJECT_INVALID_OWNER = 0x3003, ObjectInvalidOwner;
    OBJECT_NOT_GET = 0x3004, ObjectNotGet;
    OBJECT_ALREADY_DESTROYED = 0x3005, ObjectDestroyed;
    OBJECT_TOO_MANY = 0x3006, ObjectTooMany;
    OBJECT_CAS_FAILED = 0x3007, ObjectCasFailed;
}

/// The code of a data-path call. For a client that its primary has removed, the C API has no code
/// on the data path: the call returns the code for a missing answer. A call that the rules do not
/// allow returns the code for an operation that the lock does not have, because calling again does
/// not help.
#[inline]
pub const fn on_data_path(status: Status) -> c_int {
    match status {
        Status::ClientRemoved => BAD_RESPONSE,
        Status::Denied => EINVAL,
        status => of(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_c_header() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/dlock_types.h");
        let header = std::fs::read_to_string(path).expect("the C header");
        let lines = header.lines().skip_while(|line| !line.contains("enum dlock_status {"));
        let lines = lines.take_while(|line| !line.contains("} dlock_status_t;"));
        let of_header: Vec<_> = lines.filter_map(constant).collect();
        assert_eq!(TABLE, of_header);
    }

    /// Parses a line `NAME = number,` of an enumeration.
    fn constant(line: &str) -> Option<(&str, c_int)> {
        let (name, rest) = line.trim().split_once(" = ")?;
        let number = rest.split([',', ' ']).next()?;
        let number = match number.strip_prefix("0x") {
            Some(digits) => c_int::from_str_radix(digits, 16),
            None => number.parse(),
        };
        Some((name, number.expect("a number")))
    }

    #[test]
    fn each_status_has_a_code_of_its_own_and_a_removed_client_is_told_that_nobody_answers() {
        let codes: std::collections::HashSet<_> = Status::ALL.iter().map(|&s| of(s)).collect();
        assert_eq!(codes.len(), Status::ALL.len() - 1, "who is denied gets the code of an error");
        assert_eq!((of(Status::Denied), on_data_path(Status::Denied)), (ERROR, EINVAL));
        for &status in Status::ALL {
            let told = match status {
                Status::ClientRemoved => Status::BadResponse,
                Status::Denied => Status::Invalid,
                status => status,
            };
            assert_eq!(on_data_path(status), of(told), "{status:?}");
        }
    }
}
