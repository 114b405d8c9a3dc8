// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds of certificates and keys, made by the commands of `openssl` that people use. A program of
//! the C API accepts what OpenSSL accepts: for each kind OpenSSL is asked, too.

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use dlock_fabric::tls::{
    FixedPassword, KeyPassword, Leniency, NoPassword, PeerChain, PeerRole, Tls, TlsError,
};
use rcgen::date_time_ymd;
use rustls::pki_types::{pem::PemObject, CertificateDer, ServerName};
use rustls::{ClientConnection, ServerConnection};
use time::Duration;

use crate::callback::accepts_all;
use crate::drive::{client, drive, server};
use crate::openssl::{present, talk, Openssl, LINE};
use crate::pki::{good, now, Ca, Folder};

const AS_OPENSSL: Leniency = Leniency::AsOpenssl { callback: None, key_may_wait: false };

/// The original's generator, unchanged except for line breaks.
const CA: &str = "openssl req -newkey rsa:2048 -passout pass:A -keyout ca.key -x509 -days 365 \
                  -out ca.crt -subj /CN=ca\n";
const REQUEST: &str =
    "openssl req -newkey rsa:2048 -passout pass:B -keyout node.key -out node.csr \
                       -subj /CN=node\n";
const SIGN: &str =
    "openssl x509 -req -days 365 -in node.csr -CA ca.crt -CAkey ca.key -passin pass:A \
                    -CAcreateserial -out node.crt\n";
/// The CA and keys that most kinds share, in the folder `$BASE`.
const BASE: &str = "openssl genrsa -out plain.key 2048
openssl pkcs8 -topk8 -in plain.key -out node.key -passout pass:B\n";
const SAME_CA: &str = "cp $BASE/ca.key $BASE/ca.crt .\n";
const SAME_REQUEST: &str = "cp $BASE/node.key .
openssl req -new -key node.key -passin pass:B -out node.csr -subj /CN=node\n";
/// As [`SIGN`], for a certificate of X.509 v3.
const SIGN_V3: &str = "echo basicConstraints=CA:FALSE >v3
openssl x509 -req -days 365 -in node.csr -CA ca.crt -CAkey ca.key -passin pass:A -CAcreateserial \
 -extfile v3 -out node.crt\n";

/// Commands that certify the key in `plain.key`, and then write that key in another format.
fn with_key(make: &str, write: &str) -> String {
    let request = "openssl req -new -key plain.key -out node.csr -subj /CN=node\n";
    format!("{SAME_CA}{make}\n{request}{SIGN_V3}{write}\n")
}

fn rsa(write: &str) -> String {
    with_key("cp $BASE/plain.key .", write)
}

fn pkcs8(options: &str) -> String {
    rsa(&format!("openssl pkcs8 -topk8 -in plain.key -out node.key -passout pass:B {options}"))
}

fn generated(options: &str) -> String {
    with_key(&format!("openssl genpkey {options} -out plain.key"), "cp plain.key node.key")
}

fn on_curve(name: &str) -> String {
    generated(&format!("-algorithm EC -pkeyopt ec_paramgen_curve:{name}"))
}

