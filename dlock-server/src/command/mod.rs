// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command thread: owns the primary's state and its memory, and serves the command channels.
//!
//! ```text
//!   loop:  events of the control thread ─▶ queues per client
//!          what the primary wants done  ─▶ effects    (closing, fencing, answers)
//!          arrivals at the device       ─▶ verbs      (frames of verbs clients)
//!          whose turn it is             ─▶ turns ─▶ sessions  (admission, requests, fencing)
//!                                                └▶ channels  (chains, ledger writes)
//!                                                └▶ upkeep    (expiry, undoing)
//!          whose time has come          ─▶ tick, stalled clients
//!          replies ─▶ channels ─▶ sockets
//!          then look again, or sleep until something happens
//! ```
//! The primary decides ([`dlock_core::primary`]). This thread decides only about sockets: which one
//! comes first, which peer reads nothing ([`STALL_MAX`]) or has given its channel up
//! (`Guest::is_late`), and when the clients that wait for a place ask again.
//!
//! Each turn does a bounded amount of work. The rest is done in the client's next turn, after the
//! turns of the others, so no client can keep the others waiting. Only the sleep blocks.

pub(crate) mod channel;
mod channels;
mod effects;
pub(crate) mod mailbox;
mod publish;
mod sessions;
mod spin;
mod turns;
mod verbs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::budget::rate::Rate;
use dlock_core::clock::ServerTime;
use dlock_core::ids::ClientId;
use dlock_core::primary::{self, Primary, Sent};
use dlock_core::wire::control::{ControlRequest, Offers};
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::fds::PeerProcess;
use dlock_fabric::{DeviceLost, VerbsHost};
use mio::{Events, Poll, Token};

use crate::command::channel::Channel;
use crate::command::mailbox::{ConnectionHandle, Event, Inbox, Opening};
use crate::coordinator::Roster;
use crate::host::capacity::{Capacity, FilesLeft};
use crate::host::clock::ServerClock;
use crate::host::memory::Memory;
use crate::observe::snapshot::Published;
use crate::transport::{Fence, STALL_MAX};
use publish::Meter;
use spin::Spin;
use turns::{Turns, Who};
use verbs::Nic;

/// The token of the mailbox.
pub(crate) const MAIL: Token = Token(0);
/// The token of the device's completions; channels and processes have the tokens above it.
const NIC: Token = Token(1);

/// Events of the control thread taken in one round.
const EVENTS_PER_ROUND: usize = 64;
/// Notifications of the poll taken in one round.
const POLLED_PER_ROUND: usize = 256;
/// Receives from the hot channel before the poll is asked about the other sockets.
const PEEKS_MAX: u32 = 16;
/// A receive from the hot channel that found something counts as this many, because the turn that
/// follows takes time.
const PEEK_FOUND: u32 = 4;
/// The time between two checks of what no event reports: the end of processes without a pidfd,
/// clients that could not be fenced, and clients that do not read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How much undoing is done at once when a client is fenced, in turns; see [`undone_at_once`].
const AT_ONCE_TURNS: u32 = 4;

/// The longest sleep if no deadline is pending.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);
/// The longest sleep if a deadline is pending. The poll counts CLOCK_MONOTONIC, which stands still
/// while the machine is suspended: a deadline that passes meanwhile is seen this long after the
/// resume.
const SLEEP_EXPECTING_MAX: Duration = Duration::from_secs(1);

/// The parts of the command thread.
pub(crate) struct Parts {
    pub(crate) primary: Box<Primary>,
    pub(crate) memory: Memory,
    /// The device of the primary, if it has one.
    pub(crate) host: Option<Arc<VerbsHost>>,
    pub(crate) clock: ServerClock,
    pub(crate) inbox: Inbox,
    pub(crate) poll: Poll,
    pub(crate) sleep_mode: bool,
    /// How many frames a client may send on its command channel.
    pub(crate) frames: Rate,
    /// What the answer to `Init` and `Reinit` offers to clients.
    pub(crate) offers: Offers,
    pub(crate) capacity: Capacity,
    pub(crate) files: Arc<FilesLeft>,
    pub(crate) roster: Roster,
    /// Where to publish what the metrics show; `None`: they are not shown.
    pub(crate) published: Option<Arc<Published>>,
}

