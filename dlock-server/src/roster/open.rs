// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roster of a primary that starts: the list beside its state file, and that of a predecessor
//! with another one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_core::ids::Epoch;
use dlock_core::roster::Clients;

use super::file::read;
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

/// A predecessor that had another state file.
struct Earlier {
    state_file: PathBuf,
    epoch: u64,
    clients: Clients,
    is_lost: bool,
}

/// Takes the list beside this state file, and begins an epoch. `earlier`: state files that the
/// predecessor may have had.
///
/// # Errors
/// `StateFile`: it is another primary's, cannot be read, or is no list. `Clock`.
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
    let earlier = latest(state_file, earlier)?;
    let after = earlier.as_ref().map(|earlier| earlier.epoch);
    let taken = match place.take() {
        Some(place) => Ok(place),
        None => Ownership::take(&path, taking).map(Arc::new),
    };
    let opened = taken.and_then(|taken| {
        let (mut keeper, mut clients) = FileKeeper::open(&path, place.insert(taken).clone())?;
        let is_new = fs::symlink_metadata(&path).is_err();
        // A list is written before the first epoch is: where an epoch is, there was a list.
        let mut is_lost = keeper.is_lost() || is_new && fs::symlink_metadata(state_file).is_ok();
        let begins = is_new || earlier.is_some();
        let mut lost = is_lost.then(|| state_file.to_path_buf());
        if let Some(earlier) = earlier {
            says(&earlier, state_file);
            is_lost |= earlier.is_lost;
            lost = earlier.is_lost.then_some(earlier.state_file).or(lost);
            clients.extend(earlier.clients);
        }
        if begins {
            keeper.begin(is_lost, &clients)?;
        }
        Ok((keeper, clients, lost))
    });
    let (mut keeper, clients, lost) =
        opened.map_err(|source| StartError::StateFile { path: path.clone(), source })?;
    if let Some(lost) = lost {
        log::error!(
            "no client is served: the state file {} is there, and its list of clients {} was lost, \
             so that it is not known who holds what; stop this primary, restore the list and start \
             it again, or, if all clients have ended, say `dlock recover --now`",
            lost.display(),
            list_of(&lost).display()
        );
    }
    // Last, so that a primary that cannot start uses no epoch up; and not before the place is this
    // one's: no other primary begins a later one that could serve before this one does.
    let epoch = epoch::begin(Some(state_file).zip(place.as_deref()), after)?;
    keeper.keep_epoch(state_file, epoch);
    let is_lost = keeper.is_lost();
    Ok(Found { keeper: Some(Box::new(keeper)), clients, is_lost, epoch })
}

/// Of the primaries that had one of the `earlier` state files, the one with the latest epoch, if
/// that is later than the epoch in the file `own`. A primary whose process still lives on this host
/// is passed over: it may serve on another address.
///
/// # Errors
/// `EarlierStateFile`: a state file, or the list beside it, cannot be read.
fn latest(own: &Path, earlier: &[PathBuf]) -> Result<Option<Earlier>, StartError> {
    // a state file that cannot be read ends the start later
    let mut last = epoch::last(own).ok().flatten();
    let mut found = None;
    for path in earlier {
        let state_file = resolved(path);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| StartError::EarlierStateFile { path, source }
        };
        let Some(epoch) = epoch::last(&state_file).map_err(failed(&state_file))? else { continue };
        let list = list_of(&state_file);
        let lives = owner(&list).is_some_and(|process| !has_ended(process));
        if last.is_some_and(|last| epoch <= last) || lives {
            continue;
        }
        last = Some(epoch);
        let kept = read(&list).map_err(failed(&list))?;
        let is_lost = kept.as_ref().is_none_or(|(_, is_lost)| *is_lost);
        let clients = kept.map(|(clients, _)| clients).unwrap_or_default();
        found = Some(Earlier { state_file, epoch, clients, is_lost });
    }
    Ok(found)
}

fn says(earlier: &Earlier, own: &Path) {
    let Earlier { state_file, clients, .. } = earlier;
    let other = format!(
        "the last primary on this port had the state file {state_file:?}, and this one has \
         {own:?}, as after another /etc/machine-id, XDG_STATE_HOME or HOME"
    );
    match clients.values().filter(|kept| kept.has_locks).count() {
        0 => log::info!("{other}: none of its clients held a lock"),
        holders => log::warn!(
            "{other}: no client is served before its clients that may hold locks ({holders}) are \
             back or their session horizons are over, usually 30 s; if it was the primary of \
             another host, say `dlock recover --now`, and name a file with --state-file at the \
             next start"
        ),
    }
}
