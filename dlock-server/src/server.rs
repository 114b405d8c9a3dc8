// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts and stops a primary.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlock_core::budget::rate::Rate;
use dlock_core::counters::COUNTERS;
use dlock_core::ids::Epoch;
use dlock_core::membership::Rules;
use dlock_core::primary::{self, Primary, PrimaryConfig};
use dlock_core::roster::place::Taking;
use dlock_core::roster::{known, Change, Clients};
use dlock_core::wire::fabric::{self, Executes, FabricKind};
use dlock_fabric::os::threads::ProcessLimits;
use dlock_fabric::tls::Tls;
use dlock_fabric::{os::fds, SealedPeer, VerbsHost};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::command::channel::CHANNELS_MAX;
use crate::command::mailbox::{mailbox, Event, Mailbox};
use crate::command::{self, Worker};
use crate::config::{cpus, Rule, ServerConfig};
use crate::control::{self, secure, Recovery};
use crate::coordinator::file::{self, Found, Ownership};
use crate::coordinator::Roster;
use crate::error::StartError;
use crate::host::capacity::{Bound, Capacity, FilesLeft, Needs};
use crate::host::clock::ServerClock;
use crate::host::device;
use crate::host::memory::Memory;
use crate::host::threads::{join, spawn};
use crate::observe::admin::ServerInfo;
use crate::observe::admin_socket::AdminSocket;
use crate::observe::http::{self, Http};
use crate::observe::roles::{PrimaryParts, Role};
use crate::observe::snapshot::Published;
use crate::transport::{self, Opened, Setting};
use dlock_core::token::TokenFloor;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1_024;
/// How long a question to the command thread may take.
const ASK_WAIT: Duration = Duration::from_secs(5);

/// A running primary, which stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    epoch: Epoch,
    offers: Offers,
    capacity: Capacity,
    clock: ServerClock,
    mailbox: Arc<Mailbox>,
    control: Handle,
    stop: Arc<Notify>,
    ended: Arc<Notify>,
    threads: Vec<JoinHandle<()>>,
    tls: Option<Tls>,
    http: Option<Arc<Http>>,
}

