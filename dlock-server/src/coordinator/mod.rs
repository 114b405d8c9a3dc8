// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of clients, kept outside this process for its successor.
//!
//! ```text
//!   command thread ──Change──▶ writer thread ──▶ Keeper: a file, or a service
//!        │ its number                 │ kept
//!        ▼                            ▼
//!   control thread: a client is answered once the written list names it
//! ```
//! [`dlock_core::roster`] decides what is kept, how a successor reads it and what the writer does
//! next; this module reads and writes. The writer works when clients come and go, never on the way
//! to a lock. All changes that come during one write are written together by the next.

pub(crate) mod file;
pub(crate) mod standby;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use dlock_core::roster::place::Whose;
use dlock_core::roster::written::{Idle, Trouble, Written};
use dlock_core::roster::{Change, Clients};
use log::Level;
use tokio::sync::watch;

use crate::observe::log_limit::{limited, Cause};

/// The time between two checks whether another primary has taken the place of this one; also
/// between two attempts to write the list.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The storage of the list of clients: a file on this host, or a service that hosts share.
pub(crate) trait Keeper: Send + 'static {
    /// Keeps these changes. `clients` is the whole list, with the changes made.
    ///
    /// # Errors
    /// The changes may not be kept; the next call must keep all of `clients`.
    fn keep(&mut self, changes: &[Change], clients: &Clients) -> io::Result<()>;

    /// Whether the list is still where it was kept.
    fn is_in_place(&self) -> bool {
        true
    }

    /// The ownership of the list.
    fn place(&self) -> Arc<dyn Place>;
}

/// The ownership of the list of clients. It ends when another primary takes the place of this one.
pub(crate) trait Place: std::fmt::Debug + Send + Sync {
    /// Which primary owns the clients now. Called often.
    fn whose(&self) -> Whose;

    /// Whether this primary owns the clients for sure.
    #[cfg(test)]
    fn is_mine(&self) -> bool {
        self.whose() == Whose::Mine
    }
}

/// The way to the writer thread. Without a keeper nothing is kept.
#[derive(Debug)]
pub(crate) struct Roster {
    changes: Option<Sender<Change>>,
    /// How many changes were passed to [`tell`](Self::tell) so far.
    told: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Reports what the writer thread has written.
#[derive(Clone, Debug)]
pub(crate) struct Receipts {
    place: Option<Arc<dyn Place>>,
    told: Arc<AtomicU64>,
    written: watch::Receiver<Written>,
}

impl Receipts {
    /// Waits until every change that was passed to [`Roster::tell`] by now is written.
    ///
    /// # Errors
    /// A change cannot be written.
    pub(crate) async fn all_kept(&self) -> Result<(), ()> {
        let told = self.told.load(Ordering::Acquire);
        let mut written = self.written.clone();
        let written = written.wait_for(|written| written.is_kept(told).is_some()).await;
        match written.ok().and_then(|written| written.is_kept(told)) {
            Some(true) => Ok(()),
            Some(false) | None => Err(()),
        }
    }
}

impl Receipts {
    /// Whether the last change could not be written; the writer tries again and again.
    pub(crate) fn is_failing(&self) -> bool {
        self.written.borrow().is_failing()
    }

    /// Whether this primary still owns its clients, and so may answer one ([`Whose::may_answer`]).
    pub(crate) fn may_answer(&self) -> bool {
        self.place.as_ref().is_none_or(|place| place.whose().may_answer())
    }

    /// Waits until another primary has taken the place of this one.
    pub(crate) async fn replaced(&self) {
        let mut written = self.written.clone();
        if written.wait_for(Written::is_replaced).await.is_err() {
            std::future::pending::<()>().await; // the writer thread has ended
        }
    }
}

impl Roster {
    /// Starts the writer thread with this list.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        keeper: Option<Box<dyn Keeper>>,
        clients: Clients,
    ) -> io::Result<(Self, Receipts)> {
        let (progress, written) = watch::channel(Written::default());
        let told = Arc::new(AtomicU64::new(0));
        let place = keeper.as_ref().map(|keeper| keeper.place());
        let receipts = Receipts { place, told: Arc::clone(&told), written };
        let Some(keeper) = keeper else {
            progress.send_replace(Written::nowhere());
            return Ok((Self { changes: None, told, thread: None }, receipts));
        };
        let (sender, receiver) = channel();
        let work = move || write(keeper, clients, &receiver, &progress);
        let thread = Builder::new().name("dlock-roster".to_string()).spawn(work)?;
        Ok((Self { changes: Some(sender), told, thread: Some(thread) }, receipts))
    }

    /// Passes a change to the writer thread.
    pub(crate) fn tell(&self, change: Change) {
        self.told.fetch_add(1, Ordering::Release);
        if let Some(changes) = &self.changes {
            let _ = changes.send(change); // without a writer nothing is kept
        }
    }
}

impl Drop for Roster {
    /// Waits until every change is written, or a write has failed.
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported when it happened
        }
    }
}

