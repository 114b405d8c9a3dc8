// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock status`, `recover`, `promote`, `locks`, `clients`: asks a running primary at its admin
//! socket.
//!
//! Each question is a line of JSON, and so is its answer; lists come in pages
//! (`dlock-server/src/observe/admin.rs` has the format).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_core::memory::words::FairView;
use dlock_core::wire::fabric::FabricKind;
use dlock_server::{connect_admin, DefaultFiles};
use serde_json::{json, Value};

use crate::args::Admin;
use crate::failure::{self, Failure, UNAVAILABLE};
use crate::{out, table};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The admin socket of the service.
const SERVICE_SOCKET: &str = "/run/dlock/dlockd.sock";
/// The most bytes of one answer: a page of the longest names, each in two forms, and some more.
const ANSWER_LEN_MAX: u64 = 16 * 1024 * 1024;
/// How many items the tool asks for in one page of a list.
const PAGE: usize = 1_000;

/// A question or an instruction to the primary.
#[derive(Clone, Copy)]
pub enum Query<'a> {
    /// Asks for the state of the primary.
    Status,
    /// Tells the standby to take the place of its primary.
    Promote,
    /// Asks for the list of locks; with a name, for that lock alone.
    Locks {
        /// The name.
        name: Option<&'a [u8]>,
    },
    /// Asks for the list of clients.
    Clients,
    /// Asks for the progress of the primary's recovery.
    Recovery {
        /// Whether the primary is to stop waiting for missing clients.
        now: bool,
    },
}

/// Asks and prints; returns the exit code.
pub fn run(admin: &Admin, query: Query<'_>) -> Result<u8, Failure> {
    let mut primary = Endpoint::find(admin.socket.as_deref())?;
    let document = match query {
        Query::Status => primary.ask(json!({ "cmd": "status" }))?,
        Query::Promote => primary.ask(json!({ "cmd": "promote" }))?,
        Query::Locks { name } => only(primary.pages("locks", "lock")?, name),
        Query::Clients => primary.pages("clients", "client")?,
        Query::Recovery { now: true } => primary.ask(json!({ "cmd": "recover" }))?,
        Query::Recovery { now: false } => {
            let mut status = primary.ask(json!({ "cmd": "status" }))?;
            json!({ "recovery": status["recovery"].take() })
        }
    };
    if admin.json {
        out::json(&document);
        return Ok(failure::OK);
    }
    let rows = match query {
        Query::Status if !document["standby_of"].is_null() => standby_rows(&document),
        Query::Status => status_rows(&document),
        Query::Promote => vec![row(&["promoted", "it takes the place of the primary now"])],
        Query::Locks { .. } => lock_rows(&document["locks"]),
        Query::Clients => client_rows(&document["clients"]),
        Query::Recovery { now: true } => given_up_rows(&document["given_up"]),
        Query::Recovery { now: false } => recovery_rows(&document["recovery"]),
    };
    out::print(&table::render(&rows));
    Ok(failure::OK)
}

/// Sends a question to the primary at its admin socket; returns its answer.
pub fn ask(admin: &Admin, question: Value) -> Result<Value, Failure> {
    Endpoint::find(admin.socket.as_deref())?.ask(question)
}

