// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing that is shipped can have faults injected.

use std::process::Command;

#[test]
fn no_build_without_tests_has_the_feature() {
    let tree = |edges: &str| {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let output = Command::new(cargo)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["tree", "--locked", "--offline", "--workspace", "--edges", edges])
            .output()
            .expect("cargo runs this test, so it can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("names")
    };
    assert!(!tree("features,normal,build").contains("fault-injection"));
    assert!(tree("features,dev").contains("fault-injection"), "it would not be seen");
}
