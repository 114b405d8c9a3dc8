// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address of a primary: an IP address or the name of a host, and a port.
//!
//! ```text
//!   "db1:5" ─ parse ─▶ Address ─ resolve, at each connect ─▶ thread "dlock-resolve" ─ getaddrinfo
//!                                  │ waits until its deadline          │ may take minutes
//!                                  ◀───────── SocketAddr… ─────────────┘
//! ```
//! `getaddrinfo` has no time limit and cannot be cancelled. So a thread calls it, one thread for
//! each name at a time, and a caller waits for that thread until its own deadline.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::limits::PORT_DEFAULT;
use dlock_core::session::ADDRESSES_MAX;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::left_until;
use dlock_fabric::os::fork;
use dlock_fabric::os::net::not_connected;
use dlock_fabric::os::threads::spawn_without_signals;
use parking_lot::{Condvar, Mutex};

use crate::clock::wait_until;

/// The longest name of a host, and of a part of it (RFC 1035).
const NAME_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;
/// The most addresses of one name that the client tries.
const RESOLVED_MAX: usize = 8;
/// The least time for one connect: `connect_timeout` refuses 0.
const CONNECT_MIN: Duration = Duration::from_millis(1);
/// The most names that are looked up at one time.
const LOOKUPS_MAX: usize = 32;

/// The address of a primary. The client looks a name up again at each connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

/// The error for a text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write IP, IP:PORT, [IPv6]:PORT, HOST or HOST:PORT; a port is a number from 1 to 65535")]
pub struct NoAddress;

impl Address {
    /// Parses a host without a port, in digits or by name; white space after it is ignored.
    ///
    /// # Errors
    /// [`NoAddress`]. A name has letters, digits, `-`, `_` and dots, and its last part is no
    /// number.
    pub fn of_host(host: &str, port: u16) -> Result<Self, NoAddress> {
        let host = host.trim_end_matches([' ', '\t', '\n', '\r']);
        let host = match host.parse() {
            Ok(ip) => Host::Ip(ip),
            Err(_) if is_name(host) => Host::Name(host.into()),
            Err(_) => return Err(NoAddress),
        };
        Ok(Self { host, port })
    }

