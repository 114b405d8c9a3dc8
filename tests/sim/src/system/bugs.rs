// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mistakes with which a schedule can be run, to prove that the checkers notice them: mistakes
//! of a driver (executor, client library, server) are here; rules of the core that are switched off
//! are in `dlock_core::planted`.

macro_rules! driver_bugs {
    ($($field:ident = $name:literal, $rule:literal;)*) => {
        /// Mistakes of a driver that a schedule is run with.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Bugs { $(#[doc = $rule] pub $field: bool,)* }

        /// Every mistake of a driver: its name, and the rule that it breaks.
        pub const DRIVER_BUGS: &[(&str, &str)] = &[$(($name, $rule),)*];

        impl Bugs {
            /// The set of driver mistakes with only the one of this name; `None`: there is no such
            /// mistake.
            pub fn named(name: &str) -> Option<Bugs> {
                match name {
                    $($name => Some(Bugs { $field: true, ..Bugs::default() }),)*
                    _ => None,
                }
            }
        }
    };
}

driver_bugs! {
    split_cas = "nic-cpu-mix", "one memory has one atomicity domain";
    wall_clock = "wall-clock-leases", "no step of a wall clock matters";
    no_uncertainty =
        "no-epsilon",
        "a client knows how uncertain its estimate of the server clock is";
    monotonic_clock =
        "suspend-not-counted",
        "a client's own clock counts the time in which its machine was suspended";
    open_gate = "open-gate", "a successor's memory refuses one-sided chains until it has recovered";
    lost_beside_fenced =
        "lost-beside-fenced",
        "a release that is told has taken effect, whichever other client was fenced";
    release_in_doubt =
        "release-in-doubt",
        "a lock is given back when everything about it is answered";
    object_in_doubt =
        "object-release-in-doubt",
        "an object is given back when every operation on it is answered";
    object_release_kept =
        "object-release-kept",
        "a reference whose release was not answered is not used any more";
}

/// The bugs that `all` shows too rarely, and the scenarios that show them.
#[cfg(feature = "planted")]
const ELSEWHERE: &[(&str, &str)] = &[
    ("earlier-claim-counts", "quiet"),
    ("claim-lapses", "notes"),
    ("lapsed-claim-renewed", "handover"),
    ("returns-in-vain", "recovery"),
    ("claims-unawaited", "quiet"),
    ("stopped-awaited", "recovery"),
    ("recount-once", "partition"),
    ("unheard-unsettled", "horizon"),
    ("extended-on-other-clock", "jumps"),
    ("promoted-unheard", "standby"),
    ("objects-mapped", "rules"),
    ("highest-quota", "rules"),
    ("note-needs-right", "rules"),
    ("counted-untold", "jumps"),
    ("predecessors-promise", "heirs"),
    ("turn-kept", "flood"),
    ("pace-ignored", "flood"),
    ("debt-paid-twice", "flood"),
    ("disjoint-kept", "jumps"),
    ("fence-trusted", "standby"),
    ("replaced-taken", "standby"),
    ("right-unchecked", "rules"),
    ("waits-uncounted", "rules"),
    ("prepared-kept", "prepared"),
    ("late-show-moves", "prepared"),
    ("moves-unshown", "prepared"),
    ("promise-shortened", "prepared"),
    ("removed-lease-ends", "taken"),
    ("drain-takes", "taken"),
    ("drain-queues", "taken"),
    ("drain-keeps-waits", "taken"),
    ("renewal-outlives", "renewals"),
    ("renewed-after-unlock", "renewals"),
    ("renewal-tried-once", "renewals"),
    ("renewal-ends-with-session", "renewals"),
    ("renewal-unbounded", "renewals"),
    ("lost-undeclared", "renewals"),
    ("local-end-in-seconds", "renewals"),
    ("loss-untold", "events"),
    ("contended-untold", "events"),
    ("contended-late", "events"),
    ("question-lost", "events"),
    ("token-before-cas", "tokens"),
    ("end-uncounted", "tokens-few"),
    ("downgrade-uncounted", "downgrades"),
    ("downgrade-in-two", "downgrades"),
    ("downgraded-unopened", "downgrades"),
    ("downgrade-unnoted", "downgrades"),
    ("downgrade-unclaimed", "downgrades-lost"),
    ("end-counted-late", "tokens"),
    ("hand-over-without-token", "tokens"),
    ("last-token-given-again", "tokens-few"),
    ("shared-token-forgotten", "tokens-few"),
    ("doubtful-token-claimed", "tokens"),
    ("reserve-ignored", "tokens-few"),
    ("lap-keeps-fence", "tokens-laps"),
    ("wanted-ignored", "caches"),
    ("served-unsure", "caches-any"),
    ("cache-outlives-lease", "caches"),
    ("idle-forgotten", "caches"),
    ("token-kept", "caches-tokens"),
    ("unfenced-undone", "unfenced"),
    ("unfenced-attached", "unfenced"),
    ("unfenced-forgotten", "unfenced"),
    ("unfenced-not-tried", "unfenced"),
];

/// The name of the scenario in which a search looks for this bug.
#[cfg(feature = "planted")]
pub fn scenario_of(name: &str) -> &'static str {
    ELSEWHERE.iter().find(|bug| bug.0 == name).map_or("all", |bug| bug.1)
}

/// Every bug that can be planted: its name, and the rule that it breaks.
#[cfg(feature = "planted")]
pub fn plantable() -> Vec<(&'static str, &'static str)> {
    use dlock_core::planted::{OF_LAPS, OF_UNITS, UNFOUND};
    let is_simulated = |bug| ![OF_LAPS, OF_UNITS, UNFOUND].concat().contains(&bug);
    let core = dlock_core::planted::BUGS.iter().filter(|bug| is_simulated(bug.0));
    let core = core.map(|&(_, name, rule)| (name, rule));
    core.chain(DRIVER_BUGS.iter().copied()).collect()
}

/// Plants a bug of the core on this thread; returns the mistakes of a driver with which to call
/// [`run`](super::run). `None`: there is no such bug. An empty name plants nothing.
#[cfg(feature = "planted")]
pub fn plant(name: &str) -> Option<Bugs> {
    let core = dlock_core::planted::BUGS.iter().find(|bug| bug.1 == name);
    dlock_core::planted::plant(core.map(|bug| bug.0));
    match core.is_some() || name.is_empty() {
        true => Some(Bugs::default()),
        false => Bugs::named(name),
    }
}
