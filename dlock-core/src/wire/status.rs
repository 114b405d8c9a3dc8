// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statuses of operations. Their numbers in the protocol are in [`codec`](crate::wire::codec),
//! their codes in the C API in `dlock-ffi/abi`.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident, $text:expr;)*) => {
        /// The result of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Status { $($(#[$doc])* #[doc = $text] $name,)* }

        impl Status {
            /// Every status, in the order of the table.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// The text for users, one line.
            pub fn text(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    Error, "the operation failed";
    Success, "success";
    Done, "done";
    Again, "queued: ask again";
    NoMemory, "out of memory";
    TimedOut, "the operation timed out";
    Invalid, "an argument is invalid";
    Ticket, "a ticket of the other mode is held";
    Async, "an asynchronous operation is pending";
    ClientNotInit, "the client is not initialised";
    LockNotGet, "the lock was not got by this client";
    AlreadyLocked, "this client holds the lock already";
    AlreadyUnlocked, "this client does not hold the lock";
    TicketToUnlock, "this client has a ticket for the lock: unlock it first";
    BadResponse, "no answer, or no valid answer, from the primary";
    Fail, "refused: the lock is held by another client, or was lost";
    NotReady, "the primary is not ready";
    NoAsync, "no asynchronous operation is pending";
    AsyncAgain, "the asynchronous operation is not finished: ask again";
    ClientRemoved, "the primary has removed this client";
    VersionMismatch, "no protocol version is common to client and primary";
    ServerNoResource, "the primary has no room for more, or cannot write its state";
    ObjectExisted, "another client owns an object of this name";
    ObjectCreated, "this client has created the object before";
    ObjectNotCreate, "no object of this name was created";
    ObjectInvalidOwner, "another client owns the object";
    ObjectNotGet, "the object was not got by this client";
    ObjectDestroyed, "the object was destroyed";
    ObjectTooMany, "the primary has no room for more objects";
    ObjectCasFailed, "the object has another value";
    Denied, "the rules of the primary do not allow it to this client's certificate";
}

impl Status {
    /// Whether this is the result of a call that finds no primary.
    pub fn is_without_primary(self) -> bool {
        matches!(self, Status::NotReady | Status::BadResponse)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Status {}
