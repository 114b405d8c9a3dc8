// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes in the ledger that are late (see `dlock_core::lock`): one thread of this process writes
//! those that nothing has followed.
//!
//! ```text
//!   call ─ a note is late ─▶ list ─ thread, every NOTE_LATE_NS ─▶ the same as last time? ─▶ write
//!                                     └ replaced ─▶ looked at again   └ none ─▶ off the list
//! ```
//! A lock that an operation is under way on is left alone. The thread takes no signals, never waits
//! for a lock or a primary, and ends a second after the last note. It takes no mutex but a lock
//! slot's, and all waits for that have a bound: a child forked meanwhile finds that locked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::limits::NOTE_LATE_NS;

use crate::per_process::{Cell, PerProcess};
use crate::table::{Busy, ClientLock, LockSlotIndex, Table};

/// Between two looks.
const EVERY: Duration = Duration::from_nanos(NOTE_LATE_NS);
/// How long the thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(1);

/// A lock whose note was late when it was looked at last, and which note that was.
struct Noted {
    table: Weak<Table>,
    index: LockSlotIndex,
    lock: LockId,
    seen: Option<u32>,
}

static NOTES: Cell<Noted> = Cell::const_empty();

/// The operation on this lock is over: if its note is late, the thread looks after it. One that no
/// thread can be had for is written now.
#[inline]
pub(crate) fn look_after(table: &Arc<Table>, held: &mut ClientLock) {
    if held.entry.late_note().is_some() && !held.is_watched {
        watch(table, held);
    }
}

#[cold]
fn watch(table: &Arc<Table>, held: &mut ClientLock) {
    let (table, index) = (Arc::downgrade(table), held.index);
    let noted = Noted { table, index, lock: held.id, seen: None };
    held.is_watched = PerProcess::mine(&NOTES).add(noted, "dlock-notes", run);
    if !held.is_watched {
        held.write_late_note();
    }
}

fn run() {
    let notes = PerProcess::mine(&NOTES);
    loop {
        let mut list = notes.list.lock();
        if list.all.is_empty() {
            let _ = notes.changed.wait_for(&mut list, IDLE);
        }
        if list.all.is_empty() {
            list.has_thread = false;
            return;
        }
        drop(list);
        std::thread::sleep(EVERY);
        let mut all = std::mem::take(&mut notes.list.lock().all);
        all.retain_mut(Noted::tend);
        notes.list.lock().all.append(&mut all);
    }
}

impl Noted {
    /// Whether it is to be looked at again.
    fn tend(&mut self) -> bool {
        let Some(table) = self.table.upgrade() else { return false };
        let Some(mut guard) = table.lock_slot(self.index).try_lock() else { return true };
        let Some(held) = guard.as_mut().filter(|held| held.id == self.lock) else { return false };
        let late = held.entry.late_note();
        if late.is_some() && (held.busy != Busy::No || late != self.seen) {
            self.seen = late;
            return true;
        }
        held.is_watched = false;
        if late.is_some() {
            held.write_late_note();
        }
        false
    }
}
