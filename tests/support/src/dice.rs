// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers that are the same on every run.

/// A generator of test values (splitmix64).
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The next number.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.throw() % n as u64) as usize
    }
}
