// SPDX-License-Identifier: MIT OR Apache-2.0
//! The admin endpoint: shows the state of the primary, and takes an operator's requests to change
//! it.
//!
//! JSON (`json_lines.rs`). Numbers are decimal. Epochs, words and counters are strings of digits:
//! many programs have 53 bits for a number, which these may exceed. Names are bytes, so a
//! lock has its `name` as text (bytes that are no UTF-8 replaced) and as `name_hex`.
//!
//! ```text
//!   {"cmd":"status"}
//!     {"ok":true,"version":"26.06.100","pid":1,"address":"127.0.0.1:21616","epoch":"…",
//!      "uptime_s":5,"recovering":false,"recovery":null,"verbs":null,"shm":true,
//!      "tcp":true,"connections":2,"clients":1,"clients_max":1000,"locks":1,"locks_max":51200,
//!      "objects":0,"objects_max":102400,"stats":{"EAGAIN":"0",… the debug counters of the C API}}
//!     while it recovers: "recovery":{"expected":3,"back":1,"told":1,"claims":7,"list_lost":false,
//!      "missing":[{"client":5,"seconds_left":29}, {"client":6,"seconds_left":null}]}
//!   {"cmd":"recover"}                         waits no longer for those that are missing
//!     {"ok":true,"given_up":[5,6]}
//!   {"cmd":"locks","after":0,"max":100}    both optional; after: the last id of the page before
//!     {"ok":true,"more":false,"locks":[{"lock":17,"name":"a","name_hex":"61","type":"atomic",
//!      "word":"…","holder":5,"holder_label":"orders","left_ms":1500,"readers":0,"refs":1,
//!      "waiters":0}, …]}
//!   {"cmd":"clients","after":0,"max":100}
//!     {"ok":true,"more":false,"clients":[{"client":5,"present":true,"handles":1,"fabric":"tcp",
//!      "label":"orders","host":"node1","user":"db","pid":7,"certificate":null}, …]}
//!   {"cmd":"remove","client":5,"grace_s":9,"now":false}      grace_s, now: optional
//!   {"cmd":"break","name_hex":"61","client":5,"grace_s":9}   client: that holder alone; optional
//!   {"cmd":"reset","all":false}                              all: not the departed alone
//!   {"cmd":"drain","on":true}
//!     {"ok":true,"clients":[5,6]}            the clients that this concerns
//!   a primary in waiting (`coordinator/standby.rs`) answers {"cmd":"status"} and {"cmd":"promote"}
//!   anything else
//!     {"ok":false,"error":"…"}
//! ```
//! `holder` is the exclusive holder where the word names one, else null (a fair word does not);
//! `left_ms` is the rest of the lease of a held lock, of the last one if several clients hold it;
//! null: it has no end, or is not known.
//! `readers` counts the holds of a read-write lock in shared mode. Ids of locks are positive and
//! ordered within the pages; `more` says that there is another page.

use dlock_core::clock::{Deadline, ServerTime, NS};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use dlock_core::counters::TABLE;
use dlock_core::ids::{ClientId, Epoch, LockId};
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::primary::{self, Draining, LockSnapshot, Primary};
use dlock_core::wire::control::Act;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::LockType;
use dlock_fabric::tls::Tls;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use super::acts::{self, Asked};
use super::admin_socket::AdminListener;
use super::json_lines::{self, failure, Asker};
use crate::command::mailbox::{ClientSeen, Event, Mailbox};
use crate::control::recovery;
use crate::control::table::Table;
use crate::host::clock::ServerClock;
use crate::host::memory::Memory;
use crate::server::Offers;

