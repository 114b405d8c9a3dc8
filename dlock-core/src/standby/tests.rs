// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the rules of a standby.

use super::*;

const MS: u64 = 1_000_000;

fn signature(text: &str) -> Signature {
    Signature(text.to_string())
}

fn begun(start_ns: u64, fences: bool) -> Standby {
    Standby::new(start_ns, SILENCE_NS, fences, Some(signature("primary")))
}

impl Standby {
    /// The primary has answered, and still has the roster.
    fn hears(&mut self, now_ns: u64) -> Option<Ground> {
        let there = signature("primary");
        self.heard(now_ns, Some(&there), Some(&there))
    }

    /// An operator promotes the standby while the primary has the roster. Returns whether the
    /// standby accepts that.
    fn may(&mut self, now_ns: u64) -> bool {
        self.promoted(now_ns, Some(&signature("primary"))).is_ok()
    }
}

/// Leaves every probe without an answer, until the standby has another task.
fn silent(standby: &mut Standby, now_ns: &mut u64) -> Task {
    for _ in 0..1_024 {
        match standby.next(*now_ns) {
            Task::Wait { until_ns } => *now_ns = until_ns,
            Task::Probe { until_ns } => {
                *now_ns = until_ns;
                standby.unheard(*now_ns);
            }
            task => return task,
        }
    }
    standby.next(*now_ns)
}

#[test]
fn silence_alone_never_makes_a_primary() {
    let (mut standby, mut now) = (begun(0, false), 0);
    assert_eq!(standby.hears(now), None);
    let task = silent(&mut standby, &mut now);
    assert!(matches!(task, Task::Wait { .. } | Task::Probe { .. }), "{task:?}");
    assert!(standby.is_silent(now));
    assert!(standby.may(now), "an operator may");
    assert_eq!(standby.next(now), Task::TakeOver(Ground::Promoted));
}

#[test]
fn one_that_answers_is_not_replaced_whoever_says_so() {
    let mut standby = begun(0, true);
    for n in 0..100 {
        let now = n * 250 * MS;
        assert!(matches!(standby.next(now), Task::Probe { .. }));
        assert_eq!(standby.hears(now), None);
        assert!(!standby.may(now + 200 * MS));
    }
}

#[test]
fn a_silent_one_is_fenced_and_asked_once_more() {
    let (mut standby, mut now) = (begun(0, true), 0);
    standby.hears(now);
    assert_eq!(silent(&mut standby, &mut now), Task::Fence);
    assert!((SILENCE_NS..2 * SILENCE_NS).contains(&now), "{now}");
    standby.fenced(now, true, false);
    assert!(matches!(standby.next(now), Task::Probe { .. }));
    assert_eq!(standby.hears(now + MS), Some(Ground::Fenced), "the command has lied");
    now += 2 * MS;
    assert_eq!(silent(&mut standby, &mut now), Task::Fence);
    standby.fenced(now, true, false);
    assert_eq!(silent(&mut standby, &mut now), Task::TakeOver(Ground::Fenced));
}

#[test]
fn a_fencing_command_that_fails_is_run_again_less_and_less_often() {
    let (mut standby, mut now) = (begun(0, true), 0);
    standby.hears(now);
    let mut last = 0;
    for n in 0..10 {
        assert_eq!(silent(&mut standby, &mut now), Task::Fence);
        let pause = (PAUSE_NS.0 << n.min(16)).min(PAUSE_NS.1) / 2;
        assert!(n == 0 || now - last >= pause, "{n}: {}", now - last);
        assert!(now - last <= PAUSE_NS.1 + SILENCE_NS);
        last = now;
        standby.fenced(now, false, false);
    }
    // The primary has answered meanwhile: fencing commands that failed before belong to another
    // silence.
    standby.hears(now);
    let mut turns = [0; 2];
    for turn in &mut turns {
        assert_eq!(silent(&mut standby, &mut now), Task::Fence);
        standby.fenced(now, false, false);
        *turn = now;
    }
    assert!(turns[1] - turns[0] < PAUSE_NS.1 / 2, "{turns:?}");
}

