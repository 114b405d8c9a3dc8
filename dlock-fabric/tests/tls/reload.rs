// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates and lists that change while the process runs, and the identity of a peer
//! afterwards.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};

use dlock_fabric::tls::session::{Shake, TlsSession};
use dlock_fabric::tls::{PeerIdentity, PeerName, PeerRole, Tls, TlsError};
use rcgen::{CertificateParams, DnType, DnValue, SanType};
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error};
use time::Duration;

use crate::drive::{client, drive, name, server, Outcome};
use crate::pki::{good, now, serial, Ca, Folder, Identity};

struct Pair {
    ca: Ca,
    ours: Folder,
    theirs: Folder,
    our_params: CertificateParams,
    their_params: CertificateParams,
}

impl Pair {
    fn new() -> Self {
        let ca = Ca::root("root");
        let (our_params, their_params) = (good("server"), good("client"));
        let crl = ca.crl(&[]);
        let ours = Folder::with(&ca, &ca.issue(&our_params), Some(&crl));
        let theirs = Folder::with(&ca, &ca.issue(&their_params), Some(&crl));
        Self { ca, ours, theirs, our_params, their_params }
    }

    fn load(&self) -> (Tls, Tls) {
        (self.ours.load().expect("right"), self.theirs.load().expect("right"))
    }

    fn write(&self, folder: &Folder, identity: &Identity) {
        folder.write(&folder.files.cert, &identity.cert_pem());
        folder.write(&folder.files.key, &identity.key_pem());
    }
}

fn connect(ours: &Tls, theirs: &Tls) -> Outcome {
    drive(client(theirs.client()), server(ours.server()))
}

fn chain(identity: &Identity) -> Vec<CertificateDer<'static>> {
    identity.chain.iter().cloned().map(CertificateDer::from).collect()
}

#[test]
fn a_reload_takes_a_renewed_certificate_and_a_new_list() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    assert!(!ours.changed() && connect(&ours, &theirs).is_good());
    let before = ours.server();

    // After the server's certificate is renewed, a client sees the new one.
    let mut renewed = pair.our_params.clone();
    renewed.serial_number = Some(serial());
    let renewed = pair.ca.issue(&renewed);
    pair.write(&pair.ours, &renewed);
    assert!(ours.changed());
    ours.reload().unwrap();
    assert!(!ours.changed());
    assert!(connect(&ours, &theirs).is_good());
    assert!(!std::sync::Arc::ptr_eq(&before, &ours.server()));
    // A clone shares the configuration.
    assert!(std::sync::Arc::ptr_eq(&ours.server(), &ours.clone().server()));

    // After the client's certificate is revoked, the old list lets the client in until the reload.
    let crl = pair.ours.files.crl.clone().unwrap();
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.their_params]));
    assert!(ours.changed() && connect(&ours, &theirs).is_good());
    ours.reload().unwrap();
    let outcome = connect(&ours, &theirs);
    assert_eq!(outcome.server.error.as_ref().map(name).as_deref(), Some("Revoked"));
    assert!(outcome.server.received.is_empty());
    // A configuration that was taken before does not change: connections under way go on.
    assert!(drive(client(theirs.client()), server(before)).is_good());
}

#[test]
fn a_broken_file_leaves_the_old_ones_in_force() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let files = &pair.ours.files;
    let paths = [&files.ca, files.crl.as_ref().unwrap(), &files.cert, &files.key];
    for (number, path) in paths.into_iter().enumerate() {
        let whole = fs::read_to_string(path).unwrap();
        let before = ours.server();
        pair.ours.write(path, "broken");
        assert!(ours.changed());
        assert!(matches!(ours.reload(), Err(TlsError::Nothing { .. })));
        // The change counts as seen: a caller that reloads after a change does not try for ever.
        assert!(!ours.changed());
        let judges_peers = number < 2;
        assert_eq!(std::sync::Arc::ptr_eq(&before, &ours.server()), judges_peers);
        assert!(connect(&ours, &theirs).is_good());
        fs::remove_file(path).unwrap();
        assert!(ours.changed());
        assert!(matches!(ours.reload(), Err(TlsError::Missing { .. })));
        assert!(connect(&ours, &theirs).is_good());
        pair.ours.write(path, &whole);
        assert!(ours.changed());
        ours.reload().unwrap();
        assert!(connect(&ours, &theirs).is_good());
    }
}

