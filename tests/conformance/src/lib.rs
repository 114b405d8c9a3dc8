// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every executor owes its users, written once against the trait.
//!
//! ```text
//!   conformance!(shm, || …Fixture…)   one test per property of `suite`
//!        │
//!     Fixture ── client() ──▶ dyn Executor ──▶ the memory under test
//!        └────── memory() ──▶ dyn LockMemory ─────────┘  (the primary's view of it)
//! ```
//! [`sim::SimFabric`] is the plainest executor there is; [`primary::TestPrimary`] is just enough
//! of a primary to stand behind the shm and tcp executors, and [`verbs::VerbsPrimary`] behind that
//! of verbs, and [`sealed::SealedPrimary`] behind the sealed one.
#![forbid(unsafe_code)]

use dlock_core::clock::Lease;
use dlock_core::ids::{ClientId, Handle, Slot};
use dlock_core::memory::exec::{Executor, LockMemory};
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::wire::message::{Mode, Request, WaitNumber};

#[path = "../../../dlock-server/tests/common/certs.rs"]
mod certs;
mod desk;
mod device;
pub mod primary;
pub mod sealed;
pub mod sim;
pub mod suite;
pub mod verbs;

/// The number of slots on which a fixture's clients may operate; all words are zero at first.
pub const SLOTS: u32 = 64;
/// The number of entries that a client may write in its ledger.
pub const HANDLES: u32 = 64;

/// A client of the memory under test.
pub struct Client {
    /// The id of the client.
    pub id: ClientId,
    /// The executor of the client.
    pub executor: Box<dyn Executor>,
}

/// The places of the words and entries that the suite uses.
pub trait Layout: Sync {
    /// The word that the suite calls slot `n`.
    fn addr(&self, n: u32) -> WordAddr {
        WordAddr::new(Slot(n), Word::W0)
    }

    /// The entry that the suite calls handle `n`.
    fn handle(&self, n: u32) -> Handle {
        Handle(n)
    }

    /// A word that no client may touch.
    fn outside(&self) -> WordAddr {
        WordAddr::from_index(u32::MAX)
    }
}

/// The plain [`Layout`]: what the suite calls slot `n` or handle `n` has the number `n` in the
/// memory, too.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl Layout for Direct {}

/// A memory under test, with any number of clients.
pub trait Fixture: Layout {
    /// A new client that may use slots and handles 0 to [`SLOTS`] and [`HANDLES`].
    fn client(&self) -> Client;

    /// Lends the primary's view of the memory.
    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory));

    /// A request that is not answered before its [`unblock`](Self::unblock) was sent.
    fn blocked(&self, n: u32) -> Request {
        Request::Wait {
            handle: self.handle(n),
            mode: Mode::Exclusive,
            lease: Lease::secs(60),
            wait: WaitNumber(n),
            ticket: None,
        }
    }

    /// The request that makes the primary answer [`blocked`](Self::blocked).
    fn unblock(&self, n: u32) -> Request {
        Request::Cancel { handle: self.handle(n), wait: WaitNumber(n) }
    }

    /// A text with which another process can become a client; `None`: it cannot.
    fn invitation(&self) -> Option<String> {
        None
    }
}

/// Makes a test of each property, in a module with the executor's name. `optional`: the fixture is
/// an `Option`, and without one the tests do nothing.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $fixture:expr) => {
        $crate::conformance!($module, optional Some($fixture));
    };
    ($module:ident, optional $fixture:expr) => {
        mod $module {
            $crate::conformance!(@tests $fixture;
                verbs_do_what_they_say,
                a_single_verb_is_a_chain_of_one,
                arithmetic_wraps,
                a_chain_is_executed_in_order,
                a_full_batch_is_executed_in_order,
                an_empty_batch_is_nothing,
                notes_and_chains_of_one_thread_keep_their_order,
                an_address_outside_is_refused_without_effect,
                notes_reach_only_the_own_ledger,
                posted_chains_finish_once_and_in_order,
                a_ping_tells_the_time,
                an_unexpected_number_is_never_waited_for,
                an_answer_nobody_waits_for_is_heard_of,
                replies_go_to_those_who_asked,
                forgotten_replies_do_no_harm,
                sums_are_exact_with_a_client_per_thread,
                sums_are_exact_with_one_client_for_all_threads,
                increments_by_compare_and_swap_are_exact,
            );
        }
    };
    (@tests $fixture:expr; $($property:ident,)*) => {$(
        #[test]
        fn $property() {
            if let Some(fixture) = $fixture {
                $crate::suite::$property(&fixture);
            }
        }
    )*};
}
