// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard error is a full pipe, which is not read: `dlock exec` stops COMMAND in time and ends.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::io::{ioctl_fionbio, write, Errno};

use super::{eventually, is_file_locked, Exec, Scene, COMMAND};
use crate::common::{Primary, DLOCK};

/// A full pipe: the end to read, and the end to write.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while write(&writer, &[b'x'; 4_096]) != Err(Errno::AGAIN) {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

fn exec(scene: &Scene, primary: &Primary, stderr: OwnedFd, options: &[&str], name: &str) -> Exec {
    let mut dlock = Command::new(DLOCK);
    dlock.args(["-vv", "exec", "--address", &primary.address, "unread"]).args(options);
    dlock.args(["--", "sh", "-c", COMMAND, "sh"]).arg(&scene.folder).args([name, "end"]);
    Exec(dlock.stdin(Stdio::null()).stderr(stderr).spawn().unwrap())
}

#[test]
fn a_standard_error_that_is_not_read_holds_up_no_exec() {
    let mut primary = Primary::start("unread");
    let scene = Scene::new("unread");
    let (_reader, full) = full_pipe();
    let copy = || full.try_clone().unwrap();
    let mut holder = exec(&scene, &primary, copy(), &["--lease", "4"], "a");
    eventually("it runs", || scene.has("begin.a"));
    // The wait is long enough for `dlock exec` to report that it waits.
    let mut second = exec(&scene, &primary, copy(), &["--wait", "3"], "b");
    assert_eq!(second.code("the second"), Some(75));
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    assert_eq!(holder.code("without a primary"), Some(76));
    assert!(!is_file_locked(&scene), "COMMAND is dead");
}

#[test]
fn a_standard_error_without_a_reader_holds_up_no_exec() {
    let primary = Primary::start("unheard");
    let scene = Scene::new("unheard");
    let (reader, broken) = full_pipe();
    drop(reader);
    let copy = || broken.try_clone().unwrap();
    let mut holder = exec(&scene, &primary, copy(), &["--lease", "60"], "a");
    eventually("it runs", || scene.has("begin.a"));
    let mut second = exec(&scene, &primary, copy(), &["--wait", "3"], "b");
    assert_eq!(second.code("the second"), Some(75));
    scene.touch("end");
    assert_eq!(holder.code("the first"), Some(0));
}
