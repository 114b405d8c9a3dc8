// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock certs` as a process. The library's own rules judge its certificates.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{code, dlock, text};
use dlock_fabric::tls::{NoPassword, PeerIdentity, PeerRole, Tls, TlsError, TlsFiles};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::CertificateDer;

/// The folder of one test; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlock-certs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path); // a run that was killed may have left the folder
        Self(path)
    }

    /// A folder with a CA.
    fn with_ca(name: &str) -> Self {
        let folder = Self::new(name);
        folder.good(&["init"]);
        folder
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let dir = self.0.to_string_lossy();
        dlock(&[&["certs"], arguments, &["--dir", &dir]].concat())
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that fails with this code; returns its messages, among them a remedy.
    fn bad(&self, expected: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(code(&output), expected, "{arguments:?}: {said}");
        assert!(said.contains("remedy: "), "{said}");
        said
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }

    fn load(&self, name: &str) -> Result<Tls, TlsError> {
        let files = TlsFiles {
            ca: self.path("ca.crt"),
            crl: Some(self.path("ca.crl")),
            cert: self.path(&format!("{name}.crt")),
            key: self.path(&format!("{name}.key")),
        };
        Tls::load(files, Arc::new(NoPassword))
    }

    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a file or folder that is left over does no harm
    }
}

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_file(path).unwrap()]
}

#[test]
fn a_set_of_certificates_works_as_it_is() {
    let folder = Folder::with_ca("set");
    folder.good(&["server", "node1", "--host", "node1.example", "--host", "192.0.2.7"]);
    folder.good(&["client", "backup"]);
    let (server, client) = (folder.load("node1").unwrap(), folder.load("backup").unwrap());
    let (node1, backup) = (chain(&folder.path("node1.crt")), chain(&folder.path("backup.crt")));
    client.check(PeerRole::Server, &node1).unwrap();
    server.check(PeerRole::Client, &backup).unwrap();
    server.check(PeerRole::Client, &node1).expect("a standby is a client of its primary");
    client.check(PeerRole::Server, &backup).expect_err("a client cannot pose as a primary");

    let names = |chain: &[CertificateDer<'_>]| {
        let identity = PeerIdentity::of(chain).unwrap();
        identity.names().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&node1), ["CN=node1", "CN=node1", "DNS:node1.example", "IP:192.0.2.7"]);
    assert_eq!(names(&backup), ["CN=backup", "CN=backup"]);
}

#[test]
fn keys_are_their_owners_alone() {
    let folder = Folder::with_ca("modes");
    folder.good(&["client", "backup"]);
    for (name, mode) in [
        ("ca.key", 0o600),
        ("backup.key", 0o600),
        ("ca.crt", 0o644),
        ("ca.crl", 0o644),
        ("backup.crt", 0o644),
    ] {
        assert_eq!(folder.mode(name), mode, "{name}");
    }
    let left_over = |(path, _): &(PathBuf, Vec<u8>)| path.extension() == Some("new".as_ref());
    assert!(!folder.contents().iter().any(left_over));
}

