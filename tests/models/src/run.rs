// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs models: all states by stateright, all states again for liveness, and traces of bugs.

use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use crate::actions::{Action, LockModel};
use crate::liveness::{walk, Graph};
use crate::state::Setup;

/// The result of exploring one setup.
#[derive(Debug)]
pub struct Report {
    /// The setup's name.
    pub name: &'static str,
    /// The number of states that stateright has seen.
    pub states: usize,
    /// The greatest distance of a state from the start.
    pub depth: usize,
    /// The result of the walk for liveness.
    pub graph: Graph,
    /// The time that both took.
    pub took: Duration,
}

/// Explores every state of a setup.
///
/// # Errors
/// The property that does not hold, with the shortest trace to that state.
pub fn exhaust(setup: Setup) -> Result<Report, String> {
    let (start, name) = (Instant::now(), setup.name);
    let checker = LockModel::new(setup.clone()).checker().threads(threads()).spawn_bfs().join();
    let wrong = discovery(&checker);
    if let Some((property, trace)) = wrong {
        return Err(format!("{name}: `{property}` does not hold:\n{trace}"));
    }
    for event in &setup.sometimes {
        if !checker.model().has_seen(*event) {
            return Err(format!("{name}: {event:?} never happens"));
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    drop(checker);
    let graph = walk(&LockModel::new(setup));
    if graph.states != states {
        return Err(format!("{name}: {states} states, but the walk saw {}", graph.states));
    }
    if graph.starving > 0 {
        return Err(format!("{name}: a waiter can starve in {} cycles", graph.starving));
    }
    Ok(Report { name, states, depth, graph, took: start.elapsed() })
}

/// Looks for the bug that is planted in a setup. Returns the property that it breaks, the trace,
/// and the number of states explored.
pub fn hunt(setup: Setup) -> Option<(&'static str, String, usize)> {
    let model = LockModel::new(Setup { sometimes: Vec::new(), ..setup });
    let finish = stateright::HasDiscoveries::AnyFailures;
    let checker = model.checker().threads(threads()).finish_when(finish).spawn_bfs().join();
    discovery(&checker).map(|(name, trace)| (name, trace, checker.unique_state_count()))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

fn discovery(checker: &impl Checker<LockModel>) -> Option<(&'static str, String)> {
    let always = |name: &str| {
        let list = checker.model().properties();
        list.iter().any(|p| p.name == name && p.expectation == stateright::Expectation::Always)
    };
    let found = checker.discoveries().into_iter().filter(|(name, _)| always(name));
    let (name, path) = found.min_by_key(|(_, path)| path.clone().into_actions().len())?;
    let steps: Vec<_> = path.into_vec();
    let mut lines = Vec::new();
    for (state, action) in &steps {
        lines.push(line(state, action.as_ref()));
    }
    Some((name, lines.join("\n")))
}

fn line(state: &crate::state::State, action: Option<&Action>) -> String {
    let clients: Vec<String> = state.clients.iter().map(|c| c.describe()).collect();
    let violation = state.violation.map_or(String::new(), |v| format!(" — {v}"));
    format!(
        "word {:#x}  t={}ms  {}{violation}\n  {}",
        state.word,
        (state.now.0 - crate::state::START.0) / 1_000_000,
        clients.join(" | "),
        action.map_or(String::new(), |a| format!("{a:?}")),
    )
}
