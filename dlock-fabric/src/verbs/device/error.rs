// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors up to the point at which a queue pair works; after that, completions report failures.

use std::io;

use super::doctor::memlock_limit;
use super::library::Absent;
use super::port_selection::NoPort;

/// Why a device, a registration or a queue pair could not be made: cause and remedy in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no library, so there are no devices.
    #[error("RDMA is not available: {0}")]
    Absent(#[from] Absent),
    /// No port fits the options.
    #[error(transparent)]
    NoPort(#[from] NoPort),
    /// A call failed.
    #[error("cannot {what}: {source}{}", remedy(.what, .source))]
    Call {
        /// The attempted operation.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The two ends do not fit together.
    #[error(
        "the peer's queue pair was refused: {0}; client and primary must use one RDMA network"
    )]
    Peer(&'static str),
    /// A queue has no room for this many work requests.
    #[error("a queue pair of {has} work requests cannot give {wanted} more; make it larger")]
    QueueTooSmall {
        /// The number of work requests that was asked for.
        wanted: u32,
        /// The number of work requests that the queue pair has.
        has: u32,
    },
    /// A forked child may not use its parent's device.
    #[error("this process is a forked child; it must open the device itself")]
    Forked,
}

impl VerbsError {
    /// Whether a resource has run out, on this host or at the device.
    pub fn is_exhausted(&self) -> bool {
        let Self::Call { source, .. } = self else { return false };
        let codes = [libc::ENOMEM, libc::ENOSPC, libc::EMFILE, libc::ENFILE, libc::EAGAIN];
        source.raw_os_error().is_some_and(|code| codes.contains(&code))
    }

    pub(in crate::verbs) fn call(what: &'static str, source: io::Error) -> Self {
        Self::Call { what, source }
    }

    /// The error that the system left in `errno`.
    pub(super) fn last(what: &'static str) -> Self {
        Self::call(what, io::Error::last_os_error())
    }

    /// Checks the result of a call that returns 0, or the number of an error.
    pub(super) fn check(what: &'static str, rc: libc::c_int) -> Result<(), Self> {
        match rc {
            0 => Ok(()),
            -1 => Err(Self::last(what)),
            code => Err(Self::call(what, io::Error::from_raw_os_error(code.abs()))),
        }
    }
}

/// The operation to which the limit of locked memory applies.
pub(super) const REGISTER: &str = "register memory";

/// The remedy for the usual causes.
fn remedy(what: &str, source: &io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::ENOMEM) if what == REGISTER => out_of_memory(memlock_limit()),
        Some(libc::ENOMEM | libc::ENOSPC) => "; the device has no more of them (rdma resource \
            show; ibv_devinfo -v: max_qp, max_cq, max_mr, max_pd), or the host no memory (free -m)"
            .into(),
        _ => plain_remedy(source).into(),
    }
}

/// The remedy for a failed registration. Registered memory is locked, and the kernel counts each
/// client's registrations separately.
fn out_of_memory(limit: Option<u64>) -> String {
    match limit {
        Some(bytes) => format!(
            "; only {} KiB may be locked: raise the limit (ulimit -l unlimited, \
             LimitMEMLOCK=infinity)",
            bytes / 1_024
        ),
        None => "; locked memory is not limited, so the host has none left (free -m), or the \
                 device no more registrations (ibv_devinfo -v: max_mr)"
            .into(),
    }
}

fn plain_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
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
        let text = |what, code| VerbsError::check(what, code).unwrap_err().to_string();
        for (what, code, remedy) in [
            (REGISTER, libc::ENOMEM, "memory"),
            ("make a queue pair", libc::ENOMEM, "max_qp"),
            ("make a completion channel", libc::EMFILE, "ulimit -n"),
            ("query a port", libc::EIO, "removed"),
        ] {
            let error = text(what, code);
            assert!(error.contains(what) && error.contains(remedy), "{error}");
            assert!(!error.contains(['\n', '\t']) && !error.contains("  "), "{error}");
        }
        assert!(
            out_of_memory(Some(65_536)).contains("64 KiB") && out_of_memory(None).contains("free")
        );
        assert!(VerbsError::check("x", 0).is_ok());
    }
}
