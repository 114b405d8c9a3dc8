// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of clients in a file: a line for each change; a fresh file replaces it when most of it
//! is history.
//!
//! ```text
//!   dlock clients 4 0000000353 6f1c… pid:[4026531836]    its bytes, and where numbers of processes
//!                                             mean something
//!   joined 5 00112233445566778899aabbccddeeff 9
//!   joined 6 ffeeddccbbaa99887766554433221100 9 8a4f…    with a certificate: its identity
//!   locks 5                                   it was given one, or may have been
//!   mapped 5 4711 881234
//!   prepared 5 0f1e… 9 0011…                  a session beside its own, and the proof shown for it
//!   moved 5                                   that is its own now
//!   started                                   a primary, with the clients above
//!   left 5
//!   epoch 1732176000000000000                 of the primary
//!   after 1732175000000000000 17321…          of primaries elsewhere, whose clients are all here
//!   tokens 1859861190443892736                all that were given are below this
//!   lost 1732174000000000000                  the list of that primary was, until `only` is said
//! ```
//! A line counts once it is whole: no client was answered because of a line that a crash has cut
//! off. The first line says how many bytes are known to be on the disk, and is written after them:
//! a list with fewer was cut by something else, and clients are missing. Only the owner may read
//! the file, because it has the proofs of the clients. `owner.rs` says which primary has it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::ParseIntError;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_core::ids::{ClientId, Epoch, Identity};
use dlock_core::membership::HORIZON_S_MAX;
use dlock_core::roster::list::{history, List, Origin};
use dlock_core::roster::{Change, Clients, Process};
use dlock_core::wire::control::Secret;

use super::epoch;
use super::files::opened;
use super::fresh::{remove_unfinished, Fresh};
use super::owner::{home, is_at, Ownership};
use crate::coordinator::{Keeper, Place};
use crate::error::StartError;

const HEAD: &str = "dlock clients 4 ";
/// How many digits the first line has for the number of bytes behind it.
const WHOLE_LEN: usize = 10;
/// First words of a list of version 3, which does not say how many bytes it has. It is read, and
/// written again in the newest version.
const HEAD_3: &str = "dlock clients 3 ";
/// First words of a list of version 2, without certificates and starts of primaries.
const HEAD_2: &str = "dlock clients 2 ";
/// First words of a list of version 1, which also lacks which clients were given a lock.
const HEAD_1: &str = "dlock clients 1 ";
/// The most bytes of a file: a thousand clients, and their history, take less than 1 MiB.
const BYTES_MAX: u64 = 64 << 20;
/// A list is replaced by a fresh file only when it has more lines of history than this.
const HISTORY_LINES: usize = 4_096;
/// The most epochs of other primaries that a list names.
const AFTER_MAX: usize = 8;
const EPOCH: &str = "epoch";
const AFTER: &str = "after";
const LOST: &str = "lost";

/// The file with the list of clients.
#[derive(Debug)]
pub(crate) struct FileKeeper {
    path: PathBuf,
    home: String,
    ownership: Arc<Ownership>,
    /// The open file. `None`: its content is not known, so a fresh file must replace it.
    file: Option<File>,
    lines: usize,
    /// The number of bytes that are on the disk for sure.
    whole: usize,
    origin: Origin,
    /// The state file, which must have the epoch of the list.
    state_file: Option<PathBuf>,
}

impl FileKeeper {
    /// Opens the file, which this primary owns, and reads the list; `None`: the file is new.
    /// Processes of another boot, host or namespace are left out.
    ///
    /// # Errors
    /// The file is not a list, or cannot be read.
    pub(super) fn open(path: &Path, ownership: Arc<Ownership>) -> io::Result<(Self, Option<List>)> {
        remove_unfinished(path)?;
        let list = read(path)?;
        let (path, home) = (path.to_path_buf(), home());
        let (file, lines, whole, state_file) = (None, 0, 0, None);
        let origin = list.as_ref().map(|list| list.origin.clone()).unwrap_or_default();
        Ok((Self { path, home, ownership, file, lines, whole, origin, state_file }, list))
    }

