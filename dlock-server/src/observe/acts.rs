// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator can change at the admin socket, and what the log says about it.

use dlock_core::ids::ClientId;
use dlock_core::primary::Effect;
use dlock_core::wire::control::{Act, Whose};
use serde::Deserialize;

use super::json_lines::Asker;

/// Clients that one line of the log names.
const NAMED_MAX: usize = 32;
/// The longest time that a client may be given to leave, seconds: a day.
const GRACE_S_MAX: u32 = 86_400;

/// A request of the admin socket that changes something.
#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Asked {
    Remove {
        client: u32,
        #[serde(default)]
        grace_s: u32,
        #[serde(default)]
        now: bool,
    },
    Break {
        name_hex: String,
        #[serde(default)]
        client: Option<u32>,
        #[serde(default)]
        grace_s: u32,
        #[serde(default)]
        now: bool,
    },
    Reset {
        all: bool,
        #[serde(default)]
        grace_s: u32,
        #[serde(default)]
        now: bool,
    },
    Drain {
        on: bool,
    },
}

impl Asked {
    /// The act of the primary.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) fn act(self) -> Result<Act, String> {
        let id = |client: u32| {
            ClientId::new(client).ok_or_else(|| format!("{client} is no client id: see clients"))
        };
        let (whose, grace_s, now) = match self {
            Self::Remove { client, grace_s, now } => (Whose::Client(id(client)?), grace_s, now),
            Self::Break { name_hex, client, grace_s, now } => {
                let name = bytes(&name_hex).ok_or("name_hex has two hexadecimal digits a byte")?;
                (Whose::Holders { name, client: client.map(id).transpose()? }, grace_s, now)
            }
            Self::Reset { all, grace_s, now } => {
                (if all { Whose::All } else { Whose::Departed }, grace_s, now)
            }
            Self::Drain { on } => return Ok(Act::Drain { is_on: on }),
        };
        match grace_s <= GRACE_S_MAX {
            true => Ok(Act::TakeAway { whose, grace_s, now }),
            false => Err(format!("grace_s is {GRACE_S_MAX} at most")),
        }
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.map(|pair| byte(pair).filter(|_| pair.len() == 2)).collect();
    bytes.filter(|bytes| (1..=dlock_core::limits::DESC_LEN_MAX).contains(&bytes.len()))
}

/// The operator's name in the log and in the message to a removed client.
pub(super) fn name_of(asker: Asker) -> String {
    match asker.pid {
        Some(pid) => format!("uid {} (process {pid}) at the admin socket", asker.uid),
        None => format!("uid {} at the admin socket", asker.uid),
    }
}

/// Logs the operator's act, if the effect is one.
pub(crate) fn log_of(effect: &Effect) {
    let Effect::Operated { act, by, clients } = effect else { return };
    let (whose, grace_s, now) = match act {
        Act::TakeAway { whose, grace_s, now } => (whose, *grace_s, *now),
        Act::Drain { is_on: true } => {
            return log::warn!("{by} drains the primary: no client gets a lock any more");
        }
        Act::Drain { is_on: false } => {
            return log::warn!("{by} has ended the drain: clients get locks again");
        }
    };
    let what = match whose {
        Whose::Client(client) => format!("removes client {client}"),
        Whose::Holders { name, client } => {
            let of = client.map(|client| format!(", if client {client} holds it"));
            let name = String::from_utf8_lossy(name);
            format!("breaks lock {name:?}{}", of.unwrap_or_default())
        }
        Whose::Departed => "removes all clients that have departed".to_string(),
        Whose::All => "removes all clients".to_string(),
    };
    let mut named: Vec<String> =
        clients.iter().take(NAMED_MAX).map(|client| client.to_string()).collect();
    if clients.len() > NAMED_MAX {
        named.push(format!("and {} more", clients.len() - NAMED_MAX));
    }
    let named = if named.is_empty() { "none".to_string() } else { named.join(", ") };
    let leases = if now { "leases end with them" } else { "each lease lasts until its end" };
    log::warn!("{by} {what}: clients {named}; within {grace_s} s they may leave; {leases}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(line: &str) -> Result<Act, String> {
        serde_json::from_str::<Asked>(line).map_err(|error| error.to_string())?.act()
    }

    #[test]
    fn a_line_is_an_act_or_says_what_is_wrong() {
        let client = ClientId::new(5);
        let whose = Whose::Client(client.unwrap());
        let wanted = Act::TakeAway { whose, grace_s: 0, now: false };
        assert_eq!(act(r#"{"cmd":"remove","client":5}"#), Ok(wanted));
        let whose = Whose::Holders { name: b"a".to_vec(), client };
        let wanted = Act::TakeAway { whose, grace_s: 9, now: true };
        let line = r#"{"cmd":"break","name_hex":"61","client":5,"grace_s":9,"now":true}"#;
        assert_eq!(act(line), Ok(wanted));
        let wanted = Act::TakeAway { whose: Whose::Departed, grace_s: 0, now: false };
        assert_eq!(act(r#"{"cmd":"reset","all":false}"#), Ok(wanted));
        assert_eq!(act(r#"{"cmd":"drain","on":true}"#), Ok(Act::Drain { is_on: true }));
        for wrong in [
            r#"{"cmd":"remove","client":0}"#,
            r#"{"cmd":"remove","client":5,"grace_s":86401}"#,
            r#"{"cmd":"break","name_hex":"6"}"#,
            r#"{"cmd":"break","name_hex":""}"#,
            r#"{"cmd":"break","name_hex":"zz"}"#,
            r#"{"cmd":"drain"}"#,
        ] {
            assert!(act(wrong).is_err(), "{wrong}");
        }
    }
}
