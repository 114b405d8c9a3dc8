// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs: the simulator can switch every safety rule off, one at a time, to prove that it
//! would notice the bug. Without the feature `planted-bugs` (it is off in everything that is
//! shipped) `is` is a constant `false`, and no rule can be switched off.

macro_rules! bugs {
    ($($bug:ident = $name:literal, $rule:literal;)*) => {
        /// A rule that can be switched off: the planted bug that breaks it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $(#[doc = $rule] $bug,)* }

        /// Every bug: its name, and the rule that it breaks.
        pub const BUGS: &[(Bug, &str, &str)] = &[$((Bug::$bug, $name, $rule),)*];
    };
}

bugs! {
    KeptPastQueue =
        "kept-past-queue",
        "a lock that others wait for is not kept";
    WantedIgnored =
        "wanted-ignored",
        "a kept lock that others want is given back";
    ServedUnsure =
        "served-unsure",
        "a kept lock is entered and left without a message only while it surely lasts";
    CacheOutlivesLease =
        "cache-outlives-lease",
        "a kept lock serves an acquire only for the whole lease";
    IdleForgotten =
        "idle-forgotten",
        "what the client has kept and does not claim is undone";
    DrainKeeps =
        "drain-keeps",
        "in a drain no client keeps what it releases";
    TokenKept =
        "token-kept",
        "each exclusive hold has a token of its own, also of a client that keeps the lock";
    RenewalOutlives =
        "renewal-outlives",
        "the renewal of a hold ends with the hold";
    RenewedAfterUnlock =
        "renewed-after-unlock",
        "a hold whose end was asked for is not renewed, also if no primary has answered";
    RenewalTriedOnce =
        "renewal-tried-once",
        "a renewal without an answer is tried again while the lease runs";
    RenewalEndsWithSession =
        "renewal-ends-with-session",
        "a renewal goes on after a failover and in a new session";
    RenewalUnbounded =
        "renewal-unbounded",
        "a lease is not renewed beyond the bound that its program has set";
    LossUntold =
        "loss-untold",
        "a loss is told before the next grant";
    ContendedUntold =
        "contended-untold",
        "a client that listens is told when others come to wait for its lock";
    ContendedLate =
        "contended-late",
        "what was asked about one hold is not told of the next";
    QuestionKept =
        "question-kept",
        "what a client has asked on one channel is not answered on the next";
    QuestionLost =
        "question-lost",
        "a question without an answer is asked again";
    DeadlineUntold =
        "deadline-untold",
        "a client that listens is told by when an operator wants its lock back";
    ProgressUntold =
        "progress-untold",
        "a recovering primary says how many clients have told what they hold";
    TakenAwayUntold =
        "taken-away-untold",
        "a hold that an operator has taken away is told as such";
    LostUndeclared =
        "lost-undeclared",
        "a hold that cannot be renewed is given up before its lease ends";
    TokenBeforeCas =
        "token-before-cas",
        "the token of an atomic lock is taken after the word names its client";
    EndUncounted =
        "end-uncounted",
        "the arbiter counts the end of an exclusive hold";
    DowngradeUncounted =
        "downgrade-uncounted",
        "a downgrade counts the end of the exclusive hold";
    DowngradeInTwo =
        "downgrade-in-two",
        "a downgrade is one change of the word";
    DowngradedUnopened =
        "downgraded-unopened",
        "an exclusive ticket of a fair lock that was made a share is awaited by the next writer";
    DowngradeUnnoted =
        "downgrade-unnoted",
        "the arbiter writes the share of a downgrade into the client's ledger";
    DowngradeUnclaimed =
        "downgrade-unclaimed",
        "a client that has asked for a downgrade claims a share at a successor";
    EndCountedLate =
        "end-counted-late",
        "a client counts the end of its exclusive hold before it frees the word";
    HandOverWithoutToken =
        "hand-over-without-token",
        "the arbiter counts the atomic locks that it grants";
    LastTokenGivenAgain =
        "last-token-given-again",
        "a lock that is made anew starts above the last token of the one before";
    SharedTokenForgotten =
        "shared-token-forgotten",
        "clients that join the readers of a lock after a failover have their token";
    DoubtfulTokenClaimed =
        "doubtful-token-claimed",
        "a claim has a token only where its client is sure of the hold";
    ReserveIgnored =
        "reserve-ignored",
        "the tokens of a primary are above those that its predecessor reserved";
    FenceUnchecked =
        "fence-unchecked",
        "the primary counts the end of an exclusive hold for its owner alone";
    LapKeepsFence =
        "lap-keeps-fence",
        "a new lap of a fair lock starts above the tokens of the one before";
    AtomicReleaseUnchecked =
        "atomic-release-unchecked",
        "a release takes effect only on the releaser's own word";
    HostClockTrusted =
        "host-clock-trusted",
        "a client on the primary's host learns the server clock from an exchange";
    RemovedReturns =
        "removed-returns",
        "a client that an operator has removed does not come back to its leases";
    RemovedLeaseEnds =
        "removed-lease-ends",
        "a lease of a client that an operator has removed lasts, unless it is to end at once";
    GraceIgnored =
        "grace-ignored",
        "a client has the time in which an operator wants something back";
    GivenBackRemoved =
        "given-back-removed",
        "a client that has given the lock back in time is not removed for it";
    AdminUnchecked = "admin-unchecked", "to operate the primary over the network needs a right";
    DrainTakes = "drain-takes", "in a drain no client takes a lock by itself";
    DrainQueues = "drain-queues", "in a drain no client is queued";
    DrainKeepsWaits = "drain-keeps-waits", "a drain ends what clients wait for";
    DrainLapses =
        "drain-lapses",
        "a drain leaves a client where it is that would lose what has no lease";
    IdleTooSoon =
        "idle-too-soon",
        "a primary is not idle while a client may take locks without it";
    OrphansEnd =
        "orphans-end",
        "leases of a process that may live outlast its connections";
    ClaimRevived =
        "claim-revived",
        "what a recovery keeps of a lease is not told beyond the lease's end";
    TriesForEver =
        "tries-for-ever",
        "a client that has lost against many holds of others queues, and no client passes it";
    SleepersUntold =
        "sleepers-untold",
        "the word of a fair lock says that a client sleeps at the arbiter";
    ProofNotKept =
        "proof-not-kept",
        "what is kept of a client has the proof that the client uses";
    StoppedAwaited =
        "stopped-awaited",
        "a recovery does not wait for a client that may not act any more and cannot be fenced";
    ClaimsUnawaited =
        "claims-unawaited",
        "a recovery waits for a client that was cut off before it had claimed what it holds";
    ReturnsInVain =
        "returns-in-vain",
        "a client that comes back and cannot be let in keeps everything it has";
    PlaceOutlasts =
        "place-outlasts",
        "the place of a client whose channel has ended is kept for a grace, not for its lease";
    LapsedGrantKept =
        "lapsed-grant-kept",
        "a ticket that lapsed is asked to be undone: it may have been granted";
    ClaimOverTrusted =
        "claim-over-trusted",
        "a client relies on a turn only while the claim runs that its ledger held before";
    ClaimShort = "claim-short", "a ledger claims the turn for the whole lease";
    ClaimAfterTicket = "claim-after-ticket", "the ledger has the claim before the ticket is taken";
    LateExtendCounts =
        "late-extend-counts",
        "a later end counts if its write is known complete while the earlier one runs";
    LateReleaseByClient =
        "late-release-by-client",
        "a fair release whose lease may be over is the arbiter's";
    ToldIgnored =
        "told-ignored",
        "a word that says that a client sleeps is the arbiter's to change";
    ToldReleaseFails =
        "told-release-fails",
        "a release that found its turn is a success";
    DecidedFromLater =
        "decided-from-later",
        "the arbiter changes the turn from the very word that it has decided by";
    HeadClaimIgnored =
        "head-claim-ignored",
        "an exclusive number is passed when no claim is left that may own it";
    HeadBeforeShares =
        "head-before-shares",
        "an exclusive number is passed when no share before it can be relied on";
    LiveSharesPassed =
        "live-shares-passed",
        "a share that a client may rely on is not counted as done";
    PassedCounts = "passed-counts", "a share that was counted as done is refused";
    CountedUntold =
        "counted-untold",
        "a client that does not know that its share was counted releases it through the arbiter";
    NoTimer =
        "no-timer",
        "a fair lock that is waited for is looked at again, without a message";
    LapsedClaimRenewed =
        "lapsed-claim-renewed",
        "a claim that was over is not renewed by its client: the arbiter is asked";
    HadTurnForgotten =
        "had-turn-forgotten",
        "a release that found its turn in time is a success whatever follows";
    HighIsTicket = "high-is-ticket", "a number from the divert point on is no ticket";
    LapOverEntries =
        "lap-over-entries",
        "the lanes start again only when no ledger has an entry, also none that is over";
    ParksUnsaid = "parks-unsaid", "a client says in the word that it sleeps on it";
    ParkedUnwoken = "parked-unwoken", "a release wakes clients that sleep on the word";
    ClaimLapses =
        "claim-lapses",
        "what a ledger claims of a fair lock outlasts a session as a lease does";
    StealPastQueue = "steal-past-queue", "no client takes an expired hold over past a queue";
    ThiefWithoutEpsilon = "thief-without-epsilon", "a thief waits for its clock's uncertainty";
    UnknownIsFailure = "unknown-is-failure", "a lost answer is neither success nor failure";
    LateSuccess = "late-success", "success means a running lease";
    DoorbellLost =
        "doorbell-lost",
        "a chain refused by a session that is over has an unknown outcome";
    GivenUpKept = "given-up-kept", "what an operation that was given up did is undone";
    ToldLate =
        "told-late",
        "a result that is told later than it was decided is judged once more";
    ReentryUndone =
        "reentry-undone",
        "a hold that its caller knows of is not undone before the caller is told";
    LedgerLate =
        "ledger-late",
        "a ledger entry is written before the chain or request that follows it";
    StaleClock =
        "stale-clock",
        "a fair lock's outcome is judged by a clock read after it came";
    LeftUsed =
        "left-used",
        "a lock that may be released is not operated on, and is got where the primary has it";
    NoRepublish =
        "no-ledger-rewrite",
        "a new channel carries again what the old one may have lost";
    ClaimOnNewClock =
        "claim-on-new-clock",
        "a claim's lease is counted on the clock that its deadline is of";
    FailoverUntold =
        "failover-untold",
        "a client tells a successor everything before it says that it has";
    FailoverStays = "failover-stays", "a client without a primary looks for one again and again";
    UnheardForgotten =
        "unheard-forgotten",
        "what was released without a primary is undone when there is one";
    UnheardSucceeds =
        "unheard-succeeds",
        "a release that is not answered is a success only while no other client can have the lock";
    PartlyUnjudged =
        "partly-unjudged",
        "a release that leaves a lock held says so only while no other client can have the lock";
    ReleaseUnjudged =
        "release-unjudged",
        "a release is judged by the horizon after it took effect";
    UnheardUnsettled =
        "unheard-unsettled",
        "what was released without a primary is undone once that answers again";
    ExtendInDoubt = "extend-in-doubt", "a release in doubt is resolved before an extend";
    ReleaseIgnoresBit =
        "release-ignores-bit",
        "a client's release does not touch a word with the waiters bit";
    ExtendShortens = "extend-shortens", "an extend makes no lease shorter";
    ExtendDropsBit = "extend-drops-bit", "an extend keeps the waiters bit";
    AtomicCancelKeepsBit =
        "atomic-cancel-keeps-bit",
        "the last cancelled wait clears the waiters bit";
    HandOverDropsBit = "hand-over-drops-bit", "a hand-over keeps the waiters bit for those behind";
    ForgetKeepsWaits = "forget-keeps-waits", "a client that is gone is not queued any more";
    RwReleaseKeepsLease =
        "rw-release-keeps-lease",
        "a share with a lease leaves the count once";
    RwLeaseCutShort =
        "rw-lease-cut-short",
        "a hold of a read-write lock with a lease lasts through the tick of its deadline";
    RwExtendRevives =
        "rw-extend-revives",
        "a hold of a read-write lock that is over is not extended";
    RwReleaseUnchecked =
        "rw-release-unchecked",
        "a late release of a read-write lock ends no other hold";
    RwLeaseNotClaimed =
        "rw-lease-not-claimed",
        "a hold of a read-write lock with a lease has its end at a successor, too";
    RwSharedIgnoresBit = "rw-shared-ignores-bit", "a reader that sees the waiters bit steps back";
    RwSharedIgnoresOwner = "rw-shared-ignores-owner", "a reader that sees an owner steps back";
    RwGrantIgnoresReaders =
        "rw-grant-ignores-readers",
        "a writer is granted when no reader is left";
    RwResolveKeepsHold =
        "rw-resolve-keeps-hold",
        "a grant that reaches a client that gave up is undone";
    NoStepBackWake =
        "no-step-back-wake",
        "a client that steps back from a free lock wakes its waiters";
    NoReleaseWake = "no-release-wake", "the last reader wakes the waiters";
    NoLook = "no-look", "a lock that is waited for is looked at every second";
    RecountSkipped =
        "recount-skipped",
        "an ambiguous ledger entry of a client that is gone makes the count suspect";
    RecountTrustsIntents =
        "recount-trusts-intents",
        "a recount waits until no ledger is between two states";
    RecountOnce = "recount-once", "a recount reads all ledgers twice";
    RecountUnstamped =
        "recount-unstamped",
        "no two chains of a client on the readers' count leave the same ledger entry";
    ClaimedShareForgotten =
        "claimed-share-forgotten",
        "what was claimed in recovery is in its client's ledger";
    PrimaryNotesNothing =
        "primary-notes-nothing",
        "what a chain took that the primary executed is in the ledger at once";
    AskedAgainShort =
        "asked-again-short",
        "a fair grant that is asked for again lasts as long as is asked";
    FairReleaseUnchecked =
        "fair-release-unchecked",
        "the arbiter checks a release against ledger and records";
    EndInSeconds =
        "end-in-seconds",
        "a hold ends with the tick of its deadline, and not with the second that the tick is in";
    LocalEndInSeconds =
        "local-end-in-seconds",
        "the end of a lease on the client's own clock is as exact as the deadline";
    LeaseShortened = "lease-shortened", "a lease lasts as long as it was asked for";
    FairBarge = "fair-barge", "a fair ticket is served only when those before it are done";
    RetryExecutedTwice = "retry-executed-twice", "a request that arrives twice is executed once";
    SlotReusedEarly = "slot-reused-early", "a slot is reused when every client has released it";
    ObjectSlotReusedEarly =
        "object-slot-reused-early",
        "the slot of a freed object is reused when no stale handle knows it";
    ObjectLeaseIgnored =
        "object-lease-ignored",
        "a destroyed object works for clients that have got it, while a lease lasts";
    ObjectNotFreed =
        "object-not-freed",
        "the last release of a destroyed object frees it";
    ObjectStaleServed = "object-stale-served", "a stale handle is refused";
    GenerationKept = "generation-kept", "the generation changes when the occupant is gone";
    GenerationReused = "generation-reused", "no two occupants have the same generation";
    ClaimsCountedTwice = "claims-counted-twice", "a claim counts once per client and lock";
    LeaverAwaited = "leaver-awaited", "a recovery does not wait for a client that wants to leave";
    DeadlineAlone =
        "deadline-alone",
        "a recovery waits for a client with a horizon until that has passed, whatever the deadline";
    BeatRefused = "beat-refused", "a client hears that it was heard, in a recovery too";
    IdleAwaited = "idle-awaited", "a recovery does not wait for a client that was given no lock";
    LocksUntold =
        "locks-untold",
        "it is kept that a client has locks before it hears that it was given one";
    LaggardAwaited =
        "laggard-awaited",
        "a client that has not claimed everything in time does not come back before its horizon";
    RecoveryDeaf =
        "recovery-deaf",
        "a client that is missing is given up when the primary has heard all that has come";
    RecoveryEarly = "recovery-early", "no client is served before all have told their claims";
    UndoBeforeFence = "undo-before-fence", "nothing of a client is undone before it is fenced";
    NoAbsentGrace = "no-absent-grace", "an absent client keeps what it holds for its grace";
    FenceLivingShm =
        "fence-living-shm",
        "a shared-memory client is fenced when its process is gone";
    HorizonEarly =
        "horizon-early",
        "silence is not acted on before the horizon that the client knows";
    GraceBeforeHorizon =
        "grace-before-horizon",
        "a connection that ends does not cut the horizon short that its client knows";
    FencedBeforeHorizon =
        "fenced-before-horizon",
        "a client that is fenced keeps what has no lease until the horizon that it knows";
    SilenceUnheard =
        "silence-unheard",
        "silence is acted on when everything that has come was heard";
    HorizonIgnored = "horizon-ignored", "a client past its horizon neither posts nor believes";
    LeaseLapses = "lease-lapses", "a hold with a lease ends at the lease's end, and not before";
    LapseUntold =
        "lapse-untold",
        "a client that comes back is told that what had no lease was ended";
    EvictsHolder = "evicts-holder", "a place is taken only from a client that has nothing";
    ClaimRoundedDown = "claim-rounded-down", "a claim has all that is left of its lease";
    EarlierClaimCounts =
        "earlier-claim-counts",
        "of holds that exclude each other the later one is the true one";
    RelayKept =
        "proxy-kept",
        "of a client that goes over to memory of its own the ledger tells what it has";
    UsedUntold =
        "used-untold",
        "a lock that is used knows which side executes its clients' word operations";
    RelayTooSoon =
        "proxy-too-soon",
        "the ledger says of a client that it has ever operated on the words itself";
    MixedClaimsStay =
        "mixed-claims-stay",
        "of a shared and an exclusive claim the later one stays alone";
    GrantedAtKept = "granted-at-kept", "a claim of a new hold tells when that one was granted";
    ExtendedOnOtherClock =
        "extended-on-other-clock",
        "an extended lease is judged by the clock that its deadline is of";
    OlderGrantCounts =
        "older-grant-counts",
        "a grant counts for the wait that it answered, and for no later one";
    LapseKeepsResolve =
        "lapse-keeps-resolve",
        "a client that is gone is not answered when the count is known";
    HindranceKept =
        "hindrance-kept",
        "a client that is between two word operations hinders anew after a recount that succeeded";
    MovedNotNoted =
        "moved-not-noted",
        "a client that is between two word operations is noted when two readings differ, too";
    PromiseShortened =
        "promise-shortened",
        "a client that is cut off keeps what it has until the latest horizon that it was told";
    PredecessorsPromise =
        "predecessors-promise",
        "a client that comes to a successor keeps what it has until its horizon at the predecessor";
    CutOffByLast =
        "cut-off-by-last",
        "the horizon of a client that is cut off is the latest one of all its sessions";
    UnfencedUndone =
        "unfenced-undone",
        "nothing of a client is undone while its queue pairs may act";
    UnfencedAttached =
        "unfenced-attached",
        "a client whose old queue pairs may act gets no other channel";
    UnfencedForgotten =
        "unfenced-forgotten",
        "a client whose queue pairs could not be fenced gets no new channel";
    UnfencedNotTried =
        "unfenced-not-tried",
        "what could not be fenced is tried again when its client comes back";
    PreparedKept =
        "prepared-kept",
        "a session that is prepared is given up when its time is over";
    LateShowMoves =
        "late-show-moves",
        "a request that comes when its session was given up ends no other session";
    MovesUnshown =
        "moves-unshown",
        "a session goes on until its client shows that it has the next one";
    GivenUpUntold =
        "given-up-untold",
        "a client that a recovery gave up is told that what had no lease was ended";
    LeaverKept = "leaver-kept", "a client that leaves is taken from the list of clients at once";
    ReturnedGivenUp =
        "returned-given-up",
        "a client that was given up is waited for again when it has come back";
    PromotedUnheard =
        "promoted-unheard",
        "an operator's word counts when the silence is over, also if the primary was never heard";
    ObjectsMapped =
        "objects-mapped",
        "the memory is not mapped for a client without the right to objects";
    HighestQuota = "highest-quota", "of several bounds of a quota the lowest one counts";
    NoteNeedsRight = "note-needs-right", "a ledger write of what was granted needs no right";
    JudgedOnce = "judged-once", "the items of a batch are judged again after each message";
    DisjointKept =
        "disjoint-kept",
        "an estimate of the server clock that is disjoint from the one in use replaces it";
    FenceTrusted =
        "fence-trusted",
        "a primary that was fenced is asked once more before its place is taken";
    ReplacedTaken =
        "replaced-taken",
        "a standby takes the place of no other primary than the one that it has heard";
    RightUnchecked =
        "right-unchecked",
        "a chain needs the right to the mode in which it takes a lock";
    WaitsUncounted =
        "waits-uncounted",
        "an identity is queued for no more locks than its quota allows";
    TurnKept =
        "turn-kept",
        "a client that has had its turn comes behind all others";
    PaceIgnored =
        "pace-ignored",
        "a channel that is over its rate rests";
    DebtPaidTwice = "debt-paid-twice", "a round pays a debt of work once";
    PolledStaysWaiting =
        "polled-stays-waiting",
        "a ticket that was asked for once is queued, and does not wait";
}

