//! A file imports from its own floor and those below, never upward.

use std::fs;
use std::path::Path;

/// The floor of each module; a folder is on the floor of its file.
const FLOORS: &[&[&str]] = &[
    &["debug_text", "environment"],
    &[
        "context",
        "error",
        "finding",
        "host",
        "host_name",
        "hostlist",
        "info",
        "job",
        "launcher",
        "placement",
        "port",
        "printable",
        "rank",
        "token",
    ],
    &["azure", "master", "nccl", "wish"],
    &["discover", "workers"],
    &["binding", "check", "doctor", "export", "exec", "launch", "simulate", "start_error", "testing"],
    &["cli", "main"],
];

/// Beside the floors: they know values, and nothing else of the house.
const SIDE: &[&str] = &["mpi", "pmix", "rendezvous"];

fn floor(module: &str) -> usize {
    if SIDE.contains(&module) {
        return 2;
    }
    let found = FLOORS.iter().position(|floor| floor.contains(&module));
    found.unwrap_or_else(|| panic!("{module} has no floor: give it one in tests/it/floors.rs"))
}

fn check(path: &Path, module: &str, checked: &mut usize) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            check(&entry.unwrap().path(), module, checked);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for imported in line.split("crate::").skip(1) {
            let end = imported.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(imported.len());
            let imported = &imported[..end];
            if line.trim_start().starts_with("pub(in") {
                continue;
            }
            *checked += 1;
            let place = format!("{}:{}: {}", path.display(), number + 1, line.trim());
            assert!(!imported.is_empty(), "name the module, so that its floor is seen: {place}");
            assert!(floor(imported) <= floor(module), "upward import: {place}");
        }
    }
}

#[test]
fn no_file_imports_from_a_floor_above_its_own() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if module != "lib" {
            check(&path, &module, &mut checked);
        }
    }
    assert!(checked > 50, "only {checked} imports were found: the test reads nothing");
}

#[test]
fn the_environment_is_read_in_one_file() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut readers = Vec::new();
    let mut folders = vec![src];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(&path).unwrap().contains("env::var") {
                readers.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    assert_eq!(readers, ["environment.rs"]);
}
