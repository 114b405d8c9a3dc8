// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock hold` and `dlock release`, as a script uses them; `dlock exec --on-lost CMD`.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::{code, eventually, text, Primary, DLOCK};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

/// A user, whose holds are in a folder of this test.
struct User {
    primary: Primary,
    folder: PathBuf,
}

impl User {
    fn new(name: &str) -> Self {
        let primary = Primary::start_exactly(name, &[]);
        let folder = std::env::temp_dir().join(format!("dlock-hold-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // a run that was killed may have left the folder
        std::fs::create_dir_all(&folder).unwrap();
        Self { primary, folder }
    }

    fn dlock(&self, words: &[&str]) -> Output {
        let mut command = Command::new(DLOCK);
        command.args(words).stdin(Stdio::null()).env("DLOCK_ADDRESS", &self.primary.address);
        command.env("XDG_RUNTIME_DIR", &self.folder);
        command.output().unwrap()
    }

    fn hold(&self, options: &[&str]) -> String {
        let output = self.dlock(&[&["hold", "lock"], options].concat());
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        text(&output.stdout).trim().to_string()
    }

    fn try_lock(&self) -> i32 {
        code(&self.dlock(&["exec", "lock", "--wait", "0", "--", "true"]))
    }

    /// The process that the record of this hold names.
    fn process(&self, hold: &str) -> Pid {
        let record = self.folder.join(format!("dlock/holds/{hold}.json"));
        let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        Pid::from_raw(record["pid"].as_i64().unwrap() as i32).unwrap()
    }

    fn listed(&self) -> Vec<Value> {
        let output = self.dlock(&["hold", "--list", "--json"]);
        let mut listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        listed["holds"].as_array_mut().map(std::mem::take).unwrap()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        for hold in self.listed() {
            self.dlock(&["release", hold["hold"].as_str().unwrap()]);
        }
        // a file or folder that is left over does no harm
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_lock_is_held_across_commands_until_it_is_released() {
    let user = User::new("across");
    let hold = user.hold(&[]);
    assert_eq!(user.try_lock(), 75, "it is held");
    let listed = user.listed();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["hold"], &listed[0]["held"]), (&hold.as_str().into(), &true.into()));
    let second = user.dlock(&["hold", "lock", "--wait", "0"]);
    assert_eq!(code(&second), 75, "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("remedy: "), "{}", text(&second.stderr));
    assert_eq!(user.listed().len(), 1, "what was not got is no hold");
    let released = user.dlock(&["release", &hold]);
    assert_eq!(code(&released), 0, "{}", text(&released.stderr));
    let said = text(&released.stdout);
    assert!(said.starts_with("released 'lock', held for "), "{said}");
    assert_eq!(user.try_lock(), 0, "it is free at once");
    let again = user.dlock(&["release", &hold]);
    assert_eq!(code(&again), 1);
    assert!(text(&again.stderr).contains("has no hold"), "{}", text(&again.stderr));
}

#[test]
fn a_hold_that_was_lost_is_told_by_its_release() {
    let user = User::new("lost");
    let hold = user.hold(&["--lease", "600"]);
    let broken = user.dlock(&["break", "lock", "--now", "--socket", &user.primary.socket()]);
    assert_eq!(code(&broken), 0, "{}", text(&broken.stderr));
    eventually("it is lost", || user.listed()[0]["held"] == false);
    let released = user.dlock(&["release", &hold]);
    assert_eq!(code(&released), 76);
    let said = text(&released.stderr);
    let why = "was not held any more: the lock is lost (an operator has taken it away, uid ";
    assert!(said.contains(why), "{said}");
    assert!(user.listed().is_empty());
}

#[test]
fn a_hold_whose_process_was_killed_is_lost_and_its_lock_is_free() {
    let user = User::new("killed");
    let hold = user.hold(&[]);
    kill_process(user.process(&hold), Signal::KILL).unwrap();
    eventually("the lock is free", || user.try_lock() == 0);
    let released = user.dlock(&["release", &hold]);
    assert_eq!(code(&released), 76);
    assert!(text(&released.stderr).contains("was killed"), "{}", text(&released.stderr));
}

/// The folder is removed, as `/run/user/UID` is when its user logs out.
#[test]
fn a_hold_whose_folder_was_removed_can_be_released() {
    let user = User::new("removed");
    let hold = user.hold(&[]);
    // the process knows its files after its first look at them
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    std::fs::remove_dir_all(user.folder.join("dlock")).unwrap();
    eventually("it is there again", || user.listed().iter().any(|listed| listed["held"] == true));
    let released = user.dlock(&["release", &hold]);
    assert_eq!(code(&released), 0, "{}", text(&released.stderr));
    assert_eq!(user.try_lock(), 0);
}

/// The command is killed, as by `timeout`. Its process in the background ends once it has the lock,
/// because its output is not read.
#[test]
fn what_is_left_of_a_hold_whose_command_was_killed_is_removed_by_a_later_one() {
    let user = User::new("left");
    let first = user.hold(&[]);
    let mut waits = Command::new(DLOCK);
    waits.args(["hold", "lock"]).env("DLOCK_ADDRESS", &user.primary.address);
    waits.env("XDG_RUNTIME_DIR", &user.folder).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut waits = waits.stderr(Stdio::null()).spawn().unwrap();
    let holds = user.folder.join("dlock/holds");
    let counted = |end: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&holds).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|found| found == end)).collect()
    };
    eventually("it is begun", || counted("log").len() == 2);
    waits.kill().unwrap();
    waits.wait().unwrap();
    drop(waits); // the output of the process is not read any more
    assert_eq!(code(&user.dlock(&["release", &first])), 0);
    eventually("it has given up", || counted("end").len() == 1);
    let end = std::fs::File::options().write(true).open(&counted("end")[0]).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
    end.set_modified(long_ago).unwrap();
    let last = user.hold(&[]);
    assert_eq!((counted("end").len(), counted("log").len(), counted("sock").len()), (0, 1, 1));
    assert_eq!(code(&user.dlock(&["release", &last])), 0);
}

