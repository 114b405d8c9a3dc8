// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock certs`: a private CA in a folder.
//!
//! ```text
//!   FOLDER/ca.crt, ca.key (0600)       init
//!         /ca.crl                      init; anew by revoke
//!         /NAME.crt, NAME.key (0600)   server, client
//!         /issued/SERIAL.crt           a copy of every certificate, so that it can be revoked
//!
//!   mod.rs: the commands ─▶ authority.rs: the CA signs (rcgen) ─▶ store.rs: the files
//! ```
//!
//! Not supported: CAs below this one, keys that are encrypted or in hardware, requests that were
//! made elsewhere. Certificates of any other CA work as well.

mod authority;
mod list;
mod store;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustls_pki_types::DnsName;

use crate::args::{CertsInit, CertsNode, CertsRevoke, CertsServer, CertsWhat};
use crate::failure::{self, Failure};
use crate::{args, out};

use authority::{Authority, Holder};
use store::Store;

/// The longest common name (RFC 5280).
const NAME_CHARS_MAX: usize = 64;

/// Makes what was asked for, and prints the paths of the files.
pub fn run(certs: &args::Certs) -> Result<u8, Failure> {
    match &certs.what {
        CertsWhat::Init(init) => make_ca(init),
        CertsWhat::Server(server) => issue(&server.node, &Holder::Server(hosts(server)?)),
        CertsWhat::Client(client) => issue(&client.node, &Holder::Client),
        CertsWhat::Revoke(revoke) => revoke_all(revoke),
        CertsWhat::List(place) => show_list(&place.dir),
    }?;
    Ok(failure::OK)
}

fn make_ca(init: &CertsInit) -> Result<(), Failure> {
    let fits = |name: &str| (1..=NAME_CHARS_MAX).contains(&name.chars().count());
    if let Some(name) = init.name.as_deref().filter(|name| !fits(name)) {
        let remedy = format!("give it 1 to {NAME_CHARS_MAX} characters");
        return Err(usage(format_args!("a CA cannot be named '{name}'"), remedy));
    }
    let store = Store::create(&init.place.dir)?;
    let names = [store::CA_CERT, store::CA_KEY, store::CA_CRL];
    if !init.force {
        store.refuse_existing(&names, "another --dir, or --force to start again with a new CA")?;
    }
    let (ca, cert) = Authority::make(init.name.as_deref(), init.days)?;
    let crl = ca.crl(&[], 1, init.crl_days)?;
    store.write_secret(store::CA_KEY, &ca.key_pem())?;
    store.write(store::CA_CERT, &cert)?;
    store.write(store::CA_CRL, &crl)?;
    out::line(&format!("CA '{}', valid until {}:", ca.name(), ca.until()));
    said(&store, &names);
    out::line("Keep ca.key off the hosts of the cluster; all of them need ca.crt and ca.crl.");
    Ok(())
}

fn issue(node: &CertsNode, holder: &Holder) -> Result<(), Failure> {
    let name = file_name(&node.name)?;
    let store = Store::open(&node.place.dir)?;
    let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
    if !node.force {
        store.refuse_existing(&[&cert, &key], "another name, or --force to renew it")?;
    }
    let ca = Authority::load(&store)?;
    let issued = ca.issue(name, holder, node.days)?;
    store.write(&format!("{}/{}.crt", store::ISSUED, issued.serial), &issued.cert_pem)?;
    store.write_secret(&key, &issued.key_pem)?;
    store.write(&cert, &issued.cert_pem)?;
    let kind = match holder {
        Holder::Server(_) => "primary",
        Holder::Client => "client",
    };
    out::line(&format!("certificate of the {kind} '{name}', valid until {}:", issued.until));
    said(&store, &[&cert, &key]);
    Ok(())
}

fn revoke_all(revoke: &CertsRevoke) -> Result<(), Failure> {
    let store = Store::open(&revoke.place.dir)?;
    let ca = Authority::load(&store)?;
    let (mut list, number) = ca.revoked(&store)?;
    for name in &revoke.names {
        let path = certificate_path(&store, name);
        let entry = ca.revocation(&path)?;
        let serial = authority::hex(&entry.serial_number.to_bytes());
        if list.iter().any(|known| known.serial_number == entry.serial_number) {
            out::line(&format!("{} was revoked before ({serial})", path.display()));
            continue;
        }
        out::line(&format!("{} is revoked ({serial})", path.display()));
        list.push(entry);
    }
    store.write(store::CA_CRL, &ca.crl(&list, number + 1, revoke.crl_days)?)?;
    let count = list.len();
    out::line(&format!("list number {}, valid for {} days, {count} revoked:", number + 1, {
        revoke.crl_days
    }));
    said(&store, &[store::CA_CRL]);
    out::line("Copy it to all hosts; primaries and clients take it without a restart.");
    Ok(())
}

fn show_list(folder: &Path) -> Result<(), Failure> {
    out::print(&list::table(&Store::open(folder)?)?);
    Ok(())
}

/// The path of a certificate: of a name in the folder, or of a file anywhere.
fn certificate_path(store: &Store, name: &str) -> PathBuf {
    match Path::new(name).components().count() > 1 || name.ends_with(".crt") {
        true => name.into(),
        false => store.path(&format!("{name}.crt")),
    }
}

fn said(store: &Store, names: &[&str]) {
    for name in names {
        out::line(&format!("  {}", store.path(name).display()));
    }
}

/// Checks that a name is a single file in the folder, and not one of the CA's.
fn file_name(name: &str) -> Result<&str, Failure> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = !name.is_empty()
        && name.len() <= NAME_CHARS_MAX
        && name.chars().all(allowed)
        && !name.starts_with(['.', '-'])
        && name != "ca";
    match good {
        true => Ok(name),
        false => Err(usage(
            format!("a certificate cannot be named '{name}'"),
            format!(
                "take 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-', beginning with a \
                 letter or digit; not 'ca'"
            ),
        )),
    }
}

/// The host names and addresses of a primary; its own name if none are given and it can be one.
fn hosts(server: &CertsServer) -> Result<Vec<String>, Failure> {
    let valid = |host: &str| host.parse::<IpAddr>().is_ok() || DnsName::try_from(host).is_ok();
    for host in &server.hosts {
        if !valid(host) {
            let remedy = "give a host name or an IP address, without a port";
            return Err(usage(format!("'{host}' is not a host"), remedy));
        }
    }
    Ok(match server.hosts.is_empty() && valid(&server.node.name) {
        true => vec![server.node.name.clone()],
        false => server.hosts.clone(),
    })
}

fn usage(cause: impl std::fmt::Display, remedy: impl std::fmt::Display) -> Failure {
    Failure::new(failure::USAGE, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_file_in_the_folder() {
        for name in ["node1", "db-3.example", "a", "A_b"] {
            assert!(file_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(NAME_CHARS_MAX + 1);
        for name in ["", ".", "..", "a/b", "../a", "ca", "-x", ".hidden", "a b", "ä", &long] {
            assert!(file_name(name).is_err(), "{name}");
        }
    }
}
