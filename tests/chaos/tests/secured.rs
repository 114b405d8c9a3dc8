// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failovers with TLS: primaries are killed, or lose their place, and clients come back with their
//! certificates. `scripts/chaos.sh ... --tls` has the long runs.

mod harness;

use dlock_client::FabricChoice;
use harness::programs::{self, Plan};
use harness::{obey, secured};

/// How often the primary is killed; each time a successor follows.
const FAILOVERS: u64 = 4;
/// How often a primary is stopped and loses its place to another one.
const DEPOSED: u64 = 2;

/// Not a real test: the child processes of the other test run this.
#[test]
fn child_that_obeys_its_parent() {
    obey();
}

#[test]
fn nothing_is_lost_or_held_twice_at_failovers_beside_tls() {
    let _ca = secured::begin();
    let tcp = FabricChoice::Tcp;
    let programs: [fn(FabricChoice, u64, u64) -> Plan; 2] =
        [programs::failovers, programs::by_itself];
    for program in programs {
        hold(&program(tcp, 1, FAILOVERS));
    }
    hold(&programs::deposed(tcp, 1, DEPOSED));
}

fn hold(plan: &Plan) {
    let outcome = programs::run(plan);
    println!("{:?} seed {}: {}", plan.fabric, plan.seed, outcome.summary());
    let violations = &outcome.verdict.violations;
    assert!(violations.is_empty(), "{plan:?}\n{}", violations.join("\n"));
    assert!(outcome.verdict.grants > 0, "nothing was granted");
}
