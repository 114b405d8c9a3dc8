// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which primary has a roster: one at a time. This module decides what a process may do with the
//! roster from what the process has seen; the driver does what concerns the file system.
//!
//! ```text
//!   lock file of the roster: locked while the process of its primary lives, signed by that primary
//!
//!   lock it ── locked, and still in its place ───────▶ Sign
//!      │  └─── locked, another file is in its place ─▶ Again
//!      └ held ── IfFree ─▶ Refuse      FromAnother ──▶ Replace, if the expected signature is there
//!
//!   Whose:  Mine ── another primary puts its own lock file there ──▶ Anothers
//!             └──── the place cannot be read ──▶ Unseen
//! ```

use super::Process;
use crate::planted::{self, Bug};

/// The text by which a lock file names the primary that has the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature(pub String);

/// How a process takes a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Only if no living process has the roster.
    IfFree,
    /// Even from a primary that must not serve any more: the one with this signature; `None`: the
    /// process does not know which one.
    FromAnother(Option<Signature>),
}

/// The result of an attempt to lock the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The file is now locked.
    Locked {
        /// Whether the file still has its name.
        is_in_place: bool,
    },
    /// Another process has the file locked.
    Held,
}

/// The step after an [`Attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sign the file: the process now has the roster.
    Sign,
    /// Open the file once more.
    Again,
    /// Put an own file in the place of the other process's file.
    Replace,
    /// Do not take the roster.
    Refuse,
}

/// One file of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device of the file.
    pub device: u64,
    /// The inode number of the file on that device.
    pub inode: u64,
}

/// What a process has found at the path of a lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This file, at the path or in the folder.
    File(FileId),
    /// No file, neither at the path nor in the folder.
    NoFile {
        /// Whether the folder itself still exists.
        has_folder: bool,
    },
    /// Neither the path nor the folder can be read.
    Nothing,
}

/// Which primary has a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This primary.
    Mine,
    /// Another primary, which has taken the place.
    Anothers,
    /// This primary cannot see which one.
    Unseen,
}

/// The folder of a lock file: the one that was opened at the start, and the one that is at its path
/// now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folder {
    /// The folder that this primary opened at the start.
    pub opened: FileId,
    /// Whether that folder was removed, so that it has no name any more.
    pub is_removed: bool,
    /// The folder that is at the path now.
    pub at_path: Option<FileId>,
    /// The device of the lowest folder to which the path still leads.
    pub device_above: Option<u64>,
}

/// What a primary does before it writes its roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The primary does nothing more: its lock file is in its place.
    Holds,
    /// The primary makes its lock file again, and the folder if need be, but replaces no other
    /// file.
    MakeAgain,
    /// The primary writes nothing: another primary has taken the place.
    Replaced,
    /// The primary writes nothing: its folder was moved, or a mount or a link on the path to the
    /// folder has changed.
    OutOfReach,
}

impl Taking {
    /// The step after an attempt to lock the file, or to take the name of the roster on this host.
    pub fn step(&self, attempt: Attempt) -> Step {
        match (attempt, self) {
            (Attempt::Locked { is_in_place: true }, _) => Step::Sign,
            (Attempt::Locked { is_in_place: false }, _) => Step::Again,
            (Attempt::Held, Taking::FromAnother(_)) => Step::Replace,
            (Attempt::Held, Taking::IfFree) => Step::Refuse,
        }
    }

    /// Whether the roster still belongs to the primary whose place the process wants to take. The
    /// caller asks this while no other process can take the place.
    pub fn may_replace(&self, there: Option<&Signature>) -> bool {
        match self {
            Taking::IfFree => false,
            Taking::FromAnother(from) => {
                from.is_none() || from.as_ref() == there || planted::is(Bug::ReplacedTaken)
            }
        }
    }

    /// The living process whose roster this one is a copy of; `None`: it is no copy. A roster that
    /// is taken because it is free must not be a copy of the roster of a primary that serves.
    /// `before`: the process that the lock file named, and the inode of the file that this process
    /// signed; `own`: the id of the calling process, and the inode of the lock file.
    pub fn copied_from(
        &self,
        before: Option<(Process, u64)>,
        own: (i32, u64),
        has_ended: impl FnOnce(Process) -> bool,
    ) -> Option<Process> {
        let (owner, inode) = before.filter(|_| *self == Taking::IfFree)?;
        let is_original = owner.pid == own.0 || inode == own.1;
        (!is_original && !has_ended(owner)).then_some(owner)
    }
}

impl Whose {
    /// Which primary has the roster of a primary with the lock file `own` (`None`: that file cannot
    /// be read), from what was `seen` in its place.
    pub fn of(own: Option<FileId>, seen: Seen) -> Self {
        match (seen, own) {
            (Seen::File(there), Some(own)) if there == own => Whose::Mine,
            (Seen::File(_), Some(_)) => Whose::Anothers,
            // a primary that takes the place puts a file there, and there is none
            (Seen::NoFile { has_folder: true }, _) => Whose::Mine,
            _ => Whose::Unseen,
        }
    }
}

impl Folder {
    /// What a primary does before it writes. `whose`: which primary has the roster; `is_in_place`:
    /// whether the lock file of this primary is at its path.
    pub fn hold(&self, whose: Whose, is_in_place: bool) -> Hold {
        let is_there = self.at_path == Some(self.opened);
        let is_gone = self.is_removed && self.device_above == Some(self.opened.device);
        match whose {
            Whose::Anothers => Hold::Replaced,
            Whose::Mine | Whose::Unseen if is_in_place => Hold::Holds,
            Whose::Mine | Whose::Unseen if is_there || is_gone => Hold::MakeAgain,
            Whose::Mine | Whose::Unseen => Hold::OutOfReach,
        }
    }
}

