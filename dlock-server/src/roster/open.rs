// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roster of a primary that starts: the list beside its state file, and that of a predecessor
//! with another one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_core::ids::Epoch;
use dlock_core::roster::Clients;

use super::file::{read, List, Origin};
use super::{
    has_ended, list_of, others_may_write, owner, resolved, FileKeeper, Keeper, Ownership, Taking,
};
use crate::epoch;
use crate::error::StartError;

/// Where the clients are kept, and those of the predecessor.
pub(crate) struct Found {
    /// `None`: nowhere.
    pub(crate) keeper: Option<Box<dyn Keeper>>,
    /// The predecessor's clients.
    pub(crate) clients: Clients,
    /// They are not all: the list of the predecessor, or of one before it, was lost.
    pub(crate) is_lost: bool,
    /// That of this primary, which is kept.
    pub(crate) epoch: Epoch,
}

/// Takes the list beside this state file, and begins an epoch. `earlier`: state files that the
/// predecessor may have had.
///
/// # Errors
/// `StateFile`: it is another primary's, cannot be read, or is no list. `EarlierStateFile`.
/// `Clock`.
pub(crate) fn found(
    state_file: Option<&Path>,
    earlier: &[PathBuf],
    taking: &Taking,
    place: &mut Option<Arc<Ownership>>,
) -> Result<Found, StartError> {
    let Some(state_file) = state_file else {
        let (clients, epoch) = (Clients::new(), epoch::begin(None, None)?);
        return Ok(Found { keeper: None, clients, is_lost: false, epoch });
    };
    let path = list_of(state_file);
    if let Some(what) = others_may_write(&path) {
        log::warn!("{what}: they can take the state of this primary away, or exchange it");
    }
    let failed = |source| StartError::StateFile { path: path.clone(), source };
    let taken = match place.take() {
        Some(place) => place,
        None => Ownership::take(&path, taking).map(Arc::new).map_err(failed)?,
    };
    let opened = FileKeeper::open(&path, place.insert(taken).clone());
    let (mut keeper, own) = opened.map_err(failed)?;
    let begins = own.is_none();
    let mut list = own.unwrap_or_default();
    // a state file that cannot be read ends the start later
    let last = epoch::last(state_file).ok().flatten().max(list.origin.epoch);
    list.origin.epoch = last;
    if begins {
        // A list is written before the first epoch is: where an epoch is, there was a list.
        list.origin.lost = last;
    }
    let others = others(earlier)?;
    let later = others.iter().filter(|other| Some(other.epoch) > last);
    let joins = match later.max_by_key(|other| other.epoch) {
        Some(later) => {
            let theirs = later.list()?;
            says(later, &theirs, state_file);
            list = joined(list, theirs);
            true
        }
        None => is_restored(&mut list, &others)?,
    };
    if begins || joins {
        keeper.begin(&list).map_err(failed)?;
    }
    if let Some(lost) = list.origin.lost {
        let other = others.iter().find(|other| other.epoch == lost);
        let lost = other.map_or(state_file, |other| &other.state_file);
        log::error!(
            "no client is served: the state file {} is there, and its list of clients {} was lost, \
             so that it is not known who holds what; stop this primary, restore the list and start \
             it again, or, if all clients have ended, say `dlock recover --now`",
            lost.display(),
            list_of(lost).display()
        );
    }
    // The epoch begins last, so that a primary that cannot start uses none up. It begins after this
    // primary has the place, so that no other one begins a later epoch and serves before this one.
    let after = list.origin.after.iter().copied().max().max(last);
    let epoch = epoch::begin(Some(state_file).zip(place.as_deref()), after)?;
    keeper.begun(state_file, epoch);
    let (clients, is_lost) = (list.clients, list.origin.lost.is_some());
    Ok(Found { keeper: Some(Box::new(keeper)), clients, is_lost, epoch })
}

/// Another state file of a primary whose process does not live on this host.
struct Other {
    state_file: PathBuf,
    epoch: u64,
    /// Its process was one of this host, and has ended.
    has_ended: bool,
}

impl Other {
    /// What its list says.
    ///
    /// # Errors
    /// `EarlierStateFile`: it cannot be read.
    fn list(&self) -> Result<List, StartError> {
        let path = list_of(&self.state_file);
        let list = read(&path).map_err(|source| StartError::EarlierStateFile { path, source })?;
        let lost = Origin { lost: Some(self.epoch), ..Origin::default() };
        let mut list = list.unwrap_or(List { origin: lost, ..List::default() });
        // one that may live elsewhere may have other clients later
        let is_all = self.has_ended && list.origin.lost.is_none();
        list.origin.after.extend(is_all.then_some(self.epoch));
        Ok(list)
    }
}

