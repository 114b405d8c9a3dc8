// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs for a verbs client that attaches.
//!
//! ```text
//!   Attach ─▶ MayAttach? (command thread) ─▶ queue pairs (a thread of the pool) ─▶ Attach
//! ```
//! Making them takes milliseconds, and seconds if the client's address does not resolve: that is
//! for neither of the two threads. A stranger costs nothing, a client a place in a short queue.

use std::sync::Arc;

use dlock_core::control::{Attach, VerbsAttach};
use dlock_core::status::Status;
use dlock_fabric::{FabricError, VerbsHost};
use log::Level;
use tokio::sync::Semaphore;

use crate::log_limit::{limited, Cause};
use crate::mailbox::{Event, Joining, Mailbox};

/// Clients whose queue pairs are made at a time.
pub(super) const ADMISSIONS_MAX: usize = 4;

/// The device, as far as the control thread serves it.
#[derive(Debug)]
pub(super) struct Admission {
    host: Arc<VerbsHost>,
    room: Semaphore,
}

impl Admission {
    pub(super) fn new(host: Arc<VerbsHost>) -> Arc<Self> {
        Arc::new(Self { host, room: Semaphore::new(ADMISSIONS_MAX) })
    }

    /// Makes the queue pairs.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) async fn admit(
        &self,
        attach: &Attach,
        verbs: &VerbsAttach,
        mailbox: &Mailbox,
    ) -> Result<Joining, Status> {
        if mailbox.is_out() {
            return Err(Status::NotReady);
        }
        let ask = |reply| Event::MayAttach { attach: *attach, reply };
        match mailbox.ask(ask).await {
            Ok(Status::Success) => {}
            Ok(status) => return Err(status),
            Err(_) => return Err(Status::Error),
        }
        let (host, client, verbs) = (self.host.clone(), attach.client, *verbs);
        let admitted = async {
            let _place = self.room.acquire().await;
            tokio::task::spawn_blocking(move || host.admit(client, &verbs)).await
        };
        match admitted.await {
            Ok(Ok(joined)) => Ok(Joining::Verbs(Box::new(joined))),
            Ok(Err(error)) => {
                limited!(
                    Cause::NoResource,
                    Level::Warn,
                    "client {client} cannot attach over verbs: {error}"
                );
                Err(match error {
                    FabricError::Verbs(error) if error.is_exhausted() => Status::ServerNoResource,
                    _ => Status::Error,
                })
            }
            Err(error) => {
                log::error!("the thread that makes queue pairs has ended: {error}");
                Err(Status::Error)
            }
        }
    }
}
