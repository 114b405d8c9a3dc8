// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checker of state objects: do the values that clients have learned fit one 64-bit word?
//!
//! ```text
//!   init ─Faa(a)─▶ v1 ─Cas(v1, v2)─▶ v2 ─ ? ─▶ v3 ─ … every value was never there before
//!                                         └ an operation whose outcome no client knows
//! ```
//! Addends, swaps and first values are drawn from 64 bits, so that a value shows all changes before
//! it. The learned values must lie on one path from a first value: each acknowledged change is one
//! step, each change of unknown outcome at most one, and no step goes back in time. The checker
//! knows nothing of slots, references or generations, except that a *place* (epoch and generation
//! of a grant) is one object.

use std::collections::{BTreeMap, HashMap, HashSet};

/// An operation on a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a number.
    Faa(u64),
    /// Sets the second value if the present one is the first.
    Cas(u64, u64),
    /// Reads the value, and changes nothing.
    Read,
}

/// One object, from its creation until it is freed: name, epoch, generation.
pub type Place = (usize, u32, u64);

#[derive(Clone, Copy, Debug)]
struct Done {
    place: Place,
    change: Change,
    begun: u64,
    /// When the answer came, and the old value. `None`: the outcome is not known.
    told: Option<(u64, u64)>,
    refused: bool,
}

/// The checker of objects. Most functions record what their description says has happened.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    ops: Vec<Done>,
    /// The first values of each name, whether clients have learned of them or not.
    inits: Vec<(usize, u64)>,
    /// The newest generation of a name that a client has learned of, and when.
    newest: BTreeMap<(usize, u32), (u64, u64)>,
}

/// The most changes of unknown outcome between two learned values: a frozen primary collects many.
const GAP_MAX: usize = 16;

impl Objects {
    /// A client asks for an object with this first value.
    pub fn creating(&mut self, name: usize, init: u64) {
        self.inits.push((name, init));
    }

    /// A client gets an object.
    pub fn got(&mut self, (name, epoch, generation): Place, now: u64) {
        let newest = self.newest.entry((name, epoch)).or_insert((generation, now));
        if newest.0 < generation {
            *newest = (generation, now);
        }
    }

    /// A client begins an operation; returns its number.
    pub fn begin(&mut self, place: Place, change: Change, now: u64) -> usize {
        self.ops.push(Done { place, change, begun: now, told: None, refused: false });
        self.ops.len() - 1
    }

    /// The operation was refused, and has no effect.
    pub fn refused(&mut self, op: usize) {
        self.ops[op].refused = true;
    }

    /// The operation has taken effect. `notices`: its executor has checked that the object lives.
    ///
    /// # Errors
    /// The object had been replaced by another one of its name before the operation began.
    pub fn told(&mut self, op: usize, old: u64, now: u64, notices: bool) -> Result<(), String> {
        let done = &mut self.ops[op];
        done.told = Some((now, old));
        let (name, epoch, generation) = done.place;
        let newest = self.newest.get(&(name, epoch));
        match newest.filter(|(newest, since)| *newest > generation && *since < done.begun) {
            Some(_) if notices => Err(format!(
                "object: {:?} of object {name} was acknowledged, which was gone before it began",
                done.change
            )),
            _ => Ok(()),
        }
    }

    /// Checks everything that clients have learned.
    ///
    /// # Errors
    /// What contradicts one word.
    pub fn check(&self) -> Result<(), String> {
        let mut places: BTreeMap<Place, Vec<&Done>> = BTreeMap::new();
        for op in self.ops.iter().filter(|op| !op.refused) {
            places.entry(op.place).or_default().push(op);
        }
        let mut begins = HashSet::new();
        for (place, ops) in places {
            let inits = self.inits.iter().filter(|(name, _)| *name == place.0);
            let mut why = Err(format!("object: {place:?} was never created"));
            for &(_, init) in inits.filter(|(_, init)| !begins.contains(init)) {
                why = Path::new(&ops)?.walk(init);
                if why.is_ok() {
                    if ops.iter().any(|op| op.told.is_some()) {
                        begins.insert(init); // each request to create makes at most one object
                    }
                    break;
                }
            }
            why.map_err(|why| format!("{why} (place {place:?})"))?;
        }
        Ok(())
    }

