// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock hold`, `dlock release`: a lock held across separate commands of a shell.
//!
//! ```text
//!   dlock hold ─▶ dlock exec --outcome ID.end NAME -- dlock role held --socket ID.sock
//!     ◀── "held" ── role held, once the lock is held: prints ID
//!   dlock release ID ── "release" ─▶ ID.sock: role held ends ─▶ exec releases the lock ─▶ ID.end
//! ```
//! It is `dlock exec` with a COMMAND that waits to be told to end. The keeper, the lease, failovers
//! and what happens to stopped or killed processes are those of `exec`.
//!
//! | fault | what `dlock release` finds |
//! |---|---|
//! | the lock is lost, the keeper is killed | exec has ended COMMAND: ID.end says 76 |
//! | exec or `role held` is killed | no ID.end that says 0, and nothing answers: lost |
//! | the machine is restarted | the record is of another boot, or gone with the folder: lost |
//! | a second release, another user | no record |
//! | the folder is removed, as by a logout | `role held` puts record and socket back |

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use dlock_fabric::os::fds::process_stat;
use dlock_server::DefaultFiles;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

use crate::args::{Held, HoldArgs, ReleaseArgs};
use crate::exec::own_program;
use crate::failure::{self, Failure};
use crate::{out, table};

/// What `role held` prints once it runs.
const HELD: &str = "held";
/// The request that ends `role held`.
const RELEASE: &[u8] = b"release\n";
/// The file with the id of this boot of the system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// How long `dlock exec` may take to end after a release: its keeper has 5 s.
const ENDS_MAX: Duration = Duration::from_secs(10);
/// The time between two checks whether `dlock exec` has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the files of a hold stay that has no record: the `dlock hold` that made them may be
/// about to read them.
const LEFT_AFTER: Duration = Duration::from_secs(60);
/// The time between two checks by `role held` whether its files are there.
const PUT_BACK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The files of one hold.
struct Files {
    folder: PathBuf,
    id: String,
}

impl Files {
    fn of(id: &str) -> Result<Self, Failure> {
        let folder = folder()?;
        match !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            true => Ok(Self { folder, id: id.to_string() }),
            false => Err(unknown(id)),
        }
    }

    fn at(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.id))
    }

    /// The record of the hold; `None`: there is none.
    fn record(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.at("json")).ok()?).ok()
    }

    /// The exit code of `dlock exec`; `None`: it has not ended, or was killed.
    fn outcome(&self) -> Option<u8> {
        fs::read_to_string(self.at("end")).ok()?.trim().parse().ok()
    }

    /// A connection to the process that holds the lock, if that answers.
    fn is_held(&self) -> Option<UnixStream> {
        UnixStream::connect(self.at("sock")).ok().filter(|_| self.outcome().is_none())
    }

    fn remove(&self) {
        for end in ["json", "sock", "end", "log"] {
            let _ = fs::remove_file(self.at(end)); // a missing file is what is wanted
        }
    }

    /// Why the lock is not held any more.
    fn loss(&self, record: &Value) -> String {
        let log = fs::read_to_string(self.at("log")).unwrap_or_default();
        let told = log.lines().rfind(|line| line.contains("the lock is lost"));
        match told {
            Some(told) => told.trim_start_matches("dlock: ").to_string(),
            None if record["boot"] != boot_id() => "the machine was restarted since".into(),
            None => "the process that held it was killed".into(),
        }
    }
}

fn folder() -> Result<PathBuf, Failure> {
    DefaultFiles::of_this_process().holds().map_err(|why| {
        let remedy = "set XDG_RUNTIME_DIR to a folder of this user alone";
        Failure::new(failure::FAILED, format!("no folder for holds: {why}"), remedy)
    })
}

fn boot_id() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_string()
}

