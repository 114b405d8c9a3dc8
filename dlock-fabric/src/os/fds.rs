// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unix sockets: passing descriptors, and identifying the peer process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::os::clock::boot_ns;
use crate::os::sys::{check, named, now, poll_until, send_all};

/// Opens `/dev/null` for each of standard input, output and error that is closed, until this
/// process executes another program. Else a new descriptor could get such a number, and text for
/// standard error would be written into a connection.
///
/// To be called before descriptors are made, but only within calls of the program: on a thread of
/// the library it could take a number between a `close(1)` and an `open` of the program. Rust
/// programs do this at their start; a C program does not.
pub fn occupy_standard() {
    for place in libc::STDIN_FILENO..=libc::STDERR_FILENO {
        // SAFETY: an operation on a number, without pointers.
        if unsafe { libc::fcntl(place, libc::F_GETFD) } >= 0 {
            continue;
        }
        // SAFETY: the path is a terminated string.
        let raw = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if raw > libc::STDERR_FILENO {
            // SAFETY: made above; another thread has taken the number meanwhile.
            unsafe { libc::close(raw) };
        }
    }
}

/// Descriptors that one message may carry.
pub const FDS_MAX: usize = 4;

/// Room for the control data of [`FDS_MAX`] descriptors.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// Sends all bytes by the deadline, with descriptors attached to the first of them.
///
/// # Errors
/// `InvalidInput` for no bytes or more than [`FDS_MAX`] descriptors; `TimedOut`; an error of the
/// socket. Never raises SIGPIPE.
pub fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    until_ns: u64,
) -> io::Result<()> {
    if bytes.is_empty() || fds.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if fds.is_empty() {
        return send_all(socket, bytes, until_ns);
    }
    let mut room = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match now("sendmsg", || sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))? {
            Some(sent) => return send_all(socket, &bytes[sent..], until_ns),
            None if boot_ns() >= until_ns => return Err(io::ErrorKind::TimedOut.into()),
            None => poll_until(socket, PollFlags::OUT, until_ns).map(drop)?,
        }
    }
}

/// Receives the bytes that are there, and the descriptors that came with them (closed on exec).
/// `None`: nothing has come yet; `Some(0)`: the peer has closed.
///
/// # Errors
/// `InvalidData` if the peer attached more than [`FDS_MAX`] descriptors or control data that does
/// not fit; an error of the socket. All received descriptors are closed then.
pub fn receive_with_fds(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Option<usize>> {
    let mut room = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        now("recvmsg", || recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags))?;
    let Some(received) = received else { return Ok(None) };
    // All received descriptors are owned from here on, and closed on every early return.
    let came: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if is_cut || fds.len() + came.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    fds.extend(came);
    Ok(Some(received.bytes))
}

/// The peer of a Unix socket when it connected, as the kernel saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process id; `None` if its pid namespace is not visible here.
    pub pid: Option<i32>,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

impl Credentials {
    /// The credentials of the peer of a Unix stream socket.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let raw: libc::ucred = option(socket, libc::SO_PEERCRED)?;
        Ok(Self { pid: (raw.pid > 0).then_some(raw.pid), uid: raw.uid, gid: raw.gid })
    }

    /// Whether a client with these credentials may map this process's lock memory: it runs as this
    /// user, as root, or as one of `users`.
    pub fn may_map(self, users: &[u32]) -> bool {
        self.may_map_of(me(), users)
    }

    /// Whether this process may map the lock memory of a primary with these credentials: the
    /// primary runs as this user, as root, or as one of `users`, or this process runs as root.
    pub fn may_be_mapped(self, users: &[u32]) -> bool {
        me() == 0 || self.may_map(users)
    }

    fn may_map_of(self, me: u32, users: &[u32]) -> bool {
        self.uid == me || self.uid == 0 || users.contains(&self.uid)
    }
}

/// The effective user of this process.
fn me() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

/// A socket option that `rustix` lacks, or for which it does not accept the pid 0 of a peer in an
/// invisible pid namespace.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `len` bytes.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &mut len,
        )
    })
    .map_err(|error| named("getsockopt", error))?;
    if len as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel wrote all of it. `T` is `ucred` or `c_int`, valid for all bytes.
    Ok(unsafe { value.assume_init() })
}

/// A process at the other end of a Unix socket, and whether it has ended.
///
/// Identified by a pidfd from the socket itself (Linux 6.5); else by a pidfd opened by number while
/// the connection shows that the peer lives; else by its number and start time in /proc.
#[derive(Debug)]
pub struct PeerProcess {
    identity: Identity,
}

#[derive(Debug)]
enum Identity {
    Pidfd(OwnedFd),
    Started { pid: i32, ticks: u64 },
    Unknown,
}

