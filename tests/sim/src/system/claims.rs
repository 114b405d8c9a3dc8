// SPDX-License-Identifier: MIT OR Apache-2.0
//! The claims of a client at a successor, and the slots that its locks get there.

use dlock_core::clock::{Deadline, Now};
use dlock_core::ids::Epoch;
use dlock_core::session::Binding;
use dlock_core::wire::control::{Claim, LockGrant};
use dlock_core::wire::status::Status;

use super::clock::Clock;
use super::state::{Ask, Doing, Sys, ANCHOR_S};

impl Sys {
    pub(super) fn claims(&mut self, c: usize) -> Vec<(u8, Claim)> {
        let (new, at, who) = (self.client_now(c), self.now, self.who(c));
        let epoch = self.clients[c].epoch;
        let mut claims = Vec::new();
        for (l, t) in self.clients[c].threads.iter_mut().enumerate() {
            let binding = binding(t.epoch, epoch, (t.old_clock, t.horizon_ns), at, new);
            let Some(entry) = t.entry.as_mut().filter(|_| t.epoch != epoch) else { continue };
            let knew = entry.is_lost();
            claims.push((l as u8, binding.claim(entry, new)));
            if entry.is_lost() && !knew {
                // the client does not claim this hold: it has no lease, and the horizon is over
                self.oracle.ended(l, who);
            }
        }
        claims
    }

    /// Handles the successor's answers to the client's claims: each names the slot of a lock, or
    /// refuses the claim. If a claimed hold is refused, the hold is lost, and the client claims the
    /// lock again without it.
    pub(super) fn updated(&mut self, c: usize, grants: Vec<(u8, bool, Result<LockGrant, Status>)>) {
        let (epoch, who) = (self.clients[c].epoch, self.who(c));
        let (gen, fabric) = (self.clients[c].gen, self.clients[c].fabric);
        let (new, at) = (self.client_now(c), self.now);
        let dead_offsets = self.dead_offsets.clone();
        let has_rules = self.plan.rules;
        for (l, is_held, grant) in grants {
            let l = usize::from(l);
            let releases = self.clients[c].releases.contains(&(l as u8));
            let t = self.thread(c, l);
            let is_free =
                matches!(t.doing, Doing::Idle | Doing::Control | Doing::Reply { is_wait: true });
            let mut binding = binding(t.epoch, epoch, (t.old_clock, t.horizon_ns), at, new);
            // a claimed lock on which an operation has begun meanwhile is claimed again after that
            // operation
            let Some(entry) = t.entry.as_mut().filter(|_| is_free) else { continue };
            match grant {
                Ok(grant) => {
                    let was_left = entry.has_left();
                    let has_lease = entry.state().is_held() && entry.deadline() < Deadline::NEVER;
                    let end = has_lease.then(|| {
                        let offset = dead_offsets.iter().find(|(epoch, _)| *epoch == t.epoch);
                        let end = entry.deadline().expiry().0 as i64;
                        (end - offset.map_or(0, |(_, offset)| *offset)).max(0) as u64
                    });
                    let place = (Epoch(epoch.into()), ANCHOR_S);
                    binding.bind(entry, &grant, place, false, new);
                    let has_token = entry.token().is_some();
                    let write = entry.take_ledger_write();
                    let is_to_be_got = was_left && t.doing == Doing::Control && !releases;
                    (t.epoch, t.old_clock, t.gen) = (epoch, None, gen);
                    t.is_carried_by(fabric);
                    // the hold may have ended without the client's knowledge: then the claim fails,
                    // or makes a new hold
                    if !self.oracle.relies(l, who, self.now) {
                        self.oracle.ended(l, who);
                    }
                    if !has_token {
                        // the client asks for another token before it uses the lock
                        self.oracle.token_gone(l, who);
                    }
                    if let Some(end) = end {
                        self.oracle.claimed(l, who, end);
                    }
                    // the successor that answered may have ended by now; then its confirmation does
                    // not count
                    if self.alive && epoch == self.epoch {
                        self.oracle.confirmed(l, who);
                    }
                    self.takes_horizon(c, l);
                    if let Some(write) = write {
                        self.write_ledger(c, l, write);
                    }
                    if is_to_be_got {
                        self.enter(c, l, Doing::Idle); // the acquire gets the lock
                        self.step_soon(c, l);
                    }
                }
                Err(Status::Fail) => {
                    entry.lose();
                    self.oracle.ended(l, who);
                }
                // The rules refuse the claim. A claimed hold is lost, and the lock is claimed again
                // without it; if that is refused as well, the client loses the handle.
                Err(Status::Denied | Status::ServerNoResource) if has_rules => match is_held {
                    true => {
                        entry.lose();
                        self.oracle.ended(l, who);
                    }
                    false => self.forget_lock(c, l),
                },
                Err(_) => {}
            }
        }
        let client = &self.clients[c];
        let all = client.threads.iter().all(|t| t.entry.is_none() || t.epoch == epoch);
        if all && client.claims_open {
            self.clients[c].claims_open = false;
            match self.clients[c].failover {
                None => return self.ask(c, Ask::Done),
                Some(_) => return self.control_soon(c, false), // the machine asks for `Done` later
            }
        }
        match all {
            true => self.control_soon(c, false),
            // the lock has an operation under way, so it is claimed later
            false => self.control_after(c, 5_000_000),
        }
    }
}

/// The binding of a lock's handle to its slot at the current incarnation. A lock that is still
/// bound to an earlier incarnation keeps the clock of that incarnation.
fn binding(
    epoch: u32,
    current: u32,
    (old_clock, horizon_ns): (Option<Clock>, u64),
    at: u64,
    new: Now,
) -> Binding {
    let mut binding = Binding::new(Epoch(epoch.into()));
    if let Some(clock) = old_clock {
        let old = Now { local_ns: new.local_ns, horizon_ns, ..clock.now(at) };
        binding.moves_to(Epoch(current.into()), old);
    }
    binding
}
