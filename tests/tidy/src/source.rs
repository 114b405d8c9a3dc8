// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of single files.

use std::path::Path;
use std::{env, fs};

use crate::tree::File;

/// The most lines of code in a file, without its `mod tests`.
pub const CODE_LINES_MAX: usize = 600;
/// The most columns in a line of Rust.
pub const COLUMNS_MAX: usize = 100;
/// The licence line is within so many lines from the top: `#!` and XML declarations come before it.
const LICENCE_WITHIN: usize = 3;
/// The folders in which `unsafe` is permitted.
const UNSAFE_PERMITTED: [&str; 2] = ["dlock-fabric/", "dlock-ffi/"];
/// Extensions of files that are source code.
const SOURCE: [&str; 13] =
    ["rs", "c", "h", "cc", "cpp", "hpp", "sh", "py", "cmake", "s", "S", "in", "map"];
/// Source files without a telling extension.
const SOURCE_NAMES: [&str; 4] = ["Makefile", "CMakeLists.txt", ".ci/run", "dlock.pc.in"];

fn is_source(file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or("");
    SOURCE.contains(&file.extension())
        || SOURCE_NAMES.iter().any(|n| *n == name || *n == file.path)
        || file.text.starts_with("#!/")
}

/// Source files without the licence line at their top.
pub fn without_licence(files: &[File]) -> Vec<String> {
    // In two parts, so that this line is not itself taken for one.
    let line = concat!("SPDX-License-", "Identifier: MIT OR Apache-2.0");
    let missing = |f: &&File| !f.text.lines().take(LICENCE_WITHIN).any(|l| l.contains(line));
    let offence = |f: &File| format!("{}: no licence line: `{line}`", f.path);
    files.iter().filter(|f| is_source(f)).filter(missing).map(offence).collect()
}

/// Files that are too long, which usually contain more than one concept.
pub fn too_long(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| ["rs", "c", "h", "cpp"].contains(&f.extension())) {
        let lines = code_lines(&file.text);
        if lines > CODE_LINES_MAX {
            offences.push(format!("{}: {lines} lines, {CODE_LINES_MAX} at most", file.path));
        }
    }
    offences
}

/// The lines before a test module that ends the file.
fn code_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let is_module = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(test)]") && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_module).unwrap_or(lines.len())
}

/// Lines of Rust that are too wide.
pub fn too_wide(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| f.extension() == "rs") {
        for (number, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            // The text of an error stays in one piece, so that it can be searched for.
            let message = line.trim_start().starts_with("#[error(\"");
            if columns > COLUMNS_MAX && !message {
                offences.push(format!("{}:{}: {columns} columns", file.path, number + 1));
            }
        }
    }
    offences
}

/// `unsafe` code outside of the crates that may have it, and crate roots elsewhere that do not
/// forbid it.
pub fn stray_unsafe(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| f.extension() == "rs") {
        if UNSAFE_PERMITTED.iter().any(|p| file.path.starts_with(p)) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            if has_unsafe(line) {
                offences.push(format!("{}:{}: unsafe code", file.path, number + 1));
            }
        }
        let root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
        if root && !file.text.contains("#![forbid(unsafe_code)]") {
            offences.push(format!("{}: no `#![forbid(unsafe_code)]`", file.path));
        }
    }
    offences
}

/// Hash tables in the code of the primary's state. When such a table grows, one insertion moves the
/// whole table, and all clients wait; trees and lists by number grow in small steps. Also, two
/// primaries with the same input must do the same in the same order, but the order of a hash table
/// is random.
pub fn tables_that_move(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| f.path.starts_with("dlock-core/src/")) {
        for (number, line) in file.text.lines().take(code_lines(&file.text)).enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if ["HashMap", "HashSet", "RandomState"].iter().any(|word| code.contains(word)) {
                offences.push(format!("{}:{}: a hash table", file.path, number + 1));
            }
        }
    }
    offences
}

/// Whether the keyword is in the code of this line, not in a comment or a string.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let mut in_string = false;
    let mut words = String::new();
    for c in code.chars() {
        match c {
            '"' => in_string = !in_string,
            _ if in_string => {}
            c if c.is_alphanumeric() || c == '_' => words.push(c),
            _ => words.push(' '),
        }
    }
    words.split(' ').any(|w| w == "unsafe")
}

