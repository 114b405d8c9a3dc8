// SPDX-License-Identifier: MIT OR Apache-2.0
//! dlockd.toml(5), of the commented example: a comment belongs to the key, or the table, below it.

use crate::{markdown, roff};

/// The manual page dlockd.toml(5), made of the commented example.
pub(crate) fn page(example: &str) -> String {
    let mut out = roff::title("dlockd.toml", 5, "dlock-server/dlockd.toml");
    out.push_str(
        ".SH NAME\ndlockd.toml \\- configuration of a dlock primary\n.SH DESCRIPTION\n\
         A TOML file that\n.BR dlockd (8)\nreads. \
         Keys that are shown without a value have no default.\n",
    );
    let mut comment: Vec<&str> = Vec::new();
    let mut lines = example.lines().skip(1).peekable(); // the first line is the licence
    while let Some(line) = lines.next() {
        if let Some(name) = section(line) {
            out.push_str(&format!(".SH \"{}\"\n", markdown::inline(&name.to_uppercase())));
        } else if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
        } else if line.is_empty() {
            if !comment.is_empty() {
                out.push_str(&format!(".PP\n{}", paragraph(&comment)));
                comment.clear();
            }
        } else {
            let key = line.trim_start_matches('#');
            out.push_str(&format!(".TP\n\\fB{}\\fR\n", roff::escaped(&shown(line))));
            // Keys below one comment share it.
            let shares = lines.peek().is_some_and(|next| is_key(next) && !key.starts_with('['));
            match (comment.is_empty(), shares) {
                (false, true) => {
                    out.truncate(out.len() - 1);
                    out.push_str(", ");
                    let next = lines.next().unwrap_or_default();
                    out.push_str(&format!("\\fB{}\\fR\n", roff::escaped(&shown(next))));
                    out.push_str(&paragraph(&comment));
                }
                (false, false) => out.push_str(&paragraph(&comment)),
                (true, _) => out.push_str("See above.\n"),
            }
            comment.clear();
        }
    }
    out.push_str(
        ".SH FILES\n.I /etc/dlock/dlockd.toml\nis what the service reads.\n\
         .SH SEE ALSO\n.BR dlockd (8),\n.BR dlock (1)\n",
    );
    out
}

/// A key as the page shows it: `name = value` with the default, or only the name if the example
/// does not set the key.
fn shown(line: &str) -> String {
    match line.strip_prefix('#') {
        Some(example) if example.starts_with('[') => example.to_string(),
        Some(example) => example.split(" =").next().unwrap_or(example).to_string(),
        None => line.to_string(),
    }
}

fn is_key(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("# ")
}

/// The name of a section, if the line begins one: `# --- name ---…`.
fn section(line: &str) -> Option<&str> {
    line.strip_prefix("# --- ")?.split(" ---").next()
}

fn paragraph(comment: &[&str]) -> String {
    roff::lines(&markdown::inline(&comment.join("\n")))
}
