// SPDX-License-Identifier: MIT OR Apache-2.0
//! tcp: frames over TCP, on the port of the control connections. The primary executes the chains.

use std::sync::Arc;

use dlock_core::control::{Attach, FabricKind};

use super::stream::StreamPump;
use super::{Admitted, Admitting, Conn, Line, Opened, Pump, Setting, Transport};
use crate::error::StartError;
use crate::mailbox::Mailbox;

/// Offered unless the configuration turns it off.
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

    fn admit<'a>(&'a self, _: &'a Attach, _: &'a dyn Conn, _: &'a Mailbox) -> Admitting<'a> {
        let pump = |line: Box<dyn Line>| -> Box<dyn Pump> { Box::new(StreamPump::new(line)) };
        let pump = Box::new(pump);
        Box::pin(std::future::ready(Ok(Admitted { process: None, pump })))
    }
}
