// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection over memory. Both sides may send at once, and no side waits for time to pass.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, Connection, Error, OtherError};
use rustls::{ServerConfig, ServerConnection};

use dlock_fabric::tls::PeerFault;

/// The bytes that each side sends as soon as it may.
pub const FRAME: &[u8] = b"a frame of the application";

/// The most exchanges that a handshake needs; more mean that it never ends.
const ROUNDS_MAX: usize = 20;

/// The outcome of one side.
#[derive(Debug, Default)]
pub struct Side {
    pub error: Option<Error>,
    /// Bytes of the application that arrived here.
    pub received: Vec<u8>,
    pub established: bool,
}

/// The outcome of a connection.
#[derive(Debug)]
pub struct Outcome {
    pub client: Side,
    pub server: Side,
}

impl Outcome {
    pub fn is_good(&self) -> bool {
        let good = |side: &Side| side.established && side.error.is_none() && side.received == FRAME;
        good(&self.client) && good(&self.server)
    }
}

/// A peer: a connection of rustls, or bytes that are sent without regard to the answers.
pub enum Peer {
    Tls(Box<Connection>),
    Bytes(Vec<u8>),
}

pub fn client(config: Arc<ClientConfig>) -> Peer {
    let name = ServerName::try_from("primary.example").expect("a name");
    let mut connection = ClientConnection::new(config, name).expect("a configuration");
    connection.writer().write_all(FRAME).expect("it is buffered");
    Peer::Tls(Box::new(connection.into()))
}

pub fn server(config: Arc<ServerConfig>) -> Peer {
    let mut connection = ServerConnection::new(config).expect("a configuration");
    connection.writer().write_all(FRAME).expect("it is buffered");
    Peer::Tls(Box::new(connection.into()))
}

/// Lets both peers talk until neither has anything to send.
pub fn drive(mut client: Peer, mut server: Peer) -> Outcome {
    let mut outcome = Outcome { client: Side::default(), server: Side::default() };
    for _ in 0..ROUNDS_MAX {
        let to_server = say(&mut client);
        hear(&mut server, &to_server, &mut outcome.server);
        let to_client = say(&mut server);
        hear(&mut client, &to_client, &mut outcome.client);
        if to_server.is_empty() && to_client.is_empty() {
            return outcome;
        }
    }
    panic!("the handshake does not end: {outcome:?}");
}

fn say(peer: &mut Peer) -> Vec<u8> {
    let mut bytes = Vec::new();
    match peer {
        Peer::Bytes(once) => bytes.append(once),
        Peer::Tls(connection) => {
            while connection.wants_write() {
                connection.write_tls(&mut bytes).expect("memory");
            }
        }
    }
    bytes
}

fn hear(peer: &mut Peer, mut bytes: &[u8], side: &mut Side) {
    let Peer::Tls(connection) = peer else { return };
    while !bytes.is_empty() && side.error.is_none() {
        if connection.read_tls(&mut bytes).is_err() {
            break;
        }
        match connection.process_new_packets() {
            Ok(state) => {
                let mut plain = vec![0; state.plaintext_bytes_to_read()];
                connection.reader().read_exact(&mut plain).expect("so many are there");
                side.received.extend(plain);
            }
            Err(error) => side.error = Some(error),
        }
    }
    side.established = !connection.is_handshaking();
}

/// The name of an error, without times and object identifiers.
pub fn name(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
            match inner.downcast_ref::<PeerFault>() {
                Some(fault) => format!("{fault:?}"),
                None => format!("{inner:?}"),
            }
        }
        Error::InvalidCertificate(inner) => first_word(&format!("{inner:?}")),
        Error::InvalidCertRevocationList(inner) => {
            format!("CRL {}", first_word(&format!("{inner:?}")))
        }
        other => format!("{other:?}"),
    }
}

fn first_word(text: &str) -> String {
    text.split([' ', '(']).next().unwrap_or_default().trim_end_matches("Context").into()
}