/// The locks of this list that have this name.
fn only(mut list: Value, name: Option<&[u8]>) -> Value {
    let hex = name.map(|name| name.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    if let (Some(hex), Some(locks)) = (hex, list["locks"].as_array_mut()) {
        locks.retain(|lock| lock["name_hex"] == *hex);
    }
    list
}

struct Endpoint {
    stream: BufReader<UnixStream>,
    shown: String,
}

impl Endpoint {
    /// Connects to the named socket, or to the one in the default places that answers.
    fn find(named: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = named {
            return Self::connect(path).map_err(|error| unreached(path, &error));
        }
        let mut sockets = DefaultFiles::of_this_process().admin_sockets();
        sockets.push(PathBuf::from(SERVICE_SOCKET));
        let (mut found, mut denied) = (Vec::new(), None);
        for path in sockets {
            match Self::connect(&path) {
                Err(error) if has_ended(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    denied = Some(unreached(&path, &error));
                }
                tried => found.push((path, tried)),
            }
        }
        let names: Vec<_> = found.iter().map(|(path, _)| path.display().to_string()).collect();
        match (found.pop(), denied) {
            // several primaries answer: the tool does not guess which one is meant, because some
            // commands cannot be undone
            (Some(_), _) if !found.is_empty() => {
                let cause = format!("there are several primaries: {}", names.join(", "));
                Err(Failure::new(UNAVAILABLE, cause, "name the admin socket of one by --socket"))
            }
            (Some((path, tried)), _) => tried.map_err(|error| unreached(&path, &error)),
            (None, Some(denied)) => Err(denied),
            (None, None) => Err(Failure::new(
                UNAVAILABLE,
                "no primary with an admin socket runs as this user or as the service",
                "start one (dlockd), or name the admin socket of another by --socket",
            )),
        }
    }

    fn connect(path: &Path) -> io::Result<Self> {
        let stream = connect_admin(path, ANSWER_MAX)?;
        Ok(Self { stream: BufReader::new(stream), shown: path.display().to_string() })
    }

    /// Asks one question; returns the answer without its `ok`.
    fn ask(&mut self, question: Value) -> Result<Value, Failure> {
        let mut line = Vec::new();
        let sent = self.stream.get_mut().write_all(format!("{question}\n").as_bytes());
        let received = sent
            .and_then(|()| (&mut self.stream).take(ANSWER_LEN_MAX).read_until(b'\n', &mut line));
        let failed = |cause: String| {
            let remedy = "look whether dlockd runs and answers, and whether this is its socket";
            Failure::new(UNAVAILABLE, format!("admin socket {}: {cause}", self.shown), remedy)
        };
        received.map_err(|error| unreached(Path::new(&self.shown), &error))?;
        let mut answer: Value = serde_json::from_slice(&line)
            .map_err(|_| failed("no answer that makes sense".into()))?;
        match (answer["ok"].as_bool(), answer.as_object_mut()) {
            (Some(true), Some(fields)) => {
                fields.remove("ok");
                Ok(answer)
            }
            _ => Err(failed(answer["error"].as_str().unwrap_or("refused").to_string())),
        }
    }

    /// Asks for all pages of a list; returns their items in one answer.
    fn pages(&mut self, list: &str, id: &str) -> Result<Value, Failure> {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let mut page = self.ask(json!({ "cmd": list, "after": after, "max": PAGE }))?;
            let more = page["more"].as_bool() == Some(true);
            let Value::Array(items) = page[list].take() else { break };
            let last = items.last().and_then(|item| item[id].as_i64());
            all.extend(items);
            match last {
                // ids grow from page to page; a page that does not grow would be asked for without
                // end
                Some(last) if more && last > after => after = last,
                _ => break,
            }
        }
        Ok(json!({ list: all }))
    }
}

/// Whether no process serves this socket.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn unreached(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    let (cause, remedy) = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (
            format!("no answer in {} s", ANSWER_MAX.as_secs()),
            "look whether its dlockd is stopped (SIGSTOP), or its host overloaded",
        ),
        io::ErrorKind::PermissionDenied => (
            "permission denied".to_string(),
            "ask as dlockd's user or as root; admin_for_group lets its group ask, too",
        ),
        _ if has_ended(error) => (
            "no primary serves it".to_string(),
            "start dlockd, or name the socket of another by --socket (admin_socket in dlockd.toml)",
        ),
        _ => (error.to_string(), "look whether dlockd runs, and whether this is its socket"),
    };
    Failure::new(UNAVAILABLE, format!("admin socket {path}: {cause}"), remedy)
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}

/// A value as a cell; control characters of a text are escaped.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.escape_debug().to_string(),
        other => other.to_string(),
    }
}

fn status_rows(status: &Value) -> Vec<Vec<String>> {
    let of = |what: &str, max: &str| format!("{} of {}", cell(&status[what]), cell(&status[max]));
    let state = match status["recovering"].as_bool() {
        Some(true) => "recovering: waits for clients".to_string(),
        _ => drain_state(&status["drain"]),
    };
    let mut rows = vec![
        row(&["state", &state]),
        row(&["address", &cell(&status["address"])]),
        row(&["version", &cell(&status["version"])]),
        row(&["process", &cell(&status["pid"])]),
        row(&["epoch", &cell(&status["epoch"])]),
        row(&["up", &format!("{} s", cell(&status["uptime_s"]))]),
    ];
    rows.extend(FabricKind::ALL.map(|kind| row(&[kind.name(), &offer(&status[kind.name()])])));
    if status["recovering"] == true {
        rows.extend(missing_rows(&status["recovery"]));
    }
    rows.extend([
        row(&["connections", &cell(&status["connections"])]),
        row(&["clients", &of("clients", "clients_max")]),
        row(&["locks", &of("locks", "locks_max")]),
        row(&["objects", &of("objects", "objects_max")]),
    ]);
    // The counters that are not 0 (docs/dlock.md, JSON).
    let stats = status["stats"].as_object().into_iter().flatten();
    let counted = stats.filter(|(_, count)| *count != "0");
    rows.extend(counted.map(|(name, count)| row(&[&format!("counted: {name}"), &cell(count)])));
    let ends = status["tls_ends"].as_array().map(Vec::as_slice).unwrap_or_default();
    // shows the earliest end, and all ends that are near
    let shown =
        ends.iter().enumerate().filter(|(place, end)| *place == 0 || end["is_near"] == true);
    rows.extend(shown.map(|(_, end)| row(&["TLS until", &ending(end)])));
    rows
}