fn unknown(id: &str) -> Failure {
    let cause = format!("this user has no hold '{}'", id.escape_debug());
    let remedy = "dlock hold --list has them; one that was released is not among them";
    Failure::new(failure::FAILED, cause, remedy)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Runs `dlock hold`; returns the exit code.
pub fn hold(args: &HoldArgs) -> Result<u8, Failure> {
    match &args.name {
        Some(name) => begin(args, name),
        None => list(args.json),
    }
}

fn begin(args: &HoldArgs, name: &OsString) -> Result<u8, Failure> {
    let files = Files::of(&format!("{:x}-{:x}", now_ms(), std::process::id()))?;
    sweep(&files.folder);
    let log = fs::File::create(files.at("log")).map_err(Failure::plain)?;
    let mut command = own_program()?;
    let program = command.get_program().to_owned();
    command.arg("exec").arg(name).arg("--outcome").arg(files.at("end"));
    command.args(words(args));
    command.arg("--").arg(program).args(["role", "held", "--socket"]).arg(files.at("sock"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut exec = command
        .spawn()
        .map_err(|error| Failure::not_started("the process that holds the lock", &error))?;
    let mut line = String::new();
    let output = exec.stdout.take().expect("it is a pipe");
    let heard = BufReader::new(output).read_line(&mut line);
    if heard.is_ok() && line.trim() == HELD {
        let record = json!({
            "name": name.to_string_lossy(),
            "since_ms": now_ms(),
            "pid": exec.id(),
            "boot": boot_id(),
        });
        let told = tell(&files, &record);
        if told.is_err() {
            // nothing could release the lock, because the id of the hold was not printed
            // the child was not reaped yet, so the number is still its own
            let _ = kill_process(Pid::from_child(&exec), Signal::TERM);
            let _ = exec.wait(); // `exec` was started just now by this process, so it ends soon
            files.remove();
        }
        return told.map(|()| failure::OK);
    }
    let status = exec.wait().map_err(Failure::plain)?;
    let said = fs::read_to_string(files.at("log")).unwrap_or_default();
    files.remove();
    let said = said.trim_start_matches("dlock: ").trim_end().to_string();
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(failure::FAILED);
    let mut failed = Failure::plain(said);
    failed.code = if code == failure::OK { failure::FAILED } else { code };
    Err(failed)
}

/// Removes the files of holds whose `dlock hold` was killed before it wrote a record.
fn sweep(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".end")) else { continue };
        let files = Files { folder: folder.to_path_buf(), id: id.to_string() };
        let ended = entry.metadata().and_then(|found| found.modified());
        let is_old = ended.is_ok_and(|at| at.elapsed().is_ok_and(|since| since > LEFT_AFTER));
        if is_old && !files.at("json").exists() {
            files.remove();
        }
    }
}

/// Writes the record of a hold, and prints its id.
fn tell(files: &Files, record: &Value) -> Result<(), Failure> {
    let path = files.at("json");
    fs::write(&path, record.to_string()).map_err(|error| {
        let cause = format!("the record of the hold, {}: {error}", path.display());
        let remedy = "make room there, or set XDG_RUNTIME_DIR to another folder of this user alone";
        Failure::new(failure::FAILED, cause, remedy)
    })?;
    out::print(&format!("{}\n", files.id));
    match out::lost() {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            failure::FAILED,
            format_args!("the id of the hold was not printed, and the lock is given back: {why}"),
            "let something read standard output",
        )),
    }
}

/// The options of `hold` as options of `exec`.
fn words(args: &HoldArgs) -> Vec<String> {
    let mut words = vec![format!("--lease={}", args.lease)];
    let value = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map(|value| value.get_name().to_string()).unwrap_or_default()
    };
    words.push(format!("--type={}", value(&|| args.kind.to_possible_value())));
    words.push(format!("--mode={}", value(&|| args.mode.to_possible_value())));
    words.extend(args.wait.map(|wait| format!("--wait={wait}")));
    words.extend(args.place.address.iter().map(|address| format!("--address={address}")));
    words.push(format!("--fabric={}", args.place.fabric.name()));
    words
}

