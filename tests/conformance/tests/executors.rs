// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite on every executor.

use std::process::{Child, Command};

use dlock_conformance::primary::{accept_invitation, TestPrimary};
use dlock_conformance::sealed::SealedPrimary;
use dlock_conformance::verbs::VerbsPrimary;
use dlock_conformance::{conformance, suite, Direct, Fixture};
use dlock_core::wire::control::FabricKind;

conformance!(sim, dlock_conformance::sim::SimFabric::default());
conformance!(
    shm,
    dlock_conformance::primary::TestPrimary::start(dlock_core::wire::control::FabricKind::Shm)
);
conformance!(
    tcp,
    dlock_conformance::primary::TestPrimary::start(dlock_core::wire::control::FabricKind::Tcp)
);
conformance!(verbs, optional dlock_conformance::verbs::VerbsPrimary::start(false));
conformance!(verbs_one_queue_pair, optional dlock_conformance::verbs::VerbsPrimary::start(true));
conformance!(sealed, optional dlock_conformance::sealed::SealedPrimary::start());

const INVITATION: &str = "DLOCK_CONFORMANCE_INVITATION";
const PROCESSES: u32 = 4;

/// Not a real test: the child processes of the tests below run this.
#[test]
fn worker() {
    let Ok(invitation) = std::env::var(INVITATION) else { return };
    let client = accept_invitation(&invitation).expect("a valid invitation");
    suite::contend(&Direct, &*client.executor);
}

fn sums_are_exact_under_4_processes(primary: &dyn Fixture) {
    let workers: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "worker"])
                .env(INVITATION, primary.invitation().expect("other processes can join"))
                .spawn()
                .expect("another process")
        })
        .collect();
    suite::start_together(primary, PROCESSES);
    for mut worker in workers {
        assert!(worker.wait().expect("a child").success());
    }
    suite::contended(primary, PROCESSES);
}

#[test]
fn sums_are_exact_under_4_processes_on_shm() {
    sums_are_exact_under_4_processes(&TestPrimary::start(FabricKind::Shm));
}

#[test]
fn sums_are_exact_under_4_processes_on_tcp() {
    sums_are_exact_under_4_processes(&TestPrimary::start(FabricKind::Tcp));
}

#[test]
fn sums_are_exact_under_4_processes_on_sealed() {
    if let Some(primary) = SealedPrimary::start() {
        sums_are_exact_under_4_processes(&primary);
    }
}

#[test]
fn sums_are_exact_under_4_processes_on_verbs() {
    for shared_qp in [false, true] {
        if let Some(primary) = VerbsPrimary::start(shared_qp) {
            sums_are_exact_under_4_processes(&primary);
        }
    }
}
