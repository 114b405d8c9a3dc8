// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `dlockd`.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use dlock_server::VerbsUse;
use log::LevelFilter;

use crate::file::{self, FileChoice, Settings};
use crate::format::Format;
use crate::tls::{self, TlsPaths};

const AFTER_HELP: &str = "\
An option on the command line overrides the configuration file. All settings,
with their meaning and defaults, are in the commented example dlockd.toml.

When it serves, dlockd prints one line on standard output, which begins so:
  dlockd ready: listening on ADDR:PORT, offering
With --standby-of it prints another one first, when it waits:
  dlockd standby: of ADDR:PORT, pid N
SIGTERM and SIGINT stop it. With TLS, SIGHUP loads certificates, keys,
revocation lists and rules again; without TLS it stops it, too, unless it runs
as a service of systemd.

Exit codes:
  0  stopped by a signal, or the configuration checked is valid
  1  the primary could not be started
  2  the command line or the configuration is wrong";

/// The width of the terminal in columns; 80 if there is no terminal.
fn help_width() -> usize {
    let out = std::io::stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0).unwrap_or(80)
}

/// Runs a dlock primary: locks and state objects for clients on this host and others.
#[derive(Clone, Debug, Parser)]
#[command(name = "dlockd", version = dlock_server::VERSION, after_help = AFTER_HELP)]
#[command(term_width = help_width())]
pub(crate) struct Args {
    /// Read the configuration from this TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration, say whether it is valid, and exit
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Listen on this IPv4 or IPv6 address [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen: Option<IpAddr>,
    /// Listen on this TCP port, 0 for any free one [default: 21616]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// CPUs of the control thread, like 0-3,6
    #[arg(long, value_name = "CPUS")]
    ctrl_cpuset: Option<String>,
    /// CPUs of the command thread
    #[arg(long, value_name = "CPUS")]
    cmd_cpuset: Option<String>,
    /// The command thread sleeps soon when there is nothing to do
    #[arg(long)]
    sleep_mode: bool,
    /// Clients that have to come back before any client is served
    #[arg(long, value_name = "COUNT")]
    recovery_clients: Option<u32>,
    /// Wait at least so long for the clients that the state file knows [default: 30]
    #[arg(long, value_name = "SECONDS")]
    recovery_deadline: Option<u64>,
    /// Serve over RDMA verbs: auto, on, sealed, one-sided, off [default: auto, on a host with a
    /// usable port]
    #[arg(long, value_name = "WHEN", value_parser = file::verbs_use)]
    verbs: Option<VerbsUse>,
    /// Serve on this RDMA device
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Offer no shared memory
    #[arg(long)]
    no_shm: bool,
    /// Offer no command channels over TCP
    #[arg(long)]
    no_tcp: bool,
    /// Make the admin endpoint's Unix socket here; none: nowhere [default: in the user's runtime
    /// folder, for each port; `dlock` finds it there]
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// Show metrics and probes over HTTP at this address, like 127.0.0.1:9616
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<SocketAddr>,
    /// Keep the last epoch in this file, and in FILE.clients who the clients are; none: nowhere
    /// [default: a file in the user's state folder, for each port]
    #[arg(long, value_name = "FILE")]
    state_file: Option<PathBuf>,
    /// Take the place of the primary at this address when it is gone; needs its state file
    #[arg(long, value_name = "ADDR:PORT")]
    standby_of: Option<SocketAddr>,
    /// The primary may be silent for so long [default: 1000]
    #[arg(long, value_name = "MS", requires = "standby_of")]
    standby_silence: Option<u64>,
    /// A command for sh that makes sure that the primary at $DLOCK_PRIMARY is gone
    #[arg(long, value_name = "COMMAND", requires = "standby_of")]
    fence_command: Option<String>,
    #[command(flatten)]
    tls: TlsPaths,
    /// Listen where strangers can connect although there is no TLS
    #[arg(long)]
    insecure: bool,
    /// What to tell on standard error: off, error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = file::log_level)]
    log_level: Option<LevelFilter>,
    /// How: text, journal (levels for systemd's journal), json (an object for each message), auto
    /// (journal where standard error is the journal, else text) [default: auto]
    #[arg(long, value_name = "FORMAT", value_parser = Format::from_str)]
    log_format: Option<Format>,
}

impl Args {
    /// The settings of the file, or the defaults, overridden by the command line.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        let mut settings = match &self.config {
            Some(path) => file::read(path)?,
            None => Settings::default(),
        };
        let server = &mut settings.server;
        server.bind = self.listen.unwrap_or(server.bind);
        if let Some(port) = self.port {
            server.port = file::usable_port(port)?;
        }
        server.recovery_clients = self.recovery_clients.unwrap_or(server.recovery_clients);
        if let Some(seconds) = self.recovery_deadline {
            server.recovery_deadline = Duration::from_secs(seconds);
        }
        server.http = self.http.or(server.http);
        server.sleep_mode |= self.sleep_mode;
        server.verbs = self.verbs.unwrap_or(server.verbs);
        replace(&mut server.device, &self.device);
        server.shm &= !self.no_shm;
        server.tcp &= !self.no_tcp;
        replace(&mut server.ctrl_cpuset, &self.ctrl_cpuset);
        replace(&mut server.cmd_cpuset, &self.cmd_cpuset);
        for (file, choice, given) in [
            (&mut server.state_file, &mut settings.state_file, &self.state_file),
            (&mut server.admin_socket, &mut settings.admin_socket, &self.admin_socket),
        ] {
            if let Some(path) = given {
                *choice = path.clone().into();
            }
            if let FileChoice::At(path) = choice {
                *file = Some(path.clone());
            }
        }
        settings.standby.of = self.standby_of.or(settings.standby.of);
        if let Some(ms) = self.standby_silence {
            settings.standby.silence = Duration::from_millis(ms);
        }
        replace(&mut settings.standby.fence, &self.fence_command);
        settings.log_level = self.log_level.unwrap_or(settings.log_level);
        settings.log_format = self.log_format.unwrap_or(settings.log_format);
        settings.insecure |= self.insecure;
        settings.server.tls = self.tls.over(settings.tls.clone()).load()?;
        tls::check(settings.server.bind, settings.server.tls.as_ref(), settings.insecure)?;
        tls::check_http(settings.server.http, settings.server.tls.as_ref(), settings.insecure)?;
        let checked = match settings.standby() {
            Some(standby) => standby.check(&settings.server),
            None => settings.server.check(),
        };
        checked.map_err(|error| error.to_string())?;
        Ok(settings)
    }

    /// The log format that the command line names, or the default.
    pub(crate) fn log_format(&self) -> Format {
        self.log_format.unwrap_or_default()
    }

    /// The configuration file.
    pub(crate) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Names the configuration file, or says that there is none, for messages.
    pub(crate) fn source(&self) -> String {
        match &self.config {
            Some(path) => path.display().to_string(),
            None => "command line".to_string(),
        }
    }
}

fn replace<T: Clone>(setting: &mut Option<T>, given: &Option<T>) {
    if given.is_some() {
        setting.clone_from(given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn manuals_and_completions_are_those_of_the_command_line() {
        let program =
            dlock_manuals::Program { name: "dlockd", section: 8, document: "docs/dlockd.md" };
        dlock_manuals::check_program(program, Args::command());
    }
}
