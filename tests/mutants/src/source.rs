// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in a file a mutant is, and what it is called.
//!
//! A mutant's key names its file, its function and the change with the text around it, never a
//! line: it stays the same when the file is edited elsewhere.

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::listing::{Lines, Listed};

/// How many characters on each side of an operator belong to a key.
const CONTEXT_CHARS: usize = 48;

/// A mutant that was found in its file.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// `FILE: FUNCTION: CHANGE`, the same in all versions of the file that have this code.
    pub key: String,
    /// The file, from the root of the repository.
    pub file: String,
    /// The function, as cargo-mutants names it.
    pub function: String,
    /// How a switch makes this mutant; `None`: it can only be made by an edit of the file.
    pub change: Option<Change>,
    /// The edit that makes the mutant: the bytes that it replaces, and the new text.
    pub edit: (Range<usize>, String),
}

/// How a switch makes a mutant.
#[derive(Clone, Debug)]
pub enum Change {
    /// The expression in these bytes is replaced by this one.
    Expression(Range<usize>, String),
    /// The function whose body begins here returns this value.
    Body(usize, String),
    /// The arm whose pattern ends here never matches; with the bytes of its guard, if it has one.
    Arm(usize, Option<Range<usize>>),
    /// This guard is always `true` or always `false`.
    Guard(Range<usize>, String),
}

/// The places of a file in which mutants can be.
#[derive(Default)]
struct Places {
    /// Binary and unary expressions: the whole expression, and its operator.
    operators: Vec<(Range<usize>, Range<usize>)>,
    /// Bodies of functions, from `{` to `}`. `true`: the return type has no name (`impl Trait`), so
    /// that all returned values must come from one expression.
    bodies: Vec<(Range<usize>, bool)>,
    arms: Vec<Arm>,
    /// Struct expressions.
    structs: Vec<Range<usize>>,
    /// Code that the compiler evaluates, where no switch can be; with the name of the constant.
    constant: Vec<(Range<usize>, String)>,
}

/// An arm of a `match`.
struct Arm {
    whole: Range<usize>,
    pattern: Range<usize>,
    guard: Option<Range<usize>>,
}

/// Finds the listed mutants of one file in its text.
///
/// # Errors
/// If a mutant is not where the listing says; the text says which.
pub fn find(text: &str, listed: &[Listed]) -> Result<Vec<Mutant>, String> {
    let parsed = syn::parse_file(text).map_err(|e| format!("{e}"))?;
    let mut places = Places::default();
    places.visit_file(&parsed);
    let lines = Lines::new(text);
    let mut seen = BTreeMap::new();
    let mut found = Vec::new();
    for one in listed {
        let at = || format!("{}:{}: {}", one.file, one.span.start.0, one.genre);
        let start = lines.byte(one.span.start).ok_or_else(at)?;
        let end = lines.byte(one.span.end).ok_or_else(at)?;
        let (what, change) = places.locate(text, one, start..end).ok_or_else(at)?;
        let mut constants = places.constant.iter();
        let constant = constants.find(|(c, _)| c.start <= start && end <= c.end);
        let function = match (one.function.as_str(), constant) {
            ("", Some((_, name))) => name,
            (name, _) => name,
        };
        let name = format!("{}: {function}: {what}", one.file);
        let count = seen.entry(name.clone()).and_modify(|n| *n += 1).or_insert(1);
        let key = if *count == 1 { name } else { format!("{name} ({count})") };
        found.push(Mutant {
            key,
            file: one.file.clone(),
            function: function.to_string(),
            change: change.filter(|_| constant.is_none()),
            edit: (start..end, one.replacement.clone()),
        });
    }
    Ok(found)
}

