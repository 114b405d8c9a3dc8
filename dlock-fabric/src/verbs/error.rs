// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong before a queue pair works; afterwards there are completions.

use std::io;

use super::choice::NoPort;
use super::library::Absent;

/// Why a device, a registration or a queue pair could not be had: cause and remedy in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// No library, so no devices.
    #[error("RDMA is not available: {0}")]
    Absent(#[from] Absent),
    /// No port that was asked for.
    #[error(transparent)]
    NoPort(#[from] NoPort),
    /// A call failed.
    #[error("cannot {what}: {source}{}", remedy(.source))]
    Call {
        /// What was attempted.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The two ends do not fit.
    #[error(
        "the peer's queue pair was refused: {0}; client and primary must use one RDMA network"
    )]
    Peer(&'static str),
    /// More was asked of a queue pair than it was made for.
    #[error("a queue pair of {has} work requests cannot give {wanted} more; make it larger")]
    QueueTooSmall {
        /// What is asked for.
        wanted: u32,
        /// What there is.
        has: u32,
    },
    /// A forked child may not use its parent's device.
    #[error("this process is a forked child; it must open the device itself")]
    Forked,
}

impl VerbsError {
    pub(super) fn call(what: &'static str, source: io::Error) -> Self {
        Self::Call { what, source }
    }

    /// The reason that the system left in `errno`.
    pub(super) fn last(what: &'static str) -> Self {
        Self::call(what, io::Error::last_os_error())
    }

    /// A call that returns 0, or the number of an error.
    pub(super) fn check(what: &'static str, rc: libc::c_int) -> Result<(), Self> {
        match rc {
            0 => Ok(()),
            -1 => Err(Self::last(what)),
            code => Err(Self::call(what, io::Error::from_raw_os_error(code.abs()))),
        }
    }
}

/// What helps against the usual reasons.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l unlimited)",
        Some(libc::EACCES | libc::EPERM) => {
            "; permit access to /dev/infiniband/uverbs* (group rdma)"
        }
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "; is the peer's address reachable from this port (ip route, ip neigh)?"
        }
        Some(libc::ENODEV | libc::EIO) => "; has the device been removed? (rdma link)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_cause_and_remedy_in_one_line() {
        let error = VerbsError::check("register memory", libc::ENOMEM).unwrap_err().to_string();
        assert!(error.contains("register memory") && error.contains("ulimit -l"), "{error}");
        assert!(!error.contains('\n'));
        assert!(VerbsError::check("x", 0).is_ok());
    }
}