/// Those of the state files `earlier`. A primary whose process still lives on this host is passed
/// over: it may serve on another address.
///
/// # Errors
/// `EarlierStateFile`: a state file cannot be read.
fn others(earlier: &[PathBuf]) -> Result<Vec<Other>, StartError> {
    let mut others = Vec::new();
    for path in earlier {
        let state_file = resolved(path);
        let last = epoch::last(&state_file);
        let failed = |source| StartError::EarlierStateFile { path: state_file.clone(), source };
        let Some(epoch) = last.map_err(failed)? else { continue };
        match owner(&list_of(&state_file)).map(has_ended) {
            Some(false) => {}
            ended => others.push(Other { state_file, epoch, has_ended: ended.is_some() }),
        }
    }
    Ok(others)
}

/// What a list and a later one say together.
fn joined(mut own: List, later: List) -> List {
    let Origin { epoch, .. } = own.origin;
    let Origin { after, lost, .. } = later.origin;
    if epoch.is_some_and(|epoch| after.contains(&epoch)) {
        // the later primary has had all clients of this one, and some may have left since
        return List { clients: later.clients, origin: Origin { epoch, after, lost } };
    }
    own.clients.extend(later.clients);
    own.origin.lost = lost.or(own.origin.lost);
    own.origin.after.extend(after);
    own
}

/// Whether the list that was lost is there again; its clients are added then.
fn is_restored(list: &mut List, others: &[Other]) -> Result<bool, StartError> {
    let lost = others.iter().find(|other| Some(other.epoch) == list.origin.lost);
    let Some(lost) = lost else { return Ok(false) };
    let theirs = lost.list()?;
    if theirs.origin.lost.is_some() {
        return Ok(false);
    }
    for (client, kept) in theirs.clients {
        list.clients.entry(client).or_insert(kept); // one that is known has come since
    }
    list.origin.after.extend(theirs.origin.after);
    list.origin.lost = None;
    log::info!("the list {} that was lost is there again", list_of(&lost.state_file).display());
    Ok(true)
}

fn says(other: &Other, theirs: &List, own: &Path) {
    let state_file = &other.state_file;
    let what = format!(
        "the last primary on this port had the state file {state_file:?}, and this one has \
         {own:?}, as after another /etc/machine-id, XDG_STATE_HOME or HOME"
    );
    match theirs.clients.values().filter(|kept| kept.has_locks).count() {
        _ if theirs.origin.lost.is_some() => log::warn!("{what}"), // the next line says the rest
        0 => log::info!("{what}: none of its clients held a lock"),
        holders => log::warn!(
            "{what}: no client is served before its clients that may hold locks ({holders}) are \
             back or their session horizons are over, usually 30 s; if it was the primary of \
             another host, say `dlock recover --now`, and name a file with --state-file at the \
             next start"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use dlock_core::ids::ClientId;
    use dlock_core::roster::Change;
    use dlock_core::wire::control::Secret;
    use std::fs;

    /// The message of a damaged state file has the operator remove it, and leave the list.
    #[test]
    fn a_list_without_its_state_file_is_later_than_that_of_a_predecessor() {
        let folder = TempFolder::new("open-removed");
        let [own, other] = ["own", "other"].map(|name| folder.path().join(name));
        let client = ClientId::new(7).unwrap();
        // a primary finds this proof of the client, if any, and gives it another one
        let serves = |state_file: &Path, secret: u8| {
            let earlier: Vec<_> =
                Some(other.clone()).into_iter().filter(|path| path != state_file).collect();
            let mut place = None;
            let found = found(Some(state_file), &earlier, &Taking::IfFree, &mut place).unwrap();
            let (mut keeper, mut clients) = (found.keeper.unwrap(), found.clients);
            let before = clients.get(&client).map(|kept| kept.secrets[0].0[0]);
            let secret = Secret([secret; 16]);
            let joined = Change::Joined { client, secret, horizon_s: 0, identity: None };
            joined.apply(&mut clients);
            keeper.keep(&[joined], &clients).unwrap();
            // its process is another one than that of this test
            fs::write(list_of(state_file).with_extension("clients.lock"), "").unwrap();
            (before, found.epoch)
        };
        assert_eq!(serves(&other, 1).0, None);
        let (before, mut epoch) = serves(&own, 2);
        assert_eq!(before, Some(1));
        for (before, after) in [(2, 3), (3, 4)] {
            fs::remove_file(&own).unwrap();
            let (found, next) = serves(&own, after);
            assert_eq!(found, Some(before));
            assert!(next > epoch);
            epoch = next;
        }
    }
}
