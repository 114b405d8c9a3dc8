// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients on the primary's own host, with its memory mapped.

mod common;

use dlock_core::clock::Lease;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{eventually, reinit, server, Peer};
use dlock_core::ids::Seq;
use dlock_core::memory::exec::Executor;
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::memory::words::AtomicWord;
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, LockGrant, Session,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::{ClockEstimate, FabricError, ShmExecutor};
use dlock_server::{Orphans, Server, ServerConfig};

const LEASE_S: u32 = 1_000;

fn attach(session: &Session) -> Attach {
    Attach {
        client: session.client,
        secret: session.secret,
        fabric: FabricKind::Shm,
        verbs: None,
        returns: true,
    }
}

fn socket(session: &Session) -> &[u8] {
    session.offers.place(FabricKind::Shm).expect("shm is offered")
}

/// A clock for tests that do not depend on the time.
fn clock(session: &Session) -> ClockEstimate {
    ClockEstimate::from_exchange(0, 0, session.now)
}

fn map(session: &Session) -> ShmExecutor {
    let attached = ShmExecutor::attach(socket(session), &attach(session), clock(session));
    attached.expect("the memory is handed over")
}

fn execute(exec: &ShmExecutor, word_op: WordOp) -> Outcome {
    let mut outcomes = [Outcome::Unknown];
    exec.execute(&[Chain::one(word_op)], &mut outcomes, deadline_in(common::PATIENCE));
    outcomes[0]
}

/// A client with the memory mapped, and the lock `l`.
struct Client {
    control: Peer,
    session: Session,
    lock: LockGrant,
    exec: ShmExecutor,
}

impl Client {
    fn new(server: &Server) -> Self {
        Self::at(server.local_addr())
    }

    fn at(addr: std::net::SocketAddr) -> Self {
        let (mut control, session) = Peer::init(addr);
        let lock = control.get("l", LockType::Atomic);
        let exec = map(&session);
        Self { control, session, lock, exec }
    }

    fn word(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::W0)
    }

    fn held(&self) -> u64 {
        let deadline = self.session.now.deadline(Lease::secs(LEASE_S));
        let holder = self.session.client.get();
        AtomicWord::new().with_client(holder).with_timeout(deadline).into_bits()
    }

    fn acquire(&self) -> Outcome {
        execute(&self.exec, WordOp::Cas { addr: self.word(), expect: 0, swap: self.held() })
    }

    fn holds(&self) -> bool {
        match execute(&self.exec, WordOp::Read { addr: self.word() }) {
            Outcome::Done(values) => values[0] & !(1 << 63) == self.held(),
            other => panic!("not read: {other:?}"),
        }
    }

    fn wait(&self) -> Seq {
        let handle = self.lock.handle;
        let (mode, wait) = (Mode::Exclusive, WaitNumber(1));
        let wait = Request::Wait { handle, mode, lease: Lease::secs(LEASE_S), wait, ticket: None };
        let seq = self.exec.send(&wait).unwrap();
        // The answer to a later request shows that the primary knows of the wait.
        let ping = self.exec.send(&Request::Ping).unwrap();
        assert!(matches!(
            self.exec.reply(ping, deadline_in(common::PATIENCE)),
            Ok(Some(Reply::Pong { .. }))
        ));
        seq
    }

    fn is_granted(&self, wait: Seq) {
        match self.exec.reply(wait, deadline_in(common::PATIENCE)) {
            Ok(Some(Reply::Granted { .. })) => {}
            other => panic!("not granted: {other:?}"),
        }
    }
}

fn quick() -> ServerConfig {
    ServerConfig { absent_grace: Some(Duration::from_millis(30)), ..ServerConfig::default() }
}