/// For each kind: its name, its commands, and whether it is accepted: by OpenSSL and a program of
/// the C API, and by the rules alone.
fn kinds() -> Vec<(&'static str, String, bool, bool)> {
    let v1_ca =
        "openssl req -newkey rsa:2048 -passout pass:A -keyout ca.key -out ca.csr -subj /CN=ca
        openssl x509 -req -days 365 -in ca.csr -signkey ca.key -passin pass:A -out ca.crt\n";
    let own_ca = "openssl req -newkey rsa:2048 -passout pass:B -keyout node.key -x509 -days 365 \
                  -out ca.crt -subj /CN=node\ncp ca.crt node.crt";
    let no_ca = "openssl req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node
        echo basicConstraints=CA:FALSE >v3
        openssl x509 -req -in node.csr -signkey node.key -days 365 -extfile v3 -out ca.crt
        cp ca.crt node.crt";
    let mail = "echo extendedKeyUsage=emailProtection >v3
        openssl x509 -req -in node.csr -CA ca.crt -CAkey ca.key -passin pass:A -CAcreateserial \
        -extfile v3 -out node.crt";
    let sha1 = SIGN.replace("-days", "-sha1 -days");
    let traditional = |cipher: &str| {
        rsa(&format!(
            "openssl rsa -traditional {cipher} -in plain.key -out node.key -passout pass:B"
        ))
    };
    vec![
        ("of the original's generator", format!("{CA}{REQUEST}{SIGN}"), true, false),
        ("PKCS#8", rsa("openssl pkcs8 -topk8 -nocrypt -in plain.key -out node.key"), true, true),
        ("PBES2, SHA-256", pkcs8("-v2 aes-256-cbc -v2prf hmacWithSHA256"), true, true),
        ("PBES2, SHA-1", pkcs8("-v2 aes-256-cbc -v2prf hmacWithSHA1"), true, false),
        ("PBES2, 3DES", pkcs8("-v2 des3"), true, false),
        ("PBE-SHA1-3DES", pkcs8("-v1 PBE-SHA1-3DES"), true, false),
        ("traditional", rsa("openssl rsa -traditional -in plain.key -out node.key"), true, true),
        ("traditional, AES", traditional("-aes128"), true, false),
        ("traditional, 3DES", traditional("-des3"), true, false),
        (
            "SEC1",
            with_key(
                "openssl ecparam -genkey -name prime256v1 -out plain.key",
                "cp plain.key node.key",
            ),
            true,
            true,
        ),
        ("P-256", on_curve("P-256"), true, true),
        ("P-384", on_curve("P-384"), true, true),
        ("P-521", on_curve("P-521"), true, false),
        ("Ed25519", generated("-algorithm ED25519"), true, true),
        ("Ed448", generated("-algorithm ED448"), true, false),
        ("RSA-PSS", generated("-algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048"), true, false),
        (
            "RSA-PSS with SHA-384 alone",
            generated(
                "-algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048 \
                 -pkeyopt rsa_pss_keygen_md:sha384 -pkeyopt rsa_pss_keygen_mgf1_md:sha384 \
                 -pkeyopt rsa_pss_keygen_saltlen:48",
            ),
            true,
            false,
        ),
        ("a CA of X.509 v1", format!("{v1_ca}{SAME_REQUEST}{SIGN_V3}"), true, false),
        ("CA and leaf of X.509 v1", format!("{v1_ca}{SAME_REQUEST}{SIGN}"), true, false),
        ("its own CA", own_ca.into(), true, false),
        ("in the CA file without being one", no_ca.into(), true, false),
        // refused by OpenSSL and by the rules
        ("of another CA", format!("{SAME_CA}{SAME_REQUEST}{SIGN}{CA}"), false, false),
        ("for mail", format!("{SAME_CA}{SAME_REQUEST}{mail}"), false, false),
        ("signed with SHA-1", format!("{SAME_CA}{SAME_REQUEST}{sha1}"), false, false),
    ]
}

/// A folder in which a script was run.
fn made_by(script: &str, base: Option<&Folder>) -> Folder {
    let folder = Folder::new();
    let (dir, base) = (folder.path(""), base.unwrap_or(&folder).path(""));
    let mut command = Command::new("sh");
    let ran = command.arg("-ec").arg(script).current_dir(dir).env("BASE", base).output();
    let ran = ran.expect("there is a shell");
    assert!(ran.status.success(), "{script}\n{}", String::from_utf8_lossy(&ran.stderr));
    folder
}

fn password() -> Arc<dyn KeyPassword> {
    Arc::new(FixedPassword::new(b"B".to_vec()))
}

fn load(folder: &Folder, leniency: Leniency) -> Result<Tls, TlsError> {
    Tls::load_with(leniency, folder.files.clone(), password())
}

/// Whether two peers with these files accept each other.
fn accepts(folder: &Folder, leniency: Leniency) -> Result<(), String> {
    let tls = load(folder, leniency).map_err(|error| error.to_string())?;
    let outcome = drive(client(tls.client()), server(tls.server()));
    match (outcome.client.error, outcome.server.error) {
        (None, None) if outcome.client.established && outcome.server.established => Ok(()),
        (Some(error), _) | (_, Some(error)) => Err(TlsError::from(error).to_string()),
        (None, None) => Err("the handshake stopped".into()),
    }
}

/// Whether `openssl verify` accepts the certificate for both roles.
fn is_verified_by_openssl(folder: &Folder) -> bool {
    let files = &folder.files;
    ["sslclient", "sslserver"].iter().all(|purpose| {
        let mut command = Command::new("openssl");
        command.args(["verify", "-auth_level", "2", "-purpose", purpose]);
        command.arg("-CAfile").arg(&files.ca).arg(&files.cert);
        command.output().expect("it is installed").status.success()
    })
}

/// Whether s_client and s_server with these files accept us, and we accept them.
fn talks_with_openssl(tls: &Tls, folder: &Folder) -> Result<(), String> {
    let arguments = ["-tls1_3", "-pass", "pass:B"];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = Openssl::client(Some(folder), &listener, &arguments);
    let (mut socket, _) = listener.accept().map_err(|error| error.to_string())?;
    let mut connection = ServerConnection::new(tls.server()).expect("a configuration");
    let line = talk(&mut connection, &mut socket)?;
    assert_eq!(line, LINE);
    drop(peer);
    let (_peer, address) = Openssl::server(folder, &arguments);
    let mut socket = TcpStream::connect(address).expect("it listens");
    let name = ServerName::try_from("node.example").expect("a name");
    let mut connection = ClientConnection::new(tls.client(), name).expect("a configuration");
    talk(&mut connection, &mut socket).map(drop)
}