    /// Writes the first list, or one joined with another list.
    ///
    /// # Errors
    /// The list cannot be written.
    pub(super) fn begin(&mut self, list: &List) -> io::Result<()> {
        self.origin = list.origin.clone();
        self.rewrite(&list.clients)
    }

    /// Sets the epoch of this primary, which is in this state file.
    pub(super) fn begun(&mut self, state_file: &Path, epoch: Epoch) {
        self.origin.epoch = Some(epoch.0);
        self.state_file = Some(state_file.to_path_buf());
        self.file = None; // the epoch is not in the list yet
    }

    /// Replaces the list by a fresh file.
    fn rewrite(&mut self, clients: &Clients) -> io::Result<()> {
        self.file = None;
        let (fresh, lines, whole) = self.fresh(clients)?;
        let file = fresh.put(|| self.ownership.check_mine())?;
        (self.file, self.lines, self.whole) = (Some(file), lines, whole);
        Ok(())
    }

    /// Writes the list to a fresh file; returns that, its number of changes, and its bytes.
    fn fresh(&self, clients: &Clients) -> io::Result<(Fresh, usize, usize)> {
        let mut text = format!("{HEAD}{} {}\n", whole_digits(0), self.home);
        let Origin { epoch, after, lost, tokens_below } = &self.origin;
        let mut after = after.clone();
        after.sort_by(|a, b| b.cmp(a)); // the latest epoch comes first
        after.dedup();
        after.truncate(AFTER_MAX);
        let lines = [(EPOCH, epoch.as_slice()), (AFTER, &after), (LOST, lost.as_slice())];
        for (word, epochs) in lines.into_iter().filter(|(_, epochs)| !epochs.is_empty()) {
            text += word;
            text.extend(epochs.iter().map(|epoch| format!(" {epoch}")));
            text += "\n";
        }
        let mut changes = history(clients);
        let below = *tokens_below;
        changes.extend((below > 0).then_some(Change::Tokens { below }));
        text.extend(changes.iter().map(line));
        text.replace_range(HEAD.len()..HEAD.len() + WHOLE_LEN, &whole_digits(text.len()));
        Ok((Fresh::write(&self.path, &text, 0o600)?, changes.len(), text.len()))
    }
}

impl Keeper for FileKeeper {
    fn keep(&mut self, changes: &[Change], clients: &Clients) -> io::Result<()> {
        changes.iter().for_each(|change| self.origin.apply(change));
        let kept = self.keep_all(changes, clients);
        kept.map_err(|source| {
            let (kind, path) = (source.kind(), self.path.clone());
            io::Error::new(kind, StartError::StateFile { path, source }.to_string())
        })
    }

    fn is_in_place(&self) -> bool {
        let is_list = self.file.as_ref().is_some_and(|file| is_at(file, &self.path));
        self.ownership.is_in_place() && is_list && self.lacking().is_none()
    }

    fn place(&self) -> Arc<dyn Place> {
        Arc::clone(&self.ownership) as Arc<dyn Place>
    }
}

impl FileKeeper {
    fn keep_all(&mut self, changes: &[Change], clients: &Clients) -> io::Result<()> {
        self.ownership.hold()?;
        // the list is written before the state file, so that no epoch is without a list
        self.write(changes, clients)?;
        if let (Some(state_file), Some(epoch)) = (self.lacking(), self.origin.epoch) {
            epoch::keep(state_file, Epoch(epoch), &self.ownership)?;
        }
        // A primary that takes the place reads the list after it has signed. So either it reads
        // this write, or this check fails.
        self.ownership.check_mine()
    }

    /// Returns the state file if it was removed.
    fn lacking(&self) -> Option<&Path> {
        let is_gone = |path: &&Path| std::fs::symlink_metadata(path).is_err();
        self.state_file.as_deref().filter(is_gone)
    }

