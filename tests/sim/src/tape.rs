// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choices of a schedule: replayed with the last one changed (all schedules), or drawn by
//! chance.

/// The choices of one run.
#[derive(Debug)]
pub struct Tape {
    /// (picked alternative, number of alternatives)
    choices: Vec<(u32, u32)>,
    at: usize,
    random: Option<u64>,
}

impl Tape {
    /// Picks the first alternative everywhere; [`advance`](Tape::advance) goes to the next run.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { choices: Vec::new(), at: 0, random: None }
    }

    /// Draws from a seed.
    pub fn random(seed: u64) -> Self {
        Self { choices: Vec::new(), at: 0, random: Some(seed) }
    }

    /// One of `n` alternatives.
    pub fn choose(&mut self, n: usize) -> usize {
        let n = n as u32;
        if n <= 1 {
            return 0;
        }
        if self.at == self.choices.len() {
            let picked = match &mut self.random {
                None => 0,
                Some(state) => (splitmix(state) % u64::from(n)) as u32,
            };
            self.choices.push((picked, n));
        }
        let (picked, of) = self.choices[self.at];
        assert_eq!(of, n, "a run must depend on its choices alone");
        self.at += 1;
        picked as usize
    }

    /// Whether nothing is left to replay: the next choice is made for the first time.
    pub fn is_fresh(&self) -> bool {
        self.at == self.choices.len()
    }

    /// Advances the tape to the next run; `false`: there is none.
    pub fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((picked, of)) = self.choices.pop() {
            if picked + 1 < of {
                self.choices.push((picked + 1, of));
                return true;
            }
        }
        false
    }

    /// The choices of this run.
    pub fn picked(&self) -> Vec<u32> {
        self.choices.iter().map(|c| c.0).collect()
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
