// SPDX-License-Identifier: MIT OR Apache-2.0
//! While the primary recovers: whose processes of this host have ended, and what is told of it all.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::ClientId;
use dlock_core::primary::{Primary, Progress};
use dlock_core::roster::Kept;
use serde_json::{json, Value};
use tokio::sync::oneshot;

use crate::mailbox::{Event, Mailbox};
use crate::roster::has_ended;

/// Between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks from one line of the log to the next.
const LOOKS_PER_LINE: u32 = 40;
/// Clients that one line names.
const NAMED_MAX: usize = 8;

/// Watches the clients that are waited for until the recovery is over.
pub(super) async fn watch(mailbox: Arc<Mailbox>, awaited: Vec<(ClientId, Kept)>) {
    for look in 0_u32.. {
        let dead: Vec<ClientId> = awaited
            .iter()
            .filter(|(_, kept)| kept.is_dead(has_ended))
            .map(|(client, _)| *client)
            .collect();
        if !dead.is_empty() && mailbox.send(Event::Died { clients: dead }).await.is_err() {
            return;
        }
        let ask = |reply: oneshot::Sender<Option<Progress>>| {
            Event::Ask(Box::new(move |primary: &mut Primary, _| {
                let _ = reply.send(primary.progress()); // this task may have ended
            }))
        };
        match mailbox.ask(ask).await {
            Ok(Some(progress)) if look % LOOKS_PER_LINE == 0 => log::info!("{}", line(&progress)),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn line(progress: &Progress) -> String {
    let Progress { expected, back, told, claims, missing } = progress;
    let mut line = format!(
        "recovering: of {expected} clients {back} are back, {told} have told everything, {claims} \
         holds and tickets so far"
    );
    if missing.is_empty() {
        return line;
    }
    let names = missing.iter().take(NAMED_MAX).map(|(client, _)| client.to_string());
    let names: Vec<String> = names.collect();
    let more = if missing.len() > NAMED_MAX { ", …" } else { "" };
    let endless = missing.iter().filter(|(_, until)| until.is_none()).count();
    line += &format!("; missing: {}{more}", names.join(", "));
    if endless > 0 {
        line += &format!(
            " ({endless} without a session horizon, which are waited for until they come; \
             `dlock recover --now` gives them up)"
        );
    }
    line
}

/// The progress as operators see it.
pub(super) fn value(progress: Option<Progress>, now: ServerTime) -> Value {
    let Some(progress) = progress else { return Value::Null };
    let missing = progress.missing.iter().map(|(client, until)| {
        let left_s = until.map(|until| until.0.saturating_sub(now.0).div_ceil(NS));
        json!({ "client": client.get(), "seconds_left": left_s })
    });
    json!({
        "expected": progress.expected,
        "back": progress.back,
        "told": progress.told,
        "claims": progress.claims,
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
        assert!(!line(&progress).contains("missing"));
        progress.missing = (1..=11).map(|n| (id(n), (n > 1).then_some(ServerTime(NS)))).collect();
        let text = line(&progress);
        assert!(text.contains("missing: 1, 2, 3, 4, 5, 6, 7, 8, …"), "{text}");
        assert!(text.contains("(1 without a session horizon"), "{text}");
        let value = value(Some(progress), ServerTime(1));
        assert_eq!(value["missing"][0], json!({ "client": 1, "seconds_left": null }));
        assert_eq!(value["missing"][1], json!({ "client": 2, "seconds_left": 1 }));
    }
}
