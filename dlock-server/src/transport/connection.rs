// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections on either thread, over any transport.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use dlock_core::ids::{ClientId, Identity};
use dlock_fabric::os::named;
use dlock_fabric::os::net;
use dlock_fabric::tls::sealing::SealSecrets;
use dlock_fabric::tls::{PeerChain, PeerIdentity};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::error::StartError;
use crate::host::random;

/// What a peer has shown in a handshake.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Whose certificate it is, to membership.
    pub(crate) identity: Identity,
    /// Its names, for people and as rules have them.
    pub(crate) peer: PeerIdentity,
    pub(crate) names: Vec<String>,
    /// Its certificate, and those that came with it.
    pub(crate) chain: PeerChain,
    /// By what it was judged ([`Tls::loads`](dlock_fabric::tls::Tls::loads)).
    pub(crate) judged_by: u64,
}

impl Shown {
    /// By this peer, with this chain.
    pub(crate) fn of(peer: PeerIdentity, chain: PeerChain, by: u64) -> Self {
        let (identity, names) = (Identity(*peer.digest()), peer.rule_names());
        Self { identity, peer, names, chain, judged_by: by }
    }
}

/// A connection of the control thread.
pub(crate) trait Conn: AsyncRead + AsyncWrite + Unpin + Send + Sync {
    /// Its socket, to ask it who the peer is.
    fn socket(&self) -> BorrowedFd<'_>;

    /// What the peer has shown; `None`: no certificate is asked for.
    fn shown(&self) -> Option<&Arc<Shown>> {
        None
    }

    /// Whose certificate the peer has shown.
    fn identity(&self) -> Option<Identity> {
        self.shown().map(|shown| shown.identity)
    }

    /// What this client's data path beside the connection is sealed with; `None`: there is no TLS.
    fn seal_secrets(&self, _client: ClientId) -> Option<SealSecrets> {
        None
    }

    /// The same for the command thread, with everything that belongs to it.
    ///
    /// # Errors
    /// It is lost.
    fn into_line(self: Box<Self>) -> io::Result<Box<dyn Line>>;
}

/// A connection of the command thread; nonblocking. Its descriptor is for the poll.
///
/// What `write` has taken is at the socket once `flush` has succeeded. `Interrupted`: something was
/// done, and there may be more to do at once.
pub(crate) trait Line: Read + Write + AsFd + Send + Debug {
    /// Whether the poll will tell when there is more, after a read that did not fill its buffer.
    fn is_emptied(&self) -> bool {
        true
    }
}

impl Line for std::net::TcpStream {}
impl Line for std::os::unix::net::UnixStream {}

impl Conn for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn into_line(self: Box<Self>) -> io::Result<Box<dyn Line>> {
        Ok(Box::new(self.into_std()?))
    }
}

impl Conn for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn into_line(self: Box<Self>) -> io::Result<Box<dyn Line>> {
        Ok(Box::new(self.into_std()?))
    }
}

/// A Unix socket in the abstract namespace, under a name that cannot be guessed beforehand.
pub(super) fn listen_unix() -> Result<(UnixListener, Vec<u8>), StartError> {
    let secret = random::draws().map_err(StartError::Random)?.secret;
    let random: String = secret.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("dlock-{}-{random}", std::process::id()).into_bytes();
    let listener = net::listen_abstract(&name)?;
    listener
        .set_nonblocking(true)
        .map_err(|error| StartError::Thread { thread: "control", source: named("fcntl", error) })?;
    Ok((listener, name))
}
