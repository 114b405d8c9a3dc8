// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from the control thread to the command thread.
//!
//! ```text
//!   control tasks ── Event ──▶ bounded queue ──▶ command thread
//!                 ◀─ oneshot reply ───────────
//! ```
//! A task that finds the queue full waits for room without blocking its thread. The command
//! thread is woken only if it sleeps.

use std::pin::pin;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use dlock_core::counters::{Counter, Counters, COUNTERS};
use dlock_core::ids::{ClientId, Identity};
use dlock_core::membership::{Connection, Gone};
use dlock_core::primary::{self, ClientSnapshot, Primary};
use dlock_core::wire::about::About;
use dlock_core::wire::control::{Attach, ControlReply, ControlRequest, Session};
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::status::Status;
use dlock_fabric::VerbsHost;
use parking_lot::Mutex;
use tokio::sync::{oneshot, Notify, Semaphore};
use tokio::time::timeout;

use crate::host::memory::Memory;
use crate::transport::{Guest, Shown};

/// The time between two checks whether the command thread is waiting for its device.
const OUT_LOOK: Duration = Duration::from_millis(250);
/// The most events in the queue. Every connection has at most two.
const EVENTS_MAX: usize = 1_024;
/// Attempts to wake the command thread.
const WAKES_MAX: usize = 4;

/// One control connection, known to both threads.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    /// The number of the connection, never used twice.
    pub(crate) id: u64,
    closed: Notify,
    /// The certificate that the peer has shown in its TLS handshake.
    shown: OnceLock<Arc<Shown>>,
}

impl ConnectionHandle {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, closed: Notify::new(), shown: OnceLock::new() }
    }

    /// Records the certificate that the peer has shown in its TLS handshake.
    pub(crate) fn is_of(&self, shown: &Arc<Shown>) {
        let _ = self.shown.set(Arc::clone(shown)); // set once: there is one handshake
    }

    /// The certificate that the peer has shown in its TLS handshake; `None`: there was no
    /// handshake.
    pub(crate) fn shown(&self) -> Option<&Arc<Shown>> {
        self.shown.get()
    }

    /// Asks the task of the connection to end it.
    pub(crate) fn close(&self) {
        self.closed.notify_one();
    }

    /// Waits until [`close`](Self::close) is called.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// A client as operators see it.
#[derive(Clone, Debug)]
pub(crate) struct ClientSeen {
    pub(crate) snapshot: ClientSnapshot,
    /// Whether it has a control connection.
    pub(crate) is_present: bool,
    pub(crate) about: About,
    /// The fabric of its command channel.
    pub(crate) fabric: Option<FabricKind>,
    /// The certificate that it has shown.
    pub(crate) shown: Option<Arc<Shown>>,
}

/// A function that reads the primary on the command thread.
pub(crate) type Query = Box<dyn FnOnce(&Primary, &mut Memory) + Send>;

/// A client, one of its connections, and the certificate that its peer has shown.
pub(crate) type ShownBy = (ClientId, Connection, Arc<Shown>);

/// Where the answer to an `Init` or `Reinit` goes: the session, or the reply that refuses it.
pub(crate) type Opening = oneshot::Sender<Result<Session, ControlReply>>;

/// The requests and reports of the control thread to the command thread.
pub(crate) enum Event {
    /// `Init` or `Reinit` on a connection that has no client yet.
    Open { request: ControlRequest, link: Arc<ConnectionHandle>, reply: Opening },
    /// Any other request, on a connection bound to this client.
    Control {
        client: ClientId,
        link: u64,
        request: ControlRequest,
        reply: oneshot::Sender<ControlReply>,
    },
    /// A connection that was bound to this client has ended.
    Lost { client: ClientId, link: u64, why: Gone },
    /// All clients.
    Clients { reply: oneshot::Sender<Vec<ClientSeen>> },
    /// Asks whether this client may attach now. Its transport asks before it makes queue pairs.
    MayAttach { attach: Attach, identity: Option<Identity>, reply: oneshot::Sender<Status> },
    /// A connection wants to be a command channel; it is answered by the command thread.
    Attach(Guest),
    /// Asks for the certificates that the peers of all connections have shown.
    Shown { reply: oneshot::Sender<Vec<ShownBy>> },
    /// Events for the primary, then a function that reads it.
    Ask(Vec<primary::Event>, Query),
}

