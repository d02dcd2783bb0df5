//! The house: a room may use rooms on its own floor and below, never one above.
//!
//! A room is a module at the root of `src`, with all files in its folder. Two things count as use:
//! a path through `crate`, `self` or `super`, and a call of a method that another room adds to a
//! type in a separate `impl`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of each floor, from the ground up.
const FLOORS: &[&[&str]] = &[
    &["environment", "hostlist", "process", "value"],
    &["error", "finding"],
    &["launcher"],
    &["mpi", "pmix", "rendezvous"],
    &["cluster"],
    &["export"],
    &["collective", "launch", "simulate", "testing"],
    &["command"],
    &["main"],
];

/// A file of `src`: its path from there, and its text.
struct File {
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn module(&self) -> Vec<&str> {
        self.path.trim_end_matches(".rs").split('/').collect()
    }

    fn room(&self) -> &str {
        self.module()[0]
    }

    /// The lines that are compiled into the library, each with its number.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let code = self.text.split("#[cfg(test)]").next().unwrap();
        code.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| {
            let line = line.trim_start();
            !line.starts_with("//")
        })
    }

    /// The rooms that the paths in this file lead to, each with the number of its line; `None` for
    /// the root itself.
    fn uses(&self) -> Vec<(usize, Option<String>)> {
        let mut text = String::new();
        let mut starts = Vec::new();
        for (number, line) in self.code() {
            starts.push((text.len(), number));
            text += line;
            text.push('\n');
        }
        let line_of = |at: usize| starts[starts.partition_point(|(start, _)| *start <= at) - 1].1;
        let mut found = Vec::new();
        for keyword in ["crate", "self", "super"] {
            for (at, _) in text.match_indices(&format!("{keyword}::")) {
                let before = &text[..at];
                let is_part = before.ends_with(|c: char| is_word(c) || c == ':' || c == '$');
                if !is_part && !before.ends_with("pub(in ") {
                    found.extend(
                        self.rooms(&text[at..]).into_iter().map(|room| (line_of(at), room)),
                    );
                }
            }
        }
        found
    }

    /// The rooms of one path, which may end in a list.
    fn rooms(&self, path: &str) -> Vec<Option<String>> {
        let mut module: Vec<&str> = self.module();
        let mut rest = path;
        loop {
            let word = first_word(rest);
            match word {
                "crate" => module.clear(),
                "self" => {}
                "super" => drop(module.pop()),
                _ if !module.is_empty() => return vec![Some(module[0].to_owned())],
                _ => break,
            }
            match rest[word.len()..].strip_prefix("::") {
                Some(after) => rest = after,
                None => return vec![module.first().map(|room| (*room).to_owned())],
            }
        }
        let room = |path: &str| {
            let word = first_word(path.trim_start());
            word.starts_with(|c: char| c.is_ascii_lowercase()).then(|| word.to_owned())
        };
        let Some(list) = rest.strip_prefix('{') else { return vec![room(rest)] };
        let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    let item = list[begin..at].trim();
                    found.extend((!item.is_empty()).then(|| room(item)));
                    begin = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The types that this file defines.
    fn types(&self) -> Vec<&str> {
        let declared = |line| {
            let (_, rest) = ["struct ", "enum ", "union "].iter().find_map(|word| {
                let (before, rest) = str::split_once(line, *word)?;
                (before.is_empty() || before.starts_with("pub")).then_some((before, rest))
            })?;
            Some(first_word(rest))
        };
        self.code().filter_map(|(_, line)| declared(line)).collect()
    }

    /// The methods of each `impl Type`.
    fn methods(&self) -> Vec<(&str, &str)> {
        let mut found = Vec::new();
        let mut owner = None;
        for (_, line) in self.code() {
            if let Some(rest) = line.strip_prefix("impl") {
                let of_type = if rest.starts_with('<') {
                    rest.split_once("> ").map_or("", |(_, rest)| rest)
                } else {
                    rest
                };
                owner = (!line.contains(" for ")).then(|| first_word(of_type.trim_start()));
            } else if line.starts_with('}') {
                owner = None;
            } else if let (Some(owner), Some((before, rest))) = (owner, line.split_once("fn "))
                && before.trim_start().starts_with("pub")
            {
                found.push((owner, first_word(rest)));
            }
        }
        found
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// The violations in the house, and how many uses were checked.
fn inspect(files: &[File]) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        file.types().into_iter().for_each(|name| homes.entry(name).or_default().push(file.room()));
    }
    let mut guests: Vec<(&str, &str, usize, &File)> = Vec::new();
    for file in files {
        for (owner, method) in file.methods() {
            if let (Some(homes), Some(own)) = (homes.get(owner), floor(file.room()))
                && !homes.contains(&file.room())
            {
                guests.push((owner, method, own, file));
            }
        }
    }
    for file in files {
        let room = file.room();
        let Some(own) = floor(room) else {
            wrong.push(format!(
                "{}: {room} has no floor: give it one in tests/it/floors.rs",
                file.path
            ));
            continue;
        };
        // Only the call of the command is above the command.
        if own + 2 >= FLOORS.len() {
            continue;
        }
        for (line, used) in file.uses() {
            looked_at += 1;
            let place = format!("{}:{line}", file.path);
            match used.as_deref().map(|used| (used, floor(used))) {
                Some((used, _)) if used == room => {}
                Some((used, Some(above))) if above > own => {
                    wrong.push(format!("{place}: {used} is above {room}"))
                }
                Some((_, Some(_))) => {}
                Some((used, None)) => wrong.push(format!("{place}: {used} is no room")),
                None => wrong.push(format!("{place}: name the module, so that its floor is seen")),
            }
        }
        for (line, code) in file.code() {
            if code.trim_start().starts_with("#[path") && code.contains("..") {
                wrong.push(format!("{}:{line}: a module from elsewhere has no floor", file.path));
            }
            for (owner, method, from, at) in &guests {
                let is_called = code.contains(&format!(".{method}("))
                    || code.contains(&format!("{owner}::{method}"));
                if is_called && *from > own {
                    let above = at.room();
                    wrong.push(format!(
                        "{}:{line}: {owner}::{method} is of {above}, above {room}",
                        file.path
                    ));
                }
            }
        }
    }
    (wrong, looked_at)
}

