//! Promises about the documentation: an example for every public item, and a source for every
//! variable.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use mpienv::Launcher;
use mpienv_core::seam::OF_AZURE;

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

/// The code of the examples in a file's documentation. Hidden lines do not count, because readers
/// do not see them.
fn examples(text: &str) -> String {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
    });
    let mut code = String::new();
    let mut is_code = false;
    for line in comments {
        if line.starts_with("```") {
            is_code = !is_code && !line.ends_with("text");
        } else if is_code && !line.starts_with("# ") {
            code += line;
            code.push('\n');
        }
    }
    code
}

/// The name of the public item that a line declares, at the root of a file or in an `impl`.
/// Variants and fields are shown with their type.
fn declared(line: &str) -> Option<&str> {
    let (line, is_inside) = line.strip_prefix("    ").map_or((line, false), |line| (line, true));
    let line = line.strip_prefix("pub ")?;
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    match words.find(|word| !["const", "unsafe", "async"].contains(word))? {
        "fn" => words.next(),
        "struct" | "enum" | "trait" | "type" | "static" if !is_inside => words.next(),
        name => line.starts_with("const ").then_some(name),
    }
}

/// The type of `impl<'a> Type<'a> {`. An `impl` of a trait has no public methods of its own.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let of_type = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest };
    of_type.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The public items of a file, without what its crate only shares with the others.
fn items<'a>(text: &'a str, shared: &HashSet<String>) -> HashSet<&'a str> {
    let (mut owner, mut is_hidden, mut is_hidden_impl) = (None, false, false);
    let mut found = HashSet::new();
    for line in text.lines() {
        is_hidden |= line.trim() == "#[doc(hidden)]";
        if is_hidden || is_hidden_impl {
            // It goes for the next line that is no attribute, and for all of an `impl`.
            is_hidden_impl = if is_hidden { line.starts_with("impl") } else { line != "}" };
            is_hidden &= line.trim().starts_with("#[");
            continue;
        }
        if !line.starts_with(' ') && !line.is_empty() {
            owner = implemented(line);
        }
        let of = if line.starts_with(' ') { owner } else { None };
        found.extend(declared(line).filter(|name| !shared.contains(of.unwrap_or(*name))));
    }
    found
}

/// Whether a file is a crate's `seam.rs` or a part of it.
fn is_seam(path: &Path) -> bool {
    path.ends_with("seam.rs") || path.parent().is_some_and(|folder| folder.ends_with("seam"))
}

/// What the crates share and users do not see: the names that each `seam.rs` imports.
fn shared() -> HashSet<String> {
    let seams = sources(&src()).into_iter().filter(|path| is_seam(path));
    let texts = seams.map(|path| fs::read_to_string(path).unwrap());
    texts
        .flat_map(|text| {
            let uses = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
            uses.flat_map(|list| list.split(|c: char| !c.is_alphanumeric() && c != '_'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
}

/// rustc's `missing_docs` sees to the descriptions; no lint of a stable compiler sees to the
/// examples.
#[test]
fn every_public_item_is_in_an_example() {
    // The command and the C library for PyTorch are not part of the library.
    let others = ["command", "command.rs", "main.rs", "torch"].map(|path| src().join(path));
    let paths = sources(&src())
        .into_iter()
        .filter(|path| !others.iter().any(|other| path.starts_with(other)) && !is_seam(path));
    let texts: Vec<_> = paths.map(|path| fs::read_to_string(path).unwrap()).collect();
    let programs = fs::read_dir(src().with_file_name("examples")).unwrap();
    let programs = programs
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| fs::read_to_string(path).unwrap());
    let shown: String = texts.iter().map(|text| examples(text)).chain(programs).collect();
    let shown: HashSet<&str> = shown.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let shared = shared();
    assert!(shared.len() > 20, "only {shared:?} are shared");
    let items: HashSet<_> = texts.iter().flat_map(|text| items(text, &shared)).collect();
    assert!(items.len() > 200, "only {} public items were found", items.len());
    let missing: Vec<_> = items.iter().filter(|item| !shown.contains(**item)).collect();
    assert!(missing.is_empty(), "no example shows these: {missing:?}");
}

#[test]
fn the_guide_explains_every_finding() {
    let guide = fs::read_to_string(src().join("guide/findings.md")).unwrap();
    let texts = sources(&src()).into_iter().map(|path| fs::read_to_string(path).unwrap());
    let codes: Vec<String> = texts
        .flat_map(|text| {
            // The first argument, or the one after the severity.
            let calls = text.split("Finding::").skip(1).filter_map(|rest| {
                let (name, arguments) = rest.split_once('(')?;
                match name {
                    "error" | "warning" | "note" => Some(arguments),
                    "new" => Some(arguments.split_once(',')?.1),
                    _ => None,
                }
            });
            // Launchers of batch jobs share a finding's texts.
            let calls = calls.chain(text.split("code: ").skip(1));
            let code = |rest: &str| {
                Some(rest.trim_start().strip_prefix('"')?.split_once('"')?.0.to_owned())
            };
            calls.filter_map(code).filter(|code| !code.is_empty()).collect::<Vec<_>>()
        })
        .collect();
    assert!(codes.len() > 50, "only {codes:?} were found");
    for code in codes {
        assert!(guide.contains(&format!("\n| `{code}` | ")), "the guide lacks {code}");
    }
}

#[test]
fn every_variable_of_a_launcher_has_a_meaning_and_the_page_that_defines_it() {
    let read: Vec<_> = Launcher::ALL.iter().flat_map(|launcher| launcher.variables()).collect();
    assert!(read.len() > 50, "only {} variables were found", read.len());
    for variable in read.into_iter().chain(OF_AZURE) {
        // Variables that no page documents were recorded from a real launcher.
        let is_recorded = variable.page.starts_with("recorded from ");
        let is_link = variable.page.starts_with('[') && variable.page.contains("](https://");
        assert!((is_recorded || is_link) && !variable.meaning.is_empty(), "{variable:?}");
    }
}

#[test]
fn every_struct_of_a_launchers_file_is_in_its_description_and_every_file_in_the_list() {
    let list = fs::read_to_string(src().join("core/launcher.rs")).unwrap();
    for path in sources(&src().join("core/launcher")) {
        let (text, file) =
            (fs::read_to_string(&path).unwrap(), path.file_stem().unwrap().to_str().unwrap());
        if !text.contains("const SPEC: LauncherSpec") {
            continue;
        }
        assert!(list.contains(&format!(" = {file}, ")), "{file} is not in the list");
        for line in text.lines().filter_map(|line| line.strip_prefix("    pub struct ")) {
            let table = format!("{}::VARIABLES", first_word(line));
            assert!(text.contains(&table), "{file}: {table} is not among what is read");
        }
    }
}
