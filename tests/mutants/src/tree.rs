// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy of the repository in which mutated files have switches; and how cargo checks and builds
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::source::{Change, Mutant};
use crate::switch::{self, Switched};

/// How often the mutants that the compiler refuses are left out: once for each phase of the
/// compiler, and a few times more.
const ROUNDS_MAX: usize = 40;
/// The parts of the repository that are copied: all from which the core, the models and the
/// simulator are built.
const COPIED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "dlock-core", "include", "tests"];
/// The crate that has the mutants.
const CORE: &str = "dlock-core";
/// The root of that crate, which gets the module that all switches call.
pub const LIB: &str = "dlock-core/src/lib.rs";

/// Codes of type errors. A mutant with a type error in its branch of a switch has one as an edit as
/// well.
const TYPES: [&str; 4] = ["E0277", "E0308", "E0369", "E0600"];

/// What became of the switches.
pub struct Switches {
    /// The mutants that have a switch.
    pub on: BTreeSet<u32>,
    /// The mutants that do not compile, neither with a switch nor as an edit.
    pub unviable: BTreeSet<u32>,
}

/// A copy of the repository, with its own target folder.
pub struct Tree {
    root: PathBuf,
    target: PathBuf,
}

/// A program to run: its name, and its path.
pub type Program = (String, PathBuf);

/// The programs that judge mutants.
#[derive(Clone)]
pub struct Programs {
    /// The test programs of dlock-core.
    pub tests: Vec<Program>,
    /// The models.
    pub models: PathBuf,
    /// The simulator.
    pub sim: PathBuf,
}