/// The state of a drain in words, for the table.
fn drain_state(drain: &Value) -> String {
    let reaching = drain["reaching_memory"].as_u64().unwrap_or(0);
    match (drain["idle"].as_bool(), &drain["held"]) {
        (None, _) => "ready".into(),
        (Some(true), _) => "drained: no lock is held, and none is given".into(),
        (_, Value::String(name)) => {
            format!("draining: no lock is given; held is {:?}, and perhaps others", name)
        }
        _ if reaching > 0 => format!(
            "draining: no lock is given; {reaching} clients without a session horizon reach the \
             memory themselves: end them, or dlock remove"
        ),
        _ => "draining: no lock is given".into(),
    }
}

fn ending(end: &Value) -> String {
    let left = match end["days_left"].as_u64() {
        Some(days) => format!("{days} days left"),
        None => "over".into(),
    };
    format!("{} ({left}): {}, {}", cell(&end["at"]), cell(&end["what"]), cell(&end["file"]))
}

/// The rows of the table for the status of a standby.
fn standby_rows(status: &Value) -> Vec<Vec<String>> {
    let of = cell(&status["standby_of"]);
    let heard = match (status["was_heard"].as_bool(), status["silent_ms"].as_u64()) {
        (Some(true), Some(ms)) => format!("{ms} ms ago"),
        (_, ms) => format!("never, for {} ms", ms.unwrap_or_default()),
    };
    let state = match status["has_place"].as_bool() {
        Some(true) => {
            format!("has taken the place of the primary at {of}, and cannot serve yet: see its log")
        }
        _ => format!("waits for the end of the primary at {of}"),
    };
    vec![
        row(&["state", &state]),
        row(&["heard of it", &heard]),
        row(&["version", &cell(&status["version"])]),
        row(&["process", &cell(&status["pid"])]),
    ]
}

fn recovery_rows(recovery: &Value) -> Vec<Vec<String>> {
    if recovery.is_null() {
        return vec![row(&["recovery", "none: the primary is ready"])];
    }
    let mut rows = vec![
        row(&["clients expected", &cell(&recovery["expected"])]),
        row(&["back", &cell(&recovery["back"])]),
        row(&["have told everything", &cell(&recovery["told"])]),
        row(&["holds and tickets so far", &cell(&recovery["claims"])]),
    ];
    if recovery["list_lost"].as_bool() == Some(true) {
        let what = "their list was lost: waits for `dlock recover --now`";
        rows.push(row(&["other clients", what]));
    }
    rows.extend(missing_rows(recovery));
    rows
}

fn missing_rows(recovery: &Value) -> Vec<Vec<String>> {
    let missing = recovery["missing"].as_array().into_iter().flatten();
    let missing = missing.map(|missing| {
        let until = match &missing["seconds_left"] {
            Value::Null => "it has no session horizon: waited for until it comes".to_string(),
            seconds => format!("waited for another {} s", cell(seconds)),
        };
        row(&[&format!("missing: client {}", cell(&missing["client"])), &until])
    });
    missing.collect()
}

fn given_up_rows(given_up: &Value) -> Vec<Vec<String>> {
    let given_up = given_up.as_array().into_iter().flatten();
    let mut rows: Vec<_> =
        given_up.map(|client| row(&["given up: client", &cell(client)])).collect();
    if rows.is_empty() {
        rows.push(row(&["given up", "nobody: those that are back are waited for"]));
    }
    rows
}

/// The cell of the table for a fabric: whether it is offered, or the name of its device.
fn offer(offered: &Value) -> String {
    match offered {
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) | Value::Null => "no".into(),
        device => cell(device),
    }
}

fn lock_rows(locks: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![row(&["lock", "type", "clients", "waiters", "state", "lease", "name"])];
    for lock in locks.as_array().into_iter().flatten() {
        rows.push(vec![
            cell(&lock["lock"]),
            cell(&lock["type"]),
            cell(&lock["refs"]),
            cell(&lock["waiters"]),
            lock_state(lock),
            lease(lock),
            cell(&lock["name"]),
        ]);
    }
    rows
}

