// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which executor a session's data path gets.
//!
//! ```text
//!   named in the configuration    that one, or no session
//!   auto                          verbs, if the primary offers them and this host has a port
//!                                 that can be used; else shared memory; else tcp
//! ```
//! A device that was named must work if the primary offers verbs, and an eid must be a port's if
//! this host has ports that can be used.

use std::net::SocketAddr;
use std::sync::Arc;

use dlock_core::control::{Attach, FabricKind, Session};
use dlock_core::exec::Executor;
use dlock_core::status::Status;
use dlock_fabric::{ClockEstimate, FabricError, ShmExecutor, TcpExecutor};

use crate::config::{is_wrong_address, ClientConfig, FabricChoice};
use crate::verbs::{wish, VerbsPath};

/// What a test makes of the executor of a session.
#[cfg(feature = "fault-injection")]
pub type Wrap = Arc<dyn Fn(Arc<dyn Executor>) -> Arc<dyn Executor> + Send + Sync>;
/// Only with the feature `fault-injection` can there be one.
#[cfg(not(feature = "fault-injection"))]
pub(crate) type Wrap = std::convert::Infallible;

/// The executor of a session as the session sees it.
pub(crate) fn wrapped(wrap: Option<&Wrap>, exec: Arc<dyn Executor>) -> Arc<dyn Executor> {
    match wrap {
        None => exec,
        #[cfg(feature = "fault-injection")]
        Some(wrap) => wrap(exec),
        #[cfg(not(feature = "fault-injection"))]
        Some(&never) => match never {},
    }
}

/// A data path.
pub(crate) struct Attached {
    /// The executor.
    pub(crate) exec: Arc<dyn Executor>,
    /// The same, if it is that of verbs.
    pub(crate) verbs: Option<Arc<VerbsPath>>,
}

/// Gives a session its data path.
///
/// # Errors
/// `NotReady` (the primary recovers, and its clients cannot attach yet), `Error`; the cause and
/// its remedy are logged.
pub(crate) fn attach(
    config: &ClientConfig,
    choice: FabricChoice,
    session: &Session,
    primary: SocketAddr,
    clock: ClockEstimate,
) -> Result<Attached, Status> {
    let attach = |fabric| Attach {
        client: session.client,
        secret: session.secret,
        fabric,
        verbs: None, // the executor of verbs brings its own,
        // one of version 1 does not know this field
        version: Some(session.version).filter(|&version| version >= 2),
    };
    let plain = |exec: Arc<dyn Executor>| Attached { exec, verbs: None };
    if matches!(choice, FabricChoice::Auto | FabricChoice::Verbs) {
        match over_verbs(config, session, primary, attach(FabricKind::Verbs), clock) {
            Ok(path) => {
                let verbs = Arc::new(path);
                return Ok(Attached { exec: verbs.clone(), verbs: Some(verbs) });
            }
            Err(refused) => refused.unless_optional(config, choice, session)?,
        }
    }
    if matches!(choice, FabricChoice::Auto | FabricChoice::Shm) {
        let refused = match session.shm_socket.as_deref() {
            Some(name) => match ShmExecutor::attach(name, &attach(FabricKind::Shm)) {
                Ok(exec) => return Ok(plain(Arc::new(exec))),
                Err(e) => e.to_string(),
            },
            None => "the primary does not offer it".to_owned(),
        };
        if choice == FabricChoice::Shm {
            log::error!("no shared memory: {refused}; allow tcp, or enable shm at the primary");
            return Err(Status::Error);
        }
        log::info!("no shared memory ({refused}): using tcp");
    }
    if !session.tcp {
        log::error!("the primary at {primary} offers no tcp data path; enable it there");
        return Err(Status::Error);
    }
    match TcpExecutor::attach(primary, &attach(FabricKind::Tcp), clock) {
        Ok(exec) => Ok(plain(Arc::new(exec))),
        Err(e) => {
            log::error!("no tcp data path: {e}");
            Err(status_of(&e))
        }
    }
}

fn status_of(error: &FabricError) -> Status {
    match error {
        FabricError::Refused(Status::NotReady) => Status::NotReady,
        _ => Status::Error,
    }
}

/// Why there are no verbs.
enum NoVerbs {
    NotOffered,
    Failed(FabricError),
}

fn over_verbs(
    config: &ClientConfig,
    session: &Session,
    primary: SocketAddr,
    attach: Attach,
    clock: ClockEstimate,
) -> Result<VerbsPath, NoVerbs> {
    if !session.verbs {
        return Err(NoVerbs::NotOffered);
    }
    let wish = wish(config).map_err(NoVerbs::Failed)?;
    let path = VerbsPath::open(wish, primary, attach, clock, session.recovering);
    path.map_err(NoVerbs::Failed)
}

impl NoVerbs {
    /// Whether to go on with another executor.
    fn unless_optional(
        self,
        config: &ClientConfig,
        choice: FabricChoice,
        session: &Session,
    ) -> Result<(), Status> {
        let client = session.client;
        match self {
            Self::NotOffered if choice == FabricChoice::Verbs => {
                log::error!("the primary offers no verbs; start it on a host with an RDMA device");
                Err(Status::Error)
            }
            Self::NotOffered => {
                if let Some(name) = &config.device {
                    log::info!("device {name} is not used: the primary offers no verbs");
                }
                Ok(())
            }
            Self::Failed(error)
                if choice == FabricChoice::Verbs
                    || config.device.is_some()
                    || is_wrong_address(&error) =>
            {
                log::error!("client {client} has no verbs: {error}");
                Err(status_of(&error))
            }
            Self::Failed(error) if error.is_absent() => {
                log::info!("client {client}: no verbs here, so tcp: {error}");
                Ok(())
            }
            Self::Failed(error) => {
                log::warn!("client {client} has no verbs, and uses tcp: {error}");
                Ok(())
            }
        }
    }
}