fn write(
    mut keeper: Box<dyn Keeper>,
    mut clients: Clients,
    changes: &Receiver<Change>,
    progress: &watch::Sender<Written>,
) {
    let mut written = Written::default();
    let place = keeper.place();
    loop {
        let first = match changes.recv_timeout(LOOK_EVERY) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let was_replaced = written.is_replaced();
                let idle = written.idle(place.whose(), || keeper.is_in_place());
                if written.is_replaced() != was_replaced {
                    progress.send_replace(written);
                }
                match idle {
                    Idle::Rests => continue,
                    Idle::WritesAgain => None,
                }
            }
        };
        let was_removed = written.is_removed(|| keeper.is_in_place());
        let together: Vec<Change> = first.into_iter().chain(changes.try_iter()).collect();
        together.iter().for_each(|change| change.apply(&mut clients));
        let kept = keeper.keep(&together, &clients);
        let whose = place.whose();
        let trouble = written.wrote(together.len() as u64, kept.is_ok(), was_removed, whose);
        if let Some(trouble) = trouble {
            report(trouble, kept.err());
        }
        progress.send_replace(written);
    }
}

fn report(trouble: Trouble, error: Option<io::Error>) {
    let what = match trouble {
        Trouble::Removed => {
            "files of the state were removed or exchanged while this primary serves: they are \
             written again; leave them to the primary"
        }
        Trouble::Failing => "clients are refused: who they are cannot be kept",
        Trouble::Unseen => {
            "no client is answered: whether another primary has taken this one's place cannot be \
             seen"
        }
    };
    let why = error.map(|error| format!(": {error}")).unwrap_or_default();
    limited!(Cause::Roster, Level::Error, "{what}{why}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ids::ClientId;
    use dlock_core::wire::control::Secret;
    use std::sync::Mutex;

    fn joined(n: u32, secret: u8) -> Change {
        let (client, secret) = (ClientId::new(n).unwrap(), Secret([secret; 16]));
        Change::Joined { client, secret, horizon_s: 9, identity: None }
    }

    #[derive(Clone, Debug)]
    struct Slow(Arc<Mutex<(Vec<usize>, bool)>>);

    impl Keeper for Slow {
        fn keep(&mut self, changes: &[Change], _: &Clients) -> io::Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut seen = self.0.lock().unwrap();
            seen.0.push(changes.len());
            match seen.1 {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }

        fn place(&self) -> Arc<dyn Place> {
            Arc::new(self.clone())
        }
    }

    impl Place for Slow {
        fn whose(&self) -> Whose {
            match self.0.lock().unwrap().1 {
                true => Whose::Anothers,
                false => Whose::Mine,
            }
        }
    }

    /// A disk that takes no writes for a while, because it is full.
    struct Full(Arc<AtomicU64>);

    #[derive(Debug)]
    struct Mine;

    impl Place for Mine {
        fn whose(&self) -> Whose {
            Whose::Mine
        }
    }

    impl Keeper for Full {
        fn keep(&mut self, _: &[Change], _: &Clients) -> io::Result<()> {
            let left =
                self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            left.map_or(Ok(()), |_| Err(io::ErrorKind::StorageFull.into()))
        }

        fn place(&self) -> Arc<dyn Place> {
            Arc::new(Mine)
        }
    }

    #[tokio::test]
    async fn what_could_not_be_kept_is_kept_as_soon_as_it_can_be() {
        let fails = Arc::new(AtomicU64::new(3));
        let keeper: Box<dyn Keeper> = Box::new(Full(Arc::clone(&fails)));
        let (roster, mut receipts) = Roster::start(Some(keeper), Clients::new()).unwrap();
        roster.tell(joined(1, 1));
        assert_eq!(receipts.all_kept().await, Err(()));
        let kept = receipts.written.wait_for(|written| !written.is_failing()).await;
        let kept = kept.unwrap();
        assert_eq!((kept.is_kept(1), kept.is_kept(2)), (Some(true), None), "one change");
        assert_eq!(fails.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn changes_are_kept_together_and_who_waits_is_told_or_refused() {
        let seen = Arc::new(Mutex::new((Vec::new(), false)));
        let keeper: Box<dyn Keeper> = Box::new(Slow(Arc::clone(&seen)));
        let (roster, receipts) = Roster::start(Some(keeper), Clients::new()).unwrap();
        (0..100).for_each(|n| roster.tell(joined(n + 1, 1)));
        assert_eq!(receipts.all_kept().await, Ok(()));
        assert!(seen.lock().unwrap().0.len() < 50, "they are written together");
        seen.lock().unwrap().1 = true;
        roster.tell(joined(1, 2));
        assert_eq!(receipts.all_kept().await, Err(()));
        assert!(receipts.is_failing() && !receipts.may_answer());
        receipts.replaced().await;
        seen.lock().unwrap().1 = false;
        roster.tell(joined(1, 3));
        assert_eq!(receipts.all_kept().await, Ok(()));
        assert!(!receipts.is_failing());
        drop(roster);
        assert_eq!(seen.lock().unwrap().0.iter().sum::<usize>(), 102);
        let (none, receipts) = Roster::start(None, Clients::new()).unwrap();
        none.tell(joined(1, 1));
        assert_eq!(receipts.all_kept().await, Ok(()));
    }
}