impl Tree {
    /// Brings the copy up to date, except for the files that get switches. A file that has not
    /// changed is not written.
    ///
    /// # Errors
    /// If `git` cannot be run, or a file cannot be copied.
    pub fn copy(
        repository: &Path,
        root: PathBuf,
        target: PathBuf,
        except: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let mut command = Command::new("git");
        command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = command.current_dir(repository).output().map_err(|e| format!("git: {e}"))?;
        let listed = String::from_utf8(listed.stdout).map_err(|e| format!("git: {e}"))?;
        let manifests = |path: &str| path.ends_with("/Cargo.toml") || path.contains("/src/");
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let top = path.split('/').next().unwrap_or_default();
            let from = repository.join(path);
            // cargo reads the manifests of the other members of the workspace
            let is_copied = COPIED.contains(&top) || manifests(path);
            if is_copied && !except.contains_key(path) && from.is_file() {
                let bytes = fs::read(&from).map_err(|e| format!("{path}: {e}"))?;
                write(&root.join(path), &bytes)?;
            }
        }
        Ok(Self { root, target })
    }

    /// Writes a file, unless it has this content already.
    pub fn write(&self, file: &str, text: &str) -> Result<(), String> {
        write(&self.root.join(file), text.as_bytes())
    }

    /// Gives a switch to every mutant that compiles with one.
    ///
    /// # Errors
    /// If the core does not compile, and no mutant is the reason.
    pub fn switch(
        &self,
        texts: &BTreeMap<String, String>,
        mutants: &[Mutant],
    ) -> Result<Switches, String> {
        // mutants that were refused in an earlier run are left out from the start
        let list = self.target.join("refused.txt");
        let old = fs::read_to_string(&list).unwrap_or_default();
        let mut refused: BTreeMap<&str, String> = BTreeMap::new();
        for (code, key) in old.lines().filter_map(|line| line.split_once('\t')) {
            let known = mutants.iter().find(|m| m.key == key);
            refused.extend(known.map(|m| (m.key.as_str(), code.to_string())));
        }
        let mut on: BTreeSet<u32> = (0u32..).zip(mutants).map(|(id, _)| id).collect();
        let key = |id: u32| mutants[id as usize].key.as_str();
        on.retain(|&id| mutants[id as usize].change.is_some() && !refused.contains_key(key(id)));
        for _ in 0..ROUNDS_MAX {
            let files = self.write_switches(texts, mutants, &on)?;
            let errors = self.errors()?;
            if errors.is_empty() {
                let lines = refused.iter().map(|(key, code)| format!("{code}\t{key}\n"));
                write(&list, lines.collect::<String>().as_bytes())?;
                let is_wrong =
                    |id: &u32| refused.get(key(*id)).is_some_and(|c| TYPES.contains(&c.as_str()));
                let unviable = (0u32..mutants.len() as u32).filter(is_wrong).collect();
                return Ok(Switches { on, unviable });
            }
            let before = refused.len();
            for error in &errors {
                for (file, range) in &error.at {
                    let Some(switched) = files.get(file) else { continue };
                    let at_fault = match error.code.as_str() {
                        "E0004" => switched.arms_of_match(range.end),
                        _ => switched.at(range),
                    };
                    refused.extend(at_fault.iter().map(|&id| (key(id), error.code.clone())));
                }
            }
            if refused.len() == before {
                return Err(format!("in no mutant: {}", errors[0].text));
            }
            eprintln!("  {} mutants do not compile as switches", refused.len());
            on.retain(|&id| !refused.contains_key(key(id)));
        }
        Err("it does not compile, whatever is left out".into())
    }

    fn write_switches(
        &self,
        texts: &BTreeMap<String, String>,
        mutants: &[Mutant],
        on: &BTreeSet<u32>,
    ) -> Result<BTreeMap<String, Switched>, String> {
        let mut files = BTreeMap::new();
        for (file, text) in texts.iter().filter(|(file, _)| *file != LIB) {
            let mine = on.iter().filter(|&&id| mutants[id as usize].file == *file);
            let changes = mine.filter_map(|&id| Some((id, mutants[id as usize].change.as_ref()?)));
            let changes: Vec<(u32, &Change)> = changes.collect();
            let switched = switch::switched(text, &changes);
            self.write(file, &switched.text)?;
            files.insert(file.clone(), switched);
        }
        self.write(LIB, &format!("{}{}", texts[LIB], switch::module(mutants.len())))?;
        Ok(files)
    }

    /// Whether the core compiles with this text of one file. The file keeps the text.
    pub fn compiles(&self, file: &str, text: &str) -> Result<bool, String> {
        self.write(file, text)?;
        Ok(self.errors()?.is_empty())
    }

    /// The errors that the compiler finds in the core.
    fn errors(&self) -> Result<Vec<CompileError>, String> {
        let (messages, text, success) =
            self.cargo(&["check", "--locked", "-p", CORE, "--message-format=json"])?;
        let errors: Vec<_> = messages.iter().filter_map(CompileError::of).collect();
        if errors.is_empty() && !success {
            return Err(text);
        }
        Ok(errors)
    }

    /// Builds the programs that judge.
    pub fn build(&self) -> Result<Programs, String> {
        let programs = |messages: &[Value]| -> Vec<Program> {
            let one = |m: &Value| {
                Some((m["target"]["name"].as_str()?.into(), m["executable"].as_str()?.into()))
            };
            messages.iter().filter_map(one).collect()
        };
        let (tests, text, success) =
            self.cargo(&["test", "--no-run", "--locked", "-p", CORE, "--message-format=json"])?;
        if !success {
            return Err(text);
        }
        let (others, text, success) = self.cargo(&[
            "build",
            "--release",
            "--locked",
            "-p",
            "dlock-models",
            "-p",
            "dlock-sim",
            "--message-format=json",
        ])?;
        let others: BTreeMap<String, PathBuf> = programs(&others).into_iter().collect();
        match (others.get("dlock-models"), others.get("sim")) {
            (Some(models), Some(sim)) if success => {
                Ok(Programs { tests: programs(&tests), models: models.clone(), sim: sim.clone() })
            }
            _ => Err(text),
        }
    }

    /// Runs cargo with settings for fast builds and tests. Returns its messages, its other output,
    /// and whether it succeeded.
    fn cargo(&self, args: &[&str]) -> Result<(Vec<Value>, String, bool), String> {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(&self.root).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("RUSTFLAGS", "--cap-lints=allow");
        command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        let output = command.output().map_err(|e| format!("cargo: {e}"))?;
        let lines = String::from_utf8_lossy(&output.stdout);
        let messages = lines.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((messages, text, output.status.success()))
    }
}

/// One error of the compiler: where in which files, and its text.
struct CompileError {
    at: Vec<(String, Range<usize>)>,
    code: String,
    text: String,
}

impl CompileError {
    fn of(message: &Value) -> Option<Self> {
        let message = &message["message"];
        if message["level"].as_str()? != "error" || message["spans"].as_array()?.is_empty() {
            return None;
        }
        let mut at = Vec::new();
        let spans = message["spans"].as_array()?;
        let primary = spans.iter().filter(|s| s["is_primary"].as_bool() == Some(true));
        for span in primary {
            let byte = |name: &str| usize::try_from(span[name].as_u64()?).ok();
            at.push((span["file_name"].as_str()?.into(), byte("byte_start")?..byte("byte_end")?));
        }
        let code = message["code"]["code"].as_str().unwrap_or_default().into();
        Some(Self { at, code, text: message["rendered"].as_str().unwrap_or_default().into() })
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let at = |e: std::io::Error| format!("{}: {e}", path.display());
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(at)?;
    }
    fs::write(path, bytes).map_err(at)
}
