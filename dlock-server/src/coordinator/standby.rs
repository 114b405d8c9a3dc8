// SPDX-License-Identifier: MIT OR Apache-2.0
//! A standby: it watches a primary, and takes its place when that is gone.
//! [`dlock_core::standby::Standby`] decides when and how; this module probes, runs the fencing
//! command and reports.
//!
//! ```text
//!   stand_by ── next ──▶ probe (a heartbeat without a client) · fencing command · Server::start
//!      ▲  ▲ every 10 ms: has the process ended that has the state file?
//!      │  └ admin socket: status, promote
//! ```
//! Standby and primary use the same state file, with the list of clients and its lock file beside
//! it.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::control::secure::reason;
use crate::observe::log_limit::{limited, Cause};
use crate::transport::tls::shake_hands;
use crate::transport::Conn;
use dlock_core::ids::Seq;
use dlock_core::roster::place::Signature;
use dlock_core::standby::{Denied, Ground, Standby, Task, SILENCE_NS};
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{ControlReply, ControlRequest};
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::named;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;
use log::Level;
use parking_lot::Mutex;
use rustix::process::{kill_process_group, Pid, Signal};
use serde::Deserialize;
use serde_json::{json, Value};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::config::ServerConfig;
use crate::control::wire::{self, Reader, LEN_MAX};
use crate::coordinator::file::{has_ended, list_of, owner, resolved, signature, Ownership};
use crate::coordinator::Place;
use crate::error::StartError;
use crate::observe::admin_socket::{AdminListener, AdminSocket};
use crate::observe::http::Http;
use crate::observe::json_lines::{self, failure, Answers, Asker};
use crate::observe::roles::{Role, StandbyView, WatchesStandby};
use crate::server::{listen, Server};

/// The time between two checks whether the process of the primary has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A fencing command that takes longer than this is killed, and has failed.
const FENCE_WAIT: Duration = Duration::from_secs(60);
/// The shortest and the longest silence that can be configured.
const SILENCE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3_600)];
/// The environment variable that gives the fencing command the primary's address.
const FENCED_VARIABLE: &str = "DLOCK_PRIMARY";

/// Which primary's place a standby takes, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyConfig {
    /// The address on which the primary listens.
    pub of: SocketAddr,
    /// How long the primary may be silent, 100 ms to one hour.
    pub silence: Duration,
    /// A command for `sh` that makes sure that the primary at `$DLOCK_PRIMARY` serves no client any
    /// more; it ends with 0 only then, within 60 s. Without a command silence is no reason to take
    /// over: the process must have ended on this host, or an operator say so.
    pub fence: Option<String>,
}

impl StandbyConfig {
    /// A standby of the primary at this address.
    pub fn of(of: SocketAddr) -> Self {
        Self { of, silence: Duration::from_nanos(SILENCE_NS), fence: None }
    }

    /// Checks what can be known without starting.
    ///
    /// # Errors
    /// `Config`: what is wrong, beside what [`ServerConfig::check`] finds.
    pub fn check(&self, server: &ServerConfig) -> Result<(), StartError> {
        let wrong = |what: String| Err(StartError::Config(what));
        if !(SILENCE[0]..=SILENCE[1]).contains(&self.silence) {
            return wrong(format!(
                "the silence that a standby bears is {} ms: it must be 100 to 3600000",
                self.silence.as_millis()
            ));
        }
        if server.state_file.is_none() {
            return wrong(
                "a standby needs the state file of its primary, which says who the clients are: \
                 give both the same state_file"
                    .to_string(),
            );
        }
        if server.recovery_clients > 0 {
            let what = "recovery_clients has no place beside standby_of: the state file says who \
                        the clients are";
            return wrong(what.to_string());
        }
        server.check()
    }
}

