// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections of the control thread and the command thread, over any transport.

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

/// The certificate that a peer has shown in its TLS handshake, and what follows from it.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The identity of the certificate, for membership.
    pub(crate) identity: Identity,
    /// The names in the certificate: for people, and as rules write them.
    pub(crate) peer: PeerIdentity,
    pub(crate) names: Vec<String>,
    /// The peer's certificate, and those that came with it.
    pub(crate) chain: PeerChain,
    /// The number of the loading of the TLS files by which the certificate was judged
    /// ([`Tls::loads`](dlock_fabric::tls::Tls::loads)).
    pub(crate) judged_by: u64,
}

impl Shown {
    /// The certificate of this peer, with its chain. `by` is the number of the loading of the TLS
    /// files by which it was judged.
    pub(crate) fn of(peer: PeerIdentity, chain: PeerChain, by: u64) -> Self {
        let (identity, names) = (Identity(*peer.digest()), peer.rule_names());
        Self { identity, peer, names, chain, judged_by: by }
    }
}

/// A connection of the control thread.
pub(crate) trait Conn: AsyncRead + AsyncWrite + Unpin + Send + Sync {
    /// The socket, which knows who the peer is.
    fn socket(&self) -> BorrowedFd<'_>;

    /// What the peer has shown in its TLS handshake; `None`: there is no TLS.
    fn shown(&self) -> Option<&Arc<Shown>> {
        None
    }

    /// The identity of the peer's certificate.
    fn identity(&self) -> Option<Identity> {
        self.shown().map(|shown| shown.identity)
    }

    /// The secrets that seal this client's data path beside the connection; `None`: there is no
    /// TLS.
    fn seal_secrets(&self, _client: ClientId) -> Option<SealSecrets> {
        None
    }

    /// Turns the connection, with all that was read from it, into one of the command thread.
    ///
    /// # Errors
    /// The connection is lost.
    fn into_line(self: Box<Self>) -> io::Result<Box<dyn Line>>;
}

/// A connection of the command thread, nonblocking. Its descriptor is for the poll.
///
/// What `write` has taken is at the socket once `flush` has succeeded. `Interrupted` means that
/// something was done, and that there may be more to do at once.
pub(crate) trait Line: Read + Write + AsFd + Send + Debug {
    /// Whether the poll will report more bytes, after a read that did not fill its buffer.
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

/// Listens on a Unix socket in the abstract namespace, under a name that cannot be guessed.
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
