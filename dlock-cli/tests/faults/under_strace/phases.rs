// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd`: calls are refused during one phase of the primary. After the phase the primary serves,
//! or has ended and said why.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::denied::calls_of_a_primary;
use super::refusal::{cells_of, cells_of_resources, Cell, Refusal};
use super::scene::{dlockd, serves, serves_within, start, Program, Scene, SERVE};
use super::{calls_of_each_thread, ends, has_strace, run, visit, visit_is_sound, Calls, HANG};
use crate::common::{own_address, DLOCK};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Start,
    Serving,
    Handshake,
    Failover,
    Reload,
    Exit,
}

/// The time allowed for a reload, whose signal may have been denied.
const RELOAD: Duration = Duration::from_secs(3);
/// The time during which calls are refused to a standby; longer, and the holder would lose its
/// lock.
const TAKES_OVER: Duration = Duration::from_secs(3);
/// The time that a program may take to write its last lines and to end.
const ABORTS: Duration = Duration::from_secs(10);
/// The options of the last visit. It waits longer than the lease of each visit, because an earlier
/// visit may have left the lock held.
const AFTER: [&str; 4] = ["--wait", "15", "--fabric", "tcp"];

/// Two primaries: the second one, at a known address, waits for the end of the first one.
pub struct Pair {
    pub first: Program,
    pub first_address: String,
    pub second_address: String,
    pub second: Command,
}

impl Pair {
    /// Starts the first primary, and prepares the command of the second one.
    pub fn new(scene: &Scene) -> Self {
        let ip = own_address().to_string();
        let port = std::net::TcpListener::bind((ip.as_str(), 0)).unwrap().local_addr().unwrap();
        let second_address = port.to_string();
        for left in ["state", "state.clients", "state.clients.lock"] {
            let _ = std::fs::remove_file(scene.at(left)); // the file may not exist
        }
        let options = |command: &mut Command, port: &str, socket: &str| {
            command.args([format!("--listen={ip}"), format!("--port={port}")]);
            command.arg(format!("--state-file={}", scene.file("state")));
            command.arg(format!("--admin-socket={}", scene.file(socket)));
        };
        let (mut dlockd, mut second) = (Command::new(dlockd()), Command::new(dlockd()));
        options(&mut dlockd, "0", "first.sock");
        let (first, address) = start(&mut dlockd, &scene.at("first"));
        let first_address = address.unwrap_or_else(|| panic!("it serves: {}", first.said()));
        options(&mut second, &port.port().to_string(), "second.sock");
        second.arg(format!("--standby-of={first_address}"));
        Self { first, first_address, second_address, second }
    }

    pub fn both(&self) -> String {
        format!("{},{}", self.first_address, self.second_address)
    }

    /// Starts the second primary, which waits.
    pub fn stand_by(&self, scene: &Scene) -> Program {
        let mut second = Command::new(self.second.get_program());
        second.args(self.second.get_args()).stdout(std::process::Stdio::piped());
        let second = Program::spawn(&mut second, &scene.at("second"));
        is_standby(&second);
        second
    }
}

fn is_standby(second: &Program) {
    let line = second.line(HANG).unwrap_or_default();
    assert!(line.starts_with("dlockd standby"), "{line}: {}", second.said());
}

/// A `dlock exec` that holds the lock until its standard input ends.
pub fn holder(scene: &Scene, address: &str) -> Command {
    let mut dlock = Command::new(DLOCK);
    dlock.args(["exec", "--address", address, "--lease", "10", "--wait", "20", "fault", "--"]);
    dlock.args(["flock", "-n", "-E", "99"]).arg(scene.at("alone"));
    dlock.args(["sh", "-c", "echo held; read line; exit 0"]);
    dlock
}

pub fn holds(holder: &Program) {
    let line = holder.line(HANG);
    assert_eq!(line.as_deref(), Some("held"), "{}", holder.said());
}

