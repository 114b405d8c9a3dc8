// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of documents and comments: words, widths, sizes, and that what they name exists.

use std::collections::BTreeSet;

use crate::tree::File;

/// The most columns of a line of Markdown; rows of tables may be wider.
pub const MARKDOWN_COLUMNS_MAX: usize = 100;
/// The most bytes in the record of a decision.
pub const RECORD_BYTES_MAX: usize = 4_000;
/// The most bytes in ARCHITECTURE.md. A longer map would not be read.
pub const ARCHITECTURE_BYTES_MAX: usize = 14_000;
/// The most bytes in all Markdown files together, without those of `MADE`.
pub const MARKDOWN_BYTES_MAX: usize = 220_000;
/// Documents that are made of the code, like the manual pages. They have no size of their own.
const MADE: [&str; 1] = ["docs/metrics.md"];
/// The most lines in CHANGELOG.md.
pub const CHANGELOG_LINES_MAX: usize = 80;
/// The most lines in one entry of CHANGELOG.md.
pub const CHANGELOG_ENTRY_LINES_MAX: usize = 2;
/// The kinds of entries that Keep a Changelog has.
const CHANGELOG_KINDS: [&str; 6] =
    ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// Pronouns that make a reader look for what is meant: a sentence names its subject.
const VAGUE: [&str; 6] = ["nobody", "whoever", "somebody", "whatever", "anybody", "everybody"];
/// Folders whose comments are checked for [`VAGUE`]. A folder that was mended is added here.
const CHECKED: [&str; 18] = [
    "benches/",
    "cmake/",
    "dlock-cli/",
    "dlock-client/",
    "dlock-core/src/clock",
    "dlock-core/src/budget/rate.rs",
    "dlock-core/src/registry/",
    "dlock-core/src/budget/shares.rs",
    "dlock-core/src/roster/",
    "dlock-core/src/standby/",
    "dlock-fabric/",
    "dlock-ffi/",
    "dlock-server/",
    "examples/",
    "include/",
    "packaging/",
    "scripts/",
    "tests/",
];
/// Parts of [`CHECKED`] whose comments are still to be mended.
const UNCHECKED: [&str; 2] = ["tests/models/", "tests/sim/"];
/// Extensions of files whose comments begin with `//`, `/*` or `*`; below, of those whose comments
/// begin with `#`.
const SLASHES: [&str; 5] = ["rs", "c", "h", "cpp", "hpp"];
const HASHES: [&str; 5] = ["sh", "py", "toml", "cmake", "service"];

fn is_markdown(file: &&File) -> bool {
    file.extension() == "md"
}

/// Vague pronouns in documents and in the comments of `CHECKED`.
pub fn vague_words(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files {
        let has = |folders: &[&str]| folders.iter().any(|f| file.path.starts_with(f));
        let is_checked = has(&CHECKED) && !has(&UNCHECKED);
        for (number, line) in file.text.lines().enumerate() {
            let prose = match is_markdown(&file) {
                true => line,
                false if is_checked => comment(file.extension(), line),
                false => break,
            };
            if let Some(word) = VAGUE.iter().find(|word| has_word(prose, word)) {
                offences.push(format!("{}:{}: `{word}`: name the thing", file.path, number + 1));
            }
        }
    }
    offences
}

/// The comment of a line; empty if there is none. A text in quotes that looks like a comment counts
/// as one.
fn comment<'a>(extension: &str, line: &'a str) -> &'a str {
    let marks: &[&str] = match extension {
        e if SLASHES.contains(&e) => &["//", "/*"],
        e if HASHES.contains(&e) => &["#"],
        _ => &[],
    };
    let is_inside = SLASHES.contains(&extension) && line.trim_start().starts_with("* ");
    let begins = marks.iter().filter_map(|mark| line.find(mark)).min();
    if is_inside {
        line
    } else {
        begins.map_or("", |at| &line[at..])
    }
}

/// Whether the text contains this word alone: it may be a part of a test's name.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).any(|w| w.eq_ignore_ascii_case(word))
}

/// Lines of Markdown that are too wide. A row of a table cannot be wrapped.
pub fn wide_markdown(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(is_markdown) {
        for (number, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            let is_row = line.trim_start().starts_with('|');
            if columns > MARKDOWN_COLUMNS_MAX && !is_row {
                offences.push(format!("{}:{}: {columns} columns", file.path, number + 1));
            }
        }
    }
    offences
}