#[test]
fn two_clients_exclude_each_other_and_hand_over() {
    let server = server(ServerConfig::default());
    let (a, b) = (Client::new(&server), Client::new(&server));
    assert!(matches!(a.acquire(), Outcome::Done(values) if values[0] == 0));
    assert!(matches!(b.acquire(), Outcome::Done(values) if values[0] == a.held()));
    let wait = b.wait();
    let release = Request::Release { handle: a.lock.handle, mode: Mode::Exclusive, ticket: None };
    let seq = a.exec.send(&release).unwrap();
    assert!(matches!(
        a.exec.reply(seq, deadline_in(common::PATIENCE)),
        Ok(Some(Reply::Done { .. }))
    ));
    b.is_granted(wait);
    assert!(!a.holds());
}

#[test]
fn a_client_that_leaves_with_the_memory_mapped_is_undone_when_it_unmaps_it() {
    let server = server(ServerConfig::default());
    let (mut holder, waiter) = (Client::new(&server), Client::new(&server));
    holder.acquire();
    let wait = waiter.wait();
    assert_eq!(holder.control.call(ControlRequest::Deinit), ControlReply::Done);
    let back = Peer::connect(server.local_addr()).call(reinit(&holder.session));
    assert_eq!(back, ControlReply::Error(Status::ClientRemoved));
    // The holder could still write, so no other client gets its lock.
    assert_eq!(waiter.exec.reply(wait, 0), Ok(None));
    drop(holder.exec);
    waiter.is_granted(wait);
}

#[test]
fn an_absent_client_with_the_memory_mapped_is_undone_when_it_unmaps_it() {
    let server = server(ServerConfig { orphans: Orphans::Grace, ..quick() });
    let (holder, waiter) = (Client::new(&server), Client::new(&server));
    holder.acquire();
    let wait = waiter.wait();
    drop(holder.control);
    // After the grace the client is refused; but its process lives.
    let read = WordOp::Read { addr: WordAddr::new(holder.lock.slot, Word::W0) };
    eventually("it is refused", || {
        execute(&holder.exec, read) == Outcome::Refused(Status::ClientRemoved)
    });
    assert_eq!(waiter.exec.reply(wait, 0), Ok(None));
    let session = &holder.session;
    assert!(ShmExecutor::attach(socket(session), &attach(session), clock(session)).is_err());
    drop(holder.exec);
    waiter.is_granted(wait);
}

#[test]
fn a_client_that_was_to_be_removed_may_come_back_while_its_memory_is_mapped() {
    let server = server(quick());
    let mut client = Client::new(&server);
    client.acquire();
    let read = WordOp::Read { addr: client.word() };
    drop(client.control);
    eventually("it is refused", || {
        execute(&client.exec, read) == Outcome::Refused(Status::BadResponse)
    });
    client.control = Peer::connect(server.local_addr());
    assert!(matches!(client.control.call(reinit(&client.session)), ControlReply::Session(_)));
    client.exec = map(&client.session);
    assert!(client.holds() && client.control.is_alive());
}

#[test]
fn a_recovering_primary_refuses_chains_until_the_last_has_come_back() {
    let old = server(ServerConfig::default());
    let (_, session) = Peer::init(old.local_addr());
    let server = server(ServerConfig { recovery_clients: 1, ..ServerConfig::default() });
    let mut control = Peer::connect(server.local_addr());
    let ControlReply::Session(session) = control.call(reinit(&session)) else {
        panic!("not let in again")
    };
    let exec = map(&session);
    let read = WordOp::Read { addr: WordAddr::from_index(0) };
    assert_eq!(execute(&exec, read), Outcome::Refused(Status::NotReady));
    assert_eq!(control.call(ControlRequest::ReinitDone), ControlReply::Done);
    assert!(matches!(execute(&exec, read), Outcome::Done(_)));
}

#[test]
fn the_memory_is_handed_to_nobody_without_the_secret() {
    let server = server(ServerConfig::default());
    let (_control, session) = Peer::init(server.local_addr());
    let mut forged = attach(&session);
    forged.secret.0[0] ^= 1;
    match ShmExecutor::attach(socket(&session), &forged, clock(&session)) {
        Err(FabricError::Refused(Status::Error)) => {}
        other => panic!("not refused: {other:?}"),
    }
    map(&session);
}

