// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock remove`, `break`, `reset`, `drain`: have a primary take away what clients hold, or give
//! no more locks; at its admin socket, or over the network as a client with the right `admin`.

use std::os::unix::ffi::OsStrExt;

use dlock_cli_common::place::Fabric;
use dlock_core::ids::ClientId;
use dlock_core::limits::DESC_LEN_MAX;
use dlock_core::wire::control::{Act, Whose};
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::status::Status;
use serde_json::{json, Value};

use crate::admin;
use crate::args::{Break, Drain, Mercy, Operator, Remove, Reset};
use crate::connect;
use crate::failure::{self, Failure, NOT_GOT, SILENT, UNAVAILABLE, USAGE};
use crate::{out, table};

/// Removes a client.
pub fn remove(args: &Remove) -> Result<u8, Failure> {
    let whose = Whose::Client(id(args.client)?);
    act(&args.operator, whose_act(whose, args.mercy), &args.client.to_string())
}

/// Removes the clients that hold a lock.
pub fn break_lock(args: &Break) -> Result<u8, Failure> {
    let client = args.client.map(id).transpose()?;
    let name = args.name.as_bytes().to_vec();
    if !(1..=DESC_LEN_MAX).contains(&name.len()) {
        return Err(Failure::new(USAGE, "NAME has 1 to 512 bytes", "give the name of the lock"));
    }
    let whose = Whose::Holders { name, client };
    act(&args.operator, whose_act(whose, args.mercy), &args.name.to_string_lossy())
}

/// Removes all clients, or all clients whose connections have ended.
pub fn reset(args: &Reset) -> Result<u8, Failure> {
    let whose = if args.which.all { Whose::All } else { Whose::Departed };
    act(&args.operator, whose_act(whose, args.mercy), "")
}

/// Begins a drain, or ends it.
pub fn drain(args: &Drain) -> Result<u8, Failure> {
    act(&args.operator, Act::Drain { is_on: !args.undo }, "")
}

fn whose_act(whose: Whose, Mercy { grace, now }: Mercy) -> Act {
    Act::TakeAway { whose, grace_s: grace, now }
}

fn id(client: u32) -> Result<ClientId, Failure> {
    ClientId::new(client).ok_or_else(|| {
        Failure::new(USAGE, format!("{client} is no client id"), "dlock clients lists them")
    })
}

/// Has the primary carry out an operator's act, and prints the clients that it concerns.
fn act(operator: &Operator, act: Act, what: &str) -> Result<u8, Failure> {
    let (clients, document) = match &operator.address {
        Some(address) => {
            let opened = connect::open_with(address, &[], Fabric::Only(FabricKind::Tcp));
            let client = opened.map_err(|status| {
                let cause = format!("no session with the primary at {address}");
                match status {
                    // for a silent primary the library returns only this status; the cause is in
                    // its log
                    Status::Error => Failure::new(
                        UNAVAILABLE,
                        format_args!("{cause}: no answer, or none that a primary gives"),
                        format_args!("{SILENT}; dlock -v tells more"),
                    ),
                    status => Failure::refused(cause, status),
                }
            })?;
            let done = client.administer(act.clone());
            // the operator's client holds no lock, so leaving takes nothing from it
            client.deinit();
            let clients = done
                .map_err(|status| Failure::refused(format!("the primary at {address}"), status))?;
            (clients as usize, json!({ "clients": clients }))
        }
        None => {
            let document = admin::ask(&operator.admin, words(&act))?;
            let clients = document["clients"].as_array().map_or(0, Vec::len);
            (clients, document)
        }
    };
    let is_missing = match &act {
        Act::TakeAway { whose: Whose::Client(_), .. } => clients == 0,
        Act::TakeAway { whose: Whose::Holders { .. }, .. } => clients == 0,
        _ => false,
    };
    if is_missing {
        let (cause, remedy) = match &act {
            Act::TakeAway { whose: Whose::Client(_), .. } => {
                (format!("the primary knows no client {what}"), "dlock clients lists them")
            }
            _ => (
                format!("no such client holds lock '{}'", what.escape_debug()),
                "dlock locks lists the locks, and who holds them",
            ),
        };
        return Err(Failure::new(NOT_GOT, cause, remedy));
    }
    if operator.admin.json {
        out::json(&document);
        return Ok(failure::OK);
    }
    out::print(&table::render(&rows(&act, clients, &document)));
    Ok(failure::OK)
}

/// The act as a request of the admin socket.
fn words(act: &Act) -> Value {
    let (whose, grace_s, now) = match act {
        Act::Drain { is_on } => return json!({ "cmd": "drain", "on": is_on }),
        Act::TakeAway { whose, grace_s, now } => (whose, grace_s, now),
    };
    let mut words = match whose {
        Whose::Client(client) => json!({ "cmd": "remove", "client": client.get() }),
        Whose::Holders { name, client } => {
            let name_hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            let client = client.map(|client| client.get());
            json!({ "cmd": "break", "name_hex": name_hex, "client": client })
        }
        Whose::Departed => json!({ "cmd": "reset", "all": false }),
        Whose::All => json!({ "cmd": "reset", "all": true }),
    };
    words["grace_s"] = json!(grace_s);
    words["now"] = json!(now);
    words
}

fn rows(act: &Act, clients: usize, document: &Value) -> Vec<Vec<String>> {
    let (grace_s, now) = match act {
        Act::Drain { is_on: true } => {
            let what = "no client gets a lock; dlockd stops when none is held: dlock status";
            return vec![vec!["drain".into(), what.into()]];
        }
        Act::Drain { is_on: false } => {
            return vec![vec!["drain".into(), "over: clients get locks again".into()]];
        }
        Act::TakeAway { grace_s, now, .. } => (*grace_s, *now),
    };
    let when = match grace_s {
        0 => "removed".to_string(),
        grace_s => format!("asked, and removed in {grace_s} s unless it has given that back"),
    };
    let leases = if now { "its leases end, too" } else { "its leases last until their ends" };
    let listed = document["clients"].as_array();
    match listed {
        Some(listed) => listed
            .iter()
            .map(|client| vec![format!("client {client}"), when.clone(), leases.into()])
            .collect(),
        None => vec![vec![format!("{clients} clients"), when, leases.into()]],
    }
}
