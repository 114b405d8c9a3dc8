// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors before a session exists; afterwards there are only statuses and outcomes.

use std::io;
use std::net::SocketAddr;

use dlock_core::wire::codec::FrameError;
use dlock_core::wire::status::Status;
use thiserror::Error;

use crate::os::denied;
use crate::tls::TlsError;
use crate::verbs::VerbsError;

/// Why a memory, a connection or a session could not be set up: cause and remedy in one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Memory could not be created or mapped.
    #[error(
        "cannot {what} of {bytes} bytes: {source}; {}",
        denied(source).unwrap_or("raise the memory or file limit (ulimit -v, -n)")
    )]
    Memory {
        /// The attempt that failed.
        what: &'static str,
        /// The size asked for.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The memory received from a peer is not as announced.
    #[error(
        "the primary's memory was refused: {0}; client and primary are not of the same version"
    )]
    MemoryRefused(&'static str),
    /// More slots than a word address can name.
    #[error("a lock memory of {slots} slots is too large; ask for at most {max}")]
    TooManySlots {
        /// The size asked for.
        slots: u32,
        /// The largest number of slots that is possible.
        max: u32,
    },
    /// A listener could not be set up.
    #[error(
        "cannot listen on {addr}: {source}; {}",
        denied(source).unwrap_or("is the port in use, or the address not this host's?")
    )]
    Listen {
        /// The address that was used.
        addr: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A connection could not be made.
    #[error(
        "cannot connect to {addr}: {source}; is the primary running, and reachable from here?"
    )]
    Connect {
        /// The address that was used.
        addr: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The process at the other end of a Unix socket is not trusted.
    #[error(
        "the peer runs as uid {uid}, not as this user or root; check who owns the primary, and \
         name that user in DLOCK_PRIMARY_USER if it may be trusted"
    )]
    Peer {
        /// The user id of that process.
        uid: u32,
    },
    /// The connection failed during the handshake.
    #[error("the connection failed during attach: {0}; see the primary's log")]
    Handshake(#[source] io::Error),
    /// The certificates or keys for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No answer in time.
    #[error("the primary did not answer the attach in time; is it stopped or overloaded?")]
    TimedOut,
    /// The answer was not a valid frame.
    #[error(
        "the primary's answer is not valid ({0}); client and primary are not of the same version"
    )]
    Frame(#[from] FrameError),
    /// A valid frame of the wrong kind.
    #[error(
        "the primary's answer is not the answer to an attach; is that port a dlock primary's?"
    )]
    Unexpected,
    /// The primary refused.
    #[error("the primary refused the attach: {0}; reinitialise the client")]
    Refused(Status),
    /// No RDMA device can be used, or the device failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl FabricError {
    /// The status of the C API for this error.
    pub fn status(&self) -> Status {
        match self {
            Self::Memory { .. } => Status::NoMemory,
            Self::TooManySlots { .. } => Status::ServerNoResource,
            Self::Refused(status) => *status,
            Self::TimedOut | Self::Frame(_) | Self::Unexpected | Self::Handshake(_) => {
                Status::BadResponse
            }
            _ => Status::Error,
        }
    }

    /// Whether this host has no usable RDMA device, so that another executor may be used instead.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Verbs(VerbsError::Absent(_) | VerbsError::NoPort(_)))
    }

    pub(crate) fn connect(addr: SocketAddr, source: io::Error) -> Self {
        Self::Connect { addr: addr.to_string(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_denied_is_not_said_to_be_beyond_a_limit() {
        let memory = |errno| FabricError::Memory {
            what: "create (memfd_create) a file",
            bytes: 1,
            source: io::Error::from_raw_os_error(errno),
        };
        for (errno, remedy) in [(libc::EPERM, "permit it"), (libc::EMFILE, "raise the memory")] {
            let said = memory(errno).to_string();
            assert!(said.contains(remedy), "{said}");
        }
        let source = io::Error::from_raw_os_error(libc::EPERM);
        let said = FabricError::Listen { addr: "@x".into(), source }.to_string();
        assert!(said.contains("permit it") && !said.contains("in use"), "{said}");
    }
}
