// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Markdown of `docs/dlock.md` and `docs/dlockd.md` as man(7): sections, paragraphs, code,
//! lists, definitions (`: text` below a term), tables, whose rows become terms with their texts.

use crate::roff;

/// A document by its sections (`## NAME`): their names and their text.
pub(crate) fn sections(text: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            sections.push((name.to_string(), String::new()));
        } else if let Some((_, section)) = sections.last_mut() {
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

/// The text of a section.
pub(crate) fn section(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    blocks(&lines, &mut out);
    // A section begins with a paragraph by itself.
    out.strip_prefix(".PP\n").map_or(out.clone(), str::to_string)
}

/// Words with `code`, **bold**, *italics* and [links](to); of links the words alone.
pub(crate) fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[', '\\']) {
        out.push_str(&roff::escaped(&rest[..at]));
        let here = &rest[at..];
        let spanned = [("`", "`", 'B'), ("**", "**", 'B'), ("*", "*", 'I')].iter().find_map(
            |&(open, close, font)| {
                let (inner, after) = here.strip_prefix(open)?.split_once(close)?;
                let inner = match open {
                    "`" => roff::escaped(inner),
                    _ => inline(inner),
                };
                (!inner.is_empty()).then(|| (format!("\\f{font}{inner}\\fR"), after))
            },
        );
        let link = || {
            let (words, after) = here.strip_prefix('[')?.split_once("](")?;
            let (_, after) = after.split_once(')')?;
            Some((inline(words), after))
        };
        let literal = || {
            let escaped = here.strip_prefix('\\').filter(|after| after.starts_with('|'));
            escaped.map(|after| (String::new(), after))
        };
        match spanned.or_else(link).or_else(literal) {
            Some((made, after)) => {
                out.push_str(&made);
                rest = after;
            }
            None => {
                let (first, after) = here.split_at(1);
                out.push_str(&roff::escaped(first));
                rest = after;
            }
        }
    }
    out + &roff::escaped(rest)
}

fn blocks(lines: &[&str], out: &mut String) {
    let mut at = 0;
    while let Some(&line) = lines.get(at) {
        let rest = &lines[at..];
        let len = if line.trim().is_empty() {
            1
        } else if line.starts_with("```") {
            let len = rest[1..].iter().position(|l| l.starts_with("```")).expect("``` ends");
            let code = roff::verbatim(rest[1..=len].iter().copied());
            out.push_str(&format!(".PP\n.RS 4\n{code}.RE\n"));
            len + 2
        } else if let Some(name) = line.strip_prefix("### ") {
            out.push_str(&format!(".SS \"{}\"\n", inline(name)));
            1
        } else if line.starts_with('|') {
            let len = rest.iter().take_while(|l| l.starts_with('|')).count();
            table(&rest[..len], out);
            len
        } else if let Some(mark) = mark(line) {
            let len = item_len(rest, mark.len());
            let tag = if mark == "* " { "\\(bu" } else { mark.trim() };
            out.push_str(&format!(".IP {tag} 3\n"));
            item(&rest[..len], mark.len(), out);
            len
        } else {
            let ends = |l: &&str| l.trim().is_empty() || begins_block(l);
            let len = 1 + rest[1..].iter().take_while(|l| !ends(l)).count();
            let text = inline(&rest[..len].join("\n"));
            if rest.get(len).is_some_and(|next| next.starts_with(": ")) {
                out.push_str(&format!(".TP\n{}", roff::lines(&text.replace('\n', " "))));
                let body = item_len(&rest[len..], 2);
                item(&rest[len..len + body], 2, out);
                len + body
            } else {
                out.push_str(&format!(".PP\n{}", roff::lines(&text)));
                len
            }
        };
        at += len;
    }
}

fn begins_block(line: &str) -> bool {
    line.starts_with("```")
        || line.starts_with('|')
        || line.starts_with(": ")
        || mark(line).is_some()
}

/// `* ` or `1. ` at the beginning of a list's item.
fn mark(line: &str) -> Option<&str> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if line.starts_with("* ") {
        return Some("* ");
    }
    (digits > 0 && line[digits..].starts_with(". ")).then(|| &line[..digits + 2])
}

/// The lines of an item: the first, and all that are indented or empty behind it.
fn item_len(lines: &[&str], indent: usize) -> usize {
    let belongs = |l: &&&str| l.trim().is_empty() || l.bytes().take(indent).all(|b| b == b' ');
    1 + lines[1..].iter().take_while(belongs).count()
}

/// The first paragraph directly behind the tag, the rest indented below it.
fn item(lines: &[&str], indent: usize, out: &mut String) {
    let inner: Vec<&str> = lines.iter().map(|l| l.get(indent..).unwrap_or("")).collect();
    let ends = |l: &&str| l.trim().is_empty() || begins_block(l);
    let first = inner.iter().take_while(|l| !ends(l)).count();
    out.push_str(&roff::lines(&inline(&inner[..first].join("\n"))));
    if inner[first..].iter().any(|l| !l.trim().is_empty()) {
        out.push_str(&format!(".RS {}\n", if indent == 2 { 7 } else { 3 }));
        blocks(&inner[first..], out);
        out.push_str(".RE\n");
    }
}

/// The first cell is the term, the last one its text; what is between goes with its heading.
fn table(rows: &[&str], out: &mut String) {
    let heading = cells(rows[0]);
    for row in &rows[2..] {
        let cells = cells(row);
        let (term, rest) = cells.split_first().expect("a row has cells");
        let (text, between) = rest.split_last().expect("a row has two cells");
        out.push_str(&format!(".TP\n{}", roff::lines(&inline(term))));
        let between: Vec<String> = between
            .iter()
            .zip(&heading[1..])
            .filter(|(cell, _)| !cell.is_empty())
            .map(|(cell, name)| format!("{name}: {cell}"))
            .collect();
        let between = match between.is_empty() {
            true => String::new(),
            false => format!("({}) ", between.join("; ")),
        };
        out.push_str(&roff::lines(&inline(&format!("{between}{text}"))));
    }
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{1}");
    row.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fonts_and_nothing_else_is_a_request() {
        assert_eq!(
            inline("a `--b` *c* **d** [e](f.md)"),
            "a \\fB\\-\\-b\\fR \\fIc\\fR \\fBd\\fR e"
        );
        assert_eq!(inline("2^20 * 3 [x] \\"), "2\\(ha20 * 3 [x] \\e");
        assert_eq!(section(".x\n"), "\\&.x\n");
    }

    #[test]
    fn definitions_lists_tables_and_code_become_tags_and_blocks() {
        let text = "**exec** NAME\n: Waits,\n  then\n\n  * one\n    more\n  * two\n";
        assert_eq!(
            section(text),
            ".TP\n\\fBexec\\fR NAME\nWaits,\nthen\n\
             .RS 7\n.IP \\(bu 3\none\nmore\n.IP \\(bu 3\ntwo\n.RE\n"
        );
        let text =
            "| key | default | meaning |\n|---|---|---|\n| `a` | 1 | one |\n| `b` | | two |\n";
        assert_eq!(section(text), ".TP\n\\fBa\\fR\n(default: 1) one\n.TP\n\\fBb\\fR\ntwo\n");
        assert_eq!(section("```\nx\n.y\n```\n"), ".RS 4\n.nf\nx\n\\&.y\n.fi\n.RE\n");
    }
}