impl Process {
    /// Whether this process has surely ended. `is_used`: whether a process with its id exists;
    /// `stat`: whether that one has ended, and when it started, if the host tells.
    pub fn has_ended(self, is_used: bool, stat: Option<(bool, u64)>) -> bool {
        let is_another = |started| self.started != 0 && self.started != started;
        match stat {
            _ if self.pid <= 0 => false, // the process is of another namespace
            _ if !is_used => true,
            Some((has_ended, started)) => has_ended || is_another(started),
            None => false,
        }
    }
}

/// Whether the roster now has another signature (`there`) than when its primary was last heard
/// (`heard`); without a signature at that time it counts as not replaced.
pub(crate) fn is_replaced(heard: Option<&Signature>, there: Option<&Signature>) -> bool {
    heard.is_some() && heard != there && !planted::is(Bug::ReplacedTaken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    fn signature(text: &str) -> Signature {
        Signature(text.to_string())
    }

    #[test]
    fn a_list_is_taken_from_a_living_process_only_where_that_is_wanted() {
        let from = Taking::FromAnother(Some(signature("old")));
        for taking in [&Taking::IfFree, &from] {
            assert_eq!(taking.step(Attempt::Locked { is_in_place: true }), Step::Sign);
            assert_eq!(taking.step(Attempt::Locked { is_in_place: false }), Step::Again);
        }
        assert_eq!(Taking::IfFree.step(Attempt::Held), Step::Refuse);
        assert_eq!(from.step(Attempt::Held), Step::Replace);
    }

    #[test]
    fn the_place_of_a_primary_is_not_taken_from_another_one() {
        let [old, new] = ["old", "new"].map(signature);
        let from = Taking::FromAnother(Some(old.clone()));
        assert!(from.may_replace(Some(&old)));
        assert!(!from.may_replace(Some(&new)) && !from.may_replace(None));
        assert!(Taking::FromAnother(None).may_replace(Some(&new)));
        assert!(!Taking::IfFree.may_replace(Some(&old)));
    }

    #[test]
    fn a_list_that_was_copied_from_a_primary_that_lives_is_not_taken() {
        let owner = Process { pid: 7, started: 8 };
        let copied = |taking: &Taking, inode, pid, has_ended| {
            taking.copied_from(Some((owner, 5)), (pid, inode), |_| has_ended)
        };
        assert_eq!(copied(&Taking::IfFree, 6, 9, false), Some(owner));
        assert_eq!(copied(&Taking::IfFree, 6, 9, true), None, "it has ended");
        assert_eq!(copied(&Taking::IfFree, 5, 9, false), None, "it is the original");
        assert_eq!(copied(&Taking::IfFree, 6, 7, false), None, "it is this process");
        assert_eq!(copied(&Taking::FromAnother(None), 6, 9, false), None);
        assert_eq!(Taking::IfFree.copied_from(None, (9, 6), |_| false), None, "unsigned");
    }

    #[test]
    fn a_list_is_this_primarys_unless_another_file_is_in_the_place_of_its_own() {
        for (own, seen, whose) in [
            (Some(file(1)), Seen::File(file(1)), Whose::Mine),
            (Some(file(1)), Seen::File(file(2)), Whose::Anothers),
            (Some(file(1)), Seen::File(FileId { device: 2, inode: 1 }), Whose::Anothers),
            (None, Seen::File(file(1)), Whose::Unseen),
            (Some(file(1)), Seen::NoFile { has_folder: true }, Whose::Mine),
            (Some(file(1)), Seen::NoFile { has_folder: false }, Whose::Unseen),
            (Some(file(1)), Seen::Nothing, Whose::Unseen),
        ] {
            assert_eq!(Whose::of(own, seen), whose, "{own:?} {seen:?}");
        }
    }

    /// A folder that was moved has another name, and another primary may serve from there.
    #[test]
    fn a_lock_file_is_made_again_only_where_its_folder_is_or_was_removed() {
        let removed =
            Folder { opened: file(3), is_removed: true, at_path: None, device_above: Some(1) };
        let here = Folder { is_removed: false, at_path: Some(file(3)), ..removed };
        for whose in [Whose::Mine, Whose::Unseen] {
            assert_eq!(here.hold(whose, true), Hold::Holds);
            assert_eq!(here.hold(whose, false), Hold::MakeAgain);
            assert_eq!(removed.hold(whose, false), Hold::MakeAgain);
            for moved in [
                Folder { is_removed: false, ..removed },
                Folder { is_removed: false, at_path: Some(file(4)), ..removed },
                Folder { device_above: Some(2), ..removed },
                Folder { device_above: None, ..removed },
            ] {
                assert_eq!(moved.hold(whose, false), Hold::OutOfReach, "{moved:?}");
            }
        }
        assert_eq!(here.hold(Whose::Anothers, true), Hold::Replaced);
        assert_eq!(removed.hold(Whose::Anothers, false), Hold::Replaced);
    }

    #[test]
    fn a_process_has_ended_when_it_has_or_its_number_is_anothers() {
        let process = Process { pid: 7, started: 8 };
        assert!(process.has_ended(false, None));
        assert!(process.has_ended(true, Some((true, 8))), "a zombie");
        assert!(process.has_ended(true, Some((false, 9))), "another process has its number");
        assert!(!process.has_ended(true, Some((false, 8))));
        assert!(!process.has_ended(true, None), "/proc may be hidden");
        let unknown = Process { started: 0, ..process };
        assert!(!unknown.has_ended(true, Some((false, 9))));
        for pid in [0, -1] {
            assert!(!Process { pid, started: 8 }.has_ended(false, None), "of another namespace");
        }
    }
}
