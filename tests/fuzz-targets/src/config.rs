// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of `dlockd.toml`, by the daemon's own source file.
//!
//! What is refused is refused in one line that begins with the file's name; what is accepted is
//! within its limits.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process};

use dlock_core::limits;

#[path = "../../../dlock-server/src/bin/dlockd/file.rs"]
#[allow(dead_code)]
mod file;

/// A temporary file of this thread, removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

thread_local! {
    static SCRATCH: OnceCell<Scratch> = const { OnceCell::new() };
}

fn scratch() -> Scratch {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { env::temp_dir() };
    Scratch(folder.join(format!("dlock-fuzz-{}-{number}.toml", process::id())))
}

/// Reads the bytes as a configuration file.
///
/// # Panics
/// If an error is not reported in one line, or an accepted setting is beyond its limits.
pub fn run(data: &[u8]) {
    SCRATCH.with(|cell| {
        let path = &cell.get_or_init(scratch).0;
        if fs::write(path, data).is_ok() {
            check(path);
        }
    });
}

fn check(path: &Path) {
    match file::read(path) {
        Err(line) => {
            assert!(!line.contains(['\n', '\r']), "{line:?}");
            assert!(line.starts_with(&path.display().to_string()), "{line:?}");
        }
        Ok(settings) => {
            let server = settings.server;
            assert!((1..=limits::CLIENTS_MAX).contains(&server.clients_max));
            assert!((1..=limits::LOCKS_MAX).contains(&server.locks_max));
            assert!((1..=limits::OBJECTS_MAX).contains(&server.objects_max));
            assert!(server.recovery_clients <= limits::RECOVERY_CLIENTS_MAX);
            assert!(server.tp_mode <= 1 && (server.shm || server.tcp));
        }
    }
}