/// The most items of a page.
const PAGE_MAX: usize = 1_000;
/// Items of a page if the request names no number.
const PAGE: usize = 100;
/// The properties of a primary that stay the same while it runs.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    pub(crate) address: SocketAddr,
    pub(crate) epoch: Epoch,
    pub(crate) started: Instant,
    pub(crate) clock: ServerClock,
    pub(crate) offers: Offers,
    /// `None`: the primary has no TLS.
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
enum Question {
    Status {},
    Promote {},
    Recover {},
    Locks {
        #[serde(default)]
        after: i32,
        #[serde(default)]
        max: Option<usize>,
    },
    Clients {
        #[serde(default)]
        after: u32,
        #[serde(default)]
        max: Option<usize>,
    },
}

struct Endpoint {
    info: ServerInfo,
    table: Arc<Table>,
    mailbox: Arc<Mailbox>,
}

/// Serves the admin socket.
pub(crate) async fn serve(
    listener: AdminListener,
    info: ServerInfo,
    table: Arc<Table>,
    mailbox: Arc<Mailbox>,
) {
    let endpoint = Endpoint { info, table, mailbox };
    json_lines::serve(listener, Arc::new(endpoint)).await;
}

impl json_lines::Answers for Endpoint {
    async fn reply(&self, line: &[u8], asker: Asker) -> Value {
        if let Ok(asked) = serde_json::from_slice::<Asked>(line) {
            return match asked.act() {
                Ok(act) => self.operate(act, asker).await,
                Err(wrong) => failure(&wrong),
            };
        }
        let answer =
            match serde_json::from_slice(line) {
                Ok(Question::Status {}) => self.status().await,
                Ok(Question::Promote {}) => return failure(
                    "this primary serves already: nothing is to be promoted; say dlock promote \
                     at the admin socket of the standby (dlockd with standby_of)",
                ),
                Ok(Question::Recover {}) => self.recover().await,
                Ok(Question::Locks { after, max }) => self.locks(after, page(max)).await,
                Ok(Question::Clients { after, max }) => self.clients(after, page(max)).await,
                Err(error) => return failure(&error.to_string()),
            };
        answer.unwrap_or_else(|| self.is_away())
    }
}

/// When certificates and revocation lists expire, the earliest first.
fn tls_ends(tls: &Tls) -> Value {
    let mut endings = tls.endings();
    endings.sort_by_key(|ending| ending.at_s);
    let rows = endings.iter().map(|ending| {
        json!({
            "what": ending.what,
            "file": ending.path.display().to_string(), // any bytes may be in a path
            "at": ending.date(),
            "days_left": ending.days_left_now(),
            "is_near": ending.notice_now().is_some(),
        })
    });
    rows.collect()
}

impl Endpoint {
    async fn status(&self) -> Option<Value> {
        let (progress, totals, config, stats, draining) = self
            .look(Some(primary::Event::Collect), |primary, _| {
                let locks = primary.locks();
                let counters = TABLE.iter().zip(locks.counters().read());
                let stats: Map<String, Value> =
                    counters.map(|(info, n)| (info.name.into(), n.to_string().into())).collect();
                let draining = draining(primary);
                (locks.progress(), locks.totals(), locks.config().clone(), stats, draining)
            })
            .await?;
        let recovering = progress.is_some();
        let (clients, locks, objects) = totals;
        let mut answer = json!({
            "ok": true,
            "version": crate::VERSION,
            "pid": std::process::id(),
            "address": self.info.address.to_string(),
            "epoch": self.info.epoch.0.to_string(),
            "uptime_s": self.info.started.elapsed().as_secs(),
            "recovering": recovering,
            "recovery": recovery::value(progress, self.info.clock.now()),
            "drain": draining,
            "connections": self.table.len(),
            "clients": clients,
            "clients_max": config.clients_max,
            "locks": locks,
            "locks_max": config.locks_max,
            "objects": objects,
            "objects_max": config.objects_max,
            "stats": stats,
        });
        answer["tls_ends"] = self.info.tls.as_ref().map_or(Value::Null, tls_ends);
        // each fabric under its name: the device, or whether it is offered
        for kind in FabricKind::ALL {
            answer[kind.name()] = match (self.info.offers.detail(kind), kind.needs_device()) {
                (Some(device), _) => json!(device),
                (None, true) => Value::Null,
                (None, false) => json!(self.info.offers.has(kind)),
            };
        }
        Some(answer)
    }