fn lock_state(lock: &Value) -> String {
    if let Some(holder) = lock["holder"].as_u64() {
        return match lock["holder_label"] {
            Value::Null => format!("held by {holder}"),
            ref label => format!("held by {holder} ({})", cell(label)),
        };
    }
    let readers = lock["readers"].as_u64().unwrap_or(0);
    if readers > 0 {
        return format!("{readers} readers");
    }
    if lock["type"] == "fair" {
        let word = FairView::from_bits(
            lock["word"].as_str().and_then(|word| word.parse().ok()).unwrap_or(0),
        );
        let exclusive = word.mx().wrapping_sub(word.nx());
        let shared = word.ms().wrapping_sub(word.ns());
        if exclusive != 0 || shared != 0 {
            return format!("{exclusive} exclusive, {shared} shared tickets");
        }
    }
    "free".into()
}

fn lease(lock: &Value) -> String {
    match lock["left_ms"].as_u64() {
        None if lock["type"] == "atomic" && !lock["holder"].is_null() => "no end".into(),
        None => "-".into(),
        Some(0) => "over".into(),
        Some(ms) => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}

fn client_rows(clients: &Value) -> Vec<Vec<String>> {
    let columns = ["client", "state", "got", "fabric", "pid", "user", "host", "label"];
    let mut rows = vec![row(&columns)];
    for client in clients.as_array().into_iter().flatten() {
        let present = client["present"].as_bool() == Some(true);
        let state = if present { "present" } else { "absent" };
        let told = |field: &str| match client[field] {
            Value::Null => "-".into(),
            ref told => cell(told),
        };
        let mut row = vec![cell(&client["client"]), state.into(), cell(&client["handles"])];
        row.extend(columns[3..].iter().map(|column| told(column)));
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_lock_is_told_in_words() {
        let state = |lock: Value| lock_state(&lock);
        let mut held = json!({ "type": "atomic", "holder": 5 });
        assert_eq!(state(held.clone()), "held by 5");
        held["holder_label"] = "orders".into();
        assert_eq!(state(held), "held by 5 (orders)");
        assert_eq!(state(json!({ "type": "rw", "holder": null, "readers": 2 })), "2 readers");
        assert_eq!(state(json!({ "type": "fair", "holder": null, "word": "0" })), "free");
        let word = FairView::new().with_mx(2).with_nx(1).into_bits();
        let lock = json!({ "type": "fair", "holder": null, "word": word.to_string() });
        assert_eq!(state(lock), "1 exclusive, 0 shared tickets");
    }

    #[test]
    fn the_status_has_a_row_for_every_fabric() {
        let mut status = json!({ "recovering": false });
        let rows = |status: &Value, name| {
            let found = status_rows(status).into_iter().find(|row| row[0] == name);
            found.map(|row| row[1].clone())
        };
        for kind in FabricKind::ALL {
            assert_eq!(rows(&status, kind.name()), Some("no".into()), "an older primary");
            let said = [(json!(true), "yes"), (json!(false), "no"), (json!("mlx5_0"), "mlx5_0")];
            for (value, shown) in said {
                status[kind.name()] = value;
                assert_eq!(rows(&status, kind.name()), Some(shown.into()), "{kind}");
            }
        }
    }

    #[test]
    fn the_status_of_a_recovery_names_whom_it_waits_for_and_until_when() {
        let missing =
            json!([{ "client": 5, "seconds_left": 29 }, { "client": 6, "seconds_left": null }]);
        let status = json!({ "recovering": true, "recovery": { "missing": missing } });
        let rows = status_rows(&status);
        let said = |name: &str| rows.iter().find(|row| row[0] == name).map(|row| row[1].clone());
        assert_eq!(said("missing: client 5"), Some("waited for another 29 s".into()));
        assert!(said("missing: client 6").is_some_and(|said| said.contains("until it comes")));
    }

    #[test]
    fn a_lease_is_shown_as_what_is_left() {
        let held = |left_ms: Value| json!({ "type": "atomic", "holder": 5, "left_ms": left_ms });
        assert_eq!(lease(&held(json!(10_250))), "10.2 s");
        assert_eq!(lease(&held(json!(0))), "over");
        assert_eq!(lease(&held(Value::Null)), "no end");
        assert_eq!(lease(&json!({ "type": "atomic", "holder": null, "left_ms": null })), "-");
        assert_eq!(lease(&json!({ "type": "rw", "holder": 5, "left_ms": null })), "-");
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(cell(&json!("a\u{1b}[2Jb")), "a\\u{1b}[2Jb");
    }
}
