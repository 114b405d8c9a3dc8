// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has of a fair lock when its session ends.

use super::state::{FairState, Status as Known};
use crate::clock::{Deadline, ServerTime};
use crate::ids::ClientId;
use crate::memory::words::LedgerEntry;

/// What a client has of this lock when its session ends.
pub(in crate::arbiter) enum Hold {
    Nothing,
    /// A hold or a claim until this deadline.
    Claimed(Deadline),
    /// A place in the queue, without a claim that still runs.
    Place,
}

/// What the client has. Even a client that has given its wait up, or has not heard of its grant,
/// may have looked at the word since, and relies on what its ledger claims.
pub(in crate::arbiter) fn hold(
    fair: &FairState,
    client: ClientId,
    entry: LedgerEntry,
    now: ServerTime,
    is_proxied: bool,
) -> Hold {
    let record = fair.records.get(&client);
    let record = record.filter(|r| r.stamp == entry.stamp() && entry.claims() == Some(r.mode));
    let noted = entry.claims().map(|_| entry.deadline());
    let running = noted.filter(|&noted| now < noted.expiry());
    match record.map(|r| r.status) {
        None if is_proxied => Hold::Nothing,
        None => noted.map_or(Hold::Nothing, Hold::Claimed),
        Some(Known::Over) => Hold::Nothing,
        Some(Known::Granted { deadline: Deadline::NEVER }) => {
            Hold::Claimed(running.unwrap_or(Deadline::NEVER))
        }
        Some(Known::Granted { deadline }) => {
            Hold::Claimed(noted.map_or(deadline, |noted| noted.max(deadline)))
        }
        Some(Known::Issued) => noted.map_or(Hold::Place, Hold::Claimed),
        Some(Known::Kept | Known::Waiting) => running.map_or(Hold::Place, Hold::Claimed),
    }
}
