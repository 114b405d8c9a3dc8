// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers by their numbers, for all threads of one client instance.
//!
//! ```text
//!   await_answer(seq) ─▶ take ── there ──▶ the answer
//!                          └─ not yet: no leader ───▶ lead: receive for all threads, file it
//!                                      a leader ────▶ follow: sleep until woken, look again
//! ```
//! One of the waiting threads, the leader, receives for all; the others, its followers, sleep on
//! condition variables of their own. A thread that leaves while there is no leader wakes one
//! follower to lead. A listener is called for answers that no thread waits for, and when no thread
//! leads any more.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::memory::exec::{Listening, OnAnswer};
use dlock_core::memory::word_op::Outcome;
use dlock_core::wire::codec::{self, Frame, Kind};
use dlock_core::wire::message::Reply;

use crate::os::clock::{boot_ns, deadline_in, left_until};
use crate::stream::frames::FrameBuffer;

/// Requests and batches at most whose answers were not taken yet.
pub(crate) const PENDING_MAX: usize = 65_536;

/// How long a follower helps before it checks for its answer again.
const HELP: Duration = Duration::from_millis(10);

/// An answer that has come.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The answer to a batch.
    Outcomes(Vec<Outcome>),
    /// The answer to a request, with the local clock before sending and after receiving.
    Reply { reply: Reply, sent_ns: u64, received_ns: u64 },
}

/// The kind of answer that a number will get.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// A batch: this many outcomes.
    Outcomes(usize),
    /// A reply to a request.
    Reply,
    /// The message has no answer.
    Nothing,
}

/// The answers that have come, and the threads that wait for answers.
#[derive(Default)]
pub(crate) struct Inbox {
    pending: HashMap<Seq, Pending>,
    /// Threads that sleep until their answer comes or they are to lead.
    followers: Vec<(Seq, Arc<Condvar>)>,
    /// Condition variables that are not in use now.
    spare: Vec<Arc<Condvar>>,
    /// Whether a thread receives for all.
    pub(crate) led: bool,
    /// The number whose answer the leader waits for.
    leader: Option<Seq>,
    /// Called when an answer has come that no thread waits for.
    listener: Option<OnAnswer>,
    /// Whether the listener is also called when the thread that receives now stops receiving.
    calls_back: bool,
    /// The largest number used so far.
    last_seq: u64,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("pending", &self.pending).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Pending {
    expected: Expected,
    sent_ns: u64,
    answer: Option<Answer>,
}

/// Locks a mutex of this crate.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Code that holds one of these locks does not panic in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the answer to a number.
pub(crate) enum Taken {
    /// The answer, which is not kept.
    Answer(Answer),
    /// The answer has not come yet.
    NotYet,
    /// No answer will come.
    Unexpected,
}

/// A frame is not a valid answer; the channel is broken.
#[derive(Debug, thiserror::Error)]
#[error("a frame has come that is no answer")]
pub(crate) struct NoAnswer;

/// There are too many outstanding answers.
pub(crate) struct TooMany;

/// The session has ended: the answer will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// One end of a channel, whose threads receive for each other.
pub(crate) trait Receiver {
    /// The answers that have come.
    fn inbox(&self) -> &Mutex<Inbox>;

    /// Whether no more answers will come.
    fn is_broken(&self) -> bool;

    /// Receives once for all threads, until `until_ns` if nothing comes. Returns the locked inbox.
    fn receive_for_all(&self, until_ns: u64) -> MutexGuard<'_, Inbox>;

    /// Whether there is work that the sleeping leader does not know of.
    fn needs_help(&self) -> bool {
        false
    }

    /// Does that work, until `until_ns` at most.
    fn help(&self, _until_ns: u64) {}

    /// Leads until something has come. No other thread leads meanwhile.
    fn lead<'a>(
        &'a self,
        mut inbox: MutexGuard<'a, Inbox>,
        until_ns: u64,
    ) -> MutexGuard<'a, Inbox> {
        inbox.led = true;
        drop(inbox);
        let mut inbox = self.receive_for_all(until_ns);
        inbox.led = false;
        inbox
    }

    /// Waits for the answer to `seq`. `Ok(None)`: not in time, or not expected. Checks the answers
    /// that have come once even if the deadline has passed.
    fn await_answer(&self, seq: Seq, until_ns: u64) -> Result<Option<Answer>, Broken> {
        let mut inbox = lock(self.inbox());
        let (mut looked, mut slept) = (false, false);
        let result = loop {
            // In this order, so that answers that came before the session ended count.
            let broken = self.is_broken();
            match inbox.take(seq) {
                Taken::Answer(answer) => break Ok(Some(answer)),
                Taken::Unexpected => break Ok(None),
                Taken::NotYet if broken => break Err(Broken),
                Taken::NotYet => {}
            }
            let now_ns = boot_ns();
            if now_ns >= until_ns && (looked || inbox.led) {
                break Ok(None);
            }
            slept |= now_ns < until_ns;
            if inbox.led && self.needs_help() {
                drop(inbox);
                self.help(until_ns.min(deadline_in(HELP)));
                inbox = lock(self.inbox());
            } else if inbox.led {
                inbox = inbox.follow(seq, until_ns);
            } else {
                inbox.leader = Some(seq);
                inbox = self.lead(inbox, until_ns);
                inbox.leader = None;
                looked = true;
            }
        };
        inbox.pass_on(!slept);
        result
    }

    /// Takes all answers that have come, without waiting; afterwards the descriptors report new
    /// ones. Returns whether work is left to do soon.
    fn take_all(&self) -> bool;

    /// As [`Executor::listen`](dlock_core::memory::exec::Executor::listen).
    fn listen_now(&self, call: Option<&OnAnswer>) -> Result<Listening, Broken> {
        let mut inbox = lock(self.inbox());
        inbox.listener = call.cloned();
        inbox.calls_back = true;
        if inbox.led || call.is_none() {
            return Ok(Listening::Called);
        }
        inbox.led = true;
        drop(inbox);
        let is_again = !self.is_broken() && self.take_all();
        inbox = lock(self.inbox());
        inbox.led = false;
        if inbox.wakes_a_follower() {
            return Ok(Listening::Called);
        }
        inbox.calls_back = false;
        match () {
            () if self.is_broken() => Err(Broken),
            () if is_again => Ok(Listening::Again),
            () => Ok(Listening::Inputs),
        }
    }
}