/// The rules of laps: `tests/models` switches them off, with a divert point of 1. No schedule of
/// the simulator takes anywhere near 0x7000_0000 tickets.
pub const OF_LAPS: &[Bug] = &[Bug::HighIsTicket, Bug::LapOverEntries];

/// The rules that only unit tests find broken: no schedule of the simulator reaches the situations
/// that these tests make.
pub const OF_UNITS: &[Bug] = &[
    Bug::QuestionKept,
    Bug::DeadlineUntold,
    Bug::TakenAwayUntold,
    Bug::ProgressUntold,
    Bug::RemovedReturns,
    Bug::GraceIgnored,
    Bug::GivenBackRemoved,
    Bug::AdminUnchecked,
    Bug::DrainLapses,
    Bug::IdleTooSoon,
    Bug::FenceUnchecked,
    Bug::MixedClaimsStay,
    Bug::GrantedAtKept,
    Bug::OlderGrantCounts,
    Bug::LapseKeepsResolve,
    Bug::HindranceKept,
    Bug::MovedNotNoted,
    Bug::CutOffByLast,
    Bug::UnfencedForgotten,
    Bug::UnfencedNotTried,
    Bug::LeaverKept,
    Bug::GivenUpUntold,
    Bug::ReturnedGivenUp,
    Bug::JudgedOnce,
    Bug::DebtPaidTwice,
    Bug::KeptPastQueue,
    Bug::DrainKeeps,
];

