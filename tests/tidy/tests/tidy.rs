// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository follows its own style.

use dlock_tidy::{cargo, prose, source, tree};

fn none(offences: Vec<String>) {
    assert!(offences.is_empty(), "{} offences:\n  {}", offences.len(), offences.join("\n  "));
}

#[test]
fn the_repository_is_found() {
    let files = tree::files(&tree::root());
    assert!(files.iter().any(|f| f.path == "dlock-core/src/lib.rs"), "{} files", files.len());
}

#[test]
fn every_source_file_has_the_licence_line() {
    none(source::without_licence(&tree::files(&tree::root())));
}

#[test]
fn no_file_is_too_long() {
    none(source::too_long(&tree::files(&tree::root())));
}

#[test]
fn no_line_of_rust_is_too_wide() {
    none(source::too_wide(&tree::files(&tree::root())));
}

#[test]
fn unsafe_code_is_in_fabric_and_ffi_only() {
    none(source::stray_unsafe(&tree::files(&tree::root())));
}

#[test]
fn no_table_of_the_core_moves_as_a_whole() {
    none(source::tables_that_move(&tree::files(&tree::root())));
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    let root = tree::root();
    none(source::machine_traces(&tree::files(&root), &root));
}

#[test]
fn the_libraries_read_the_environment_in_one_place() {
    none(source::stray_environment(&tree::files(&tree::root())));
}

#[test]
fn every_test_program_that_wants_a_device_is_run_with_one() {
    none(source::without_a_device(&tree::files(&tree::root())));
}

#[test]
fn documents_and_comments_name_their_subjects() {
    none(prose::vague_words(&tree::files(&tree::root())));
}

#[test]
fn no_line_of_markdown_is_too_wide() {
    none(prose::wide_markdown(&tree::files(&tree::root())));
}

#[test]
fn no_document_is_too_long() {
    none(prose::long_documents(&tree::files(&tree::root())));
}

#[test]
fn the_changelog_is_short_and_has_the_kinds_of_keep_a_changelog() {
    none(prose::changelog_offences(&tree::files(&tree::root())));
}

#[test]
fn links_between_documents_lead_somewhere() {
    none(prose::broken_links(&tree::files(&tree::root())));
}

#[test]
fn documents_name_files_tests_and_bugs_that_exist() {
    none(prose::unknown_names(&tree::files(&tree::root())));
}

#[test]
fn dependencies_point_from_the_edge_to_the_core() {
    none(cargo::wrong_direction(&tree::root()));
}

#[test]
fn every_dependency_has_a_reason_and_one_version() {
    none(cargo::unexplained(&tree::root()));
}

#[test]
fn licences_versions_and_sources_are_as_deny_toml_demands() {
    none(cargo::dependency_offences(&tree::root()));
}