    /// Parses an address with or without a port; `port` is used if there is none.
    ///
    /// # Errors
    /// [`NoAddress`].
    pub fn parse(text: &str, port: u16) -> Result<Self, NoAddress> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 { Err(NoAddress) } else { Ok(address.into()) };
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return inner.parse().map(|ip| Self { host: Host::Ip(ip), port }).or(Err(NoAddress));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => {
                let port = port.parse().ok().filter(|port| *port != 0).ok_or(NoAddress)?;
                Self::of_host(host, port)
            }
            _ => Self::of_host(text, port),
        }
    }

    /// Parses a list of addresses with commas between them; `port` is used for those without a
    /// port.
    ///
    /// # Errors
    /// The first item that is no address.
    pub fn parse_list(text: &str, port: u16) -> Result<Vec<Self>, (&str, NoAddress)> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(|item| Self::parse(item, port).map_err(|error| (item, error))).collect()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host, as it was written.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        }
    }

    /// The addresses to connect to, in this order: at least one.
    ///
    /// # Errors
    /// The error of the resolver; `TimedOut` if it has not answered by `until_ns`.
    ///
    /// # Latency
    /// None for an IP address; for a name that of the resolver, until `until_ns` at most.
    pub(crate) fn resolve(&self, until_ns: u64) -> io::Result<Vec<SocketAddr>> {
        match &self.host {
            Host::Ip(ip) => Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name(name) => {
                let found = look_up(name, until_ns, system)?;
                Ok(found.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect())
            }
        }
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    /// Parses an address; without a port, the port is the default, 21616.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        Self::parse(text, PORT_DEFAULT)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip()), port: address.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Parses the host that a program gives: an IP address in digits, or a name, which the client looks
/// up at each connect.
///
/// # Errors
/// `Error` for any other text.
pub(crate) fn address(host: &str, port: u16) -> Result<Address, Status> {
    Address::of_host(host, port).map_err(|_| {
        log::error!(
            "'{}' is no IPv4 or IPv6 address in digits and no name of a host",
            host.escape_debug()
        );
        Status::Error
    })
}

/// The addresses that a client uses: `first`, then the others, each once, [`ADDRESSES_MAX`] at
/// most.
pub(crate) fn addresses(first: &Address, others: &[Address]) -> Vec<Address> {
    let mut all = vec![first.clone()];
    for other in others {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    if all.len() > ADDRESSES_MAX {
        let unused = all.split_off(ADDRESSES_MAX);
        log::warn!(
            "a client knows {ADDRESSES_MAX} primaries at most; not used: {}",
            listed(&unused)
        );
    }
    all
}

fn listed(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(", ")
}

/// How an operator has removed a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The id that the client had.
    pub client: ClientId,
    /// The name of the operator, as the primary knows it.
    pub by: String,
    /// Whether what the client held was given back at once, leases included.
    pub now: bool,
}

/// Why there is no connection, or no session.
#[derive(Debug)]
pub(crate) struct Unreached {
    /// For a connection: `NotReady` if no process listens at the address, `Error` for any other
    /// cause.
    pub(crate) status: Status,
    /// The cause, without the address.
    pub(crate) why: String,
    /// An operator has removed the client.
    pub(crate) removal: Option<Removal>,
}

impl From<Unreached> for Status {
    fn from(unreached: Unreached) -> Self {
        unreached.status
    }
}

impl From<Status> for Unreached {
    fn from(status: Status) -> Self {
        Self { status, why: status.to_string(), removal: None }
    }
}

/// Looks the name up, and connects to the first of its addresses that accepts the connection.
///
/// # Errors
/// Each cause is logged at `level`; the last one is returned.
pub(crate) fn connected(
    address: &Address,
    until_ns: u64,
    level: log::Level,
) -> Result<(TcpStream, SocketAddr), Unreached> {
    let why = "it has no address".to_owned();
    let mut unreached = Unreached { why, ..Status::Error.into() };
    let peers = match address.resolve(until_ns) {
        Ok(peers) => peers,
        Err(error) => {
            // a wrong name is an error where the program gave it; that attempt has the level of
            // warnings
            let level = if level == log::Level::Warn { log::Level::Error } else { level };
            log::log!(level, "no connection to the primary at {address}: {error}");
            return Err(Unreached { why: error.to_string(), ..unreached });
        }
    };
    let peers = &peers[..peers.len().min(RESOLVED_MAX)];
    for (tried, &peer) in peers.iter().enumerate() {
        let left = left_until(until_ns);
        let share = left / u32::try_from(peers.len() - tried).unwrap_or(1);
        // `connect_timeout` refuses a time of 0
        match TcpStream::connect_timeout(&peer, share.max(CONNECT_MIN)) {
            Ok(stream) => return Ok((stream, peer)),
            Err(error) => {
                let error = not_connected(error);
                log::log!(level, "no connection to the primary at {peer}: {error}");
                if error.kind() == ErrorKind::ConnectionRefused {
                    unreached.status = Status::NotReady;
                }
                unreached.why = error.to_string();
            }
        }
    }
    Err(unreached)
}

/// Whether the text may be the name of a host. `127.1` and similar texts are no names, because
/// `inet_aton` takes them for addresses.
fn is_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=LABEL_LEN_MAX).contains(&label.len())
            && label.chars().all(is_part)
            && !label.starts_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = |label: &str| {
        let hex = label.strip_prefix("0x").or(label.strip_prefix("0X"));
        label.chars().all(|c| c.is_ascii_digit())
            || hex.is_some_and(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()))
    };
    text.len() <= NAME_LEN_MAX && text.split('.').all(is_label) && !is_number(last)
}

