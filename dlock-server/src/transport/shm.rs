// SPDX-License-Identifier: MIT OR Apache-2.0
//! shm: clients on this host map the lock memory, and execute their chains themselves.
//!
//! ```text
//!   abstract Unix socket ─▶ is the client of this user, of root, or one that is named? ─▶ Attach
//!                                                     ─▶ the memory, as descriptors
//!   the socket stays open: messages; its client is fenced when its process has ended
//! ```

use std::io;
use std::sync::Arc;

use dlock_core::ids::ClientId;
use dlock_core::wire::control::{Attach, Attached, FabricKind};
use dlock_core::wire::status::Status;
use dlock_fabric::os::fds::{Credentials, PeerProcess};
use dlock_fabric::stream::handshake;
use log::Level;

use super::connection::listen_unix;
use super::stream::StreamPump;
use super::{Accepting, Admitted, Admitting, Conn, Line, Opened, Peer, Pump, Setting, Transport};
use crate::command::mailbox::Mailbox;
use crate::control::refuse_attach;
use crate::error::StartError;
use crate::host::memory::Memory;
use crate::observe::log_limit::{limited, Cause};

/// Opens mapped memory, unless the configuration turns it off or a device holds the memory.
pub(super) fn open(setting: &Setting<'_>) -> Result<Option<Opened>, StartError> {
    if !setting.config.shm || setting.device.is_some_and(|(host, _)| host.has_memory()) {
        return Ok(None);
    }
    let (listener, name) = listen_unix()?;
    let users = setting.config.shm_users.clone();
    Ok(Some(Opened { transport: Arc::new(Shm { name, users }), listener: Some(listener) }))
}

#[derive(Debug)]
struct Shm {
    /// The name of the socket, in the abstract namespace.
    name: Vec<u8>,
    /// The users that may map the memory, beside this user and root.
    users: Vec<u32>,
}

impl Transport for Shm {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn place(&self) -> &[u8] {
        &self.name
    }

    fn accept(&self, connection: Box<dyn Conn>) -> Accepting<'_> {
        Box::pin(may_map(&self.users, connection))
    }

    fn admit<'a>(
        &'a self,
        _: &'a Attach,
        connection: &'a dyn Conn,
        _: &'a Mailbox,
    ) -> Admitting<'a> {
        let process = Arc::new(PeerProcess::of_peer(connection.socket()));
        let pid = Credentials::of_peer(connection.socket()).ok().and_then(|peer| peer.pid);
        let pump = Box::new(|line: Box<dyn Line>| -> Box<dyn Pump> {
            Box::new(StreamPump::with_welcome(line, welcome))
        });
        let process = Some(Peer { pid, process });
        Box::pin(std::future::ready(Ok(Admitted { process, pump })))
    }
}

/// Lets the peer pass if it may map the memory: it could write any word of it.
async fn may_map(users: &[u32], mut connection: Box<dyn Conn>) -> Option<Box<dyn Conn>> {
    match Credentials::of_peer(connection.socket()) {
        Ok(peer) if peer.may_map(users) => Some(connection),
        Ok(peer) => {
            let uid = peer.uid;
            limited!(
                Cause::Stranger,
                Level::Warn,
                "a client of uid {uid} may not map the lock memory, and goes over tcp if it can; \
                 shm_users in the configuration lets a user map it, who can write every lock word"
            );
            refuse_attach(&mut connection, Status::Error).await;
            None
        }
        Err(error) => {
            limited!(
                Cause::Stranger,
                Level::Warn,
                "a process that cannot be identified is refused: {error}"
            );
            None
        }
    }
}

/// Answers the client's request to attach. This first frame of the primary carries the descriptors
/// of the memory that the client maps: the header, the lock slots and the client's ledger.
fn welcome(
    line: &mut dyn Line,
    attached: &Attached,
    client: ClientId,
    memory: &mut Memory,
) -> io::Result<()> {
    let shared = match memory.share(client) {
        Some(shared) => shared.map_err(io::Error::other)?,
        None => return Err(io::Error::other("there is no memory to map")),
    };
    let sent = handshake::answer(line.as_fd(), attached, Some(&shared), 0);
    // while this process has the descriptor open, the client's ledger counts as mapped
    drop(shared);
    if sent.is_err() {
        memory.unshare(client);
    }
    sent
}
