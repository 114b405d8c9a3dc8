// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scene: certificates decide which clients get in, and rules decide what they may do.

use std::net::Ipv4Addr;

use dlock_cli_common::ca::{load, Ca};
use dlock_client::{Client, Config, Error, FabricChoice, Mode, Wait};
use dlock_core::rights::{Quotas, Right, Rule};
use dlock_core::wire::fabric::FabricKind;
use dlock_server::{Server, ServerConfig, VerbsUse};

use super::Tour;
use crate::failure::Failure;
use crate::logging;

/// Plays the scene.
pub fn refused(tour: &mut Tour) -> Result<(), Failure> {
    tour.title("An unknown certificate is refused");
    tour.say(
        "A primary with TLS lets in who has a certificate of its CA, and its rules say what\n\
         each name may lock. `dlock certs` makes a CA here, and another one that the primary\n\
         does not know.",
    );
    let ours = Ca::make(&tour.file("ca"), Some("primary"), &["orders", "guest"])?;
    let theirs = Ca::make(&tour.file("another-ca"), None, &["orders"])?;
    let rule = Rule {
        names: vec!["CN=orders".into()],
        prefixes: vec![b"orders/".to_vec()],
        rights: [Right::LockExclusive].into_iter().collect(),
        quotas: Quotas::default(),
    };
    let server = Server::start(ServerConfig {
        bind: Ipv4Addr::LOCALHOST.into(),
        port: 0,
        verbs: VerbsUse::Auto,
        tls: Some(load(ours.files("primary"))?),
        rules: vec![rule],
        ..ServerConfig::default()
    })
    .map_err(Failure::plain)?;
    let at = server.local_addr();

    let device = server.offers().detail(FabricKind::Sealed).map(str::to_string);
    let fabric = if device.is_some() { FabricChoice::Sealed } else { FabricChoice::Auto };
    let join = |tls| {
        let config = Config::new().port(at.port()).fabric(fabric).tls(tls);
        Client::with_config(&config, &at.ip().to_string())
    };
    let orders = join(load(ours.files("orders"))?).map_err(Failure::plain)?;
    let held = orders.lock("orders/7").is_ok();
    let path = device.map_or(String::new(), |device| {
        format!(": over RDMA ({device}), in frames that are sealed with keys of the TLS session")
    });
    tour.check(&format!("`orders` is let in, and locks orders/7{path}"), held);
    let denied = matches!(orders.lock("stock/7"), Err(Error::Denied));
    tour.check("it is denied stock/7: no rule gives it that", denied);
    let guest = join(load(ours.files("guest"))?);
    let denied = matches!(guest, Err(Error::Denied));
    tour.check("`guest` has a certificate of the CA, and no rule: it is not let in", denied);
    // this client trusts the primary's CA, and shows a certificate of the other CA
    let shown = load(theirs.files_trusting("orders", &ours))?;
    let (stranger, heard) = logging::heard(|| join(shown));
    tour.check(
        "an `orders` of the other CA is refused before it has said a word",
        stranger.is_err(),
    );
    if let Some(why) = heard.first() {
        tour.say(&format!("It is told: {why}"));
    }
    tour.check("the primary serves on", orders.lock("orders/8").is_ok());
    Ok(())
}

/// Takes a lock of this name and releases it.
trait Locks {
    fn lock(&self, name: &str) -> Result<(), Error>;
}

impl Locks for Client {
    fn lock(&self, name: &str) -> Result<(), Error> {
        let lock = self.atomic_lock(name)?;
        let taken = lock.acquire(Mode::Exclusive).wait(Wait::No).guard().map(drop);
        taken
    }
}