/// While the fencing command hangs, the primary may begin to serve again.
#[test]
fn an_operator_ends_a_command_that_hangs_and_the_primary_is_asked_once_more() {
    for serves in [false, true] {
        let (mut standby, mut now) = (begun(0, true), 0);
        standby.hears(now);
        assert_eq!(silent(&mut standby, &mut now), Task::Fence);
        now += 8 * SILENCE_NS;
        assert!(standby.may(now));
        assert!(matches!(standby.next(now), Task::Probe { .. }));
        standby.fenced(now, true, false); // the result of the hanging command comes now
        if serves {
            assert_eq!(standby.hears(now), Some(Ground::Promoted));
            assert!(matches!(standby.next(now), Task::Wait { .. }));
        } else {
            assert_eq!(silent(&mut standby, &mut now), Task::TakeOver(Ground::Promoted));
        }
    }
}

#[test]
fn one_that_was_never_there_is_not_fenced() {
    let (mut standby, mut now) = (begun(0, true), 0);
    let task = silent(&mut standby, &mut now);
    assert!(!matches!(task, Task::Fence | Task::TakeOver(_)), "{task:?}");
    assert!(!standby.was_heard());
    assert!(standby.may(now));
}

/// A standby that has just begun has not yet probed the primary, which may serve.
#[test]
fn an_operator_waits_until_the_silence_is_over_also_of_one_that_was_never_heard() {
    for was_heard in [false, true] {
        let mut standby = begun(0, true);
        if was_heard {
            standby.hears(0);
        }
        for now in [0, 1, SILENCE_NS - 1] {
            assert!(!standby.may(now), "at {now}");
            assert!(!matches!(standby.next(now), Task::TakeOver(_)), "at {now}");
        }
        assert!(standby.may(SILENCE_NS));
        assert_eq!(standby.next(SILENCE_NS), Task::TakeOver(Ground::Promoted));
    }
}

/// The standby has taken the place of the primary, and its start there has failed afterwards.
#[test]
fn one_that_has_the_place_tries_again_whatever_it_hears() {
    for ground in [Ground::Ended, Ground::Fenced, Ground::Promoted] {
        let mut standby = Standby { stage: Stage::Takes(ground), ..begun(0, true) };
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..12 {
            assert_eq!(standby.next(now), Task::TakeOver(ground));
            standby.failed(now, true);
            assert!(standby.has_place());
            standby.ended(now);
            standby.hears(now);
            standby.unheard(now);
            standby.may(now);
            let Task::Wait { until_ns } = standby.next(now) else { panic!("{standby:?}") };
            pauses.push(until_ns - now);
            now = until_ns;
        }
        assert!(pauses.is_sorted() && pauses.last() == Some(&PAUSE_NS.1), "{pauses:?}");
        // another standby has taken the place from this one
        standby.failed(now, false);
        assert!(!standby.has_place());
        assert!(matches!(standby.next(now), Task::Probe { .. }));
    }
}

#[test]
fn one_whose_process_has_ended_is_replaced_at_once() {
    for stage in [Stage::Watches, Stage::Fences, Stage::Doubts(Ground::Fenced)] {
        let mut standby = Standby { stage, ..begun(0, true) };
        standby.ended(0);
        assert_eq!(standby.next(0), Task::TakeOver(Ground::Ended));
        standby.hears(1);
        standby.unheard(1);
        standby.fenced(1, false, false);
        assert_eq!(standby.next(1), Task::TakeOver(Ground::Ended), "late reports");
        standby.failed(2, false);
        for now in [2, PAUSE_NS.0] {
            standby.ended(now);
            assert!(matches!(standby.next(now), Task::Probe { .. }), "it watches on");
        }
        standby.ended(2 + PAUSE_NS.0);
        assert_eq!(standby.next(2 + PAUSE_NS.0), Task::TakeOver(Ground::Ended));
    }
}

/// The host has been up for an hour when the standby starts.
#[test]
fn the_silence_of_a_primary_that_was_never_heard_counts_from_the_start_of_the_standby() {
    let start_ns = 3_600_000 * MS;
    let mut standby = begun(start_ns, true);
    for passed_ns in [0, 1, SILENCE_NS - 1] {
        assert!(!standby.may(start_ns + passed_ns), "after {passed_ns} ns");
        let task = standby.next(start_ns + passed_ns);
        assert!(!matches!(task, Task::TakeOver(_)), "after {passed_ns} ns");
    }
    assert!(standby.may(start_ns + SILENCE_NS));
}

