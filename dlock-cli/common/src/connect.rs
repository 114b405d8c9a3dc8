// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address on the command line to a session with a primary.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_client::{
    Address, Client, ClientConfig, Config, Error, TlsUse, PRIMARIES_VARIABLE, TLS_CA_VARIABLE,
};
use dlock_core::limits::PORT_DEFAULT;
use dlock_core::session::ADDRESSES_MAX;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::status::Status;
use dlock_fabric::tls::Tls;

use crate::failure::{Failure, DENIED, NOT_GOT, SILENT, UNAVAILABLE, USAGE};
use crate::logging::say;
use crate::place::{Fabric, Where, ADDRESS_VARIABLE};

/// A client with this session horizon, which finds the successor of its primary by itself. `wait`:
/// the most time for the connection, a recovery included; `None`: it does not wait for a recovery.
pub fn client(place: &Where, horizon: Duration, wait: Option<Duration>) -> Result<Client, Failure> {
    let places = place.addresses()?;
    let named = places.iter().collect::<HashSet<_>>().len();
    if named > ADDRESSES_MAX {
        let cause = format!("{named} addresses of primaries are named");
        return Err(Failure::new(USAGE, cause, format!("name {ADDRESSES_MAX} at most")));
    }
    let first = &places[0];
    let config = Config::new().port(first.port()).fabric(place.fabric).horizon(horizon);
    let config = config.primaries(places.clone());
    let config = wait.map_or(config.clone(), |wait| config.wait(wait));
    let until = wait.map(|wait| Instant::now() + wait);
    Client::with_config(&config, &first.host()).map_err(|error| {
        let listed: Vec<String> = places.iter().map(Address::to_string).collect();
        let listed = listed.join(" or ");
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let error_text = match error {
            // the library has this status for everything that `dlock -v` explains
            Error::Other(Status::Error) if is_over => {
                let cause = format!("the primary at {listed} has not answered in time");
                return Failure::new(NOT_GOT, cause, SILENT);
            }
            Error::Other(Status::Error) => "no answer, or none that a primary gives".to_string(),
            error => error.to_string(),
        };
        let cause = format!("no session with the primary at {listed}: {error_text}");
        let remedy = match error {
            Error::Recovering => {
                let remedy = "wait longer (--wait), or see whom it waits for: dlock recover";
                return Failure::new(NOT_GOT, cause, remedy);
            }
            Error::NotReady => {
                "start one there (dlockd --port PORT), or say where it is: --address HOST:PORT"
            }
            Error::NoResource => {
                "the primary has its full number of clients (dlock clients), or cannot write its \
                 list of them: its log says which"
            }
            Error::VersionMismatch => "install the same release on client and primary",
            Error::Denied => DENIED,
            _ if speaks_tls() => {
                "dlock -v and the primary's log tell more: with TLS, one side may refuse the \
                 certificate of the other (revoked, out of date, of another CA)"
            }
            _ => {
                "dlock -v tells more: the name of a host that is not known, a call that this \
                 system refuses, or a peer that is no primary; so may the primary's log"
            }
        };
        Failure::new(UNAVAILABLE, cause, remedy)
    })
}

impl Where {
    /// The addresses of primaries, at least one.
    ///
    /// # Errors
    /// `DLOCK_PRIMARIES` is not a list of addresses.
    pub fn addresses(&self) -> Result<Vec<Address>, Failure> {
        let variable =
            |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        let listed = variable(PRIMARIES_VARIABLE);
        let parsed = Address::parse_list(&listed, PORT_DEFAULT);
        if !self.address.is_empty() {
            let first = variable(ADDRESS_VARIABLE);
            let first = Address::parse_list(&first, PORT_DEFAULT);
            let is_hidden = !listed.is_empty() && !parsed.is_ok_and(|all| all == self.address);
            if is_hidden && first.is_ok_and(|first| first == self.address) {
                say(format_args!(
                    "{PRIMARIES_VARIABLE} is not used, since {ADDRESS_VARIABLE} is set: no \
                     successor is looked for there; unset one of them"
                ));
            }
            return Ok(self.address.clone());
        }
        let parsed = parsed.map_err(|(item, why)| {
            let cause = format!("{PRIMARIES_VARIABLE}: '{}': {why}", item.escape_debug());
            Failure::new(USAGE, cause, "give addresses with commas between them")
        });
        let mut addresses = parsed?;
        if addresses.is_empty() {
            addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_DEFAULT)).into());
        }
        Ok(addresses)
    }
}

/// Whether TLS is configured, by options or the environment.
pub fn speaks_tls() -> bool {
    std::env::var_os(TLS_CA_VARIABLE).is_some_and(|path| !path.is_empty())
}

/// Whether this host has an RDMA port that `auto` takes.
pub fn has_device() -> bool {
    dlock_fabric::VerbsHost::choose(None, &[0; 16]).is_ok()
}

/// The fabrics that a primary without TLS and a client on this host can use, in the order of
/// `auto`.
pub fn usable() -> Vec<FabricKind> {
    let has_device = has_device();
    let usable = |kind: &FabricKind| match kind {
        FabricKind::Sealed => false,
        kind => has_device || !kind.needs_device(),
    };
    FabricKind::ALL.into_iter().filter(usable).collect()
}

/// A session with the primary at an address, with the calls of the C API.
pub fn open(address: SocketAddr, fabric: Fabric) -> Result<Instance, Status> {
    Instance::init(&config(address.port(), fabric, &[]), &address.ip().to_string())
}

/// As [`open`], for a client that knows other primaries, and finds the successor of its own by
/// itself.
pub fn open_with(
    address: &Address,
    others: &[Address],
    fabric: Fabric,
) -> Result<Arc<Instance>, Status> {
    Instance::init_shared(&config(address.port(), fabric, others), &address.host())
}

/// A session in TLS with this certificate, or without TLS; the environment does not matter.
pub fn open_by(address: SocketAddr, fabric: Fabric, tls: Option<&Tls>) -> Result<Instance, Status> {
    let tls = tls.map_or(TlsUse::Off, |tls| TlsUse::With(tls.clone()));
    let config = ClientConfig { tls, ..config(address.port(), fabric, &[]) };
    Instance::init(&config, &address.ip().to_string())
}

fn config(port: u16, fabric: Fabric, others: &[Address]) -> ClientConfig {
    // a client without other addresses finds no successor by itself; the environment does not
    // matter
    let primaries = Some(others.to_vec());
    ClientConfig { port, fabric, primaries, ..ClientConfig::default() }
}
