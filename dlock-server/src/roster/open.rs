// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roster of a primary that starts.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use dlock_core::roster::Clients;

use super::{list_of, others_may_write, FileKeeper, Keeper, Ownership, Taking};
use crate::error::StartError;

/// Where the clients are kept, and those of the predecessor.
#[derive(Default)]
pub(crate) struct Found {
    /// `None`: nowhere.
    pub(crate) keeper: Option<Box<dyn Keeper>>,
    /// The predecessor's clients.
    pub(crate) clients: Clients,
    /// They are not all: the list of the predecessor, or of one before it, was lost.
    pub(crate) is_lost: bool,
}

/// Takes the list beside this state file.
///
/// # Errors
/// `StateFile`: it is another primary's, cannot be read, or is no list.
pub(crate) fn found(
    state_file: Option<&Path>,
    taking: &Taking,
    place: &mut Option<Arc<Ownership>>,
) -> Result<Found, StartError> {
    let Some(state_file) = state_file else { return Ok(Found::default()) };
    let path = list_of(state_file);
    if let Some(what) = others_may_write(&path) {
        log::warn!("{what}: they can take the state of this primary away, or exchange it");
    }
    let taken = match place.take() {
        Some(place) => Ok(place),
        None => Ownership::take(&path, taking).map(Arc::new),
    };
    let opened = taken.and_then(|taken| {
        let (mut keeper, clients) = FileKeeper::open(&path, place.insert(taken).clone())?;
        if fs::symlink_metadata(&path).is_err() {
            // A list is written before the first epoch is: where an epoch is, there was a list.
            let is_lost = fs::symlink_metadata(state_file).is_ok();
            keeper.begin(is_lost, &clients)?;
        }
        Ok((keeper, clients))
    });
    let (keeper, clients) =
        opened.map_err(|source| StartError::StateFile { path: path.clone(), source })?;
    let is_lost = keeper.is_lost();
    if is_lost {
        log::error!(
            "nobody is served: the state file {} is there, and its list of clients {} was lost, so \
             that it is not known who holds what; stop this primary, restore the list and start \
             it again, or, if all clients have ended, say `dlock recover --now`",
            state_file.display(),
            path.display()
        );
    }
    Ok(Found { keeper: Some(Box::new(keeper)), clients, is_lost })
}