    /// The number of operations whose outcome a client has learned.
    pub fn acknowledged(&self) -> usize {
        self.ops.iter().filter(|op| op.told.is_some()).count()
    }
}

/// The operations on one object.
struct Path<'a> {
    ops: &'a [&'a Done],
    /// The acknowledged change of each value.
    steps: HashMap<u64, (u64, &'a Done)>,
    /// Learned values that lie beyond the end of the path so far.
    ahead: HashSet<u64>,
    unknown: Vec<&'a Done>,
    /// The place of each acknowledged operation on the path.
    at: Vec<(u64, &'a Done)>,
}

impl<'a> Path<'a> {
    fn new(ops: &'a [&'a Done]) -> Result<Self, String> {
        let mut path = Self {
            ops,
            steps: HashMap::new(),
            ahead: HashSet::new(),
            unknown: Vec::new(),
            at: Vec::new(),
        };
        for &op in ops {
            let Some((_, old)) = op.told else {
                if op.change != Change::Read {
                    path.unknown.push(op);
                }
                continue;
            };
            path.ahead.insert(old);
            let new = match op.change {
                Change::Faa(add) => old.wrapping_add(add),
                Change::Cas(expect, swap) if expect == old => swap,
                _ => continue,
            };
            if path.steps.insert(old, (new, op)).is_some() {
                return Err(format!("object: two changes of the same value {old:#x}"));
            }
        }
        Ok(path)
    }

    fn walk(mut self, init: u64) -> Result<(), String> {
        let mut value = init;
        let mut index = 0;
        loop {
            self.ahead.remove(&value);
            for op in self.ops.iter().filter(|op| op.told.is_some_and(|(_, old)| old == value)) {
                let changes = self.steps.get(&value).is_some_and(|s| std::ptr::eq(s.1, *op));
                self.at.push((2 * index + u64::from(changes), op));
            }
            if let Some(&(new, _)) = self.steps.get(&value) {
                value = new;
            } else if self.ahead.is_empty() {
                return self.in_time();
            } else {
                let bridge = (1..=GAP_MAX).find_map(|len| self.bridge(value, len));
                let Some((to, used)) = bridge else {
                    let seen = self.ahead.iter().min().copied().unwrap_or(0);
                    return Err(format!("object: nothing can have led to its value {seen:#x}"));
                };
                self.at.extend(used.iter().map(|&op| (2 * index + 1, op)));
                self.unknown.retain(|op| !used.iter().any(|u| std::ptr::eq(*u, *op)));
                value = to;
            }
            index += 1;
        }
    }

    /// Finds `len` changes of unknown outcome that lead from `from` to a learned value ahead;
    /// returns the value and these changes.
    fn bridge(&self, from: u64, len: usize) -> Option<(u64, Vec<&'a Done>)> {
        self.bridge_from(from, len, &mut Vec::new())
    }

    fn bridge_from(
        &self,
        from: u64,
        len: usize,
        used: &mut Vec<&'a Done>,
    ) -> Option<(u64, Vec<&'a Done>)> {
        // the order of additions does not matter
        let last = used.iter().rev().find(|op| matches!(op.change, Change::Faa(_)));
        let at = |op: &Done| self.unknown.iter().position(|&u| std::ptr::eq(u, op));
        let first = last.and_then(|op| at(op)).map_or(0, |i| i + 1);
        for (i, &op) in self.unknown.iter().enumerate() {
            if i < first && matches!(op.change, Change::Faa(_)) {
                continue;
            }
            let to = match op.change {
                Change::Faa(add) => from.wrapping_add(add),
                Change::Cas(expect, swap) if expect == from => swap,
                _ => continue,
            };
            if used.iter().any(|u| std::ptr::eq(*u, op)) {
                continue;
            }
            used.push(op);
            let found = match len {
                1 => self.ahead.contains(&to).then(|| (to, used.clone())),
                _ => self.bridge_from(to, len - 1, used),
            };
            used.pop();
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Checks the order in time: an operation that ended before another began lies before it.
    fn in_time(mut self) -> Result<(), String> {
        self.at.sort_by_key(|(_, op)| op.begun);
        let mut ended: Vec<(u64, u64)> =
            self.at.iter().filter_map(|(at, op)| Some((op.told?.0, *at))).collect();
        ended.sort_unstable();
        let (mut next, mut last) = (0, 0);
        for (at, op) in &self.at {
            while ended.get(next).is_some_and(|(end, _)| *end < op.begun) {
                last = last.max(ended[next].1);
                next += 1;
            }
            if *at < last {
                return Err(format!("object: {:?} took effect before it began", op.change));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = (0, 1, 7);

    /// The change, the time of its begin, and the time and old value of its answer.
    type Op = (Change, u64, Option<(u64, u64)>);

    fn history(ops: &[Op]) -> Result<(), String> {
        let mut objects = Objects::default();
        objects.creating(0, 100);
        for &(change, begun, told) in ops {
            let op = objects.begin(PLACE, change, begun);
            if let Some((now, old)) = told {
                objects.told(op, old, now, true)?;
            }
        }
        objects.check()
    }

    use Change::{Cas, Faa, Read};

    #[test]
    fn what_one_word_can_have_done_is_accepted() {
        history(&[(Read, 0, Some((1, 100)))]).unwrap();
        history(&[(Faa(5), 0, Some((1, 100))), (Cas(105, 9), 2, Some((3, 105)))]).unwrap();
        // a failed compare-and-swap is a read
        history(&[(Cas(1, 2), 0, Some((1, 100))), (Read, 2, Some((3, 100)))]).unwrap();
        // concurrent operations may take effect in either order
        history(&[(Faa(5), 0, Some((9, 103))), (Faa(3), 0, Some((9, 100)))]).unwrap();
        // an operation of unknown outcome was executed, was executed late, or was not
        history(&[(Faa(5), 0, None), (Read, 1, Some((2, 105)))]).unwrap();
        history(&[(Faa(5), 0, None), (Read, 1, Some((2, 100)))]).unwrap();
        let late = [(Faa(5), 0, None), (Read, 1, Some((2, 100))), (Read, 3, Some((4, 105)))];
        history(&late).unwrap();
        let both = [(Faa(5), 0, None), (Cas(105, 8), 0, None), (Read, 1, Some((2, 8)))];
        history(&both).unwrap();
    }

    #[test]
    fn what_one_word_cannot_have_done_is_refused() {
        let bad: [&[Op]; 7] = [
            &[(Read, 0, Some((1, 99)))],
            // a lost change, a double one, and a foreign one
            &[(Faa(5), 0, Some((1, 100))), (Read, 2, Some((3, 100)))],
            &[(Faa(5), 0, Some((1, 100))), (Read, 2, Some((3, 110)))],
            &[(Faa(5), 0, None), (Read, 2, Some((3, 110)))],
            &[(Faa(5), 0, Some((1, 100))), (Faa(3), 0, Some((1, 100)))],
            &[(Cas(100, 8), 0, Some((1, 100))), (Cas(100, 9), 2, Some((3, 100)))],
            // a change seen before it began
            &[(Read, 0, Some((1, 105))), (Faa(5), 2, None)],
        ];
        for history_of in bad {
            assert!(history(history_of).is_err(), "{history_of:?}");
        }
    }

    #[test]
    fn an_object_that_made_room_for_another_one_is_not_served() {
        let mut objects = Objects::default();
        objects.got(PLACE, 0);
        objects.got((0, 1, 9), 5);
        let early = objects.begin(PLACE, Faa(1), 4);
        assert!(objects.told(early, 100, 9, true).is_ok());
        let late = objects.begin(PLACE, Faa(1), 6);
        assert!(objects.told(late, 100, 9, true).is_err());
        assert!(objects.told(late, 100, 9, false).is_ok());
    }
}
