// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address on the command line to a session with a primary.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dlock_client::{Client, ClientConfig, Config, Error, Instance, TlsUse, PRIMARIES_VARIABLE};
use dlock_core::fabric::FabricKind;
use dlock_core::limits::PORT_DEFAULT;
use dlock_core::status::Status;
use dlock_fabric::tls::Tls;

use crate::args::{Fabric, Where};
use crate::failure::{Failure, DENIED, NOT_GOT, UNAVAILABLE, USAGE};

/// Where a primary is, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { host: address.ip().to_string(), port: address.port() });
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port: PORT_DEFAULT });
        }
        let (host, port) = match text.split_once(':') {
            None => (text, PORT_DEFAULT),
            Some((host, port)) => {
                let port = port.parse().ok().filter(|p| *p != 0);
                (host, port.ok_or("the port must be a number from 1 to 65535")?)
            }
        };
        if host.is_empty() || host.contains([':', '/', ' ']) {
            return Err("write IP, IP:PORT, [IPv6]:PORT or HOST:PORT".into());
        }
        Ok(Self { host: host.into(), port })
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port() }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// The address with a host name looked up.
    pub fn resolve(&self) -> Result<SocketAddr, Failure> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let cause = match found.map(|mut list| list.next()) {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => "has no address".to_string(),
            Err(error) => error.to_string(),
        };
        let cause = format!("host '{}': {cause}", self.host);
        Err(Failure::new(UNAVAILABLE, cause, "give the IP address: --address IP:PORT"))
    }
}

/// A client that finds the successor of its primary by itself, with this horizon of its session.
/// `wait`: how long it may take in all, a recovery included; `None`: no recovery is waited for.
pub fn client(place: &Where, horizon: Duration, wait: Option<Duration>) -> Result<Client, Failure> {
    let places = place.addresses()?;
    let addresses = places.iter().map(Address::resolve).collect::<Result<Vec<_>, _>>()?;
    let first = addresses[0];
    let config = Config::new().port(first.port()).fabric(place.fabric).horizon(horizon);
    let config = config.primaries(addresses);
    let config = wait.map_or(config.clone(), |wait| config.wait(wait));
    Client::with_config(&config, &first.ip().to_string()).map_err(|error| {
        let listed: Vec<String> = places.iter().map(Address::to_string).collect();
        let cause = format!("no session with the primary at {}: {error}", listed.join(" or "));
        let remedy = match error {
            Error::Recovering => {
                let remedy = "wait longer (--wait), or see whom it waits for: dlock recover";
                return Failure::new(NOT_GOT, cause, remedy);
            }
            Error::NotReady => "start one (dlockd), or say where it is: --address HOST:PORT",
            Error::NoResource => {
                "the primary has its full number of clients (dlock clients), or cannot write its \
                 list of them: its log says which"
            }
            Error::VersionMismatch => "install the same release on client and primary",
            Error::Denied => DENIED,
            _ => {
                "dlock -v and the primary's log tell more: with TLS, one side may refuse the \
                 certificate of the other (revoked, out of date, of another CA)"
            }
        };
        Failure::new(UNAVAILABLE, cause, remedy)
    })
}

impl Where {
    /// Where primaries are: at least one address.
    ///
    /// # Errors
    /// `DLOCK_PRIMARIES` is no list of addresses.
    pub fn addresses(&self) -> Result<Vec<Address>, Failure> {
        if !self.address.is_empty() {
            return Ok(self.address.clone());
        }
        let listed = std::env::var_os(PRIMARIES_VARIABLE).unwrap_or_default();
        let listed = listed.to_string_lossy();
        let items = listed.split(',').map(str::trim).filter(|item| !item.is_empty());
        let parsed = items.map(|item| {
            item.parse().map_err(|why: String| {
                let cause = format!("{PRIMARIES_VARIABLE}: '{}': {why}", item.escape_debug());
                Failure::new(USAGE, cause, "give addresses with commas between them")
            })
        });
        let mut addresses = parsed.collect::<Result<Vec<Address>, _>>()?;
        if addresses.is_empty() {
            addresses.push(Address { host: "127.0.0.1".into(), port: PORT_DEFAULT });
        }
        Ok(addresses)
    }
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
    Instance::init(&config(address, fabric, &[]), &address.ip().to_string())
}

/// The same, of a client that knows where others are, and finds the successor of its primary by
/// itself.
pub fn open_with(
    address: SocketAddr,
    others: &[SocketAddr],
    fabric: Fabric,
) -> Result<Arc<Instance>, Status> {
    Instance::init_shared(&config(address, fabric, others), &address.ip().to_string())
}

/// A session in TLS with this certificate, or without TLS, whatever the environment names.
pub fn open_by(address: SocketAddr, fabric: Fabric, tls: Option<&Tls>) -> Result<Instance, Status> {
    let tls = tls.map_or(TlsUse::Off, |tls| TlsUse::With(tls.clone()));
    let config = ClientConfig { tls, ..config(address, fabric, &[]) };
    Instance::init(&config, &address.ip().to_string())
}

fn config(address: SocketAddr, fabric: Fabric, others: &[SocketAddr]) -> ClientConfig {
    // of whoever is told of no others, this is done by hand, whatever the environment says
    let (port, primaries) = (address.port(), Some(others.to_vec()));
    ClientConfig { port, fabric, primaries, ..ClientConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        let shown = |text: &str| text.parse::<Address>().map(|a| a.to_string());
        assert_eq!(shown("10.0.0.1"), Ok("10.0.0.1:21616".into()));
        assert_eq!(shown("10.0.0.1:5"), Ok("10.0.0.1:5".into()));
        assert_eq!(shown("::1"), Ok("[::1]:21616".into()));
        assert_eq!(shown("[::1]:5"), Ok("[::1]:5".into()));
        assert_eq!(shown("node-1:5"), Ok("node-1:5".into()));
        for wrong in ["", ":5", "node:0", "node:99999", "node:x", "a b"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }
}
