// SPDX-License-Identifier: MIT OR Apache-2.0
//! dlock(3), of the drop-in C headers, and a page for each part of `dlock.h`: a comment belongs to
//! the declaration below it. Indented lines of a comment, which are lists of codes, stay as they
//! are.

use crate::roff;

const BEGIN: &str = "\
.SH NAME
dlock \\- C interface of the dlock lock service
.SH LIBRARY
libdlockc (clients), libdlocks (primaries), libdlockm (what both share)
.SH SYNOPSIS
.nf
.B #include <dlock_client_api.h>
.B #include <dlock_server_api.h>
.B #include <dlock_log.h>
.PP
cc ... $(pkg\\-config \\-\\-cflags \\-\\-libs libdlockc libdlockm)
.fi
.PP
With CMake: find_package(dlock), and the targets dlock::client and dlock::server. In C++ all names
are in namespace dlock.
";

const END: &str = "\
.SH SEE ALSO
.BR dlock_library (3)
(the modern interface, dlock.h),
.BR dlock (1),
.BR dlockd (8)
";

/// The manual page dlock(3), made of these headers with their names.
pub(crate) fn page(headers: &[(&str, String)]) -> String {
    let mut out = roff::title("dlock", 3, "include/*.h") + BEGIN;
    for (name, text) in headers {
        out.push_str(&format!(".SH \"{}\"\n", roff::escaped(name)));
        header(text, &mut out);
    }
    out + END
}

fn header(text: &str, out: &mut String) {
    let mut comment: Vec<&str> = Vec::new();
    let mut is_first = true;
    let mut lines = text.lines().skip(1); // the first line is the licence
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("/* ---- ") {
            let name = name.split(" ---").next().unwrap_or(name);
            out.push_str(&format!(".SS \"{}\"\n", roff::escaped(name)));
        } else if let Some(begin) = line.strip_prefix("/*") {
            comment = vec![begin];
            while !comment.last().is_some_and(|line| line.trim_end().ends_with("*/")) {
                comment.push(lines.next().expect("a comment ends"));
            }
            if is_first {
                out.push_str(".PP\n");
                described(&comment, out);
                comment.clear();
                is_first = false;
            }
        } else if is_declaration(line) {
            let mut declaration = vec![line];
            while !declaration.last().is_some_and(|line| line.ends_with(';')) {
                declaration.push(lines.next().expect("a declaration ends"));
            }
            let declaration = roff::escaped(&declaration.join("\n"));
            out.push_str(&format!(".PP\n.nf\n\\fB{declaration}\\fR\n.fi\n"));
            if !comment.is_empty() {
                out.push_str(".RS 4\n");
                described(&comment, out);
                out.push_str(".RE\n");
            }
            comment.clear();
        } else if line.is_empty() {
            comment.clear();
        }
    }
}

fn is_declaration(line: &str) -> bool {
    let begins =
        ["int ", "void ", "typedef int (", "typedef void (", "dlock_", "uint32_t ", "const char *"];
    begins.iter().any(|begin| line.starts_with(begin)) && line.contains('(')
}

/// The pages of `dlock.h`, by their names: one for each line `/* ---- part: what it is ---`. What
/// stands above the first one belongs to that.
pub(crate) fn pages(text: &str) -> Vec<(String, String)> {
    let mut parts = text.split("\n/* ---- ");
    let overview = parts.next().unwrap_or_default();
    let parts: Vec<(&str, &str, &str)> = parts
        .map(|part| {
            let (title, body) = part.split_once('\n').expect("a part has lines");
            let title = title.trim_end_matches(['-', '*', '/', ' ']);
            let (name, what) = title.split_once(": ").expect("`part: what it is`");
            (name, what, body)
        })
        .collect();
    let page = |(index, &(name, what, body)): (usize, &(&str, &str, &str))| {
        let page_name = format!("dlock_{name}");
        let mut out = roff::title(&page_name, 3, "include/dlock.h");
        let mut names = vec![page_name.clone()];
        names.extend(functions(body).into_iter().filter(|function| *function != page_name));
        let names = roff::escaped(&names.join(", "));
        out.push_str(&format!(".SH NAME\n{names} \\- {}\n", roff::escaped(what)));
        out.push_str(
            ".SH LIBRARY\nlibdlockc\n.SH SYNOPSIS\n.nf\n.B #include <dlock.h>\n.PP\n\
             cc ... $(pkg\\-config \\-\\-cflags \\-\\-libs libdlockc)\n.fi\n\
             .SH DESCRIPTION\n",
        );
        let begin = overview.find("\n/*").filter(|_| index == 0);
        let comment = begin.and_then(|at| overview[at + 1..].split_once("*/"));
        if let Some((comment, _)) = comment {
            described(&format!("{}*/", &comment[2..]).lines().collect::<Vec<_>>(), &mut out);
        }
        for block in body.split("\n\n").filter(|block| !block.trim().is_empty()) {
            part(block.trim_matches('\n'), &mut out);
        }
        out.push_str(".SH SEE ALSO\n");
        let others = parts.iter().map(|(name, ..)| *name).filter(|other| *other != name);
        for other in others {
            out.push_str(&format!(".BR dlock_{other} (3),\n"));
        }
        (page_name, out + ".BR dlock (3)\n")
    };
    parts.iter().enumerate().map(page).collect()
}

/// The names of the functions that a part of a header declares.
fn functions(body: &str) -> Vec<String> {
    let lines = body.lines().filter(|line| is_declaration(line) && !line.starts_with("/*"));
    let named = lines.filter_map(|line| {
        let before = line.split_once('(')?.0;
        Some(before.rsplit([' ', '*']).next()?.to_string())
    });
    named.collect()
}

/// Adds a block of a header to the page: a comment, and the declarations below it.
fn part(block: &str, out: &mut String) {
    let (comment, code) = match block.strip_prefix("/*").and_then(|rest| rest.split_once("*/\n")) {
        Some((comment, code)) => (Some(format!("{comment}*/")), code),
        None => (None, block),
    };
    // the ends of `extern "C"` and of the include guard are nothing for a reader
    if code.starts_with("#ifdef __cplusplus\n}") || code.starts_with("#endif") {
        return;
    }
    out.push_str(&format!(".PP\n.nf\n\\fB{}\\fR\n.fi\n", roff::escaped(code)));
    if let Some(comment) = comment {
        out.push_str(".RS 4\n");
        described(&comment.lines().collect::<Vec<_>>(), out);
        out.push_str(".RE\n");
    }
}

/// The text of a comment.
fn described(comment: &[&str], out: &mut String) {
    let last = comment.len() - 1;
    let mut listed: Vec<&str> = Vec::new();
    for (number, line) in comment.iter().enumerate() {
        let line = if number == last { line.trim_end().trim_end_matches("*/") } else { line };
        let line = line.strip_prefix(" *").unwrap_or(line);
        let line = line.strip_prefix(' ').unwrap_or(line).trim_end();
        if line.starts_with("  ") {
            listed.push(line);
            continue;
        }
        if !listed.is_empty() {
            out.push_str(&roff::verbatim(std::mem::take(&mut listed)));
        }
        match line.is_empty() {
            true if number > 0 && number < last => out.push_str(".PP\n"),
            true => {}
            false => out.push_str(&roff::lines(&roff::escaped(line))),
        }
    }
    if !listed.is_empty() {
        out.push_str(&roff::verbatim(listed));
    }
}
