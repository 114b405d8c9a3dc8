// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operation of a [`GuardWait`](super::GuardWait) waits for.

use std::sync::Arc;

use dlock_core::ids::Seq;
use dlock_core::memory::exec::Executor;

use crate::execute::Asked;

/// The answer to a request, or the outcome of a chain.
pub(super) enum Awaits {
    /// `grant`: whether the reply is a grant, which may take long.
    Reply {
        asked: Asked,
        grant: bool,
    },
    Outcome {
        seq: Seq,
        exec: Arc<dyn Executor>,
    },
}

impl Awaits {
    pub(super) fn exec(&self) -> &Arc<dyn Executor> {
        match self {
            Self::Reply { asked, .. } => &asked.exec,
            Self::Outcome { exec, .. } => exec,
        }
    }

    /// Gives the answer up.
    pub(super) fn forget(&mut self) {
        match self {
            Self::Reply { asked, .. } => {
                asked.take_ping();
                asked.exec.forget(asked.seq);
            }
            Self::Outcome { seq, exec } if !exec.is_one_sided() => exec.forget(*seq),
            Self::Outcome { .. } => {}
        }
    }
}