/// Waits until the primary is gone, and serves in its place. To be called in a tokio runtime with
/// I/O and time; dropping the future ends the standby.
///
/// Silence is not enough: the process of the primary must have ended on this host, or the fencing
/// command have succeeded, or an operator say `dlock promote`. Clients of the primary are recovered
/// as by a primary that is started again with its state file.
///
/// # Errors
/// The configuration is wrong, the port or the admin socket cannot be used. A failure to take over
/// is logged, and tried again.
pub async fn stand_by(config: ServerConfig, standby: StandbyConfig) -> Result<Server, StartError> {
    standby.check(&config)?;
    config.check_room()?;
    let own = SocketAddr::new(config.bind, config.port);
    if own != standby.of {
        // listens for a moment, to check that the address can be used
        drop::<TcpListener>(listen(own)?);
    }
    let list = config.state_file.as_deref().map(|path| list_of(&resolved(path)));
    let list = list.unwrap_or_default();
    let (silence_ns, fences) = (nanos(standby.silence), standby.fence.is_some());
    let machine = Standby::new(boot_ns(), silence_ns, fences, signature(&list));
    let (machine, tls) = (Mutex::new(machine), config.tls.clone());
    let mut place: Option<Arc<Ownership>> = None;
    let (of, is_warned) = (standby.of, AtomicBool::new(false));
    let post = Arc::new(Post { machine, of, list, is_warned, tls });
    let http = Http::of(&config)?;
    loop {
        if let Some(http) = &http {
            let post = post.clone();
            http.shows(Role::Standby(WatchesStandby(Box::new(move || post.view()))));
        }
        let admin = Admin::open(&config, &post)?;
        let ground = post.watch(&standby).await;
        if let Some(admin) = admin {
            // if this standby takes over, the primary opens an admin socket of its own
            admin.closed().await;
        }
        let (there, whose) = (post.there(), place.as_ref().map(|place| place.whose()));
        let takes = post.machine.lock().takes(boot_ns(), there.as_ref(), whose);
        let taking = match takes {
            Ok(taking) => taking,
            Err(denied) => {
                log::error!("{}", post.why_not(denied));
                place = None;
                continue;
            }
        };
        if place.is_none() {
            log::warn!("takes the place of the primary at {}: {}", standby.of, post.why(ground));
        }
        if let Some(http) = http.as_ref().filter(|_| place.is_none()) {
            http.shows(Role::Starting); // another attempt is one of a standby that has the place
        }
        match Server::start_as(config.clone(), &taking, &mut place, http.clone()) {
            Ok(server) => return Ok(server),
            Err(error) => {
                let then = match &place {
                    Some(_) => "its place is taken, and nobody serves until this is mended",
                    None => "its place is not taken",
                };
                log::error!("cannot serve in the place of the primary: {error}; {then}");
                post.machine.lock().failed(boot_ns(), place.is_some());
            }
        }
    }
}

/// The state that the watch and the admin socket share.
struct Post {
    machine: Mutex<Standby>,
    of: SocketAddr,
    list: PathBuf,
    /// Whether the log already says that no primary has signed the list.
    is_warned: AtomicBool,
    /// The TLS of the probes; if the standby takes over, it serves with it, too.
    tls: Option<Tls>,
}

impl Post {
    /// What the metrics show of the standby.
    fn view(&self) -> StandbyView {
        let machine = self.machine.lock();
        StandbyView {
            was_heard: machine.was_heard(),
            silent_ms: machine.silent_ns(boot_ns()) / 1_000_000,
            has_place: machine.has_place(),
        }
    }

    /// The signature in the list's lock file, which names the list's owner.
    fn there(&self) -> Option<Signature> {
        signature(&self.list)
    }

    /// Watches the primary until this standby is to take over; returns why it may.
    async fn watch(&self, standby: &StandbyConfig) -> Ground {
        let mut was_silent = false;
        loop {
            let now_ns = boot_ns();
            let (task, is_silent) = {
                let mut machine = self.machine.lock();
                (machine.next(now_ns), machine.is_silent(now_ns))
            };
            if is_silent != was_silent {
                match is_silent {
                    true => log::warn!("{}", self.silence(standby)),
                    false => log::info!("the primary at {} answers again", self.of),
                }
                was_silent = is_silent;
            }
            match task {
                Task::TakeOver(ground) => return ground,
                Task::Wait { until_ns } => {
                    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    self.unless_over(task, sleep(left)).await;
                }
                Task::Probe { until_ns } => {
                    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    let asked = self.there();
                    let probe = timeout(left, probe(self.of, self.tls.as_ref()));
                    let Some(answer) = self.unless_over(task, probe).await else { continue };
                    self.probed(asked, matches!(answer, Ok(true)));
                }
                Task::Fence => {
                    let command = standby.fence.as_deref().unwrap_or_default();
                    let fence = fence(command, self.of);
                    let Some(result) = self.unless_over(task, fence).await else { continue };
                    self.fenced(result);
                }
            }
        }
    }

