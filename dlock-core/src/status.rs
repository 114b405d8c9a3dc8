// SPDX-License-Identifier: MIT OR Apache-2.0
//! The status codes of the C API, in one table.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:expr, $text:expr;)*) => {
        /// What an operation came to. The discriminants are `dlock_status_t` of the C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Status { $($(#[$doc])* #[doc = $text] $name = $code,)* }

        impl Status {
            /// Every status, in the order of the table.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// `None` if the number is no status.
            pub fn from_code(code: i32) -> Option<Status> {
                match code { $($code => Some(Status::$name),)* _ => None }
            }

            /// One line for a person.
            pub fn text(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    Error = -1, "the operation failed";
    Success = 0, "success";
    Done = 1, "done";
    Again = 0x1000, "queued: ask again";
    NoMemory = 0x1001, "out of memory";
    TimedOut = 0x1002, "the operation timed out";
    Invalid = 0x1003, "an argument is invalid";
    Ticket = 0x1004, "a ticket of the other mode is held";
    Async = 0x1005, "an asynchronous operation is pending";
    ClientNotInit = 0x2000, "the client is not initialised";
    LockNotGet = 0x2001, "the lock was not got by this client";
    AlreadyLocked = 0x2002, "this client holds the lock already";
    AlreadyUnlocked = 0x2003, "this client does not hold the lock";
    TicketToUnlock = 0x2004, "this client has a ticket for the lock: unlock it first";
    BadResponse = 0x2005, "no answer, or no valid answer, from the primary";
    Fail = 0x2006, "refused: the lock is held by another client, or was lost";
    ClientMgrNotInit = 0x2007, "the client library is not initialised";
    NotReady = 0x2008, "the primary is not ready";
    NoAsync = 0x2009, "no asynchronous operation is pending";
    AsyncAgain = 0x200a, "the asynchronous operation is not finished: ask again";
    ReplicaInitFail = 0x200b, "the replica could not be started";
    ServerNotInit = 0x200c, "the server is not initialised";
    ClientRemoved = 0x200d, "the primary has removed this client";
    VersionMismatch = 0x200e, "no protocol version is common to client and primary";
    ServerNoResource = 0x200f, "the primary has no room for more";
    ObjectExisted = 0x3000, "another client owns an object of this name";
    ObjectCreated = 0x3001, "this client has created the object before";
    ObjectNotCreate = 0x3002, "no object of this name was created";
    ObjectInvalidOwner = 0x3003, "another client owns the object";
    ObjectNotGet = 0x3004, "the object was not got by this client";
    ObjectDestroyed = 0x3005, "the object was destroyed";
    ObjectTooMany = 0x3006, "the primary has no room for more objects";
    ObjectCasFailed = 0x3007, "the object has another value";
}

impl Status {
    /// The number the C API returns.
    pub fn code(self) -> i32 {
        self as i32
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#x})", self.text(), self.code())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_converts_back() {
        for &s in Status::ALL {
            assert_eq!(Status::from_code(s.code()), Some(s));
        }
        assert_eq!(Status::from_code(0x4000), None);
    }
}
