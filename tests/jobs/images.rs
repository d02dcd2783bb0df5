//! The Dockerfiles, read by a linter, and compared with the project.

use std::fs;
use std::path::Path;

use crate::python::from_python;
use crate::tool::clean;
use crate::{example, printed};

const DOCKERFILES: [&str; 2] = ["docker/Dockerfile", "azureml/Dockerfile"];

#[test]
fn a_linter_finds_no_fault_in_the_dockerfiles() {
    let Some(hadolint) = from_python("lint", "hadolint") else { return };
    for file in DOCKERFILES {
        // Versions of Debian's packages are Debian's choice.
        let mut command = clean(hadolint.to_str().unwrap());
        let text = printed(command.args(["--ignore", "DL3008"]).arg(example(file)));
        assert_eq!(text, "");
    }
}

#[test]
fn images_are_built_with_the_oldest_compiler_that_is_promised() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in DOCKERFILES {
        let text = fs::read_to_string(example(file)).unwrap();
        assert!(text.contains(&format!("\nFROM rust:{}-", env!("CARGO_PKG_RUST_VERSION"))), "{text}");
        // What it copies from the sources is there.
        for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--")) {
            let source = line.split(' ').next().unwrap();
            assert!(top.join(source).exists(), "{file}: {line}");
        }
    }
}
