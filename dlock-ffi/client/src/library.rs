// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's client library: its configuration, and its clients by id.
//!
//! Every lock operation has to find its client. Each thread remembers the clients that it used
//! last, without keeping them alive, and relies on this memory until a client is removed:
//!
//! ```text
//!   find(id) ─▶ thread's memory ──same CHANGES, same id──▶ upgrade        (two atomic operations)
//!                    │ else
//!                    ▼
//!               LIBRARY (read lock) ─▶ remember, with the CHANGES seen under the lock
//!   removal:    LIBRARY (write lock): take out, CHANGES += 1
//! ```
//! A forked child inherits the library, but none of its clients, because two processes must not use
//! the same connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::raw::c_int;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, Tls, TlsUse};
use dlock_core::limits::PORT_DEFAULT;
use dlock_ffi_abi::code;
use dlock_ffi_abi::tls::TlsSettings;
use parking_lot::{Mutex, RwLock};

/// Why a client was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The library is not initialised.
    Library,
    /// This process has no client with this id.
    Client,
}

impl Missing {
    /// The code for lock operations, objects and counters.
    pub(crate) fn code(self) -> c_int {
        self.or(code::CLIENTMGR_NOT_INIT, code::CLIENT_NOT_INIT)
    }

    /// `library` or `client`, depending on the reason.
    pub(crate) fn or(self, library: c_int, client: c_int) -> c_int {
        match self {
            Missing::Library => library,
            Missing::Client => client,
        }
    }
}

struct Library {
    config: ClientConfig,
    /// The program's TLS configuration.
    tls: Option<Arc<LazyTls>>,
    clients: HashMap<i32, Client>,
    /// Distinguishes this library from one that is initialised later.
    incarnation: u64,
}

struct Client {
    instance: Arc<Instance>,
    /// The process to which the client belongs, as [`PROCESS`] counts them.
    process: u64,
}

impl Client {
    fn is_here(&self) -> bool {
        self.process == PROCESS.load(Ordering::Relaxed)
    }
}

static LIBRARY: RwLock<Option<Library>> = RwLock::new(None);
/// Grows with every removal of clients, under the write lock, and in every forked child; starts at
/// 1.
static CHANGES: AtomicU64 = AtomicU64::new(1);
/// The port of the last configuration; it outlives the library.
static PORT: AtomicU16 = AtomicU16::new(PORT_DEFAULT);
/// The number of forks between the first process and this one: grows in every forked child.
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// Locked while the library is being initialised.
static STARTING: Mutex<()> = Mutex::new(());

/// The port for a configuration that gives none.
pub(crate) fn last_port() -> u16 {
    PORT.load(Ordering::Relaxed)
}

/// Initialises the library with what `make` returns.
///
/// # Errors
/// The error of `make`; `ERROR` if the library is initialised already.
pub(crate) fn start(
    make: impl FnOnce() -> Result<(ClientConfig, Option<TlsSettings>), c_int>,
) -> Result<(), c_int> {
    watch_forks();
    let _starting = STARTING.lock();
    if LIBRARY.read().is_some() {
        log::error!("the client library is initialised already");
        return Err(code::ERROR);
    }
    let (config, tls) = make()?;
    PORT.store(config.port, Ordering::Relaxed);
    let incarnation = CHANGES.load(Ordering::Relaxed);
    let tls = tls.map(|settings| Arc::new(LazyTls { settings, loaded: Mutex::new(None) }));
    *LIBRARY.write() = Some(Library { config, tls, clients: HashMap::new(), incarnation });
    Ok(())
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn in_the_child() {
        PROCESS.fetch_add(1, Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Release);
    }
    ONCE.call_once(|| {
        // SAFETY: the handler only counts, which is allowed in a child of a threaded process; it is
        // removed when this library is unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        if failed != 0 {
            log::warn!("no memory for a fork handler: forked children must not use clients");
        }
    });
}

/// Drops all clients, without messages to their primaries.
pub(crate) fn stop() {
    let taken = {
        let mut library = LIBRARY.write();
        CHANGES.fetch_add(1, Ordering::Release);
        library.take()
    };
    if taken.is_none() {
        log::warn!("the client library is not initialised: nothing to deinitialise");
    }
    // connections are closed here, outside the lock
    drop(taken);
}

/// The configuration for a new client.
pub(crate) struct LibraryContext {
    config: ClientConfig,
    tls: Option<Arc<LazyTls>>,
    incarnation: u64,
}

impl LibraryContext {
    /// The configuration. `None`: the TLS configuration cannot be used; the log says why.
    pub(crate) fn config(&self) -> Option<ClientConfig> {
        let tls = match &self.tls {
            None => return Some(self.config.clone()),
            Some(lazy) => lazy.get()?,
        };
        Some(ClientConfig { tls: TlsUse::With(tls), ..self.config.clone() })
    }
}