/// The process that looks a name up, and the name. A forked child does not have its parent's
/// threads, so it asks again.
type Question = (u64, String);

struct Lookup {
    question: Question,
    found: Mutex<Option<Result<Vec<IpAddr>, String>>>,
    answered: Condvar,
}

/// Look-ups under way.
type Lookups = Mutex<Vec<Arc<Lookup>>>;

static LOOKUPS: Lookups = Mutex::new(Vec::new());

fn system(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> = Vec::new();
    for address in (name, 0).to_socket_addrs()? {
        if !found.contains(&address.ip()) {
            found.push(address.ip());
        }
    }
    Ok(found)
}

fn look_up(
    name: &str,
    until_ns: u64,
    resolver: fn(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<Vec<IpAddr>> {
    look_up_among(&LOOKUPS, name, until_ns, resolver)
}

fn look_up_among(
    all: &'static Lookups,
    name: &str,
    until_ns: u64,
    resolver: fn(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<Vec<IpAddr>> {
    let late = || {
        let text = format!("the name service has not answered for host '{name}' in time");
        io::Error::new(ErrorKind::TimedOut, text)
    };
    let lookup = {
        let mut lookups = all.try_lock_for(left_until(until_ns)).ok_or_else(late)?;
        let question: Question = (fork::process(), name.into());
        match lookups.iter().find(|lookup| lookup.question == question) {
            Some(under_way) => Arc::clone(under_way),
            None => {
                lookups.retain(|lookup| lookup.question.0 == question.0);
                if lookups.len() >= LOOKUPS_MAX {
                    return Err(too_many(name));
                }
                let lookup = Lookup { question, found: Mutex::default(), answered: Condvar::new() };
                let lookup = Arc::new(lookup);
                let asks = Arc::clone(&lookup);
                spawn_without_signals("dlock-resolve", move || answer(all, &asks, resolver))?;
                lookups.push(Arc::clone(&lookup));
                lookup
            }
        }
    };
    let mut found = lookup.found.lock();
    while found.is_none() {
        if wait_until(&lookup.answered, &mut found, until_ns) && found.is_none() {
            return Err(late());
        }
    }
    match found.as_ref() {
        Some(Ok(addresses)) if !addresses.is_empty() => Ok(addresses.clone()),
        Some(Err(why)) => Err(io::Error::other(format!("host '{name}': {why}"))),
        _ => Err(io::Error::other(format!("host '{name}' has no address"))),
    }
}

fn too_many(name: &str) -> io::Error {
    io::Error::new(
        ErrorKind::WouldBlock,
        format!(
            "host '{name}' is not looked up: {LOOKUPS_MAX} other names are being looked up already \
             (LOOKUPS_MAX): the name service does not answer, or is slow: mend it, or give IP \
             addresses"
        ),
    )
}

fn answer(all: &Lookups, lookup: &Arc<Lookup>, resolver: fn(&str) -> io::Result<Vec<IpAddr>>) {
    let found = resolver(&lookup.question.1).map_err(|error| error.to_string());
    all.lock().retain(|other| !Arc::ptr_eq(other, lookup)); // a later look-up asks again
    *lookup.found.lock() = Some(found);
    lookup.answered.notify_all();
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use dlock_fabric::os::clock::deadline_in;

    use super::*;

    fn soon() -> u64 {
        deadline_in(Duration::from_secs(60))
    }

    #[test]
    fn addresses_are_read_in_every_form() {
        let shown = |text: &str| text.parse::<Address>().map(|a| a.to_string());
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:21616"),
            ("10.0.0.1 ", "10.0.0.1:21616"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("::1", "[::1]:21616"),
            ("[::1]", "[::1]:21616"),
            ("[::1]:5", "[::1]:5"),
            ("node-1:5", "node-1:5"),
            ("db_1.example.", "db_1.example.:21616"),
        ] {
            assert_eq!(shown(text), Ok(expected.into()), "{text}");
        }
        for wrong in [
            "",
            ":5",
            "node:0",
            "node:99999",
            "node:x",
            "a b",
            " a",
            "[::1",
            "10.0.0.1:0",
            "a..b",
            "-a",
            "256.0.0.1",
            "127.1",
            "1",
            "0x7f000001",
            "a/b",
            "x\n.y",
            "1.2.3.4.5",
            "ä.example",
        ] {
            assert_eq!(shown(wrong), Err(NoAddress), "{wrong:?}");
        }
        assert!(Address::of_host(&"a".repeat(64), 1).is_err());
        assert!(Address::of_host(&"a.".repeat(128), 1).is_err());
    }

    #[test]
    fn what_a_program_gives_is_an_address_or_an_error() {
        assert_eq!(address("local/host", 1), Err(Status::Error));
        assert_eq!(address("", 1), Err(Status::Error));
        assert_eq!(address(" 127.0.0.1", 1), Err(Status::Error));
        assert_eq!(address("127.0.0.1 ", 1), address("127.0.0.1", 1));
        assert_eq!(address("::1", 1).unwrap().to_string(), "[::1]:1");
        assert_eq!(address("10.1.2.3", 1).unwrap().to_string(), "10.1.2.3:1");
    }

    #[test]
    fn this_hosts_name_is_found_and_one_that_does_not_exist_is_not() {
        let found = Address::of_host("localhost", 7).unwrap().resolve(soon()).unwrap();
        assert!(found.iter().all(|a| a.ip().is_loopback() && a.port() == 7), "{found:?}");
        let error = Address::of_host("no-such-host.invalid", 7).unwrap().resolve(soon());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }

    static FREES: AtomicU32 = AtomicU32::new(0);
    static OWN: Lookups = Mutex::new(Vec::new());

    fn never(_: &str) -> io::Result<Vec<IpAddr>> {
        while FREES.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(vec![Ipv4Addr::LOCALHOST.into()])
    }

    #[test]
    fn too_many_names_at_a_time_are_told_from_one_that_is_late() {
        let soon = || deadline_in(Duration::from_millis(1));
        let look_up = |name: String| look_up_among(&OWN, &name, soon(), never);
        let tries = (0..=LOOKUPS_MAX).map(|n| look_up(format!("many{n}")));
        let told: Vec<String> = tries.map(|found| found.unwrap_err().to_string()).collect();
        FREES.store(1, Ordering::SeqCst);
        assert!(told[0].contains("has not answered for host 'many0' in time"), "{}", told[0]);
        let last = &told[LOOKUPS_MAX];
        let parts = ["many32", "LOOKUPS_MAX", "give IP addresses"];
        assert!(
            parts.iter().all(|part| last.contains(part)) && !last.contains("in time"),
            "{last}"
        );
    }

    /// How often the slow resolver was asked, and when it answers.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    static IS_DUMB: AtomicU32 = AtomicU32::new(1);

    fn slow(_: &str) -> io::Result<Vec<IpAddr>> {
        ASKED.fetch_add(1, Ordering::SeqCst);
        while IS_DUMB.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(vec![Ipv4Addr::LOCALHOST.into()])
    }

    #[test]
    fn a_resolver_that_does_not_answer_is_asked_once_and_not_waited_for() {
        for _ in 0..3 {
            let until_ns = deadline_in(Duration::from_millis(30));
            let error = look_up("slow", until_ns, slow).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        let waits: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| look_up("slow", soon(), slow))).collect();
        IS_DUMB.store(0, Ordering::SeqCst);
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap(), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        }
        assert!((1..=5).contains(&ASKED.load(Ordering::SeqCst)), "one for all of them, or anew");
        look_up("slow", soon(), slow).unwrap();
        assert!(ASKED.load(Ordering::SeqCst) >= 2, "it is looked up anew");
    }
}
