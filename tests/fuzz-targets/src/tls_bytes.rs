// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a TLS connection, as an attacker on the way may change them: cut anywhere, changed,
//! left out, brought twice, replaced by noise; and a primary to which nothing but noise comes.
//!
//! What an end reads is what the other one has written, in its order, and nothing else. Noise makes
//! no peer known. Before a peer is known, an end takes no more than [`HANDSHAKE_BYTES_MAX`] bytes
//! of it.

use dlock_fabric::tls::session::{Shake, TlsSession, HANDSHAKE_BYTES_MAX};

use crate::peers::{Peers, Wire};
use crate::tape::Tape;

const STEPS_MAX: usize = 400;
/// The most bytes that rustls reads at once.
const PIECE_MAX: usize = 20_000;
const WRITTEN_MAX: usize = 100_000;

/// One end of the connection: the bytes that it has written, and those that it has read.
struct End {
    session: TlsSession,
    wire: Wire,
    is_known: bool,
    has_ended: bool,
    written: Vec<u8>,
    heard: Vec<u8>,
}

impl End {
    fn new(session: TlsSession) -> Self {
        let wire = Wire { room: usize::MAX, ..Wire::default() };
        Self {
            session,
            wire,
            is_known: false,
            has_ended: false,
            written: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Continues the handshake.
    fn shakes(&mut self) {
        if self.has_ended || self.is_known {
            return;
        }
        match self.session.shake(&mut self.wire) {
            Ok(shake) => self.is_known = shake == Shake::Done,
            Err(_) => self.has_ended = true,
        }
        assert!(self.is_known || self.wire.taken <= HANDSHAKE_BYTES_MAX + PIECE_MAX);
    }

    fn writes(&mut self, bytes: &[u8]) {
        if self.has_ended || !self.is_known || self.written.len() > WRITTEN_MAX {
            return;
        }
        if let Ok(len) = self.session.write(&mut self.wire, bytes) {
            self.written.extend_from_slice(&bytes[..len]);
        }
    }

    fn reads(&mut self, len: usize) {
        if self.has_ended || !self.is_known {
            return;
        }
        let mut into = vec![0; len];
        match self.session.read(&mut self.wire, &mut into) {
            Ok(len) => self.heard.extend_from_slice(&into[..len]),
            Err(error) => {
                use std::io::ErrorKind::{Interrupted, WouldBlock};
                self.has_ended = !matches!(error.kind(), WouldBlock | Interrupted);
            }
        }
    }
}

/// Moves bytes between two ends by the choices in these bytes.
///
/// # Panics
/// If an end reads bytes that the other one has not written, or the primary accepts a peer that
/// does not exist.
pub fn run(data: &[u8]) {
    play(data);
}

/// Plays the choices; returns the state of both ends afterwards: client, primary.
fn play(data: &[u8]) -> [End; 2] {
    let mut tape = Tape::new(data);
    let Peers { client, primary } = Peers::new();
    let (mut client, mut primary) = (End::new(client), End::new(primary));
    let is_alone = tape.below(8) == 7;
    // a client that has ended writes nothing, so that the primary gets nothing but noise
    client.has_ended = is_alone;
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            break;
        }
        let choice = tape.u8();
        let (from, to) = match choice & 1 {
            0 => (&mut client, &mut primary),
            _ => (&mut primary, &mut client),
        };
        match choice >> 1 & 15 {
            0..=3 => from.shakes(),
            4..=6 => carries(from, to, usize::MAX),
            7 => carries(from, to, tape.u8().into()),
            8 => from.writes(&vec![tape.u8(); tape.u8().into()]),
            9 => from.writes(&vec![tape.u8(); tape.u16().into()]),
            10 => from.reads(tape.u16().into()),
            11 => from.reads(usize::MAX >> 48),
            12 => {
                let (at, bit) = (usize::from(tape.u16()), tape.below(8));
                let len = from.wire.sent.len().max(1);
                if let Some(byte) = from.wire.sent.get_mut(at % len) {
                    *byte ^= 1 << bit;
                }
            }
            13 => {
                let (at, len) = (usize::from(tape.u16()), usize::from(tape.u8()));
                let sent = &mut from.wire.sent;
                let at = at % (sent.len() + 1);
                let end = (at + len).min(sent.len());
                let piece: Vec<u8> = sent.range(at..end).copied().collect();
                match tape.flip() {
                    true => drop(sent.drain(at..end)),
                    false => sent.extend(piece), // the piece arrives a second time
                }
            }
            14 => {
                let (len, times) = (usize::from(tape.u8()), usize::from(tape.u8()));
                let noise = tape.bytes(len).repeat(times);
                from.wire.sent.extend(noise);
            }
            _ => match tape.below(3) {
                0 => to.wire.is_closed = true,
                _ => from.wire.room = if tape.flip() { tape.u16().into() } else { usize::MAX },
            },
        }
        assert!(!is_alone || !primary.is_known);
        assert!(client.written.starts_with(&primary.heard));
        assert!(primary.written.starts_with(&client.heard));
    }
    [client, primary]
}

fn carries(from: &mut End, to: &mut End, len: usize) {
    let len = len.min(from.wire.sent.len());
    to.wire.arrived.extend(from.wire.sent.drain(..len));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are not changed on their way arrive. So the target really moves data.
    #[test]
    fn ends_with_nobody_between_them_hear_each_other() {
        let both = |what: u8| [what << 1, what << 1 | 1];
        let flight = |end: u8| [end, 4 << 1 | end];
        let mut tape = vec![0];
        (0..4).for_each(|_| tape.extend([flight(0), flight(1)].concat()));
        tape.extend([8 << 1, b'a', 200, 4 << 1, 10 << 1 | 1, 255, 0]);
        tape.extend([8 << 1 | 1, b'b', 100, 4 << 1 | 1, 11 << 1]);
        let [client, primary] = play(&tape);
        assert_eq!((primary.heard.len(), client.heard.len()), (200, 100));
        // a flipped bit on the way ends the connection
        let flipped =
            [&tape[..], &[8 << 1, b'a', 9, 12 << 1, 20, 0, 3, 4 << 1], &both(11)].concat();
        let [_, primary] = play(&flipped);
        assert!(primary.has_ended && primary.heard.len() == 200);
    }
}