impl Server {
    /// Starts a primary: when this returns, it serves.
    ///
    /// # Errors
    /// [`StartError`]; then nothing is left: no thread, socket or file descriptor.
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        fds::occupy_standard();
        let (mut place, http) = (None, Http::of(&config)?);
        let started = Self::start_as(config, &Taking::IfFree, &mut place, http);
        if let (Err(_), Some(place)) = (&started, place) {
            if let Err(error) = place.give_back() {
                log::warn!("who has the list of clients is not known any more: {error}");
            }
        }
        started
    }

    /// Starts a primary. `taking`: whether it may take the state file of another primary, whose
    /// place it takes. `place`: the ownership of the list, if this process has it already; it is
    /// set once it is taken, and stays even if the start fails. `http`: where the metrics
    /// are shown.
    pub(crate) fn start_as(
        config: ServerConfig,
        taking: &Taking,
        place: &mut Option<Arc<Ownership>>,
        http: Option<Arc<Http>>,
    ) -> Result<Self, StartError> {
        fds::occupy_standard();
        config.check()?;
        config.check_room()?;
        let state_file = config.state_file.as_deref().map(file::resolved);
        let ctrl_cpus = cpus("control", config.ctrl_cpuset.as_deref())?;
        let cmd_cpus = cpus("command", config.cmd_cpuset.as_deref())?;

        let tcp = listen(SocketAddr::new(config.bind, config.port))?;
        let address = tcp.local_addr().map_err(|source| StartError::Listen {
            addr: SocketAddr::new(config.bind, config.port),
            call: "getsockname",
            source,
        })?;
        let (memory, device) = device::memory(&config)?;
        let setting = Setting { config: &config, device: device.as_ref() };
        let transports = transport::open_all(&setting)?;
        let offers = Offers::of(&transports);
        let admin = AdminSocket::of(&config)?;
        let capacity = capacity(&config, &memory, &offers)?;
        let clock = ServerClock::start();
        let Found { keeper, mut clients, is_lost, tokens_below, epoch } =
            file::found(state_file.as_deref(), &config.earlier_state_files, taking, place)?;
        clients.retain(|_, kept| !kept.is_dead(file::has_ended));
        let known = clients.values().filter(|kept| kept.has_locks).count();
        if known > capacity.clients {
            log::error!(
                "{known} clients of the predecessor may hold locks, and there is room for {}: the \
                 recovery waits for those without a session horizon that find none; start this \
                 primary with the clients_max and the limits of its predecessor",
                capacity.clients
            );
        }

        let stop = Arc::new(Notify::new());
        let ended = Arc::new(Notify::new());
        let (started, offers_told) = (Instant::now(), offers.clone());
        let tls = config.tls.clone();
        let info = ServerInfo { address, epoch, started, clock, offers: offers_told, tls };
        let host = device.map(|(host, _)| host);
        let awaited = clients.iter().map(|(&client, kept)| (client, kept.clone())).collect();
        let (roster, receipts) = Roster::start(keeper, clients.clone())
            .map_err(|source| StartError::thread("roster", source))?;
        roster.tell(Change::Started);
        let files = Arc::new(FilesLeft::new(&capacity));
        let published = http.is_some().then(Arc::<Published>::default);
        let serving = Serving {
            epoch,
            clock,
            tokens_below,
            memory,
            host,
            capacity,
            files: files.clone(),
            roster,
            clients,
            is_lost,
            published: published.clone(),
        };
        let (mailbox, worker) = worker(&config, serving, transport::offers(&transports))?;
        let mailbox = Arc::new(mailbox);
        let shown = published.clone().map(|published| PrimaryParts {
            info: info.clone(),
            capacity,
            locks_max: config.locks_max,
            objects_max: config.objects_max,
            mailbox: mailbox.clone(),
            published,
        });
        let parts = control::Parts {
            tcp,
            transports,
            admin,
            mailbox: mailbox.clone(),
            info,
            tls: config.tls.clone(),
            files,
            receipts,
            awaited,
            published,
            stop: stop.clone(),
        };

        let exit_reason = ExitReason { stop: stop.clone(), ended: ended.clone() };
        let work = move |()| exit_reason.follows(worker.run());
        let command = spawn("command", cmd_cpus, move || Ok(((), work)))?.0;
        let spawned = spawn("control", ctrl_cpus, move || {
            let runtime = control::runtime()?;
            let listeners = control::prepare(&runtime, parts)?;
            let handle = runtime.handle().clone();
            let work = move |_| {
                control::run(&runtime, listeners);
                // queue pairs that are being made at this moment will have no client
                runtime.shutdown_background();
            };
            Ok((handle, work))
        });
        let (control, handle) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                mailbox.stop();
                join(command);
                return Err(error);
            }
        };
        log::info!("a primary serves on {address} over {offers}, epoch {epoch}");
        match capacity.bound {
            Bound::Configuration => log::info!("{capacity}"),
            Bound::OpenFiles { .. } => log::warn!("{capacity}"),
        }
        if let Some(locked) = capacity.locked {
            log::warn!("{locked}");
        }
        if let (Some(http), Some(shown)) = (&http, shown) {
            http.shows(Role::Primary(Box::new(shown)));
        }
        let threads = vec![control, command];
        Ok(Self {
            address,
            epoch,
            offers,
            capacity,
            clock,
            mailbox,
            control: handle,
            stop,
            ended,
            threads,
            tls: config.tls,
            http,
        })
    }

    /// The address on which the primary listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The address of the HTTP endpoint; `None`: there is none.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.address())
    }

    /// The epoch of this incarnation.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The fabrics over which clients reach the primary.
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// How many clients fit, and what limits them.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Loads certificates, keys and revocation lists again, as the primary does when a file has
    /// changed: later connections use them, and clients with revoked certificates are removed. A
    /// failure is logged, and the files loaded before stay in use. Without TLS nothing is done.
    ///
    /// # Latency
    /// The time to read the files, and to decrypt the key: up to seconds.
    pub fn reload_tls(&self) {
        self.tls_loader()();
        self.judge_again();
    }

    /// The loader of the TLS files, for any thread; [`judge_again`](Self::judge_again) follows.
    pub fn tls_loader(&self) -> impl FnOnce() + Send + 'static {
        let tls = self.tls.clone();
        move || tls.iter().for_each(secure::reload)
    }

    /// Checks the peers of all connections against the revocation lists that are loaded.
    pub fn judge_again(&self) {
        let (Some(tls), mailbox) = (self.tls.clone(), self.mailbox.clone()) else { return };
        self.control.spawn(async move { secure::sweep(&tls, &mailbox).await });
    }

    /// Sets the rules, for present clients, too. Without rules everything is allowed.
    ///
    /// # Errors
    /// The rules are out of range; or there is no TLS, so that no client has a name.
    pub fn set_rules(&self, rules: Vec<Rule>) -> Result<(), StartError> {
        if let Some(wrong) = crate::config::wrong_rules(&rules, self.tls.is_some()) {
            return Err(StartError::Config(wrong));
        }
        let (sender, receiver) = sync_channel(1);
        let mailbox = self.mailbox.clone();
        self.control.spawn(async move {
            let told = Event::look(vec![primary::Event::Rules(rules)], |_, _| ());
            if mailbox.ask(told).await.is_ok() {
                let _ = sender.send(()); // the receiver may have stopped waiting
            }
        });
        let _ = receiver.recv_timeout(ASK_WAIT); // the answer comes soon, or the primary ends
        Ok(())
    }

    /// Waits until the primary has ended without having been stopped; the log says why.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Waits until no lock is held in a drain (`dlock drain`): the primary may be stopped.
    pub async fn idle(&self) {
        self.mailbox.idle().await;
    }

    /// Waits until the control thread and the command thread have answered: both serve, or the
    /// control thread knows that the other waits for its device. `false`: the primary ends.
    pub async fn responds(&self) -> bool {
        let mailbox = self.mailbox.clone();
        let asked = self.control.spawn(async move {
            mailbox.ask_unless_out(Event::look(Vec::new(), |_, _| ())).await.is_ok()
        });
        asked.await.unwrap_or(false)
    }

    /// The progress of the recovery, in which no client is given a lock; `None`: it is over. Waits
    /// while the command thread waits for its device.
    pub async fn recovery(&self) -> Option<Recovery> {
        let (mailbox, clock) = (self.mailbox.clone(), self.clock);
        let asked = self.control.spawn(async move {
            let look = Event::look(Vec::new(), |one, _| one.locks().progress());
            let progress = mailbox.ask(look).await.ok().flatten()?;
            Some(Recovery::new(&progress, clock.now()))
        });
        asked.await.ok().flatten()
    }

    /// The debug counters (`debug_stats_code` of the C API), by their numbers: see
    /// [`dlock_core::counters`].
    pub fn stats(&self) -> [u64; COUNTERS] {
        let stats = self.look(primary::Event::Collect, |one, _| one.locks().counters().read());
        stats.unwrap_or_else(|| self.mailbox.counters())
    }

    /// Sets the debug counters to 0.
    pub fn clear_stats(&self) {
        // a primary that has ended counts nothing
        let _ = self.look(primary::Event::ClearCounters, |_, _| ());
    }

    /// Stops the primary and closes everything. Its clients see their connections end, and mapped
    /// memory refuses their chains.
    ///
    /// # Latency
    /// Less than a second.
    pub fn stop(mut self) {
        self.end();
    }

    /// Passes the event `first` to the primary, then calls `look` on the command thread. `None`:
    /// there was no answer in time.
    fn look<T: Send + 'static>(
        &self,
        first: primary::Event,
        look: impl FnOnce(&Primary, &mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        let mailbox = self.mailbox.clone();
        self.control.spawn(async move {
            if let Ok(seen) = mailbox.ask(Event::look(vec![first], look)).await {
                let _ = sender.send(seen); // the asker may have stopped waiting
            }
        });
        receiver.recv_timeout(ASK_WAIT).ok()
    }

    fn end(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        // first no more clients are admitted, and then the command thread ends
        self.stop.notify_one();
        self.mailbox.stop();
        for thread in self.threads.drain(..) {
            join(thread);
        }
        if let Some(http) = self.http.take() {
            http.shows(Role::Starting); // a standby may take the endpoint over
        }
        log::info!("the primary on {} has stopped", self.address);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The fabrics over which clients reach a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Each fabric, with its device if it has one.
    all: Vec<(FabricKind, Option<String>)>,
}

