// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state file, which has the last epoch. [`dlock_core::roster::epoch`] decides which epoch is
//! the next.
//!
//! ```text
//!   state file:   one line   epoch 1732176000000000000
//!   replaced by rename (`fresh.rs`), so a crash leaves the old or the new one
//! ```

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;

use dlock_core::ids::Epoch;
use dlock_core::roster::epoch::{next, NoEpoch};

use super::{opened, remove_unfinished, Fresh, Ownership};
use crate::error::StartError;
use crate::host::clock::wall_ns;

/// The most bytes of a state file, which is one short line.
const STATE_BYTES_MAX: u64 = 128;

/// Begins the epoch of a primary that has the place, and writes it to the state file before it is
/// used. `after`: the last epoch of a predecessor with another state file.
///
/// # Errors
/// `StateFile`: the file cannot be read or written, is not a state file, or has the last possible
/// epoch; or another primary has taken the place meanwhile. `Clock`.
pub(crate) fn begin(
    state_file: Option<(&Path, &Ownership)>,
    after: Option<u64>,
) -> Result<Epoch, StartError> {
    let Some((path, place)) = state_file else {
        return next(wall_ns(), None, None).map_err(|none| no_epoch(Path::new(""), none));
    };
    let failed = |source| StartError::StateFile { path: path.to_path_buf(), source };
    remove_unfinished(path).map_err(failed)?;
    let last = last(path).map_err(failed)?;
    let epoch = next(wall_ns(), last, after).map_err(|none| no_epoch(path, none))?;
    keep(path, epoch, place).map_err(failed)?;
    Ok(epoch)
}

/// The error for an operator if there is no next epoch.
fn no_epoch(path: &Path, why: NoEpoch) -> StartError {
    let source = match why {
        NoEpoch::Clock(wall_s) => return StartError::Clock(wall_s),
        NoEpoch::OwnIsLast => damaged("its epoch is the last"),
        NoEpoch::OthersIsLast => {
            let what = "the list of clients beside it (.clients) names the last epoch; restore it";
            io::Error::new(io::ErrorKind::InvalidData, what)
        }
    };
    StartError::StateFile { path: path.to_path_buf(), source }
}

/// Writes the epoch of the primary that has the place.
///
/// # Errors
/// The file cannot be written; or another primary has taken the place meanwhile.
pub(crate) fn keep(path: &Path, epoch: Epoch, place: &Ownership) -> io::Result<()> {
    let fresh = Fresh::write(path, &format!("epoch {}\n", epoch.0), 0o644)?;
    fresh.put(|| place.check_mine()).map(drop)
}

/// The epoch in the state file; `None`: there is no file.
pub(crate) fn last(path: &Path) -> io::Result<Option<u64>> {
    let file = match opened(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(STATE_BYTES_MAX).read_to_string(&mut text)?;
    let epoch = text.strip_prefix("epoch ").and_then(|rest| rest.strip_suffix('\n'));
    let epoch = epoch.and_then(|number| number.parse().ok());
    epoch.map(Some).ok_or_else(|| damaged("its content is not a line `epoch NUMBER`"))
}

/// The error for a damaged state file. The list of clients beside it must stay for a recovery.
fn damaged(what: &str) -> io::Error {
    let what = format!(
        "{what}; restore it, or remove it, but not the list of clients beside it (.clients): the \
         next epoch is then the time of the clock"
    );
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::file::list_of;
    use crate::testing::TempFolder;
    use dlock_core::roster::place::Taking;
    use std::fs;

    fn owned(folder: &TempFolder) -> Ownership {
        Ownership::take(&list_of(&folder.path().join("state")), &Taking::IfFree).unwrap()
    }

    #[test]
    fn a_primary_whose_clock_is_too_late_asks_for_the_clock_to_be_set() {
        let why = no_epoch(Path::new(""), NoEpoch::Clock(u64::MAX)).to_string();
        assert!(why.contains("set the clock"), "{why}");
    }

    fn begun(path: &Path) -> Result<Epoch, StartError> {
        let place = Ownership::take(&list_of(path), &Taking::IfFree).unwrap();
        begin(Some((path, &place)), None)
    }

    #[test]
    fn a_state_file_that_is_none_is_refused_and_not_waited_for() {
        let folder = TempFolder::new("epoch-none");
        let path = folder.path().join("state");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(last(&path).unwrap_err().to_string().contains("no file"));
        assert!(last(folder.path()).unwrap_err().to_string().contains("no file"));
    }

    /// The primary is stopped before or after it checks whether the place is still its own.
    #[test]
    fn a_primary_whose_place_was_taken_does_not_put_its_epoch_there() {
        let folder = TempFolder::new("epoch-late");
        let path = folder.path().join("state");
        let old = owned(&folder);
        let late = Fresh::write(&path, "epoch 5\n", 0o644).unwrap();
        let new = Ownership::take(&list_of(&path), &Taking::FromAnother(None)).unwrap();
        let epoch = begin(Some((&path, &new)), None).unwrap();
        assert!(late.put(|| Ok(())).is_err(), "its file is gone");
        assert!(begin(Some((&path, &old)), None).is_err(), "and it makes no other");
        assert_eq!(last(&path).unwrap(), Some(epoch.0));
        assert!(begin(Some((&path, &new)), None).unwrap() > epoch);
        let is_new = |file: fs::DirEntry| file.path().extension().is_some_and(|end| end == "new");
        assert!(!fs::read_dir(folder.path()).unwrap().flatten().any(is_new), "nothing is left");
    }

    #[test]
    fn epochs_grow_even_if_the_clock_goes_back() {
        let folder = TempFolder::new("epoch");
        let path = folder.path().join("state");
        let first = begun(&path).unwrap();
        let second = begun(&path).unwrap();
        assert!(second > first);
        // The clock of this machine is now behind the last epoch.
        let future = u64::MAX / 2;
        fs::write(&path, format!("epoch {future}\n")).unwrap();
        assert_eq!(begun(&path).unwrap(), Epoch(future + 1));
        assert_eq!(begun(&path).unwrap(), Epoch(future + 2));
        assert!(begin(None, None).unwrap() > Epoch(0));
    }

    #[test]
    fn only_the_state_file_is_left_in_its_folder() {
        let folder = TempFolder::new("epoch-files");
        let path = folder.path().join("state");
        begun(&path).unwrap();
        begun(&path).unwrap();
        let names = fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["state", "state.clients.lock"]);
    }

    #[test]
    fn a_file_that_is_no_state_file_is_refused_and_left_alone() {
        let folder = TempFolder::new("epoch-bad");
        let path = folder.path().join("state");
        let last = format!("epoch {}\n", u64::MAX);
        for wrong in ["", "epoch", "epoch x\n", "epoch 5", "epoch -1\n", "hello\n", last.as_str()] {
            fs::write(&path, wrong).unwrap();
            let error = begun(&path).unwrap_err();
            assert!(matches!(error, StartError::StateFile { .. }), "{wrong:?}");
            assert!(error.to_string().contains("restore it, or remove it"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
        let inner = folder.path().join("folder");
        fs::create_dir(&inner).unwrap();
        assert!(begun(&inner).is_err(), "a folder is no file");
        let nowhere = folder.path().join("no/such/folder");
        assert!(begin(Some((&nowhere, &owned(&folder))), None).is_err());
    }
}
