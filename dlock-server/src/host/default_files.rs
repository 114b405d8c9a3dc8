// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where `dlockd` keeps its files if its configuration names none, and where `dlock` finds them.
//!
//! ```text
//!   state file     $XDG_STATE_HOME/dlock/epoch-PORT-MACHINE    else, of root,
//!                  /var/lib/dlock/epoch-PORT                    of another user
//!                  $HOME/.local/state/dlock/epoch-PORT-MACHINE
//!   admin socket   the first of these folders that is this user's alone:
//!                  $XDG_RUNTIME_DIR/dlock/PORT.sock
//!                  /run/user/UID/dlock/PORT.sock
//!                  /tmp/dlock-UID/PORT.sock          ($TMPDIR in place of /tmp)
//!   holds          holds/ beside the admin sockets (`dlock hold`)
//! ```
//! The socket of a standby is PORT-standby.sock, even after it has taken the place of its primary.
//! The port is in the name because primaries on different ports have different clients. The machine
//! (`/etc/machine-id`) is in the name where several hosts may share the folder. A folder that
//! belongs to another user, or that others may write, is not used: its files could be exchanged.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dlock_fabric::os::environment;
use rustix::fs::OFlags;

/// The folder of root's state files.
const SYSTEM_STATE: &str = "/var/lib/dlock";
/// The file with the id of this host, which stays the same as long as its system is installed.
const MACHINE_ID: &str = "/etc/machine-id";
/// Characters of a machine id.
const MACHINE_ID_LEN: usize = 32;
/// Where a system has the folders of the users who are logged in, by user id.
const RUN_USER: &str = "/run/user";
/// The most bytes of a socket's path (`sun_path`, without the zero at its end).
const SOCKET_PATH_MAX: usize = 107;
/// The end of the name of an admin socket.
const SOCKET: &str = "sock";
/// Mode bits that let others change what is in a folder.
const OTHERS_WRITE: u32 = 0o022;

/// The properties of a process that decide where its files are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultFiles {
    /// The value of the variable `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// The value of the variable `HOME`.
    pub home: Option<PathBuf>,
    /// The value of the variable `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// The effective user id.
    pub uid: u32,
}

impl DefaultFiles {
    /// The properties of this process, from its environment.
    pub fn of_this_process() -> Self {
        // relative paths are ignored, as the specification of these variables says
        let folder = |name| {
            environment::variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
        };
        let (state_home, home) = (folder("XDG_STATE_HOME"), folder("HOME"));
        let runtime_dir = folder("XDG_RUNTIME_DIR");
        Self { state_home, home, runtime_dir, uid: rustix::process::geteuid().as_raw() }
    }

    /// The path of the state file of a primary on this port. Makes its folder.
    ///
    /// # Errors
    /// The reason: no folder is known, it cannot be made, or it is not this user's alone.
    pub fn state_file(&self, port: u16) -> Result<PathBuf, String> {
        let name = format!("epoch-{port}");
        let machine = machine().map_err(|e| format!("{MACHINE_ID}: {e}"))?;
        let shared = |folder: &Path| (folder.join("dlock"), format!("{name}{machine}"));
        let (folder, name) = match (&self.state_home, &self.home) {
            (Some(state_home), _) => shared(state_home),
            (None, _) if self.uid == 0 => (PathBuf::from(SYSTEM_STATE), name.clone()),
            (None, Some(home)) => shared(&home.join(".local/state")),
            (None, None) => return Err("neither XDG_STATE_HOME nor HOME names a folder".into()),
        };
        self.own_folder(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        Ok(folder.join(name))
    }

    /// State files of primaries on this port that another environment or machine id would choose:
    /// one may be the predecessor's.
    pub fn other_state_files(&self, port: u16, chosen: &Path) -> Vec<PathBuf> {
        let home = self.home.as_deref().map(|home| home.join(".local/state"));
        let folders = [self.state_home.clone(), home].into_iter().flatten();
        let folders = folders.map(|folder| folder.join("dlock"));
        let system = (self.uid == 0).then(|| PathBuf::from(SYSTEM_STATE));
        let name = format!("epoch-{port}");
        let is_of_port = |path: &PathBuf| {
            let end = path.file_name().and_then(|file| file.to_str()?.strip_prefix(&name));
            end.is_some_and(|end| end.is_empty() || end.starts_with('-') && !end.contains('.'))
        };
        // primaries never use a folder that is not this user's alone
        let folders = folders.chain(system).filter(|folder| self.is_own(folder).is_ok());
        let entries = folders.filter_map(|folder| fs::read_dir(folder).ok());
        let paths = entries.flatten().flatten().map(|entry| entry.path());
        let mut others: Vec<_> = paths.filter(is_of_port).filter(|path| path != chosen).collect();
        others.sort();
        others.dedup();
        others
    }

    /// The path of the admin socket with this name, a port. Makes its folder.
    ///
    /// # Errors
    /// The reason: its folder cannot be made, or is not this user's alone.
    pub fn admin_socket(&self, name: &str) -> Result<PathBuf, String> {
        let mut why = String::new();
        let folder = self.socket_folders().into_iter().find(|folder| {
            let own = self.own_folder(folder);
            own.map_err(|error| why = format!("{}: {error}", folder.display())).is_ok()
        });
        let folder = folder.ok_or(why)?;
        let path = folder.join(format!("{name}.{SOCKET}"));
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(format!("{}: longer than {SOCKET_PATH_MAX} bytes", path.display()));
        }
        Ok(path)
    }

