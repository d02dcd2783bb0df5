//! The examples on Burn and candle take minutes to compile, so only the workflow and
//! tests/real_programs/run compile them. These tests find some of their errors earlier.

use std::collections::BTreeSet;
use std::path::Path;

const PROGRAM: &str = "examples/candle/src/main.rs";

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
fn the_page_counts_the_lines_of_the_program_on_candle() {
    let program = text(PROGRAM);
    let lines = program
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count();
    let page = text("examples/README.md");
    assert!(page.contains(&format!("in {lines} lines")), "the page does not say {lines}");
}

#[test]
fn the_program_on_candle_calls_only_what_the_library_has() {
    let program = text(PROGRAM);
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
        assert!(!names.is_empty(), "{PROGRAM} does not call {start}");
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
fn the_lock_files_of_the_programs_on_burn_and_candle_have_what_the_library_needs() {
    for example in ["burn", "candle"] {
        check_lock_file(example);
    }
}

fn check_lock_file(example: &str) {
    let crates: [(&str, &str, &[&str]); 5] = [
        ("mpienv", ".", &["collective"]),
        ("mpienv-collective", "src/collective", &[]),
        ("mpienv-ask", "src/ask", &[]),
        ("mpienv-core", "src/core", &[]),
        ("mpienv-rendezvous", "src/rendezvous", &[]),
    ];
    let lock = text(&format!("examples/{example}/Cargo.lock"));
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
            "{name}: run `cargo update --workspace --manifest-path examples/{example}/Cargo.toml`"
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
