// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a test primary answers messages: pings with the time, waits when they are cancelled, and
//! everything else at once.

use dlock_core::ids::{Handle, Seq};
use dlock_core::wire::message::{Reply, Request, WaitNumber};

use crate::primary::server_now;

/// The waits of one client.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    waiting: Vec<(Handle, WaitNumber, Seq)>,
}

impl Desk {
    /// Takes a request, and gives each reply that it leads to.
    pub(crate) fn request(&mut self, seq: Seq, request: Request, mut out: impl FnMut(Seq, Reply)) {
        let reply = match request {
            Request::Wait { handle, wait, .. } => {
                self.waiting.push((handle, wait, seq));
                return;
            }
            Request::Cancel { handle, wait } => {
                self.waiting.retain(|&(h, w, waited)| {
                    let is_it = (h, w) == (handle, wait);
                    if is_it {
                        out(waited, Reply::Cancelled { word: 0 });
                    }
                    !is_it
                });
                Reply::Done { word: 0 }
            }
            Request::Ping => Reply::Pong { at: server_now() },
            _ if !request.has_reply() => return,
            _ => Reply::Done { word: 0 },
        };
        out(seq, reply);
    }
}
