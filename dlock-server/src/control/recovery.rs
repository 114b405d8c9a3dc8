// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch over a recovery: it reports clients whose processes on this host have ended, and logs
//! the progress.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::ClientId;
use dlock_core::primary::{self, Progress};
use dlock_core::roster::Kept;
use serde_json::{json, Value};

use crate::command::mailbox::{Event, Mailbox};
use crate::coordinator::file::has_ended;
use crate::host::clock::ServerClock;

/// The time between two checks of the clients' processes.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The number of checks between two lines in the log.
const LOOKS_PER_LINE: u32 = 40;
/// How many clients one line names.
const NAMED_MAX: usize = 8;

/// The progress of a recovery. As text it is one line: `recovers: of 3 clients 1 is back; waits at
/// most 29 s for 5, 7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Clients for which the recovery waits, or has waited.
    pub expected: u32,
    /// The number of these that are back.
    pub back: u32,
    /// The number of seconds after which the recovery stops waiting. `None`: it waits for some
    /// clients until they come.
    pub seconds_left: Option<u64>,
    /// The clients that are not back, as far as their ids are known.
    pub missing: Vec<ClientId>,
}

impl Recovery {
    pub(crate) fn new(progress: &Progress, now: ServerTime) -> Self {
        let Progress { expected, back, missing, .. } = progress;
        // Clients that are only counted have no id here, and no horizon.
        let is_counted = (missing.len() as u64) < u64::from(expected.saturating_sub(*back))
            || progress.is_unlisted;
        let until =
            missing.iter().try_fold(0, |last, (_, until)| Some(last.max(until.as_ref()?.0)));
        let seconds_left = until.filter(|_| !is_counted).map(|until| seconds(until, now));
        let missing = missing.iter().map(|(client, _)| *client).collect();
        Self { expected: *expected, back: *back, seconds_left, missing }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, back, seconds_left, missing } = self;
        let s = if *expected == 1 { "" } else { "s" };
        let are = if *back == 1 { "is" } else { "are" };
        write!(f, "recovers: of {expected} client{s} {back} {are} back")?;
        match seconds_left {
            _ if back == expected && *expected > 0 => f.write_str("; they tell what they hold"),
            Some(left) => write!(f, "; waits at most {left} s for {}", named(missing, |_| None)),
            None => f.write_str("; waits for some until they come, or for `dlock recover --now`"),
        }
    }
}

/// Names the first of these clients, each with the remark `of` about its place in the list.
fn named(clients: &[ClientId], of: impl Fn(usize) -> Option<String>) -> String {
    let name = |(at, client): (usize, &ClientId)| match of(at) {
        Some(said) => format!("{client} ({said})"),
        None => client.to_string(),
    };
    let names: Vec<String> = clients.iter().enumerate().take(NAMED_MAX).map(name).collect();
    let more = if clients.len() > NAMED_MAX { ", …" } else { "" };
    names.join(", ") + more
}

/// Seconds from `now` to `until`, rounded up.
fn seconds(until: u64, now: ServerTime) -> u64 {
    until.saturating_sub(now.0).div_ceil(NS)
}

/// Watches the awaited clients until the recovery is over.
pub(super) async fn watch(
    mailbox: Arc<Mailbox>,
    clock: ServerClock,
    awaited: Vec<(ClientId, Kept)>,
) {
    for look in 0_u32.. {
        let dead = awaited.iter().filter(|(_, kept)| kept.is_dead(has_ended));
        let dead = dead.map(|&(client, _)| primary::Event::PredecessorEnded { client }).collect();
        match mailbox.ask(Event::look(dead, |one, _| one.locks().progress())).await {
            Ok(Some(progress)) if look % LOOKS_PER_LINE == 0 => {
                log::info!("{}", line(&progress, clock.now()))
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn line(progress: &Progress, now: ServerTime) -> String {
    let Progress { expected, back, told, claims, missing, is_unlisted } = progress;
    let mut line = format!(
        "recovering: of {expected} clients {back} are back, {told} have told everything, {claims} \
         holds and tickets so far"
    );
    if *is_unlisted {
        line +=
            "; who else there may be is not known, since the list of clients was lost: nobody is \
                 served until `dlock recover --now`";
    }
    if missing.is_empty() {
        return line;
    }
    let clients: Vec<ClientId> = missing.iter().map(|(client, _)| *client).collect();
    let until = |at: usize| match missing[at].1 {
        Some(until) => format!("for {} s more", seconds(until.0, now)),
        None => "without end".into(),
    };
    let endless = missing.iter().filter(|(_, until)| until.is_none()).count();
    line += &format!("; waits for {}", named(&clients, |at| Some(until(at))));
    if endless > 0 {
        line += &format!(
            " ({endless} without a session horizon, which are waited for until they come; \
             `dlock recover --now` gives them up)"
        );
    }
    line
}

/// The progress as JSON for operators; null: there is no recovery.
pub(crate) fn value(progress: Option<Progress>, now: ServerTime) -> Value {
    let Some(progress) = progress else { return Value::Null };
    let missing = progress.missing.iter().map(|(client, until)| {
        let left_s = until.map(|until| seconds(until.0, now));
        json!({ "client": client.get(), "seconds_left": left_s })
    });
    json!({
        "expected": progress.expected,
        "back": progress.back,
        "told": progress.told,
        "claims": progress.claims,
        "list_lost": progress.is_unlisted,
        "missing": missing.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_is_missing_and_what_can_be_done() {
        let id = |n| ClientId::new(n).unwrap();
        let mut progress = Progress { expected: 12, back: 1, told: 1, claims: 3, ..<_>::default() };
        assert!(!line(&progress, ServerTime(1)).contains("waits for"));
        progress.missing = (1..=11).map(|n| (id(n), (n > 1).then_some(ServerTime(NS)))).collect();
        let text = line(&progress, ServerTime(1));
        let named = "waits for 1 (without end), 2 (for 1 s more), 3 (for 1 s more), ";
        assert!(text.contains(named) && text.contains("8 (for 1 s more), …"), "{text}");
        assert!(text.contains("(1 without a session horizon"), "{text}");
        let value = value(Some(progress), ServerTime(1));
        assert_eq!(value["missing"][0], json!({ "client": 1, "seconds_left": null }));
        assert_eq!(value["missing"][1], json!({ "client": 2, "seconds_left": 1 }));
    }

    #[test]
    fn the_line_of_the_status_says_how_long_it_may_take() {
        let id = |n| ClientId::new(n).unwrap();
        let (now, at) = (ServerTime(10 * NS), |s| Some(ServerTime(s * NS)));
        let line = |expected, back, missing| {
            let progress = Progress { expected, back, missing, ..Progress::default() };
            Recovery::new(&progress, now).to_string()
        };
        assert_eq!(
            line(3, 1, vec![(id(1), at(39)), (id(2), at(20))]),
            "recovers: of 3 clients 1 is back; waits at most 29 s for 1, 2"
        );
        assert_eq!(
            line(3, 3, vec![]),
            "recovers: of 3 clients 3 are back; they tell what they hold"
        );
        let endless = line(2, 0, vec![(id(1), at(39)), (id(2), None)]);
        assert!(endless.ends_with("until they come, or for `dlock recover --now`"), "{endless}");
        // a recovery that only counts clients (`--recovery-clients`)
        let counted = line(2, 0, vec![]);
        assert!(counted.ends_with("until they come, or for `dlock recover --now`"), "{counted}");
    }
}
