// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that `dlockd` keeps without options except its address, and their places.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{eventually, own_address, Peer};
use dlock_core::wire::control::ControlReply;
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;
use rustix::process::{kill_process, Pid, Signal};

/// A user with folders of its own, and an address at which no other test has a primary.
struct User {
    home: PathBuf,
    address: SocketAddr,
}

impl User {
    fn new(name: &str) -> Self {
        let home = std::env::temp_dir().join(format!("dlock-user-{name}-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
        let free = TcpListener::bind((own_address(), 0)).unwrap();
        Self { home, address: free.local_addr().unwrap() }
    }

    fn dlockd(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
        command.env("XDG_STATE_HOME", self.state_home()).env("XDG_RUNTIME_DIR", &self.home);
        command.env("HOME", &self.home);
        command.env_remove("NOTIFY_SOCKET");
        command.args(["--verbs=off", "--listen", &self.address.ip().to_string()]);
        command.args(["--port", &self.address.port().to_string()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    fn state_home(&self) -> PathBuf {
        self.home.join("state")
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let mut child = self.dlockd(arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("dlockd ready"), "{line}");
        Running(child)
    }

    /// The list of clients of the user's primary.
    fn list(&self) -> PathBuf {
        let folder = self.state_home().join("dlock");
        let name = files(&folder).into_iter().find(|name| name.ends_with(".clients"));
        folder.join(name.expect("a list of clients"))
    }

    /// The answer of the admin socket.
    fn asks(&self, what: &str) -> String {
        let path = self.home.join(format!("dlock/{}.sock", self.address.port()));
        let mut stream = dlock_server::connect_admin(&path, common::PATIENCE).unwrap();
        writeln!(stream, "{{\"cmd\":\"{what}\"}}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    }

    /// Starts a primary that fails to start; returns its messages.
    fn fails(&self, arguments: &[&str]) -> String {
        let child = self.dlockd(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut running = Running(child.unwrap());
        let mut code = None;
        eventually("it ends", || {
            code = running.0.try_wait().unwrap();
            code.is_some()
        });
        let mut errors = String::new();
        running.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(code.unwrap().code(), Some(1), "{errors}");
        errors
    }

    /// A client has a lock when its primary ends. Returns the refusal of the next client after a
    /// restart; `None`: it is let in.
    fn next_after_restart(&self, arguments: &[&str], end: Signal) -> Option<Status> {
        let running = self.start(arguments);
        let (mut peer, _) = Peer::init(self.address);
        peer.get("held", LockType::Atomic);
        running.end(end);
        let running = self.start(arguments);
        let next = Peer::try_init(self.address);
        running.end(Signal::TERM);
        next.err()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home); // a file or folder that is left over does no harm
    }
}

struct Running(Child);

impl Running {
    fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process has ended already, unless the test failed
        let _ = self.0.wait();
    }
}

fn files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_primary_that_is_started_again_knows_whose_locks_are_held() {
    for end in [Signal::TERM, Signal::KILL] {
        let user = User::new(&format!("again-{}", end.as_raw()));
        assert_eq!(user.next_after_restart(&[], end), Some(Status::NotReady));
        let folder = user.state_home().join("dlock");
        let port = user.address.port();
        let is_of_port = |name: &String| name.starts_with(&format!("epoch-{port}"));
        assert!(files(&folder).iter().all(is_of_port), "{:?}", files(&folder));
    }
}

#[test]
fn without_a_state_file_it_says_what_does_not_hold() {
    let user = User::new("none");
    let none = ["--state-file=none"];
    assert_eq!(user.next_after_restart(&none, Signal::TERM), None);
    let mut child = user.dlockd(&none).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = errors.find(|line| line.as_ref().unwrap().contains("gives locks that are held"));
    Running(child).end(Signal::TERM);
    assert!(said.unwrap().unwrap().contains("WARN"));
    assert!(!user.state_home().exists());
}

/// The folder for the state file cannot be made. If the primary started, its successor would give
/// locks away.
#[test]
fn where_the_state_file_has_no_place_it_does_not_start() {
    let user = User::new("no-place");
    fs::write(user.state_home(), "a file").unwrap();
    let errors = user.fails(&[]);
    assert!(errors.contains("--state-file none") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn primaries_of_one_user_on_two_ports_run_side_by_side() {
    let user = User::new("two-ports");
    let free = TcpListener::bind((own_address(), 0)).unwrap();
    let other = User { home: user.home.join("other"), address: free.local_addr().unwrap() };
    drop(free);
    std::os::unix::fs::symlink(&user.home, &other.home).unwrap();
    let _running = [user.start(&[]), other.start(&[])];
    fs::remove_file(&other.home).unwrap();
    let states = files(&user.state_home().join("dlock"));
    let epochs = states.iter().filter(|name| !name.contains(".clients"));
    assert_eq!(epochs.count(), 2, "{states:?}");
}

/// Gives the state files the names that they have with another machine id; returns the new name of
/// the list of clients.
fn rename_state(list: &Path, id: &str) -> PathBuf {
    let folder = list.parent().unwrap();
    let is_of = list.with_extension("").file_name().unwrap().to_str().unwrap().to_string();
    let port = is_of.split('-').nth(1).unwrap();
    let other = format!("epoch-{port}-{}", id.repeat(32));
    for name in files(folder).into_iter().filter(|name| name.starts_with(&is_of)) {
        fs::rename(folder.join(&name), folder.join(name.replace(&is_of, &other))).unwrap();
    }
    folder.join(format!("{other}.clients"))
}

/// Gives the state files their former names again.
fn rename_back(renamed: &Path, list: &Path) {
    for end in ["", "clients", "clients.lock"] {
        fs::rename(renamed.with_extension(end), list.with_extension(end)).unwrap();
    }
}

/// Meanwhile the host has got another machine id, or the primary another environment.
#[test]
fn the_clients_of_a_predecessor_with_another_state_file_are_recovered() {
    let other_id = |user: &User| {
        rename_state(&user.list(), "a");
    };
    let other_home = |user: &User| {
        fs::create_dir(user.home.join(".local")).unwrap();
        fs::rename(user.state_home(), user.home.join(".local/state")).unwrap();
    };
    for name in ["other-id", "other-home"] {
        let user = User::new(name);
        let running = user.start(&[]);
        let (mut peer, session) = Peer::init(user.address);
        peer.get("held", LockType::Atomic);
        running.end(Signal::KILL);
        match name {
            "other-id" => other_id(&user),
            _ => other_home(&user),
        }
        // a primary that ends before its recovery has ended changes nothing
        user.start(&[]).end(Signal::KILL);
        let running = user.start(&[]);
        assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady), "{name}");
        let back = Peer::connect(user.address).call(common::reinit(&session));
        assert!(matches!(back, ControlReply::Session(_)), "{name}: {back:?}");
        assert!(user.asks("recover").contains("\"ok\":true"));
        running.end(Signal::TERM);
    }
}

/// The machine has one id, another, and the first again. Clients that left meanwhile are not
/// awaited.
#[test]
fn a_list_whose_clients_a_later_one_has_all_is_not_waited_for() {
    let user = User::new("there-and-back");
    let running = user.start(&[]);
    let (mut peer, _) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    running.end(Signal::KILL);
    let list = user.list();
    let first = rename_state(&list, "a");
    let running = user.start(&[]);
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
    assert!(user.asks("recover").contains("\"ok\":true"));
    eventually("it serves", || Peer::try_init(user.address).is_ok());
    running.end(Signal::TERM);
    rename_state(&list, "b");
    rename_back(&first, &list);
    let _running = user.start(&[]);
    assert!(user.asks("status").contains("\"recovering\":false"), "{}", user.asks("status"));
}

#[test]
fn a_lost_list_of_a_predecessor_with_another_state_file_can_be_restored() {
    let user = User::new("list-restored");
    let running = user.start(&[]);
    let (mut peer, session) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    running.end(Signal::KILL);
    let list = rename_state(&user.list(), "a");
    let kept = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    for _ in 0..2 {
        let running = user.start(&[]);
        assert!(user.asks("status").contains("\"list_lost\":true"), "{}", user.asks("status"));
        running.end(Signal::TERM);
    }
    fs::write(&list, kept).unwrap();
    let _running = user.start(&[]);
    assert!(user.asks("status").contains("\"list_lost\":false"), "{}", user.asks("status"));
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
    let back = Peer::connect(user.address).call(common::reinit(&session));
    assert!(matches!(back, ControlReply::Session(_)), "{back:?}");
}

#[test]
fn a_state_folder_that_is_removed_while_its_primary_serves_is_made_again() {
    let user = User::new("folder-removed");
    let running = user.start(&[]);
    let (mut peer, _) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    let folder = user.state_home().join("dlock");
    let mut before = files(&folder);
    let epoch = fs::read(user.list().with_extension("")).unwrap();
    fs::remove_dir_all(user.state_home()).unwrap();
    eventually("a client is let in", || Peer::try_init(user.address).is_ok());
    let mut after = files(&folder);
    before.sort();
    after.sort();
    assert_eq!(before, after);
    assert_eq!(fs::read(user.list().with_extension("")).unwrap(), epoch);
    running.end(Signal::KILL);
    let _running = user.start(&[]);
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
}

/// Two primaries of one state, on two addresses. The first one is stopped, so that it does not
/// write the state again before the second one looks.
#[test]
fn a_second_primary_does_not_begin_where_the_state_of_the_first_was_removed() {
    let user = User::new("removed-twice");
    let other = User {
        home: user.home.join("other"),
        address: (Ipv4Addr::LOCALHOST, user.address.port()).into(),
    };
    std::os::unix::fs::symlink(&user.home, &other.home).unwrap();
    let running = user.start(&[]);
    let (mut peer, _) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    let pid = Pid::from_child(&running.0);
    kill_process(pid, Signal::STOP).unwrap();
    fs::remove_dir_all(user.state_home()).unwrap();
    let why = other.fails(&[]);
    assert!(why.contains(&format!("process {}", pid.as_raw_nonzero())), "{why}");
    assert!(why.contains("end that process first"), "{why}");
    kill_process(pid, Signal::CONT).unwrap();
    eventually("a client is let in", || Peer::try_init(user.address).is_ok());
    fs::remove_file(&other.home).unwrap();
    running.end(Signal::KILL);
    let _running = user.start(&[]);
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
}

/// The second primary uses a path that the first one does not know: the folder is mounted there.
#[test]
fn a_second_primary_does_not_begin_where_the_state_of_the_first_is_mounted() {
    let user = User::new("mounted");
    let running = user.start(&[]);
    let (mut peer, _) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    let list = user.list();
    let (folder, name) = (list.parent().unwrap(), list.with_extension(""));
    let mounted = user.home.join("mounted");
    fs::create_dir(&mounted).unwrap();
    let script = r#"mount --bind "$1" "$2" || exit 77; rm -rf "$2"/*; shift 2; exec "$@""#;
    let mut second = Command::new("timeout");
    second.args(["60", "unshare", "-m", "sh", "-c", script, "sh"]).args([folder, &mounted]);
    second.arg(env!("CARGO_BIN_EXE_dlockd")).args(["--verbs=off", "--port=0", "--state-file"]);
    second.arg(mounted.join(name.file_name().unwrap())).stdin(Stdio::null());
    let Ok(output) = second.output() else { return println!("SKIP: there is no timeout") };
    let why = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(77) || why.contains("unshare") {
        return println!("SKIP: {why}");
    }
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("end that process first"), "{why}");
    running.end(Signal::KILL);
}

/// Removes each file of the state, and all of them at once.
#[test]
fn what_is_removed_of_a_state_while_its_primary_serves_is_written_again() {
    let user = User::new("file-removed");
    let running = user.start(&[]);
    let (mut peer, _) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    let list = user.list();
    let [lock, epoch] = [list.with_extension("clients.lock"), list.with_extension("")];
    // the lock file names the process, its start, and the file itself, which changes when it is
    // rewritten
    let owner = || {
        let text = fs::read_to_string(&lock).unwrap();
        let words: Vec<String> = text.split(' ').map(String::from).collect();
        [&words[..4], &words[5..]].concat()
    };
    let before = (owner(), fs::read(&epoch).unwrap());
    for removed in [vec![&list], vec![&lock], vec![&epoch], vec![&list, &lock, &epoch]] {
        removed.iter().for_each(|file| fs::remove_file(file).unwrap());
        eventually("they are written again", || removed.iter().all(|file| file.exists()));
    }
    assert_eq!((owner(), fs::read(&epoch).unwrap()), before);
    running.end(Signal::KILL);
    let _running = user.start(&[]);
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
}

/// By then the folder may be another host's, so no new one is made.
#[test]
fn a_state_folder_that_was_moved_is_named_with_the_remedy() {
    let user = User::new("folder-moved");
    let mut child = user.dlockd(&[]).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let running = Running(child);
    errors.find(|line| line.as_ref().unwrap().contains("a primary serves on")).unwrap().unwrap();
    let folder = user.state_home().join("dlock");
    let moved = user.state_home().join("moved");
    fs::rename(&folder, &moved).unwrap();
    // a write that was under way when the folder was moved fails with a shorter message
    let said = errors.find(|line| line.as_ref().unwrap().contains("put that back"));
    let said = said.unwrap().unwrap();
    let place = folder.display().to_string();
    assert!(said.contains(&place) && said.contains("clients are refused"), "{said}");
    assert_eq!(Peer::try_init(user.address).err(), Some(Status::ServerNoResource));
    assert!(!folder.exists());
    fs::rename(&moved, &folder).unwrap();
    eventually("a client is let in again", || Peer::try_init(user.address).is_ok());
    running.end(Signal::TERM);
}

/// The list is lost between two primaries. A third one must not take the second one's list for
/// complete.
#[test]
fn a_primary_whose_list_of_clients_was_lost_serves_when_an_operator_says_so() {
    let user = User::new("list-lost");
    let running = user.start(&[]);
    let (mut peer, session) = Peer::init(user.address);
    peer.get("held", LockType::Atomic);
    running.end(Signal::KILL);
    fs::remove_file(user.list()).unwrap();
    for _ in 0..2 {
        let running = user.start(&[]);
        assert_eq!(Peer::try_init(user.address).err(), Some(Status::NotReady));
        assert!(user.asks("status").contains("\"list_lost\":true"), "{}", user.asks("status"));
        running.end(Signal::TERM);
    }
    let running = user.start(&[]);
    // a former client may come back
    let mut back = Peer::connect(user.address);
    let back = back.call(common::reinit(&session));
    assert!(matches!(back, ControlReply::Session(_)), "{back:?}");
    assert!(user.asks("recover").contains("\"ok\":true"));
    running.end(Signal::KILL);
    let running = user.start(&[]);
    assert!(user.asks("status").contains("\"list_lost\":true"), "the recovery was not over");
    assert!(user.asks("recover").contains("\"ok\":true"));
    eventually("it serves", || Peer::try_init(user.address).is_ok());
    running.end(Signal::TERM);
    let _running = user.start(&[]);
    assert!(user.asks("status").contains("\"recovering\":false"));
}
