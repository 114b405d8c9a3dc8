// SPDX-License-Identifier: MIT OR Apache-2.0
//! A callback that judges peers with OpenSSL's objects. It replaces the rules, but neither the
//! proof that a peer has its key, nor the bounds. Skipped, with the reason, where there is no
//! libcrypto.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use dlock_fabric::tls::{
    CertVerifyCallback, CertVerifyFn, Leniency, NoPassword, OpensslFault, PeerRole, Tls, TlsError,
    CHAIN_CERTIFICATES_MAX,
};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, Error, OtherError};

use crate::drive::{client, drive, name, server, Outcome};
use crate::hostile::Hostile;
use crate::pki::{good, good_ca, key, Ca, Folder};

unsafe extern "C-unwind" fn accepts(_: *mut c_void, _: *const c_char) -> c_int {
    c_int::MAX
}

unsafe extern "C-unwind" fn refuses(_: *mut c_void, _: *const c_char) -> c_int {
    c_int::MIN
}

unsafe extern "C-unwind" fn panics(_: *mut c_void, _: *const c_char) -> c_int {
    panic!("a callback in Rust")
}

unsafe extern "C-unwind" fn verifies(ctx: *mut c_void, _: *const c_char) -> c_int {
    type Verify = unsafe extern "C" fn(*mut c_void) -> c_int;
    for library in [c"libcrypto.so.3", c"libcrypto.so.1.1"] {
        // SAFETY: C strings; the library is the one that gave the context, which is looked for in
        // the same order, and its function has this signature.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if !library.is_null() {
                let verify = libc::dlsym(library, c"X509_verify_cert".as_ptr());
                let verify = std::mem::transmute::<*mut c_void, Verify>(verify);
                return if verify(ctx) == 1 { 0 } else { -1 };
            }
        }
    }
    panic!("a context, and no library that made it")
}

/// A callback with this function; `None`: there is no libcrypto here.
fn callback(folder: &Folder, function: CertVerifyFn) -> Option<CertVerifyCallback> {
    // SAFETY: the functions of this file do not end, and use nothing but what they are given.
    match unsafe { CertVerifyCallback::new(function, folder.files.crl.as_deref()) } {
        Ok(callback) => Some(callback),
        Err(error @ TlsError::Libcrypto(_)) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A callback that accepts every peer.
pub fn accepts_all(folder: &Folder) -> Option<CertVerifyCallback> {
    callback(folder, accepts)
}

fn load(folder: &Folder, function: CertVerifyFn) -> Option<Tls> {
    let callback = Some(callback(folder, function)?);
    let leniency = Leniency::AsOpenssl { callback, key_may_wait: false };
    let tls = Tls::load_with(leniency, folder.files.clone(), Arc::new(NoPassword));
    Some(tls.expect("the files are right"))
}

/// The outcomes of a connection with the peer as client, and as server.
fn outcomes(tls: &Tls, peer: impl Fn() -> Hostile) -> [Outcome; 2] {
    [
        drive(peer().into_peer(PeerRole::Client), server(tls.server())),
        drive(client(tls.client()), peer().into_peer(PeerRole::Server)),
    ]
}

fn refused(tls: &Tls, peer: impl Fn() -> Hostile) -> [Error; 2] {
    let [as_client, as_server] = outcomes(tls, peer);
    for side in [&as_client.client, &as_client.server, &as_server.client, &as_server.server] {
        assert!(side.received.is_empty(), "{side:?}");
    }
    let error = |error: Option<Error>| error.expect("it is refused");
    [error(as_client.server.error), error(as_server.client.error)]
}

fn fault(error: &Error) -> &OpensslFault {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
            inner.downcast_ref().unwrap_or_else(|| panic!("{error:?}"))
        }
        _ => panic!("{error:?}"),
    }
}

