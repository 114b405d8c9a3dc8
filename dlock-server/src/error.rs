// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a primary does not start: each error is one line with the cause and the remedy.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use dlock_core::wire::status::Status;
use dlock_fabric::os::denied;
use dlock_fabric::FabricError;
use rustix::io::Errno;
use thiserror::Error;

use crate::host::capacity::Capacity;
use crate::host::cpuset::CpuSetError;

/// Why a primary does not start. Everything it had opened is closed again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A value of the configuration is out of its range.
    #[error("{0}")]
    Config(String),
    /// The CPUs given for a thread are not a valid list.
    #[error("the {thread} thread's cpuset `{}` is not valid: {source}", text.escape_debug())]
    CpuSet {
        /// The name of the thread.
        thread: &'static str,
        /// The CPUs as the configuration gives them.
        text: String,
        /// The error in the text.
        source: CpuSetError,
    },
    /// A thread may not run on the CPUs it was given.
    #[error("the {thread} thread cannot run on the CPUs `{}`: {source}; choose CPUs that are online and allowed to this process (taskset -p)", text.escape_debug())]
    Affinity {
        /// The name of the thread.
        thread: &'static str,
        /// The CPUs as the configuration gives them.
        text: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The clock is too late: deadlines are 32 bits of seconds since 1970.
    #[error("this host's clock says {} s since 1970, and leases end by February 2106: set the clock (date, chronyc makestep)", .0)]
    Clock(u64),
    /// The port is taken.
    #[error("cannot listen on {0}: the port is in use; stop the other program (ss -ltnp) or choose another port")]
    PortInUse(SocketAddr),
    /// The address is not one of this host.
    #[error(
        "cannot listen on {0}: the address is not of this host; choose one that `ip address` shows"
    )]
    NotMyAddress(SocketAddr),
    /// The port is below 1024, and the privilege for that is missing.
    #[error("cannot listen on {0}: the port is below 1024, which needs CAP_NET_BIND_SERVICE; choose a port from 1024 on, or give the capability")]
    NotPermitted(SocketAddr),
    /// Any other failure of the listener.
    #[error(
        "cannot listen on {addr}: {call}: {source}{}",
        more_files(source).unwrap_or("; check the address and this host's network")
    )]
    Listen {
        /// The address to listen on.
        addr: SocketAddr,
        /// The system call that failed.
        call: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A system call that needs no privilege is denied.
    #[error("{what}: the system call {call} is denied ({source}), by a seccomp filter, a container or a security module; permit it for this program")]
    CallDenied {
        /// What needs the call.
        what: String,
        /// The system call.
        call: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The limits of this process cannot be read.
    #[error("the limits of this process cannot be read: {0}; {remedy}", remedy = limits_remedy(.0))]
    Limits(io::Error),
    /// No RDMA device has this name.
    #[error("there is no RDMA device `{}`; leave the device name out to serve without it", .0.escape_debug())]
    NoDevice(String),
    /// Verbs are demanded or a device is named, and no device can be used.
    #[error("{0}; or serve without RDMA: name no device, and turn verbs off")]
    Verbs(FabricError),
    /// The lock memory, or the socket for sharing it, cannot be made.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system gives no random numbers.
    #[error(
        "the system gives no random numbers: {0}; make /dev/urandom or getrandom(2) available"
    )]
    Random(getrandom::Error),
    /// The state file cannot be used.
    #[error("the state file {path:?}: {source}{}", state_remedy(source))]
    StateFile {
        /// The path of the state file.
        path: PathBuf,
        /// Why the file or socket cannot be used.
        source: io::Error,
    },
    /// The list of a predecessor with another state file cannot be used.
    #[error("an earlier primary on this port may have had the state file {path:?}, as with another /etc/machine-id, XDG_STATE_HOME or HOME, and it cannot be read: {source}; mend it, or name this primary's own with --state-file")]
    EarlierStateFile {
        /// The path of the state file.
        path: PathBuf,
        /// Why the file or socket cannot be used.
        source: io::Error,
    },
    /// The admin endpoint's socket cannot be made.
    #[error("the admin socket {path:?}: {source}; choose a path in a folder that exists and can be written, and that no other primary uses")]
    AdminSocket {
        /// The socket's path.
        path: PathBuf,
        /// Why the file or socket cannot be used.
        source: io::Error,
    },
    /// The limit of open files leaves no room for a client.
    #[error("it could serve no client: {0}")]
    NoRoom(Capacity),
    /// The system starts no more threads.
    #[error("cannot start the {0} thread: the limit of threads is reached; raise it (ulimit -u, TasksMax= of the unit, pids.max of the cgroup), or end other programs of this user")]
    NoThread(&'static str),
    /// What a thread waits on, such as its poll, cannot be made.
    #[error("cannot start the {thread} thread: {source}; {}", thread_remedy(source))]
    Thread {
        /// The name of the thread.
        thread: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// The remedy if this is the limit of open files.
fn more_files(source: &io::Error) -> Option<&'static str> {
    let errno = source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
        .then_some("; raise the limit of open files (ulimit -n, LimitNOFILE= of the unit)")
}

/// The remedy if a thread cannot start.
pub fn thread_remedy(source: &io::Error) -> &'static str {
    denied(source).unwrap_or("raise the limit of open files (ulimit -n, LimitNOFILE= of the unit)")
}

