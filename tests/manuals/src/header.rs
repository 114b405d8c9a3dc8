// SPDX-License-Identifier: MIT OR Apache-2.0
//! dlock(3), of the C headers: a comment belongs to the declaration below it. Indented lines of a
//! comment, which are lists of codes, stay as they are.

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
.BR dlock (1),
.BR dlockd (8)
";

/// The page.
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
    let mut lines = text.lines().skip(1); // behind the licence
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
    let begins = ["int ", "void ", "typedef int (", "typedef void (", "dlock_"];
    begins.iter().any(|begin| line.starts_with(begin)) && line.contains('(')
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
