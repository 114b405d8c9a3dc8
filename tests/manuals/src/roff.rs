// SPDX-License-Identifier: MIT OR Apache-2.0
//! The language of manual pages, man(7).

/// The first lines of a page: its name and section, and the version that it belongs to.
pub(crate) fn title(name: &str, section: u8, sources: &str) -> String {
    let version = crate::version();
    format!(
        ".\\\" SPDX-License-Identifier: MIT OR Apache-2.0\n\
         .\\\" Made by tests/manuals of {sources}: do not edit.\n\
         .ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n\
         .TH {name} {section} \"\" \"dlock {version}\" \"dlock manual\"\n"
    )
}

/// Text in which nothing is a request or an escape.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            '…' => escaped.push_str("..."),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A page without the requests that do nothing where they are, which `mandoc -Tlint` names: a
/// paragraph at the begin of a section, line breaks around an empty line.
pub(crate) fn tidied(page: &str) -> String {
    let page = page.replace(".br\n\n.br\n", ".sp\n");
    let mut out = String::with_capacity(page.len());
    let mut is_begin = false;
    for line in page.lines() {
        if !(is_begin && line == ".PP") {
            out.push_str(line);
            out.push('\n');
        }
        is_begin = line.starts_with(".SH ") || line.starts_with(".SS ");
    }
    out
}

/// Lines of text, none of which begins as a request does.
pub(crate) fn lines(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(guarded).collect()
}

/// Lines that stay as they are.
pub(crate) fn verbatim<'a>(text: impl IntoIterator<Item = &'a str>) -> String {
    let lines: String = text.into_iter().map(|line| guarded(&escaped(line))).collect();
    format!(".nf\n{lines}.fi\n")
}

fn guarded(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}\n"),
        false => format!("{line}\n"),
    }
}
