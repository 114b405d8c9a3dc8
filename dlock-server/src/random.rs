// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers from the system, drawn before they are needed so that nothing fails half way.

use dlock_core::membership::ID_ATTEMPTS_MAX;

/// Enough for one admission: a secret, and numbers for the attempts at an id.
#[derive(Debug)]
pub(crate) struct Random {
    bytes: [u8; 16],
    numbers: [u32; ID_ATTEMPTS_MAX],
    drawn: usize,
}

impl Random {
    /// Draws.
    ///
    /// # Errors
    /// The system gives none.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut random = Self { bytes: [0; 16], numbers: [0; ID_ATTEMPTS_MAX], drawn: 0 };
        getrandom::fill(&mut random.bytes)?;
        for number in &mut random.numbers {
            *number = getrandom::u32()?;
        }
        Ok(random)
    }

    /// 16 bytes, always the same ones: a secret.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        self.bytes
    }

    /// The next number; 0, which is no client id, when all are drawn.
    pub(crate) fn number(&mut self) -> u32 {
        let number = self.numbers.get(self.drawn).copied().unwrap_or(0);
        self.drawn += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_end_with_zero() {
        let (mut a, b) = (Random::new().unwrap(), Random::new().unwrap());
        assert_ne!(a.bytes(), b.bytes());
        let numbers: Vec<u32> = (0..ID_ATTEMPTS_MAX).map(|_| a.number()).collect();
        assert!(numbers.iter().any(|&n| n != numbers[0]));
        assert_eq!((a.number(), a.number()), (0, 0));
    }
}
