// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock demo`: a guided tour with real processes.
//!
//! ```text
//!   this process ──(lines)──▶ role.rs: one primary, several clients, each a process
//!        │                        └── they lock, wait, die; the primary is killed, too
//!   scenes.rs tells what happens and why, and checks it; one check that fails: exit code 1
//! ```

pub mod role;
mod scenes;
mod strangers;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Demo, Fabric};
use crate::failure::{self, Failure};
use crate::out;

/// The pause after a paragraph of the tour, in which a person reads it.
const PAUSE: Duration = Duration::from_millis(2_000);

/// Runs the tour; returns the exit code.
pub fn run(demo: &Demo) -> Result<u8, Failure> {
    let start = Instant::now();
    let mut tour = Tour::new(demo)?;
    scenes::play(&mut tour)?;
    let seconds = start.elapsed().as_secs_f64();
    out::line(&format!("\n{} of {} properties held, in {seconds:.1} s.", tour.held, tour.checked));
    if tour.held == tour.checked {
        out::line("Next: `dlock exec NAME -- command`, `dlock bench --quick`, docs/dlock.md.");
        Ok(failure::OK)
    } else {
        Err(Failure::new(
            failure::FAILED,
            "a property did not hold: see FAILED above",
            "this is a bug of dlock, please report it with the output above",
        ))
    }
}

/// The state that the scenes share.
pub struct Tour {
    fast: bool,
    fabric: Fabric,
    folder: PathBuf,
    checked: u32,
    held: u32,
    scene: u32,
}

impl Tour {
    fn new(demo: &Demo) -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("dlock-demo-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|e| {
            let cause = format!("{}: {e}", folder.display());
            Failure::new(failure::FAILED, cause, "set TMPDIR to a folder that can be written")
        })?;
        Ok(Self { fast: demo.fast, fabric: demo.fabric, folder, checked: 0, held: 0, scene: 0 })
    }

    fn file(&self, name: &str) -> String {
        Path::new(&self.folder).join(name).to_string_lossy().into_owned()
    }

    fn title(&mut self, text: &str) {
        self.scene += 1;
        out::line(&format!("\n{}. {text}", self.scene));
    }

    fn say(&self, text: &str) {
        for line in text.lines() {
            out::line(&format!("   {line}"));
        }
        if !self.fast {
            thread::sleep(PAUSE);
        }
    }

    fn check(&mut self, text: &str, holds: bool) {
        self.checked += 1;
        self.held += u32::from(holds);
        let word = if holds { "ok     " } else { "FAILED " };
        out::line(&format!("   {word}{text}"));
    }
}

impl Drop for Tour {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder); // a temporary folder that stays does no harm
    }
}
