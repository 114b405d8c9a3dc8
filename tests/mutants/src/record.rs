// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed files: results, mutants that are equivalent, functions that are critical.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::judge::Verdict;

/// The verdicts so far, one line for each: `VERDICT<tab>KEY<tab>NOTE`.
pub struct Results {
    path: PathBuf,
    /// By key: the verdict, and the check that has found the mutant.
    pub all: BTreeMap<String, (Verdict, String)>,
}

impl Results {
    /// Reads the results. The file may not exist.
    ///
    /// # Errors
    /// If a line has another form.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut all = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut parts = line.split('\t');
            let (verdict, key, note) = (parts.next(), parts.next(), parts.next());
            let named = |v: &&(Verdict, &str)| Some(v.1) == verdict;
            let verdict = Verdict::NAMES.iter().find(named);
            let (Some((verdict, _)), Some(key)) = (verdict, key) else {
                return Err(format!("{}: {line}", path.display()));
            };
            all.insert(key.into(), (*verdict, note.unwrap_or_default().into()));
        }
        Ok(Self { path: path.into(), all })
    }

    /// Adds a result, and writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&mut self, key: &str, verdict: Verdict, note: String) -> Result<(), String> {
        self.all.insert(key.into(), (verdict, note));
        self.write()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self) -> Result<(), String> {
        let mut text =
            String::from("# verdict, mutant, what has found it; by scripts/mutants.sh\n");
        for (key, (verdict, note)) in &self.all {
            text.push_str(&format!("{}\t{key}\t{note}\n", verdict.name()));
        }
        let at = |e| format!("{}: {e}", self.path.display());
        let new = self.path.with_extension("new");
        fs::write(&new, text).map_err(at)?;
        fs::rename(&new, &self.path).map_err(at)
    }
}

/// Reads entries with reasons: a line with a name, then indented lines that say why.
///
/// # Errors
/// If a name has no reason or occurs twice, or a reason has no name.
pub fn reasons(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let mut name: Option<String> = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("{}: {line}", path.display());
        if !line.starts_with(' ') {
            name = Some(line.into());
            if all.insert(line.into(), String::new()).is_some() {
                return Err(wrong());
            }
        } else {
            let reason = all.get_mut(name.as_ref().ok_or_else(wrong)?).ok_or_else(wrong)?;
            reason.push_str(line.trim());
        }
    }
    match all.iter().find(|(_, reason)| reason.is_empty()) {
        Some((name, _)) => Err(format!("{}: no reason: {name}", path.display())),
        None => Ok(all),
    }
}
