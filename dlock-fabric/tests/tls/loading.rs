// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of wrong files, each with its own error, and all permitted formats of keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, os::unix};

use dlock_fabric::tls::{
    FilePassword, FixedPassword, KeyPassword, NoPassword, PeerIdentity, PeerRole, Tls, TlsError,
    CA_CERTIFICATES_MAX, CERTIFICATE_FILE_BYTES_MAX, CRLS_MAX, CRL_FILE_BYTES_MAX,
    KEY_FILE_BYTES_MAX,
};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use rcgen::{SignatureAlgorithm, PKCS_RSA_SHA256};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::Duration;

use crate::drive::{client, drive, server};
use crate::pki::{der, fixture, good, good_ca, now, pem, Ca, Folder, Identity, WeakKey};

const PASSWORD: &[u8] = b"correct horse";

/// A correct set of files; each test spoils one thing.
struct Case {
    ca: Ca,
    folder: Folder,
}

impl Case {
    fn new() -> Self {
        let ca = Ca::root("root");
        let crl = ca.crl(&[]);
        let folder = Folder::with(&ca, &ca.issue(&good("node")), Some(&crl));
        Self { ca, folder }
    }

    /// A set with a key of these fixtures, and a certificate for it.
    fn with_key(plain: &str, algorithm: &'static SignatureAlgorithm, used: &str) -> Self {
        let case = Self::new();
        let key = PrivatePkcs8KeyDer::from(der(&fixture(plain)));
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, algorithm).expect("a key");
        let identity = case.ca.issue_for(&good("node"), key);
        case.folder.write(&case.cert(), &identity.cert_pem());
        case.folder.write(&case.key(), &fixture(used));
        case
    }

    fn encrypted(used: &str) -> Self {
        Self::with_key("p256.pem", &PKCS_ECDSA_P256_SHA256, used)
    }

    fn cert(&self) -> PathBuf {
        self.folder.files.cert.clone()
    }

    fn key(&self) -> PathBuf {
        self.folder.files.key.clone()
    }

    fn crl(&self) -> PathBuf {
        self.folder.files.crl.clone().expect("there is one")
    }

    fn all(&self) -> [PathBuf; 4] {
        [self.folder.files.ca.clone(), self.crl(), self.cert(), self.key()]
    }

    fn write(&self, path: &Path, text: &str) {
        self.folder.write(path, text);
    }

    fn write_identity(&self, identity: &Identity) {
        self.write(&self.cert(), &identity.cert_pem());
        self.write(&self.key(), &identity.key_pem());
    }

    fn with(&self, password: impl KeyPassword + 'static) -> Result<Tls, TlsError> {
        Tls::load(self.folder.files.clone(), Arc::new(password))
    }

    /// The error of loading, whose message names the file and has a remedy.
    fn error(&self, about: &Path) -> TlsError {
        self.error_with(about, NoPassword)
    }

    fn error_with(&self, about: &Path, password: impl KeyPassword + 'static) -> TlsError {
        let error = self.with(password).expect_err("it is wrong");
        let text = error.to_string();
        assert!(text.contains(&*about.to_string_lossy()), "no file in: {text}");
        assert!(text.contains("; ") || text.contains('?'), "no remedy in: {text}");
        assert!(!text.contains('\n'), "{text}");
        error
    }

    fn connects(&self, password: impl KeyPassword + 'static) {
        let tls = self.with(password).expect("it is right");
        let outcome = drive(client(tls.client()), server(tls.server()));
        assert!(outcome.is_good(), "{outcome:?}");
    }
}

macro_rules! assert_is {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    };
}

#[test]
fn what_is_right_connects() {
    Case::new().connects(NoPassword);
}

