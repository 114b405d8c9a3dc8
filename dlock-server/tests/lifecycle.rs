// SPDX-License-Identifier: MIT OR Apache-2.0
//! Start, stop, and limits of a primary.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{eventually, server, Peer};
use dlock_core::limits::{CLIENTS_MAX, SERVERS_MAX};
use dlock_core::wire::control::{ControlReply, ControlRequest};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;
use dlock_fabric::os::threads;
use dlock_server::{Server, ServerConfig, StartError, VerbsUse};

fn fails(config: ServerConfig) -> StartError {
    let error = Server::start(config).expect_err("it must not start");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() > 20, "{line}");
    error
}

fn any_port() -> ServerConfig {
    ServerConfig { port: 0, ..ServerConfig::default() }
}

#[test]
fn a_thousand_clients_are_let_in_and_one_more_takes_the_place_of_an_absent_one() {
    threads::raise_file_limit().expect("the file limit can be raised");
    let server = server(ServerConfig::default());
    let addr = server.local_addr();
    let mut clients: Vec<_> = (0..CLIENTS_MAX).map(|_| Peer::init(addr)).collect();
    assert_eq!(Peer::try_init(addr).err(), Some(Status::ServerNoResource));
    let (gone, session) = clients.swap_remove(500);
    drop(gone);
    let mut last = None;
    eventually("there is room", || match Peer::try_init(addr) {
        Ok(client) => {
            last = Some(client);
            true
        }
        Err(status) => {
            assert_eq!(status, Status::ServerNoResource);
            false
        }
    });
    // Another client has its place; no other one lost its place.
    let back = Peer::connect(addr).call(common::reinit(&session));
    assert_eq!(back, ControlReply::Error(Status::ClientRemoved));
    assert_eq!(Peer::try_init(addr).err(), Some(Status::ServerNoResource));
    assert!(clients.iter_mut().chain(&mut last).all(|(peer, _)| peer.is_alive()));
}

#[test]
fn no_more_locks_than_configured_are_given_out() {
    let server = server(ServerConfig { locks_max: 40, ..ServerConfig::default() });
    let (mut peer, _) = Peer::init(server.local_addr());
    for n in 0..40 {
        peer.get(&format!("lock {n}"), LockType::Rw);
    }
    let one_more = common::desc("one more", LockType::Rw);
    let reply = peer.call(ControlRequest::GetLocks(vec![one_more]));
    assert_eq!(reply, ControlReply::Locks(vec![Err(Status::ServerNoResource)]));
}

#[test]
fn thirty_two_primaries_run_at_once_and_each_starts_and_stops_within_a_second() {
    threads::raise_file_limit().expect("the file limit can be raised");
    let config = || ServerConfig { bind: common::own_address(), ..any_port() };
    let (mut starts, mut stops) = (Vec::new(), Vec::new());
    let servers: Vec<Server> = (0..SERVERS_MAX)
        .map(|_| {
            let asked = Instant::now();
            let server = server(config());
            starts.push(asked.elapsed());
            server
        })
        .collect();
    let mut peers: Vec<Peer> = servers.iter().map(|s| Peer::init(s.local_addr()).0).collect();
    let silent: Vec<Peer> = servers.iter().map(|s| Peer::connect(s.local_addr())).collect();
    for (server, peer) in servers.into_iter().zip(&mut peers) {
        assert!(peer.is_alive());
        let addr = server.local_addr();
        let asked = Instant::now();
        server.stop();
        stops.push(asked.elapsed());
        assert_eq!(peer.receive(), None);
        assert!(TcpStream::connect(addr).is_err(), "the port is closed");
    }
    drop(silent);
    // Other programs use this machine, too: most starts and stops are quick, and none takes long.
    for mut took in [starts, stops] {
        took.sort_unstable();
        assert!(took[SERVERS_MAX / 2] < Duration::from_secs(1), "{took:?}");
        assert!(took[SERVERS_MAX - 1] < common::PATIENCE, "{took:?}");
    }
}

#[test]
fn a_primary_that_is_dropped_is_stopped_and_its_port_is_free() {
    let bind = common::own_address();
    let server = server(ServerConfig { bind, ..any_port() });
    let addr = server.local_addr();
    let (mut peer, _) = Peer::init(addr);
    drop(server);
    assert_eq!(peer.receive(), None);
    let again = Server::start(ServerConfig { bind, port: addr.port(), ..any_port() });
    assert_eq!(again.expect("the port is free").local_addr(), addr);
}

#[test]
fn a_primary_listens_on_ipv6_too() {
    match Server::start(ServerConfig { bind: IpAddr::V6(Ipv6Addr::LOCALHOST), ..any_port() }) {
        Ok(server) => assert!(Peer::init(server.local_addr()).0.is_alive()),
        Err(error) => eprintln!("skipped: no IPv6 on this host: {error}"),
    }
}

