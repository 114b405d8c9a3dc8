// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file with a switch for each of its mutants, so that one build has them all.
//!
//! ```text
//!   a < b          (if is(7) { a <= b } else if is(8) { a == b } else { a < b })
//!   { body }       { if is(9) { return true; } body }
//!   P => e         P if !is(10) => e
//!   P if g => e    P if (is(11) || !is(12) && (g)) => e
//! ```
//! Switches nest in the branch that is the code as it was; a mutant's own branch is plain text.

use std::cmp::Reverse;
use std::ops::Range;

use crate::source::Change;

/// The path of the function that every switch calls.
const IS: &str = "crate::mutant_switch::is";

/// The module that every switch calls: appended to the crate's root.
///
/// The mutant of this process is named by the environment. With `DLOCK_MUTANT_REACHED` none is
/// on, and the number of each switch that is evaluated is written to that file.
pub fn module(count: usize) -> String {
    format!(
        r#"
#[doc(hidden)]
#[allow(missing_docs)]
pub mod mutant_switch {{
    use std::io::Write as _;
    use std::sync::atomic::{{AtomicBool, AtomicU32, Ordering::Relaxed}};
    const UNREAD: u32 = u32::MAX;
    const COLLECT: u32 = u32::MAX - 1;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);
    static REACHED: [AtomicBool; {count}] = [const {{ AtomicBool::new(false) }}; {count}];
    #[inline]
    pub fn is(mutant: u32) -> bool {{
        let active = ACTIVE.load(Relaxed);
        if active >= COLLECT {{
            return rare(mutant);
        }}
        active == mutant
    }}
    #[cold]
    #[inline(never)]
    fn rare(mutant: u32) -> bool {{
        if ACTIVE.load(Relaxed) == UNREAD {{
            let named = std::env::var("DLOCK_MUTANT").ok().and_then(|n| n.parse().ok());
            let collects = std::env::var_os("DLOCK_MUTANT_REACHED").is_some();
            let active = if collects {{ COLLECT }} else {{ named.unwrap_or(COLLECT - 1) }};
            ACTIVE.store(active, Relaxed);
            return is(mutant);
        }}
        if !REACHED[mutant as usize].swap(true, Relaxed) {{
            let path = std::env::var_os("DLOCK_MUTANT_REACHED").expect("it is set");
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            writeln!(file.expect("a file"), "{{mutant}}").expect("it can be written");
        }}
        false
    }}
}}
"#
    )
}

/// A file in which every mutant has a switch.
#[derive(Default)]
pub struct Switched {
    /// The text with the switches.
    pub text: String,
    /// The bytes of the text that belong to each mutant.
    pub ranges: Vec<(u32, Range<usize>)>,
}

impl Switched {
    /// The mutants in whose own text an error is.
    pub fn at(&self, error: &Range<usize>) -> Vec<u32> {
        let meets = |r: &Range<usize>| r.start < error.end && error.start < r.end;
        let mut met: Vec<_> = self.ranges.iter().filter(|(_, r)| meets(r)).collect();
        // an error that names a whole expression is in all of its branches: only those count
        // that contain it, if there are any
        if met.iter().any(|(_, r)| r.start <= error.start && error.end <= r.end) {
            met.retain(|(_, r)| r.start <= error.start && error.end <= r.end);
        }
        met.iter().map(|(id, _)| *id).collect()
    }
}

impl Switched {
    /// The arms of the `match` over the expression that ends here: with guards they do not count
    /// when the compiler looks whether all values are covered.
    pub fn arms_of_match(&self, end: usize) -> Vec<u32> {
        let mut depth = 0;
        let mut arms = Vec::new();
        for (i, c) in self.text[end..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ' ' if depth == 1 => {
                    let here = self.ranges.iter().filter(|(_, r)| r.start == end + i);
                    let arms_here = here.filter(|(_, r)| self.text[r.clone()].starts_with(" if !"));
                    arms.extend(arms_here.map(|(id, _)| *id));
                }
                _ => {}
            }
            if depth == 0 && c == '}' {
                break;
            }
        }
        arms
    }
}

