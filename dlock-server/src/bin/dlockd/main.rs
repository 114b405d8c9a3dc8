// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd`: runs one dlock primary until it is told to stop.
//!
//! Standard output has one line, when it serves; everything else goes to standard error. SIGTERM
//! and SIGINT stop it; with TLS, and as a service, SIGHUP loads certificates, keys and rules again.
//! A broken internal invariant ends the process at once: a primary that is half dead would hold its
//! clients up.
#![forbid(unsafe_code)]

mod args;
mod file;
mod files;
mod format;
mod rules;
mod service;
mod sink;
mod tls;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use dlock_fabric::os::signals::{is_ignored, let_through};
use dlock_fabric::tls::Tls;
use dlock_fabric::{os::sink as lines, os::threads};
use dlock_server::{on_a_thread, stand_by, DefaultFiles, Server};
use rustix::process::Signal as Number;
use tokio::signal::unix::{signal, Signal, SignalKind};

use args::Args;
use format::Format;
use service::Manager;

/// The primary could not be started.
const START_FAILED: u8 = 1;
/// The command line or the configuration is wrong.
const CONFIG_WRONG: u8 = 2;
/// How long a primary that gets a signal to end while it starts may take to finish its start.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// The logged reason of a stop at the end of a drain.
const DRAINED: &str = "drained, and no lock is held";
/// How long the primary waits after a drain before it stops, so that the operator's last request is
/// still answered.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);
/// How long to wait for a reader of standard output that does not read.
const SAY_PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = match args.settings() {
        Ok(settings) => settings,
        Err(message) => return fail(CONFIG_WRONG, args.log_format(), &message),
    };
    if args.check_config {
        say(&format!("{}: the configuration is valid", args.source()));
        let endings = settings.server.tls.iter().flat_map(Tls::endings);
        for notice in endings.filter_map(|ending| ending.notice_now()) {
            say(&notice);
        }
        return ExitCode::SUCCESS;
    }
    let format = settings.log_format;
    sink::install(settings.log_level, format);
    match run(settings, &args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(START_FAILED, format, &message),
    }
}

fn run(mut settings: file::Settings, args: &Args) -> Result<(), String> {
    let read = settings.clone();
    files::choose(&mut settings, &DefaultFiles::of_this_process())?;
    threads::free_memory_as_it_goes();
    if let Err(error) = threads::raise_file_limit() {
        log::warn!("the limit of open files cannot be raised: {error}");
    }
    settings.server.check_room().map_err(|error| error.to_string())?;
    std::panic::set_hook(Box::new(|_| {})); // the next line reports the panic
    let runtime = dlock_server::runtime(|builder| builder).map_err(|error| {
        let remedy = dlock_server::thread_remedy(&error);
        format!("cannot wait for signals (socketpair, epoll_create): {error}; {remedy}")
    })?;
    abort_on_panic();
    let ended = runtime.block_on(async {
        // The handlers come before the primary serves: a signal right after the ready line is a
        // clean stop, too.
        let mut terminate = handler(SignalKind::terminate())?;
        let mut interrupt = handler(SignalKind::interrupt())?;
        // with this handler a write beyond the limit of file sizes fails, like one to a full disk
        let _too_large = handler(SignalKind::from_raw(Number::XFSZ.as_raw()))?;
        let manager = Manager::of_this_process();
        // With TLS, or under a service manager, SIGHUP means that files have changed. Otherwise it
        // ends the process, as usual.
        let reloads = settings.server.tls.is_some() || manager.is_there();
        let mut hangup = match reloads {
            true => Some(handled(SignalKind::hangup())?),
            false => handler(SignalKind::hangup())?,
        };
        let mut in_force = InForce::of(&read);
        let started = match settings.standby() {
            // the start may wait for the storage of the state file, which may not answer
            None => {
                let config = settings.server;
                let mut start = pin!(on_a_thread("start", || Server::start(config)));
                tokio::select! {
                    started = &mut start => started.map_err(|error| no_thread(&error))?,
                    () = stopped(&mut terminate, &mut interrupt) => {
                        // if the start succeeds after the signal, the new primary is dropped, which
                        // stops it as usual
                        let _ = tokio::time::timeout(START_PATIENCE, start).await;
                        return Ok(());
                    }
                }
            }
            Some(standby) => {
                say(&format!("dlockd standby: of {}, pid {}", standby.of, std::process::id()));
                manager.ready(&format!("waits for the place of the primary at {}", standby.of));
                tokio::select! {
                    started = stand_by(settings.server, standby) => started,
                    () = manager.watches_standby() => unreachable!("it pings without end"),
                    () = stopped(&mut terminate, &mut interrupt) => return Ok(()),
                    () = comes(&mut hangup), if !reloads => return Ok(()),
                }
            }
        };
        let server = started.map_err(|error| error.to_string())?;
        let fabrics = server.offers();
        let (address, epoch, pid) = (server.local_addr(), server.epoch(), std::process::id());
        let capacity = server.capacity();
        let room = capacity.clients;
        let shm = capacity.mapping.map(|mapping| format!(", {mapping} over shm"));
        let verbs = capacity.locked.map(|locked| format!(", {} over RDMA", locked.clients));
        let (shm, verbs) = (shm.unwrap_or_default(), verbs.unwrap_or_default());
        say(&format!(
            "dlockd ready: listening on {address}, offering {fabrics}, epoch {epoch}, pid {pid}, \
             room for {room} clients{shm}{verbs}"
        ));
        let serves = format!("serves on {address} over {fabrics}, epoch {epoch}");
        let recovery = server.recovery().await.map(|recovery| recovery.to_string());
        let status = RefCell::new(recovery.unwrap_or_else(|| serves.clone()));
        manager.ready(&status.borrow());
        let mut watch = pin!(manager.watches(&server));
        let mut follow = pin!(manager.follows(&server, &serves, &status));
        // one reload at a time; files that cannot be read delay no signal that ends the primary
        let (mut reload, mut is_due_again) = (None, false);
        let name = loop {
            tokio::select! {
                () = comes(&mut terminate) => break "SIGTERM",
                () = comes(&mut interrupt) => break "SIGINT",
                () = comes(&mut hangup) => {
                    if !reloads {
                        break "SIGHUP";
                    }
                    manager.reloading();
                    match reload {
                        Some(_) => is_due_again = true,
                        None => reload = Some(Box::pin(read_again(args, &server))),
                    }
                }
                read = async { reload.as_mut().expect("it is under way").await },
                    if reload.is_some() =>
                {
                    reload = None;
                    set_rules(&server, args, read, &mut in_force);
                    server.judge_again();
                    match std::mem::take(&mut is_due_again) {
                        true => reload = Some(Box::pin(read_again(args, &server))),
                        false => manager.ready(&status.borrow()),
                    }
                }
                () = &mut watch => unreachable!("it pings without end"),
                () = &mut follow => unreachable!("it follows without end"),
                () = server.idle() => break DRAINED,
                () = server.ended() => {
                    return Err("the primary has ended by itself: see the log".to_string());
                }
            }
        };
        log::info!("{name}: stopping");
        if name == DRAINED {
            tokio::time::sleep(ANSWER_PATIENCE).await;
        }
        manager.stopping();
        Ok(())
    });
    runtime.shutdown_background(); // drops a start that hangs, without waiting for it
    ended
}