impl PeerProcess {
    /// The peer of a Unix stream socket.
    pub fn of_peer(socket: BorrowedFd<'_>) -> Self {
        if let Ok(raw) = option::<libc::c_int>(socket, libc::SO_PEERPIDFD) {
            if raw >= 0 {
                // SAFETY: a descriptor that the kernel has just made for this call.
                let fd = unsafe { OwnedFd::from_raw_fd(raw) };
                return Self { identity: Identity::Pidfd(fd) };
            }
        }
        let identity = match Credentials::of_peer(socket) {
            Ok(Credentials { pid: Some(pid), .. }) => by_number(pid),
            _ => Identity::Unknown,
        };
        // The number was that of the peer if the peer has its end open now.
        if is_open(socket) {
            Self { identity }
        } else {
            Self { identity: Identity::Unknown }
        }
    }

    /// Whether the process and all its threads have ended. A process that cannot be identified
    /// counts as living.
    pub fn is_gone(&self) -> bool {
        match &self.identity {
            Identity::Pidfd(fd) => {
                let ended = poll_until(fd.as_fd(), PollFlags::IN, 0);
                ended.is_ok_and(|events| events.intersects(PollFlags::IN | PollFlags::HUP))
            }
            Identity::Started { pid, ticks } => match process_stat(*pid) {
                Some(stat) => stat.ticks != *ticks || stat.ended,
                None => !std::path::Path::new(&format!("/proc/{pid}")).exists(),
            },
            Identity::Unknown => false,
        }
    }

    /// A descriptor for epoll that becomes readable when the process has ended; `None`: the caller
    /// has to ask [`is_gone`](Self::is_gone) from time to time.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.identity {
            Identity::Pidfd(fd) => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Whether the process could be identified. If not, it never counts as gone.
    pub fn is_known(&self) -> bool {
        !matches!(self.identity, Identity::Unknown)
    }
}

fn by_number(pid: i32) -> Identity {
    let opened = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    if let Some(Ok(fd)) = opened {
        return Identity::Pidfd(fd);
    }
    match process_stat(pid) {
        Some(stat) => Identity::Started { pid, ticks: stat.ticks },
        None => Identity::Unknown,
    }
}

/// Whether the peer of a stream socket has not closed it; one system call.
pub fn is_open(socket: BorrowedFd<'_>) -> bool {
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    poll_until(socket, PollFlags::RDHUP, 0).is_ok_and(|events| !events.intersects(gone))
}

/// The state of a process from /proc.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Start time, clock ticks after boot.
    pub ticks: u64,
    /// The process id of the process's parent, which waits for its end.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// Whether the process is a zombie without threads. A process whose first thread alone has
    /// ended is a zombie by its state, too, but lives.
    pub ended: bool,
    /// Whether a signal or a debugger has stopped the process.
    pub stopped: bool,
}