#[test]
fn every_format_of_key_connects() {
    for (plain, algorithm, used) in [
        ("p256.pem", &PKCS_ECDSA_P256_SHA256, "p256.pem"),
        ("p256.pem", &PKCS_ECDSA_P256_SHA256, "p256-sec1.pem"),
        ("p384.pem", &PKCS_ECDSA_P384_SHA384, "p384.pem"),
        ("p384.pem", &PKCS_ECDSA_P384_SHA384, "p384-sec1.pem"),
        ("ed25519.pem", &PKCS_ED25519, "ed25519.pem"),
        ("rsa2048.pem", &PKCS_RSA_SHA256, "rsa2048.pem"),
        ("rsa2048.pem", &PKCS_RSA_SHA256, "rsa2048-pkcs1.pem"),
    ] {
        Case::with_key(plain, algorithm, used).connects(NoPassword);
    }
    for used in ["p256-pbkdf2.pem", "p256-scrypt.pem"] {
        Case::encrypted(used).connects(FixedPassword::new(PASSWORD.to_vec()));
    }
}

#[test]
fn a_password_may_be_in_a_file() {
    let case = Case::encrypted("p256-pbkdf2.pem");
    let path = case.folder.path("password");
    for text in ["correct horse", "correct horse\n", "correct horse\r\nmore\n"] {
        case.write(&path, text);
        case.connects(FilePassword::new(path.clone()));
    }
    case.write(&path, "correct horse \n");
    let error = case.error_with(&case.key(), FilePassword::new(path.clone()));
    assert_is!(error, TlsError::PasswordWrong { .. });
    fs::remove_file(&path).unwrap();
    assert_is!(case.error_with(&path, FilePassword::new(path.clone())), TlsError::Missing { .. });
}

#[test]
fn no_password_is_asked_for_a_plain_key() {
    #[derive(Debug)]
    struct Never;
    impl KeyPassword for Never {
        fn password(&self) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, TlsError> {
            panic!("nobody needs one")
        }
    }
    Case::new().connects(Never);
}

#[test]
fn wrong_and_missing_passwords() {
    for used in ["p256-pbkdf2.pem", "p256-scrypt.pem"] {
        let case = Case::encrypted(used);
        let key = case.key();
        assert_is!(case.error(&key), TlsError::PasswordMissing { .. });
        for wrong in [&b"wrong horse"[..], b"", b"correct horse ", &[0xff; 1000]] {
            let error = case.error_with(&key, FixedPassword::new(wrong.to_vec()));
            assert_is!(error, TlsError::PasswordWrong { .. });
        }
    }
}

#[test]
fn a_wrong_password_is_told_even_if_its_padding_is_right() {
    // One wrong password in 256 gives the right padding. These were found by trying.
    let case = Case::encrypted("p256-pbkdf2.pem");
    for number in [601, 788, 810] {
        let password = FixedPassword::new(format!("wrong {number}").into_bytes());
        assert_is!(case.error_with(&case.key(), password), TlsError::PasswordWrong { .. });
    }
}

#[test]
fn encryption_that_is_weak_costly_or_old() {
    for used in ["p256-sha1.pem", "p256-3des.pem", "p256-pbes1.pem", "p256-traditional.pem"] {
        let case = Case::encrypted(used);
        let error = case.error_with(&case.key(), FixedPassword::new(PASSWORD.to_vec()));
        assert_is!(error, TlsError::UnsupportedEncryption { .. });
    }
    let case = Case::encrypted("p256-costly.pem");
    let error = case.error_with(&case.key(), FixedPassword::new(PASSWORD.to_vec()));
    assert_is!(error, TlsError::CostlyEncryption { .. });
}

#[test]
fn a_missing_file() {
    for file in Case::new().all() {
        let case = Case::new();
        let path = case.folder.path(&file.file_name().unwrap().to_string_lossy());
        fs::remove_file(&path).unwrap();
        assert_is!(case.error(&path), TlsError::Missing { .. });
    }
}

/// Runs the test for each file, in a fresh set.
fn each_file(test: impl Fn(&Case, &Path)) {
    for number in 0..4 {
        let case = Case::new();
        let path = case.all()[number].clone();
        test(&case, &path);
    }
}

#[test]
fn an_unreadable_file() {
    // Not even root can read a link to itself.
    each_file(|case, path| {
        fs::remove_file(path).unwrap();
        unix::fs::symlink(path, path).unwrap();
        assert_is!(case.error(path), TlsError::Unreadable { .. });
    });
}

