// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of wrong peers: what is wrong with each, and the error of the side that refuses it.

use std::sync::Arc;
use std::time::Duration as StdDuration;

use dlock_fabric::tls::{PeerChain, PeerRole, Tls, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyUsagePurpose, NameConstraints,
};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig};
use time::Duration;

use crate::drive::{client, drive, name, server, Outcome, Peer};
use crate::hostile::Hostile;
use crate::pki::{good, good_ca, key, now, pem, Ca, Folder, Identity, WeakKey};

/// A clock that is this many seconds ahead.
#[derive(Debug)]
struct Ahead(i64);

impl TimeProvider for Ahead {
    fn current_time(&self) -> Option<UnixTime> {
        let now = UnixTime::now().as_secs().checked_add_signed(self.0)?;
        Some(UnixTime::since_unix_epoch(StdDuration::from_secs(now)))
    }
}

/// The side under test, with correct files.
struct Ours {
    tls: Tls,
    /// The seconds by which its clock is ahead.
    ahead_s: i64,
    expects: Option<ServerName<'static>>,
}

impl Ours {
    fn new(tls: Tls) -> Self {
        Self { tls, ahead_s: 0, expects: None }
    }

    fn against(&self, role: PeerRole, peer: Peer) -> Outcome {
        let time = Arc::new(Ahead(self.ahead_s));
        match role {
            PeerRole::Client => {
                let mut config = ServerConfig::clone(&self.tls.server());
                config.time_provider = time;
                drive(peer, server(Arc::new(config)))
            }
            PeerRole::Server => {
                let config = match &self.expects {
                    Some(name) => self.tls.client_expecting(name.clone()),
                    None => self.tls.client(),
                };
                let mut config = ClientConfig::clone(&config);
                config.time_provider = time;
                drive(client(Arc::new(config)), peer)
            }
        }
    }
}

/// A root, a CA below it, the lists of both, and the side under test, certified by the lower CA.
struct World {
    root: Ca,
    middle: Ca,
    folder: Folder,
    ours: Ours,
}

impl World {
    /// A world in which no certificate is revoked.
    fn new() -> Self {
        Self::revoking(&[], &[])
    }

    fn revoking(by_root: &[&CertificateParams], by_middle: &[&CertificateParams]) -> Self {
        let root = Ca::root("root");
        let middle = root.intermediate(good_ca("middle"));
        let crls = root.crl(by_root) + &middle.crl(by_middle);
        Self::with_crls(root, middle, Some(crls))
    }

    fn with_crls(root: Ca, middle: Ca, crls: Option<String>) -> Self {
        let folder = Folder::with(&root, &middle.issue(&good("ours")), crls.as_deref());
        let tls = folder.load().expect("all is right");
        Self { root, middle, folder, ours: Ours::new(tls) }
    }

    /// Checks that the other side refuses the peer with these errors, in both roles.
    fn refuses_as(&self, peer: impl Fn() -> Hostile, client: &str, server: &str) {
        for (role, expected) in [(PeerRole::Client, client), (PeerRole::Server, server)] {
            self.refuses(role, peer().into_peer(role), expected);
        }
    }

    fn refuses_both(&self, peer: impl Fn() -> Hostile, expected: &str) {
        self.refuses_as(peer, expected, expected);
    }

    /// Checks the exact error of the side under test, and that neither side received a byte.
    fn refuses(&self, role: PeerRole, peer: Peer, expected: &str) {
        let outcome = self.ours.against(role, peer);
        let (ours, theirs) = match role {
            PeerRole::Client => (&outcome.server, &outcome.client),
            PeerRole::Server => (&outcome.client, &outcome.server),
        };
        let found = ours.error.as_ref().map(name);
        assert_eq!(found.as_deref(), Some(expected), "a {role:?} as peer: {outcome:?}");
        assert!(ours.received.is_empty() && theirs.received.is_empty(), "{role:?}: {outcome:?}");
        // The message for the log has a remedy.
        let error = TlsError::from(ours.error.clone().expect("just seen"));
        assert!(error.to_string().contains("; "), "{error}");
    }

    fn accepts(&self, peer: impl Fn() -> Hostile) {
        for role in [PeerRole::Client, PeerRole::Server] {
            let outcome = self.ours.against(role, peer().into_peer(role));
            assert!(outcome.is_good(), "a {role:?} as peer: {outcome:?}");
        }
    }

    fn refuses_issued(&self, params: &CertificateParams, expected: &str) {
        let identity = self.middle.issue(params);
        self.refuses_both(|| Hostile::new(&identity), expected);
    }
}