impl Places {
    /// The description of a mutant in its key, and how a switch makes it.
    fn locate(&self, text: &str, m: &Listed, at: Range<usize>) -> Option<(String, Option<Change>)> {
        let new = &m.replacement;
        Some(match m.genre.as_str() {
            "BinaryOperator" | "UnaryOperator" => {
                let (whole, op) = self.operators.iter().find(|(_, op)| *op == at)?;
                let (before, after) = (&text[whole.start..op.start], &text[op.end..whole.end]);
                let what = format!(
                    "{} {{{} to {}}} {}",
                    last_chars(before),
                    &text[op.clone()],
                    if new.is_empty() { "nothing" } else { new.as_str() },
                    first_chars(after)
                );
                let mutated = format!("{before}{new}{after}");
                (what.trim().into(), Some(Change::Expression(whole.clone(), mutated)))
            }
            "FnValue" => {
                let inside = |b: &&(Range<usize>, _)| b.0.start <= at.start && at.end <= b.0.end;
                let mut bodies: Vec<_> = self.bodies.iter().filter(inside).collect();
                bodies.sort_by_key(|b| b.0.len());
                let (body, has_no_name) = bodies.first()?;
                let change = Change::Body(body.start + 1, new.clone());
                let change = Some(change).filter(|_| !has_no_name);
                (format!("body replaced by {}", one_line(new)), change)
            }
            "MatchArm" => {
                let same = |a: &&Arm| a.whole.start == at.start;
                let Arm { pattern, guard, .. } = self.arms.iter().find(same)?;
                let end = guard.as_ref().map_or(pattern.end, |g| g.end);
                let what = format!("arm deleted: {}", first_chars(&text[pattern.start..end]));
                (what, Some(Change::Arm(pattern.end, guard.clone())))
            }
            "MatchArmGuard" => {
                let same = |g: &&Range<usize>| **g == at;
                let guard = self.arms.iter().filter_map(|a| a.guard.as_ref()).find(same)?;
                let what = format!("guard replaced by {new}: {}", first_chars(&text[at.clone()]));
                (what, Some(Change::Guard(guard.clone(), new.clone())))
            }
            "StructField" => {
                let inside = |s: &&Range<usize>| s.start <= at.start && at.end <= s.end;
                let whole = self.structs.iter().filter(inside).min_by_key(|s| s.len())?;
                let rest = text[at.end..whole.end].trim_start().trim_start_matches(',');
                let mutated = format!("{}{new}{rest}", &text[whole.start..at.start]);
                let what = format!("field deleted: {}", first_chars(&text[at.clone()]));
                (what, Some(Change::Expression(whole.clone(), mutated)))
            }
            _ => return None,
        })
    }

    fn operator(&mut self, whole: Span, op: Span) {
        self.operators.push((whole.byte_range(), op.byte_range()));
    }

    fn function(&mut self, signature: &syn::Signature, block: Option<&syn::Block>) {
        let Some(block) = block else { return };
        let has_no_name = match &signature.output {
            syn::ReturnType::Type(_, t) => matches!(**t, syn::Type::ImplTrait(_)),
            syn::ReturnType::Default => false,
        };
        self.bodies.push((block.span().byte_range(), has_no_name));
        if signature.constness.is_some() {
            self.constant.push((block.span().byte_range(), String::new()));
        }
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, e: &'ast syn::ExprBinary) {
        self.operator(e.span(), e.op.span());
        visit::visit_expr_binary(self, e);
    }
    fn visit_expr_unary(&mut self, e: &'ast syn::ExprUnary) {
        self.operator(e.span(), e.op.span());
        visit::visit_expr_unary(self, e);
    }
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let guard = arm.guard.as_ref().map(|(_, guard)| guard.span().byte_range());
        let (whole, pattern) = (arm.span().byte_range(), arm.pat.span().byte_range());
        self.arms.push(Arm { whole, pattern, guard });
        visit::visit_arm(self, arm);
    }
    fn visit_expr_struct(&mut self, e: &'ast syn::ExprStruct) {
        self.structs.push(e.span().byte_range());
        visit::visit_expr_struct(self, e);
    }
    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        self.function(&f.sig, Some(&f.block));
        visit::visit_item_fn(self, f);
    }
    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        self.function(&f.sig, Some(&f.block));
        visit::visit_impl_item_fn(self, f);
    }
    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        self.function(&f.sig, f.default.as_ref());
        visit::visit_trait_item_fn(self, f);
    }
    fn visit_item_const(&mut self, c: &'ast syn::ItemConst) {
        self.constant.push((c.span().byte_range(), c.ident.to_string()));
        visit::visit_item_const(self, c);
    }
    fn visit_impl_item_const(&mut self, c: &'ast syn::ImplItemConst) {
        self.constant.push((c.span().byte_range(), c.ident.to_string()));
        visit::visit_impl_item_const(self, c);
    }
}

/// The text on one line, without comments.
fn one_line(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

fn first_chars(text: &str) -> String {
    one_line(text).chars().take(CONTEXT_CHARS).collect::<String>().trim().into()
}

fn last_chars(text: &str) -> String {
    let line = one_line(text);
    let skipped = line.chars().count().saturating_sub(CONTEXT_CHARS);
    line.chars().skip(skipped).collect::<String>().trim().into()
}