/// Traces of the machine on which a file was written: names of its folders and registries.
///
/// The names come from the machine on which the test runs, because traces are usually left there:
/// the folder of the checkout, the home folder, and the hosts in cargo's configuration. Home
/// folders of other people are found everywhere.
pub fn machine_traces(files: &[File], root: &Path) -> Vec<String> {
    let traces = traces_of_this_machine(root);
    let mut offences = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            let home = ["/home/", "/Users/"].iter().any(|h| names_a_home(line, h));
            if home || traces.iter().any(|t| line.contains(t.as_str())) {
                offences.push(format!("{}:{}: names a machine", file.path, number + 1));
            }
        }
    }
    offences
}

/// Library sources that read the environment without `dlock_fabric::os::environment`, which ignores
/// it for a caller that has fewer rights than the process. Programs may read it: they have no more
/// rights than their caller.
pub fn stray_environment(files: &[File]) -> Vec<String> {
    const LIBRARIES: [&str; 4] = ["dlock-core/", "dlock-fabric/", "dlock-client/", "dlock-ffi/"];
    let is_library = |path: &str| {
        let is_ours = LIBRARIES.iter().any(|library| path.starts_with(library))
            || path.starts_with("dlock-server/src/") && !path.starts_with("dlock-server/src/bin/");
        let is_test = path.contains("/tests/") || path.contains("_tests");
        is_ours
            && !is_test
            && path.ends_with(".rs")
            && !path.ends_with("/src/os/environment.rs")
            && path != "dlock-core/src/planted.rs"
    };
    let reads = |line: &str| line.contains("env::var") || line.contains("getenv(");
    let mut offences = Vec::new();
    for file in files.iter().filter(|file| is_library(&file.path)) {
        let code = file.text.lines().take_while(|line| *line != "mod tests {");
        for (number, _) in code.enumerate().filter(|(_, line)| reads(line)) {
            offences.push(format!("{}:{}: reads the environment", file.path, number + 1));
        }
    }
    offences
}

fn traces_of_this_machine(root: &Path) -> Vec<String> {
    let mut traces = Vec::new();
    let root = root.to_string_lossy();
    if root.matches('/').count() >= 2 {
        traces.push(root.into_owned());
    }
    let home = env::var("HOME").unwrap_or_default();
    if home.len() > 1 {
        traces.push(format!("{home}/"));
    }
    let cargo_home = env::var("CARGO_HOME").unwrap_or(format!("{home}/.cargo"));
    for name in ["config.toml", "config"] {
        let text = fs::read_to_string(Path::new(&cargo_home).join(name)).unwrap_or_default();
        traces.extend(hosts(&text));
    }
    // The address of the public registry tells nothing about the machine.
    traces.retain(|t| !["crates.io", "github.com"].iter().any(|public| t.ends_with(public)));
    traces
}

/// The host names in the URLs of a text.
fn hosts(text: &str) -> Vec<String> {
    let end = |c: char| !(c.is_alphanumeric() || c == '.' || c == '-');
    let urls = text.split("://").skip(1);
    let host = |u: &str| u.rsplit_once('@').map_or(u, |(_, h)| h).split(end).next().map(Into::into);
    urls.filter_map(host).filter(|h: &String| h.contains('.')).collect()
}

