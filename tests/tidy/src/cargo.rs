// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the workspace: the direction of dependencies, their reasons, licences and sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

/// Which crates of this workspace each crate may depend on, besides those of its own folder.
///
/// ```text
///   core <- fabric <- { server, client } <- { ffi, cli, bench }     sim: core alone
/// ```
const MAY_DEPEND_ON: [(&str, &[&str]); 9] = [
    ("dlock-core", &[]),
    ("dlock-fabric", &["dlock-core"]),
    ("dlock-server", &["dlock-core", "dlock-fabric"]),
    ("dlock-client", &["dlock-core", "dlock-fabric"]),
    ("dlock-ffi", &["dlock-core", "dlock-fabric", "dlock-server", "dlock-client"]),
    (
        "dlock-bench",
        &["dlock-core", "dlock-fabric", "dlock-server", "dlock-client", "dlock-cli-common"],
    ),
    ("dlock-cli", &["dlock-core", "dlock-fabric", "dlock-server", "dlock-client", "dlock-bench"]),
    ("tests/sim", &["dlock-core"]),
    ("tests/tidy", &[]),
];

/// Every kind of dependency that reaches users; `dev-dependencies` may point anywhere.
const KINDS: [&str; 2] = ["dependencies", "build-dependencies"];

/// Dependencies between crates of the workspace that point the wrong way.
pub fn wrong_direction(root: &Path) -> Vec<String> {
    let mut offences = Vec::new();
    for member in members(root) {
        let manifest = toml_file(&root.join(&member).join("Cargo.toml"));
        let Some((folder, may)) = rule_of(&member) else {
            // Crates for tests alone may depend on every crate; a crate that is shipped needs a
            // rule.
            if !member.starts_with("tests/") && !member.starts_with("benches") {
                offences
                    .push(format!("{member}: its place in the order is not known to tests/tidy"));
            }
            continue;
        };
        for dependency in dependencies(&manifest) {
            let ours = dependency.starts_with("dlock-");
            let permitted = may.contains(&dependency.as_str()) || dependency.starts_with(folder);
            if ours && !permitted {
                offences.push(format!("{member} must not depend on {dependency}"));
            }
        }
    }
    offences
}

/// The rule of a crate by its folder; `dlock-ffi/client` has that of `dlock-ffi`.
fn rule_of(member: &str) -> Option<(&'static str, &'static [&'static str])> {
    let has = |folder: &str| member == folder || member.starts_with(&format!("{folder}/"));
    MAY_DEPEND_ON.iter().find(|(folder, _)| has(folder)).copied()
}

fn members(root: &Path) -> Vec<String> {
    let workspace = toml_file(&root.join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().cloned().unwrap_or_default();
    members.iter().filter_map(|m| m.as_str().map(Into::into)).collect()
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut tables: Vec<&toml::Value> = KINDS.iter().filter_map(|k| manifest.get(*k)).collect();
    if let Some(targets) = manifest.get("target").and_then(|t| t.as_table()) {
        tables.extend(targets.values().flat_map(|t| KINDS.iter().filter_map(|k| t.get(*k))));
    }
    let tables = tables.into_iter().filter_map(|t| t.as_table());
    tables.flat_map(|t| t.keys().cloned()).collect()
}

fn toml_file(path: &Path) -> toml::Table {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Dependencies from outside that no comment in the workspace's Cargo.toml gives a reason for,
/// and versions that a crate chooses by itself.
pub fn unexplained(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    let mut offences = Vec::new();
    let mut inside = false;
    let mut comment_before = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if inside && line.contains('=') && !line.starts_with('#') {
            let ours = line.contains("path =");
            if !ours && !comment_before && !line.contains('#') {
                let name = line.split('=').next().unwrap_or("").trim();
                offences.push(format!("Cargo.toml: no comment says why {name} is needed"));
            }
        }
        // A comment above a group holds for its first line only.
        comment_before = line.starts_with('#');
    }
    for member in members(root) {
        offences.extend(own_versions(root, &member));
    }
    offences
}

fn own_versions(root: &Path, member: &str) -> Vec<String> {
    let manifest = toml_file(&root.join(member).join("Cargo.toml"));
    let mut offences = Vec::new();
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let Some(table) = manifest.get(kind).and_then(|t| t.as_table()) else { continue };
        for (name, value) in table {
            let shared = value.get("workspace").is_some() || value.get("path").is_some();
            if !shared {
                offences.push(format!("{member}: {name} has a version of its own"));
            }
        }
    }
    offences
}

/// What `deny.toml` demands and can be known without cargo-deny: licences, one version of each
/// crate, and nothing from elsewhere than the public registry.
pub fn dependency_offences(root: &Path) -> Vec<String> {
    let rules = toml_file(&root.join("deny.toml"));
    let mut offences = Vec::new();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in resolved_packages(root) {
        let name = package["name"].as_str().unwrap_or("").to_string();
        let version = package["version"].as_str().unwrap_or("").to_string();
        let licence = package["license"].as_str().unwrap_or("");
        if !permitted(licence, &rules) {
            offences.push(format!("{name} {version}: licence `{licence}` is not in deny.toml"));
        }
        let source = package["source"].as_str();
        if source.is_some_and(|s| s != "registry+https://github.com/rust-lang/crates.io-index") {
            offences.push(format!("{name} {version}: not from the public registry"));
        }
        versions.entry(name).or_default().insert(version);
    }
    let skipped = skipped_duplicates(&rules);
    for (name, versions) in versions {
        if versions.len() > 1 && !skipped.contains(&name) {
            let list: Vec<String> = versions.into_iter().collect();
            offences.push(format!("{name}: several versions: {}", list.join(", ")));
        }
    }
    offences
}

fn permitted(licence: &str, rules: &toml::Table) -> bool {
    let allow = rules["licenses"]["allow"].as_array().cloned().unwrap_or_default();
    let allow: Vec<&str> = allow.iter().filter_map(|a| a.as_str()).collect();
    let allowed = |req: &LicenseReq| {
        let id = req.license.id().map_or("", |id| id.name);
        allow.contains(&id)
    };
    Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|e| e.evaluate(allowed))
}