fn one(scene: &Scene, phase: Phase, cell: Option<&Cell>, before: &Calls) -> Result<(), String> {
    let mut case = Case::prepared(scene, phase, Refusal::new(cell, scene, before));
    if phase != Phase::Start {
        case.refusal.begin(&[case.program.child.id()]);
    }
    if phase == Phase::Exit {
        return case.exits();
    }
    case.goes_through()?;
    if phase != Phase::Start {
        case.refusal.end();
    }
    case.has_taken_over()?;
    case.holder_keeps_its_lock()?;
    case.serves_on()?;
    ended(&mut case.program, &case.refusal)
}

/// A primary to which something is refused in one phase.
struct Case<'a> {
    scene: &'a Scene,
    phase: Phase,
    refusal: Refusal<'a>,
    program: Program,
    /// The address at which it serves; `None`: it does not, or not yet.
    address: Option<String>,
    /// In a failover: both primaries, and a client that holds the lock.
    pair: Option<(Pair, Program)>,
}

impl<'a> Case<'a> {
    /// Prepares the primary up to the phase. If the phase is the start, its calls are refused
    /// already.
    fn prepared(scene: &'a Scene, phase: Phase, mut refusal: Refusal<'a>) -> Self {
        let mut command = Command::new(dlockd());
        let pair = (phase == Phase::Failover).then(|| Pair::new(scene));
        match &pair {
            Some(pair) => command.args(pair.second.get_args()),
            None => command.args(SERVE),
        };
        if has_tls(phase) {
            command.args(scene.tls("node"));
        }
        let said = scene.at("said");
        let program = match phase {
            Phase::Start => refusal.spawn_refused(&command, &said),
            _ => refusal.spawn(&command, &said),
        };
        let Some(pair) = pair else {
            let address = serves(&program);
            return Self { scene, phase, refusal, program, address, pair: None };
        };
        is_standby(&program);
        let held = Program::spawn_piped(&mut holder(scene, &pair.both()), &scene.at("held"));
        holds(&held);
        Self { scene, phase, refusal, program, address: None, pair: Some((pair, held)) }
    }

    /// The given options of a client, and those for TLS if the phase needs it.
    fn options(&self, of: &[&str]) -> Vec<String> {
        let tls = if has_tls(self.phase) { self.scene.tls("app") } else { Vec::new() };
        of.iter().map(ToString::to_string).chain(tls).collect()
    }

    fn sound(&self, address: &str, of: &[&str]) -> Result<i32, String> {
        let options = self.options(of);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        visit_is_sound(self.scene, address, &options)
    }

    /// Ends the primary while calls are refused.
    fn exits(mut self) -> Result<(), String> {
        let result = ended(&mut self.program, &self.refusal);
        drop(self.program);
        self.refusal.ended();
        result
    }

    /// Takes the primary through the phase.
    fn goes_through(&mut self) -> Result<(), String> {
        if self.phase == Phase::Failover {
            return self.takes_over();
        }
        // the end of the primary is judged later
        let Some(address) = self.address.clone() else { return Ok(()) };
        match self.phase {
            Phase::Start | Phase::Serving => {
                for fabric in ["tcp", "shm"] {
                    self.sound(&address, &["--wait", "2", "--fabric", fabric])?;
                }
            }
            Phase::Reload => {
                self.reloads();
                self.sound(&address, &["--wait", "2"])?;
            }
            _ => drop(self.sound(&address, &["--wait", "2"])?),
        }
        Ok(())
    }

    fn takes_over(&mut self) -> Result<(), String> {
        let Some((pair, _)) = &self.pair else { unreachable!("of a failover") };
        pair.first.signal(Signal::KILL);
        self.address = serves_within(&self.program, TAKES_OVER);
        if let Some(address) = &self.address {
            self.sound(address, &["--wait", "1", "--fabric", "tcp"])?;
        }
        Ok(())
    }

