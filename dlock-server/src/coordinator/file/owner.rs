// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which primary owns a list of clients: one at a time, even if the owner is stopped.
//!
//! ```text
//!   FILE.clients.lock   locked (flock) for as long as its primary's process lives
//!     dlock primary 4711 881234 90210 6f1c… pid:[4026531836]
//!                                    process, its start, this file's inode, boot and namespaces
//! ```
//! The system's lock ends with the process, and not before: a primary that gets it knows that the
//! last owner is gone. A primary that takes the place of an owner that may only be stopped puts
//! another file there, and the old owner sees that as soon as it goes on. Of several that want to,
//! one at a time (`FILE.clients.taking`) checks that the list is still the old owner's, and takes
//! it.
//!
//! [`dlock_core::roster::place`] decides which primary owns the list. This module looks at the
//! file, locks it and writes it.
//!
//! The file may be removed while its primary serves. The primary has a name on this host as well
//! ([`Name`]), so that no other one begins before the file is there again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlock_core::roster::place::{
    Attempt, FileId, Folder, Hold, Seen, Signature, Step, Taking, Whose,
};
use dlock_core::roster::Process;
use dlock_fabric::os::fds::process_stat;
use dlock_fabric::os::fork;
use dlock_fabric::os::named;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;
use rustix::process::Pid;

use super::files::opened;
use super::name::{in_use, Name};
use crate::coordinator::Place;

const HEAD: &str = "dlock primary ";
/// The least bytes of a signature, which is padded to this length.
const SIGNATURE_LEN: usize = 255;
/// The most bytes of the file.
const BYTES_MAX: u64 = 4_096;
/// The end of the name of a list of clients.
const LIST: &str = ".clients";

/// The ownership of a list by this primary.
#[derive(Debug)]
pub(crate) struct Ownership {
    held: Mutex<Held>,
    path: PathBuf,
    /// The signature that was in the lock file before this primary signed it.
    before: Option<Signature>,
    /// The process that has locked the file. A forked child must not unlock it.
    process: u64,
}

#[derive(Debug)]
struct Held {
    /// The lock file, locked for as long as this lives.
    file: File,
    /// The folder of the file, which another primary may reach by another path.
    folder: File,
    /// The name of the state on this host. `None`: it belongs to a stopped primary whose place this
    /// one has taken, or cannot be used.
    name: Option<Name>,
}

impl Drop for Ownership {
    /// Unlocks the file: a child between its fork and its program, which has the descriptor, too,
    /// would keep it locked.
    fn drop(&mut self) {
        if self.process == fork::process() {
            let held = self.held();
            unlock(&held.file);
            held.name.iter().for_each(Name::give_up);
        }
    }
}

impl Ownership {
    /// Takes the ownership of this list.
    ///
    /// # Errors
    /// `ResourceBusy`: another primary has it. Or its lock file cannot be made.
    pub(crate) fn take(list: &Path, taking: &Taking) -> io::Result<Self> {
        let path = beside(list, ".lock");
        let of_lock = |error| named(&format!("its lock {}", path.display()), error);
        let name = match Name::take(&path) {
            Err(error) if is_busy(&error) => match taking.step(Attempt::Held) {
                Step::Refuse => return Err(error),
                _ => None,
            },
            name => name.map_err(of_lock)?,
        };
        let owned = loop {
            let file = lock_file(&path).map_err(of_lock)?;
            let owned = Self::unsigned(file, path.clone(), list)?;
            let (attempt, refused) = match owned.lock() {
                Ok(()) => {
                    let is_in_place = is_at(&owned.held().file, &path);
                    (Attempt::Locked { is_in_place }, None)
                }
                Err(error) if is_busy(&error) => (Attempt::Held, Some(error)),
                Err(error) => return Err(error),
            };
            match taking.step(attempt) {
                Step::Sign => {
                    owned.is_no_copy(taking)?;
                    if let Err(error) = owned.sign() {
                        // A half-written signature may name this process, which would then wait for
                        // its own end.
                        // if this fails as well, the caller still gets the first error
                        let _ = owned.give_back();
                        return Err(error);
                    }
                    break owned;
                }
                Step::Again => {} // another file was put there meanwhile
                Step::Replace => break Self::replace(list, path, taking)?,
                Step::Refuse => return Err(refused.unwrap_or_else(|| in_use(""))),
            }
        };
        owned.held().name = name;
        Ok(owned)
    }

