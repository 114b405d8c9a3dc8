// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checker of fencing tokens: a resource that keeps the largest token it has seen refuses no client
//! that relies on the lock, and every client whose hold is over once the next one has come.
//!
//! ```text
//!   exclusive   above every token that was told of this lock name before
//!   shared      above every exclusive one before, not below any shared one, and the same as that
//!               of each reader that relies on the lock now
//! ```
//! It knows nothing of fences, laps and floors: only what clients were told while they relied on
//! their holds.

use dlock_core::token::Token;
use dlock_core::wire::message::Mode;

use super::state::Sys;

/// What was told of one lock name.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    exclusive: u64,
    shared: u64,
    /// Who has which token of its hold.
    of: Vec<(u64, Mode, Token)>,
}

/// Whether a client of this schedule wants tokens of a lock: most do.
pub(super) fn wants(sys: &Sys, c: usize, l: usize) -> bool {
    sys.plan.tokens && sys.plan.start_ns >> (4 * l + c) & 3 != 0
}

impl Sys {
    /// A client was told that it has the lock, on which it relies. `begins`: the hold is new.
    pub(super) fn token_told(
        &mut self,
        c: usize,
        l: usize,
        mode: Mode,
        begins: bool,
    ) -> Result<(), String> {
        let Some(entry) = self.clients[c].threads[l].entry.as_ref() else { return Ok(()) };
        let (who, wanted) = (self.who(c), entry.desc().tokens);
        let Some(Token(token)) = entry.token() else {
            return match wanted {
                true => Err(format!("token: client {who:#x} has none of lock {l}")),
                false => Ok(()),
            };
        };
        let now = self.now;
        let others = self.tokens[l].of.iter().filter(|told| told.0 != who);
        let mut others = others.filter(|told| self.oracle.relies(l, told.0, now));
        let differs = |told: &&(u64, Mode, Token)| told.2 != Token(token);
        let other = others.find(differs).filter(|_| mode == Mode::Shared).copied();
        let told = &mut self.tokens[l];
        let before = told.of.iter().find(|told| told.0 == who).map(|told| told.2);
        let last = match mode {
            Mode::Exclusive => told.exclusive.max(told.shared),
            Mode::Shared => told.exclusive.max(told.shared.saturating_sub(1)),
        };
        let what = format!("token: lock {l}: client {who:#x} has {token} ({mode:?}) at {now}");
        if let Some((other, _, Token(theirs))) = other {
            return Err(format!("{what}, and client {other:#x}, which shares it, has {theirs}"));
        }
        if begins && token <= last {
            return Err(format!("{what}, and {last} was told before"));
        }
        if !begins && before.is_some_and(|before| before != Token(token)) {
            return Err(format!("{what}, and it had {before:?} of the same hold"));
        }
        if token >= 1 << 63 {
            return Err(format!("{what}, which no signed number holds"));
        }
        told.of.retain(|told| told.0 != who);
        told.of.push((who, mode, Token(token)));
        match mode {
            Mode::Exclusive => told.exclusive = told.exclusive.max(token),
            Mode::Shared => told.shared = told.shared.max(token),
        }
        Ok(())
    }
}
