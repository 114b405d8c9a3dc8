// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS on the port: the peer is known before a frame is read.
//!
//! ```text
//!   accepted ─▶ handshake ── done ──▶ a connection with an identity ─▶ its first frame
//!                  ├─ refused, silent, too slow ─▶ one line in the log, and the end
//!                  └─ too many of them: the oldest ends
//!   SIGHUP, or a file has changed ─▶ reload: later handshakes use it, connections go on
//!                                    └▶ sweep: those of revoked certificates end
//! ```
//! A peer that is not known yet costs a task, its socket, and at most
//! [`HANDSHAKE_BYTES_MAX`](dlock_fabric::tls::session::HANDSHAKE_BYTES_MAX) bytes of memory for
//! what it has sent. No other peer waits for it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::budget::rate::Rate;
use dlock_core::counters::Counter;
use dlock_core::primary;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::{PeerRole, Tls, TlsError};
use log::Level;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout_at, Instant};

use super::table::{ConnectionPermit, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX};
use super::wire::linger;
use crate::command::mailbox::{Event, Mailbox, ShownBy};
use crate::host::blocking::on_a_thread;
use crate::observe::log_limit::{limited, Cause};
use crate::transport::tls::{shake_hands, SealedConn};
use crate::transport::Shown;

/// The time between two checks whether a certificate, key or revocation list has changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Does the TLS handshake with a new peer; `None`: it has failed, and the log says why.
pub(super) async fn known(
    mut stream: TcpStream,
    from: SocketAddr,
    tls: &Tls,
    permit: &ConnectionPermit,
    mailbox: &Mailbox,
    deadline: Instant,
) -> Option<SealedConn> {
    if !permit.may_shake_hands(boot_ns()) {
        mailbox.count(Counter::BadRequest);
        let Rate { per_second, burst } = HANDSHAKES_PER_ADDRESS_MAX;
        limited!(
            Cause::HandshakeRate,
            Level::Warn,
            "{from} is refused: its address has begun more than {burst} handshakes at once, or \
             more than {per_second} a second (HANDSHAKES_PER_ADDRESS_MAX)"
        );
        return None;
    }
    let _place = permit.shakes_hands();
    if !has_key(tls, from, permit, deadline).await {
        mailbox.count(Counter::BadRequest);
        return None;
    }
    let by = tls.loads(); // before the session takes the loaded files
    let session = TlsSession::accept(tls).map_err(io::Error::other);
    let shaken = async { shake_hands(&stream, session?, by).await };
    let shaken = tokio::select! {
        shaken = timeout_at(deadline, shaken) => {
            shaken.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
        }
        () = permit.link.closed() => {
            let what = format!(
                "it is the oldest of {HANDSHAKES_MAX} handshakes under way (HANDSHAKES_MAX), or of \
                 all connections, and makes room; look for hosts that connect and say nothing"
            );
            Err(io::Error::other(what))
        }
    };
    let error = match shaken {
        Ok(shaken) => {
            let connection = shaken.on(stream);
            log::debug!("{from} is {}", connection.peer());
            return Some(connection);
        }
        Err(error) => error,
    };
    mailbox.count(Counter::BadRequest);
    let why = reason(&error);
    limited!(Cause::Handshake, Level::Warn, "no TLS connection with {from}: {why}");
    if error.kind() == ErrorKind::InvalidData && stream.shutdown().await.is_ok() {
        linger(&mut stream).await; // without this, a reset could discard the alert
    }
    None
}

/// Whether there is a private key for the handshake. If the key waits for its password, the program
/// is asked for it, on a thread of its own and for one connection at a time.
async fn has_key(
    tls: &Tls,
    from: SocketAddr,
    permit: &ConnectionPermit,
    deadline: Instant,
) -> bool {
    if !tls.lacks_key() {
        return true;
    }
    let opened = tokio::select! {
        opened = timeout_at(deadline, open_key(tls.clone(), permit.key_turn())) => opened,
        () = permit.link.closed() => {
            limited!(
                Cause::Handshake,
                Level::Warn,
                "no TLS connection with {from}: prkey_pwd_cb has given no password yet, and this \
                 connection makes room for others (HANDSHAKES_MAX)"
            );
            return false;
        }
    };
    match opened {
        Ok(Ok(Ok(()))) => return true,
        Ok(Ok(Err(error))) => {
            limited!(Cause::Handshake, Level::Warn, "no TLS connection with {from}: {error}");
        }
        Ok(Err(error)) => no_thread("the password of the key is not asked for", &error),
        Err(_) => limited!(
            Cause::Handshake,
            Level::Warn,
            "no TLS connection with {from}: prkey_pwd_cb gives no password in time"
        ),
    }
    false
}