/// The message if the system refuses a thread.
fn no_thread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => "cannot start a thread: the limit of threads is reached; \
             raise it (ulimit -u, TasksMax= of the unit, pids.max of the cgroup), or end other \
             programs of this user"
            .to_string(),
        _ => format!("cannot start a thread: {error}; {}", dlock_server::thread_remedy(error)),
    }
}

/// Waits for a signal that ends the primary.
async fn stopped(terminate: &mut Option<Signal>, interrupt: &mut Option<Signal>) {
    tokio::select! {
        () = comes(terminate) => {}
        () = comes(interrupt) => {}
    }
}

/// Waits for a signal; never returns for one that is ignored.
async fn comes(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Reads the configuration file and the TLS files again, on a separate thread.
fn read_again(
    args: &Args,
    server: &Server,
) -> impl Future<Output = Result<file::Settings, String>> + 'static {
    let (args, load) = (args.clone(), server.tls_loader());
    let read = move || {
        let settings = args.settings();
        load();
        settings
    };
    async move { on_a_thread("reload", read).await.unwrap_or_else(|error| Err(no_thread(&error))) }
}

/// Sets the rules of the configuration file as it is now. If the file cannot be used, or has no
/// rules any more, the present rules stay: the file may be half written, and without rules every
/// client may do everything.
fn set_rules(
    server: &Server,
    args: &Args,
    read: Result<file::Settings, String>,
    in_force: &mut InForce,
) {
    let Some(path) = args.config().map(|path| path.display()) else { return };
    let set = read.and_then(|settings| {
        let read = InForce::of(&settings);
        if read.rules == 0 && in_force.rules > 0 {
            let what = "the file has none; only a restart takes all rules away";
            return Err(what.to_string());
        }
        server.set_rules(settings.server.rules).map(|()| read).map_err(|error| error.to_string())
    });
    let read = match set {
        Ok(read) => read,
        Err(error) => return log::error!("the rules stay as they were: {error}"),
    };
    if read.others != in_force.others {
        let what = match read.others.tls == in_force.others.tls {
            true => "",
            false => ", among them which files are those of [tls]",
        };
        log::warn!(
            "{path} has other settings than this primary was started with{what}: they do not \
             count before it is started again"
        );
    }
    in_force.rules = read.rules;
    log::info!("the rules were read again: {} are in force", read.rules);
}

/// The settings that are in force in a running primary.
struct InForce {
    rules: usize,
    /// The other settings, which SIGHUP does not change.
    others: file::Settings,
}

impl InForce {
    fn of(read: &file::Settings) -> Self {
        let mut others = read.clone();
        others.server.tls = None; // not compared: a reload may change what is in the TLS files
        let rules = std::mem::take(&mut others.server.rules).len();
        Self { rules, others }
    }
}

/// The handler of a signal. `None`: the process was started with the signal ignored, as by `nohup`.
fn handler(kind: SignalKind) -> Result<Option<Signal>, String> {
    match is_ignored(kind.as_raw_value()) {
        true => Ok(None),
        false => handled(kind).map(Some),
    }
}

/// The handler of a signal, which is also unblocked, because the program that started this one may
/// have blocked it.
fn handled(kind: SignalKind) -> Result<Signal, String> {
    let handled = signal(kind).map_err(no_signals)?;
    let_through(kind.as_raw_value());
    Ok(handled)
}

fn no_signals(error: std::io::Error) -> String {
    format!("cannot wait for signals: sigaction: {error}")
}

/// A panic in any thread ends the process, after its message.
fn abort_on_panic() {
    lines::log_panics(|| {
        lines::flush();
        std::process::abort();
    });
}

/// Prints one line on standard output, which may be closed, or a pipe that is not read.
fn say(line: &str) {
    let _ = lines::to_stdout_within(&format!("{line}\n"), SAY_PATIENCE);
}

fn fail(code: u8, format: Format, message: &str) -> ExitCode {
    sink::say_why_it_ends(format, message);
    ExitCode::from(code)
}
