//! The workflows that GitHub runs. They cannot run here, so they are checked against their schema
//! and the project. What they run for a release, `.ci/release --dry-run` runs here.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};

const WORKFLOW: &str = ".github/workflows/ci.yml";
const RELEASE: &str = ".github/workflows/release.yml";

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
        .split_once("\n| feature | what it is for | includes |\n| --- | --- | --- |\n")
        .unwrap();
    let rows = table.lines().map_while(|row| row.strip_prefix("| `")?.strip_suffix(" |"));
    let mut documented: Vec<_> = rows
        .map(|row| (row.split_once('`').unwrap().0, row.rsplit_once("| ").unwrap().1))
        .map(|(name, included)| (name.to_owned(), included.replace(['`', '-'], "")))
        .collect();
    documented.sort_unstable();
    let manifest = text("Cargo.toml");
    let included = |feature: &String| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(&format!("{feature} = [")));
        let parts =
            line.unwrap().trim_end_matches(']').split(", ").map(|part| part.trim_matches('"'));
        let features: Vec<_> =
            parts.filter(|part| !part.contains([':', '/']) && !part.is_empty()).collect();
        features.join(", ")
    };
    let all: Vec<_> = features().into_iter().map(|name| (name.clone(), included(&name))).collect();
    assert_eq!(documented, all);
}

#[test]
fn the_workflows_follow_githubs_schema() {
    let Some(check) = from_python("lint", "check-jsonschema") else { return };
    let mut command = clean(check.to_str().unwrap());
    command.args(["--builtin-schema", "vendor.github-workflows", WORKFLOW, RELEASE]);
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

/// The words in the parentheses that follow a text.
fn words_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before}"));
    let (inside, _) = rest.split_once([')', ']']).unwrap();
    inside.split([' ', ',', '"', '\n']).filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_workflows_call_what_exists() {
    let script = text(".ci/release");
    let (targets, systems) = (words_after(&script, "TARGETS=("), words_after(&script, "SYSTEMS=("));
    let release = text(RELEASE);
    assert_eq!(words_after(&release, " target: ["), targets);
    let tried = words_after(&release, " system: [");
    assert_eq!(
        tried,
        systems.iter().filter(|&&name| name != "emulated").copied().collect::<Vec<_>>()
    );
    let (_, steps) = script.rsplit_once("\ncase ").unwrap();
    let is_step = |word: &str| {
        steps.split([' ', '|', ')']).any(|step| step == word)
            && script.contains(&format!("\n#   .ci/release {word} "))
    };
    let mut called = BTreeSet::new();
    for workflow in [text(WORKFLOW), release] {
        let jobs: Vec<_> = workflow
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'))
            .filter(|name| !name.starts_with(' '))
            .collect();
        for line in workflow.lines().map(str::trim) {
            if let Some(needs) = line.strip_prefix("needs: ") {
                let needs = needs.split(['[', ']', ',', ' ']).filter(|name| !name.is_empty());
                needs.for_each(|name| assert!(jobs.contains(&name), "{line}: {jobs:?}"));
            }
            let mut words = line.split([' ', '"']).filter(|word| !word.is_empty());
            let Some(program) =
                words.find(|word| word.starts_with(".ci/") || word.starts_with("tests/"))
            else {
                continue;
            };
            if line.starts_with('#') || line.starts_with("paths:") {
                continue;
            }
            let mode = Path::new(env!("CARGO_MANIFEST_DIR")).join(program).metadata();
            let mode = mode.unwrap_or_else(|_| panic!("{program} does not exist")).permissions();
            assert_ne!(mode.mode() & 0o111, 0, "{program} cannot be run");
            if program == ".ci/release" {
                let (step, what) = (words.next().unwrap(), words.next());
                assert!(is_step(step), "{line}");
                let is_target =
                    what.is_none_or(|what| what.starts_with(['$', '>']) || targets.contains(&what));
                assert!(is_target, "{line}");
                called.insert(step.to_owned());
            }
        }
    }
    // Each step that the script describes is one of the workflow's.
    for line in script.lines().filter_map(|line| line.strip_prefix("#   .ci/release ")) {
        let step = line.split(' ').next().unwrap();
        assert!(step == "--dry-run" || called.contains(step), "no workflow runs {step}");
    }
}

#[test]
fn cargo_binstall_downloads_the_archives_of_a_release() {
    let manifest = text("Cargo.toml");
    let value = |key: &str| {
        let (_, rest) = manifest.split_once(&format!("\n{key} = \"")).unwrap();
        let (value, _) = rest.split_once('"').unwrap();
        let value = value.replace("{ name }", "mpienv").replace("{ version }", "$version");
        value.replace("{ target }", "$1").replace("{ bin }", "mpienv")
    };
    let script = text(".ci/release");
    assert!(script.contains(" name=mpienv-$version-$1 ") && script.contains("/$name.tar.gz\""));
    assert_eq!(value("pkg-url"), "{ repo }/releases/download/v$version/mpienv-$version-$1.tar.gz");
    assert_eq!(value("bin-dir"), "mpienv-$version-$1/bin/mpienv");
    // The workflow makes a release of a tag `v$version`.
    assert!(script.contains("[ \"$1\" = \"v$version\" ]"));
}

#[test]
fn a_release_has_the_tag_of_its_version_and_the_changelogs_section_as_its_notes() {
    if !is_there("bash") || !is_there("git") {
        return;
    }
    let notes = clean(".ci/release").arg("notes").output().unwrap();
    let notes = String::from_utf8(notes.stdout).unwrap();
    assert!(notes.contains("\n### Added\n") && !notes.contains("\n## "), "{notes}");
    assert!(text("CHANGELOG.md").contains(&notes), "{notes}");
    let output = clean(".ci/release").args(["check", "v99.0.0"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let version = env!("CARGO_PKG_VERSION");
    assert!(!output.status.success(), "{said}");
    assert_eq!(said, format!("the tag is v99.0.0, but Cargo.toml has the version {version}\n"));
}

#[test]
fn the_version_as_json_knows_every_feature() {
    let source = text("src/command/cli/version.rs");
    for name in features() {
        let line = format!("(\"{name}\", cfg!(feature = \"{name}\"))");
        assert!(source.contains(&line), "version.rs lacks {line}");
    }
}

/// The project's scripts for bash.
const SCRIPTS: [&str; 12] = [
    "tests/gpu/run",
    "tests/run",
    "tests/mutants",
    "tests/real_programs/run",
    ".ci/run",
    ".ci/generate",
    ".ci/release",
    ".ci/try-release",
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