#[test]
fn a_right_peer_is_accepted_with_and_without_lists_and_intermediates() {
    let world = World::new();
    let (below, direct) = (world.middle.issue(&good("peer")), world.root.issue(&good("peer")));
    world.accepts(|| Hostile::new(&below));
    world.accepts(|| Hostile::new(&direct));
    let plain = World::with_crls(world.root, world.middle, None);
    plain.accepts(|| Hostile::new(&below));
    let both = plain.folder.load().unwrap();
    assert!(drive(client(both.client()), server(both.server())).is_good());
}

#[test]
fn usages_that_are_not_restricted_are_allowed() {
    let world = World::new();
    let mut params = good("peer");
    params.extended_key_usages.clear();
    params.key_usages.clear();
    let identity = world.middle.issue(&params);
    world.accepts(|| Hostile::new(&identity));
}

#[test]
fn expired() {
    let mut params = good("peer");
    params.not_after = now() - Duration::minutes(1);
    World::new().refuses_issued(&params, "Expired");
}

#[test]
fn not_valid_yet() {
    let mut params = good("peer");
    params.not_before = now() + Duration::minutes(10);
    World::new().refuses_issued(&params, "NotValidYet");
}

#[test]
fn dates_the_wrong_way_round() {
    let mut params = good("peer");
    (params.not_before, params.not_after) = (params.not_after, params.not_before);
    World::new().refuses_issued(&params, "Expired");
}

#[test]
fn an_intermediate_that_is_expired() {
    let world = World::new();
    let mut params = good_ca("old");
    params.not_after = now() - Duration::minutes(1);
    let identity = world.root.intermediate(params).issue(&good("peer"));
    world.refuses_both(|| Hostile::new(&identity), "Expired");
}

#[test]
fn a_root_that_is_not_valid_yet_by_a_clock_that_was_set_back() {
    let mut params = good_ca("root");
    params.not_before = now() - Duration::minutes(20);
    let root = Ca::root_with(params);
    let middle = root.intermediate(good_ca("middle"));
    let identity = middle.issue(&good("peer"));
    let mut world = World::with_crls(root, middle, None);
    world.accepts(|| Hostile::new(&identity));
    world.ours.ahead_s = -30 * 60;
    world.refuses_both(|| Hostile::new(&identity), "NotValidYet");
}

#[test]
fn a_root_that_expires_while_the_process_runs() {
    let mut params = good_ca("root");
    params.not_after = now() + Duration::minutes(30);
    let root = Ca::root_with(params);
    let middle = root.intermediate(good_ca("middle"));
    let identity = middle.issue(&good("peer"));
    let mut world = World::with_crls(root, middle, None);
    world.accepts(|| Hostile::new(&identity));
    world.ours.ahead_s = 40 * 60;
    world.refuses_both(|| Hostile::new(&identity), "Expired");
}

#[test]
fn another_ca() {
    let identity = Ca::root("another").issue(&good("peer"));
    World::new().refuses_both(|| Hostile::new(&identity), "UnknownIssuer");
}

#[test]
fn another_ca_that_is_sent_along() {
    let other = Ca::root("another");
    let mut identity = other.issue(&good("peer"));
    identity.chain.push(other.der.clone());
    World::new().refuses_both(|| Hostile::new(&identity), "UnknownIssuer");
}

#[test]
fn another_ca_of_the_same_name() {
    let identity = Ca::root("root").issue(&good("peer"));
    World::new().refuses_both(|| Hostile::new(&identity), "BadSignature");
}

#[test]
fn self_signed() {
    let key = key();
    let chain = vec![good("peer").self_signed(&key).unwrap().der().to_vec()];
    let identity = Identity { chain, key };
    World::new().refuses_both(|| Hostile::new(&identity), "UnknownIssuer");
}

#[test]
fn the_usage_of_the_other_side() {
    let world = World::new();
    let (mut of_server, mut of_client) = (good("peer"), good("peer"));
    of_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    of_client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    for (params, right, wrong) in [
        (of_server, PeerRole::Server, PeerRole::Client),
        (of_client, PeerRole::Client, PeerRole::Server),
    ] {
        let identity = world.middle.issue(&params);
        world.refuses(wrong, Hostile::new(&identity).into_peer(wrong), "InvalidPurpose");
        let outcome = world.ours.against(right, Hostile::new(&identity).into_peer(right));
        assert!(outcome.is_good(), "{outcome:?}");
    }
}