/// The rules that schedules reach, but that only unit tests find broken: what follows is too rare
/// for the simulator, or violates nothing that it checks.
pub const UNFOUND: &[Bug] = &[
    Bug::PlaceOutlasts,
    Bug::PolledStaysWaiting,
    Bug::ExtendedOnOtherClock,
    Bug::NoteNeedsRight,
    Bug::LapsedGrantKept,
    Bug::NoTimer,
    Bug::UsedUntold,
    Bug::FairReleaseUnchecked,
    Bug::ParksUnsaid,
    Bug::ParkedUnwoken,
    Bug::PrimaryNotesNothing,
    Bug::NoLook,
];

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = Cell::new(of_environment());
    }

    /// The planted bug that `DLOCK_PLANTED` names: unit tests run with it, and must find it.
    fn of_environment() -> Option<Bug> {
        let name = std::env::var("DLOCK_PLANTED").ok().filter(|name| !name.is_empty())?;
        let bug = super::BUGS.iter().find(|bug| bug.1 == name);
        Some(bug.unwrap_or_else(|| panic!("there is no planted bug {name}")).0)
    }

    /// Sets the planted bug of this thread; `None`: all rules are followed.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether this bug is planted on this thread: the rule that it breaks is not followed.
    #[inline]
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is, plant};

/// Whether this bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is(_bug: Bug) -> bool {
    false
}