#[test]
fn a_folder_or_a_pipe_in_place_of_a_file() {
    each_file(|case, path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
        assert_is!(case.error(path), TlsError::NotAFile { .. });
    });
    // A pipe without a writer: loading must not wait for a writer.
    each_file(|case, path| {
        fs::remove_file(path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path).status();
        if made.is_ok_and(|status| status.success()) {
            assert_is!(case.error(path), TlsError::NotAFile { .. });
        }
    });
}

#[test]
fn an_empty_file() {
    each_file(|case, path| {
        case.write(path, "");
        assert_is!(case.error(path), TlsError::Empty { .. });
    });
}

#[test]
fn garbage_in_place_of_pem() {
    each_file(|case, path| {
        for garbage in
            ["\0\u{1}\u{2}binary", "-----BEGIN NOTHING-----\nAAAA\n-----END NOTHING-----\n"]
        {
            case.write(path, garbage);
            assert_is!(case.error(path), TlsError::Nothing { .. });
        }
    });
}

#[test]
fn pem_that_breaks_off() {
    each_file(|case, path| {
        let whole = fs::read_to_string(path).unwrap();
        let end = whole.find("-----END").unwrap();
        for cut in [end, end - 10, 40] {
            case.write(path, &whole[..cut]);
            assert_is!(case.error(path), TlsError::Pem { .. });
        }
        case.write(path, &whole.replacen('M', "!", 1));
        assert_is!(case.error(path), TlsError::Pem { .. });
    });
}

#[test]
fn no_prefix_of_a_key_file_makes_trouble() {
    for text in [fixture("p256-sec1.pem"), fixture("p256-pbkdf2.pem")] {
        let case = Case::new();
        for len in 1..text.trim_end().len() {
            case.write(&case.key(), &text[..len]);
            let error = case.error_with(&case.key(), FixedPassword::new(PASSWORD.to_vec()));
            assert_is!(error, TlsError::Pem { .. } | TlsError::Nothing { .. });
        }
    }
}

#[test]
fn der_that_is_not_what_the_label_says() {
    let case = Case::new();
    let [ca, crl, cert, key] = case.all();
    let (list, certificate) = (der(&fs::read_to_string(&crl).unwrap()), case.ca.der.clone());
    for (path, label, bytes) in [
        (&ca, "CERTIFICATE", &list[..]),
        (&cert, "CERTIFICATE", &[0x30, 3, 2, 1, 0]),
        (&crl, "X509 CRL", &certificate),
    ] {
        let whole = fs::read_to_string(path).unwrap();
        case.write(path, &pem(label, bytes));
        assert_is!(case.error(path), TlsError::Malformed { .. });
        case.write(path, &whole);
    }
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY"] {
        case.write(&key, &pem(label, &certificate));
        assert_is!(case.error(&key), TlsError::UnsupportedKey { .. });
    }
    case.write(&key, &pem("ENCRYPTED PRIVATE KEY", &certificate));
    assert_is!(case.error(&key), TlsError::UnsupportedEncryption { .. });
}

#[test]
fn a_file_that_is_too_large() {
    let bounds = [
        CERTIFICATE_FILE_BYTES_MAX,
        CRL_FILE_BYTES_MAX,
        CERTIFICATE_FILE_BYTES_MAX,
        KEY_FILE_BYTES_MAX,
    ];
    for (number, bound) in bounds.into_iter().enumerate() {
        let case = Case::new();
        let path = case.all()[number].clone();
        // The file has holes, and is never read.
        fs::File::create(&path).unwrap().set_len(bound + 1).unwrap();
        assert_is!(case.error(&path), TlsError::TooLarge { bytes_max, .. } if *bytes_max == bound);
    }
}

