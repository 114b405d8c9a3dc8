// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's server library: its primaries by id.
//!
//! ```text
//!   reserve ─▶ Place (counts as running) ──start──▶ found by its id ──remove──▶ stopped
//!                 └──dropped: free again
//! ```
//! Starting and stopping take time, so they are done without the mutex of the library.
//!
//! A forked child inherits the library, but none of its threads. In the child the library counts as
//! not initialised, and the inherited primaries are neither stopped nor freed.

use std::collections::HashMap;
use std::os::raw::c_int;
use std::sync::Arc;

use dlock_core::limits::SERVERS_MAX;
use dlock_core::wire::status::Status;
use dlock_fabric::os::fork;
use dlock_ffi_abi::code;
use dlock_server::{Server, ServerConfig};
use parking_lot::Mutex;

/// The largest server id (C API).
const ID_MAX: c_int = 0xF_FFFF;

struct Library {
    servers_max: usize,
    /// `None`: the id is reserved for a primary that is being started.
    servers: HashMap<c_int, Option<Arc<Server>>>,
    /// Distinguishes this library from one that is initialised later.
    incarnation: u64,
    /// The process in which the threads of the primaries run.
    process: u64,
}

struct State {
    library: Option<Library>,
    /// The last id that was given out. It outlives the library, so that old ids stay unknown.
    last_id: c_int,
    incarnations: u64,
}

static STATE: Mutex<State> = Mutex::new(State { library: None, last_id: 0, incarnations: 0 });

impl State {
    /// The library, if it is initialised in this process.
    fn library(&mut self) -> Option<&mut Library> {
        self.library.as_mut().filter(|library| library.process == fork::process())
    }

    /// Reserves a place. An error has the number of primaries that may run, or `None` if the
    /// library is not initialised.
    fn reserve(&mut self) -> Result<Place, Option<usize>> {
        let mut id = self.last_id;
        let library = self.library().ok_or(None)?;
        if library.servers.len() >= library.servers_max {
            return Err(Some(library.servers_max));
        }
        // Terminates, because there are far fewer primaries than ids.
        loop {
            id = if id >= ID_MAX { 1 } else { id + 1 };
            if !library.servers.contains_key(&id) {
                break;
            }
        }
        library.servers.insert(id, None);
        let incarnation = library.incarnation;
        self.last_id = id;
        Ok(Place { id, incarnation })
    }
}

/// Initialises the library; `false` if the number is not allowed, or the library is initialised
/// already.
pub(crate) fn start_library(servers_max: u32) -> bool {
    let servers_max = usize::try_from(servers_max).unwrap_or(usize::MAX);
    if servers_max == 0 || servers_max > SERVERS_MAX {
        log::error!("max_server_num is {servers_max}: must be 1 to {SERVERS_MAX}");
        return false;
    }
    let mut state = STATE.lock();
    if state.library().is_some() {
        drop(state); // the program's log callback may call any function
        log::error!("the server library is initialised already");
        return false;
    }
    state.incarnations += 1;
    let (incarnation, process) = (state.incarnations, fork::process());
    let library = Library { servers_max, servers: HashMap::new(), incarnation, process };
    // the replaced library may be the parent's, whose threads do not exist here
    std::mem::forget(state.library.replace(library));
    true
}

/// Stops all primaries.
pub(crate) fn stop_library() {
    let mut state = STATE.lock();
    let library = state.library().is_some().then(|| state.library.take()).flatten();
    drop(state);
    let Some(library) = library else {
        log::warn!("the server library is not initialised: nothing to deinitialise");
        return;
    };
    // all at the same time, because each takes a while
    let stops: Vec<_> = library
        .servers
        .into_values()
        .flatten()
        .map(|server| std::thread::Builder::new().spawn(move || stop(server)))
        .collect();
    for stop in stops.into_iter().flatten() {
        // the panic hook has logged a panic of that thread; the server has ended in any case
        let _ = stop.join();
    }
}

/// Room for one primary, and its id.
pub(crate) struct Place {
    id: c_int,
    incarnation: u64,
}

