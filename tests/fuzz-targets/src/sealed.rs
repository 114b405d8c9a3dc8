// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of the sealed path, as an attacker on the way may bring them: replayed, reordered, left
//! out, cut, put together, changed, of the other direction, of another client.
//!
//! Exactly the next record of the right direction is opened, and it brings what was sealed. After
//! anything else every record is refused, with the same error.

use std::sync::OnceLock;

use dlock_core::ids::ClientId;
use dlock_fabric::tls::sealing::{Opener, SealError, Sealer};
use dlock_fabric::tls::session::TlsSession;

use crate::peers::Peers;
use crate::tape::Tape;

const STEPS_MAX: usize = 200;
const RECORDS_MAX: usize = 40;
const LONG: usize = 5_000;

/// A record, and the plaintext that was sealed in it.
struct Sealed {
    record: Vec<u8>,
    plaintext: Vec<u8>,
}

struct World {
    opener: Opener,
    sent: Vec<Sealed>,
    due: usize,
    broken: Option<SealError>,
}

/// The sealers and openers of one session: those of the client, and those of the primary.
fn ends(client: u32) -> ((Sealer, Opener), (Sealer, Opener)) {
    static PEERS: OnceLock<Peers> = OnceLock::new();
    let peers = PEERS.get_or_init(|| Peers::new().shaken());
    let client = ClientId::new(client).expect("a small number");
    let secrets =
        |session: &TlsSession| session.seal_secrets(client).expect("the handshake is done");
    (secrets(&peers.client).of_client(), secrets(&peers.primary).of_primary())
}

/// Seals and delivers records by the choices in these bytes.
///
/// # Panics
/// If a record is opened that is not the next one, or the next one is refused.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let ((mut sealer, _), (mut back, opener)) = ends(7);
    let ((mut other, _), _) = ends(8);
    let mut world = World { opener, sent: Vec::new(), due: 0, broken: None };
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            return;
        }
        match tape.below(8) {
            0 if world.sent.len() < RECORDS_MAX => {
                let sealed = seal(&mut sealer, &mut tape);
                world.sent.push(sealed);
            }
            0 | 1 => world.deliver_sent(world.due, |_| {}),
            2 => world.deliver_sent(tape.below(RECORDS_MAX), |_| {}),
            3 => {
                let (at, bit) = (usize::from(tape.u16()), tape.below(8));
                world.deliver_sent(world.due, |record| {
                    let len = record.len();
                    record[at % len] ^= 1 << bit;
                });
            }
            4 => {
                let len = usize::from(tape.u16());
                world.deliver_sent(world.due, |record| record.truncate(len));
            }
            5 => {
                let more = tape.below(64);
                let more = tape.bytes(more).to_vec();
                world.deliver_sent(world.due, |record| record.extend_from_slice(&more));
            }
            6 => {
                let len = tape.below(64);
                world.deliver(tape.bytes(len).to_vec());
            }
            _ => {
                let which = if tape.flip() { &mut back } else { &mut other };
                world.deliver(seal(which, &mut tape).record);
            }
        }
    }
}

fn seal(sealer: &mut Sealer, tape: &mut Tape<'_>) -> Sealed {
    let len = tape.below(48);
    let mut plaintext = tape.bytes(len).to_vec();
    if tape.below(16) == 15 {
        plaintext.resize(LONG, 7);
    }
    if plaintext.is_empty() {
        plaintext.push(0); // a record is never empty
    }
    let mut record = vec![1, 2, 3]; // `seal` replaces the content of the buffer
    sealer.seal(&plaintext, &mut record).expect("a few records");
    Sealed { record, plaintext }
}

impl World {
    /// Delivers a record that was sent, after this change.
    fn deliver_sent(&mut self, number: usize, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(sent) = self.sent.get(number) {
            let mut record = sent.record.clone();
            change(&mut record);
            self.deliver(record);
        }
    }

    fn deliver(&mut self, mut record: Vec<u8>) {
        let next = self.sent.get(self.due).filter(|next| next.record == record);
        match (self.broken, next, self.opener.open(&mut record)) {
            (None, Some(next), Ok(plaintext)) => {
                assert_eq!(plaintext, next.plaintext);
                self.due += 1;
            }
            (None, None, Err(error)) => self.broken = Some(error),
            (Some(before), _, Err(error)) => assert_eq!(error, before),
            (broken, next, opened) => {
                let is_due = next.is_some();
                panic!("broken: {broken:?}, the next record: {is_due}, opened: {opened:?}");
            }
        }
    }
}