/// The state of the process with this number; `None`: no such process exists, or it is not visible.
pub fn process_stat(pid: i32) -> Option<ProcessStat> {
    parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// `PID (NAME) STATE PARENT GROUP …`; the name may have any bytes, the fields after it do not.
fn parse(stat: &[u8]) -> Option<ProcessStat> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let (state, threads, started) = (fields.first()?, fields.get(17)?, fields.get(19)?);
    Some(ProcessStat {
        ticks: started.parse().ok()?,
        parent: fields[1].parse().ok()?,
        group: fields[2].parse().ok()?,
        ended: matches!(*state, "Z" | "X") && threads.parse::<u32>().ok()? <= 1,
        stopped: matches!(*state, "T" | "t"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock::deadline_in;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    fn soon() -> u64 {
        deadline_in(Duration::from_secs(5))
    }

    fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
        let link = |fd: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
        };
        link(a) == link(b)
    }

    #[test]
    fn descriptors_arrive_with_the_bytes_and_are_closed_on_exec() {
        let (a, b) = UnixStream::pair().unwrap();
        let (x, y) = UnixStream::pair().unwrap();
        send_with_fds(a.as_fd(), b"hello", &[x.as_fd(), y.as_fd()], soon()).unwrap();
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        assert_eq!(receive_with_fds(b.as_fd(), &mut bytes, &mut fds).unwrap(), Some(5));
        assert_eq!(&bytes[..5], b"hello");
        assert_eq!(fds.len(), 2);
        assert!(same_file(fds[0].as_fd(), x.as_fd()) && same_file(fds[1].as_fd(), y.as_fd()));
        for fd in &fds {
            // SAFETY: an operation on a descriptor, without pointers.
            let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
        assert_eq!(receive_with_fds(b.as_fd(), &mut bytes, &mut fds).unwrap(), None);
        drop(a);
        // the child process of another test may have a copy of the descriptor for a moment
        poll_until(b.as_fd(), PollFlags::IN, soon()).unwrap();
        assert_eq!(receive_with_fds(b.as_fd(), &mut bytes, &mut fds).unwrap(), Some(0));
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (a, b) = UnixStream::pair().unwrap();
        let (watched, other) = UnixStream::pair().unwrap();
        let borrowed = [other.as_fd(); FDS_MAX + 1];
        assert!(send_with_fds(a.as_fd(), b"x", &borrowed, soon()).is_err());
        // twice as many descriptors as fit into one message; the reader takes the two messages one
        // after the other
        let (mut bytes, mut fds) = ([0; 4], Vec::new());
        for _ in 0..2 {
            send_with_fds(a.as_fd(), b"x", &borrowed[..FDS_MAX], soon()).unwrap();
        }
        assert_eq!(receive_with_fds(b.as_fd(), &mut bytes, &mut fds).unwrap(), Some(1));
        let error = receive_with_fds(b.as_fd(), &mut bytes, &mut fds).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop((fds, other));
        // Every copy is closed: the other end of the pair sees it.
        let events = poll_until(watched.as_fd(), PollFlags::IN, soon()).unwrap();
        assert!(events.contains(PollFlags::HUP));
    }

    #[test]
    fn the_peer_of_a_socket_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = Credentials::of_peer(a.as_fd()).unwrap();
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        assert!(peer.may_map(&[]) && peer.may_be_mapped(&[]));
        let process = PeerProcess::of_peer(a.as_fd());
        assert!(process.is_known() && !process.is_gone());
    }

    #[test]
    fn memory_is_mapped_by_the_same_user_by_root_and_by_those_that_are_named() {
        let peer = |uid| Credentials { pid: Some(1), uid, gid: 0 };
        assert!(peer(1_000).may_map_of(1_000, &[]));
        assert!(peer(0).may_map_of(1_000, &[]));
        assert!(!peer(1_000).may_map_of(0, &[]), "a primary of root is no exception");
        assert!(!peer(1_001).may_map_of(1_000, &[]));
        assert!(peer(u32::MAX).may_map_of(0, &[1, u32::MAX]));
    }

    #[test]
    fn a_process_is_gone_when_it_has_ended_however_it_is_known() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let ticks = process_stat(pid).unwrap().ticks;
        let known = [
            PeerProcess { identity: by_number(pid) },
            PeerProcess { identity: Identity::Started { pid, ticks } },
        ];
        assert!(known.iter().all(|process| !process.is_gone()));
        drop(child.stdin.take());
        // a process that has ended counts as ended before its parent has waited for it
        if let Some(fd) = known[0].pidfd() {
            poll_until(fd, PollFlags::IN, soon()).unwrap();
            assert!(known.iter().all(PeerProcess::is_gone));
        }
        child.wait().unwrap();
        assert!(known.iter().all(PeerProcess::is_gone));
    }

    #[test]
    fn a_name_of_any_bytes_hides_no_field_of_a_process() {
        let fields = "S 34 56 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 77 9";
        let read = |name: &[u8]| parse(&[name, fields.as_bytes()].concat());
        let (ended, stopped) = (false, false);
        let stat = ProcessStat { ticks: 77, parent: 34, group: 56, ended, stopped };
        assert_eq!(read(b"12 (a) Z) b) ").as_ref(), Some(&stat));
        assert_eq!(read(b"12 (\xff\xfe) "), Some(stat));
        for cut in [&b"12 (sh"[..], b"12 (sh) ", b"12 (sh) S 34 56 1", b""] {
            assert_eq!(parse(cut), None);
        }
    }

    extern "C" fn ends_with_the_socket(fd: *mut libc::c_void) -> *mut libc::c_void {
        let mut byte = [0_u8; 1];
        // SAFETY: the child reads into a byte of its own, and ends without running destructors.
        unsafe {
            libc::read(fd as libc::c_int, byte.as_mut_ptr().cast(), 1);
            libc::_exit(0)
        }
    }

    #[test]
    fn a_process_lives_whose_first_thread_has_ended() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child only starts a thread and makes system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let fd = theirs.as_raw_fd() as *mut libc::c_void;
            let mut thread = 0;
            // SAFETY: the function takes a descriptor, which stays open; only this thread ends.
            unsafe {
                libc::close(ours.as_raw_fd());
                libc::pthread_create(&raw mut thread, std::ptr::null(), ends_with_the_socket, fd);
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        drop(theirs);
        let is_zombie = || {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            text.rsplit_once(')').unwrap().1.starts_with(" Z")
        };
        let soon = soon();
        while !is_zombie() {
            assert!(boot_ns() < soon, "its first thread ends");
            std::thread::yield_now();
        }
        assert!(!process_stat(pid).unwrap().ended);
        assert!(!PeerProcess { identity: by_number(pid) }.is_gone());
        drop(ours);
        while !process_stat(pid).unwrap().ended {
            assert!(boot_ns() < soon, "its last thread ends");
            std::thread::yield_now();
        }
        // SAFETY: a child of this process.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}