    fn write(&mut self, changes: &[Change], clients: &Clients) -> io::Result<()> {
        let is_history = self.lines > HISTORY_LINES + 8 * clients.len();
        let file = match &mut self.file {
            Some(file) if !is_history => file,
            _ => return self.rewrite(clients),
        };
        let text: String = changes.iter().map(line).collect();
        let mut kept = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        (self.lines, self.whole) = (self.lines + changes.len(), self.whole + text.len());
        if kept.is_ok() {
            // The number is not synchronised to the disk: after a crash of the host it may be too
            // small, but never too large.
            kept = file.write_all_at(whole_digits(self.whole).as_bytes(), HEAD.len() as u64);
        }
        // the file may end with half a line, or another file was put in its place
        if kept.is_err() || !is_at(file, &self.path) {
            self.file = None;
            return kept.and_then(|()| self.rewrite(clients));
        }
        Ok(())
    }
}

/// Reads a list; `None`: there is no such file. Processes of another boot, host or namespace are
/// left out.
///
/// # Errors
/// The file is not a list, or cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Option<List>> {
    let mut bytes = Vec::new();
    let file = match opened(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(damaged("it is larger than any list"));
    }
    let len = bytes.len();
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
    // A crash may have cut off the last line, so a line without an end does not count.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let head = lines.next().unwrap_or_default();
    let of_1 = head.strip_prefix(HEAD_1);
    let earlier = [HEAD_3, HEAD_2].iter().find_map(|earlier| head.strip_prefix(earlier)).or(of_1);
    let sized = head.strip_prefix(HEAD).and_then(|rest| rest.split_once(' '));
    let sized = sized.and_then(|(whole, home)| Some((whole.parse().ok()?, home)));
    let Some((whole, home)) = sized.or(earlier.map(|home| (0, home))) else {
        // a primary renames whole files into place, so a file without a whole first line is damaged
        let heads = [HEAD, HEAD_3, HEAD_2, HEAD_1];
        return Err(damaged(match heads.iter().any(|head| head.starts_with(&text)) {
            true => "it has no first line",
            false => "its first line is not that of a list of clients",
        }));
    };
    if len < whole {
        return Err(damaged(&format!("it has {len} bytes of {whole}: the rest was cut off")));
    }
    let (mut list, here) = (List::default(), super::owner::home());
    for (n, line) in lines.enumerate() {
        let odd_line = || damaged(&format!("line {} is no change", n + 2));
        let odd = |_: ParseIntError| odd_line();
        match line.split_once(' ') {
            Some((EPOCH, epoch)) => list.origin.epoch = Some(epoch.parse().map_err(odd)?),
            Some((LOST, epoch)) => list.origin.lost = Some(epoch.parse().map_err(odd)?),
            Some((AFTER, epochs)) => {
                let epochs: Result<_, _> = epochs.split(' ').map(str::parse).collect();
                list.origin.after = epochs.map_err(odd)?;
            }
            // a line as an earlier version writes it, without an epoch
            _ if line == LOST => list.origin.lost = Some(0),
            _ => {
                list.apply(&parsed(line).ok_or_else(odd_line)?);
            }
        }
    }
    let clients = &mut list.clients;
    if of_1.is_some() {
        clients.values_mut().for_each(|kept| kept.has_locks = true);
    }
    if home != here || home.is_empty() {
        clients.values_mut().for_each(|kept| kept.processes.clear());
    }
    Ok(Some(list))
}

/// The number of bytes of the list, in the form of the first line.
fn whole_digits(bytes: usize) -> String {
    format!("{bytes:0WHOLE_LEN$}")
}

