// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: numbers that stand for what a program has opened (clients, locks, holds, …).
//!
//! ```text
//!   number = count << 4 | kind        count: 1, 2, 3, … in a process and its children
//!   find ─▶ tables of this process ─▶ clone of the value; none: closed, or never made
//!   fork ─▶ a child makes tables of its own; counts below their first are the parent's handles
//! ```
//! No count is used twice, so the number of a closed handle never stands for another value. A value
//! that a call has found lives until the call is over, even if the handle is closed meanwhile. A
//! child never touches its parent's tables, because a thread of the parent may have locked them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

use ::dlock_client::{Client, Lock, Object};
use dlock_fabric::os::fork::Owner;
use parking_lot::{Mutex, RwLock};

use super::abi::*;
use super::failure::Failure;
use super::holds::Held;
use super::queue::Queue;
use super::waiting::{Calls, Cancel};

const KIND_BITS: u32 = 4;
/// The parts of a table, each with its own lock: threads with different handles rarely meet.
const SHARDS: usize = 16;

/// The count of the next handle.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A kind of handle: its number, and the table of its values.
pub(crate) trait Kind: Sized + Clone + 'static {
    const NUMBER: u64;
    const NAME: &'static str;
    fn table(tables: &Tables) -> &Table<Self>;
}

macro_rules! kinds {
    ($($number:literal $name:literal $field:ident: $type:ty;)*) => {
        /// The handles of this process, and their values.
        pub(crate) struct Tables {
            owner: Owner,
            /// The first count of this process; lower ones are its parent's.
            first: u64,
            /// The calls that threads carry out.
            calls: Mutex<Calls>,
            $($field: Table<$type>,)*
        }

        impl Tables {
            fn new() -> Self {
                let (owner, first) = (Owner::current(), NEXT.load(Ordering::Relaxed));
                let calls = Mutex::default();
                Self { owner, first, calls, $($field: Table::default(),)* }
            }
        }

        $(impl Kind for $type {
            const NUMBER: u64 = $number;
            const NAME: &'static str = $name;
            fn table(tables: &Tables) -> &Table<Self> {
                &tables.$field
            }
        })*

        fn name_of(kind: u64) -> Option<&'static str> {
            match kind {
                $($number => Some($name),)*
                _ => None,
            }
        }
    };
}

kinds! {
    1 "dlock_client" clients: Client;
    2 "dlock_lock" locks: Lock;
    3 "dlock_hold" holds: Arc<Held>;
    4 "dlock_queue" queues: Arc<Queue>;
    5 "dlock_object" objects: Object;
    6 "dlock_cancel" cancels: Arc<Cancel>;
}

/// The values of the handles of one kind.
pub(crate) struct Table<T>([Shard<T>; SHARDS]);

type Shard<T> = RwLock<HashMap<u64, T, BuildHasherDefault<Counts>>>;

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| RwLock::default()))
    }
}

impl<T> Table<T> {
    fn shard(&self, id: u64) -> &Shard<T> {
        &self.0[(id >> KIND_BITS) as usize % SHARDS]
    }
}

/// A hasher for counts, which follow one another.
#[derive(Default)]
struct Counts(u64);

impl Hasher for Counts {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("a handle is a u64");
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = (id >> KIND_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The tables of this process, which are never freed.
fn tables() -> &'static Tables {
    static TABLES: AtomicPtr<Tables> = AtomicPtr::new(std::ptr::null_mut());
    let mut before = TABLES.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or tables that were leaked below.
        match unsafe { before.as_ref() } {
            Some(tables) if tables.owner.is_here() => return tables,
            _ => {}
        }
        let made = Box::into_raw(Box::new(Tables::new()));
        match TABLES.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => return unsafe { &*made },
            Err(other) => {
                // SAFETY: made just now, and known to no other thread.
                drop(unsafe { Box::from_raw(made) });
                before = other;
            }
        }
    }
}

/// The calls that threads of this process carry out.
pub(crate) fn calls() -> &'static Mutex<Calls> {
    &tables().calls
}

/// Makes a handle for a value.
pub(crate) fn insert<T: Kind>(value: T) -> u64 {
    let tables = tables();
    let id = NEXT.fetch_add(1, Ordering::Relaxed) << KIND_BITS | T::NUMBER;
    T::table(tables).shard(id).write().insert(id, value);
    id
}

/// The value of a handle.
///
/// # Errors
/// `DLOCK_E_HANDLE`, `DLOCK_E_KIND`, `DLOCK_E_FORKED`.
#[inline]
pub(crate) fn find<T: Kind>(id: u64) -> Result<T, Failure> {
    let tables = tables();
    let found = T::table(tables).shard(id).read().get(&id).cloned();
    found.ok_or_else(|| missing::<T>(tables, id))
}

/// Ends a handle and returns its value. If several threads end the same handle, one of them gets
/// it.
///
/// # Errors
/// As [`find`].
pub(crate) fn remove<T: Kind>(id: u64) -> Result<T, Failure> {
    let tables = tables();
    let removed = T::table(tables).shard(id).write().remove(&id);
    removed.ok_or_else(|| missing::<T>(tables, id))
}

#[cold]
fn missing<T: Kind>(tables: &Tables, id: u64) -> Failure {
    let name = T::NAME;
    let is_made = (1..NEXT.load(Ordering::Relaxed)).contains(&(id >> KIND_BITS));
    match name_of(id & ((1 << KIND_BITS) - 1)) {
        _ if id == 0 => Failure::new(DLOCK_E_HANDLE, format!("the {name} is {{0}}")),
        Some(other) if other != name && is_made => {
            Failure::new(DLOCK_E_KIND, format!("{id:#x} is a {other}, not a {name}"))
        }
        Some(_) if is_made && id >> KIND_BITS < tables.first => {
            Failure::new(DLOCK_E_FORKED, format!("{name} {id:#x} is one of this process's parent"))
        }
        Some(_) if is_made => {
            Failure::new(DLOCK_E_HANDLE, format!("{name} {id:#x} was closed before"))
        }
        _ => Failure::new(DLOCK_E_HANDLE, format!("{name} {id:#x} was never made")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_thing_until_it_is_closed() {
        let cancel = insert(Arc::new(Cancel::default()));
        let code = |id| find::<Arc<Cancel>>(id).map(|_| ()).map_err(|failure| failure.code);
        assert_eq!(code(cancel), Ok(()));
        assert_eq!(find::<Lock>(cancel).map(|_| ()).unwrap_err().code, DLOCK_E_KIND);
        assert!(remove::<Arc<Cancel>>(cancel).is_ok());
        assert_eq!(remove::<Arc<Cancel>>(cancel).map(|_| ()).unwrap_err().code, DLOCK_E_HANDLE);
        for wrong in [cancel, 0, 1, cancel + (1_000_000 << KIND_BITS), u64::MAX, cancel | 15] {
            assert_eq!(code(wrong), Err(DLOCK_E_HANDLE), "{wrong:#x}");
        }
        assert_ne!(insert(Arc::new(Cancel::default())), cancel);
    }
}