    /// Does the work of this task; `None`: the machine has given the task up meanwhile.
    async fn unless_over<T>(&self, task: Task, work: impl Future<Output = T>) -> Option<T> {
        let looks = async {
            while !self.is_over(task) {
                sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = looks => None,
        }
    }

    /// Looks whether the primary's process has ended; returns whether the task is given up.
    fn is_over(&self, task: Task) -> bool {
        let has_ended = owner(&self.list).is_some_and(has_ended);
        let (mut machine, now_ns) = (self.machine.lock(), boot_ns());
        if has_ended {
            machine.ended(now_ns);
        }
        machine.is_over(task, now_ns)
    }

    /// Reports a probe to the machine. `asked`: the signature of the list before the probe.
    fn probed(&self, asked: Option<Signature>, is_heard: bool) {
        if !is_heard {
            self.machine.lock().unheard(boot_ns());
            return;
        }
        let there = self.there();
        if there.is_none() && asked.is_none() && !self.is_warned.swap(true, Ordering::Relaxed) {
            log::error!("the primary at {} answers, but {}", self.of, self.unowned());
        }
        let lied = self.machine.lock().heard(boot_ns(), asked.as_ref(), there.as_ref());
        match lied {
            Some(Ground::Promoted) => log::error!(
                "an operator says that the primary at {} is gone, but it answers: it is left \
                 alone; stop it first (SIGTERM)",
                self.of
            ),
            Some(_) => log::error!(
                "the fencing command has ended with 0, but the primary at {} answers: it is left \
                 alone; mend the command",
                self.of
            ),
            None => {}
        }
    }

    fn fenced(&self, result: io::Result<()>) {
        let left = self.process_left();
        self.machine.lock().fenced(boot_ns(), result.is_ok(), left.is_some());
        let why = match (result, left) {
            (Ok(()), None) => return,
            (Ok(()), Some(pid)) => format!("process {pid} still exists"),
            (Err(error), _) => error.to_string(),
        };
        log::error!("the fencing command has failed: {why}; it is run again");
    }

    /// The process id of the primary, if its process is on this host and has not ended.
    fn process_left(&self) -> Option<i32> {
        let is_another = |pid: i32| u32::try_from(pid) != Ok(std::process::id());
        let owner = owner(&self.list).filter(|process| !has_ended(*process));
        owner.map(|process| process.pid).filter(|&pid| is_another(pid))
    }

    /// The reason why the standby does not take the place, for a message.
    fn why_not(&self, denied: Denied) -> String {
        let of = self.of;
        match denied {
            Denied::Unowned => {
                format!("the place of the primary at {of} is not taken: {}", self.unowned())
            }
            Denied::Replaced => format!(
                "another primary has taken the place of the one at {of} already: it is left alone"
            ),
            Denied::Heard => format!(
                "the primary at {of} has answered just now: stop it first (SIGTERM), and wait \
                 until it is silent"
            ),
        }
    }

    /// The message for a list whose lock file names no primary, so that its place cannot be taken.
    fn unowned(&self) -> String {
        format!(
            "no primary has {}, or its files were removed, so who its clients are is not known; \
             give this standby the state_file of that primary, or restore the files",
            self.list.display()
        )
    }

    fn why(&self, ground: Ground) -> String {
        match ground {
            Ground::Ended => "its process has ended".to_string(),
            Ground::Fenced => "it is silent, and the fencing command has succeeded".to_string(),
            Ground::Promoted => match self.process_left() {
                None => "it is silent, and an operator says that it is gone".to_string(),
                Some(pid) => format!(
                    "it is silent, and an operator says that it is gone; process {pid} exists, and \
                     will end itself if it goes on"
                ),
            },
        }
    }

    fn silence(&self, standby: &StandbyConfig) -> String {
        let silent_s = standby.silence.as_secs_f64();
        let of = self.of;
        let then = match &standby.fence {
            Some(_) if self.machine.lock().was_heard() => "the fencing command is run",
            Some(_) => "it was never heard, and is not fenced: start it, or say `dlock promote`",
            None => {
                "it may serve others: only when its process has ended on this host, or an operator \
                 says `dlock promote`, is its place taken"
            }
        };
        format!("the primary at {of} has not answered for {silent_s} s; {then}")
    }
}

/// Whether a primary answers at this address.
async fn probe(of: SocketAddr, tls: Option<&Tls>) -> bool {
    let ask = async {
        let stream = TcpStream::connect(of).await?;
        stream.set_nodelay(true)?;
        let mut stream: Box<dyn Conn> = match tls {
            None => Box::new(stream),
            Some(tls) => {
                let session = TlsSession::connect(tls, of.ip()).map_err(io::Error::other)?;
                match shake_hands(&stream, session, tls.loads()).await {
                    Ok(shaken) => Box::new(shaken.on(stream)),
                    Err(error) => {
                        let why = reason(&error);
                        limited!(
                            Cause::Handshake,
                            Level::Warn,
                            "no TLS connection with the primary at {of}: {why}"
                        );
                        return Err(error);
                    }
                }
            }
        };
        let question = Frame::Control(Seq(1), ControlRequest::Heartbeat);
        wire::send(&mut stream, &question).await?;
        let answer = Reader::default().next(&mut stream, LEN_MAX, || ()).await;
        io::Result::Ok(answer.ok())
    };
    let answer = ask.await.unwrap_or(None);
    // a primary that waits for its device answers with an error, and is alive
    matches!(
        answer,
        Some(Frame::ControlReply(_, ControlReply::Alive { .. } | ControlReply::Error(_)))
    )
}

/// Runs the fencing command in a process group of its own, which is killed if the command does not
/// end in time.
async fn fence(command: &str, of: SocketAddr) -> io::Result<()> {
    log::warn!("runs the fencing command");
    let mut command = {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).env(FENCED_VARIABLE, of.to_string());
        shell
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let mut group = Group(command.spawn()?);
    let ended = timeout(FENCE_WAIT, async {
        loop {
            match group.0.try_wait()? {
                Some(status) => return io::Result::Ok(status),
                None => sleep(LOOK_EVERY).await,
            }
        }
    });
    match ended.await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(io::Error::other(status.to_string())),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other(format!("it took longer than {} s", FENCE_WAIT.as_secs()))),
    }
}

