// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers from the system. They are drawn before an admission begins, so that it does not
//! fail half way.

use dlock_core::membership::{Draws, ID_ATTEMPTS_MAX};
use dlock_core::wire::control::Secret;

/// Draws enough numbers for one admission.
///
/// # Errors
/// The system gives none.
pub(crate) fn draws() -> Result<Draws, getrandom::Error> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    let mut numbers = [0; ID_ATTEMPTS_MAX];
    for number in &mut numbers {
        *number = getrandom::u32()?;
    }
    Ok(Draws { secret: Secret(secret), numbers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_admissions_have_the_same_secret() {
        let (a, b) = (draws().unwrap(), draws().unwrap());
        assert_ne!(a.secret, b.secret);
        assert!(a.numbers.iter().any(|&n| n != a.numbers[0]));
    }
}