    /// Sends SIGHUP, and waits until the primary has reloaded, or may have been denied the signal.
    fn reloads(&mut self) {
        self.program.signal(Signal::HUP);
        let until = Instant::now() + RELOAD;
        while self.refusal.has_stderr()
            && !self.program.said().contains("loaded again")
            && self.program.is_there()
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks that a standby that could not take over at first has tried again, or has ended.
    fn has_taken_over(&mut self) -> Result<(), String> {
        if self.phase == Phase::Failover && self.address.is_none() {
            self.address = serves(&self.program);
            // A program that aborts closes its output a moment before it has ended.
            if self.address.is_none() && self.program.ended(ABORTS).is_none() {
                return Err(format!("it does not take over: {}", self.program.said()));
            }
        }
        Ok(())
    }

    fn holder_keeps_its_lock(&mut self) -> Result<(), String> {
        let Some((_, holder)) = &mut self.pair else { return Ok(()) };
        let is_there = self.program.is_there();
        let was_there = holder.is_there();
        holder.close_input();
        let code = holder.ended(HANG).ok_or("the holder hangs")?.code();
        match is_there && (!was_there || code != Some(0)) {
            true => Err(format!("the holder has lost its lock: {code:?}: {}", holder.said())),
            false => Ok(()),
        }
    }

    /// Checks that the primary gives the lock to a client, unless it has ended; the end of the
    /// primary is judged later.
    fn serves_on(&mut self) -> Result<(), String> {
        let Some(address) = self.address.clone().filter(|_| self.program.is_there()) else {
            return Ok(());
        };
        let options = self.options(&AFTER);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let code = visit(self.scene, &address, &options)?;
        if code == 0 || !self.program.is_there() {
            return Ok(());
        }
        let visitor = std::fs::read_to_string(self.scene.at("visit")).unwrap_or_default();
        let said = self.program.said();
        Err(format!("it does not serve any more: {code}: {visitor}; {said}"))
    }
}

fn has_tls(phase: Phase) -> bool {
    matches!(phase, Phase::Handshake | Phase::Reload)
}

/// Ends the program and judges its end. Without a standard error it need not have said why.
fn ended(program: &mut Program, refusal: &Refusal<'_>) -> Result<(), String> {
    let result = ends(program, refusal.call());
    let is_mute = result.as_ref().is_err_and(|why| why.contains("without a word"));
    if is_mute && !refusal.has_stderr() {
        Ok(())
    } else {
        result
    }
}

fn phase(phase: Phase) {
    if !has_strace() {
        return;
    }
    let name = format!("dlockd, {phase:?}").to_lowercase();
    let before = Calls::new();
    let mut cells = cells_of_resources(phase as usize);
    let scene = Scene::new(&name.replace(", ", "-"));
    let before = match phase {
        Phase::Start => calls_of_a_primary(&scene),
        // The calls of this phase are denied by denied.rs.
        Phase::Serving => before,
        _ => {
            one(&scene, phase, None, &before).expect("nothing is refused");
            cells.extend(cells_of(&name, &calls_of_each_thread(&scene.at("trace"))));
            before
        }
    };
    run(&name, &cells, |scene, cell| one(scene, phase, Some(cell), &before));
}

#[test]
fn a_primary_that_starts_is_refused_things() {
    phase(Phase::Start);
}

#[test]
fn a_primary_that_serves_is_refused_things() {
    phase(Phase::Serving);
}

#[test]
fn a_primary_in_a_handshake_is_refused_things() {
    phase(Phase::Handshake);
}

#[test]
fn a_standby_that_takes_over_is_refused_things() {
    phase(Phase::Failover);
}

#[test]
fn a_primary_that_reloads_its_files_is_refused_things() {
    phase(Phase::Reload);
}

#[test]
fn a_primary_that_ends_is_refused_things() {
    phase(Phase::Exit);
}