#[test]
fn a_revocation_takes_effect_though_the_own_certificate_is_broken_or_revoked() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let crl = pair.ours.files.crl.clone().unwrap();
    let refused = || {
        let outcome = connect(&ours, &theirs);
        let revoked = outcome.server.error.as_ref().map(name).as_deref() == Some("Revoked");
        assert!(!revoked || outcome.server.received.is_empty());
        revoked
    };
    let cert = fs::read_to_string(&pair.ours.files.cert).unwrap();
    pair.ours.write(&pair.ours.files.cert, "broken");
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.their_params]));
    assert!(matches!(ours.reload(), Err(TlsError::Nothing { .. })));
    assert!(refused());

    pair.ours.write(&pair.ours.files.cert, &cert);
    pair.ours.write(&crl, &pair.ca.crl(&[]));
    ours.reload().unwrap();
    assert!(!refused());
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.our_params, &pair.their_params]));
    assert!(matches!(ours.reload(), Err(TlsError::Revoked { .. })));
    assert!(refused());
}

#[test]
fn a_list_that_its_ca_did_not_sign_is_not_taken() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let before = ours.server();
    pair.ours.write(pair.ours.files.crl.as_ref().unwrap(), &Ca::root("root").crl(&[]));
    assert!(matches!(ours.reload(), Err(TlsError::CrlSignature { .. })));
    assert!(std::sync::Arc::ptr_eq(&before, &ours.server()));
    assert!(connect(&ours, &theirs).is_good());
}

#[test]
fn a_certificate_without_its_key_waits_for_the_key() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let renewed = pair.ca.issue(&pair.our_params);
    pair.ours.write(&pair.ours.files.cert, &renewed.cert_pem());
    assert!(matches!(ours.reload(), Err(TlsError::KeyMismatch { .. })));
    assert!(connect(&ours, &theirs).is_good());
    pair.ours.write(&pair.ours.files.key, &renewed.key_pem());
    assert!(ours.changed());
    ours.reload().unwrap();
    assert!(connect(&ours, &theirs).is_good());
}

#[test]
fn a_file_written_in_place_shows_as_changed() {
    let pair = Pair::new();
    let (ours, _) = pair.load();
    let crl = pair.ours.files.crl.clone().unwrap();
    fs::write(&crl, pair.ca.crl(&[&pair.their_params])).unwrap();
    assert!(ours.changed());
}

#[test]
fn a_connected_peer_is_judged_anew_after_a_reload() {
    let pair = Pair::new();
    let (ours, _) = pair.load();
    let theirs = chain(&pair.ca.issue(&pair.their_params));
    ours.check(PeerRole::Client, &theirs).unwrap();
    assert!(matches!(ours.check(PeerRole::Client, &[]), Err(TlsError::NoIdentity(_))));
    let crl = pair.ours.files.crl.clone().unwrap();
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.their_params]));
    ours.reload().unwrap();
    let revoked = Error::InvalidCertificate(CertificateError::Revoked);
    let error = ours.check(PeerRole::Client, &theirs).unwrap_err();
    assert!(matches!(error, TlsError::Handshake { source, .. } if source == revoked));
}

fn identity_of(ca: &Ca, params: &CertificateParams) -> PeerIdentity {
    PeerIdentity::of(&chain(&ca.issue(params))).unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(rcgen::string::Ia5String::try_from(name).unwrap())
}

#[test]
fn a_renewed_certificate_is_the_same_identity_and_another_name_is_not() {
    let ca = Ca::root("root");
    let first = good("node");
    let identity = identity_of(&ca, &first);
    let mut renewed = first.clone();
    renewed.serial_number = Some(serial());
    renewed.not_after = now() + Duration::days(90);
    assert_eq!(identity, identity_of(&ca, &renewed), "another key, serial number and date");
    assert_eq!(identity, identity_of(&Ca::root("next"), &renewed), "another CA");
    assert_eq!(identity.digest(), identity_of(&ca, &renewed).digest());

    let mut subject = first.clone();
    subject.distinguished_name.push(DnType::OrganizationName, "Other");
    assert_ne!(identity, identity_of(&ca, &subject), "another subject");
    let mut more = first.clone();
    more.subject_alt_names.push(dns("more.example"));
    assert_ne!(identity, identity_of(&ca, &more), "one more alternative name");
    let mut none = first.clone();
    none.subject_alt_names.clear();
    assert_ne!(identity, identity_of(&ca, &none), "no alternative name");
    assert_ne!(identity, identity_of(&ca, &good("other")));
}