/// Tries to open the key while no other attempt is under way. The attempt lasts until the program
/// has given its answer, even if the connection has ended before.
async fn open_key(tls: Tls, turn: Arc<Semaphore>) -> io::Result<Result<(), TlsError>> {
    let turn = turn.acquire_owned().await.map_err(io::Error::other)?;
    if !tls.lacks_key() {
        return Ok(Ok(())); // an earlier attempt has opened the key
    }
    on_a_thread("tls-key", move || {
        let _turn = turn;
        tls.open_key()
    })
    .await
}

/// Why there is no connection, and what to do about it.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "it has not shaken hands in time; does it speak TLS?".to_string(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it has closed within the handshake; its own log says why".to_string()
        }
        _ => error.to_string(),
    }
}

/// Loads the files again whenever one of them has changed.
pub(super) async fn watch(tls: Tls, mailbox: Arc<Mailbox>) {
    loop {
        tls.warn_of_endings();
        sleep(LOOK_EVERY).await;
        let files = tls.clone();
        // an encrypted key takes a second to load
        let look = move || files.changed().then(|| reload(&files));
        match on_a_thread("tls-files", look).await {
            Ok(Some(())) => sweep(&tls, &mailbox).await,
            Ok(None) => {}
            Err(error) => no_thread("the TLS files are not looked at", &error),
        }
    }
}

/// Ends the sessions whose certificates are named by the revocation lists that are loaded now. A
/// peer that is let in meanwhile is checked by its own task: at its first frame
/// ([`is_revoked_since`]), and again when the command thread knows it, or is about to
/// ([`sweep_if_late`]).
pub(crate) async fn sweep(tls: &Tls, mailbox: &Mailbox) {
    let connections = loop {
        let Ok(shown) = mailbox.ask(|reply| Event::Shown { reply }).await else { return };
        let tls = tls.clone();
        // each certificate takes the check of a signature, so this runs on a separate thread
        match on_a_thread("revoked", move || revoked(&tls, shown)).await {
            Ok(connections) => break connections,
            Err(error) => no_thread("clients are not judged by the revocation lists", &error),
        }
        sleep(LOOK_EVERY).await;
    };
    if !connections.is_empty() {
        // a command thread that has ended serves no client
        let _ = mailbox.send(Event::tell(connections)).await;
    }
}

/// The events for the primary about connections whose certificates are revoked.
fn revoked(tls: &Tls, shown: Vec<ShownBy>) -> Vec<primary::Event> {
    let is_revoked = |(_, _, shown): &ShownBy| tls.is_revoked(PeerRole::Client, &shown.chain);
    let revoked = shown.into_iter().filter(is_revoked).map(|(client, connection, shown)| {
        limited!(
            Cause::Removed,
            Level::Warn,
            "client {client} is removed: the certificate of {} is revoked",
            shown.peer
        );
        primary::Event::Revoked { client, connection }
    });
    revoked.collect()
}

/// Logs that the system refuses a thread. The work is tried again after [`LOOK_EVERY`].
fn no_thread(what: &str, error: &io::Error) {
    let again = LOOK_EVERY.as_secs();
    limited!(
        Cause::NoThread,
        Level::Error,
        "{what}: the system refuses a thread: {error}; it is tried again in {again} s: raise the \
         limit of processes or threads (ulimit -u, TasksMax= of a systemd unit)"
    );
}

/// Whether revocation lists that were loaded after the peer's handshake name its certificate.
pub(super) fn is_revoked_since(tls: Option<&Tls>, shown: Option<&Arc<Shown>>) -> bool {
    let (Some(tls), Some(shown)) = (tls, shown) else { return false };
    let is_revoked =
        tls.loads() != shown.judged_by && tls.is_revoked(PeerRole::Client, &shown.chain);
    if is_revoked {
        limited!(
            Cause::Handshake,
            Level::Warn,
            "{} is refused: its certificate was revoked since its handshake",
            shown.peer
        );
    }
    is_revoked
}