#[test]
fn nothing_is_overwritten_without_being_told() {
    let folder = Folder::with_ca("force");
    folder.good(&["client", "backup"]);
    let before = folder.contents();
    for arguments in [&["init"][..], &["client", "backup"], &["server", "backup"]] {
        let said = folder.bad(1, arguments);
        assert!(said.contains("exists") && said.contains("--force"), "{said}");
    }
    assert_eq!(folder.contents(), before);
    // If only the key exists, or a link that leads nowhere, the command is refused, too.
    fs::remove_file(folder.path("backup.crt")).unwrap();
    folder.bad(1, &["client", "backup"]);
    fs::remove_file(folder.path("backup.key")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path("backup.key")).unwrap();
    folder.bad(1, &["client", "backup"]);
    folder.good(&["client", "backup", "--force"]);
    folder.load("backup").unwrap();

    let first = chain(&folder.path("backup.crt"));
    folder.good(&["client", "backup", "--force"]);
    let second = chain(&folder.path("backup.crt"));
    assert_ne!(first, second);
    let identity = |chain: &[CertificateDer<'_>]| PeerIdentity::of(chain).unwrap();
    assert_eq!(identity(&first), identity(&second), "a renewed certificate is the same client");
    folder.good(&["init", "--force"]);
    folder.load("backup").unwrap().check(PeerRole::Client, &second).expect_err("of the old CA");
}

#[test]
fn what_is_revoked_stays_revoked() {
    let folder = Folder::with_ca("revoke");
    for name in ["node1", "backup", "report"] {
        folder.good(&["server", name]);
    }
    let node1 = folder.load("node1").unwrap();
    let backup = chain(&folder.path("backup.crt"));
    let report = chain(&folder.path("report.crt"));
    node1.check(PeerRole::Client, &backup).unwrap();

    assert!(folder.good(&["revoke", "backup"]).contains("list number 2"));
    assert!(node1.changed());
    node1.reload().unwrap();
    let error = node1.check(PeerRole::Client, &backup).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("revoked"), "{error}");
    node1.check(PeerRole::Client, &report).unwrap();
    assert!(matches!(folder.load("backup"), Err(TlsError::Revoked { .. })));

    // The list only grows: a second time, by the path of a certificate, and without one.
    assert!(folder.good(&["revoke", "backup"]).contains("was revoked before"));
    let path = folder.path("report.crt");
    folder.good(&["revoke", &path.to_string_lossy()]);
    let said = folder.good(&["revoke", "--crl-days", "7"]);
    assert!(said.contains("list number 5, valid for 7 days, 2 revoked"), "{said}");
    node1.reload().unwrap();
    for chain in [&backup, &report] {
        node1.check(PeerRole::Client, chain).unwrap_err();
    }
    // A new certificate of the same name is not revoked.
    folder.good(&["server", "backup", "--force"]);
    node1.check(PeerRole::Client, &chain(&folder.path("backup.crt"))).unwrap();
}

#[test]
fn a_certificate_that_was_replaced_can_still_be_revoked() {
    let folder = Folder::with_ca("issued");
    folder.good(&["client", "node1"]);
    folder.good(&["client", "backup"]);
    let old = chain(&folder.path("backup.crt"));
    folder.good(&["client", "backup", "--force"]);
    let issued = fs::read_dir(folder.path("issued")).unwrap().map(|entry| entry.unwrap().path());
    let copy = issued.into_iter().find(|path| chain(path) == old).expect("there is a copy");
    folder.good(&["revoke", &copy.to_string_lossy()]);
    let node1 = folder.load("node1").unwrap();
    node1.check(PeerRole::Client, &old).unwrap_err();
    node1.check(PeerRole::Client, &chain(&folder.path("backup.crt"))).unwrap();
}

#[test]
fn mistakes_are_told_with_a_remedy_and_change_nothing() {
    let nowhere = Folder::new("nowhere");
    assert!(nowhere.bad(1, &["client", "backup"]).contains("dlock certs init"));
    let folder = Folder::with_ca("mistakes");
    folder.good(&["client", "backup"]);
    let before = folder.contents();
    for name in ["a/b", "..", "ca", "", "two words"] {
        folder.bad(2, &["client", name]);
    }
    folder.bad(2, &["server", "node1", "--host", "node1:21616"]);
    folder.bad(2, &["init", "--name", ""]);
    folder.bad(1, &["revoke", "nobody"]);
    folder.bad(1, &["revoke", &folder.path("ca.crt").to_string_lossy()]);
    folder.bad(1, &["revoke", &folder.path("ca.key").to_string_lossy()]);
    let other = Folder::with_ca("mistakes-other");
    other.good(&["client", "theirs"]);
    folder.bad(1, &["revoke", &other.path("theirs.crt").to_string_lossy()]);
    // A certificate of another CA with the same name is not revoked, either.
    let (one, two) = (Folder::new("mistakes-one"), Folder::new("mistakes-two"));
    one.good(&["init", "--name", "same"]);
    two.good(&["init", "--name", "same"]);
    two.good(&["client", "theirs"]);
    one.bad(1, &["revoke", &two.path("theirs.crt").to_string_lossy()]);
    assert_eq!(folder.contents(), before);

    // Without its old list, the new list would make revoked certificates valid again.
    fs::rename(folder.path("ca.crl"), folder.path("lost")).unwrap();
    folder.bad(1, &["revoke", "backup"]);
    fs::copy(other.path("ca.crl"), folder.path("ca.crl")).unwrap();
    assert!(folder.bad(1, &["revoke", "backup"]).contains("another CA"));
    fs::write(folder.path("ca.crl"), "garbage").unwrap();
    folder.bad(1, &["revoke", "backup"]);
    fs::rename(folder.path("lost"), folder.path("ca.crl")).unwrap();
    fs::copy(other.path("ca.key"), folder.path("ca.key")).unwrap();
    assert!(folder.bad(1, &["client", "more"]).contains("not the key"));
}

