// SPDX-License-Identifier: MIT OR Apache-2.0
//! `include/dlock.h`, which is written by hand, has the functions, structs and numbers of
//! `src/modern`: the same names, fields in the same order, types that match.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// By their names: functions with their parameters and result, structs with their fields; numbers.
#[derive(Debug, Default, PartialEq)]
struct Interface {
    functions: BTreeMap<String, String>,
    structs: BTreeMap<String, String>,
    numbers: BTreeMap<String, i64>,
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn of_header() -> Interface {
    let text = fs::read_to_string(folder().join("../../include/dlock.h")).unwrap();
    let mut found = Interface::default();
    let mut code = without_comments(&text);
    code.retain(|c| c != '\r');
    let lines = code.lines().filter(|line| !line.starts_with('#') && !line.ends_with('\\'));
    let code = lines.collect::<Vec<_>>().join(" ");
    let code = code.replace("extern \"C\" {", "").replace("/* extern \"C\" */", "");
    let mut rest = code.as_str();
    while let Some((head, tail)) = rest.split_once(';') {
        let head = head.trim();
        match head.split_once('{') {
            Some((begin, first)) => {
                // a block, which has semicolons of its own
                let (inner, after) = format!("{first};{tail}")
                    .split_once('}')
                    .map(|(inner, after)| (inner.to_string(), after.to_string()))
                    .expect("a block ends");
                let end = after.find(';').expect("a declaration ends");
                let name = after[..end].trim().to_string();
                if begin.trim() == "enum" {
                    found.numbers.extend(numbers(&inner, ','));
                } else {
                    assert_eq!(begin.trim(), format!("typedef struct {name}"));
                    found.structs.insert(name, fields(&inner));
                }
                rest = &rest[rest.len() - (after.len() - end - 1)..];
            }
            None => {
                if !head.starts_with("typedef") {
                    let (name, signature) = c_function(head);
                    found.functions.insert(name, signature);
                }
                rest = tail;
            }
        }
    }
    let version = text.lines().find_map(|line| line.strip_prefix("#define DLOCK_API_VERSION "));
    let version = version.unwrap().trim_end_matches('u').parse().unwrap();
    found.numbers.insert("DLOCK_API_VERSION".into(), version);
    found
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((code, tail)) = rest.split_once("/*") {
        out.push_str(code);
        rest = tail.split_once("*/").expect("a comment ends").1;
    }
    out + rest
}

fn numbers(text: &str, separator: char) -> Vec<(String, i64)> {
    let pairs = text.split(separator).filter_map(|item| item.split_once('='));
    pairs.map(|(name, value)| (name.trim().into(), value.trim().parse().unwrap())).collect()
}

/// `const char *name` → `const char * name`.
fn c_declaration(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('*', "* ");
    let at = text.rfind(' ').unwrap_or_else(|| panic!("no declaration: {text:?}"));
    format!("{} {}", text[..at].trim(), &text[at + 1..])
}

fn fields(text: &str) -> String {
    let fields = text.split(';').map(str::trim).filter(|field| !field.is_empty());
    fields.map(c_declaration).collect::<Vec<_>>().join("; ")
}

fn c_function(text: &str) -> (String, String) {
    let (head, parameters) = text.split_once('(').unwrap_or_else(|| panic!("{text:?}"));
    let head = c_declaration(head);
    let (result, name) = head.rsplit_once(' ').unwrap();
    let parameters = parameters.trim_end_matches(')').trim();
    let parameters = match parameters {
        "void" => String::new(),
        some => some.split(',').map(c_declaration).collect::<Vec<_>>().join(", "),
    };
    (name.into(), format!("{result} ({parameters})"))
}

fn of_library() -> Interface {
    let mut found = Interface::default();
    for file in fs::read_dir(folder().join("src/modern")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for function in text.split("#[no_mangle]\npub ").skip(1) {
            let (name, signature) = rust_function(function.split_once(" {\n").unwrap().0);
            assert!(found.functions.insert(name, signature).is_none());
        }
        for block in text.split("\nnumbers! {").skip(1) {
            let (_type, body) = block.split_once(':').unwrap();
            found.numbers.extend(numbers(body.split_once('}').unwrap().0, ';'));
        }
        for block in text.split("    pub struct dlock_").skip(1) {
            let (name, body) = block.split_once(" {").unwrap();
            let body = body.split_once('}').unwrap().0.replace("pub ", "").replace("r#", "");
            let fields = body.split(',').map(str::trim).filter(|field| !field.is_empty());
            let fields = fields.map(rust_declaration).collect::<Vec<_>>().join("; ");
            found.structs.insert(format!("dlock_{name}"), fields);
        }
    }
    found
}

fn rust_function(text: &str) -> (String, String) {
    let text = text.trim_start_matches("unsafe ");
    let text = text.strip_prefix("extern \"C\" fn ").expect("a function of C");
    let (name, rest) = text.split_once('(').unwrap();
    let (parameters, result) = rest.split_once(')').unwrap();
    let parameters = parameters.split(',').map(str::trim).filter(|item| !item.is_empty());
    let parameters = parameters.map(rust_declaration).collect::<Vec<_>>().join(", ");
    let result = c_type(result.trim().strip_prefix("-> ").unwrap());
    (name.into(), format!("{result} ({parameters})"))
}

fn rust_declaration(text: &str) -> String {
    let (name, kind) = text.split_once(':').unwrap_or_else(|| panic!("{text:?}"));
    format!("{} {}", c_type(kind.trim()), name.trim())
}

fn c_type(text: &str) -> String {
    if let Some(target) = text.strip_prefix("*const ") {
        return format!("const {} *", c_type(target));
    }
    if let Some(target) = text.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    let name = match text {
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        name => name,
    };
    name.into()
}

#[test]
fn the_header_declares_what_the_library_has() {
    let (header, library) = (of_header(), of_library());
    assert!(header.functions.len() > 30 && header.structs.len() > 12);
    assert!(header.numbers.len() > 40);
    assert_eq!(header.functions, library.functions);
    assert_eq!(header.structs, library.structs);
    assert_eq!(header.numbers, library.numbers);
}