#[test]
fn more_of_them_than_the_bounds() {
    let case = Case::new();
    let [ca, crl, _, key] = case.all();
    let whole = fs::read_to_string(&ca).unwrap();
    case.write(&ca, &whole.repeat(CA_CERTIFICATES_MAX));
    case.connects(NoPassword);
    case.write(&ca, &whole.repeat(CA_CERTIFICATES_MAX + 1));
    assert_is!(case.error(&ca), TlsError::TooMany { .. });
    case.write(&ca, &whole);
    case.write(&crl, &fs::read_to_string(&crl).unwrap().repeat(CRLS_MAX + 1));
    assert_is!(case.error(&crl), TlsError::TooMany { .. });
    case.write(&crl, &case.ca.crl(&[]));
    case.write(&key, &fs::read_to_string(&key).unwrap().repeat(2));
    assert_is!(case.error(&key), TlsError::TooMany { max: 1, .. });
}

#[test]
fn a_chain_that_peers_would_refuse() {
    let case = Case::new();
    let mut ca = case.ca.intermediate(good_ca("1"));
    for name in ["2", "3", "4"] {
        ca = ca.intermediate(good_ca(name));
    }
    case.write_identity(&ca.issue(&good("node")));
    case.with(NoPassword).expect("five certificates are allowed");
    case.write_identity(&ca.intermediate(good_ca("5")).issue(&good("node")));
    assert_is!(case.error(&case.cert()), TlsError::ChainTooLong { found: 6, .. });
}

#[test]
fn a_key_of_another_certificate() {
    let case = Case::new();
    case.write(&case.key(), &case.ca.issue(&good("other")).key_pem());
    assert_is!(case.error(&case.key()), TlsError::KeyMismatch { .. });
    case.write(&case.key(), &fixture("rsa2048.pem"));
    assert_is!(case.error(&case.key()), TlsError::KeyMismatch { .. });
}

#[test]
fn a_kind_of_key_that_is_not_supported() {
    let case = Case::new();
    case.write(&case.key(), &fixture("p521.pem"));
    assert_is!(case.error(&case.key()), TlsError::UnsupportedKey { .. });
}

#[test]
fn weak_keys() {
    let case = Case::new();
    let [ca, _, cert, _] = case.all();
    let weak = |params: rcgen::CertificateParams| {
        let made = params.signed_by(&WeakKey::new(), &case.ca.issuer).unwrap();
        pem("CERTIFICATE", made.der())
    };
    let own = fs::read_to_string(&cert).unwrap();
    case.write(&cert, &weak(good("node")));
    assert_is!(case.error(&cert), TlsError::WeakKey { bits: 1024, .. });
    case.write(&cert, &(own.clone() + &weak(good_ca("middle"))));
    assert_is!(case.error(&cert), TlsError::WeakKey { bits: 1024, .. });
    case.write(&cert, &own);
    case.write(&ca, &(case.ca.pem() + &weak(good_ca("weak"))));
    assert_is!(case.error(&ca), TlsError::WeakKey { bits: 1024, .. });
}

#[test]
fn certificates_that_are_not_valid_now() {
    let case = Case::new();
    let mut old = good("node");
    old.not_after = now() - Duration::minutes(1);
    case.write_identity(&case.ca.issue(&old));
    assert_is!(case.error(&case.cert()), TlsError::NotCurrent { cause: "expired", .. });
    let mut early = good("node");
    early.not_before = now() + Duration::minutes(10);
    case.write_identity(&case.ca.issue(&early));
    assert_is!(case.error(&case.cert()), TlsError::NotCurrent { cause: "not valid yet", .. });
}

#[test]
fn a_ca_that_is_not_valid_now() {
    let case = Case::new();
    let [ca, ..] = case.all();
    let mut old = good_ca("old");
    old.not_after = now() - Duration::minutes(1);
    let old = Ca::root_with(old);
    case.write(&ca, &(old.pem() + &case.ca.pem()));
    case.connects(NoPassword);
    case.write(&ca, &old.pem());
    assert_is!(case.error(&ca), TlsError::NoCurrentCa { cause: "expired", .. });
}