/// Sweeps again after a peer was let in, or after the event for that was sent. Revocation lists
/// that were loaded between the check of its first frame and that moment were swept before the
/// command thread knew the peer.
pub(super) async fn sweep_if_late(
    tls: Option<&Tls>,
    shown: Option<&Arc<Shown>>,
    mailbox: &Mailbox,
) {
    if let Some(tls) = tls.filter(|_| is_revoked_since(tls, shown)) {
        sweep(tls, mailbox).await;
    }
}

/// Loads the files again; if that fails, those that were loaded before stay in use.
pub(crate) fn reload(tls: &Tls) {
    match tls.reload() {
        Ok(()) => log::info!("the TLS files were loaded again: new connections use them"),
        Err(error) => {
            let error: TlsError = error;
            log::error!("the TLS files stay as they were loaded before: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{channel, Receiver, Sender};
    use std::{env, fs, process};

    use base64ct::{Base64, Encoding};
    use dlock_fabric::tls::{FixedPassword, KeyPassword, Leniency, TlsFiles};
    use parking_lot::Mutex;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;
    use crate::host::blocking::runtime;

    /// A source of a password that reports each question, and waits until the test gives the
    /// answer.
    #[derive(Debug)]
    struct Asked(Sender<()>, Mutex<Receiver<&'static str>>);

    impl KeyPassword for Asked {
        fn password(&self) -> Result<Option<Secret>, TlsError> {
            let Self(asked, answer) = self;
            asked.send(()).expect("the test waits");
            let answer = answer.lock().recv().expect("no more is asked than is answered");
            FixedPassword::new(answer.into()).password()
        }
    }

    type Secret = zeroize::Zeroizing<Vec<u8>>;

    /// Writes TLS files whose key is encrypted with the password `correct horse`.
    fn write_files(folder: &Path) -> TlsFiles {
        let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dlock-fabric/tests/tls/fixtures");
        let read = |name| fs::read_to_string(keys.join(name)).unwrap();
        let body: String = read("p256.pem").lines().filter(|line| !line.starts_with('-')).collect();
        let key = KeyPair::try_from(Base64::decode_vec(&body).unwrap()).unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let ca_der = ca.self_signed(&ca_key).unwrap().der().clone();
        let own = CertificateParams::new(vec!["node.example".into()]).unwrap();
        let own = own.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
        let write = |name: &str, text: String| {
            fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        let certificate = |der: &[u8]| {
            let text = Base64::encode_string(der);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let (ca, cert) = (certificate(&ca_der), certificate(own.der()));
        let (ca, cert) = (write("ca.pem", ca), write("own.pem", cert));
        TlsFiles { ca, crl: None, cert, key: write("own.key", read("p256-pbkdf2.pem")) }
    }

    #[test]
    fn a_key_without_its_password_is_tried_for_one_connection_at_a_time() {
        let folder = env::temp_dir().join(format!("dlock-key-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (says, asked) = channel();
        let (answer, answers) = channel();
        answer.send("wrong").unwrap();
        let leniency = Leniency::AsOpenssl { callback: None, key_may_wait: true };
        let password = Arc::new(Asked(says, Mutex::new(answers)));
        let tls = Tls::load_with(leniency, write_files(&folder), password).unwrap();
        asked.recv().unwrap();
        assert!(tls.lacks_key());
        let turn = Arc::new(Semaphore::new(1));
        let attempts = async {
            let attempt = || tokio::spawn(open_key(tls.clone(), turn.clone()));
            let first = attempt();
            let others: Vec<_> = (0..8).map(|_| attempt()).collect();
            let is_asked = on_a_thread("asked", move || asked.recv().map(|()| asked));
            let asked = is_asked.await.unwrap().unwrap();
            first.abort(); // the first connection has ended, but its thread goes on
            assert!(first.await.unwrap_err().is_cancelled());
            assert_eq!(turn.available_permits(), 0);
            answer.send("correct horse").unwrap();
            for other in others {
                other.await.unwrap().unwrap().unwrap();
            }
            assert!(!tls.lacks_key() && asked.try_recv().is_err(), "one answer is enough");
        };
        runtime(|builder| builder).unwrap().block_on(attempts);
        fs::remove_dir_all(&folder).unwrap();
    }
}