impl Inbox {
    /// Registers a number for a message that is about to be sent.
    pub(crate) fn expect(&mut self, seq: Seq, expected: Expected) -> Result<(), TooMany> {
        if self.pending.len() >= PENDING_MAX {
            return Err(TooMany);
        }
        self.last_seq = seq.0;
        if !matches!(expected, Expected::Nothing) {
            let pending = Pending { expected, sent_ns: boot_ns(), answer: None };
            self.pending.insert(seq, pending);
        }
        Ok(())
    }

    /// Drops the answer to a number, also when it comes later.
    pub(crate) fn forget(&mut self, seq: Seq) {
        self.pending.remove(&seq);
    }

    /// Takes the answer to a number.
    pub(crate) fn take(&mut self, seq: Seq) -> Taken {
        match self.pending.get_mut(&seq) {
            None => Taken::Unexpected,
            Some(Pending { answer: None, .. }) => Taken::NotYet,
            Some(pending) => match pending.answer.take() {
                Some(answer) => {
                    self.pending.remove(&seq);
                    Taken::Answer(answer)
                }
                None => Taken::NotYet,
            },
        }
    }

    /// Files the answers of all whole frames.
    ///
    /// # Errors
    /// A frame is not a valid answer.
    pub(crate) fn deliver(&mut self, rx: &mut FrameBuffer) -> Result<(), NoAnswer> {
        let received_ns = boot_ns();
        while let Some((kind, payload)) = rx.next().map_err(|_| NoAnswer)? {
            self.file(kind, payload, received_ns)?;
        }
        Ok(())
    }

    /// Files the answer of one frame.
    pub(crate) fn file(
        &mut self,
        kind: Kind,
        payload: &[u8],
        received_ns: u64,
    ) -> Result<(), NoAnswer> {
        // The primary sends only answers here: any other frame is not even parsed.
        if !matches!(kind, Kind::Outcomes | Kind::Reply) {
            return Err(NoAnswer);
        }
        let (seq, frame) = match codec::decode(kind, payload) {
            Ok(Frame::Outcomes(seq, outcomes)) => (seq, Ok(outcomes)),
            Ok(Frame::Reply(seq, reply)) => (seq, Err(reply)),
            _ => return Err(NoAnswer),
        };
        if seq.0 == 0 || seq.0 > self.last_seq {
            return Err(NoAnswer);
        }
        // An answer that was given up, or has come already, is ignored.
        let Some(pending) = self.pending.get_mut(&seq) else { return Ok(()) };
        if pending.answer.is_some() {
            return Ok(());
        }
        pending.answer = Some(match (pending.expected, frame) {
            (Expected::Outcomes(count), Ok(outcomes)) if outcomes.len() == count => {
                Answer::Outcomes(outcomes)
            }
            (Expected::Reply, Err(reply)) => {
                Answer::Reply { reply, sent_ns: pending.sent_ns, received_ns }
            }
            _ => return Err(NoAnswer),
        });
        if !self.wake(seq) && self.leader != Some(seq) {
            self.call_listener();
        }
        Ok(())
    }

    /// Wakes the threads that wait for this number; returns whether there are any.
    pub(crate) fn wake(&self, seq: Seq) -> bool {
        let mut is_awaited = false;
        for (_, follower) in self.followers.iter().filter(|(waits_for, _)| *waits_for == seq) {
            follower.notify_all();
            is_awaited = true;
        }
        is_awaited
    }

    fn call_listener(&self) {
        if let Some(call) = &self.listener {
            call();
        }
    }

    /// Wakes all sleeping threads.
    pub(crate) fn wake_all(&self) {
        self.call_listener();
        for (_, follower) in &self.followers {
            follower.notify_all();
        }
    }

    /// If no thread reads, wakes a sleeping thread to read, or calls the listener. `has_looked`:
    /// the caller did not sleep, so it has taken no event that the listener needs.
    pub(crate) fn pass_on(&mut self, has_looked: bool) {
        if self.led || self.wakes_a_follower() || has_looked && !self.calls_back {
            return;
        }
        self.calls_back = false;
        self.call_listener();
    }

    fn wakes_a_follower(&self) -> bool {
        let first = self.followers.first();
        first.iter().for_each(|(_, follower)| follower.notify_all());
        first.is_some()
    }
}

/// Sleeping as a follower.
pub(crate) trait Follow {
    /// Sleeps until woken, at most `wait`.
    fn follow(self, seq: Seq, until_ns: u64) -> Self;
}

impl Follow for MutexGuard<'_, Inbox> {
    fn follow(mut self, seq: Seq, until_ns: u64) -> Self {
        let me = self.spare.pop().unwrap_or_default();
        self.followers.push((seq, Arc::clone(&me)));
        let (mut inbox, _) =
            me.wait_timeout(self, left_until(until_ns)).unwrap_or_else(PoisonError::into_inner);
        inbox.followers.retain(|(_, other)| !Arc::ptr_eq(other, &me));
        inbox.spare.push(me);
        inbox
    }
}