/// Reserves room for one primary.
pub(crate) fn reserve() -> Result<Place, c_int> {
    let reserved = STATE.lock().reserve();
    // not under the mutex, because the program's log callback may call any function
    match reserved {
        Ok(place) => Ok(place),
        Err(None) => {
            log::error!("the server library is not initialised");
            Err(code::ERROR)
        }
        Err(Some(servers_max)) => {
            log::error!("{servers_max} primaries are running: no more are allowed");
            Err(code::SERVER_NO_RESOURCE)
        }
    }
}

impl Place {
    pub(crate) fn id(&self) -> c_int {
        self.id
    }

    /// Starts a primary in this place.
    pub(crate) fn start(self, config: ServerConfig) -> c_int {
        // the hard limit of open files decides how many clients a primary can have
        if let Err(error) = dlock_fabric::os::threads::raise_file_limit() {
            log::warn!("the limit of open files cannot be raised (setrlimit): {error}");
        }
        let server = match Server::start(config) {
            Ok(server) => server,
            Err(error) => {
                log::error!("{error}");
                return match error.status() {
                    Status::ServerNoResource => code::SERVER_NO_RESOURCE,
                    _ => code::ERROR,
                };
            }
        };
        let mut state = STATE.lock();
        match state.library().filter(|l| l.incarnation == self.incarnation) {
            Some(library) => {
                library.servers.insert(self.id, Some(Arc::new(server)));
                code::SUCCESS
            }
            None => {
                drop(state);
                log::error!("the server library was deinitialised during server_start");
                server.stop();
                code::ERROR
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        let library = state.library().filter(|l| l.incarnation == self.incarnation);
        if let Some(library) = library {
            if let Some(None) = library.servers.get(&self.id) {
                library.servers.remove(&self.id);
            }
        }
    }
}

/// The primary with this id.
pub(crate) fn find(id: c_int) -> Option<Arc<Server>> {
    STATE.lock().library()?.servers.get(&id)?.clone()
}

/// Removes a primary, so that calls no longer find it.
pub(crate) fn remove(id: c_int) -> Option<Arc<Server>> {
    let mut state = STATE.lock();
    let servers = &mut state.library()?.servers;
    let server = servers.get(&id)?.clone()?;
    servers.remove(&id);
    Some(server)
}

/// Stops a primary. If another thread reads its counters, the primary stops right after that.
pub(crate) fn stop(server: Arc<Server>) {
    if let Some(server) = Arc::into_inner(server) {
        server.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose log callback calls the library.
    struct Curious;

    impl log::Log for Curious {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, _: &log::Record<'_>) {
            assert!(find(ID_MAX).is_none());
        }

        fn flush(&self) {}
    }

    /// One test, because there is one library.
    #[test]
    fn a_log_callback_may_call_and_a_forked_child_may_start_its_own_primaries() {
        log::set_logger(&Curious).unwrap();
        log::set_max_level(log::LevelFilter::Error);
        assert_eq!(reserve().map(|place| place.id()).err(), Some(code::ERROR));
        assert!(start_library(1));
        assert!(!start_library(1), "it is initialised already");
        let place = reserve().unwrap_or_else(|code| panic!("{code}"));
        let config = ServerConfig { port: 0, ..ServerConfig::default() };
        let id = place.id();
        assert_eq!(place.start(config), code::SUCCESS);
        let full = reserve().map(|place| place.id()).err();
        assert_eq!(full, Some(code::SERVER_NO_RESOURCE));
        let server = find(id).expect("it runs");
        let address = server.local_addr();
        drop(server);
        // the state as a forked child finds it
        STATE.lock().library.as_mut().unwrap().process ^= 1;
        assert!(find(id).is_none() && remove(id).is_none());
        assert_eq!(reserve().map(|place| place.id()).err(), Some(code::ERROR));
        stop_library();
        assert!(start_library(1), "the child's own");
        stop_library();
        assert!(std::net::TcpStream::connect(address).is_ok(), "the parent's primary serves");
        assert!(!start_library(0));
    }
}