    /// Gives up the predecessor's clients that are not back.
    async fn recover(&self) -> Option<Value> {
        let hurries = Some(primary::Event::Hurries);
        let Some(progress) = self.look(hurries, |one, _| one.locks().progress()).await? else {
            return Some(failure("the primary is not recovering"));
        };
        let missing: Vec<u32> = progress.missing.iter().map(|(client, _)| client.get()).collect();
        log::warn!(
            "an operator does not want to wait: given up are clients {missing:?}; what they held \
             may be given to others while they rely on it"
        );
        Some(json!({ "ok": true, "given_up": missing }))
    }

    /// Has the primary do what an operator asks for.
    async fn operate(&self, act: Act, asker: Asker) -> Value {
        let by = acts::name_of(asker).into();
        let operate = primary::Event::Operate { act, by };
        // the act would be done later, when the device works again, and may not be wanted any more
        // by then
        if self.mailbox.is_out() {
            return self.is_away();
        }
        let look = Event::look(vec![operate], |one, _| one.operated().to_vec());
        match self.mailbox.ask(look).await {
            Ok(clients) => {
                let clients: Vec<u32> = clients.into_iter().map(ClientId::get).collect();
                json!({ "ok": true, "clients": clients })
            }
            Err(_) => self.is_away(),
        }
    }

    fn is_away(&self) -> Value {
        match self.mailbox.is_out() {
            true => failure("the primary waits for its RDMA device, which does not work"),
            false => failure("the primary is stopping"),
        }
    }

    async fn locks(&self, after: i32, max: usize) -> Option<Value> {
        let now = self.info.clock.now();
        let look = move |primary: &Primary, memory: &mut Memory| {
            let locks = primary.locks().locks_snapshot(now, memory, LockId(after), max + 1);
            let with_label = |lock| {
                let about = holder(&lock).and_then(|client| primary.members().about(client));
                (lock, about.map(|about| about.label().to_string()))
            };
            locks.into_iter().map(with_label).collect::<Vec<_>>()
        };
        let mut locks = self.look(None, look).await?;
        let more = locks.len() > max;
        locks.truncate(max);
        let line = |(lock, label)| LockLine::of(lock, label, now);
        let locks: Vec<LockLine> = locks.into_iter().map(line).collect();
        Some(json!({ "ok": true, "more": more, "locks": locks }))
    }

    async fn clients(&self, after: u32, max: usize) -> Option<Value> {
        let ask = |reply| Event::Clients { reply };
        let clients = self.mailbox.ask_unless_out(ask).await.ok().flatten()?;
        let mut page = clients.iter().filter(|one| one.snapshot.client.get() > after);
        let clients: Vec<Value> = page.by_ref().take(max).map(client_line).collect();
        Some(json!({ "ok": true, "more": page.next().is_some(), "clients": clients }))
    }

    /// Passes `first` to the primary and reads it, on the command thread.
    async fn look<T: Send + 'static>(
        &self,
        first: Option<primary::Event>,
        look: impl FnOnce(&Primary, &mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let look = Event::look(first.into_iter().collect(), look);
        self.mailbox.ask_unless_out(look).await.ok().flatten()
    }
}

/// The progress of a drain; null: the primary does not drain.
fn draining(primary: &Primary) -> Value {
    let Some(draining) = primary.locks().draining() else { return Value::Null };
    let held = match draining {
        Draining::Held(lock) => primary.locks().name_of(lock),
        Draining::EndsWaits | Draining::Idle => None,
    };
    let reaching_memory = primary.members().reaching_memory();
    json!({
        "idle": draining == Draining::Idle && reaching_memory == 0,
        "held": held.map(|name| String::from_utf8_lossy(name).into_owned()),
        "reaching_memory": reaching_memory,
    })
}