/// The remedy if the limits of this process cannot be read.
fn limits_remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "mount /proc, which a primary needs",
        _ => {
            "if a seccomp filter, a container or a security module denies it, permit it for this \
             program"
        }
    }
}

/// The remedy for a state file; empty if the reason contains it.
fn state_remedy(source: &io::Error) -> &'static str {
    if let Some(more_files) = more_files(source) {
        return more_files;
    }
    match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::ResourceBusy => "",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room on its file system, or raise the quota"
        }
        _ => "; check that it is this primary's and that its folder can be written",
    }
}

impl StartError {
    /// The status that `server_start` of the C API returns for this error.
    pub fn status(&self) -> Status {
        match self {
            Self::Fabric(FabricError::Memory { .. } | FabricError::TooManySlots { .. }) => {
                Status::ServerNoResource
            }
            _ => Status::Error,
        }
    }

    pub(crate) fn listen(addr: SocketAddr, call: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(addr),
            io::ErrorKind::AddrNotAvailable => Self::NotMyAddress(addr),
            io::ErrorKind::PermissionDenied
                if call == "bind" && (1..1024).contains(&addr.port()) =>
            {
                Self::NotPermitted(addr)
            }
            io::ErrorKind::PermissionDenied => {
                Self::CallDenied { what: format!("cannot listen on {addr}"), call, source }
            }
            _ => Self::Listen { addr, call, source },
        }
    }

    /// The error for a thread that the system has not started.
    pub(crate) fn thread(thread: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::WouldBlock => Self::NoThread(thread),
            _ => Self::Thread { thread, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_proc_is_told_to_mount_it() {
        let missing = StartError::Limits(io::ErrorKind::NotFound.into()).to_string();
        assert!(missing.contains("mount /proc") && !missing.contains("seccomp"), "{missing}");
        let denied = StartError::Limits(io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(denied.contains("seccomp"), "{denied}");
    }

    #[test]
    fn a_limit_is_not_taken_for_a_state_file_of_another_primary() {
        let said = |source| StartError::StateFile { path: "state".into(), source }.to_string();
        let of = |errno: Errno| said(io::Error::from(errno));
        assert!(of(Errno::MFILE).ends_with("(ulimit -n, LimitNOFILE= of the unit)"));
        assert!(of(Errno::NOSPC).contains("make room"));
        assert!(of(Errno::ACCESS).contains("check that it is this primary's"));
        let damaged = said(io::Error::new(io::ErrorKind::InvalidData, "it is damaged; restore it"));
        assert_eq!(damaged, "the state file \"state\": it is damaged; restore it");
    }
}
