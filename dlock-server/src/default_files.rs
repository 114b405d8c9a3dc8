// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where `dlockd` keeps its files if its configuration names none, and where `dlock` finds them.
//!
//! ```text
//!   state file     $XDG_STATE_HOME/dlock/epoch-PORT-MACHINE    else, of root,
//!                  /var/lib/dlock/epoch-PORT                    of another user
//!                  $HOME/.local/state/dlock/epoch-PORT-MACHINE
//! ```
//! The port is in the name, since primaries on different ports have different clients. The machine
//! (`/etc/machine-id`) is in it where several hosts may share the folder. A folder that belongs to
//! another user, or that others may write, is not used: its files could be exchanged.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The folder of root's state files.
const SYSTEM_STATE: &str = "/var/lib/dlock";
/// Which host this is, for as long as its system is installed.
const MACHINE_ID: &str = "/etc/machine-id";
/// Characters of such an id.
const MACHINE_ID_LEN: usize = 32;
/// Mode bits with which others may change what is in a folder.
const OTHERS_WRITE: u32 = 0o022;

/// What of a process decides where its files are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultFiles {
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The user.
    pub uid: u32,
}

impl DefaultFiles {
    /// Those of this process, by its environment.
    pub fn of_this_process() -> Self {
        // the specification of these variables has relative paths ignored
        let folder =
            |name| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let (state_home, home) = (folder("XDG_STATE_HOME"), folder("HOME"));
        Self { state_home, home, uid: rustix::process::geteuid().as_raw() }
    }

    /// The state file of a primary on this port. Its folder is made.
    ///
    /// # Errors
    /// Why there is none: no folder is known, it cannot be made, or it is not this user's alone.
    pub fn state_file(&self, port: u16) -> Result<PathBuf, String> {
        let name = format!("epoch-{port}");
        let shared = |folder: &Path| (folder.join("dlock"), format!("{name}{}", machine()));
        let (folder, name) = match (&self.state_home, &self.home) {
            (Some(state_home), _) => shared(state_home),
            (None, _) if self.uid == 0 => (PathBuf::from(SYSTEM_STATE), name.clone()),
            (None, Some(home)) => shared(&home.join(".local/state")),
            (None, None) => return Err("neither XDG_STATE_HOME nor HOME names a folder".into()),
        };
        self.own_folder(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        Ok(folder.join(name))
    }

    /// Makes this folder, if it is not there, for this user alone.
    ///
    /// # Errors
    /// It cannot be made, or is not this user's alone.
    fn own_folder(&self, folder: &Path) -> Result<(), String> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| e.to_string())?;
        let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder);
        let found = opened.and_then(|folder| folder.metadata()).map_err(|e| e.to_string())?;
        if found.uid() != self.uid {
            return Err(format!("the folder belongs to the user {}", found.uid()));
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err("others may write the folder (chmod go-w)".to_string());
        }
        Ok(())
    }
}

/// `-ID` of this machine; empty where it has none. Two hosts without one that share a folder find
/// that the other has the state file, and the second does not start.
fn machine() -> String {
    let id = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    let id = id.trim();
    let is_id = id.len() == MACHINE_ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id {
        format!("-{id}")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn of(folder: &TempFolder) -> DefaultFiles {
        let uid = rustix::process::geteuid().as_raw();
        DefaultFiles { home: Some(folder.path().join("home")), uid, ..DefaultFiles::default() }
    }

    #[test]
    fn every_port_of_a_user_has_a_state_file_of_its_own() {
        let folder = TempFolder::new("default-state");
        let state_home = Some(folder.path().join("state"));
        let files = DefaultFiles { state_home, ..of(&folder) };
        let [one, other] = [21_616, 21_617].map(|port| files.state_file(port).unwrap());
        assert_ne!(one, other);
        assert_eq!(one, files.state_file(21_616).unwrap());
        assert!(one.starts_with(folder.path().join("state/dlock")), "{one:?}");
        let mode = one.parent().unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        if files.uid != 0 {
            let files = DefaultFiles { state_home: None, ..files };
            let path = files.state_file(21_616).unwrap();
            assert!(path.starts_with(folder.path().join("home/.local/state/dlock")), "{path:?}");
        }
    }

    #[test]
    fn a_folder_that_is_not_this_users_alone_is_refused() {
        let folder = TempFolder::new("default-foreign");
        let state_home = folder.path().join("state");
        let files = DefaultFiles { state_home: Some(state_home.clone()), ..of(&folder) };
        files.state_file(1_024).unwrap();
        let own = state_home.join("dlock");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(files.state_file(1_024).unwrap_err().contains("others may write"));
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(files.state_file(1_024).is_ok());
        let another = DefaultFiles { uid: files.uid + 1, ..files.clone() };
        assert!(another.state_file(1_024).unwrap_err().contains("belongs to the user"));
        fs::remove_dir(&own).unwrap();
        symlink(folder.path(), &own).unwrap();
        files.state_file(1_024).unwrap_err();
        let nowhere = DefaultFiles { uid: 1, ..DefaultFiles::default() };
        assert!(nowhere.state_file(1_024).unwrap_err().contains("HOME"));
    }
}
