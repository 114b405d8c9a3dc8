// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of the tour: starts them, sends commands, reads answers, stops and kills. Every
//! wait has a limit.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::{FABRIC_VARIABLE, TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE};
use dlock_core::wire::codec::status_from_wire;
use dlock_core::wire::status::Status;
use dlock_fabric::tls::TlsFiles;
use rustix::process::{kill_process, Pid, Signal};

use crate::failure::Failure;
use crate::place::Fabric;

/// The longest time that an answer may take: thousands of turns at a lock, on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A child process that reads commands and writes answers, a line each. Killed when dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<(Instant, String)>,
    early: Option<(Instant, String)>,
}

/// An answer of a client process.
#[derive(Debug)]
pub struct Answer {
    /// When the answer arrived.
    pub at: Instant,
    /// The status of the C API.
    pub status: Status,
    /// The numbers after the status.
    pub numbers: Vec<u64>,
}

impl Process {
    fn start(
        arguments: &[String],
        fabric: Fabric,
        errors: Stdio,
    ) -> Result<(Self, String), Failure> {
        Self::start_by(&mut program()?, arguments, fabric, errors)
    }

    fn start_by(
        program: &mut Command,
        arguments: &[String],
        fabric: Fabric,
        errors: Stdio,
    ) -> Result<(Self, String), Failure> {
        Self::begin(program.arg("role").args(arguments).stderr(errors), fabric)
    }

    fn begin(program: &mut Command, fabric: Fabric) -> Result<(Self, String), Failure> {
        let mut child = program
            .env(FABRIC_VARIABLE, fabric.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::plain(format!("a process cannot be started: {e}")))?;
        let output = child.stdout.take().expect("its output is piped");
        let (heard, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if heard.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        let mut process = Self { input: child.stdin.take(), child, lines, early: None };
        let (_, first) = process.hear()?;
        Ok((process, first))
    }

    /// Starts `dlock exec` with a COMMAND that repeats each word with its own process id; returns
    /// that id as well.
    pub fn exec(primaries: [SocketAddr; 2], fabric: Fabric) -> Result<(Self, u64), Failure> {
        let mut program = exec(primaries, fabric)?;
        let echo = r#"echo $$; while read word; do echo "0 $word $$"; done"#;
        program.args(["--", "sh", "-c", echo]).stderr(Stdio::null());
        let (process, first) = Self::begin(&mut program, fabric)?;
        let pid = first.parse().map_err(|_| Failure::plain(format!("COMMAND says '{first}'")))?;
        Ok((process, pid))
    }

    /// Closes the input of the process, and waits for its end; returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.input = None;
        let end = Instant::now() + ANSWER_MAX;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.code(),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn hear(&mut self) -> Result<(Instant, String), Failure> {
        if let Some(line) = self.early.take() {
            return Ok(line);
        }
        self.lines.recv_timeout(ANSWER_MAX).map_err(|_| {
            let end = self.child.try_wait().ok().flatten();
            let end = end.map_or("it does not answer".into(), |status| status.to_string());
            Failure::plain(format!("process {}: {end}", self.id()))
        })
    }

    /// Sends a command.
    pub fn tell(&mut self, command: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().expect("the input is there until the end");
        let sent = writeln!(input, "{command}").and_then(|()| input.flush());
        sent.map_err(|e| Failure::plain(format!("process {}: {e}", self.child.id())))
    }

    /// The answer to the oldest command that has none yet.
    pub fn answer(&mut self) -> Result<Answer, Failure> {
        let (at, line) = self.hear()?;
        let mut words = line.split_whitespace();
        let code = words.next().and_then(|w| u32::from_str_radix(w, 16).ok());
        let status = code
            .and_then(|c| status_from_wire(c as i32))
            .ok_or_else(|| Failure::plain(format!("process {} says '{line}'", self.child.id())))?;
        Ok(Answer { at, status, numbers: words.filter_map(|w| w.parse().ok()).collect() })
    }

    /// Sends a command and waits for its answer.
    pub fn ask(&mut self, command: &str) -> Result<Answer, Failure> {
        self.tell(command)?;
        self.answer()
    }

    /// Whether no answer comes for this long. An answer that comes is kept for `answer`.
    pub fn quiet(&mut self, time: Duration) -> bool {
        if self.early.is_none() {
            self.early = self.lines.recv_timeout(time).ok();
        }
        self.early.is_none()
    }

    /// Kills the process, which cannot tidy up.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // a process that has ended already is fine
        let _ = self.child.wait();
    }

