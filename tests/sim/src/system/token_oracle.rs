// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checker of fencing tokens. A resource that keeps the largest token it has seen must refuse no
//! client that relies on the lock, and every client whose hold is over once the next holder has
//! come.
//!
//! ```text
//!   exclusive   above every token of this lock name that a client got before
//!   shared      above every exclusive one before, not below any shared one, and equal to that of
//!               each reader that relies on the lock now
//! ```
//! A hold keeps its token, or gets a later one from a successor that its client was not sure to
//! have told of it. The checker knows nothing of the `fence` word, laps and lower bounds: only what
//! clients got while they relied on their holds.

use dlock_core::token::Token;
use dlock_core::wire::message::Mode;

/// The tokens of one lock name that clients got. Each function records what its description says
/// has happened.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    exclusive: u64,
    shared: u64,
    /// The holds that have not ended, as far as their clients know.
    of: Vec<Told>,
}

/// The token that a client got for its hold.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The client.
    pub who: u64,
    /// How the lock is held.
    pub mode: Mode,
    /// The token of the hold.
    pub token: Token,
}

impl Tokens {
    /// The client no longer has a hold, and knows it.
    pub fn ended(&mut self, who: u64) {
        self.of.retain(|told| told.who != who);
    }

    /// A client that relies on its hold was told this. `begins`: the hold is new.
    ///
    /// # Errors
    /// If a resource that has seen all earlier tokens would refuse this one, or not refuse one of
    /// an earlier hold.
    pub fn told(
        &mut self,
        told: Told,
        relies: impl Fn(u64) -> bool,
        begins: bool,
    ) -> Result<(), String> {
        let Told { who, mode, token: Token(token) } = told;
        let what = format!("client {who:#x} has {token} ({mode:?})");
        let mut others = self.of.iter().filter(|other| other.who != who);
        let differs = |other: &&Told| other.token != told.token && relies(other.who);
        if let Some(other) = others.find(differs).filter(|_| mode == Mode::Shared) {
            return Err(format!("{what}, and {other:?} shares it"));
        }
        match self.of.iter().find(|before| before.who == who) {
            Some(before) if begins || before.token < told.token => {}
            Some(before) if before.token > told.token => {
                return Err(format!("{what}, and was told before: {before:?}"));
            }
            // the hold is the same one, also after a release that was not carried out
            _ if !begins => return Ok(()),
            _ => {}
        }
        let last = match mode {
            Mode::Exclusive => self.exclusive.max(self.shared),
            Mode::Shared => self.exclusive.max(self.shared.saturating_sub(1)),
        };
        if token <= last {
            return Err(format!("{what}, and {last} was told before"));
        }
        if token >= 1 << 63 {
            return Err(format!("{what}, which no signed number holds"));
        }
        self.ended(who);
        self.of.push(told);
        match mode {
            Mode::Exclusive => self.exclusive = token,
            Mode::Shared => self.shared = token,
        }
        Ok(())
    }
}