/// A command and its process group, killed when this is dropped before the command has ended.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // a process that has ended already is fine
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// The admin socket of a standby.
struct Admin {
    task: tokio::task::JoinHandle<()>,
}

impl Admin {
    fn open(config: &ServerConfig, post: &Arc<Post>) -> Result<Option<Self>, StartError> {
        let Some(socket) = AdminSocket::of(config)? else { return Ok(None) };
        let path = config.admin_socket.clone().unwrap_or_default();
        let failed = |error| {
            let source = named("fcntl, epoll_ctl", error);
            StartError::AdminSocket { path, source }
        };
        let listener = AdminListener::new(socket).map_err(failed)?;
        let task = tokio::spawn(json_lines::serve(listener, post.clone()));
        Ok(Some(Self { task }))
    }

    /// Closes the socket. If its file is left behind, the next primary finds that it is stale.
    async fn closed(self) {
        self.task.abort();
        let _ = self.task.await; // the task was cancelled, so it ends with an error
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
enum Question {
    Status {},
    Promote {},
    /// The questions that only a primary can answer.
    #[serde(alias = "locks", alias = "clients")]
    Recover {
        #[serde(default, rename = "after")]
        _after: Option<i64>,
        #[serde(default, rename = "max")]
        _max: Option<u64>,
    },
}

impl Answers for Post {
    async fn reply(&self, line: &[u8], _: Asker) -> Value {
        let now_ns = boot_ns();
        match serde_json::from_slice(line) {
            Ok(Question::Status {}) => {
                let machine = self.machine.lock();
                json!({
                    "ok": true,
                    "version": crate::VERSION,
                    "pid": std::process::id(),
                    "standby_of": self.of.to_string(),
                    "was_heard": machine.was_heard(),
                    "silent_ms": machine.silent_ns(now_ns) / 1_000_000,
                    "has_place": machine.has_place(),
                })
            }
            Ok(Question::Promote {}) => {
                let there = self.there();
                let promoted = self.machine.lock().promoted(now_ns, there.as_ref());
                match promoted {
                    Ok(()) => {
                        log::warn!("an operator says that the primary at {} is gone", self.of);
                        json!({ "ok": true })
                    }
                    Err(Denied::Unowned) => failure(&self.unowned()),
                    Err(denied) => failure(&self.why_not(denied)),
                }
            }
            Ok(Question::Recover { .. }) => failure(&format!(
                "this is a standby of the primary at {}, and has no locks or clients: ask that \
                 primary, or say dlock promote if it is gone",
                self.of
            )),
            Err(error) => failure(&format!("this is a standby: {error}")),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