impl Offers {
    fn of(transports: &[Opened]) -> Self {
        let all = transports.iter().map(|Opened { transport, .. }| {
            (transport.kind(), transport.detail().map(str::to_string))
        });
        Self { all: all.collect() }
    }

    /// Whether clients can come over this fabric.
    pub fn has(&self, kind: FabricKind) -> bool {
        self.all.iter().any(|(offered, _)| *offered == kind)
    }

    /// The device that clients of this fabric reach; `None`: it is not offered, or has none.
    pub fn detail(&self, kind: FabricKind) -> Option<&str> {
        let found = self.all.iter().find(|(offered, _)| *offered == kind);
        found.and_then(|(_, detail)| detail.as_deref())
    }

    /// Whether clients may map the lock memory.
    fn let_map(&self) -> bool {
        self.all.iter().any(|(kind, _)| kind.executes() == Executes::Client)
    }
}

impl std::fmt::Display for Offers {
    /// For example `verbs (rxe0) and tcp`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.all.iter().map(|(kind, detail)| match detail {
            Some(detail) => format!("{kind} ({detail})"),
            None => kind.to_string(),
        });
        f.write_str(&all.collect::<Vec<String>>().join(" and "))
    }
}

/// The reaction of the primary to the end of its command thread.
struct ExitReason {
    stop: Arc<Notify>,
    ended: Arc<Notify>,
}

