// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of clients of a primary that starts: the one beside its state file, joined with that of
//! a predecessor with another state file. [`dlock_core::roster::list`] decides how; this module
//! reads and writes the lists.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_core::ids::Epoch;
use dlock_core::roster::list::{Joins, List, Other};
use dlock_core::roster::place::Taking;
use dlock_core::roster::Clients;

use super::roster::read;
use super::{epoch, has_ended, list_of, others_may_write, owner, resolved, FileKeeper, Ownership};
use crate::coordinator::Keeper;
use crate::error::StartError;

/// What a starting primary has found: where to keep its clients, and those of the predecessor.
pub(crate) struct Found {
    /// Where the clients are kept; `None`: nowhere.
    pub(crate) keeper: Option<Box<dyn Keeper>>,
    /// The predecessor's clients.
    pub(crate) clients: Clients,
    /// Whether clients may be missing, because the list of some predecessor was lost.
    pub(crate) is_lost: bool,
    /// All tokens of earlier primaries are below this number.
    pub(crate) tokens_below: u64,
    /// The epoch of this primary, which is in the state file, if there is one.
    pub(crate) epoch: Epoch,
}

/// Takes the list beside this state file, and begins an epoch. `earlier`: state files that the
/// predecessor may have had.
///
/// # Errors
/// `StateFile`: the list is another primary's, cannot be read, or is not a list.
/// `EarlierStateFile`. `Clock`.
pub(crate) fn found(
    state_file: Option<&Path>,
    earlier: &[PathBuf],
    taking: &Taking,
    place: &mut Option<Arc<Ownership>>,
) -> Result<Found, StartError> {
    let Some(state_file) = state_file else {
        let (clients, epoch) = (Clients::new(), epoch::begin(None, None)?);
        return Ok(Found { keeper: None, clients, is_lost: false, tokens_below: 0, epoch });
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
    // if the state file cannot be read, the start fails later, with the reason
    let mut list = List::begun(own, epoch::last(state_file).ok().flatten());
    let last = list.origin.epoch;
    let (files, others) = others(earlier)?;
    let joins = match list.joins(&others) {
        Some(Joins::Later(n)) => {
            let theirs = list_of_other(&files[n], others[n])?;
            says(&files[n], &theirs, state_file);
            list = list.joined(theirs);
            true
        }
        Some(Joins::Lost(n)) => {
            let is_restored = list.restored(list_of_other(&files[n], others[n])?);
            if is_restored {
                log::info!(
                    "the list {} that was lost is there again",
                    list_of(&files[n]).display()
                );
            }
            is_restored
        }
        None => false,
    };
    if begins || joins {
        keeper.begin(&list).map_err(failed)?;
    }
    if let Some(lost) = list.origin.lost {
        let other = others.iter().position(|other| other.epoch == lost);
        let lost = other.map_or(state_file, |n| &files[n]);
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
    let after = list.origin.last_other().max(last);
    let epoch = epoch::begin(Some(state_file).zip(place.as_deref()), after)?;
    keeper.begun(state_file, epoch);
    let (clients, is_lost) = (list.clients, list.origin.lost.is_some());
    let tokens_below = list.origin.tokens_below;
    Ok(Found { keeper: Some(Box::new(keeper)), clients, is_lost, tokens_below, epoch })
}

/// Reads the list beside another state file.
///
/// # Errors
/// `EarlierStateFile`: the list cannot be read.
fn list_of_other(state_file: &Path, other: Other) -> Result<List, StartError> {
    let path = list_of(state_file);
    let list = read(&path).map_err(|source| StartError::EarlierStateFile { path, source })?;
    Ok(other.list(list))
}

/// The state files of `earlier` that exist, and their epochs. One whose primary still lives on this
/// host is left out: that primary may serve on another address.
///
/// # Errors
/// `EarlierStateFile`: a state file cannot be read.
fn others(earlier: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<Other>), StartError> {
    let mut others = (Vec::new(), Vec::new());
    for path in earlier {
        let state_file = resolved(path);
        let last = epoch::last(&state_file);
        let failed = |source| StartError::EarlierStateFile { path: state_file.clone(), source };
        let Some(epoch) = last.map_err(failed)? else { continue };
        match owner(&list_of(&state_file)).map(has_ended) {
            Some(false) => {}
            ended => {
                others.0.push(state_file);
                others.1.push(Other { epoch, has_ended: ended.is_some() });
            }
        }
    }
    Ok(others)
}

fn says(state_file: &Path, theirs: &List, own: &Path) {
    let what = format!(
        "the last primary on this port had the state file {state_file:?}, and this one has \
         {own:?}, as after another /etc/machine-id, XDG_STATE_HOME or HOME"
    );
    match theirs.clients.values().filter(|kept| kept.has_locks).count() {
        // a later line of the log tells what is lost
        _ if theirs.origin.lost.is_some() => log::warn!("{what}"),
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

    /// The message about a damaged state file tells the operator to remove that file and to keep
    /// the list.
    #[test]
    fn a_list_without_its_state_file_is_later_than_that_of_a_predecessor() {
        let folder = TempFolder::new("open-removed");
        let [own, other] = ["own", "other"].map(|name| folder.path().join(name));
        let client = ClientId::new(7).unwrap();
        // Starts a primary. Returns the secret of the client that it finds, if it finds one, and
        // its epoch. `secret`: the next secret of the client.
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
            // as if the list belonged to a process other than this test's
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