#[test]
fn rubbish_on_the_unix_socket_is_answered_and_closed() {
    let server = server(ServerConfig::default());
    let (mut control, session) = Peer::init(server.local_addr());
    let mut frames = vec![b"rubbish!".to_vec(), vec![b'D', b'L', 1, 2, 255, 255, 255, 255]];
    let tcp = Attach { fabric: FabricKind::Tcp, ..attach(&session) };
    for frame in [
        Frame::Control(Seq(1), common::INIT),
        Frame::Request(Seq(1), Request::Ping),
        Frame::Attach(tcp),
    ] {
        let mut bytes = Vec::new();
        codec::encode(&frame, &mut bytes);
        frames.push(bytes);
    }
    let addr = UnixAddr::from_abstract_name(socket(&session)).unwrap();
    for bytes in frames {
        let mut stream = UnixStream::connect_addr(&addr).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
        let header = codec::header(answer.first_chunk::<HEADER_LEN>().unwrap()).unwrap();
        match codec::decode(header.kind, &answer[HEADER_LEN..]) {
            Ok(Frame::Attached(attached)) => assert_eq!(attached.status, Status::Error),
            other => panic!("no refusal: {other:?}"),
        }
    }
    assert!(control.is_alive());
}

#[test]
fn a_stopped_primary_refuses_the_chains_of_its_clients() {
    let server = server(ServerConfig::default());
    let client = Client::new(&server);
    client.acquire();
    let read = WordOp::Read { addr: client.word() };
    server.stop();
    assert!(!matches!(execute(&client.exec, read), Outcome::Done(_)));
}

/// Names the primary's address for a child process, which is this program again.
const ADDRESS: &str = "DLOCK_TEST_ADDRESS";

/// The child: takes the lock, says so, and waits to be killed. In an ordinary run there is no
/// address, and the test does nothing.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    // Three clients of one process; the first one leaves.
    let [mut first, _other, client] = [(); 3].map(|()| Client::at(address.parse().unwrap()));
    drop(first.exec);
    assert_eq!(first.control.call(ControlRequest::Deinit), ControlReply::Done);
    assert!(matches!(client.acquire(), Outcome::Done(values) if values[0] == 0));
    println!("\nholding");
    let mut line = String::new();
    // Until the parent kills the child, or has ended.
    let _ = std::io::stdin().read_line(&mut line);
}

fn child_that_holds(server: &Server) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ADDRESS, server.local_addr().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "holding"), "the child holds the lock");
    child
}

#[test]
fn a_process_that_is_killed_is_undone_at_once_whatever_the_grace() {
    let server = server(ServerConfig { absent_grace: None, ..ServerConfig::default() });
    let waiter = Client::new(&server);
    for _ in 0..3 {
        let mut child = child_that_holds(&server);
        let wait = waiter.wait();
        child.kill().unwrap();
        waiter.is_granted(wait);
        child.wait().unwrap();
        let release =
            Request::Release { handle: waiter.lock.handle, mode: Mode::Exclusive, ticket: None };
        let seq = waiter.exec.send(&release).unwrap();
        assert!(matches!(waiter.exec.reply(seq, deadline_in(common::PATIENCE)), Ok(Some(_))));
    }
}

/// One thread is another user's. The other threads of the process, such as those of the primary,
/// stay root's.
#[test]
fn a_primary_of_root_shares_its_memory_with_those_that_are_named_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root has threads of other users");
        return;
    }
    let other = rustix::process::Uid::from_raw(65_534);
    for (shm_users, may) in [(vec![], false), (vec![other.as_raw()], true)] {
        let server = server(ServerConfig { shm_users, ..ServerConfig::default() });
        let (_peer, session) = Peer::init(server.local_addr());
        let mapped = std::thread::spawn(move || {
            rustix::thread::set_thread_res_uid(other, other, other).unwrap();
            ShmExecutor::attach(socket(&session), &attach(&session), clock(&session)).map(drop)
        });
        match mapped.join().unwrap() {
            Ok(()) => assert!(may, "a stranger has mapped the memory"),
            Err(FabricError::Refused(status)) => assert_eq!((status, may), (Status::Error, false)),
            Err(error) => panic!("{error}"),
        }
    }
}
