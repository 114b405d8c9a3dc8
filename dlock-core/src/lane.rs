// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lanes of a fair lock: counters that start again, and the parts of one lap.
//!
//! ```text
//!   0 ............... DIVERT ........ RING ................ RING END ........ MASK
//!   clients add        a client that   the arbiter alone     room for each     never
//!   by themselves      did not know    gives numbers out     client that       reached
//!                      adds once more                        did not know
//! ```
//! A client that has seen a lane at [`divert`] or above asks the arbiter for its next ticket. The
//! arbiter starts the exclusive lane again at 0 only when no client can still act on a number
//! below [`ring`] (the *lap rule*, `arbiter/fair_lap.rs`); until then it gives out the numbers of
//! the ring, again and again, leaving out those that a ledger names.
//!
//! Lanes have 16 bits. Models set fewer, so that laps happen in every run.

/// How wide a lane is, and where its parts begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    mask: u16,
    divert: u16,
    ring: u16,
    ring_end: u16,
    queue_divert: u16,
    queue_max: u16,
}

const WIDE: Shape = Shape {
    mask: u16::MAX,
    divert: crate::limits::FAIR_LANE_DIVERT,
    ring: crate::limits::FAIR_LANE_MAX,
    ring_end: crate::limits::FAIR_LANE_RING_END,
    queue_divert: crate::limits::FAIR_QUEUE_DIVERT,
    queue_max: crate::limits::FAIR_QUEUE_MAX,
};

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
const fn shape() -> Shape {
    WIDE
}

#[cfg(feature = "planted-bugs")]
mod narrow {
    use super::{Shape, WIDE};
    use std::cell::Cell;

    thread_local! {
        static SHAPE: Cell<Shape> = const { Cell::new(WIDE) };
    }

    pub(super) fn shape() -> Shape {
        SHAPE.get()
    }

    /// Makes the lanes this wide, on this thread: 3 to 16 bits.
    pub fn set_bits(bits: u32) {
        let mask = ((1_u32 << bits) - 1) as u16;
        SHAPE.set(match bits {
            16 => WIDE,
            _ => Shape {
                mask,
                divert: mask - 5,
                ring: mask - 2,
                ring_end: mask,
                queue_divert: mask / 2 + 1,
                queue_max: mask - 1,
            },
        });
    }
}

#[cfg(feature = "planted-bugs")]
use narrow::shape;

#[cfg(feature = "planted-bugs")]
pub use narrow::set_bits;

/// The largest value of a lane.
#[inline]
pub fn mask() -> u16 {
    shape().mask
}
/// From this value on clients ask the arbiter for tickets.
#[inline]
pub fn divert() -> u16 {
    shape().divert
}
/// From this value on a number is given out by the arbiter alone.
#[inline]
pub fn ring() -> u16 {
    shape().ring
}
/// The end of the numbers that the arbiter gives out.
#[inline]
pub fn ring_end() -> u16 {
    shape().ring_end
}
/// With this many tickets open clients ask the arbiter for tickets.
#[inline]
pub fn queue_divert() -> u16 {
    shape().queue_divert
}
/// Tickets that may be open in one lane.
#[inline]
pub fn queue_max() -> u16 {
    shape().queue_max
}
/// The number `n` places after `number`.
#[inline]
pub fn plus(number: u16, n: u16) -> u16 {
    number.wrapping_add(n) & mask()
}
/// Whether `number` comes before `other`, if less than half a lane lies between them.
#[inline]
pub fn is_before(number: u16, other: u16) -> bool {
    (1..=mask() / 2).contains(&distance(number, other))
}
/// How many places `to` is after `from`, if they are less than half a lane apart: less than 0 if it
/// is before.
pub fn after(from: u16, to: u16) -> i32 {
    match is_before(to, from) {
        true => -i32::from(distance(to, from)),
        false => i32::from(distance(from, to)),
    }
}
/// How many places `to` is after `from`.
#[inline]
pub fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from) & mask()
}