/// Documents that are too long; each one, and all together.
pub fn long_documents(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    let mut sum = 0;
    for file in files.iter().filter(is_markdown).filter(|f| !MADE.contains(&f.path.as_str())) {
        let bytes = file.text.len();
        sum += bytes;
        let most = match file.path.as_str() {
            "ARCHITECTURE.md" => ARCHITECTURE_BYTES_MAX,
            path if path.starts_with("docs/adr/") => RECORD_BYTES_MAX,
            _ => MARKDOWN_BYTES_MAX,
        };
        if bytes > most {
            offences.push(format!("{}: {bytes} bytes, {most} at most", file.path));
        }
    }
    if sum > MARKDOWN_BYTES_MAX {
        offences.push(format!("all Markdown: {sum} bytes, {MARKDOWN_BYTES_MAX} at most"));
    }
    offences
}

/// A changelog or an entry that is too long, and entries under other headings than
/// `CHANGELOG_KINDS`.
pub fn changelog_offences(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| f.path == "CHANGELOG.md") {
        let lines = file.text.lines().count();
        if lines > CHANGELOG_LINES_MAX {
            offences.push(format!("CHANGELOG.md: {lines} lines, {CHANGELOG_LINES_MAX} at most"));
        }
        let mut length = 0;
        for (number, line) in file.text.lines().enumerate() {
            length = match line {
                line if line.starts_with("* ") => 1,
                line if line.starts_with("  ") && length > 0 => length + 1,
                _ => 0,
            };
            if length == CHANGELOG_ENTRY_LINES_MAX + 1 {
                offences.push(format!("CHANGELOG.md:{}: a long entry", number + 1));
            }
            let kind = line.strip_prefix("### ");
            if kind.is_some_and(|kind| !CHANGELOG_KINDS.contains(&kind)) {
                offences.push(format!("CHANGELOG.md:{}: no kind of entries", number + 1));
            }
        }
    }
    offences
}

/// Links between documents that lead to a missing file or heading.
pub fn broken_links(files: &[File]) -> Vec<String> {
    let paths: BTreeSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
    let mut offences = Vec::new();
    for file in files.iter().filter(is_markdown) {
        for (number, line) in file.text.lines().enumerate() {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                if link.contains("://") || path.starts_with('…') {
                    continue;
                }
                let target = match path {
                    "" => file.path.clone(),
                    path => resolved(&file.path, path),
                };
                let folder = format!("{}/", target.trim_end_matches('/'));
                let is_there =
                    paths.contains(target.as_str()) || paths.iter().any(|p| p.starts_with(&folder));
                let document = files.iter().find(|f| f.path == target);
                let has_heading =
                    heading.is_empty() || document.is_some_and(|d| headings(d).contains(heading));
                if !is_there || !has_heading {
                    offences.push(format!("{}:{}: no {link}", file.path, number + 1));
                }
            }
        }
    }
    offences
}

/// The path that a link in a document names.
fn resolved(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings.
fn headings(file: &File) -> BTreeSet<String> {
    let anchor = |title: &str| -> String {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    let titles = file.text.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Documents that name files, tests and planted bugs of the code: ARCHITECTURE.md and the pages of
/// docs/protocol. What they name must exist.
pub fn unknown_names(files: &[File]) -> Vec<String> {
    let sources: Vec<&File> = files.iter().filter(|f| f.extension() == "rs").collect();
    let functions: BTreeSet<&str> = sources.iter().flat_map(|f| functions(&f.text)).collect();
    let bugs = ["dlock-core/src/planted.rs", "tests/sim/src/system/bugs.rs"];
    let bugs: Vec<&&File> = sources.iter().filter(|f| bugs.contains(&f.path.as_str())).collect();
    let is_bug = |name: &str| bugs.iter().any(|f| f.text.contains(&format!("\"{name}\"")));
    let is_file = |name: &str| {
        let end = format!("/{name}");
        files.iter().any(|f| f.path == name || f.path.ends_with(&end))
    };
    let names_code = |f: &&File| {
        f.path == "ARCHITECTURE.md" || f.path.starts_with("docs/protocol/") && is_markdown(f)
    };
    let mut offences = Vec::new();
    for file in files.iter().filter(names_code) {
        for (name, is_of_bugs) in quoted(&file.text) {
            let is_known = match name {
                name if name.ends_with(".rs") => is_file(name),
                name if is_test_name(name) => functions.contains(name),
                name if is_of_bugs => is_bug(name),
                _ => true,
            };
            if !is_known {
                offences.push(format!("{}: there is no `{name}`", file.path));
            }
        }
    }
    offences
}

/// What a document has between backticks, outside of code blocks, and whether that follows
/// `Bug:` or `Bugs:` in the same paragraph.
fn quoted(text: &str) -> Vec<(&str, bool)> {
    let mut names = Vec::new();
    let (mut in_block, mut is_of_bugs) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        }
        if in_block || line.is_empty() {
            is_of_bugs = false;
            continue;
        }
        let mut before = "";
        for (number, part) in line.split('`').enumerate() {
            if number % 2 == 0 {
                before = part;
                continue;
            }
            let says = |words: [&str; 2]| words.iter().any(|word| before.contains(word));
            is_of_bugs |= says(["Bug:", "Bugs:"]);
            is_of_bugs &= !says(["Code:", "Test"]);
            names.push((part, is_of_bugs));
        }
    }
    names
}

/// The names of tests are sentences: four words at least.
fn is_test_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.chars().all(is_plain) && name.matches('_').count() >= 4
}