impl Event {
    /// Passes these events to the primary.
    pub(crate) fn tell(events: Vec<primary::Event>) -> Self {
        Self::Ask(events, Box::new(|_, _| ()))
    }

    /// Passes the events `first` to the primary, then sends the result of `look`.
    pub(crate) fn look<T: Send + 'static>(
        first: Vec<primary::Event>,
        look: impl FnOnce(&Primary, &mut Memory) -> T + Send + 'static,
    ) -> impl FnOnce(oneshot::Sender<T>) -> Self {
        let then = |reply: oneshot::Sender<T>| -> Query {
            // if the asker has gone, the answer is dropped
            Box::new(move |one, memory| _ = reply.send(look(one, memory)))
        };
        move |reply| Self::Ask(first, then(reply))
    }
}

/// The sending side; shared.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Sender<Event>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    /// The device that holds the lock memory, if one does.
    device: Option<Arc<VerbsHost>>,
}

#[derive(Debug)]
struct Shared {
    /// One permit for each free place in the queue.
    room: Semaphore,
    waker: mio::Waker,
    sleeping: AtomicBool,
    stop: AtomicBool,
    /// The error with which the command thread is to end; `None`: it is to stop as requested.
    why: Mutex<Option<String>>,
    /// Notified when the command thread asks for [`primary::Event::Listened`].
    listen: Notify,
    /// Notified when no lock is held while the primary drains.
    idle: Notify,
}

impl Shared {
    /// Wakes the command thread. A failed call is repeated, because the thread would sleep on for
    /// up to an hour (`SLEEP_MAX`).
    fn wake(&self) {
        for _ in 0..WAKES_MAX {
            match self.waker.wake() {
                Ok(()) => return,
                Err(error) => log::error!("the command thread cannot be woken: write: {error}"),
            }
        }
    }
}

/// The command thread has ended.
#[derive(Debug)]
pub(crate) struct Closed;

/// Both ends of a new queue. `waker` wakes the receiver from its sleep in the poll; the receiver
/// may also wait for `device`. Both threads count in `counters`.
pub(crate) fn mailbox(
    waker: mio::Waker,
    device: Option<Arc<VerbsHost>>,
    counters: Arc<Counters>,
) -> (Mailbox, Inbox) {
    let (sender, receiver) = crossbeam_channel::bounded(EVENTS_MAX);
    let shared = Arc::new(Shared {
        room: Semaphore::new(EVENTS_MAX),
        waker,
        sleeping: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        why: Mutex::new(None),
        listen: Notify::new(),
        idle: Notify::new(),
    });
    let mailbox = Mailbox { queue: sender, shared: shared.clone(), counters, device };
    (mailbox, Inbox { queue: receiver, shared })
}

impl Mailbox {
    /// Sends an event, waiting for room.
    pub(crate) async fn send(&self, event: Event) -> Result<(), Closed> {
        self.shared.room.acquire().await.map_err(|_| Closed)?.forget();
        match self.queue.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => return Err(Closed),
            // Each permit stands for a free place.
            Err(TrySendError::Full(_)) => unreachable!("more events than permits"),
        }
        // Pairs with the fence of the receiver: it sees the event, or this thread sees it asleep.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.swap(false, Ordering::Relaxed) {
            self.shared.wake();
        }
        Ok(())
    }

    /// Sends an event that contains the sender for its answer, and waits for the answer.
    pub(crate) async fn ask<T>(
        &self,
        event: impl FnOnce(oneshot::Sender<T>) -> Event,
    ) -> Result<T, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(event(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// As [`ask`](Self::ask), but returns `None` while the command thread waits for the device. The
    /// event stays queued and may be handled later, so it must be one for which that does no harm.
    pub(crate) async fn ask_unless_out<T>(
        &self,
        event: impl FnOnce(oneshot::Sender<T>) -> Event,
    ) -> Result<Option<T>, Closed> {
        let mut answer = pin!(self.ask(event));
        while !self.is_out() {
            if let Ok(answer) = timeout(OUT_LOOK, &mut answer).await {
                return answer.map(Some);
            }
        }
        Ok(None)
    }

    /// Waits until the command thread asks for [`primary::Event::Listened`].
    pub(crate) async fn asked_to_listen(&self) {
        self.shared.listen.notified().await;
    }

    /// Waits until no lock is held while the primary drains.
    pub(crate) async fn idle(&self) {
        self.shared.idle.notified().await;
    }

    /// Counts one event, without asking the command thread.
    pub(crate) fn count(&self, counter: Counter) {
        self.counters.count(counter);
    }

    /// The counters. What clients have counted since the command thread last collected it is
    /// missing.
    pub(crate) fn counters(&self) -> [u64; COUNTERS] {
        self.counters.read()
    }

    /// Whether the command thread waits for the device, and answers no request meanwhile.
    pub(crate) fn is_out(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.is_out())
    }

    /// Whether the command thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.room.is_closed()
    }

    /// Ends the command thread with an error. If this is called several times, the first reason
    /// counts.
    pub(crate) fn stop_because(&self, why: &str) {
        self.shared.why.lock().get_or_insert_with(|| why.to_string());
        self.stop();
    }

    /// Ends the command thread, even if it waits for the device.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(device) = &self.device {
            device.give_up();
        }
        self.shared.wake();
    }
}