#[test]
fn no_certificate_outlives_its_ca() {
    let folder = Folder::new("days");
    folder.good(&["init", "--days", "10", "--name", "short CA"]);
    let until = |said: &str| said.split("valid until ").nth(1).unwrap()[..10].to_string();
    let said = folder.good(&["client", "backup", "--days", "300"]);
    let ca = Folder::new("days-2");
    assert_eq!(until(&said), until(&ca.good(&["init", "--days", "10"])));
    let five = folder.good(&["client", "short", "--days", "5"]);
    assert!(until(&five) < until(&said), "{five}");
    folder.bad_usage(&["client", "x", "--days", "0"]);
}

impl Folder {
    /// Runs a command that the parser of the command line refuses.
    fn bad_usage(&self, arguments: &[&str]) {
        assert_eq!(code(&self.run(arguments)), 2);
    }
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let folder = Folder::with_ca("writers");
    let names: Vec<String> = (0..8).map(|number| format!("node{number}")).collect();
    for name in &names {
        folder.good(&["client", name]);
    }
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| folder.good(&["revoke", name]));
        }
    });
    let said = folder.good(&["revoke"]);
    assert!(said.contains("list number 10,") && said.contains(" 8 revoked"), "{said}");
}

/// A stopped process would keep the folder for ever.
#[test]
fn a_folder_that_another_process_has_is_waited_for_and_not_without_end() {
    let folder = Folder::with_ca("another");
    let other = fs::File::open(&folder.0).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(folder.bad(1, &["list"]).contains("another process has had the folder"));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            drop(other);
        });
        folder.good(&["list"]);
    });
}

#[test]
fn openssl_agrees() {
    let version = std::process::Command::new("openssl").arg("version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: there is no openssl here");
        return;
    }
    let folder = Folder::with_ca("openssl");
    folder.good(&["server", "node1"]);
    folder.good(&["client", "backup"]);
    let verify = |name: &str, purpose: &str| {
        let mut command = std::process::Command::new("openssl");
        command.args(["verify", "-x509_strict", "-crl_check", "-purpose", purpose, "-CAfile"]);
        command.arg(folder.path("ca.crt")).arg("-CRLfile").arg(folder.path("ca.crl"));
        let output = command.arg(folder.path(name)).output().expect("it is installed");
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    for (name, purpose) in
        [("node1.crt", "sslserver"), ("node1.crt", "sslclient"), ("backup.crt", "sslclient")]
    {
        assert!(verify(name, purpose).0, "{name} as {purpose}: {:?}", verify(name, purpose));
    }
    assert!(!verify("backup.crt", "sslserver").0);
    folder.good(&["revoke", "backup"]);
    let (good, said) = verify("backup.crt", "sslclient");
    assert!(!good && said.contains("revoked"), "{said}");
}

#[test]
fn the_list_says_until_when_everything_is_valid_and_what_is_revoked() {
    let folder = Folder::with_ca("list");
    folder.good(&["server", "node1", "--days", "5"]);
    folder.good(&["client", "backup"]);
    folder.good(&["client", "gone"]);
    folder.good(&["revoke", "gone"]);
    let listed = folder.good(&["list"]);
    let line = |name: &str| {
        let found = listed.lines().find(|line| line.contains(name));
        found.unwrap_or_else(|| panic!("{name}: {listed}")).split_whitespace().last().unwrap()
    };
    assert_eq!(line("node1"), "soon", "{listed}");
    assert_eq!(line("backup"), "valid", "{listed}");
    assert_eq!(line("gone"), "revoked", "{listed}");
    assert_eq!(line("the list of revoked certificates"), "valid", "{listed}");
    assert_eq!(listed.lines().count(), 6, "{listed}");
    for wrong in ["nothing", ""] {
        fs::write(folder.path("ca.crl"), wrong).unwrap();
        for command in [&["list"][..], &["revoke", "backup"]] {
            let said = folder.bad(1, command);
            assert!(said.contains("it is empty, or has no") && said.contains("restore"), "{said}");
        }
    }
}