    /// Stops the process, or lets it go on.
    pub fn freeze(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        // a process that has ended already is fine
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None; // the child ends by itself, unless it is stopped
        let end = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                self.kill();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn program() -> Result<Command, Failure> {
    std::env::current_exe().map(Command::new).map_err(Failure::plain)
}

/// `dlock exec` with the lock of the failover scene.
fn exec(primaries: [SocketAddr; 2], fabric: Fabric) -> Result<Command, Failure> {
    let mut program = program()?;
    program.args(["exec", "demo-command", "--lease", "60"]);
    program.arg(format!("--address={},{}", primaries[0], primaries[1]));
    program.arg(format!("--fabric={}", fabric.name()));
    Ok(program)
}

/// The exit code of a second `dlock exec` of that lock, which does not wait for it.
pub fn exec_once(primaries: [SocketAddr; 2], fabric: Fabric) -> Result<Option<i32>, Failure> {
    let mut program = exec(primaries, fabric)?;
    program.args(["--wait", "0", "--", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
    let status = program.status().map_err(Failure::plain)?;
    Ok(status.code())
}

/// A primary as a process of its own.
pub struct Primary {
    /// The process.
    pub process: Process,
    /// The address on which the primary listens.
    pub address: SocketAddr,
}

impl Primary {
    /// Starts a primary at this address that offers this fabric; port 0: any.
    pub fn start(
        at: SocketAddr,
        recover: u32,
        grace: Option<Duration>,
        fabric: Fabric,
    ) -> Result<Self, Failure> {
        let (listen, port) = (at.ip(), at.port());
        let mut arguments = vec!["primary".into(), format!("--listen={listen}")];
        arguments.extend([format!("--port={port}"), format!("--recover={recover}")]);
        arguments.extend(grace.map(|g| format!("--grace-ms={}", g.as_millis())));
        let (process, first) = Process::start(&arguments, fabric, Stdio::inherit())?;
        Ok(Self { process, address: listening(&first)? })
    }

    /// Starts a primary at this address, with TLS by these files; port 0: any. `frames_max`: the
    /// most frames a second of a client; `None`: the default.
    pub fn start_secured(
        at: SocketAddr,
        tls: &TlsFiles,
        fabric: Fabric,
        frames_max: Option<u32>,
    ) -> Result<Self, Failure> {
        let (listen, port) = (format!("--listen={}", at.ip()), format!("--port={}", at.port()));
        let mut program = program()?;
        program.env(TLS_CA_VARIABLE, &tls.ca).env(TLS_CERT_VARIABLE, &tls.cert);
        program.env(TLS_KEY_VARIABLE, &tls.key);
        let mut arguments = vec!["primary".into(), listen, port];
        arguments.extend(frames_max.map(|max| format!("--frames-per-second-max={max}")));
        let (process, first) =
            Process::start_by(&mut program, &arguments, fabric, Stdio::inherit())?;
        Ok(Self { process, address: listening(&first)? })
    }

    /// Starts a primary at this address with this state file.
    pub fn start_kept(at: SocketAddr, state_file: &str, fabric: Fabric) -> Result<Self, Failure> {
        let (process, first) = Process::start(&kept(at, state_file), fabric, Stdio::inherit())?;
        Ok(Self { process, address: listening(&first)? })
    }

    /// Starts a standby at this address for the primary `of`, with the state file of that.
    pub fn stand_by(
        of: SocketAddr,
        at: SocketAddr,
        state_file: &str,
        fabric: Fabric,
    ) -> Result<Self, Failure> {
        let mut arguments = kept(at, state_file);
        arguments.push(format!("--standby-of={of}"));
        let (process, _) = Process::start(&arguments, fabric, Stdio::inherit())?;
        Ok(Self { process, address: at })
    }

    /// Waits until the standby serves; returns when it began.
    pub fn serves(&mut self) -> Result<Instant, Failure> {
        let (at, line) = self.process.hear()?;
        listening(&line)?;
        Ok(at)
    }
}

fn kept(at: SocketAddr, state_file: &str) -> Vec<String> {
    let (listen, port) = (format!("--listen={}", at.ip()), format!("--port={}", at.port()));
    vec!["primary".into(), listen, port, format!("--state-file={state_file}")]
}

fn listening(line: &str) -> Result<SocketAddr, Failure> {
    let address = line.strip_prefix("listening ").and_then(|a| a.parse().ok());
    address.ok_or_else(|| Failure::plain(format!("the primary says '{line}'")))
}

/// Starts a client process that knows these primaries, and finds the successor of its own by
/// itself.
pub fn client_of(primaries: [SocketAddr; 2], fabric: Fabric) -> Result<Process, Failure> {
    let mut arguments = client_arguments(primaries[0], fabric).to_vec();
    arguments.push(format!("--primaries={}", primaries[1]));
    Process::start(&arguments, fabric, Stdio::null()).map(|(process, _)| process)
}

/// Starts a client process.
pub fn client(primary: SocketAddr, fabric: Fabric) -> Result<Process, Failure> {
    let arguments = client_arguments(primary, fabric);
    Process::start(&arguments, fabric, Stdio::inherit()).map(|(process, _)| process)
}

/// Starts a client process that is expected to be refused; its error messages are discarded.
pub fn uninvited(primary: SocketAddr, fabric: Fabric) -> Result<Process, Failure> {
    let arguments = client_arguments(primary, fabric);
    Process::start(&arguments, fabric, Stdio::null()).map(|(process, _)| process)
}

fn client_arguments(primary: SocketAddr, fabric: Fabric) -> [String; 3] {
    let fabric = format!("--fabric={}", fabric.name());
    ["client".into(), format!("--address={primary}"), fabric]
}
