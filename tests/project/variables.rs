//! mpienv knows each of its variables that the project reads or sets, its tests' included: none of
//! them is reported as unknown.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mpienv::ClusterInfo;

/// What reads or sets variables.
const FOLDERS: [&str; 5] = ["src", "examples", "tests", ".ci", ".github"];
/// The files in which names are misspelled on purpose.
const MISSPELLED_IN: [&str; 3] =
    ["own_variables.rs", "tests/it/warnings.rs", "src/guide/findings.md"];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with("target"))
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

/// The words in a text that begin as mpienv's variables do, and go on.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name =
        |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    text.match_indices("MPIENV_").filter_map(move |(at, prefix)| {
        let rest = &text[at..];
        let end = rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len());
        (end > prefix.len() && !rest[..end].ends_with('_')).then(|| &rest[..end])
    })
}

#[test]
fn no_variable_that_the_project_reads_is_unknown() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = FOLDERS.iter().flat_map(|folder| files(&top.join(folder)));
    let texts: Vec<_> = files
        .filter(|file| !MISSPELLED_IN.iter().any(|name| file.ends_with(name)))
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let names: BTreeSet<_> = texts.iter().flat_map(|text| names(text)).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        // What it is set to does not matter.
        let info = ClusterInfo::from_vars([(name, "1")]);
        let is_known = info.is_err()
            || info.is_ok_and(|info| {
                info.findings().iter().all(|finding| finding.code != "unknown-variable")
            });
        assert!(is_known, "{name}");
    }
}