#[test]
fn a_usage_of_neither_side() {
    let mut params = good("peer");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    World::new().refuses_issued(&params, "InvalidPurpose");
}

#[test]
fn a_key_that_may_not_sign() {
    let mut params = good("peer");
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    World::new().refuses_issued(&params, "KeyUsage");
}

#[test]
fn revoked() {
    let params = good("peer");
    World::revoking(&[], &[&params]).refuses_issued(&params, "Revoked");
}

#[test]
fn revoked_by_the_newer_of_two_lists_in_any_order() {
    let params = good("peer");
    let (until, old, new) =
        (now() + Duration::hours(1), now() - Duration::minutes(2), now() - Duration::minutes(1));
    // In the order of the file: the start of each list, and whether it revokes. Of two lists with
    // the same start, the later one in the file counts.
    for lists in
        [[(old, false), (new, true)], [(new, true), (old, false)], [(new, false), (new, true)]]
    {
        let root = Ca::root("root");
        let middle = root.intermediate(good_ca("middle"));
        let identity = middle.issue(&params);
        let list = |(since, revokes)| {
            let revoked: &[_] = if revokes { &[&params] } else { &[] };
            middle.crl_of(revoked, since, until)
        };
        let crls = root.crl(&[]) + &lists.map(list).concat();
        let world = World::with_crls(root, middle, Some(crls));
        world.refuses_both(|| Hostile::new(&identity), "Revoked");
    }
}

#[test]
fn an_intermediate_that_is_revoked() {
    let bad = good_ca("bad");
    let root = Ca::root("root");
    let middle = root.intermediate(good_ca("middle"));
    let under = root.intermediate(bad.clone());
    let crls = root.crl(&[&bad]) + &middle.crl(&[]) + &under.crl(&[]);
    let identity = under.issue(&good("peer"));
    World::with_crls(root, middle, Some(crls)).refuses_both(|| Hostile::new(&identity), "Revoked");
}

#[test]
fn a_list_that_becomes_stale_while_the_process_runs() {
    let mut root = good_ca("root");
    let mut below = good_ca("middle");
    let mut peer = good("peer");
    for params in [&mut root, &mut below, &mut peer] {
        params.not_after = now() + Duration::days(10);
    }
    let root = Ca::root_with(root);
    let middle = root.intermediate(below);
    let identity = middle.issue(&peer);
    let crls = root.crl(&[]) + &middle.crl(&[]);
    let mut world = World::with_crls(root, middle, Some(crls));
    world.accepts(|| Hostile::new(&identity));
    world.ours.ahead_s = 2 * 3600;
    world.refuses_both(|| Hostile::new(&identity), "ExpiredRevocationList");
}

#[test]
fn an_issuer_without_a_list_where_there_are_lists() {
    let world = World::new();
    let identity = world.root.intermediate(good_ca("unlisted")).issue(&good("peer"));
    world.refuses_both(|| Hostile::new(&identity), "UnknownRevocationStatus");
}

#[test]
fn a_list_that_its_ca_did_not_sign() {
    let root = Ca::root("root");
    let middle = root.intermediate(good_ca("middle"));
    let other = root.intermediate(good_ca("other"));
    let impostor = Ca::root("other");
    let crls = root.crl(&[]) + &middle.crl(&[]) + &impostor.crl(&[]);
    let identity = other.issue(&good("peer"));
    let world = World::with_crls(root, middle, Some(crls));
    world.refuses_both(|| Hostile::new(&identity), "CRL BadSignature");
}

#[test]
fn a_missing_intermediate() {
    let world = World::new();
    let mut identity = world.middle.issue(&good("peer"));
    identity.chain.truncate(1);
    world.refuses_both(|| Hostile::new(&identity), "UnknownIssuer");
}

#[test]
fn a_chain_that_is_too_long() {
    let world = World::new();
    let mut ca = world.root.intermediate(good_ca("1"));
    for name in ["2", "3", "4", "5"] {
        ca = ca.intermediate(good_ca(name));
    }
    let identity = ca.issue(&good("peer"));
    world.refuses_both(|| Hostile::new(&identity), "ChainTooLong(6)");
    let mut padded = world.middle.issue(&good("peer"));
    padded.chain.resize(6, world.middle.der.clone());
    world.refuses_both(|| Hostile::new(&padded), "ChainTooLong(6)");
}

#[test]
fn a_ca_that_may_have_no_ca_below_it() {
    let world = World::new();
    let mut last = good_ca("last");
    last.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let identity = world.root.intermediate(last).intermediate(good_ca("more")).issue(&good("peer"));
    world.refuses_both(|| Hostile::new(&identity), "PathLength");
}