fn house() -> Vec<File> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push(File::new(path.strip_prefix(&src).unwrap().to_str().unwrap(), &text));
            }
        }
    }
    files
}

#[test]
fn no_room_uses_one_above_its_own() {
    let files: Vec<File> =
        house().into_iter().filter(|file| !["lib", "guide"].contains(&file.room())).collect();
    let (wrong, looked_at) = inspect(&files);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(looked_at > 200, "only {looked_at} uses were found: the test reads nothing");
}

/// The violations in files with these texts.
fn complaints(files: &[(&str, &str)]) -> Vec<String> {
    inspect(&files.iter().map(|(path, text)| File::new(path, text)).collect::<Vec<_>>()).0
}

#[test]
fn an_upward_import_by_super_is_seen() {
    for upward in [
        "use super::cluster::Row;",
        "use super::{environment, cluster::Row};",
        "fn f() { super::cluster::f() }",
    ] {
        assert_eq!(
            complaints(&[("error.rs", upward)]),
            ["error.rs:1: cluster is above error"],
            "{upward}"
        );
    }
    let deep = "mod x;\nuse super::super::cluster::info;\n";
    assert_eq!(
        complaints(&[("launcher/slurm.rs", deep)]),
        ["launcher/slurm.rs:2: cluster is above launcher"]
    );
    assert_eq!(
        complaints(&[("launcher/slurm.rs", "use super::Row;\nuse self::inner::X;\n")]),
        [""; 0]
    );
}

#[test]
fn an_upward_import_is_seen_in_every_folder() {
    let upward = "//! Text.\n\nuse crate::command::cli;\n";
    assert_eq!(
        complaints(&[("value/deep/er.rs", upward)]),
        ["value/deep/er.rs:3: command is above value"]
    );
    let list = "use crate::{\n    error::Error,\n    export::{Dialect, Exports},\n};\n";
    assert_eq!(
        complaints(&[("cluster/info.rs", list)]),
        ["cluster/info.rs:1: export is above cluster"]
    );
    assert!(complaints(&[("attic/old.rs", "")])[0].contains("attic has no floor"));
    assert!(complaints(&[("value/a.rs", "use crate::attic::X;")])[0].contains("attic is no room"));
    assert!(complaints(&[("value/a.rs", "use crate::Launcher;")])[0].contains("name the module"));
    assert!(
        complaints(&[("value/a.rs", "#[path = \"../cli.rs\"]\nmod a;")])[0]
            .contains("from elsewhere")
    );
}

#[test]
fn an_upward_call_is_seen_through_an_impl_in_another_room() {
    let info = ("cluster/info.rs", "pub struct Info;\nimpl Info {\n    pub fn rank(&self) {}\n}\n");
    let export = (
        "export/set.rs",
        "use crate::cluster::info::Info;\nimpl Info {\n    pub fn exports(&self) {}\n}\n",
    );
    assert_eq!(complaints(&[info, export]), [""; 0]);
    let upward = ("cluster/workers.rs", "fn f(info: &Info) {\n    info.exports()\n}\n");
    let seen = complaints(&[info, export, upward]);
    assert_eq!(seen, ["cluster/workers.rs:2: Info::exports is of export, above cluster"]);
    let downward = ("launch/start.rs", "fn f(info: &Info) {\n    info.exports()\n}\n");
    assert_eq!(complaints(&[info, export, downward]), [""; 0]);
}

#[test]
fn the_environment_is_read_in_one_file() {
    let readers: Vec<String> = house()
        .into_iter()
        .filter(|file| file.text.contains("env::var"))
        .map(|file| file.path)
        .collect();
    assert_eq!(readers, ["environment.rs"]);
}
