//! What the documentation promises of itself: examples, and a source for every variable.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Whether a file has an example in its documentation.
fn has_example(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains("/// ```\n") || text.contains("//! ```\n"))
}

/// A type's own example, or its module's, shows its methods at work; a file of parts is shown by the whole.
#[test]
fn whoever_looks_up_a_public_item_finds_an_example() {
    let mut public = 0;
    for path in sources(&src()) {
        let text = fs::read_to_string(&path).unwrap();
        let of_program = path.starts_with(src().join("cli")) || path.ends_with("cli.rs") || path.ends_with("main.rs");
        let starts = ["pub struct ", "pub enum ", "pub fn ", "pub trait ", "pub const "];
        if of_program || !text.lines().any(|line| starts.iter().any(|start| line.starts_with(start))) {
            continue;
        }
        public += 1;
        let whole = path.parent().unwrap().with_extension("rs");
        assert!(has_example(&path) || has_example(&whole), "{} has no example", path.display());
    }
    assert!(public > 30, "only {public} files with public items were found");
}

#[test]
fn the_readme_names_every_finding() {
    let readme = fs::read_to_string(src().with_file_name("README.md")).unwrap();
    let texts = sources(&src()).into_iter().map(|path| fs::read_to_string(path).unwrap());
    let codes: Vec<String> = texts
        .flat_map(|text| {
            let code = |line: &str| Some(line.trim().strip_prefix("code: \"")?.strip_suffix("\",")?.to_owned());
            text.lines().filter_map(code).collect::<Vec<_>>()
        })
        .collect();
    assert!(codes.len() > 12, "only {codes:?} were found");
    for code in codes {
        assert!(readme.contains(&format!("`{code}`")), "README lacks {code}");
    }
}

#[test]
fn every_variable_of_a_launcher_has_the_page_that_defines_it() {
    let mut checked = 0;
    let launchers = sources(&src().join("launcher"));
    for path in launchers.iter().chain([&src().join("azure.rs")]) {
        let text = fs::read_to_string(path).unwrap();
        let place = path.display();
        let rows: Vec<Vec<_>> = text
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `"))
            .map(|row| row.split(" | ").map(|cell| cell.trim_end_matches([' ', '|', '`'])).collect())
            .collect();
        for row in &rows {
            let [variable, what, page] = row[..] else { panic!("{place}: {row:?}") };
            // Our own convention is nobody else's page; what no page tells was recorded from a real one.
            let unwritten = what.contains("set it in the job's template") || page.starts_with("recorded from ");
            assert!(
                unwritten || page.contains("same") || page.starts_with('['),
                "{place}: {variable} has no page: {page:?}"
            );
            if let Some(name) = page.strip_prefix('[').and_then(|page| page.split(']').next()) {
                assert!(text.contains(&format!("//! [{name}]: https://")), "{place}: no address of {name}");
            }
        }
        // The fields of the structs are the variables that are read.
        for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("/// `")) {
            let Some((variable, _)) = line.split_once("`: ") else { continue };
            checked += 1;
            assert!(
                rows.iter().any(|row| row[0].split('`').any(|name| name == variable)),
                "{place}: {variable} is not in the table"
            );
        }
    }
    assert!(checked > 50, "only {checked} variables were found");
}