#[test]
fn a_certificate_issued_by_one_that_is_no_ca() {
    let world = World::new();
    let mut pretender = good_ca("pretender");
    pretender.is_ca = IsCa::ExplicitNoCa;
    let identity = world.root.intermediate(pretender).issue(&good("peer"));
    world.refuses_both(|| Hostile::new(&identity), "IssuerNotCa");
}

#[test]
fn a_ca_as_a_peer() {
    let world = World::new();
    let mut params = good_ca("ca");
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    let identity = world.root.issue(&params);
    world.refuses_both(|| Hostile::new(&identity), "CaAsEndEntity");
}

#[test]
fn a_name_outside_of_what_its_ca_may_name() {
    let world = World::new();
    let mut constrained = good_ca("constrained");
    constrained.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("inside.example".into())],
        excluded_subtrees: Vec::new(),
    });
    let ca = world.root.intermediate(constrained);
    let crls = world.root.crl(&[]) + &world.middle.crl(&[]) + &ca.crl(&[]);
    let identity = ca.issue(&good("outside"));
    let world = World::with_crls(world.root, world.middle, Some(crls));
    world.refuses_both(|| Hostile::new(&identity), "NameConstraintViolation");
}

#[test]
fn a_demand_that_is_not_understood() {
    let mut params = good("peer");
    let mut unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 32473, 1], vec![5, 0]);
    unknown.set_criticality(true);
    params.custom_extensions.push(unknown);
    World::new().refuses_issued(&params, "UnhandledCriticalExtension");
}

#[test]
fn a_weak_key() {
    let world = World::new();
    let weak = good("peer").signed_by(&WeakKey::new(), &world.root.issuer).unwrap();
    let identity = Identity { chain: vec![weak.der().to_vec()], key: key() };
    world.refuses_both(|| Hostile::new(&identity), "WeakKey(1024)");
}

#[test]
fn a_weak_key_of_an_intermediate() {
    let world = World::new();
    let weak = good_ca("weak").signed_by(&WeakKey::new(), &world.root.issuer).unwrap();
    let mut identity = Ca::root("weak").issue(&good("peer"));
    identity.chain.push(weak.der().to_vec());
    world.refuses_both(|| Hostile::new(&identity), "WeakKey(1024)");
}

#[test]
fn the_certificate_of_somebody_else() {
    let world = World::new();
    let identity = world.middle.issue(&good("peer"));
    let key = key();
    world.refuses_both(|| Hostile::signing_with(&identity, &key), "BadSignature");
}

#[test]
fn no_certificate() {
    // A server without a certificate ends the handshake itself.
    let server = "AlertReceived(AccessDenied)";
    World::new().refuses_as(Hostile::nobody, "NoCertificatesPresented", server);
}

#[test]
fn something_that_is_no_certificate() {
    let world = World::new();
    for bytes in [vec![], vec![0x30, 0x03, 0x02, 0x01, 0x00], vec![0xff; 300]] {
        let identity = Identity { chain: vec![bytes], key: key() };
        world.refuses_both(|| Hostile::new(&identity), "BadEncoding");
    }
}

#[test]
fn something_that_is_no_certificate_behind_a_right_one() {
    let world = World::new();
    let mut identity = world.root.issue(&good("peer"));
    identity.chain.push(vec![0x30, 0x01, 0x00]);
    world.refuses_both(|| Hostile::new(&identity), "BadEncoding");
}

#[test]
fn another_name_where_names_are_checked() {
    let mut world = World::new();
    world.ours.expects = Some(ServerName::try_from("primary.example").unwrap());
    let (wrong, right) = (world.middle.issue(&good("peer")), world.middle.issue(&good("primary")));
    let peer = Hostile::new(&wrong).into_peer(PeerRole::Server);
    world.refuses(PeerRole::Server, peer, "NotValidForName");
    world.accepts(|| Hostile::new(&right));
    // No certain name is expected of a client.
    let peer = Hostile::new(&wrong).into_peer(PeerRole::Client);
    assert!(world.ours.against(PeerRole::Client, peer).is_good());
}

#[test]
fn other_ciphers() {
    let world = World::new();
    let identity = world.middle.issue(&good("peer"));
    for suite in [TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256] {
        world.refuses_as(
            || Hostile::new(&identity).with_suite(suite),
            "PeerIncompatible(NoCipherSuitesInCommon)",
            "AlertReceived(HandshakeFailure)",
        );
    }
}

