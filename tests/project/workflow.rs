//! The workflow that GitHub runs. It cannot run here, so it is checked against its schema and the
//! project.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};

const WORKFLOW: &str = ".github/workflows/ci.yml";

fn text(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The features of the manifest, in alphabetical order.
fn features() -> Vec<String> {
    let manifest = text("Cargo.toml");
    let (_, features) = manifest.split_once("\n[features]\n").unwrap();
    let (features, _) = features.split_once("\n\n").unwrap();
    let names =
        features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned());
    let mut names: Vec<_> =
        names.filter(|name| !name.starts_with('#') && name != "default").collect();
    names.sort_unstable();
    names
}

#[test]
fn the_crates_table_of_features_is_the_manifests() {
    let page = text("src/lib.rs").replace("\n//! ", "\n");
    let (_, table) = page
        .split_once("\n| feature | what it is for | on by default |\n| --- | --- | --- |\n")
        .unwrap();
    let rows = table
        .lines()
        .map_while(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split_once('`'));
    let mut named: Vec<_> = rows.map(|(name, _)| name).collect();
    named.sort_unstable();
    assert_eq!(named, features());
}

#[test]
fn the_workflow_follows_githubs_schema() {
    let Some(check) = from_python("lint", "check-jsonschema") else { return };
    let mut command = clean(check.to_str().unwrap());
    command.args(["--builtin-schema", "vendor.github-workflows", WORKFLOW]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_workflow_knows_the_oldest_compiler_and_every_feature() {
    let workflow = text(WORKFLOW);
    assert!(workflow.contains(&format!("rust-toolchain@{}.0\n", env!("CARGO_PKG_RUST_VERSION"))));
    let matrix = workflow.lines().find_map(|line| line.trim().strip_prefix("features: [")).unwrap();
    let names = features();
    assert!(names.len() > 4, "{names:?}");
    for name in names {
        assert!(matrix.split([',', ' ', ']', '"']).any(|word| word == name), "{name}: {matrix}");
    }
}

/// The project's scripts for bash.
const SCRIPTS: [&str; 10] = [
    "tests/gpu/run",
    "tests/run",
    "tests/mutants",
    "tests/real_programs/run",
    ".ci/run",
    ".ci/generate",
    "tests/hosts/mpirun.sh",
    "tests/hosts/two-hosts.sh",
    "tests/slurm/on-hosts.sh",
    "tests/slurm/one-machine.sh",
];

#[test]
fn scripts_are_what_bash_can_read() {
    if !is_there("bash") {
        return;
    }
    for file in SCRIPTS {
        let output = clean("bash").args(["-n", file]).output().unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn scripts_define_each_function_once() {
    for file in SCRIPTS {
        let text = text(file);
        let mut seen = BTreeSet::new();
        for (name, _) in text.lines().filter_map(|line| line.split_once("() {")) {
            assert!(seen.insert(name), "{file} defines {name} twice: bash takes the last one");
        }
    }
}
