// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
pub struct File {
    /// The path of the file from the root of the repository, with `/`.
    pub path: String,
    /// The content of the file.
    pub text: String,
}

impl File {
    /// The part of the file name after the last dot, or nothing.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or("");
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two levels below the root").to_path_buf()
}

/// Every text file that git tracks or would track; without git (a source archive), every text
/// file outside of `target` and `build`.
pub fn files(root: &Path) -> Vec<File> {
    let paths = tracked(root).unwrap_or_else(|| {
        let mut paths = Vec::new();
        walk(root, Path::new(""), &mut paths);
        paths
    });
    let mut files: Vec<File> = paths
        .into_iter()
        .filter_map(|path| {
            // a file that is not UTF-8 is not checked
            let text = fs::read_to_string(root.join(&path)).ok()?;
            Some(File { path, text })
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = list.split('\0').filter(|p| !p.is_empty()).map(Into::into).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path, below: &Path, paths: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root.join(below)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let path = below.join(&name);
        let Ok(kind) = entry.file_type() else { continue };
        let skipped = ["target", "build", ".git"].iter().any(|s| name == *s);
        if kind.is_dir() && !skipped {
            walk(root, &path, paths);
        } else if kind.is_file() {
            paths.push(path.to_string_lossy().into_owned());
        }
    }
}