#[test]
fn a_fencing_command_that_leaves_the_process_of_the_primary_has_failed() {
    let (mut standby, mut now) = (begun(0, true), 0);
    standby.hears(now);
    assert_eq!(silent(&mut standby, &mut now), Task::Fence);
    standby.fenced(now, true, true);
    assert_eq!(silent(&mut standby, &mut now), Task::Fence, "it is run again");
}

/// A primary that was replaced may still answer for a moment after its successor has signed the
/// roster.
#[test]
fn how_the_list_was_signed_when_the_primary_was_asked_is_what_counts() {
    let [old, new] = ["old", "new"].map(signature);
    for (asked, is_replaced) in [(&old, true), (&new, false)] {
        let mut standby = Standby::new(0, SILENCE_NS, false, Some(old.clone()));
        standby.heard(0, Some(&old), Some(&old));
        standby.heard(MS, Some(asked), Some(&new));
        let now = 2 * SILENCE_NS;
        standby.promoted(now, Some(&new)).unwrap();
        let taking = standby.takes(now, Some(&new), None);
        match is_replaced {
            true => assert_eq!(taking, Err(Denied::Replaced)),
            false => assert_eq!(taking, Ok(Taking::FromAnother(Some(new.clone())))),
        }
        assert_eq!(matches!(standby.next(now), Task::Probe { .. }), is_replaced);
    }
}

/// The lock on the lock file tells whether the process that has the roster has ended.
#[test]
fn the_place_of_a_process_that_has_ended_is_taken_only_if_it_is_free() {
    let mut standby = begun(0, false);
    standby.hears(0);
    standby.ended(1);
    assert_eq!(standby.takes(1, Some(&signature("another")), None), Ok(Taking::IfFree));
    assert_eq!(standby.next(1), Task::TakeOver(Ground::Ended));
}

#[test]
fn the_place_of_a_primary_whose_clients_are_not_known_is_not_taken() {
    let (mut standby, now) = (begun(0, false), 2 * SILENCE_NS);
    standby.hears(0);
    assert_eq!(standby.promoted(now, None), Err(Denied::Unowned));
    assert!(matches!(standby.next(now), Task::Probe { .. }));
    assert_eq!(standby.promoted(0, Some(&signature("primary"))), Err(Denied::Heard));
    standby.ended(now);
    assert_eq!(standby.takes(now, None, None), Err(Denied::Unowned));
    assert!(matches!(standby.next(now), Task::Probe { .. }));
    // a primary that never existed has no clients
    let mut standby = Standby::new(0, SILENCE_NS, false, None);
    standby.promoted(now, None).unwrap();
    assert_eq!(standby.takes(now, None, None), Ok(Taking::FromAnother(None)));
}

#[test]
fn a_place_that_was_taken_is_kept_until_another_takes_it() {
    let (mut standby, mut now) = (begun(0, false), 0);
    standby.hears(now);
    standby.ended(now);
    standby.failed(now, true);
    for whose in [Whose::Mine, Whose::Unseen] {
        now += PAUSE_NS.1;
        assert_eq!(standby.takes(now, None, Some(whose)), Ok(Taking::IfFree));
    }
    let taken = standby.takes(now, Some(&signature("another")), Some(Whose::Anothers));
    assert_eq!(taken, Err(Denied::Replaced));
    assert!(!standby.has_place());
}

#[test]
fn what_is_under_way_is_given_up_when_the_primary_has_ended_or_an_operator_decides() {
    let (mut standby, mut now) = (begun(0, true), 0);
    standby.hears(now);
    let probe = standby.next(SILENCE_NS / 2);
    assert!(!standby.is_over(probe, SILENCE_NS / 2));
    assert_eq!(silent(&mut standby, &mut now), Task::Fence);
    assert!(!standby.is_over(Task::Fence, now));
    assert!(standby.may(now));
    assert!(standby.is_over(Task::Fence, now), "the primary is asked once more");
    let probe = standby.next(now);
    assert!(!standby.is_over(probe, now));
    standby.ended(now);
    assert!(standby.is_over(probe, now));
}
