// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the calls for Rust programs.

use dlock_core::wire::status::Status;
use thiserror::Error as ThisError;

/// Why a call of [`Client`](crate::Client) or of a guard failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Another client, or another guard of this one, holds the lock.
    #[error("the lock is held already")]
    Held,
    /// The lock was not granted in the time that the program gave.
    #[error("the lock was not granted in time")]
    TimedOut,
    /// The lease ended and another client took the lock, or the primary took it away.
    #[error("the lock was lost before it was released")]
    Lost,
    /// No primary runs at the address, or it is recovering.
    #[error("the primary is not running, or not ready")]
    NotReady,
    /// The primary is recovering what clients hold, and admits no new clients until that is done.
    #[error("the primary recovers what clients held before it started")]
    Recovering,
    /// No valid answer came. The operation may or may not have taken effect; the next operation on
    /// the same lock finds out first.
    #[error("no answer from the primary")]
    Disconnected,
    /// The primary does not know this client any more.
    #[error("the primary has removed this client")]
    Removed,
    /// The client has left.
    #[error("the client has left its primary")]
    Left,
    /// The primary has no room for more clients, locks or objects, or cannot write its state.
    #[error("the primary has no room for more, or cannot write its state")]
    NoResource,
    /// Client and primary have no protocol version in common.
    #[error("client and primary have no protocol version in common")]
    VersionMismatch,
    /// An argument is out of its range; the text names the argument and the range.
    #[error("{0}")]
    Invalid(&'static str),
    /// An asynchronous operation of the underlying [`Instance`](crate::raw::Instance) is under way.
    #[error("an asynchronous operation is under way")]
    Busy,
    /// As many futures of the client wait as may wait at a time
    /// ([`FUTURES_MAX`](crate::FUTURES_MAX)).
    #[error("too many futures of this client wait already")]
    TooManyFutures,
    /// No object of this name exists.
    #[error("there is no object of this name")]
    NoObject,
    /// Another client owns the object.
    #[error("another client owns the object")]
    NotOwner,
    /// The object was destroyed.
    #[error("the object was destroyed")]
    Destroyed,
    /// The object has another value than expected.
    #[error("the object has another value")]
    Changed,
    /// The primary's rules do not permit the call to this client's certificate; the log names the
    /// right that is missing.
    #[error("the rules of the primary do not allow it to this client's certificate")]
    Denied,
    /// Any other failure; the reason is in the log.
    #[error("{0}")]
    Other(Status),
}

impl Error {
    /// The error for a status other than success.
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::Fail | Status::Again => Self::Held,
            Status::TimedOut => Self::TimedOut,
            Status::NotReady => Self::NotReady,
            Status::BadResponse => Self::Disconnected,
            Status::ClientRemoved => Self::Removed,
            Status::ClientNotInit => Self::Left,
            Status::ServerNoResource | Status::ObjectTooMany => Self::NoResource,
            Status::VersionMismatch => Self::VersionMismatch,
            Status::Denied => Self::Denied,
            Status::Async => Self::Busy,
            Status::ObjectNotCreate | Status::ObjectNotGet => Self::NoObject,
            Status::ObjectInvalidOwner | Status::ObjectExisted => Self::NotOwner,
            Status::ObjectDestroyed => Self::Destroyed,
            Status::ObjectCasFailed => Self::Changed,
            status => Self::Other(status),
        }
    }

    /// The error of a release or an extension, where `Fail` means that the hold is gone.
    pub(crate) fn of_holder(status: Status) -> Self {
        match status {
            // `LockNotGet`: a successor of the primary has refused the lock
            Status::Fail | Status::AlreadyUnlocked | Status::LockNotGet => Self::Lost,
            status => Self::of(status),
        }
    }

    /// The error for a status that may be success.
    pub(crate) fn check(status: Status) -> Result<(), Self> {
        match status {
            Status::Success => Ok(()),
            status => Err(Self::of(status)),
        }
    }
}