/// Runs `dlock release`; returns the exit code.
pub fn release(args: &ReleaseArgs) -> Result<u8, Failure> {
    let files = Files::of(&args.hold)?;
    let record = files.record().ok_or_else(|| unknown(&args.hold))?;
    let name = record["name"].as_str().unwrap_or_default().escape_debug().to_string();
    let held_ms = now_ms().saturating_sub(record["since_ms"].as_u64().unwrap_or_default());
    let told = files.is_held().and_then(|mut stream| {
        stream.write_all(RELEASE).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok().filter(|_| answer.trim() == HELD)
    });
    let end = Instant::now() + ENDS_MAX;
    // an `exec` that has just lost its lock may be about to write its outcome
    let is_alive = || {
        let pid = record["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(process_stat).is_some_and(|process| !process.ended)
    };
    while is_alive() && files.outcome().is_none() && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    let is_released = told.is_some() && files.outcome() == Some(failure::OK);
    let loss = (!is_released).then(|| files.loss(&record));
    files.remove();
    match loss {
        None => {
            let (s, ms) = (held_ms / 1_000, held_ms % 1_000);
            out::print(&format!("released '{name}', held for {s}.{ms:03} s\n"));
            Ok(failure::OK)
        }
        Some(loss) => {
            let cause = format!("lock '{name}' was not held any more: {loss}");
            let remedy = "what was done meanwhile may have been done beside another holder";
            Err(Failure::new(failure::LOST, cause, remedy))
        }
    }
}

fn list(is_json: bool) -> Result<u8, Failure> {
    let folder = folder()?;
    let entries = fs::read_dir(&folder).map_err(Failure::plain)?.flatten();
    let ids = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_string));
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    let mut rows = vec![vec!["hold".to_string(), "state".into(), "seconds".into(), "name".into()]];
    let mut holds = Vec::new();
    for id in ids {
        let files = Files { folder: folder.clone(), id };
        let Some(record) = files.record() else { continue };
        let is_held = files.is_held().is_some();
        let state =
            if is_held { "held".to_string() } else { format!("lost: {}", files.loss(&record)) };
        let held_s = now_ms().saturating_sub(record["since_ms"].as_u64().unwrap_or(0)) / 1_000;
        let name = record["name"].as_str().unwrap_or_default();
        holds.push(json!({ "hold": files.id, "name": name, "held": is_held, "seconds": held_s }));
        rows.push(vec![files.id, state, held_s.to_string(), name.escape_debug().to_string()]);
    }
    match is_json {
        true => out::json(&json!({ "holds": holds })),
        false => out::print(&table::render(&rows)),
    }
    Ok(failure::OK)
}

/// The COMMAND of `dlock hold`: says that the lock is held, and ends when it is told to.
pub fn held(args: &Held) -> Result<u8, Failure> {
    let mut listener = listen(&args.socket).map_err(Failure::plain)?;
    let said = writeln!(io::stdout(), "{HELD}").and_then(|()| io::stdout().flush());
    // if no `dlock hold` reads this, this process ends, and `exec` releases the lock
    said.map_err(Failure::plain)?;
    let mut record = Vec::new();
    loop {
        put_back(&args.socket, &mut listener, &mut record);
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&PUT_BACK_EVERY)), Ok(1..)) {
            continue;
        }
        let Ok((mut stream, _)) = listener.accept() else { continue };
        let mut word = [0; RELEASE.len()];
        // a peer that says nothing for this long is disconnected
        let _ = stream.set_read_timeout(Some(ENDS_MAX));
        if stream.read_exact(&mut word).is_ok() && word == RELEASE {
            // if the answer does not arrive, `dlock release` reads the outcome file instead
            let _ = writeln!(stream, "{HELD}");
            return Ok(failure::OK);
        }
    }
}

/// Reads the record once. If the record or the socket is removed, makes it again, because without
/// them the lock could not be released. A failure is tried again.
fn put_back(socket: &Path, listener: &mut UnixListener, record: &mut Vec<u8>) {
    let path = socket.with_extension("json");
    if record.is_empty() {
        // if there is no record yet, `dlock hold` is about to write it
        *record = fs::read(&path).unwrap_or_default();
    }
    let is_gone = |path: &Path| {
        let found = fs::symlink_metadata(path);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    if record.is_empty() || !is_gone(socket) && !is_gone(&path) {
        return;
    }
    let _ = folder();
    if is_gone(socket) {
        if let Ok(again) = listen(socket) {
            *listener = again;
        }
    }
    if is_gone(&path) {
        let _ = fs::write(&path, &*record);
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_no_file_elsewhere() {
        for id in ["", "../x", "a/b", "a.b", "a b"] {
            assert!(Files::of(id).is_err(), "{id}");
        }
        assert!(Files::of("18c-1f").is_ok());
    }
}