fn skipped_duplicates(rules: &toml::Table) -> BTreeSet<String> {
    let skip = rules["bans"].get("skip").and_then(|s| s.as_array()).cloned().unwrap_or_default();
    let name = |s: &toml::Value| {
        let text =
            s.as_str().or_else(|| s.get("crate")?.as_str()).or_else(|| s.get("name")?.as_str());
        text.map(|t| t.split(['@', ':']).next().unwrap_or(t).to_string())
    };
    skip.iter().filter_map(name).collect()
}

/// The packages that a build for this machine's system consists of.
fn resolved_packages(root: &Path) -> Vec<Value> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host()])
        .output()
        .expect("cargo runs this test, so it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().cloned().unwrap_or_default();
    let used: BTreeSet<&str> = nodes.iter().filter_map(|n| n["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    packages.into_iter().filter(|p| p["id"].as_str().is_some_and(|id| used.contains(id))).collect()
}

fn host() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> toml::Table {
        "[licenses]\nallow = [\"MIT\"]\n[bans]\nskip = [\"a@1.0\", { crate = \"b@2\" }]"
            .parse()
            .unwrap()
    }

    #[test]
    fn one_permitted_branch_of_a_licence_is_enough_and_none_is_not() {
        assert!(permitted("GPL-3.0 OR MIT", &rules()));
        assert!(permitted("MIT/Apache-2.0", &rules()));
        assert!(!permitted("GPL-3.0", &rules()));
        assert!(!permitted("MIT AND GPL-3.0", &rules()));
        assert!(!permitted("", &rules()));
    }

    #[test]
    fn every_rule_is_found_by_its_folder() {
        assert_eq!(rule_of("dlock-core"), Some(("dlock-core", &[][..])));
        assert_eq!(rule_of("dlock-ffi/client").map(|r| r.0), Some("dlock-ffi"));
        assert_eq!(rule_of("dlock-corelike"), None);
    }

    #[test]
    fn skipped_duplicates_are_read_in_both_forms() {
        let names: Vec<String> = skipped_duplicates(&rules()).into_iter().collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn dependencies_of_a_target_count() {
        let manifest = "[target.'cfg(unix)'.dependencies]\nx = \"1\"\n[dependencies]\ny = \"1\"";
        let mut names = dependencies(&manifest.parse().unwrap());
        names.sort();
        assert_eq!(names, ["x", "y"]);
    }
}
