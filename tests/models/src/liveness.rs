// SPDX-License-Identifier: MIT OR Apache-2.0
//! The graph of a model: dead ends, and cycles in which a client waits for ever.
//!
//! A waiter is *starved* if it is not served in a dead end, or in an endless run that is fair: each
//! action that stays possible happens in the end. Such a run ends in a strongly connected part of
//! the graph. A fair run can stay in the part if each fair action is taken in it, or is impossible
//! in one of its states. Stateright's own `eventually` does not look at cycles.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

use crate::actions::{Action, LockModel};
use crate::state::{State, CLIENTS};

/// The result of a walk over all states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The number of states.
    pub states: usize,
    /// The number of actions that are possible in them, together.
    pub edges: usize,
    /// The number of states in which no action is possible.
    pub ends: usize,
    /// The number of strongly connected parts in which a run can stay.
    pub cycles: usize,
    /// The number of these parts in which a fair run can stay while a living client is not
    /// finished.
    pub starving: usize,
}

struct Walked {
    edges: Vec<(u32, u32, Action)>,
    /// For each state, whether all living clients are finished.
    finished: Vec<bool>,
    ends: usize,
}

/// Walks over all states of a model, and looks for starvation.
pub fn walk(model: &LockModel) -> Graph {
    let walked = all_states(model);
    let parts = parts(walked.finished.len(), &walked.edges);
    let (cycles, starving) = judge(&walked, &parts);
    Graph {
        states: walked.finished.len(),
        edges: walked.edges.len(),
        ends: walked.ends,
        cycles,
        starving,
    }
}

fn all_states(model: &LockModel) -> Walked {
    let mut numbers: HashMap<_, u32> = HashMap::new();
    let mut walked = Walked { edges: Vec::new(), finished: Vec::new(), ends: 0 };
    let mut layer = Vec::new();
    for state in model.init_states() {
        numbers.insert(fingerprint(&state), 0);
        walked.finished.push(done(model, &state));
        layer.push((0, state));
    }
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (from, state) in layer {
            let steps = model.next_steps(&state);
            walked.ends += usize::from(steps.is_empty());
            for (action, next) in steps {
                let number = walked.finished.len() as u32;
                let to = match numbers.entry(fingerprint(&next)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        new.insert(number);
                        walked.finished.push(done(model, &next));
                        next_layer.push((number, next));
                        number
                    }
                };
                walked.edges.push((from, to, action));
            }
        }
        layer = next_layer;
    }
    walked.edges.sort_unstable_by_key(|&(from, to, _)| (from, to));
    walked
}

/// A hash that differs from stateright's. If both count the same number of states, neither has lost
/// a state to a collision.
fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn done(model: &LockModel, state: &State) -> bool {
    (0..CLIENTS).all(|i| state.clients[i].gone || state.finished(i, &model.setup))
}

/// Tarjan's algorithm without recursion: the number of each state's strongly connected part.
fn parts(states: usize, edges: &[(u32, u32, Action)]) -> Vec<u32> {
    let mut first = vec![0_u32; states + 1];
    for &(from, _, _) in edges {
        first[from as usize + 1] += 1;
    }
    for i in 0..states {
        first[i + 1] += first[i];
    }
    const NONE: u32 = u32::MAX;
    let (mut index, mut low) = (vec![NONE; states], vec![0_u32; states]);
    let mut part = vec![NONE; states];
    let (mut stack, mut path) = (Vec::new(), Vec::<(u32, u32)>::new());
    let (mut next_index, mut next_part) = (0, 0);
    for root in 0..states as u32 {
        if index[root as usize] != NONE {
            continue;
        }
        path.push((root, first[root as usize]));
        while let Some(&mut (v, ref mut edge)) = path.last_mut() {
            let vi = v as usize;
            if index[vi] == NONE {
                (index[vi], low[vi]) = (next_index, next_index);
                next_index += 1;
                stack.push(v);
            }
            if *edge < first[vi + 1] {
                let to = edges[*edge as usize].1;
                *edge += 1;
                if index[to as usize] == NONE {
                    path.push((to, first[to as usize]));
                } else if part[to as usize] == NONE {
                    low[vi] = low[vi].min(index[to as usize]);
                }
                continue;
            }
            if low[vi] == index[vi] {
                while let Some(w) = stack.pop() {
                    part[w as usize] = next_part;
                    if w == v {
                        break;
                    }
                }
                next_part += 1;
            }
            path.pop();
            if let Some(&mut (parent, _)) = path.last_mut() {
                low[parent as usize] = low[parent as usize].min(low[vi]);
            }
        }
    }
    part
}

/// The number of parts in which a run can stay, and of those in which a client starves.
fn judge(walked: &Walked, part: &[u32]) -> (usize, usize) {
    let inside = |&&(from, to, _): &&(u32, u32, Action)| part[from as usize] == part[to as usize];
    let cyclic: BTreeSet<u32> =
        walked.edges.iter().filter(inside).map(|&(from, _, _)| part[from as usize]).collect();
    let starving = cyclic.iter().filter(|&&p| {
        let states: Vec<u32> = (0..part.len() as u32).filter(|&s| part[s as usize] == p).collect();
        if states.iter().all(|&s| walked.finished[s as usize]) {
            return false;
        }
        let edges_of = |s: u32| {
            let at = walked.edges.partition_point(|e| e.0 < s);
            walked.edges[at..].iter().take_while(move |e| e.0 == s)
        };
        let taken: Vec<Action> = states
            .iter()
            .flat_map(|&s| edges_of(s))
            .filter(|e| part[e.1 as usize] == p)
            .map(|e| e.2)
            .collect();
        if taken.iter().any(|a| !a.is_fair()) {
            return true; // the number of accidents is limited, so no cycle contains one
        }
        let mut always: Option<Vec<Action>> = None;
        for &s in &states {
            let here: Vec<Action> = edges_of(s).map(|e| e.2).filter(|a| a.is_fair()).collect();
            always = Some(match always {
                None => here,
                Some(before) => before.into_iter().filter(|a| here.contains(a)).collect(),
            });
        }
        always.unwrap_or_default().iter().all(|a| taken.contains(a))
    });
    (cyclic.len(), starving.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(edges: &[(u32, u32, Action)], finished: &[bool]) -> Walked {
        Walked { edges: edges.to_vec(), finished: finished.to_vec(), ends: 0 }
    }

    fn count(edges: &[(u32, u32, Action)], finished: &[bool]) -> (usize, usize) {
        let walked = walked(edges, finished);
        judge(&walked, &parts(finished.len(), edges))
    }

    #[test]
    fn a_cycle_starves_somebody_unless_fairness_leads_out_of_it() {
        let (a, b) = (Action::Step(0), Action::Step(1));
        let unfinished = [false, false, true];
        // unfair: in the cycle 0 ⇄ 1 the second client could always lead to the end, and never does
        assert_eq!(count(&[(0, 1, a), (0, 2, b), (1, 0, a), (1, 2, b)], &unfinished), (1, 0));
        // fair, and the second client starves: its action is impossible in one state of the cycle
        assert_eq!(count(&[(0, 1, a), (0, 2, b), (1, 0, a)], &unfinished), (1, 1));
        // all clients are finished, so none starves
        assert_eq!(count(&[(0, 1, a), (1, 0, a)], &[true, true]), (1, 0));
        assert_eq!(count(&[(0, 1, a), (1, 2, b)], &unfinished), (0, 0));
        assert_eq!(count(&[(0, 0, a)], &[false]), (1, 1), "a step that changes nothing");
    }
}
