// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator asks for, on the primary's host or as a client with the right `admin`.

use std::sync::Arc;

use super::{Effect, Primary};
use crate::clock::{ServerTime, NS};
use crate::ids::ClientId;
use crate::locks::Draining;
use crate::membership::{Asked, MemberMemory};
use crate::planted::{self, Bug};
use crate::wire::control::{Act, ControlReply, ControlRequest, Whose};
use crate::wire::status::Status;

/// How many clients whose time is over at once an act judges immediately; ticks judge the others.
const JUDGED_AT_ONCE: usize = 1;

impl Primary {
    /// Handles the request of a client to operate the primary.
    pub(super) fn operate_for<M: MemberMemory>(
        &mut self,
        now: ServerTime,
        mem: &mut M,
        (client, control): (ClientId, u64),
        act: Act,
    ) -> ControlReply {
        if !self.members.speaks(client, control) {
            return ControlReply::Error(Status::Error);
        }
        let lock: &[u8] = match &act {
            Act::TakeAway { whose: Whose::Holders { name, .. }, .. } => name,
            _ => &[],
        };
        match self.locks.operator(client, lock) {
            Ok(by) => ControlReply::Operated(self.operate(now, mem, act, by.into())),
            Err(status) => ControlReply::Error(status),
        }
    }

    /// Does what an operator asks for; returns how many clients it concerns.
    pub(super) fn operate<M: MemberMemory>(
        &mut self,
        now: ServerTime,
        mem: &mut M,
        act: Act,
        by: Arc<str>,
    ) -> u32 {
        let clients = match &act {
            Act::TakeAway { whose, grace_s, now: at_once } => {
                let until = match planted::is(Bug::GraceIgnored) {
                    true => now,
                    false => now.plus_ns(u64::from(*grace_s) * NS),
                };
                let asked = Asked { until, lock: None, now: *at_once, by: Arc::clone(&by) };
                self.take_away(now, mem, whose, asked)
            }
            Act::Drain { is_on } => {
                self.locks.drain(*is_on);
                if *is_on {
                    self.members.drains();
                }
                Vec::new()
            }
        };
        self.operated.clone_from(&clients);
        let concerned = u32::try_from(clients.len()).unwrap_or(u32::MAX);
        self.effects.push_back(Effect::Operated { act, by, clients });
        concerned
    }

    fn take_away<M: MemberMemory>(
        &mut self,
        now: ServerTime,
        mem: &mut M,
        whose: &Whose,
        asked: Asked,
    ) -> Vec<ClientId> {
        // nobody can ask a client that has not come to this recovery yet
        if let (Whose::Client(client), true) = (whose, asked.until <= now) {
            let is_member = self.members.state(*client).is_some();
            if !is_member && self.locks.removes_missing(*client, asked.now) {
                self.members.removed_by(*client, &asked);
                return vec![*client];
            }
        }
        let members = &self.members;
        let (lock, clients) = match whose {
            Whose::Client(client) => (None, vec![*client]),
            Whose::Holders { name, client } => match self.locks.holders(now, mem, name) {
                None => (None, Vec::new()),
                Some((lock, mut holders)) => {
                    holders.retain(|holder| client.is_none_or(|client| client == *holder));
                    (Some(lock), holders)
                }
            },
            Whose::Departed => (None, members.departed()),
            Whose::All => (None, members.iter().map(|(client, _)| client).collect()),
        };
        let known = clients.into_iter().filter(|&client| members.state(client).is_some());
        let clients: Vec<ClientId> = known.collect();
        for (n, &client) in clients.iter().enumerate() {
            self.members.asks(client, Asked { lock, ..asked.clone() });
            if asked.until > now {
                self.locks.wants_back(client, asked.until, lock);
            }
            if n < JUDGED_AT_ONCE && asked.until <= now {
                self.members.ask_is_over(now, client);
            }
        }
        clients
    }

    /// The clients that the last act of an operator concerned, for its answer.
    pub fn operated(&self) -> &[ClientId] {
        &self.operated
    }

    /// The answer to a refused `Init` or `Reinit`.
    pub fn refusal(&self, request: &ControlRequest, status: Status) -> ControlReply {
        match request {
            ControlRequest::Reinit { client, .. } if status == Status::ClientRemoved => {
                let remover = self.members.remover(*client);
                let removed =
                    |(by, now): (&str, bool)| ControlReply::Removed { by: by.into(), now };
                remover.map_or(ControlReply::Error(status), removed)
            }
            _ => ControlReply::Error(status),
        }
    }

    /// Reports once that no lock is held any more in a drain.
    pub(super) fn tell_idle(&mut self) {
        let is_idle = self.locks.draining() == Some(Draining::Idle)
            && (self.members.reaching_memory() == 0 || planted::is(Bug::IdleTooSoon));
        if is_idle && !std::mem::replace(&mut self.was_idle, is_idle) {
            self.effects.push_back(Effect::Idle);
        }
        self.was_idle = is_idle;
    }
}