fn page(max: Option<usize>) -> usize {
    max.unwrap_or(PAGE).clamp(1, PAGE_MAX)
}

/// The exclusive holder that the word of the lock names.
fn holder(lock: &LockSnapshot) -> Option<ClientId> {
    ClientId::new(match lock.lock_type {
        LockType::Atomic => AtomicWord::from_bits(lock.word).client(),
        LockType::Rw => RwWord::from_bits(lock.word).client(),
        LockType::Fair => 0,
    })
}

/// One lock as JSON.
#[derive(Serialize)]
struct LockLine {
    lock: i32,
    name: String,
    name_hex: String,
    r#type: &'static str,
    word: String,
    holder: Option<u32>,
    holder_label: Option<String>,
    left_ms: Option<u64>,
    readers: u32,
    refs: usize,
    waiters: usize,
}

impl LockLine {
    fn of(lock: LockSnapshot, holder_label: Option<String>, now: ServerTime) -> Self {
        let left_of = |end: ServerTime| end.0.saturating_sub(now.0).div_ceil(NS / 1_000);
        let left_ms = |deadline: Deadline| match deadline {
            // the lease has no end; no field has a number above 2^53, which JSON readers may not
            // keep
            Deadline::NEVER => None,
            _ => Some(left_of(deadline.expiry())),
        };
        let last_ms = lock.leases_end.map(left_of);
        let holder = holder(&lock);
        let (r#type, left_ms, readers) = match lock.lock_type {
            LockType::Atomic => {
                let timeout = AtomicWord::from_bits(lock.word).timeout();
                ("atomic", left_ms(timeout).filter(|_| holder.is_some()), 0)
            }
            LockType::Rw => ("rw", last_ms, RwWord::from_bits(lock.word).rcount()),
            LockType::Fair => ("fair", last_ms, 0),
        };
        Self {
            lock: lock.lock.0,
            name: String::from_utf8_lossy(&lock.name).into_owned(),
            name_hex: lock.name.iter().map(|byte| format!("{byte:02x}")).collect(),
            r#type,
            word: lock.word.to_string(),
            holder: holder.map(ClientId::get),
            holder_label: holder_label.filter(|label| !label.is_empty()),
            left_ms,
            readers,
            refs: lock.refs,
            waiters: lock.waiters,
        }
    }
}

fn client_line(seen: &ClientSeen) -> Value {
    let ClientSeen { snapshot, is_present, about, fabric, shown } = seen;
    let told = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    json!({
        "client": snapshot.client.get(),
        "present": is_present,
        "handles": snapshot.handles,
        "fabric": fabric.map(FabricKind::name),
        "label": told(about.label()),
        "host": told(about.host()),
        "user": told(about.user()),
        "pid": (about.pid != 0).then_some(about.pid),
        "certificate": shown.as_ref().map(|shown| shown.peer.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ids::Slot;

    #[test]
    fn what_is_left_of_a_lease_is_a_number_only_if_it_has_an_end() {
        let left_ms = |client, deadline| {
            let word = AtomicWord::new().with_client(client).with_timeout(deadline).into_bits();
            let lock = LockSnapshot {
                lock: LockId(1),
                name: b"l".to_vec(),
                lock_type: LockType::Atomic,
                slot: Slot(0),
                word,
                refs: 1,
                waiters: 0,
                leases_end: None,
            };
            LockLine::of(lock, None, ServerTime(0)).left_ms
        };
        assert_eq!(left_ms(5, Deadline::NEVER), None);
        assert!(left_ms(5, Deadline::at_s(9)).is_some_and(|ms| ms >= 9_000));
        assert_eq!(left_ms(0, Deadline::at_s(9)), None, "it is free");
    }
}
