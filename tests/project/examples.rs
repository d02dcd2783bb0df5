//! The examples on candle and Burn take minutes to compile, so only the workflow and
//! tests/real_programs/run compile them. These tests find some of their errors earlier.

use std::collections::BTreeSet;
use std::path::Path;

const PROGRAMS: [&str; 2] = ["examples/candle", "examples/burn"];

fn text(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The names after each occurrence of `start` in a text.
fn names_after<'text>(text: &'text str, start: &str) -> BTreeSet<&'text str> {
    let rests = text.split(start).skip(1);
    rests
        .map(|rest| {
            rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap()
        })
        .collect()
}

#[test]
fn the_pages_count_the_lines_of_the_programs_on_candle_and_burn() {
    for folder in PROGRAMS {
        let program = text(&format!("{folder}/src/main.rs"));
        let lines = program
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        assert!(lines <= 110, "{folder} has {lines}");
        for page in ["examples/README.md", "CHANGELOG.md"] {
            let is_there = text(page).contains(&format!("in {lines} lines"));
            assert!(is_there, "{page} does not say {lines} of {folder}");
        }
    }
}

#[test]
fn the_programs_on_candle_and_burn_call_only_what_the_library_has() {
    for folder in PROGRAMS {
        check_calls(&format!("{folder}/src/main.rs"));
    }
}

fn check_calls(path: &str) {
    let program = text(path);
    let calls = [
        ("ClusterInfo::", "src/core/cluster/discover/builder.rs"),
        ("Environment::", "src/core/environment.rs"),
        ("environment.", "src/core/environment.rs"),
        ("Group::", "src/collective/group.rs"),
        ("group.", "src/collective/group.rs"),
        ("rank.", "src/core/value/rank.rs"),
    ];
    for (start, file) in calls {
        let names = names_after(&program, start);
        assert!(!names.is_empty(), "{path} does not call {start}");
        let library = match start {
            "Group::" | "group." => text(file) + &text("src/collective/group/reducing.rs"),
            _ => text(file),
        };
        for name in names {
            let has = [
                format!("pub fn {name}("),
                format!("pub fn {name}<"),
                format!("pub const fn {name}("),
            ];
            assert!(
                has.iter().any(|signature| library.contains(signature)),
                "{file} has no {name}"
            );
        }
    }
}

/// `--locked` refuses a lock file that does not list the dependencies of the features that the
/// program uses.
#[test]
fn the_lock_files_of_the_programs_on_candle_and_burn_have_what_the_library_needs() {
    for folder in PROGRAMS {
        check_lock_file(folder);
    }
}

fn check_lock_file(of_program: &str) {
    let crates: [(&str, &str, &[&str]); 5] = [
        ("mpienv", ".", &["collective"]),
        ("mpienv-collective", "src/collective", &[]),
        ("mpienv-core", "src/core", &["routes"]),
        ("mpienv-launch", "src/launch", &["rendezvous"]),
        ("mpienv-rendezvous", "src/rendezvous", &[]),
    ];
    let lock = text(&format!("{of_program}/Cargo.lock"));
    for (name, folder, features) in crates {
        let (_, entry) = lock.split_once(&format!("name = \"{name}\"\n")).unwrap();
        let (_, list) = entry.split_once("dependencies = [\n").unwrap();
        let (list, _) = list.split_once("]\n").unwrap();
        let locked: BTreeSet<_> = list
            .lines()
            .map(|line| line.trim_matches([' ', '"', ',']).split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(
            locked,
            needed(&text(&format!("{folder}/Cargo.toml")), features),
            "{name}: run `cargo update --workspace --manifest-path {of_program}/Cargo.toml`"
        );
    }
}

/// The dependencies of a package with these features.
fn needed(manifest: &str, features: &[&str]) -> BTreeSet<String> {
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = dependencies.split_once("dev-dependencies]\n").unwrap();
    let mut needed: BTreeSet<String> = BTreeSet::new();
    for line in dependencies
        .lines()
        .filter(|line| line.contains(" = ") && !line.contains("optional = true"))
    {
        needed.insert(line.split([' ', '.']).next().unwrap().to_owned());
    }
    let mut features: Vec<String> = features.iter().map(|&feature| feature.to_owned()).collect();
    while let Some(feature) = features.pop() {
        let list =
            manifest.lines().find_map(|line| line.strip_prefix(&format!("{feature} = ["))).unwrap();
        for word in list
            .split('"')
            .filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()))
        {
            match (word.strip_prefix("dep:"), word.contains('/')) {
                (Some(dependency), _) => drop(needed.insert(dependency.to_owned())),
                (None, false) => features.push(word.to_owned()),
                (None, true) => {}
            }
        }
    }
    needed
}