/// The names of a source's functions.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let end = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split("fn ").skip(1).filter_map(move |rest| rest.split(end).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn vague_words_are_found_in_documents_and_in_comments_of_checked_folders() {
        let word = VAGUE[0];
        let found = |path: &str, text: &str| vague_words(&[file(path, text)]).len();
        assert_eq!(found("docs/a.md", &format!("{word} waits")), 1);
        assert_eq!(found("docs/a.md", &format!("`a_test_that_{word}_reads`")), 0);
        assert_eq!(found("tests/tidy/a.rs", &format!("x(); // {word} waits")), 1);
        assert_eq!(found("tests/tidy/a.rs", &format!("let {word} = 1;")), 0);
        assert_eq!(found("tests/tidy/a.sh", &format!("# for {word}")), 1);
        assert_eq!(found("tests/tidy/a.c", &format!(" * for {word}")), 1);
        assert_eq!(found("elsewhere/a.rs", &format!("// {word} waits")), 0);
    }

    #[test]
    fn a_wide_line_of_markdown_is_found_and_a_row_of_a_table_is_none() {
        let wide = "x".repeat(MARKDOWN_COLUMNS_MAX + 1);
        assert_eq!(wide_markdown(&[file("a.md", &wide)]).len(), 1);
        assert_eq!(wide_markdown(&[file("a.md", &format!("| {wide} |"))]).len(), 0);
        assert_eq!(wide_markdown(&[file("a.txt", &wide)]).len(), 0);
    }

    #[test]
    fn long_documents_are_found_one_by_one_and_together() {
        let found = |path: &str, bytes: usize| long_documents(&[file(path, &"x".repeat(bytes))]);
        assert_eq!(found("docs/adr/0001-x.md", RECORD_BYTES_MAX).len(), 0);
        assert_eq!(found("docs/adr/0001-x.md", RECORD_BYTES_MAX + 1).len(), 1);
        assert_eq!(found("ARCHITECTURE.md", ARCHITECTURE_BYTES_MAX + 1).len(), 1);
        let half = "x".repeat(MARKDOWN_BYTES_MAX / 2 + 1);
        assert_eq!(long_documents(&[file("a.md", &half), file("b.md", &half)]).len(), 1);
        assert_eq!(long_documents(&[file(MADE[0], &half), file("b.md", &half)]).len(), 0);
    }

    #[test]
    fn a_changelog_has_short_entries_of_known_kinds() {
        let found = |text: &str| changelog_offences(&[file("CHANGELOG.md", text)]).len();
        assert_eq!(found("### Added\n\n* one\n  two\n* three\n"), 0);
        assert_eq!(found("* one\n  two\n  three\n"), 1);
        assert_eq!(found("### Improved\n"), 1);
        assert_eq!(found(&"\n".repeat(CHANGELOG_LINES_MAX + 1)), 1);
    }

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        let found = |text: &str| {
            let other = file("docs/b.md", "# One word, and `code`\n");
            broken_links(&[file("docs/a.md", text), other]).len()
        };
        assert_eq!(found("[x](b.md) [x](../docs) [x](b.md#one-word-and-code)"), 0);
        assert_eq!(found("[x](c.md)"), 1);
        assert_eq!(found("[x](b.md#two)"), 1);
        assert_eq!(found("[x](https://example.com/c.md)"), 0);
    }

    #[test]
    fn files_tests_and_bugs_that_do_not_exist_are_found() {
        let found = |text: &str| {
            let code = file("dlock-core/src/planted.rs", "fn a_rule_that_is_kept() {}\n\"a-bug\"");
            unknown_names(&[file("docs/protocol/a.md", text), code]).len()
        };
        assert_eq!(found("Code: `planted.rs`. Test: `a_rule_that_is_kept`. Bug: `a-bug`."), 0);
        assert_eq!(found("Code: `plant.rs`."), 1);
        assert_eq!(found("Test: `a_rule_that_is_lost`."), 1);
        assert_eq!(found("Bugs: `a-bug`,\n`another-bug`."), 1);
        assert_eq!(found("Bug: `a-bug`. Code: `some-crate`."), 0);
    }
}