/// One place of the text, with all of its mutants.
struct Place {
    range: Range<usize>,
    kind: Kind,
    variants: Vec<(u32, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Body,
    Arm,
    Guard,
    Expression,
}

/// The text, with a switch for each of these changes.
pub fn switched(text: &str, changes: &[(u32, &Change)]) -> Switched {
    let mut places: Vec<Place> = Vec::new();
    let guarded = |g: &Option<Range<usize>>, end: usize| g.clone().unwrap_or(end..end);
    for (id, change) in changes {
        let (range, kind, variant) = match change {
            Change::Expression(range, new) => (range.clone(), Kind::Expression, new.clone()),
            Change::Body(at, value) => (*at..*at, Kind::Body, value.clone()),
            Change::Arm(end, guard) if guard.is_none() => (*end..*end, Kind::Arm, String::new()),
            Change::Arm(end, guard) => (guarded(guard, *end), Kind::Guard, "false".into()),
            Change::Guard(guard, value) => (guard.clone(), Kind::Guard, value.clone()),
        };
        match places.iter_mut().find(|p| p.range == range && p.kind == kind) {
            Some(place) => place.variants.push((*id, variant)),
            None => places.push(Place { range, kind, variants: vec![(*id, variant)] }),
        }
    }
    places.sort_by_key(|p| (p.range.start, !p.range.is_empty(), Reverse(p.range.end), p.kind));
    let mut out = Switched::default();
    let mut rest = places.as_slice();
    copy(text, 0..text.len(), &mut rest, &mut out);
    out
}

/// Copies these bytes with the switches at their places.
fn copy(text: &str, range: Range<usize>, rest: &mut &[Place], out: &mut Switched) {
    let mut at = range.start;
    while let Some((place, others)) = rest.split_first() {
        if place.range.start >= range.end || place.range.end > range.end {
            break;
        }
        *rest = others;
        out.text.push_str(&text[at..place.range.start]);
        at = place.range.end;
        match place.kind {
            Kind::Body => {
                for (id, value) in &place.variants {
                    own(out, *id, |t| t.push_str(&format!(" if {IS}({id}) {{ return {value}; }}")));
                }
            }
            Kind::Arm => {
                for (id, _) in &place.variants {
                    own(out, *id, |t| t.push_str(&format!(" if !{IS}({id})")));
                }
            }
            Kind::Guard | Kind::Expression => {
                out.text.push('(');
                for (id, variant) in &place.variants {
                    out.text.push_str(&format!("if {IS}({id}) {{ "));
                    own(out, *id, |t| t.push_str(variant));
                    out.text.push_str(" } else ");
                }
                out.text.push_str("{ ");
                copy(text, place.range.clone(), rest, out);
                out.text.push_str(" })");
            }
        }
    }
    out.text.push_str(&text[at..range.end]);
}

fn own(out: &mut Switched, id: u32, write: impl FnOnce(&mut String)) {
    let start = out.text.len();
    write(&mut out.text);
    out.ranges.push((id, start..out.text.len()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::Listed;
    use crate::source;

    fn listed(genre: &str, span: Range<(usize, usize)>, replacement: &str) -> Listed {
        let (file, function) = ("a.rs".into(), "f".into());
        Listed { file, function, genre: genre.into(), span, replacement: replacement.into() }
    }

    #[test]
    fn a_switch_keeps_the_code_as_it_was_in_its_last_branch() {
        let text = "fn f(a: u8, b: u8) -> bool { a + 1 < b }";
        let all = [
            listed("BinaryOperator", (1, 36)..(1, 37), "<="),
            listed("BinaryOperator", (1, 32)..(1, 33), "-"),
            listed("FnValue", (1, 30)..(1, 39), "true"),
        ];
        let found = source::find(text, &all).unwrap();
        assert_eq!(found[0].key, "a.rs: f: a + 1 {< to <=} b");
        assert_eq!(found[2].key, "a.rs: f: body replaced by true");
        let changes = found.iter().enumerate();
        let changes: Vec<_> =
            changes.map(|(i, m)| (i as u32, m.change.as_ref().unwrap())).collect();
        let switched = switched(text, &changes);
        assert_eq!(
            switched.text.replace(IS, "is"),
            "fn f(a: u8, b: u8) -> bool { if is(2) { return true; } \
             (if is(0) { a + 1 <= b } else { (if is(1) { a - 1 } else { a + 1 }) < b }) }"
        );
        let error = switched.text.find("a - 1").unwrap();
        assert_eq!(switched.at(&(error..error + 5)), [1]);
    }

    #[test]
    fn an_arm_is_deleted_by_its_guard() {
        let text = "fn f(a: u8) -> u8 { match a { 1 => 2, n if n > 3 => 4, _ => 5 } }";
        let all = [
            listed("MatchArm", (1, 31)..(1, 37), ""),
            listed("MatchArm", (1, 39)..(1, 55), ""),
            listed("MatchArmGuard", (1, 44)..(1, 49), "true"),
            listed("BinaryOperator", (1, 46)..(1, 47), "<"),
        ];
        let found = source::find(text, &all).unwrap();
        let changes = found.iter().enumerate();
        let changes: Vec<_> =
            changes.map(|(i, m)| (i as u32, m.change.as_ref().unwrap())).collect();
        assert_eq!(
            switched(text, &changes).text.replace(IS, "is"),
            "fn f(a: u8) -> u8 { match a { 1 if !is(0) => 2, n if (if is(1) { false } else \
             if is(2) { true } else { (if is(3) { n < 3 } else { n > 3 }) }) => 4, _ => 5 } }"
        );
    }

    #[test]
    fn no_switch_is_put_where_the_compiler_evaluates() {
        let text = "const fn f(a: u8) -> bool { a < 1 }";
        let all = [listed("BinaryOperator", (1, 31)..(1, 32), ">")];
        assert!(source::find(text, &all).unwrap()[0].change.is_none());
    }
}