#[test]
fn a_ca_file_without_a_ca() {
    let case = Case::new();
    let [ca, _, cert, _] = case.all();
    case.write(&ca, &fs::read_to_string(cert).unwrap());
    assert_is!(case.error(&ca), TlsError::NotACa { .. });
    case.write(&ca, &(case.ca.pem() + &case.ca.issue(&good("node")).cert_pem()));
    assert_is!(case.error(&ca), TlsError::NotACa { .. });
}

#[test]
fn a_ca_in_place_of_the_own_certificate() {
    let case = Case::new();
    let own = fs::read_to_string(case.cert()).unwrap();
    case.write(&case.cert(), &(case.ca.pem() + &own));
    assert_is!(case.error(&case.cert()), TlsError::CaAsEndEntity { .. });
}

#[test]
fn lists_that_are_stale_anothers_or_not_signed() {
    let case = Case::new();
    let crl = case.crl();
    case.write(&crl, &case.ca.crl_until(&[], now() - Duration::minutes(1)));
    assert_is!(case.error(&crl), TlsError::StaleCrl { issuer, .. } if issuer.contains("root"));
    case.write(&crl, &Ca::root("another").crl(&[]));
    assert_is!(case.error(&crl), TlsError::CrlOfAnotherCa { .. });
    case.write(&crl, &Ca::root("root").crl(&[]));
    assert_is!(case.error(&crl), TlsError::CrlSignature { .. });
}

#[test]
fn the_own_certificate_revoked() {
    let case = Case::new();
    let params = good("node");
    case.write_identity(&case.ca.issue(&params));
    case.write(&case.crl(), &case.ca.crl(&[&params]));
    assert_is!(case.error(&case.cert()), TlsError::Revoked { .. });
}

#[test]
fn several_cas_and_lists_are_accepted() {
    let (case, other) = (Case::new(), Ca::root("other"));
    let [ca, crl, ..] = case.all();
    case.write(&ca, &(other.pem() + &case.ca.pem()));
    case.write(&crl, &(case.ca.crl(&[]) + &other.crl(&[])));
    let ours = case.with(NoPassword).expect("it is right");
    let theirs = Case::new();
    theirs.write(&theirs.all()[0], &case.ca.pem());
    theirs.write(&theirs.crl(), &case.ca.crl(&[]));
    theirs.write_identity(&other.issue(&good("theirs")));
    let theirs = theirs.with(NoPassword).expect("peers may have another CA file");
    assert!(drive(client(theirs.client()), server(ours.server())).is_good());
}

#[test]
fn a_name_cannot_break_out_of_a_line_of_the_log() {
    let case = Case::new();
    let mut params = good("evil\nERROR forged\u{1b}[31m");
    params.not_after = now() - Duration::minutes(1);
    params.subject_alt_names.clear();
    case.write_identity(&case.ca.issue(&params));
    let text = case.error(&case.cert()).to_string();
    assert!(!text.contains(['\n', '\u{1b}']), "{text}");
}

/// Changes every byte of each file, one at a time.
#[test]
fn no_changed_byte_makes_trouble_and_none_in_a_certificate_is_accepted() {
    let case = Case::new();
    let identity = case.ca.issue(&good("node"));
    case.write_identity(&identity);
    let tls = case.with(NoPassword).expect("it is right");
    let leaf = &identity.chain[0];
    for place in 0..leaf.len() {
        for bit in [0x01, 0x80] {
            let mut changed = leaf.clone();
            changed[place] ^= bit;
            let chain = [CertificateDer::from(changed)];
            let _ = PeerIdentity::of(&chain); // unverified: must not panic
            for role in [PeerRole::Client, PeerRole::Server] {
                tls.check(role, &chain).expect_err("what is signed was changed");
            }
        }
    }
    for path in case.all() {
        let whole = fs::read_to_string(&path).unwrap();
        let label = whole.lines().next().unwrap().trim_matches('-').replace("BEGIN ", "");
        let bytes = der(&whole);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 0x81;
            case.write(&path, &pem(&label, &changed));
            let _ = case.with(NoPassword); // some may load: a CA's own signature is not checked
        }
        case.write(&path, &whole);
    }
    case.connects(NoPassword);
}
