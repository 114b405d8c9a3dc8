// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a program, and its completions.
//!
//! ```text
//!   NAME                  the document
//!   SYNOPSIS, OPTIONS     the command line: usage and options of it and of each command
//!   the other sections    the document, in its order
//! ```

use clap::Command;
use clap_complete::Shell;

use crate::{check, markdown, read, roff, version};

/// A program with a manual.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name of the program.
    pub name: &'static str,
    /// The section of the manual.
    pub section: u8,
    /// The document with what `--help` does not say.
    pub document: &'static str,
}

/// Checks the page and the completions of a program.
///
/// # Panics
/// A file is not what its sources say, the document does not mention an option, or the program has
/// another version than the packages.
pub fn check_program(program: Program, command: Command) {
    let Program { name, section, document } = program;
    assert_eq!(command.get_version(), Some(&*version()), "{name}: Cargo.toml beside umdk.spec");
    let command = visible(name, command);
    let text = read(document);
    let unknown: Vec<String> =
        options(&command).into_iter().filter(|o| !text.contains(o)).collect();
    assert!(unknown.is_empty(), "{document} does not mention {unknown:?}");

    let mut out = roff::title(name, section, &format!("the command line of {name} and {document}"));
    for (name, body) in markdown::sections(&text) {
        match name.as_str() {
            "SYNOPSIS" => out.push_str(&synopsis(&command)),
            "SEE ALSO" => {}
            _ => out.push_str(&format!(".SH \"{name}\"\n{}", markdown::section(&body))),
        }
        if name == "DESCRIPTION" || name == "COMMANDS" {
            out.push_str(&options_section(&command));
        }
    }
    out.push_str(
        ".SH SEE ALSO\n.BR dlock (1),\n.BR dlockd (8),\n.BR dlockd.toml (5),\n.BR dlock (3)\n",
    );
    check(&format!("docs/man/{name}.{section}"), &roff::tidied(&out));

    for (shell, file) in [
        (Shell::Bash, format!("{name}.bash")),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), name, &mut script);
        let script = String::from_utf8(script).expect("a script is text");
        let lines = script.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        check(&format!("docs/completions/{file}"), &(lines + "\n"));
    }
}

/// The command line without the hidden commands, which clap's completions would offer.
fn visible(name: &'static str, mut command: Command) -> Command {
    let hidden: Vec<String> = command
        .get_subcommands()
        .filter(|sub| sub.is_hide_set())
        .map(|sub| sub.get_name().to_string())
        .collect();
    if !hidden.is_empty() {
        let mut shown = Command::new(name);
        for argument in command.get_arguments() {
            shown = shown.arg(argument.clone());
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            shown = shown.subcommand(sub.clone());
        }
        shown = shown.subcommand_required(true);
        if let Some(about) = command.get_about() {
            shown = shown.about(about.clone());
        }
        if command.get_version().is_some() {
            // only whether there is a version matters, for the option `--version`
            shown = shown.version("");
        }
        command = shown;
    }
    command.build();
    command
}

/// All long options.
fn options(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut all: Vec<String> = own.filter_map(|a| a.get_long().map(|l| format!("--{l}"))).collect();
    all.extend(command.get_subcommands().flat_map(options));
    all.retain(|option| option != "--version" && option != "--help" && option != "--verbose");
    all
}

/// The lowest commands, which do something; `dlock certs init` is one, `dlock certs` is not.
fn leaves(command: &Command) -> Vec<&Command> {
    let subs = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    let leaves: Vec<&Command> = subs.flat_map(leaves).collect();
    match leaves.is_empty() {
        true => vec![command],
        false => leaves,
    }
}

fn synopsis(command: &Command) -> String {
    let usages = leaves(command)
        .into_iter()
        .map(|leaf| {
            let usage = leaf.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ").to_string();
            roff::lines(&roff::escaped(&usage))
        })
        .collect::<Vec<_>>()
        .join(".br\n");
    format!(".SH SYNOPSIS\n{usages}")
}

/// The options of the program and of each command, as `--help` has them.
fn options_section(command: &Command) -> String {
    let own = rendered(command);
    let mut out = format!(".SH OPTIONS\n{own}");
    for leaf in leaves(command) {
        if leaf.get_name() == command.get_name() {
            continue;
        }
        let name = leaf.get_bin_name().unwrap_or(leaf.get_name());
        let about = leaf.get_about().map(ToString::to_string).unwrap_or_default();
        out.push_str(&format!(".SS \"{}\"\n", roff::escaped(name)));
        out.push_str(&roff::lines(&roff::escaped(&about)));
        // The options that all commands have are described once, with the program.
        let global: Vec<_> = command.get_arguments().map(|a| a.get_id().clone()).collect();
        let mut only = Command::new("only").disable_help_flag(true).disable_version_flag(true);
        for argument in leaf.get_arguments() {
            if !global.contains(argument.get_id()) && argument.get_id() != "help" {
                only = only.arg(argument.clone());
            }
        }
        out.push_str(&rendered(&only));
    }
    out
}

/// clap's own rendering of the options, without its heading.
fn rendered(command: &Command) -> String {
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone());
    man.render_options_section(&mut page).expect("memory takes everything");
    let page = String::from_utf8(page).expect("a page is text");
    let lines = page.lines().filter(|line| !line.starts_with(".SH ") && !line.starts_with(".ie "));
    let lines = lines.filter(|line| !line.starts_with(".el "));
    lines.map(|line| line.trim_end().to_string() + "\n").collect()
}