#[test]
fn the_answer_of_the_callback_counts_and_the_rules_do_not() {
    let (root, other) = (Ca::root("root"), Ca::root("other"));
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    let (right, wrong) = (root.issue(&good("peer")), other.issue(&good("peer")));
    let Some(tls) = load(&folder, accepts) else { return };
    assert!(outcomes(&tls, || Hostile::new(&wrong)).iter().all(Outcome::is_good));
    let Some(tls) = load(&folder, refuses) else { return };
    for error in refused(&tls, || Hostile::new(&right)) {
        let text = TlsError::from(error).to_string();
        let expected = format!(
            "TLS: invalid peer certificate: cert_verify_cb refuses it ({}); see what \
             cert_verify_cb of this program checks, or give the peer another certificate",
            c_int::MIN
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn a_panic_in_the_callback_refuses() {
    let root = Ca::root("root");
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    let peer = root.issue(&good("peer"));
    let Some(tls) = load(&folder, panics) else { return };
    for error in refused(&tls, || Hostile::new(&peer)) {
        assert_eq!(fault(&error), &OpensslFault::Panicked);
    }
}

#[test]
fn a_peer_without_the_key_of_its_certificate_is_refused_whatever_the_callback_says() {
    let root = Ca::root("root");
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    let (peer, stolen) = (root.issue(&good("peer")), key());
    let Some(tls) = load(&folder, accepts) else { return };
    for error in refused(&tls, || Hostile::signing_with(&peer, &stolen)) {
        assert_eq!(name(&error), "BadSignature");
    }
}

#[test]
fn bounds_and_an_expected_name_stay_and_a_long_chain_does_not_reach_the_callback() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C-unwind" fn counts(_: *mut c_void, _: *const c_char) -> c_int {
        CALLS.fetch_add(1, Ordering::Relaxed);
        0
    }
    let mut ca = Ca::root("root");
    let folder = Folder::with(&ca, &ca.issue(&good("ours")), None);
    let peer = ca.issue(&good("peer"));
    for n in 0..CHAIN_CERTIFICATES_MAX {
        ca = ca.intermediate(good_ca(&format!("middle {n}")));
    }
    let long = ca.issue(&good("peer"));
    let Some(tls) = load(&folder, counts) else { return };
    for error in refused(&tls, || Hostile::new(&long)) {
        assert_eq!(name(&error), "ChainTooLong(6)");
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    let elsewhere = ServerName::try_from("elsewhere.example").unwrap();
    for (name, is_good) in
        [(elsewhere, false), (ServerName::try_from("peer.example").unwrap(), true)]
    {
        let peer = Hostile::new(&peer).into_peer(PeerRole::Server);
        assert_eq!(drive(client(tls.client_expecting(name)), peer).is_good(), is_good);
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 2);
}

#[test]
fn what_openssl_finds_is_told_and_a_new_list_counts_for_it() {
    let root = Ca::root("root");
    let params = good("peer");
    let peer = root.issue(&params);
    let folder = Folder::with(&root, &root.issue(&good("ours")), Some(&root.crl(&[])));
    let Some(tls) = load(&folder, verifies) else { return };
    assert!(outcomes(&tls, || Hostile::new(&peer)).iter().all(Outcome::is_good));
    let crl = folder.files.crl.as_deref().expect("there is one");
    folder.write(crl, &root.crl(&[&params]));
    tls.reload().expect("all is right");
    for error in refused(&tls, || Hostile::new(&peer)) {
        let found = Some((23, 0, "certificate revoked".to_string()));
        assert_eq!(fault(&error), &OpensslFault::Refused { answer: -1, found });
    }
}

#[test]
fn openssl_is_asked_for_the_role_of_the_peer() {
    let root = Ca::root("root");
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    let mut params = good("peer");
    params.extended_key_usages.pop(); // removes the usage serverAuth
    let peer = root.issue(&params);
    let Some(tls) = load(&folder, verifies) else { return };
    let [as_client, as_server] = outcomes(&tls, || Hostile::new(&peer));
    assert!(as_client.is_good(), "{as_client:?}");
    let error = as_server.client.error.expect("it is no server's");
    assert!(fault(&error).to_string().contains("error 26 at depth 0"), "{error:?}");
}