/// The primary's state, its memory, and replies on their way to channels.
struct Core {
    primary: Box<Primary>,
    memory: Memory,
    clock: ServerClock,
    sent: Vec<Sent>,
}

impl Core {
    fn now(&self) -> ServerTime {
        self.clock.now()
    }
}

/// The connections and processes of an admitted client.
#[derive(Default)]
struct Sockets {
    /// The client's control connection.
    control: Option<Arc<ConnectionHandle>>,
    /// The client's command channel.
    channel: Option<Token>,
    /// The control connection and the command channel of the session that is prepared to replace
    /// the client's present one.
    next_control: Option<Arc<ConnectionHandle>>,
    next_channel: Option<Token>,
    /// The client's processes that have mapped the memory.
    processes: Vec<Process>,
}

/// A process that has mapped the memory.
struct Process {
    /// The number of the process in [`Membership`](dlock_core::membership::Membership).
    number: u64,
    /// The process id; `None`: the process is in another process namespace.
    pid: Option<i32>,
    process: Arc<PeerProcess>,
    /// The poll's token for the pidfd; `None`: there is no pidfd, so no event reports the end of
    /// the process.
    token: Option<Token>,
}

/// A client that waits to be admitted until there is a place.
struct Waiting {
    request: ControlRequest,
    link: Arc<ConnectionHandle>,
    reply: Opening,
}

/// How many work units of undoing are done at once when a client is fenced.
pub(crate) fn undone_at_once(memory: &Memory) -> u32 {
    AT_ONCE_TURNS * turns::quantum(matches!(memory, Memory::Nic(_)))
}

/// The command thread.
pub(crate) struct Worker {
    core: Core,
    inbox: Inbox,
    poll: Poll,
    sockets: HashMap<ClientId, Sockets>,
    waiting: VecDeque<Waiting>,
    /// Whether a place may have become free since the waiting clients were last tried.
    may_have_room: bool,
    channels: HashMap<Token, Channel>,
    /// For each pidfd, the clients of its process.
    pidfds: HashMap<Token, Vec<ClientId>>,
    turns: Turns,
    /// The channel that had the last turn; and whether it had the turn before as well: then it is
    /// hot, because the next message probably comes on it.
    last_turn: (Token, bool),
    peeks: u32,
    /// Channels over their rate, each with the time until which it rests (boot clock, ns).
    resting: HashMap<Token, u64>,
    /// Channels whose clients leave replies unread.
    blocked: HashSet<Token>,
    /// For each client, the fences that have failed so far.
    unfenced: HashMap<ClientId, Vec<Box<dyn Fence>>>,
    /// Whether a process of some client has no pidfd, so that its end must be looked for.
    blind: bool,
    next_token: usize,
    next_look: Instant,
    spin: Spin,
    frames: Rate,
    offers: Offers,
    capacity: Capacity,
    /// Receives the number of descriptors that clients take.
    files: Arc<FilesLeft>,
    nic: Option<Nic>,
    roster: Roster,
    meter: Option<Box<Meter>>,
}

