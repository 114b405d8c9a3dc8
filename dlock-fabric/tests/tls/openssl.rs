// SPDX-License-Identifier: MIT OR Apache-2.0
//! `openssl s_client` and `s_server` as peers: an independent implementation, which reads the files
//! itself. Skipped, with the reason, where the program is not installed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dlock_fabric::tls::Tls;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, Error, ServerConnection, SideData};

use crate::drive::name;
use crate::pki::{good, good_ca, Ca, Folder};

/// The longest wait for a peer.
const PATIENCE: Duration = Duration::from_secs(60);

pub const LINE: &[u8] = b"a line of the application\n";

/// Whether OpenSSL is here, and knows TLS 1.3.
pub fn present() -> bool {
    let version = Command::new("openssl").arg("version").output();
    let text = version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let found =
        text.as_deref().is_ok_and(|text| text.starts_with("OpenSSL ") && text > "OpenSSL 1.1.1");
    if !found {
        println!("SKIPPED: there is no OpenSSL 1.1.1 or later here ({text:?})");
    }
    found
}

/// Our configuration, the peer's files, and files of a peer whose certificate is revoked.
struct World {
    ours: Tls,
    theirs: Folder,
    revoked: Folder,
    _our_files: Folder,
}

impl World {
    fn new() -> Self {
        let root = Ca::root("root");
        let middle = root.intermediate(good_ca("middle"));
        let bad = good("bad");
        let crl = root.crl(&[]) + &middle.crl(&[&bad]);
        let our_files = Folder::with(&root, &middle.issue(&good("ours")), Some(&crl));
        Self {
            ours: our_files.load().expect("all is right"),
            theirs: Folder::with(&root, &middle.issue(&good("theirs")), Some(&crl)),
            revoked: Folder::with(&root, &middle.issue(&bad), Some(&crl)),
            _our_files: our_files,
        }
    }
}

/// A process that ends with the test.
pub struct Openssl(Child);

impl Openssl {
    fn start(what: &str, folder: Option<&Folder>, arguments: &[&str]) -> Self {
        let mut command = Command::new("openssl");
        command.arg(what).args(arguments);
        if let Some(folder) = folder {
            let files = &folder.files;
            command.arg("-cert").arg(&files.cert).arg("-cert_chain").arg(&files.cert);
            command.arg("-key").arg(&files.key).arg("-CAfile").arg(&files.ca);
            command.arg("-verify_return_error");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("it is installed"))
    }

    pub fn client(folder: Option<&Folder>, to: &TcpListener, arguments: &[&str]) -> Self {
        let to = to.local_addr().expect("it listens").to_string();
        let arguments = [&["-connect", &to, "-quiet", "-verify", "5"][..], arguments].concat();
        let mut this = Self::start("s_client", folder, &arguments);
        // The peer may be refused before it reads this line.
        let _ = this.0.stdin.as_mut().expect("a pipe").write_all(LINE);
        this
    }

    /// Starts a server that answers each line with the same line backwards.
    pub fn server(folder: &Folder, arguments: &[&str]) -> (Self, String) {
        let always = ["-accept", "127.0.0.1:0", "-rev", "-Verify", "5"];
        let mut this = Self::start("s_server", Some(folder), &[&always[..], arguments].concat());
        let output = BufReader::new(this.0.stdout.take().expect("a pipe"));
        let address = output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("ACCEPT ")?.to_string()))
            .expect("it says where it listens");
        (this, address)
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill(); // a process that has ended already is fine
        let _ = self.0.wait();
    }
}

/// Makes the handshake, sends a line and receives one; or returns the error of this side.
pub fn talk<Data: SideData>(
    connection: &mut ConnectionCommon<Data>,
    socket: &mut TcpStream,
) -> Result<Vec<u8>, String> {
    socket.set_read_timeout(Some(PATIENCE)).expect("an option");
    connection.writer().write_all(LINE).expect("it is buffered");
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if let Err(error) = connection.complete_io(socket) {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            assert!(line.is_empty(), "it was refused after a frame");
            return Err(inner.map_or_else(|| error.to_string(), name));
        }
        let mut some = [0; 64];
        if let Ok(len) = connection.reader().read(&mut some) {
            line.extend(&some[..len]);
        }
    }
    Ok(line)
}

fn serve(world: &World, folder: Option<&Folder>, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let _peer = Openssl::client(folder, &listener, arguments);
    let (mut socket, _) = listener.accept().expect("it connects");
    talk(&mut ServerConnection::new(world.ours.server()).expect("right"), &mut socket)
}

fn connect(world: &World, folder: &Folder, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let (_peer, address) = Openssl::server(folder, arguments);
    let mut socket = TcpStream::connect(address).expect("it listens");
    let name = ServerName::try_from("theirs.example").expect("a name");
    let config = world.ours.client_expecting(name.clone());
    talk(&mut ClientConnection::new(config, name).expect("right"), &mut socket)
}

#[test]
fn s_client_is_served_and_verifies_us() {
    if !present() {
        return;
    }
    let world = World::new();
    assert_eq!(serve(&world, Some(&world.theirs), &["-tls1_3"]).as_deref(), Ok(LINE));
}

#[test]
fn s_server_serves_us_and_verifies_us() {
    if !present() {
        return;
    }
    let world = World::new();
    let mut backwards: Vec<u8> = LINE[..LINE.len() - 1].iter().rev().copied().collect();
    backwards.push(b'\n');
    assert_eq!(connect(&world, &world.theirs, &["-tls1_3"]).as_deref(), Ok(&backwards[..]));
}

#[test]
fn s_client_is_refused_with_an_old_version_another_cipher_no_or_a_revoked_certificate() {
    if !present() {
        return;
    }
    let world = World::new();
    let theirs = Some(&world.theirs);
    for (folder, arguments, expected) in [
        (theirs, &["-tls1_2"][..], "PeerIncompatible(SupportedVersionsExtensionRequired)"),
        (
            theirs,
            &["-ciphersuites", "TLS_AES_128_GCM_SHA256"],
            "PeerIncompatible(NoCipherSuitesInCommon)",
        ),
        (None, &[], "NoCertificatesPresented"),
        (Some(&world.revoked), &[], "Revoked"),
    ] {
        assert_eq!(serve(&world, folder, arguments), Err(expected.into()), "{arguments:?}");
    }
}

#[test]
fn s_server_is_refused_with_an_old_version_another_cipher_or_a_revoked_certificate() {
    if !present() {
        return;
    }
    let world = World::new();
    for (folder, arguments, expected) in [
        (&world.theirs, &["-tls1_2"][..], "AlertReceived(ProtocolVersion)"),
        (
            &world.theirs,
            &["-ciphersuites", "TLS_AES_128_GCM_SHA256"],
            "AlertReceived(HandshakeFailure)",
        ),
        (&world.revoked, &[], "Revoked"),
    ] {
        assert_eq!(connect(&world, folder, arguments), Err(expected.into()), "{arguments:?}");
    }
}