impl ExitReason {
    /// Closes the port of a primary that cannot serve any more, so that no client waits for it.
    fn follows(&self, end: Result<(), String>) {
        if let Err(why) = end {
            log::error!("the primary ends: {why}");
            self.stop.notify_one();
            self.ended.notify_one();
        }
    }
}

/// How many clients the limits of this process allow.
fn capacity(
    config: &ServerConfig,
    memory: &Memory,
    offers: &Offers,
) -> Result<Capacity, StartError> {
    let mut limits = ProcessLimits::of_this_process().map_err(StartError::Limits)?;
    limits.files_open += config.http.map_or(0, |_| http::CONNECTIONS_MAX as u64);
    let locked_bytes = match memory {
        Memory::Nic(_) => u64::from(memory.slots()) * 32 + u64::from(memory.ledger_entries()) * 8,
        Memory::Cpu(_) if offers.has(FabricKind::Sealed) => SealedPeer::RING_BYTES,
        Memory::Cpu(_) => 0,
    };
    let (clients_max, shm) = (config.clients_max, offers.let_map());
    Capacity::new(Needs { clients_max, shm, locked_bytes }, &limits).checked()
}

/// What the command thread is started with.
struct Serving {
    epoch: Epoch,
    clock: ServerClock,
    /// All tokens of earlier primaries are below this number.
    tokens_below: u64,
    memory: Memory,
    host: Option<Arc<VerbsHost>>,
    capacity: Capacity,
    files: Arc<FilesLeft>,
    roster: Roster,
    /// The predecessor's clients.
    clients: Clients,
    /// Whether the list of the predecessor's clients was lost, so that it may have had more
    /// clients.
    is_lost: bool,
    /// Where to publish what the metrics show.
    published: Option<Arc<Published>>,
}

