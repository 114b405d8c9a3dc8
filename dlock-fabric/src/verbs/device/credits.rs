// SPDX-License-Identifier: MIT OR Apache-2.0
//! Credits for sending messages: the account that keeps a receive ring from running dry.
//!
//! ```text
//!   mine ── a message: −1 ──▶ a buffer of the peer's ring ──▶ the peer owes me 1
//!     ▲                                                            │
//!     └── + n, in the immediate value of its next message ─────────┘
//! ```
//! Invariant: mine + under way + owed by the peer + being returned = buffers of the peer. The last
//! credit is reserved for a bare return, a message that only returns credits; an end sends one as
//! soon as it owes half a ring. So two peers are never both without credit while each owes the
//! other: the later of two bare returns leaves the other side with at least half a ring.

/// The least number of buffers of a ring for the rules above.
pub const RING_SLOTS_MIN: u16 = 8;

/// The account of one end.
#[derive(Clone, Debug)]
pub(super) struct Credits {
    mine: u16,
    peer_slots: u16,
    owed: u16,
    own_slots: u16,
}

impl Credits {
    pub(super) fn new(own_slots: u16, peer_slots: u16) -> Self {
        assert!(own_slots >= RING_SLOTS_MIN && peer_slots >= RING_SLOTS_MIN);
        Self { mine: peer_slots, peer_slots, owed: 0, own_slots }
    }

    /// Whether a message may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.mine >= 2
    }

    /// Whether a bare return must be sent.
    pub(super) fn must_return(&self) -> bool {
        self.owed >= self.own_slots / 2 && self.mine >= 1
    }

    /// Takes a credit for a message; returns the credits that the message returns.
    pub(super) fn send(&mut self) -> u16 {
        assert!(self.mine > 0, "a message without credit");
        self.mine -= 1;
        std::mem::take(&mut self.owed)
    }

    /// Records that one of this end's buffers is free again.
    pub(super) fn freed(&mut self) {
        self.owed = self.owed.saturating_add(1);
    }

    /// Adds credits that came with a message; `false`: the peer returns more than it has got.
    #[must_use]
    pub(super) fn returned(&mut self, returned: u32) -> bool {
        let mine = u16::try_from(returned).ok().and_then(|n| self.mine.checked_add(n));
        match mine.filter(|&mine| mine <= self.peer_slots) {
            Some(mine) => self.mine = mine,
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Two ends and the two directions between them, driven by arbitrary choices.
    struct Pair {
        ends: [Credits; 2],
        wires: [VecDeque<u16>; 2],
        slots: [u16; 2],
    }

    impl Pair {
        fn new(slots: [u16; 2]) -> Self {
            let ends = [Credits::new(slots[0], slots[1]), Credits::new(slots[1], slots[0])];
            Self { ends, wires: Default::default(), slots }
        }
        fn send(&mut self, end: usize) {
            let returned = self.ends[end].send();
            self.wires[end].push_back(returned);
            assert!(self.wires[end].len() <= usize::from(self.slots[1 - end]), "no buffer");
        }
        fn deliver(&mut self, from: usize) {
            if let Some(returned) = self.wires[from].pop_front() {
                self.ends[1 - from].freed();
                assert!(self.ends[1 - from].returned(returned.into()));
                if self.ends[1 - from].must_return() {
                    self.send(1 - from);
                }
            }
        }
        fn settle(&mut self) {
            for _ in 0..1_000 {
                if self.wires.iter().all(VecDeque::is_empty) {
                    return;
                }
                self.deliver(0);
                self.deliver(1);
            }
            panic!("returns answer returns for ever");
        }
    }

    #[test]
    fn a_ring_never_runs_dry_and_both_ends_can_always_send_again() {
        for slots in [[8, 8], [8, 64], [9, 13], [64, 64]] {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            let mut pair = Pair::new(slots);
            for step in 0..200_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // long phases in which mostly one end acts, and balanced phases
                let end = usize::from(random % 8 < [1, 4, 7][step / 500 % 3]);
                match random >> 32 & 3 {
                    0 | 1 if pair.ends[end].may_send() => pair.send(end),
                    _ => pair.deliver(end),
                }
                if step % 97 == 0 {
                    pair.settle();
                    assert!(pair.ends.iter().all(Credits::may_send), "stuck at {step}");
                }
            }
        }
    }

    #[test]
    fn credits_that_were_never_given_are_refused() {
        let mut end = Credits::new(8, 8);
        assert!(!end.clone().returned(1));
        assert!(!end.clone().returned(u32::MAX));
        end.send();
        assert!(!end.clone().returned(1 << 16) && !end.clone().returned(1 << 16 | 1));
        assert!(end.returned(1));
    }
}