#[test]
fn a_program_of_the_c_api_accepts_what_openssl_accepts_and_others_say_what_to_do() {
    if !present() {
        return;
    }
    let base = made_by(&format!("{CA}{BASE}"), None);
    let mut wrong = Vec::new();
    for (name, script, by_openssl, by_rules) in kinds() {
        let folder = made_by(&script, Some(&base));
        let lenient = accepts(&folder, AS_OPENSSL);
        let strict = accepts(&folder, Leniency::Strict);
        let verified = is_verified_by_openssl(&folder);
        let talked = match lenient {
            Ok(()) => load(&folder, AS_OPENSSL)
                .map_err(|error| error.to_string())
                .and_then(|tls| talks_with_openssl(&tls, &folder)),
            Err(_) => Ok(()),
        };
        println!("{name}: openssl {verified}, as openssl {lenient:?}, strict {strict:?}");
        let remedied = |result: &Result<(), String>| {
            result.as_ref().err().is_none_or(|text| text.contains("; "))
        };
        let as_expected = verified == by_openssl
            && lenient.is_ok() == by_openssl
            && strict.is_ok() == by_rules
            && remedied(&lenient)
            && remedied(&strict);
        if !as_expected || talked.is_err() {
            wrong.push(format!(
                "{name}: openssl {verified}, as openssl {lenient:?}, with openssl {talked:?}, \
                 strict {strict:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The password is right: it is not to be looked for.
#[test]
fn a_key_in_a_cipher_that_openssl_has_switched_off_is_not_said_to_have_a_wrong_password() {
    let version = Command::new("openssl").arg("version").output();
    let version = version.map(|output| output.stdout).unwrap_or_default();
    if version.is_empty() || version.starts_with(b"OpenSSL 1.") {
        println!("skipped: no OpenSSL, or one that has these ciphers");
        return;
    }
    let request = "openssl req -new -key plain.key -out node.csr -subj /CN=node\n";
    let made = |write: &str| made_by(&format!("{CA}{BASE}{request}{SIGN}{write}"), None);
    // PBE-SHA1-3DES, then called PBE-SHA1-RC4-128
    let rc4 = r"openssl pkcs8 -topk8 -in plain.key -out der -outform DER -v1 PBE-SHA1-3DES \
            -passout pass:B
        LC_ALL=C sed 's/\x0d\x01\x0c\x01\x03/\x0d\x01\x0c\x01\x01/' der >rc4
        echo '-----BEGIN ENCRYPTED PRIVATE KEY-----' >node.key
        base64 rc4 >>node.key
        echo '-----END ENCRYPTED PRIVATE KEY-----' >>node.key";
    let folder = made(rc4);
    let error = load(&folder, AS_OPENSSL).expect_err("OpenSSL does not decrypt it");
    assert!(matches!(error, TlsError::UnsupportedEncryption { .. }), "{error}");
    let wrong =
        "openssl pkcs8 -topk8 -in plain.key -out node.key -v1 PBE-SHA1-3DES -passout pass:C";
    let folder = made(wrong);
    let error = load(&folder, AS_OPENSSL).expect_err("it has another password");
    assert!(matches!(error, TlsError::PasswordWrong { .. }), "{error}");
}

#[test]
fn what_one_presents_is_judged_by_the_other_side() {
    let root = Ca::root("root");
    let mut expired = good("expired");
    (expired.not_before, expired.not_after) =
        (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let folder = Folder::with(&root, &root.issue(&expired), None);
    assert!(matches!(folder.load(), Err(TlsError::NotCurrent { .. })));
    let refused = accepts(&folder, AS_OPENSSL).expect_err("nobody accepts it");
    assert!(refused.contains("expired") || refused.contains("Expired"), "{refused}");
    let Some(callback) = accepts_all(&folder) else { return };
    let leniency = Leniency::AsOpenssl { callback: Some(callback), key_may_wait: false };
    assert_eq!(accepts(&folder, leniency), Ok(()));
}

#[test]
fn a_revoked_certificate_of_x509_v1_is_refused_and_found() {
    if !present() {
        return;
    }
    let lists = "mkdir new
        touch index.txt
        echo 01 >crlnumber
        printf '[ca]\\ndefault_ca=x\\n[x]\\ndatabase=index.txt\\ncrlnumber=crlnumber\\n' >ca.cnf
        printf 'default_md=sha256\\ndefault_crl_days=1\\n' >>ca.cnf
        list() {
            openssl ca -config ca.cnf -cert ca.crt -keyfile ca.key -passin pass:A -gencrl -out $1
        }
        list crl.pem
        openssl ca -config ca.cnf -cert ca.crt -keyfile ca.key -passin pass:A -revoke node.crt
        list revoked.pem";
    let mut folder = made_by(&format!("{CA}{REQUEST}{SIGN}{lists}"), None);
    folder.files.crl = Some(folder.path("crl.pem"));
    let tls = load(&folder, AS_OPENSSL).expect("all is right");
    assert_eq!(accepts(&folder, AS_OPENSSL), Ok(()));
    let read = CertificateDer::pem_file_iter(&folder.files.cert).expect("it is there");
    let chain: Vec<_> = read.map(|der| der.expect("a certificate")).collect();
    assert!(tls.check(PeerRole::Client, &chain).is_ok());
    std::fs::copy(folder.path("revoked.pem"), folder.path("crl.pem")).expect("a file");
    assert!(matches!(tls.reload(), Err(TlsError::Revoked { .. })));
    let error = tls.check(PeerRole::Client, &chain).expect_err("it is revoked").to_string();
    assert!(error.contains("Revoked"), "{error}");
    assert!(tls.is_revoked(PeerRole::Client, &PeerChain::from(chain)));
}

/// OpenSSL uses the older list, which does not name the peer.
#[test]
fn a_peer_stays_refused_when_the_list_that_revokes_it_has_expired_and_an_older_one_has_not() {
    let (root, params) = (Ca::root("root"), good("peer"));
    let (peer, ours) = (root.issue(&params), root.issue(&good("ours")));
    let older = root.crl_of(&[], now() - Duration::hours(2), now() + Duration::hours(1));
    // a slow machine gets more time to load the list before it expires
    let loaded = [3, 60].into_iter().find_map(|seconds| {
        let until = now() + Duration::seconds(seconds);
        let newer = root.crl_of(&[&params], now() - Duration::hours(1), until);
        let folder = Folder::with(&root, &ours, Some(&(older.clone() + &newer)));
        Some((load(&folder, AS_OPENSSL).ok()?, until))
    });
    let (tls, until) = loaded.expect("both lists are valid");
    let chain: Vec<_> = peer.chain.iter().cloned().map(CertificateDer::from).collect();
    let refused = || {
        let roles = [PeerRole::Client, PeerRole::Server];
        roles.map(|role| tls.check(role, &chain).expect_err("it is revoked").to_string())
    };
    assert!(refused().iter().all(|error| error.contains("Revoked")), "{:?}", refused());
    while now() < until + Duration::seconds(1) {
        std::thread::sleep(std::time::Duration::from_millis(100)); // the list expires
    }
    let expired = |error: &String| error.contains("revocation list expired");
    assert!(refused().iter().all(expired), "{:?}", refused());
}

#[test]
fn a_key_that_waits_for_its_password_is_opened_when_it_is_there() {
    #[derive(Debug)]
    struct Later(std::sync::atomic::AtomicU32);
    impl KeyPassword for Later {
        fn password(&self) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, TlsError> {
            match self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 => Err(TlsError::Password("not yet".into())),
                1 => Ok(Some(b"wrong".to_vec().into())),
                _ => Ok(Some(b"B".to_vec().into())),
            }
        }
    }
    if !present() {
        return;
    }
    let folder = made_by(&format!("{CA}{REQUEST}{SIGN}"), None);
    let later = || Arc::new(Later(0.into()));
    let strict = Tls::load_with(AS_OPENSSL, folder.files.clone(), later());
    assert!(matches!(strict, Err(TlsError::Password(_))));
    let waiting = Leniency::AsOpenssl { callback: None, key_may_wait: true };
    let tls = Tls::load_with(waiting.clone(), folder.files.clone(), later()).expect("it waits");
    let shakes = || drive(client(tls.client()), server(tls.server())).is_good();
    assert!(tls.lacks_key() && !shakes());
    let error = tls.open_key().expect_err("the password is wrong");
    assert!(matches!(error, TlsError::PasswordWrong { .. }), "{error}");
    assert!(tls.lacks_key() && !shakes());
    assert!(tls.open_key().is_ok() && !tls.lacks_key() && shakes());
    // an error that has nothing to do with the password is reported at once
    folder.write(&folder.files.key, "nothing");
    let broken = Tls::load_with(waiting, folder.files.clone(), Arc::new(NoPassword));
    assert!(matches!(broken, Err(TlsError::Nothing { .. })));
}
