// SPDX-License-Identifier: MIT OR Apache-2.0
//! Epochs and the server clock.
//!
//! An epoch is the wall clock at the primary's start in nanoseconds, or one more than the last
//! epoch in the state file, whichever is larger: with a state file epochs grow whatever the
//! clock does.
//!
//! ```text
//!   state file:   one line   epoch 1732176000000000000
//!   replaced by rename, so a crash leaves the old or the new one
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::clock::ServerTime;
use dlock_core::ids::Epoch;
use dlock_fabric::clock::boot_ns;

use crate::error::StartError;

/// Bytes of a state file at most: it is one short line.
const STATE_BYTES_MAX: u64 = 128;

/// The server clock: this host's CLOCK_BOOTTIME, set to the wall clock once. It counts the time
/// for which the machine is suspended, since leases do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    offset_ns: u64,
}

/// Pairs of readings of the two clocks; the one that took the shortest counts.
const READINGS: u32 = 32;

impl ServerClock {
    /// A clock that starts with the wall clock's time.
    pub(crate) fn start() -> Self {
        // a thread that is interrupted between two readings would give its primary another time
        // than its predecessor had
        let pairs = (0..READINGS).map(|_| {
            let before = boot_ns();
            let wall = wall_ns();
            let took = boot_ns().saturating_sub(before);
            (took, wall.wrapping_sub(before.wrapping_add(took / 2)))
        });
        let (_, offset_ns) = pairs.min_by_key(|(took, _)| *took).unwrap_or_default();
        Self { offset_ns }
    }

    /// The time.
    pub(crate) fn now(self) -> ServerTime {
        ServerTime(boot_ns().wrapping_add(self.offset_ns))
    }

    /// Server clock minus CLOCK_BOOTTIME, nanoseconds.
    pub(crate) fn offset_ns(self) -> u64 {
        self.offset_ns
    }
}

/// Nanoseconds since 1970; 0 if the clock says it is earlier.
fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The epoch of a primary that starts now, written to the state file before it is used.
///
/// # Errors
/// `StateFile`: it cannot be read or written, is not a state file, or is at its end.
pub(crate) fn begin(state_file: Option<&Path>) -> Result<Epoch, StartError> {
    let wall = wall_ns().max(1);
    let Some(path) = state_file else { return Ok(Epoch(wall)) };
    let failed = |source| StartError::StateFile { path: path.to_path_buf(), source };
    let next = match last(path).map_err(failed)? {
        None => 1,
        Some(last) => {
            last.checked_add(1).ok_or_else(|| failed(invalid("its epoch is the last")))?
        }
    };
    let epoch = next.max(wall);
    store(path, epoch).map_err(failed)?;
    Ok(Epoch(epoch))
}

/// The epoch in the file; `None` if there is no file.
fn last(path: &Path) -> io::Result<Option<u64>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(STATE_BYTES_MAX).read_to_string(&mut text)?;
    let epoch = text.strip_prefix("epoch ").and_then(|rest| rest.strip_suffix('\n'));
    let epoch = epoch.and_then(|number| number.parse().ok());
    epoch.map(Some).ok_or_else(|| invalid("its content is not a line `epoch NUMBER`"))
}

fn store(path: &Path, epoch: u64) -> io::Result<()> {
    let mut name = path.file_name().ok_or_else(|| invalid("it has no file name"))?.to_os_string();
    // Two primaries that start at once do not write to the same file.
    name.push(format!(".{}.{}.new", std::process::id(), boot_ns()));
    let new = path.with_file_name(name);
    let written = write_synced(&new, epoch).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new); // it may not exist; the first error is the one to report
    }
    written?;
    File::open(folder_of(path))?.sync_all()
}

fn write_synced(path: &Path, epoch: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(format!("epoch {epoch}\n").as_bytes())?;
    file.sync_all()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;

    #[test]
    fn epochs_grow_even_if_the_clock_goes_back() {
        let folder = TempFolder::new("epoch");
        let path = folder.path().join("state");
        let first = begin(Some(&path)).unwrap();
        let second = begin(Some(&path)).unwrap();
        assert!(second > first);
        // The clock of this machine is now behind the last epoch.
        let future = u64::MAX / 2;
        fs::write(&path, format!("epoch {future}\n")).unwrap();
        assert_eq!(begin(Some(&path)).unwrap(), Epoch(future + 1));
        assert_eq!(begin(Some(&path)).unwrap(), Epoch(future + 2));
        assert!(begin(None).unwrap() > Epoch(0));
    }

    #[test]
    fn only_the_state_file_is_left_in_its_folder() {
        let folder = TempFolder::new("epoch-files");
        let path = folder.path().join("state");
        begin(Some(&path)).unwrap();
        begin(Some(&path)).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_no_state_file_is_refused_and_left_alone() {
        let folder = TempFolder::new("epoch-bad");
        let path = folder.path().join("state");
        let last = format!("epoch {}\n", u64::MAX);
        for wrong in ["", "epoch", "epoch x\n", "epoch 5", "epoch -1\n", "hello\n", last.as_str()] {
            fs::write(&path, wrong).unwrap();
            assert!(matches!(begin(Some(&path)), Err(StartError::StateFile { .. })), "{wrong:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
        assert!(begin(Some(folder.path())).is_err(), "a folder is no file");
        assert!(begin(Some(&folder.path().join("no/such/folder"))).is_err());
    }

    #[test]
    fn the_server_clock_is_the_clock_that_counts_suspended_time_and_an_offset() {
        let clock = ServerClock::start();
        let before = boot_ns().wrapping_add(clock.offset_ns());
        let now = clock.now();
        assert!(now.0 >= before);
        assert!(now.0 <= boot_ns().wrapping_add(clock.offset_ns()));
        assert!(wall_ns().abs_diff(now.0) < 5_000_000_000);
    }

    /// A namespace with another CLOCK_BOOTTIME is a host that was suspended.
    #[test]
    fn the_server_clock_is_right_on_a_host_that_was_suspended_for_a_day() {
        let test = "the_server_clock_is_the_clock_that_counts_suspended_time_and_an_offset";
        let mut command = std::process::Command::new("unshare");
        command.args(["--time", "--boottime", "86400", "--fork", "--"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("epoch::tests::{test}")]);
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) if !String::from_utf8_lossy(&output.stdout).contains("running 1") => {
                println!("skipped: no time namespace: {output:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