#[test]
fn a_primary_listens_on_no_other_address() {
    let server = server(any_port());
    let other = (common::own_address(), server.local_addr().port());
    assert!(TcpStream::connect(other).is_err());
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_told_apart() {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let error = fails(ServerConfig { port, ..any_port() });
    assert!(matches!(error, StartError::PortInUse(addr) if addr.port() == port));
    assert_eq!(error.status(), Status::Error);
    // An address of TEST-NET-1, which no host has.
    let bind = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    assert!(matches!(fails(ServerConfig { bind, ..any_port() }), StartError::NotMyAddress(_)));
}

#[test]
fn a_bad_cpuset_is_refused_and_a_good_one_is_used() {
    for text in ["", "-1", "0-0-0", "1000000", "x", "0,"] {
        let ctrl = ServerConfig { ctrl_cpuset: Some(text.into()), ..any_port() };
        let cmd = ServerConfig { cmd_cpuset: Some(text.into()), ..any_port() };
        assert!(fails(ctrl).to_string().contains("control"));
        assert!(fails(cmd).to_string().contains("command"));
    }
    // The CPUs that this thread may use, as the kernel lists them.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    let first = allowed.split([',', '-']).next().unwrap().to_string();
    let server = server(ServerConfig {
        ctrl_cpuset: Some(allowed.to_string()),
        cmd_cpuset: Some(first.clone()),
        ..any_port()
    });
    assert!(Peer::init(server.local_addr()).0.is_alive());
    assert!(cpus_of_threads("dlock-command").contains(&first));
}

/// The CPUs that this process's threads of this name may use.
fn cpus_of_threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let named = format!("Name:\t{name}");
    tasks
        .flatten()
        .filter_map(status)
        .filter(|status| status.lines().any(|line| line == named))
        .filter_map(|s| {
            s.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:\t")).map(String::from)
        })
        .collect()
}

#[test]
fn a_device_or_eid_that_does_not_exist_is_refused_unless_verbs_are_off() {
    let device = Some("no_such_device".to_string());
    let named = ServerConfig { device, ..any_port() };
    assert!(matches!(fails(named.clone()), StartError::NoDevice(_)));
    assert!(matches!(fails(ServerConfig { eid: [7; 16], ..named.clone() }), StartError::Verbs(_)));
    drop(server(ServerConfig { eid: [7; 16], verbs: VerbsUse::Off, ..named }));
    let by_eid = ServerConfig { eid: [7; 16], ..any_port() };
    match dlock_fabric::VerbsHost::choose(None, &[0; 16]) {
        Ok(_) => assert!(matches!(fails(by_eid), StartError::Verbs(_))),
        // without a usable port, the primary still offers shared memory and TCP
        Err(_) => drop(server(by_eid)),
    }
}

#[test]
fn counters_are_cleared() {
    let server = server(any_port());
    let mut peer = Peer::connect(server.local_addr());
    peer.write(b"rubbish!");
    peer.is_refused(0, Status::Error);
    assert_eq!(server.stats()[42], 1);
    server.clear_stats();
    assert_eq!(server.stats(), [0; 45]);
}

#[test]
fn epochs_of_one_state_file_grow() {
    let folder = std::env::temp_dir().join(format!("dlock-epoch-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("state");
    let start = || server(ServerConfig { state_file: Some(path.clone()), ..any_port() }).epoch();
    let (first, second) = (start(), start());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(first < second);
}

#[test]
fn a_flood_of_silent_connections_keeps_no_client_out() {
    const CONNECTIONS_MAX: usize = 4_000;
    let limit = threads::raise_file_limit().expect("the file limit can be raised");
    if limit < 3 * CONNECTIONS_MAX as u64 {
        return eprintln!("skipped: {limit} open files are too few (ulimit -n)");
    }
    let server = server(any_port());
    let addr = server.local_addr();
    let mut client = Peer::init(addr).0;
    let mut silent: Vec<Peer> = (0..CONNECTIONS_MAX).map(|_| Peer::connect(addr)).collect();
    let mut late = Peer::init(addr).0;
    assert!(client.is_alive() && late.is_alive());
    // The oldest connections were closed, and the newest are still open.
    assert_eq!(silent[0].receive(), None);
    let newest = silent.last_mut().unwrap();
    assert!(matches!(newest.call(common::INIT), ControlReply::Session(_)));
}

#[test]
fn every_address_of_the_host_is_one_of_ipv4_too() {
    let config = ServerConfig { bind: Ipv6Addr::UNSPECIFIED.into(), ..any_port() };
    let server = match Server::start(config) {
        Ok(server) => server,
        Err(error) => return eprintln!("skipped: no IPv6 on this host: {error}"),
    };
    let port = server.local_addr().port();
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let (mut peer, _) = Peer::init((ip, port).into());
        assert!(peer.is_alive(), "{ip}");
    }
}