/// The command thread's worker, and the mailbox by which it is reached.
fn worker(
    config: &ServerConfig,
    serving: Serving,
    offers: fabric::Offers,
) -> Result<(Mailbox, Worker), StartError> {
    let Serving { epoch, clock, tokens_below, mut memory, host, capacity, .. } = serving;
    let Serving { files, roster, clients, is_lost, published, .. } = serving;
    let failed = |source| StartError::Thread { thread: "command", source };
    let grace_ns = |grace: Duration| u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
    let setup = PrimaryConfig {
        epoch,
        tp_mode: config.tp_mode,
        recovery_clients: config.recovery_clients,
        clients_max: capacity.clients,
        locks_max: config.locks_max,
        objects_max: config.objects_max,
        absent_grace_ns: config.absent_grace.map(grace_ns),
        tokens: TokenFloor::new(clock.now(), clock.wall_s(), tokens_below),
    };
    let rules = Rules {
        orphans: config.orphans,
        offered: offers.kinds(),
        channels_max: CHANNELS_MAX,
        files_max: capacity.files,
        recovers_by_itself: config.state_file.is_some(),
        undone_at_once: command::undone_at_once(&memory),
        ..Rules::of(&setup)
    };
    // it is large, and the caller's stack may be small
    let mut primary = Box::new(Primary::new(setup, rules));
    let deadline_s = u32::try_from(config.recovery_deadline.as_secs()).unwrap_or(u32::MAX);
    let first = [
        primary::Event::Rules(config.rules.clone()),
        primary::Event::Awaits { known: known(&clients), deadline_s },
    ];
    let unlisted = is_lost.then_some(primary::Event::AwaitsUnlisted);
    for event in first.into_iter().chain(unlisted) {
        primary.handle(clock.now(), &mut memory, event);
    }
    let poll = mio::Poll::new().map_err(failed)?;
    let waker = mio::Waker::new(poll.registry(), command::MAIL).map_err(failed)?;
    let (mailbox, inbox) = mailbox(waker, host.clone(), primary.locks().counters().clone());
    let worker = Worker::new(command::Parts {
        primary,
        memory,
        host,
        clock,
        inbox,
        poll,
        sleep_mode: config.sleep_mode,
        frames: Rate::even(config.frames_per_second_max),
        offers,
        capacity,
        files,
        roster,
        published,
    });
    Ok((mailbox, worker.map_err(failed)?))
}

/// Listens on exactly this address; on `::` that is every address of this host, IPv4 included.
pub(crate) fn listen(addr: SocketAddr) -> Result<TcpListener, StartError> {
    let failed = |call| move |source| StartError::listen(addr, call, source);
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))
        .map_err(failed("socket"))?;
    if addr.is_ipv6() {
        let is_every_one = addr.ip().is_unspecified();
        socket.set_only_v6(!is_every_one).map_err(failed("setsockopt"))?;
    }
    socket.set_reuse_address(true).map_err(failed("setsockopt"))?;
    socket.set_nonblocking(true).map_err(failed("fcntl"))?;
    socket.bind(&addr.into()).map_err(failed("bind"))?;
    socket.listen(BACKLOG).map_err(failed("listen"))?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::roles;
    use crate::observe::snapshot::LATE;
    use std::io::{Read, Write};
    use std::thread;
    use tokio::time::timeout;

    #[test]
    fn a_primary_whose_command_thread_hangs_does_not_respond_and_still_shows_its_metrics() {
        let http = Some(([127, 0, 0, 1], 0).into());
        let config = ServerConfig { port: 0, http, ..ServerConfig::default() };
        let server = Server::start(config).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let responds = |wait_ms| {
            let wait = Duration::from_millis(wait_ms);
            runtime.block_on(async { timeout(wait, server.responds()).await })
        };
        assert_eq!(responds(60_000), Ok(true));
        let (release, held) = sync_channel::<()>(0);
        let (begun, begins) = sync_channel(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                server.look(primary::Event::Tick, move |_, _| {
                    begun.send(()).unwrap();
                    held.recv().unwrap();
                })
            });
            begins.recv().unwrap();
            assert!(responds(100).is_err(), "nobody is there to answer");
            let mut scrape = std::net::TcpStream::connect(server.http_addr().unwrap()).unwrap();
            scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = String::new();
            scrape.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("dlock_clients{"), "{answer}");
            release.send(()).unwrap();
            assert_eq!(responds(60_000), Ok(true));
        });
    }

    #[test]
    fn a_thread_that_has_not_published_for_long_is_not_alive() {
        let server = Server::start(ServerConfig { port: 0, ..ServerConfig::default() }).unwrap();
        let alive = |started| {
            let info = ServerInfo {
                address: server.address,
                epoch: server.epoch,
                started,
                clock: server.clock,
                offers: server.offers.clone(),
                tls: None,
            };
            let (mailbox, published) = (server.mailbox.clone(), Arc::default());
            let (capacity, locks_max, objects_max) = (server.capacity, 1, 1);
            roles::is_alive(&Role::Primary(Box::new(PrimaryParts {
                info,
                capacity,
                locks_max,
                objects_max,
                mailbox,
                published,
            })))
        };
        let now = Instant::now();
        assert_eq!(alive(now), Ok("alive".into()), "it has just started");
        let late = alive(now.checked_sub(LATE).unwrap()).unwrap_err();
        assert!(late.starts_with("the command thread"), "{late}");
    }
}