impl Worker {
    /// # Errors
    /// The device's completions cannot be waited for.
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let is_devices = matches!(parts.memory, Memory::Nic(_));
        let nic = parts.host.map(|host| Nic::new(host, parts.poll.registry())).transpose()?;
        let mut worker = Self {
            core: Core {
                primary: parts.primary,
                memory: parts.memory,
                clock: parts.clock,
                sent: Vec::new(),
            },
            inbox: parts.inbox,
            poll: parts.poll,
            sockets: HashMap::new(),
            waiting: VecDeque::new(),
            may_have_room: false,
            channels: HashMap::new(),
            pidfds: HashMap::new(),
            turns: Turns::new(is_devices),
            last_turn: (MAIL, false),
            peeks: 0,
            resting: HashMap::new(),
            blocked: HashSet::new(),
            unfenced: HashMap::new(),
            blind: false,
            next_token: NIC.0,
            next_look: Instant::now() + LOOK_EVERY,
            spin: Spin::new(parts.sleep_mode),
            frames: parts.frames,
            offers: parts.offers,
            capacity: parts.capacity,
            files: parts.files,
            nic,
            roster: parts.roster,
            meter: parts.published.map(|published| Box::new(Meter::new(published))),
        };
        worker.settle();
        Ok(worker)
    }

    /// Serves until it is stopped or fails.
    ///
    /// # Errors
    /// Why it failed; its command channels are closed then.
    pub(crate) fn run(self) -> Result<(), String> {
        // An access to the memory unwinds with `DeviceLost` when the memory's device has failed.
        match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(ended) => ended,
            Err(payload) => match payload.downcast::<DeviceLost>() {
                Ok(lost) => Err(lost.to_string()),
                Err(panic) => resume_unwind(panic),
            },
        }
    }

    fn serve(mut self) -> Result<(), String> {
        if let Err(error) = self.core.memory.serve() {
            log::warn!("shm clients will not notice if this primary is killed: {error}");
        }
        let mut events = Events::with_capacity(POLLED_PER_ROUND);
        while !self.inbox.stopped() {
            let began = self.begins();
            let mut worked = self.take_events();
            worked |= self.take_arrivals()?;
            self.wake_resting();
            worked |= self.serve_turns();
            self.tick();
            self.tell_of_refusals();
            self.tell_of_an_outage();
            self.deliver();
            self.measure(began, worked);
            let mut wait = self.wait(worked);
            if !wait.is_zero() && !self.may_sleep_at_the_device()? {
                wait = Duration::ZERO;
            }
            let looked = self.look(&mut events, wait);
            looked
                .map_err(|error| format!("it cannot wait for its sockets: epoll_wait: {error}"))?;
        }
        self.inbox.why().map_or(Ok(()), Err)
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn take_events(&mut self) -> bool {
        for taken in 0..EVENTS_PER_ROUND {
            match self.inbox.next() {
                Some(event) => self.queue(event),
                None => return taken > 0,
            }
        }
        true
    }

    fn event(&mut self, event: Event) {
        // A reply that cannot be sent is dropped: the asker has gone. If it was a client, `Lost`
        // follows.
        match event {
            Event::Open { request, link, reply } => {
                self.open(Waiting { request, link, reply });
            }
            Event::Clients { reply } => {
                let _ = reply.send(self.clients());
            }
            Event::Control { client, link, request, reply } => {
                let _ = reply.send(self.control(client, link, request));
            }
            Event::Lost { client, link, why } => self.lost(client, link, why),
            Event::MayAttach { attach, identity, reply } => {
                let _ = reply.send(self.may_attach_now(&attach, identity));
            }
            Event::Attach(guest) => self.attach(guest),
            Event::Shown { reply } => {
                let _ = reply.send(self.shown());
            }
            Event::Ask(first, look) => {
                first.into_iter().for_each(|event| _ = self.handle(event));
                look(&self.core.primary, &mut self.core.memory);
            }
        }
    }

    /// Does everything whose deadline has passed.
    fn tick(&mut self) {
        if self.core.primary.next_wakeup().is_some_and(|at| at <= self.core.now()) {
            self.turns.shares.add(Who::Upkeep);
        }
        self.handle(primary::Event::Tick);
        self.open_waiting();
        let now = Instant::now();
        if now >= self.next_look && self.has_to_look() {
            self.next_look = now + LOOK_EVERY;
            self.look_at_processes();
            self.fence_again();
            self.drop_stalled(now);
        }
    }

    /// Whether something has to be checked regularly because no event reports it.
    fn has_to_look(&self) -> bool {
        self.blind
            || self.core.primary.members().has_quarantined()
            || !self.blocked.is_empty()
            || !self.unfenced.is_empty()
    }

    fn drop_stalled(&mut self, now: Instant) {
        let tokens: Vec<Token> = self.blocked.iter().copied().collect();
        for token in tokens {
            if !self.is_stalled(token, now) {
                continue;
            }
            // the client may have read some replies meanwhile, so there may be room
            self.send(token);
            if self.is_stalled(token, now) {
                self.end_channel(token, &format!("it has read nothing for {STALL_MAX:?}"));
            }
        }
    }

    fn is_stalled(&self, token: Token, now: Instant) -> bool {
        let stalls_at = self.channels.get(&token).and_then(Channel::stalls_at);
        stalls_at.is_some_and(|at| at <= now)
    }

    /// How long the poll may wait: not at all while there is work, or while work is expected soon.
    fn wait(&mut self, worked: bool) -> Duration {
        let may_open = self.may_have_room && !self.waiting.is_empty();
        if worked || may_open || !self.turns.shares.is_empty() || !self.core.sent.is_empty() {
            self.spin.worked();
            return Duration::ZERO;
        }
        if self.spin.goes_on() {
            return Duration::ZERO;
        }
        let until_wakeup = self.core.primary.next_wakeup().map_or(SLEEP_MAX, |at| {
            let left = Duration::from_nanos(at.0.saturating_sub(self.core.now().0));
            left.min(SLEEP_EXPECTING_MAX)
        });
        let now = Instant::now();
        let until_look = match self.has_to_look() {
            true => self.next_look.saturating_duration_since(now),
            false => SLEEP_MAX,
        };
        let until_rested = self.resting.values().min().map_or(SLEEP_MAX, |&at_ns| {
            let left = Duration::from_nanos(at_ns.saturating_sub(boot_ns()));
            left.max(Duration::from_millis(1)) // the poll counts milliseconds
        });
        let until_published = self.until_published(now).unwrap_or(SLEEP_MAX);
        until_wakeup.min(until_look).min(until_rested).min(until_published).min(SLEEP_MAX)
    }

    /// Takes the poll's events; sleeps at most `wait`.
    fn look(&mut self, events: &mut Events, wait: Duration) -> io::Result<()> {
        if wait.is_zero() && self.peek() {
            return Ok(());
        }
        let sleeps = !wait.is_zero() && self.inbox.may_sleep();
        // The poll counts in milliseconds, and rounds up.
        let polled = self.poll.poll(events, Some(if sleeps { wait } else { Duration::ZERO }));
        if sleeps {
            self.inbox.awake();
        }
        match polled {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in events.iter() {
            let token = event.token();
            if let Some(channel) = self.channels.get_mut(&token) {
                channel.event(event);
                self.turns.add(channel.client);
            } else if token == NIC {
                self.woken_by_the_device()?;
            } else if let Some(clients) = self.pidfds.get(&token).cloned() {
                clients.into_iter().for_each(|client| self.look_at_process(client));
            }
        }
        Ok(())
    }

    /// Receives from the hot channel, if there is one and no turn is due: that costs less than
    /// asking the poll and then receiving. Returns `false` if the poll must be asked.
    fn peek(&mut self) -> bool {
        let (token, is_hot) = self.last_turn;
        // a resting channel's frames are not taken, and a full channel has no room for replies
        let may_go_on = !self.resting.contains_key(&token);
        let channel = self.channels.get_mut(&token);
        let channel = channel.filter(|channel| may_go_on && !channel.is_full());
        let channel = match channel {
            Some(channel) if is_hot && self.peeks < PEEKS_MAX && self.turns.shares.is_empty() => {
                channel
            }
            _ => {
                self.peeks = 0;
                return false;
            }
        };
        self.peeks += 1;
        if channel.peek() {
            self.peeks += PEEK_FOUND;
            self.turns.add(channel.client);
        }
        true
    }
}