/// The receiving side; the command thread's.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Receiver<Event>,
    shared: Arc<Shared>,
}

impl Inbox {
    /// The next event, if one is here.
    pub(crate) fn next(&self) -> Option<Event> {
        let event = self.queue.try_recv().ok()?;
        self.shared.room.add_permits(1);
        Some(event)
    }

    /// The number of events that are here.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Asks for [`primary::Event::Listened`], which comes after every event that has arrived by
    /// now.
    pub(crate) fn listen(&self) {
        self.shared.listen.notify_one();
    }

    /// Reports that no lock is held while the primary drains.
    pub(crate) fn is_idle(&self) {
        self.shared.idle.notify_one();
    }

    /// Whether the command thread is to end.
    pub(crate) fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// The error with which the command thread is to end; `None`: it was stopped.
    pub(crate) fn why(&self) -> Option<String> {
        self.shared.why.lock().take()
    }

    /// Announces that the command thread will sleep; `false`: an event or a stop has come, so it
    /// must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let quiet = self.queue.is_empty() && !self.stopped();
        if !quiet {
            self.awake();
        }
        quiet
    }

    /// Records that the command thread is awake again.
    pub(crate) fn awake(&self) {
        self.shared.sleeping.store(false, Ordering::Relaxed);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.room.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn both() -> (mio::Poll, Mailbox, Inbox) {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let (mailbox, inbox) = mailbox(waker, None, Arc::default());
        (poll, mailbox, inbox)
    }

    fn nothing() -> Event {
        Event::tell(Vec::new())
    }

    #[test]
    fn a_full_queue_makes_the_sender_wait_and_loses_nothing() {
        let (_poll, mailbox, inbox) = both();
        let sent = AtomicUsize::new(0);
        let send_all = async {
            for _ in 0..2 * EVENTS_MAX {
                mailbox.send(nothing()).await.unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        let receive_all = async {
            // The sender goes on until the queue is full.
            while sent.load(Ordering::Relaxed) < EVENTS_MAX {
                tokio::task::yield_now().await;
            }
            let mut received = 0;
            while received < 2 * EVENTS_MAX {
                assert!(sent.load(Ordering::Relaxed) <= received + EVENTS_MAX);
                received += usize::from(inbox.next().is_some());
                tokio::task::yield_now().await;
            }
        };
        runtime().block_on(async { tokio::join!(send_all, receive_all) });
        assert!(inbox.next().is_none());
    }

    #[test]
    fn who_waits_for_a_command_thread_that_ends_is_told() {
        let (_poll, mailbox, inbox) = both();
        runtime().block_on(async {
            for _ in 0..EVENTS_MAX {
                mailbox.send(nothing()).await.unwrap();
            }
            let blocked = mailbox.send(nothing());
            let ends = async { drop(inbox) };
            let (sent, ()) = tokio::join!(blocked, ends);
            assert!(sent.is_err());
            assert!(mailbox.ask(|_: oneshot::Sender<()>| nothing()).await.is_err());
        });
    }

    #[test]
    fn a_sleeper_is_woken_by_an_event_and_does_not_sleep_past_one() {
        let (mut poll, mailbox, inbox) = both();
        let mut events = mio::Events::with_capacity(4);
        assert!(inbox.may_sleep());
        runtime().block_on(mailbox.send(nothing())).unwrap();
        poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
        assert!(!events.is_empty());
        inbox.awake();
        assert!(!inbox.may_sleep(), "an event is here");
        assert!(inbox.next().is_some() && inbox.may_sleep());
        mailbox.stop();
        assert!(!inbox.may_sleep() && inbox.stopped());
    }
}