/// The TLS files, loaded when the first client needs them.
struct LazyTls {
    settings: TlsSettings,
    loaded: Mutex<Option<Tls>>,
}

impl LazyTls {
    fn get(&self) -> Option<Tls> {
        // not under the mutex, because loading calls callbacks of the program
        let loaded = self.loaded.lock().clone();
        let tls = match loaded {
            Some(tls) => tls,
            None => self.settings.load(false)?,
        };
        Some(self.loaded.lock().get_or_insert(tls).clone())
    }
}

/// The configuration, if the library is initialised.
pub(crate) fn library_context() -> Option<LibraryContext> {
    let library = LIBRARY.read();
    let library = library.as_ref()?;
    let (config, tls) = (library.config.clone(), library.tls.clone());
    Some(LibraryContext { config, tls, incarnation: library.incarnation })
}

/// The result of entering a new client.
pub(crate) enum Entered {
    /// Entered with this id.
    As(i32),
    /// A client of another primary has the same id.
    Taken(Arc<Instance>),
    /// The library was deinitialised meanwhile.
    Gone,
}

/// Enters a new client, so that calls find it.
pub(crate) fn enter(library_context: &LibraryContext, instance: Arc<Instance>) -> Entered {
    let mut library = LIBRARY.write();
    let Some(library) = library.as_mut().filter(|l| l.incarnation == library_context.incarnation)
    else {
        return Entered::Gone;
    };
    let Ok(id) = i32::try_from(instance.id().get()) else {
        return Entered::Taken(instance);
    };
    if library.clients.get(&id).is_some_and(Client::is_here) {
        return Entered::Taken(instance);
    }
    let process = PROCESS.load(Ordering::Relaxed);
    library.clients.insert(id, Client { instance, process });
    Entered::As(id)
}

/// Removes a client, so that calls no longer find it.
pub(crate) fn remove(id: c_int) -> Result<Arc<Instance>, Missing> {
    let mut library = LIBRARY.write();
    let library = library.as_mut().ok_or(Missing::Library)?;
    if !library.clients.get(&id).is_some_and(Client::is_here) {
        return Err(Missing::Client);
    }
    let client = library.clients.remove(&id).ok_or(Missing::Client)?;
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(client.instance)
}

/// Whether the library is initialised.
pub(crate) fn is_started() -> bool {
    LIBRARY.read().is_some()
}

/// How many clients one thread remembers.
const REMEMBERED_MAX: usize = 16;

/// A client that a thread has used; `changes` is 0 if there is none.
struct Remembered {
    changes: Cell<u64>,
    id: Cell<c_int>,
    instance: RefCell<Weak<Instance>>,
}

thread_local! {
    static REMEMBERED: [Remembered; REMEMBERED_MAX] = const {
        [const {
            Remembered {
                changes: Cell::new(0),
                id: Cell::new(0),
                instance: RefCell::new(Weak::new()),
            }
        }; REMEMBERED_MAX]
    };
}

/// The client with this id.
#[inline]
pub(crate) fn find(id: c_int) -> Result<Arc<Instance>, Missing> {
    // ids are random, so their low bits serve as a hash
    let index = id as usize % REMEMBERED_MAX;
    let hit = REMEMBERED.try_with(|remembered| {
        let slot = &remembered[index];
        if slot.id.get() == id && slot.changes.get() == CHANGES.load(Ordering::Acquire) {
            slot.instance.try_borrow().ok()?.upgrade()
        } else {
            None
        }
    });
    match hit {
        Ok(Some(instance)) => Ok(instance),
        _ => look_up(id, index),
    }
}

#[cold]
fn look_up(id: c_int, index: usize) -> Result<Arc<Instance>, Missing> {
    let (instance, changes) = {
        let library = LIBRARY.read();
        let library = library.as_ref().ok_or(Missing::Library)?;
        // read before the client: a fork meanwhile makes the remembered value stale
        let changes = CHANGES.load(Ordering::Relaxed);
        let client = library.clients.get(&id).filter(|c| c.is_here()).ok_or(Missing::Client)?;
        (Arc::clone(&client.instance), changes)
    };
    // at the end of a thread its memory is gone: the next call looks the client up again
    let _ = REMEMBERED.try_with(|remembered| {
        let slot = &remembered[index];
        if let Ok(mut known) = slot.instance.try_borrow_mut() {
            *known = Arc::downgrade(&instance);
            slot.id.set(id);
            slot.changes.set(changes);
        }
    });
    Ok(instance)
}