/// A record of a handshake with one message.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 3];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

#[test]
fn a_peer_of_tls_1_2() {
    let world = World::new();
    // Version 1.2, 32 random bytes, no session, then the suite that both would like.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    let suite = 0xc02c_u16.to_be_bytes(); // ECDHE-ECDSA with AES-256-GCM
    let algorithms = [0, 8, 0, 13, 0, 4, 0, 2, 4, 3]; // signatures: ECDSA with P-256 and SHA-256
    let client = [&hello[..], &[0, 0, 2], &suite, &[1, 0], &algorithms].concat();
    let peer = Peer::Bytes(record(1, &client));
    world.refuses(PeerRole::Client, peer, "PeerIncompatible(SupportedVersionsExtensionRequired)");
    let server = [&hello[..], &[0], &suite, &[0, 0, 0]].concat();
    let peer = Peer::Bytes(record(2, &server));
    world.refuses(
        PeerRole::Server,
        peer,
        "PeerIncompatible(ServerTlsVersionIsDisabledByOurConfig)",
    );
}

#[test]
fn a_peer_without_tls() {
    let world = World::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let invalid = "InvalidMessage(InvalidContentType)";
        world.refuses(PeerRole::Client, Peer::Bytes(bytes.to_vec()), invalid);
        world.refuses(PeerRole::Server, Peer::Bytes(bytes.to_vec()), invalid);
    }
}

#[test]
fn a_peer_that_is_silent_delivers_nothing() {
    let world = World::new();
    for role in [PeerRole::Client, PeerRole::Server] {
        let outcome = world.ours.against(role, Peer::Bytes(Vec::new()));
        assert!(!outcome.client.established && !outcome.server.established);
        assert!(outcome.client.received.is_empty() && outcome.server.received.is_empty());
    }
}

#[test]
fn no_connection_can_be_resumed() {
    let world = World::new();
    let identity = world.middle.issue(&good("peer"));
    // The same configurations several times, so that a ticket would be used if there were one.
    let (ours, config) = (world.ours.tls.server(), world.ours.tls.client());
    for _ in 0..3 {
        let outcome = drive(client(config.clone()), server(ours.clone()));
        assert!(outcome.is_good(), "{outcome:?}");
        world.accepts(|| Hostile::new(&identity));
    }
    assert_eq!(ours.send_tls13_tickets, 0);
    assert_eq!(ours.max_early_data_size, 0);
    assert!(!ours.session_storage.can_cache());
    assert!(!config.enable_early_data);
}

/// A connection may outlast its certificate, and must still be closed when that is revoked.
#[test]
fn a_certificate_that_has_ended_is_found_in_a_list_that_revokes_it() {
    let root = Ca::root("root");
    let mut params = [good("revoked"), good("ended")];
    for params in &mut params {
        params.not_after = now() - Duration::minutes(30);
    }
    let crl = root.crl(&[&params[0]]);
    let tls = Folder::with(&root, &root.issue(&good("ours")), Some(&crl)).load().expect("right");
    for (params, is_revoked) in [(&params[0], true), (&params[1], false)] {
        let chain: Vec<_> =
            root.issue(params).chain.into_iter().map(CertificateDer::from).collect();
        assert_eq!(tls.is_revoked(PeerRole::Client, &PeerChain::from(chain)), is_revoked);
    }
}

/// The CA's certificate was renewed with its old key, and the file has both certificates.
#[test]
fn a_root_that_was_renewed_lasts_as_long_as_the_last_of_its_certificates() {
    let (root_key, mut params) = (key(), good_ca("root"));
    let older = params.self_signed(&root_key).expect("it signs itself").der().to_vec();
    params.not_after = now() + Duration::hours(5);
    let newer = params.self_signed(&root_key).expect("it signs itself").der().to_vec();
    let root = Ca { issuer: Issuer::new(params, root_key), der: newer, above: Vec::new() };
    let mut peer = good("peer");
    peer.not_after = now() + Duration::hours(4);
    let identity = root.issue(&peer);
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    folder.write(&folder.files.ca, &(pem("CERTIFICATE", &older) + &root.pem()));
    let mut ours = Ours::new(folder.load().expect("both are right"));
    ours.ahead_s = 2 * 3600; // the older certificate has ended
    for role in [PeerRole::Client, PeerRole::Server] {
        assert!(ours.against(role, Hostile::new(&identity).into_peer(role)).is_good(), "{role:?}");
    }
}