    /// The folder for the holds of `dlock hold`. Makes it.
    ///
    /// # Errors
    /// The reason, as of an admin socket.
    pub fn holds(&self) -> Result<PathBuf, String> {
        let folder = self.admin_socket("holds")?.with_extension("");
        self.own_folder(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        Ok(folder)
    }

    /// The admin sockets that primaries of this user have made in default places, including those
    /// left by primaries that were killed.
    pub fn admin_sockets(&self) -> Vec<PathBuf> {
        let folders =
            self.socket_folders().into_iter().filter(|folder| self.is_own(folder).is_ok());
        let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let is_socket = |path: &PathBuf| {
            let is_own =
                |found: fs::Metadata| found.file_type().is_socket() && found.uid() == self.uid;
            path.extension().is_some_and(|end| end == SOCKET)
                && fs::symlink_metadata(path).is_ok_and(is_own)
        };
        let mut sockets: Vec<_> = entries.map(|entry| entry.path()).filter(is_socket).collect();
        sockets.sort();
        sockets
    }

    /// The folders that may have admin sockets, the best first.
    fn socket_folders(&self) -> Vec<PathBuf> {
        let runtime_dir = self.runtime_dir.clone();
        let run_user = Path::new(RUN_USER).join(self.uid.to_string());
        let dlock = |folder: PathBuf| self.is_own(&folder).ok().map(|()| folder.join("dlock"));
        let shared = env::temp_dir().join(format!("dlock-{}", self.uid));
        [runtime_dir.and_then(dlock), dlock(run_user), Some(shared)].into_iter().flatten().collect()
    }

    /// Makes this folder for this user alone, unless it exists.
    ///
    /// # Errors
    /// It cannot be made, or is not this user's alone.
    fn own_folder(&self, folder: &Path) -> Result<(), String> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| e.to_string())?;
        self.is_own(folder)
    }

    /// Checks that this is a folder which only this user may write.
    fn is_own(&self, folder: &Path) -> Result<(), String> {
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

/// `-ID` of this machine; empty if it has none. If two hosts without an id share a folder, the
/// second primary finds that the state file is in use, and does not start.
///
/// # Errors
/// The id exists and cannot be read: without it another state file would be chosen.
fn machine() -> io::Result<String> {
    let id = match fs::read_to_string(MACHINE_ID) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => String::new(),
        id => id?,
    };
    let id = id.trim();
    let is_id = id.len() == MACHINE_ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(if is_id { format!("-{id}") } else { String::new() })
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
    fn the_admin_sockets_of_a_user_are_found_and_nothing_else() {
        let folder = TempFolder::new("default-socket");
        let runtime_dir = folder.path().join("run");
        fs::create_dir(&runtime_dir).unwrap();
        fs::set_permissions(&runtime_dir, fs::Permissions::from_mode(0o700)).unwrap();
        let files = DefaultFiles { runtime_dir: Some(runtime_dir.clone()), ..of(&folder) };
        let path = files.admin_socket("21616").unwrap();
        assert_eq!(path, runtime_dir.join("dlock/21616.sock"));
        let found = || {
            let mut found = files.admin_sockets();
            found.retain(|path| path.starts_with(folder.path()));
            found
        };
        fs::write(&path, "no socket").unwrap();
        assert!(found().is_empty());
        fs::remove_file(&path).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        let _listener = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(found().is_empty(), "a link may lead to another user's");
        fs::rename(&elsewhere, &path).unwrap();
        assert_eq!(found(), std::slice::from_ref(&path));
        fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(found().is_empty());
        assert!(!files.admin_socket("21616").unwrap().starts_with(&runtime_dir));
        // as if the folder belonged to another user, which happens after `su`
        fs::set_permissions(&runtime_dir, fs::Permissions::from_mode(0o777)).unwrap();
        fs::remove_dir_all(runtime_dir.join("dlock")).unwrap();
        assert!(!files.admin_socket("21616").unwrap().starts_with(&runtime_dir));
    }

    #[test]
    fn a_state_file_that_other_variables_name_is_found() {
        let folder = TempFolder::new("default-other");
        let of_home = DefaultFiles { uid: of(&folder).uid.max(1), ..of(&folder) };
        let home = of_home.home.as_ref().unwrap().join(".local/state");
        let before = home.join(format!("dlock/epoch-21616{}", machine().unwrap()));
        fs::create_dir_all(before.parent().unwrap()).unwrap();
        std::os::unix::fs::chown(before.parent().unwrap(), Some(of_home.uid), None).unwrap();
        fs::write(&before, "1").unwrap();
        fs::write(before.with_extension("clients"), "").unwrap();
        fs::write(home.join("dlock/epoch-2161"), "1").unwrap();
        let state_home = Some(folder.path().join("state"));
        let now = DefaultFiles { state_home, ..of_home };
        let chosen = folder.path().join("state/dlock/epoch-21616");
        assert_eq!(now.other_state_files(21_616, &chosen), std::slice::from_ref(&before));
        assert!(now.other_state_files(21_616, &before).is_empty());
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(before.parent().unwrap(), mode).unwrap();
        assert!(now.other_state_files(21_616, &chosen).is_empty(), "others may have put it there");
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
