// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place where the driver leaves the result of a future.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The slot in which a result is left for a future.
pub(super) struct Slot<T>(Mutex<SlotState<T>>);

pub(super) enum SlotState<T> {
    Awaited(Option<Waker>),
    Filled(T),
    /// The future has taken the result, or does not want it any more.
    Closed,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(SlotState::Awaited(None)))
    }

    pub(super) fn is_dropped(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Closed)
    }

    /// Leaves the result for the future. Hands it back if the future does not want it.
    pub(super) fn fill(&self, result: T) -> Option<T> {
        let mut state = self.0.lock();
        match &mut *state {
            SlotState::Awaited(waker) => {
                let waker = waker.take();
                *state = SlotState::Filled(result);
                drop(state);
                if let Some(waker) = waker {
                    // a waker is code of the program: a panic there is reported, and harms no other
                    // future
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
                None
            }
            SlotState::Filled(_) | SlotState::Closed => Some(result),
        }
    }

    /// Marks the result as not wanted any more; returns the state before.
    pub(super) fn close(&self) -> SlotState<T> {
        std::mem::replace(&mut *self.0.lock(), SlotState::Closed)
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        if let SlotState::Awaited(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, SlotState::Closed) {
            SlotState::Filled(result) => Poll::Ready(result),
            // the future was polled after its end
            SlotState::Awaited(_) | SlotState::Closed => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as a program's own code may")
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_result() {
        let (slot, waker) = (Slot::new(), Waker::from(Arc::new(Panics)));
        let context = Context::from_waker(&waker);
        assert!(slot.poll(&context).is_pending());
        assert_eq!(slot.fill(5), None);
        assert_eq!(slot.poll(&context), Poll::Ready(5));
    }
}