    /// The ownership by this file, unsigned; the file is at this path, or is to be put there.
    fn unsigned(file: File, path: PathBuf, list: &Path) -> io::Result<Self> {
        let held = Mutex::new(Held { file, folder: open_folder(&path)?, name: None });
        Ok(Self { held, path, before: signature(list), process: fork::process() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes into the lock file that this process owns the list.
    fn sign(&self) -> io::Result<()> {
        let held = self.held();
        write(&held.file, &own_signature(&held.file)?)
    }

    /// # Errors
    /// `ResourceBusy`: the state is a copy of that of a primary whose process lives.
    fn is_no_copy(&self, taking: &Taking) -> io::Result<()> {
        let before = self.before.as_ref().and_then(read);
        let own = (std::process::id() as i32, self.held().file.metadata()?.ino());
        match taking.copied_from(before, own, has_ended) {
            None => Ok(()),
            Some(owner) => Err(busy(&format!(
                "it is a copy of the state of the primary in process {}, which lives, and two must \
                 not serve with one state; end that process, or give this primary a state of its \
                 own",
                owner.pid
            ))),
        }
    }

    /// Restores the signature that was there before, because the start of this primary has failed.
    ///
    /// # Errors
    /// The file cannot be written: this process seems to own the list until it ends.
    pub(crate) fn give_back(&self) -> io::Result<()> {
        let before = self.before.as_ref().map_or("", |before| &before.0);
        write(&self.held().file, before)
    }

    /// Replaces the lock file of another primary by this primary's own.
    fn replace(list: &Path, path: PathBuf, taking: &Taking) -> io::Result<Self> {
        let turn = lock_file(&beside(list, ".taking"))?;
        lock(&turn, || busy("another process is just taking its place"))?;
        if !taking.may_replace(signature(list).as_ref()) {
            return Err(replaced());
        }
        let new = beside(&path, &format!(".{}.new", std::process::id()));
        let owned = Self::unsigned(lock_file(&new)?, path, list)?;
        let signed = owned.lock().and_then(|()| owned.sign());
        let replaced = signed.and_then(|()| fs::rename(&new, &owned.path));
        if replaced.is_err() {
            // the file may not exist; the first error is to be reported
            let _ = fs::remove_file(&new);
        }
        unlock(&turn);
        replaced.map(|()| owned)
    }

    fn lock(&self) -> io::Result<()> {
        lock(&self.held().file, || in_use(""))
    }

    /// Whether its file is in its place. Also takes the name, if that has become free.
    pub(crate) fn is_in_place(&self) -> bool {
        let mut held = self.held();
        match &held.name {
            Some(name) => name.answer(),
            // another primary may take the name first, but finds the file locked
            None => held.name = Name::take(&self.path).ok().flatten(),
        }
        is_at(&held.file, &self.path)
    }

    /// Puts its file and the folder back, if they were removed.
    ///
    /// # Errors
    /// It is not certain that they were removed; they cannot be made; or another primary has made
    /// them.
    pub(crate) fn hold(&self) -> io::Result<()> {
        let (is_in_place, opened) = {
            let held = self.held();
            (is_at(&held.file, &self.path), held.folder.metadata()?)
        };
        let folder = folder(&self.path);
        let above = folder.ancestors().find_map(|above| fs::metadata(above).ok());
        let seen = Folder {
            opened: id(&opened),
            is_removed: opened.nlink() == 0,
            at_path: fs::metadata(folder).ok().as_ref().map(id),
            device_above: above.map(|above| above.dev()),
        };
        match seen.hold(self.whose(), is_in_place) {
            Hold::Holds => return Ok(()),
            Hold::Replaced => return Err(replaced()),
            Hold::OutOfReach => {
                let why = format!(
                    "its folder {} is out of reach: it was moved, or a link or mount on the way to \
                     it; put that back",
                    folder.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Hold::MakeAgain => {}
        }
        let made = || {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let new = beside(&self.path, &format!(".{}.new", std::process::id()));
            let file = lock_file(&new)?;
            let locked = lock(&file, || in_use(""));
            let signed = locked.and_then(|()| write(&file, &own_signature(&file)?));
            // a hard link never replaces the file of another primary
            let put = signed.and_then(|()| fs::hard_link(&new, &self.path));
            let _ = fs::remove_file(&new); // the new file is not needed any more
            put.and_then(|()| Ok((file, open_folder(&self.path)?)))
        };
        let (file, folder) = made().map_err(|error| {
            let why = format!(
                "its folder, or what was in it, was removed, and cannot be made again: {error}; \
                 make the folder {} for the user of this primary, which goes on then",
                folder.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        let mut held = self.held();
        (held.file, held.folder) = (file, folder);
        Ok(())
    }
}

/// The signature with which this process signs the lock file.
fn own_signature(file: &File) -> io::Result<String> {
    let me = process(Some(std::process::id() as i32));
    let text = format!("{HEAD}{} {} {} {}", me.pid, me.started, file.metadata()?.ino(), home());
    // padded to one length, so that it replaces the signature before it in one write
    Ok(format!("{text:<SIGNATURE_LEN$}\n"))
}

fn write(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Opens the folder of this file.
fn open_folder(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::PATH).bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(folder(path))
}

/// The folder of a file.
pub(super) fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Opens this file, and makes it if there is none; its content stays.
fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    opened(path, options.write(true).create(true).truncate(false).mode(0o600))
}

/// Locks the file for as long as it is open, unless another process has locked it.
fn lock(file: &File, is_held: impl FnOnce() -> io::Error) -> io::Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(is_held()),
        locked => Ok(locked?),
    }
}

/// Unlocks the file, even if a child process has inherited the descriptor.
fn unlock(file: &File) {
    // if this fails, closing the file unlocks it
    let _ = rustix::fs::flock(file, FlockOperation::NonBlockingUnlock);
}

pub(super) fn replaced() -> io::Error {
    busy("another primary has taken its place")
}

pub(super) fn busy(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, what)
}

impl Place for Ownership {
    fn whose(&self) -> Whose {
        let seen = self.seen();
        Whose::of(self.held().file.metadata().ok().as_ref().map(id), seen)
    }
}

impl Ownership {
    /// Checks that the place is this primary's.
    ///
    /// # Errors
    /// The place is another primary's, or that cannot be seen.
    pub(crate) fn check_mine(&self) -> io::Result<()> {
        match self.whose() {
            Whose::Mine => Ok(()),
            Whose::Anothers => Err(replaced()),
            Whose::Unseen => {
                Err(io::Error::other("whether another primary has taken its place is not seen"))
            }
        }
    }

    /// What is at the path of the lock file. A primary that takes the list puts its own file there:
    /// in the same folder, reached by any path, or in another folder that has the path by now.
    fn seen(&self) -> Seen {
        if let Ok(there) = fs::symlink_metadata(&self.path) {
            return Seen::File(id(&there));
        }
        // the path leads nowhere: the lock file was removed, or its folder cannot be reached
        let name = self.path.file_name().unwrap_or_default();
        let held = self.held();
        match rustix::fs::statat(&held.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Seen::File(FileId { device: there.st_dev as _, inode: there.st_ino as _ }),
            Err(Errno::NOENT) => match held.folder.metadata() {
                Ok(folder) => Seen::NoFile { has_folder: folder.nlink() > 0 },
                Err(_) => Seen::Nothing,
            },
            Err(_) => Seen::Nothing,
        }
    }
}

fn id(file: &fs::Metadata) -> FileId {
    FileId { device: file.dev(), inode: file.ino() }
}

/// The content of a list's lock file, which names the primary that owned the list last.
pub(crate) fn signature(list: &Path) -> Option<Signature> {
    let mut text = String::new();
    let file = opened(&beside(list, ".lock"), OpenOptions::new().read(true));
    file.ok()?.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(Signature(text))
}

/// The process that owned a list last, if it is one of this boot and namespace.
pub(crate) fn owner(list: &Path) -> Option<Process> {
    read(&signature(list)?).map(|(owner, _)| owner)
}

/// The process that a signature names, and the inode of the file that it signed.
fn read(signature: &Signature) -> Option<(Process, u64)> {
    let mut words = signature.0.strip_suffix('\n')?.trim_end().strip_prefix(HEAD)?.splitn(4, ' ');
    let (pid, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let inode = words.next()?.parse().ok()?;
    let home_of_it = words.next()?;
    let is_known = !home_of_it.is_empty() && home_of_it == home();
    is_known.then_some((Process { pid, started }, inode))
}

/// The list of clients for this state file, which is [`resolved`](super::resolved).
pub(crate) fn list_of(state_file: &Path) -> PathBuf {
    beside(state_file, LIST)
}

/// The path with `suffix` at the end of its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_os_string();
    path.push(suffix);
    PathBuf::from(path)
}

/// Whether the file at this path is this file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(mine), Ok(there)) => (mine.dev(), mine.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

pub(super) fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// Where process ids and start times mean the same: the boot of this host, and the process and time
/// namespaces of this process (the kernel tells a start time by the reader's clock). Empty where
/// that cannot be told, or where `/proc` is that of another namespace.
pub(super) fn home() -> String {
    let own = fs::read_link("/proc/self")
        .is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()));
    if !own {
        return String::new();
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/pid");
    let time = match fs::read_link("/proc/self/ns/time") {
        Ok(time) => format!(" {}", time.display()),
        // Linux before 5.6 has no such file
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(_) => return String::new(),
    };
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}{time}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}

/// The running process with this id; `None`: it is one of another namespace.
pub(crate) fn process(pid: Option<i32>) -> Process {
    let pid = pid.filter(|pid| *pid > 0).unwrap_or(0);
    Process { pid, started: process_stat(pid).map_or(0, |stat| stat.ticks) }
}

/// Whether the process has ended for sure.
pub(crate) fn has_ended(process: Process) -> bool {
    let pid = Some(process.pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let has_number = |pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH);
    let stat = process_stat(process.pid).map(|stat| (stat.ended, stat.ticks));
    process.has_ended(pid.is_some_and(has_number), stat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;

    fn me() -> Process {
        process(Some(std::process::id() as i32))
    }

    /// In another time namespace the kernel reports another start time for the same process, so
    /// namespaces belong to the home.
    #[test]
    fn a_home_is_of_the_namespaces_that_numbers_and_times_of_processes_are_of() {
        let parts = ["pid", "time"].map(|kind| format!("/proc/self/ns/{kind}"));
        for namespace in parts.iter().filter_map(|link| fs::read_link(link).ok()) {
            let home = home();
            assert!(home.split(' ').any(|part| Path::new(part) == namespace), "{home}");
        }
    }

    #[test]
    fn a_list_is_one_primarys_at_a_time_and_says_whose() {
        let folder = TempFolder::new("owner");
        let list = folder.path().join("clients");
        assert_eq!(owner(&list), None, "nobody had it yet");
        let first = Ownership::take(&list, &Taking::IfFree).unwrap();
        assert_eq!(owner(&list), Some(me()));
        assert!(is_busy(&Ownership::take(&list, &Taking::IfFree).unwrap_err()));
        assert!(first.is_mine());
        drop(first);
        let next = Ownership::take(&list, &Taking::FromAnother(None)).unwrap();
        assert!(next.is_mine(), "it was free");
        assert_eq!(owner(&list), Some(me()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn who_is_replaced_learns_it_and_takes_nothing_back() {
        let folder = TempFolder::new("owner-replaced");
        let list = folder.path().join("clients");
        let stopped = Ownership::take(&list, &Taking::IfFree).unwrap();
        let next = Ownership::take(&list, &Taking::FromAnother(None)).unwrap();
        assert!(!stopped.is_mine() && next.is_mine());
        drop(stopped);
        assert!(is_busy(&Ownership::take(&list, &Taking::IfFree).unwrap_err()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "and whose turn it is");
        fs::remove_file(folder.path().join("clients.lock")).unwrap();
        assert!(next.is_mine(), "nobody has taken it");
        let third = Ownership::take(&list, &Taking::IfFree).unwrap();
        assert!(third.is_mine() && !next.is_mine());
    }

    /// This primary does not reach the storage by its path any more, but another primary reaches it
    /// by another path.
    #[test]
    fn a_list_that_cannot_be_seen_is_nobodys() {
        let folder = TempFolder::new("owner-unseen");
        let storage = folder.path().join("storage");
        fs::create_dir(&storage).unwrap();
        let [mine, other] = ["mine", "other"].map(|name| {
            let link = folder.path().join(name);
            std::os::unix::fs::symlink(&storage, &link).unwrap();
            link
        });
        let stopped = Ownership::take(&mine.join("list"), &Taking::IfFree).unwrap();
        fs::remove_file(&mine).unwrap();
        assert!(stopped.is_mine(), "nobody has taken it");
        let taken = Ownership::take(&other.join("list"), &Taking::FromAnother(None)).unwrap();
        assert_eq!((stopped.whose(), taken.whose()), (Whose::Anothers, Whose::Mine));
        fs::remove_dir_all(&storage).unwrap();
        assert_eq!([stopped.whose(), taken.whose()], [Whose::Unseen; 2]);
        // a folder that was restored from a backup is now at the same path
        drop(stopped); // the name of the stopped owner is free from now on
        fs::create_dir(&storage).unwrap();
        let restored = Ownership::take(&other.join("list"), &Taking::IfFree).unwrap();
        assert_eq!((taken.whose(), restored.whose()), (Whose::Anothers, Whose::Mine));
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again_unless_another_primary_has() {
        let folder = TempFolder::new("owner-removed");
        let list = folder.path().join("a/b/list");
        fs::create_dir_all(list.parent().unwrap()).unwrap();
        let owned = Ownership::take(&list, &Taking::IfFree).unwrap();
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        assert_eq!(owned.whose(), Whose::Unseen);
        owned.hold().unwrap();
        assert_eq!((owned.whose(), owner(&list)), (Whose::Mine, Some(me())));
        assert!(is_busy(&Ownership::take(&list, &Taking::IfFree).unwrap_err()));
        assert_eq!(fs::read_dir(list.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a"), "in the way").unwrap();
        let why = owned.hold().unwrap_err().to_string();
        assert!(why.contains("make the folder"), "{why}");
        fs::remove_file(folder.path().join("a")).unwrap();
        fs::create_dir_all(list.parent().unwrap()).unwrap();
        let refused = Ownership::take(&list, &Taking::IfFree).unwrap_err();
        let process = format!("process {}", std::process::id());
        assert!(is_busy(&refused) && refused.to_string().contains(&process), "{refused}");
        assert_eq!(fs::read_dir(list.parent().unwrap()).unwrap().count(), 0);
        owned.hold().unwrap();
        // now only the lock file is removed
        fs::remove_file(beside(&list, ".lock")).unwrap();
        assert!(!owned.is_in_place() && owned.is_mine());
        assert!(is_busy(&Ownership::take(&list, &Taking::IfFree).unwrap_err()));
        owned.hold().unwrap();
        assert!(owned.is_in_place());
        assert_eq!(owner(&list), Some(me()));
        // a primary of another network namespace does not see the name
        owned.held().name = None;
        fs::remove_file(beside(&list, ".lock")).unwrap();
        let next = Ownership::take(&list, &Taking::IfFree).unwrap();
        owned.hold().unwrap_err();
        assert_eq!((owned.whose(), next.whose()), (Whose::Anothers, Whose::Mine));
    }

    /// An operator has two standbys take the place of the same primary.
    #[test]
    fn of_two_that_take_the_place_of_the_same_primary_one_does() {
        let folder = TempFolder::new("owner-turns");
        let list = folder.path().join("list");
        let stopped = Ownership::take(&list, &Taking::IfFree).unwrap();
        let elsewhere = Signature("dlock primary 1 1 elsewhere\n".to_string());
        let taking = Taking::FromAnother(Some(elsewhere));
        assert!(is_busy(&Ownership::take(&list, &taking).unwrap_err()), "it is another's by now");
        assert!(stopped.is_mine());
        let turn = File::create(beside(&list, ".taking")).unwrap();
        rustix::fs::flock(&turn, FlockOperation::NonBlockingLockExclusive).unwrap();
        let taking = Taking::FromAnother(signature(&list));
        assert!(is_busy(&Ownership::take(&list, &taking).unwrap_err()), "one at a time");
        drop(turn);
        let next = Ownership::take(&list, &taking).unwrap();
        assert!(next.is_mine() && !stopped.is_mine());
    }

    /// The start of the primary has failed, but its process goes on, so the list must not stay its
    /// own.
    #[test]
    fn a_list_that_was_taken_in_vain_is_whose_it_was() {
        let folder = TempFolder::new("owner-in-vain");
        let list = folder.path().join("clients");
        for before in [None, Some(format!("{HEAD}7 8 9 {} {}\n", home(), "x".repeat(200)))] {
            if let Some(before) = &before {
                fs::write(folder.path().join("clients.lock"), before).unwrap();
            }
            for _ in 0..2 {
                let taken = Ownership::take(&list, &Taking::IfFree).unwrap();
                assert_eq!(owner(&list), Some(me()));
                taken.give_back().unwrap();
                let before = Signature(before.clone().unwrap_or_default());
                assert_eq!(signature(&list), Some(before));
            }
        }
    }

    /// An operator has copied the folder of a running primary.
    #[test]
    fn a_copy_of_the_state_of_a_primary_that_lives_is_not_taken() {
        let folder = TempFolder::new("owner-copied");
        let (list, copy) = (folder.path().join("list"), folder.path().join("copy"));
        drop(Ownership::take(&list, &Taking::IfFree).unwrap());
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of = super::process(Some(other.id() as i32));
        let lock = beside(&list, ".lock");
        let inode = fs::metadata(&lock).unwrap().ino();
        let signature = format!("{HEAD}{} {} {inode} {}\n", of.pid, of.started, home());
        fs::write(&lock, &signature).unwrap();
        fs::copy(&lock, beside(&copy, ".lock")).unwrap();
        let refused = Ownership::take(&copy, &Taking::IfFree).unwrap_err();
        assert!(is_busy(&refused) && refused.to_string().contains("is a copy"), "{refused}");
        let stays = super::signature(&copy) == Some(Signature(signature));
        assert!(stays, "it stays as it was");
        // the lock file of the list is not locked, but the process that has signed it lives
        drop(Ownership::take(&list, &Taking::IfFree).unwrap());
        other.kill().unwrap();
        other.wait().unwrap();
        drop(Ownership::take(&copy, &Taking::IfFree).unwrap());
    }

    #[test]
    fn a_descriptor_that_a_child_has_inherited_keeps_no_list() {
        let folder = TempFolder::new("owner-inherited");
        let list = folder.path().join("clients");
        let owned = Ownership::take(&list, &Taking::IfFree).unwrap();
        let inherited = owned.held().file.try_clone().unwrap();
        assert!(Ownership::take(&list, &Taking::IfFree).is_err_and(|error| is_busy(&error)));
        drop(owned);
        Ownership::take(&list, &Taking::IfFree).unwrap();
        drop(inherited);
        // a forked child drops its copy, and the list stays that of its parent
        let mut owned = Ownership::take(&list, &Taking::IfFree).unwrap();
        let mine = owned.held().file.try_clone().unwrap();
        owned.process += 1;
        drop(owned);
        assert!(Ownership::take(&list, &Taking::IfFree).is_err_and(|error| is_busy(&error)));
        drop(mine);
    }

    #[test]
    fn an_owner_of_another_boot_or_none_is_not_known() {
        let folder = TempFolder::new("owner-unknown");
        let list = folder.path().join("clients");
        let home = home();
        for (text, is_known) in [
            (format!("{HEAD}7 8 9 {home}\n"), true),
            (format!("{HEAD}7 8 9 {home}"), false),
            (format!("{HEAD}7 8 9 {home}x\n"), false),
            (format!("{HEAD}7 8 9 \n"), false),
            (format!("{HEAD}7 8 9\n"), false),
            (format!("{HEAD}7 8 x {home}\n"), false),
            (format!("{HEAD}x 8 9 {home}\n"), false),
            (String::new(), false),
        ] {
            fs::write(folder.path().join("clients.lock"), &text).unwrap();
            assert_eq!(owner(&list).is_some(), is_known, "{text:?}");
        }
    }

    #[test]
    fn a_process_has_ended_when_it_has_and_its_number_may_be_anothers() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = super::process(Some(child.id() as i32));
        let unknown = Process { started: 0, ..process };
        assert!(!has_ended(process) && !has_ended(unknown));
        assert!(has_ended(Process { started: process.started + 1, ..process }));
        child.kill().unwrap();
        while !has_ended(process) {
            std::thread::yield_now(); // the killed process counts as ended once it is a zombie
        }
        child.wait().unwrap();
        assert!(has_ended(process) && has_ended(unknown));
        assert!(!has_ended(super::process(None)), "that cannot be seen from here");
        assert!(!has_ended(Process { pid: -1, started: 0 }));
    }
}
