// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of CPUs as text.
//!
//! ```text
//!   cpuset = item { "," item }        spaces are tolerated around numbers
//!   item   = N | N "-" M              N <= M < CPUs this machine is configured with
//! ```

use std::collections::BTreeSet;
use std::fmt;

use dlock_fabric::os::threads;
use thiserror::Error;

/// CPUs on which a thread may run. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSet(Vec<usize>);

/// Why a text is not a valid set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CpuSetError {
    /// An empty text or item.
    #[error("it names no CPU: write a list like 0-3,6, or leave it out")]
    Empty,
    /// Neither `N` nor `N-M`.
    #[error("`{}` is neither a CPU number nor a range like 0-3", .0.escape_debug())]
    Syntax(String),
    /// A range whose end comes before its beginning.
    #[error("the range {0}-{1} runs backwards: write {1}-{0}")]
    Backwards(usize, usize),
    /// A CPU this machine does not have.
    #[error("CPU {cpu} does not exist: this machine has the CPUs 0 to {last}")]
    NoSuchCpu {
        /// The number of the CPU.
        cpu: usize,
        /// The largest number of a CPU that this machine has.
        last: usize,
    },
}

impl CpuSet {
    /// Parses a text for this machine.
    ///
    /// # Errors
    /// [`CpuSetError`].
    pub fn parse(text: &str) -> Result<Self, CpuSetError> {
        Self::parse_for(text, threads::cpus_configured())
    }

    fn parse_for(text: &str, cpus: usize) -> Result<Self, CpuSetError> {
        let mut set = BTreeSet::new();
        for item in text.split(',') {
            let item = item.trim();
            if item.is_empty() {
                return Err(CpuSetError::Empty);
            }
            let (first, last) = match item.split_once('-') {
                None => (number(item, item)?, number(item, item)?),
                Some((first, last)) => (number(first, item)?, number(last, item)?),
            };
            if first > last {
                return Err(CpuSetError::Backwards(first, last));
            }
            // This check comes before the range is expanded, which may be long.
            if last >= cpus {
                return Err(CpuSetError::NoSuchCpu { cpu: last, last: cpus - 1 });
            }
            set.extend(first..=last);
        }
        Ok(Self(set.into_iter().collect()))
    }

    /// The CPUs, in order, each once.
    pub fn cpus(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for CpuSet {
    /// The CPUs as a list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cpu) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{cpu}")?;
        }
        Ok(())
    }
}

/// Parses a plain decimal number; an error shows `whole`.
fn number(text: &str, whole: &str) -> Result<usize, CpuSetError> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| CpuSetError::Syntax(whole.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<usize>, CpuSetError> {
        CpuSet::parse_for(text, 8).map(|set| set.0)
    }

    #[test]
    fn numbers_and_ranges_with_spaces_are_a_set() {
        assert_eq!(parse("0"), Ok(vec![0]));
        assert_eq!(parse("0,2"), Ok(vec![0, 2]));
        assert_eq!(parse(" 1 - 3 , 7 "), Ok(vec![1, 2, 3, 7]));
        assert_eq!(parse("5,4-6,5"), Ok(vec![4, 5, 6]));
        assert_eq!(parse("3-3"), Ok(vec![3]));
    }

    #[test]
    fn what_is_not_in_the_grammar_is_refused() {
        for empty in ["", " ", ",", "0,", ",0", "0,,1"] {
            assert_eq!(parse(empty), Err(CpuSetError::Empty), "{empty:?}");
        }
        for wrong in ["-1", "-", "1-", "0-1-2", "a", "0x1", "+1", "1 2", "1.0", "0;1", "−1"] {
            assert!(matches!(parse(wrong), Err(CpuSetError::Syntax(_))), "{wrong:?}");
        }
        assert_eq!(parse("3-1"), Err(CpuSetError::Backwards(3, 1)));
    }

    #[test]
    fn a_cpu_beyond_the_machine_is_refused_however_large() {
        assert_eq!(parse("8"), Err(CpuSetError::NoSuchCpu { cpu: 8, last: 7 }));
        assert_eq!(
            parse("0-4000000000"),
            Err(CpuSetError::NoSuchCpu { cpu: 4_000_000_000, last: 7 })
        );
        assert!(matches!(parse("99999999999999999999999"), Err(CpuSetError::Syntax(_))));
    }
}