#[test]
fn neither_the_type_of_a_string_nor_the_order_of_names_makes_another_identity() {
    let ca = Ca::root("root");
    let mut utf8 = good("node");
    utf8.subject_alt_names = vec![dns("a.example"), dns("b.example")];
    let mut printable = utf8.clone();
    let text = rcgen::string::PrintableString::try_from("node").unwrap();
    printable.distinguished_name.push(DnType::CommonName, DnValue::PrintableString(text));
    printable.subject_alt_names.reverse();
    assert_eq!(identity_of(&ca, &utf8), identity_of(&ca, &printable));
}

#[test]
fn names_that_look_alike_when_joined_are_different() {
    let ca = Ca::root("root");
    let named = |names: &[&str]| {
        let mut params = good("node");
        params.subject_alt_names = names.iter().map(|name| dns(name)).collect();
        identity_of(&ca, &params)
    };
    assert_ne!(named(&["a.example", "b.example"]), named(&["a.exampleb.example"]));
    assert_ne!(named(&["a", "bc"]), named(&["ab", "c"]));
    let mut uri = good("node");
    let text = rcgen::string::Ia5String::try_from("a.example").unwrap();
    uri.subject_alt_names = vec![SanType::URI(text)];
    assert_ne!(named(&["a.example"]), identity_of(&ca, &uri), "the same text of another kind");
}

#[test]
fn an_identity_tells_its_names() {
    let ca = Ca::root("root");
    let mut params = good("node");
    params.distinguished_name.push(DnType::OrganizationName, "Example");
    let text = |text: &str| rcgen::string::Ia5String::try_from(text).unwrap();
    params.subject_alt_names = vec![
        dns("node.example"),
        SanType::IpAddress([192, 0, 2, 7].into()),
        SanType::URI(text("spiffe://example/node")),
        SanType::Rfc822Name(text("node@example")),
    ];
    let identity = identity_of(&ca, &params);
    let names: Vec<String> = identity.names().iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "O=Example,CN=node",
            "CN=node",
            "DNS:node.example",
            "IP:192.0.2.7",
            "URI:spiffe://example/node",
            "email:node@example"
        ]
    );
    assert!(matches!(&identity.names()[1], PeerName::CommonName(name) if name == "node"));
    assert_eq!(identity.to_string(), "O=Example,CN=node");
    let evil = identity_of(&ca, &good("evil\nERROR forged"));
    assert_eq!(evil.to_string(), "CN=evil\\0aERROR forged");
}

#[test]
fn a_certificate_without_a_name_is_no_identity() {
    let ca = Ca::root("root");
    let mut params = good("node");
    params.distinguished_name = rcgen::DistinguishedName::new();
    assert!(PeerIdentity::of(&chain(&ca.issue(&params))).is_ok(), "an alternative name is enough");
    params.subject_alt_names.clear();
    let nameless = PeerIdentity::of(&chain(&ca.issue(&params)));
    assert!(matches!(nameless, Err(TlsError::NoIdentity("names nobody"))));
    assert!(matches!(PeerIdentity::of(&[]), Err(TlsError::NoIdentity("is missing"))));
    let garbage = [CertificateDer::from(vec![0x30, 0x80, 0, 0])];
    assert!(matches!(PeerIdentity::of(&garbage), Err(TlsError::NoIdentity("cannot be parsed"))));
}

#[test]
fn a_revocation_is_seen_of_a_connected_peer_whatever_else_is_wrong_with_its_certificate() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let shown = shaken(&ours, &theirs).accepted.chain();
    assert!(!ours.is_revoked(PeerRole::Client, &shown));
    let loads = ours.loads();
    let crl = pair.ours.files.crl.clone().unwrap();
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.our_params])); // a list that names us: it is refused
    assert!(ours.reload().is_err());
    assert!(!ours.is_revoked(PeerRole::Client, &shown) && ours.loads() > loads);
    pair.ours.write(&crl, &pair.ca.crl(&[&pair.their_params]));
    ours.reload().unwrap();
    assert!(ours.is_revoked(PeerRole::Client, &shown));
}