/// No other command can know the id of this hold.
#[test]
fn a_hold_that_cannot_be_told_of_is_given_back() {
    let user = User::new("untold");
    let mut hold = Command::new(DLOCK);
    hold.args(["hold", "lock"]).env("DLOCK_ADDRESS", &user.primary.address);
    hold.env("XDG_RUNTIME_DIR", &user.folder).stdin(Stdio::null()).stderr(Stdio::piped());
    hold.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = hold.output().unwrap();
    assert_eq!(code(&output), 1);
    let said = text(&output.stderr);
    assert!(said.contains("is given back") && said.contains("No space left"), "{said}");
    assert!(user.listed().is_empty());
    assert_eq!(user.try_lock(), 0, "it is free at once");
}

#[test]
fn what_is_to_be_run_on_a_loss_is_told_the_lock_and_why() {
    let user = User::new("on-lost");
    let told = user.folder.join("told");
    let script = format!(
        "echo \"$DLOCK_NAME $DLOCK_TOKEN $DLOCK_REASON\" > {0}.new; mv {0}.new {0}",
        told.display()
    );
    let mut exec = Command::new(DLOCK);
    exec.args(["exec", "lock", "--lease=600", "--on-lost", &script, "--"]);
    exec.args(["sh", "-c", "echo running; exec sleep 600"]).env("XDG_RUNTIME_DIR", &user.folder);
    exec.stdin(Stdio::null()).stdout(Stdio::piped()).env("DLOCK_ADDRESS", &user.primary.address);
    let mut exec = exec.spawn().unwrap();
    assert_eq!(common::first_line(exec.stdout.take().unwrap()), "running");
    user.dlock(&["break", "lock", "--now", "--socket", &user.primary.socket()]);
    assert_eq!(exec.wait().unwrap().code(), Some(76));
    let told = std::fs::read_to_string(told).unwrap();
    let words: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(words[0], "lock");
    assert!(words[1].parse::<u64>().is_ok_and(|token| token > 0), "{told}");
    assert!(words.len() > 3, "it says why: {told}");

    let mut exec = Command::new(DLOCK);
    let unused = user.folder.join("unused");
    exec.args(["exec", "lock", "--on-lost", &format!("touch {}", unused.display()), "--", "true"]);
    let ended = exec.env("DLOCK_ADDRESS", &user.primary.address).status().unwrap();
    assert!(ended.success() && !unused.exists(), "nothing was lost");
}