/// Whether the line has a folder below `home`: `/home/<name>/`, but not a placeholder.
fn names_a_home(line: &str, home: &str) -> bool {
    line.split(home).skip(1).any(|rest| {
        let name = rest.split('/').next().unwrap_or("");
        rest.contains('/') && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

/// Test programs that need an RDMA device, and that no case of the SoftRoCE suite runs. Elsewhere
/// such programs skip their tests.
pub fn without_a_device(files: &[File]) -> Vec<String> {
    let cases = |f: &&File| f.path.starts_with("tests/rxe/cases/") && f.extension() == "sh";
    let cases: Vec<&File> = files.iter().filter(cases).collect();
    let mut offences = Vec::new();
    for file in files.iter().filter(|f| f.text.contains("DLOCK_RXE_REQUIRED")) {
        let [package, "tests", name] = file.path.split('/').collect::<Vec<_>>()[..] else {
            continue;
        };
        let Some(name) = name.strip_suffix(".rs") else { continue };
        let run = format!("rust_tests {package}-{name}");
        let is_run = |case: &&File| case.text.lines().any(|line| line.trim_end() == run);
        if !cases.iter().any(is_run) {
            offences.push(format!("{}: no case of tests/rxe/cases has `{run}`", file.path));
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Vec<File> {
        vec![File { path: path.into(), text: text.into() }]
    }

    #[test]
    fn a_source_file_without_licence_is_found_and_others_are_left_alone() {
        assert_eq!(without_licence(&file("a/b.rs", "fn f() {}")).len(), 1);
        assert_eq!(without_licence(&file("run", "#!/bin/sh\n")).len(), 1);
        assert_eq!(without_licence(&file("a.md", "text")).len(), 0);
    }

    #[test]
    fn only_code_before_the_test_module_counts() {
        let long = "x\n".repeat(CODE_LINES_MAX);
        assert!(
            too_long(&file("a.rs", &format!("{long}#[cfg(test)]\nmod tests {{\n}}\n"))).is_empty()
        );
        assert_eq!(too_long(&file("a.rs", &format!("{long}y\n"))).len(), 1);
    }

    #[test]
    fn the_keyword_is_found_in_code_only() {
        let keyword = concat!("un", "safe");
        assert!(has_unsafe(&format!("let x = {keyword} {{ *p }};")));
        assert!(!has_unsafe(&format!("// {keyword}")));
        assert!(!has_unsafe(&format!("\"{keyword} text\"")));
        assert!(!has_unsafe(&format!("#![forbid({keyword}_code)]")));
        let text = format!("{keyword} fn f() {{}}");
        assert_eq!(stray_unsafe(&file("dlock-core/src/a.rs", &text)).len(), 1);
        assert!(stray_unsafe(&file("dlock-fabric/src/a.rs", &text)).is_empty());
    }

    #[test]
    fn a_hash_table_is_found_in_the_core_and_not_in_its_tests() {
        let table = concat!("x: Hash", "Map<u32, u32>,\n");
        assert_eq!(tables_that_move(&file("dlock-core/src/a.rs", table)).len(), 1);
        assert!(tables_that_move(&file("dlock-client/src/a.rs", table)).is_empty());
        let in_test = format!("#[cfg(test)]\nmod tests {{\n {table} }}");
        assert!(tables_that_move(&file("dlock-core/src/a.rs", &in_test)).is_empty());
    }

    #[test]
    fn a_wide_line_is_found() {
        assert_eq!(too_wide(&file("a.rs", &"x".repeat(COLUMNS_MAX + 1))).len(), 1);
        assert!(too_wide(&file("a.rs", &"ä".repeat(COLUMNS_MAX))).is_empty());
    }

    #[test]
    fn the_checkout_and_a_home_folder_are_traces() {
        let root = Path::new("/srv/somewhere/dlock");
        let trace = |text: &str| machine_traces(&file("a.md", text), root).len();
        assert_eq!(trace("see /srv/somewhere/dlock/x"), 1);
        assert_eq!(trace(concat!("/ho", "me/somebody/x")), 1);
        assert_eq!(trace("see ./x and /etc/dlock/dlockd.toml"), 0);
    }

    #[test]
    fn hosts_are_taken_from_urls() {
        let text = "registry = \"sparse+http://user:key@cache.example:80/index/\"";
        assert_eq!(hosts(text), ["cache.example"]);
    }

    #[test]
    fn test_programs_that_want_a_device_are_run_with_one() {
        let wants = "if required { env(\"DLOCK_RXE_REQUIRED\") }";
        let mut files = file("dlock-x/tests/verbs.rs", wants);
        assert_eq!(without_a_device(&files).len(), 1);
        files.extend(file("tests/rxe/cases/x.sh", "rust_tests dlock-x-verbs_too\n"));
        assert_eq!(without_a_device(&files).len(), 1);
        files.extend(file("tests/rxe/cases/y.sh", "set -e\nrust_tests dlock-x-verbs\n"));
        assert!(without_a_device(&files).is_empty());
        assert!(without_a_device(&file("dlock-x/src/verbs.rs", wants)).is_empty());
    }
}