/// rustls accepts 32 key updates without data between them.
#[test]
fn a_flood_of_key_updates_ends_the_connection_and_some_do_not() {
    for (updates, is_flood) in [(20, false), (200, true)] {
        let pair = Pair::new();
        let (ours, theirs) = pair.load();
        let Shaken { mut connected, mut accepted, mut server } = shaken(&ours, &theirs);
        for _ in 0..updates {
            connected.refresh_traffic_keys().unwrap();
            while connected.wants_write() {
                connected.write_tls(&mut server.input).unwrap();
            }
        }
        let end = loop {
            match accepted.read(&mut server, &mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                end => break end.unwrap_err(),
            }
            assert!(server.output.len() < 64 * 1024, "the answers are bounded");
        };
        match is_flood {
            true => assert!(end.to_string().contains("TooManyKeyUpdateRequests"), "{end}"),
            false => assert_eq!(end.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// The poll reports new bytes once, so the reader must read on until there are none.
#[test]
fn a_socket_that_got_more_since_it_was_read_is_not_taken_for_emptied() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let Shaken { mut connected, mut accepted, mut server } = shaken(&ours, &theirs);
    let mut send = |server: &mut Wire, bytes: &[u8]| {
        connected.writer().write_all(bytes).unwrap();
        while connected.wants_write() {
            connected.write_tls(&mut server.input).unwrap();
        }
    };
    send(&mut server, &[1; 100]);
    let mut into = [0; 60];
    assert_eq!(accepted.read(&mut server, &mut into).unwrap(), 60);
    assert!(accepted.may_have_more(), "40 bytes are left");
    send(&mut server, &[2; 10]); // the poll reports these bytes
    assert_eq!(accepted.read(&mut server, &mut into).unwrap(), 40);
    assert!(accepted.may_have_more(), "nobody is told again");
    assert_eq!(accepted.read(&mut server, &mut into).unwrap(), 10);
    assert!(!accepted.may_have_more());
}

/// Bytes of random sizes come between any two reads, and each read has another buffer.
#[test]
fn a_reader_that_is_told_once_of_new_bytes_gets_all_of_them() {
    let pair = Pair::new();
    let (ours, theirs) = pair.load();
    let mut dice = 7_u64;
    let mut below = |limit: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % limit
    };
    for _ in 0..20 {
        let Shaken { mut connected, mut accepted, mut server } = shaken(&ours, &theirs);
        let (mut sent, mut received, mut readable) = (0, 0, false);
        for step in 0..400 {
            if step < 300 && below(3) == 0 {
                let len = 1 + below(300);
                connected.writer().write_all(&vec![7; len]).unwrap();
                while connected.wants_write() {
                    connected.write_tls(&mut server.input).unwrap();
                }
                (sent, readable) = (sent + len, true);
            }
            while readable && (step >= 300 || below(3) > 0) {
                let room = 1 + below(400);
                match accepted.read(&mut server, &mut vec![0; room]) {
                    Ok(len) => {
                        received += len;
                        readable = len == room || accepted.may_have_more();
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => readable = false,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(received, sent);
    }
}

/// One end of a connection: the bytes that have come, and the bytes sent.
#[derive(Default)]
struct Wire {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.input.len().min(into.len());
        if len == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..len].copy_from_slice(&self.input[..len]);
        self.input.drain(..len);
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Both ends of a connection after the handshake.
struct Shaken {
    connected: rustls::ClientConnection,
    accepted: TlsSession,
    /// The accepting end's socket.
    server: Wire,
}

fn shaken(ours: &Tls, theirs: &Tls) -> Shaken {
    let mut accepted = TlsSession::accept(ours).unwrap();
    let name = "server".try_into().unwrap();
    let mut connected = rustls::ClientConnection::new(theirs.client(), name).unwrap();
    let (mut client, mut server) = (Wire::default(), Wire::default());
    loop {
        while connected.wants_write() {
            connected.write_tls(&mut server.input).unwrap();
        }
        if accepted.shake(&mut server).unwrap() == Shake::Done {
            return Shaken { connected, accepted, server };
        }
        client.input.append(&mut server.output);
        while !client.input.is_empty() {
            connected.read_tls(&mut client).unwrap();
            connected.process_new_packets().unwrap();
        }
    }
}
