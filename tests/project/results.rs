//! The commands on the page of test results run tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The functions of a test program, as `module::name`.
fn names(program: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for file in files(program) {
        let module = file.strip_prefix(program).unwrap().with_extension("");
        let module = module.to_str().unwrap().replace('/', "::");
        let source = fs::read_to_string(&file).unwrap();
        let functions = source
            .split("fn ")
            .skip(1)
            .filter_map(|rest| rest.split_once('('))
            .map(|(name, _)| name);
        names.extend(functions.map(|name| format!("{module}::{name}")));
    }
    names
}

#[test]
fn every_command_of_the_test_results_names_tests_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(folder.join("src/guide/test_results.md")).unwrap();
    let commands: Vec<&str> = page.split('`').filter(|text| text.contains("cargo test ")).collect();
    assert!(commands.len() >= 20, "{}", commands.len());
    for command in commands {
        let (options, program) =
            command.split_once("--test ").unwrap_or_else(|| panic!("{command}"));
        assert!(
            options.contains("--workspace --all-features"),
            "{command}: some tests need all packages and features"
        );
        let mut words = program.split_whitespace();
        let program = words.next().unwrap();
        let packages = ["tests", "examples/sharding/tests", "examples/trainer/tests"];
        let programs = packages.map(|tests| folder.join(tests).join(program));
        let names: Vec<String> =
            programs.iter().filter(|folder| folder.is_dir()).flat_map(|path| names(path)).collect();
        for word in words.filter(|word| !word.starts_with("--")) {
            assert!(names.iter().any(|name| name.contains(word)), "{command}: no test {word}");
        }
    }
}