fn line(change: &Change) -> String {
    match change {
        Change::Started => "started\n".to_string(),
        Change::Joined { client, secret, horizon_s, identity } => {
            let identity = identity.map(|identity| format!(" {}", digits(&identity.0)));
            let identity = identity.unwrap_or_default();
            format!("joined {client} {} {horizon_s}{identity}\n", digits(&secret.0))
        }
        Change::Prepared { client, secret, horizon_s, proof } => {
            let proof = proof.map(|proof| format!(" {}", digits(&proof.0))).unwrap_or_default();
            format!("prepared {client} {} {horizon_s}{proof}\n", digits(&secret.0))
        }
        Change::Moved { client } => format!("moved {client}\n"),
        Change::HasLocks { client } => format!("locks {client}\n"),
        Change::Mapped { client, process } => {
            format!("mapped {client} {} {}\n", process.pid, process.started)
        }
        Change::Left { client } => format!("left {client}\n"),
        Change::Only { clients } => {
            let all: String = clients.iter().map(|client| format!(" {client}")).collect();
            format!("only{all}\n")
        }
        Change::Tokens { below } => format!("tokens {below}\n"),
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parsed(line: &str) -> Option<Change> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    if kind == "only" {
        let clients: Option<Vec<_>> = words.map(id).collect();
        return Some(Change::Only { clients: clients? });
    }
    if kind == "started" {
        return words.next().is_none().then_some(Change::Started);
    }
    if kind == "tokens" {
        let below = words.next()?.parse().ok()?;
        return words.next().is_none().then_some(Change::Tokens { below });
    }
    let client = id(words.next()?)?;
    let change = match kind {
        "joined" => {
            let secret = Secret(bytes(words.next()?)?);
            let horizon_s = horizon_s(words.next()?)?;
            let identity = match words.next() {
                Some(word) => Some(Identity(bytes(word)?)),
                None => None,
            };
            Change::Joined { client, secret, horizon_s, identity }
        }
        "prepared" => {
            let secret = Secret(bytes(words.next()?)?);
            let horizon_s = horizon_s(words.next()?)?;
            let proof = match words.next() {
                Some(word) => Some(Secret(bytes(word)?)),
                None => None,
            };
            Change::Prepared { client, secret, horizon_s, proof }
        }
        "moved" => Change::Moved { client },
        "locks" => Change::HasLocks { client },
        "mapped" => {
            let (pid, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Change::Mapped { client, process: Process { pid, started } }
        }
        "left" => Change::Left { client },
        _ => return None,
    };
    words.next().is_none().then_some(change)
}

fn horizon_s(word: &str) -> Option<u32> {
    word.parse().ok().filter(|&horizon_s| horizon_s <= HORIZON_S_MAX)
}

fn id(word: &str) -> Option<ClientId> {
    word.parse().ok().and_then(ClientId::new)
}

fn bytes<const N: usize>(word: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if word.len() != 2 * N || !word.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(word.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The error for a damaged list: which clients have locks is not known until it is restored.
fn damaged(what: &str) -> io::Error {
    let what = format!(
        "{what}: who has locks is not known; restore it, or, to give up all that its clients hold, \
         remove it, and say `dlock recover --now` when the primary has started"
    );
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::file::owner::beside;
    use crate::coordinator::file::{has_ended, process};
    use crate::testing::TempFolder;
    use dlock_core::roster::place::Taking;
    use dlock_core::roster::UNSEEN_MAX;
    use std::fs;

    fn client(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    fn joined(n: u32, secret: u8, horizon_s: u32) -> Change {
        // clients with even numbers have a certificate
        let identity = (n % 2 == 0).then_some(Identity([secret; 32]));
        Change::Joined { client: client(n), secret: Secret([secret; 16]), horizon_s, identity }
    }

    fn me() -> Process {
        process(Some(std::process::id() as i32))
    }

    fn open(path: &Path, taking: &Taking) -> io::Result<(FileKeeper, Clients)> {
        let (keeper, list) = FileKeeper::open(path, Arc::new(Ownership::take(path, taking)?))?;
        Ok((keeper, list.map(|list| list.clients).unwrap_or_default()))
    }

    fn read(path: &Path) -> Clients {
        open(path, &Taking::IfFree).unwrap().1
    }

    fn keep(keeper: &mut FileKeeper, clients: &mut Clients, changes: &[Change]) {
        changes.iter().for_each(|change| change.apply(clients));
        keeper.keep(changes, clients).unwrap();
    }

    #[test]
    fn what_is_kept_is_there_after_any_end() {
        let folder = TempFolder::new("roster");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        assert!(clients.is_empty());
        let mapped = Change::Mapped { client: client(5), process: me() };
        let (secret, horizon_s) = (Secret([3; 16]), 4);
        let proof = Some(Secret([1; 16]));
        let prepared = Change::Prepared { client: client(5), secret, horizon_s, proof };
        let (moved, locks) =
            (Change::Moved { client: client(7) }, Change::HasLocks { client: client(7) });
        let [five, six, seven] = [joined(5, 1, 9), joined(6, 0xab, 0), joined(7, 1, 1)];
        let all = [five, mapped, six, prepared, seven, locks, moved];
        for change in &all {
            keep(&mut keeper, &mut clients, std::slice::from_ref(change));
        }
        keep(&mut keeper, &mut clients, &[Change::Left { client: client(6) }]);
        assert!(open(&path, &Taking::IfFree).is_err(), "one primary at a time has it");
        drop(keeper);
        assert_eq!((clients.len(), &read(&path)), (2, &clients));
        let text = fs::read_to_string(&path).unwrap();
        // a crash may cut off any part of the last line
        for cut in 1..=text.lines().last().unwrap().len() {
            let mut cut_off = text[..text.len() - cut].to_string();
            // the number of bytes that the list had before its last line
            let whole = whole_digits(text.rfind("left").unwrap());
            cut_off.replace_range(HEAD.len()..HEAD.len() + WHOLE_LEN, &whole);
            fs::write(&path, cut_off).unwrap();
            let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
            assert_eq!(clients.len(), 3, "it had not left yet");
            keep(&mut keeper, &mut clients, &[Change::Only { clients: vec![client(7)] }]);
            drop(keeper);
            assert_eq!((clients.len(), &read(&path)), (1, &clients));
        }
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "it, and its lock");
    }

    /// A list may lose its end when a copy runs out of space, or by a fault of the file system:
    /// then clients are missing.
    #[test]
    fn a_list_that_was_cut_behind_what_is_on_the_disk_is_refused() {
        let folder = TempFolder::new("roster-cut");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut keeper, &mut clients, &[joined(5, 1, 0)]); // this begins a fresh file
        for n in 6..9 {
            keep(&mut keeper, &mut clients, &[joined(n, 1, 0)]);
        }
        drop(keeper);
        assert_eq!(read(&path), clients);
        let text = fs::read_to_string(&path).unwrap();
        for len in 0..text.len() {
            fs::write(&path, &text[..len]).unwrap();
            let error = open(&path, &Taking::IfFree).expect_err("cut off").to_string();
            assert!(error.contains("restore it"), "{len}: {error}");
        }
        fs::write(&path, &text).unwrap();
        // a list that is cut while its primary has it open is refused, too
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut keeper, &mut clients, &[joined(9, 1, 0)]);
        let whole = fs::read_to_string(&path).unwrap().len() as u64;
        OpenOptions::new().write(true).open(&path).unwrap().set_len(whole - 9).unwrap();
        keep(&mut keeper, &mut clients, &[joined(10, 1, 0)]);
        drop(keeper);
        assert!(open(&path, &Taking::IfFree).is_err());
    }

    /// A file of the old primary that comes late must not hide the changes that the new primary
    /// keeps.
    #[test]
    fn a_primary_whose_place_was_taken_keeps_nothing_more() {
        let folder = TempFolder::new("roster-replaced");
        let path = folder.path().join("clients");
        let (mut old, mut of_old) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut old, &mut of_old, &[joined(5, 1, 0)]);
        let (mut new, mut clients) = open(&path, &Taking::FromAnother(None)).unwrap();
        assert_eq!(clients, of_old);
        assert!(!old.ownership.is_mine() && new.ownership.is_mine());
        let refused = old.keep(&[joined(6, 1, 0)], &of_old).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        keep(&mut new, &mut clients, &[joined(7, 1, 0)]);
        assert!(old.rewrite(&of_old).is_err());
        fs::write(&path, "").unwrap(); // another file was put there
        fs::rename(&path, beside(&path, ".gone")).unwrap();
        keep(&mut new, &mut clients, &[joined(8, 1, 0)]);
        drop((old, new));
        assert_eq!(read(&path), clients);
    }

    /// The old primary is stopped after it has checked that the list is its own and has written a
    /// fresh file.
    #[test]
    fn a_fresh_file_of_a_primary_whose_place_was_taken_hides_nothing() {
        let folder = TempFolder::new("roster-fresh");
        let path = folder.path().join("clients");
        let (mut old, mut of_old) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut old, &mut of_old, &[joined(5, 1, 0)]);
        let (fresh, ..) = old.fresh(&of_old).unwrap();
        old.ownership.check_mine().unwrap();
        let (mut new, mut clients) = open(&path, &Taking::FromAnother(None)).unwrap();
        keep(&mut new, &mut clients, &[joined(7, 1, 0)]);
        let put = fresh.put(|| Ok(())).map(drop).unwrap_err();
        assert_eq!(put.kind(), io::ErrorKind::NotFound);
        // once more, now with the check of the owner right before the rename
        let (late, ..) = old.fresh(&of_old).unwrap();
        let late_path = late.path.clone();
        assert!(late.put(|| old.ownership.check_mine()).is_err());
        drop((old, new));
        assert_eq!(read(&path), clients);
        assert!(!late_path.exists(), "what is left over does not stay");
    }

    /// The old primary may be stopped, or slow, between its check that the list is its own and its
    /// write.
    #[test]
    fn what_a_primary_has_kept_its_successor_has_read() {
        let folder = TempFolder::new("roster-slow");
        let path = folder.path().join("clients");
        for turn in 0..20 {
            let (mut old, mut of_old) = open(&path, &Taking::FromAnother(None)).unwrap();
            let kept = std::thread::spawn(move || {
                let mut kept = None;
                for n in 1.. {
                    let mut changes = vec![Change::Left { client: client(9) }; 20_000];
                    changes.push(joined(10 + turn * 1_000 + n, 1, 0));
                    changes.iter().for_each(|change| change.apply(&mut of_old));
                    match old.keep(&changes, &of_old) {
                        Ok(()) => kept = Some(client(10 + turn * 1_000 + n)),
                        Err(_) => break,
                    }
                }
                kept
            });
            std::thread::sleep(std::time::Duration::from_millis(10 + u64::from(turn) * 3));
            let (_new, clients) = open(&path, &Taking::FromAnother(None)).unwrap();
            let kept = kept.join().unwrap();
            assert!(kept.is_none_or(|kept| clients.contains_key(&kept)), "{turn}: {kept:?}");
        }
    }

    /// A full disk has cut off a write: the next write must not continue that line.
    #[test]
    fn a_write_that_failed_is_followed_by_a_fresh_file() {
        let folder = TempFolder::new("roster-full");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut keeper, &mut clients, &[joined(5, 1, 0)]);
        keeper.file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let change = joined(6, 1, 0);
        change.apply(&mut clients);
        assert!(keeper.keep(std::slice::from_ref(&change), &clients).is_err());
        keeper.keep(&[], &clients).unwrap();
        drop(keeper);
        assert_eq!(read(&path), clients);
    }

    #[test]
    fn a_file_does_not_grow_with_its_history() {
        let folder = TempFolder::new("roster-history");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        let turns: Vec<Change> = (0..HISTORY_LINES as u32)
            .map(|n| if n % 2 == 0 { joined(5, 1, 0) } else { Change::Left { client: client(5) } })
            .collect();
        for _ in 0..4 {
            keep(&mut keeper, &mut clients, &turns);
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 2 * HISTORY_LINES + 2, "{lines}");
        drop(keeper);
        assert_eq!(read(&path), clients);
    }

    #[test]
    fn a_file_that_is_no_list_of_clients_is_refused_and_left_alone() {
        let folder = TempFolder::new("roster-bad");
        let path = folder.path().join("clients");
        let head = format!("{HEAD}{} x\n", whole_digits(0));
        for wrong in [
            "hello\n",
            "epoch 5\n",
            &format!("{head}joined 5 0011 9\n"),
            &format!("{head}joined 0 00112233445566778899aabbccddeeff 9\n"),
            &format!("{head}joined 5 00112233445566778899aabbccddeeff 9 9\n"),
            &format!("{head}left\n"),
            &format!("{head}gone 5\n"),
            &format!("{head}only 5 x\n"),
            &format!("{head}mapped 5 1\n"),
            &format!("{head}locks 5 1\n"),
            &format!("{head}started 1\n"),
            &format!("{head}joined 5 00112233445566778899aabbccddeeff 86401\n"),
            &format!("{HEAD}x\n"),
            &format!("{HEAD}x x\n"),
            "",
            "dlock cl",
        ] {
            fs::write(&path, wrong).unwrap();
            let error = open(&path, &Taking::IfFree).expect_err(wrong).to_string();
            assert!(error.contains("restore it") && error.contains("recover --now"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
        let large = File::create(&path).unwrap();
        large.set_len(BYTES_MAX + 1).unwrap();
        assert!(open(&path, &Taking::IfFree).is_err(), "larger than any list");
        fs::write(&path, &head).unwrap();
        assert!(read(&path).is_empty());
        let inner = folder.path().join("folder");
        fs::create_dir(&inner).unwrap();
        assert!(open(&inner, &Taking::IfFree).is_err(), "a folder is no file");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(open(&pipe, &Taking::IfFree).is_err(), "nor is a pipe");
    }

    #[test]
    fn primaries_that_have_not_heard_of_a_client_are_counted_over_a_rewrite() {
        let folder = TempFolder::new("roster-started");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        let mut changes = vec![joined(1, 1, 0), Change::HasLocks { client: client(1) }];
        for n in 2..=2 * UNSEEN_MAX {
            changes.extend([Change::Started, joined(n, 1, 0)]);
        }
        keep(&mut keeper, &mut clients, &changes);
        assert_eq!(clients.len() as u32, UNSEEN_MAX + 2, "those heard of last, and one with locks");
        keeper.rewrite(&clients).unwrap();
        drop(keeper);
        assert_eq!(read(&path), clients);
        assert_eq!(clients[&client(1)].unseen, UNSEEN_MAX + 1);
        assert_eq!(clients[&client(2 * UNSEEN_MAX - 3)].unseen, 3);
    }

    /// A list of this version does not say which clients have locks, so every client counts as
    /// having one.
    #[test]
    fn of_a_list_of_the_first_version_all_clients_have_locks() {
        let folder = TempFolder::new("roster-1");
        let path = folder.path().join("clients");
        let newest = format!("{HEAD}{} ", whole_digits(0));
        let heads = [(HEAD_1, true), (HEAD_2, false), (HEAD_3, false), (&newest, false)];
        for (head, has_locks) in heads {
            fs::write(&path, format!("{head}{}\n{}", home(), line(&joined(5, 1, 0)))).unwrap();
            let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
            assert_eq!(clients[&client(5)].has_locks, has_locks);
            keep(&mut keeper, &mut clients, &[joined(6, 1, 0)]);
            drop(keeper);
            assert_eq!(read(&path), clients, "{}", fs::read_to_string(&path).unwrap());
            assert!(!clients[&client(6)].has_locks);
        }
    }

    #[test]
    fn what_processes_of_another_home_do_is_not_known() {
        let folder = TempFolder::new("roster-home");
        let path = folder.path().join("clients");
        let gone = Process { pid: me().pid, started: me().started + 1 };
        let mapped = line(&Change::Mapped { client: client(5), process: gone });
        for (home, is_dead) in [(home(), true), ("another pid:[1]".to_string(), false)] {
            let head = format!("{HEAD}{} {home}", whole_digits(0));
            fs::write(&path, format!("{head}\n{}{mapped}", line(&joined(5, 1, 0)))).unwrap();
            assert_eq!(read(&path)[&client(5)].is_dead(has_ended), is_dead, "{home}");
        }
    }

    /// The file stays in its place, but takes no more writes.
    #[test]
    fn a_change_that_the_file_in_its_place_does_not_take_is_not_taken_for_kept() {
        let folder = TempFolder::new("roster-read-only");
        let path = folder.path().join("clients");
        let (mut keeper, mut clients) = open(&path, &Taking::IfFree).unwrap();
        keep(&mut keeper, &mut clients, &[joined(5, 1, 0)]);
        keeper.file = Some(File::open(&path).unwrap());
        let change = joined(6, 1, 0);
        change.apply(&mut clients);
        assert!(keeper.keep(std::slice::from_ref(&change), &clients).is_err());
        keeper.keep(&[], &clients).unwrap();
        drop(keeper);
        assert_eq!(read(&path), clients);
    }
}
