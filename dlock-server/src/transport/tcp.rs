// SPDX-License-Identifier: MIT OR Apache-2.0
//! tcp: frames over TCP, on the port of the control connections. The primary executes the chains.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::wire::control::{Attach, FabricKind};
use dlock_core::wire::status::Status;
use socket2::SockRef;

use super::stream::StreamPump;
use super::{Admitted, Admitting, Conn, Line, Opened, Pump, Setting, Transport};
use crate::command::mailbox::Mailbox;
use crate::error::StartError;

/// How long sent bytes may stay without an acknowledgement of the client's kernel. Longer than a
/// network takes to find another route.
const UNTAKEN_MAX: Duration = Duration::from_secs(20);

/// Opens the transport over TCP, unless the configuration turns it off.
pub(super) fn open(setting: &Setting<'_>) -> Result<Option<Opened>, StartError> {
    let opened = || Opened { transport: Arc::new(Tcp), listener: None };
    Ok(setting.config.tcp.then(opened))
}

#[derive(Debug)]
struct Tcp;

impl Transport for Tcp {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn admit<'a>(&'a self, _: &'a Attach, conn: &'a dyn Conn, _: &'a Mailbox) -> Admitting<'a> {
        let admitted = end_if_untaken(conn.socket()).map_err(|_| Status::Error).map(|()| {
            let pump = |line: Box<dyn Line>| -> Box<dyn Pump> { Box::new(StreamPump::new(line)) };
            Admitted { process: None, pump: Box::new(pump) }
        });
        Box::pin(std::future::ready(admitted))
    }
}

/// Has the kernel end the connection when the peer has acknowledged nothing for [`UNTAKEN_MAX`].
///
/// [`STALL_MAX`](super::STALL_MAX) counts from the moment when the primary's buffer of replies is
/// full, but that buffer may never fill. If a client reads nothing, its kernel drops what comes
/// once its buffer is full, also the acknowledgements of the client's requests. Then no further
/// request comes, and so no further reply.
///
/// With this option the keepalive ends the connection of a silent host at its first unanswered
/// probe (after 66 s), no longer at its ninth.
fn end_if_untaken(socket: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&socket).set_tcp_user_timeout(Some(UNTAKEN_MAX))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_command_channel_is_ended_by_its_kernel_if_its_client_takes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        end_if_untaken(ours.as_fd()).unwrap();
        assert_eq!(SockRef::from(&ours).tcp_user_timeout().unwrap(), Some(UNTAKEN_MAX));
    }
}
