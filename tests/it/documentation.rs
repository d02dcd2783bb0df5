//! Promises about the documentation: an example for every public item, and a source for every
//! variable.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use mpienv::{AzureVars, Launcher, Variables};

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

/// Public items without an example, each with the reason; methods as `Type::method`.
const WITHOUT_EXAMPLE: &[(&str, &str)] = &[];

/// An item that users of the library can name. Variants and fields are shown with their type.
struct Item {
    path: PathBuf,
    /// The type of a method or of an associated constant.
    owner: Option<String>,
    name: String,
}

impl Item {
    fn full_name(&self) -> String {
        self.owner.iter().map(|owner| format!("{owner}::")).collect::<String>() + &self.name
    }
}

/// Code that is compiled, and what it names.
struct Example {
    path: PathBuf,
    words: HashSet<String>,
}

impl Example {
    fn new(path: &Path, code: &str) -> Example {
        let words =
            code.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect();
        Example { path: path.to_owned(), words }
    }

    /// Many types have names such as `get`: the example must name the type, or be in the method's
    /// file.
    fn shows(&self, item: &Item) -> bool {
        let of_owner = item
            .owner
            .as_ref()
            .is_none_or(|owner| self.words.contains(owner) || self.path == item.path);
        of_owner && self.words.contains(&item.name)
    }
}

/// The examples in a file's documentation that rustdoc compiles. Hidden lines do not count, because
/// readers do not see them.
fn examples_in(path: &Path, text: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut block: Option<(&str, String)> = None;
    for line in text.lines().map(str::trim_start) {
        let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            continue;
        };
        let line = line.trim();
        block = match (block, line.strip_prefix("```")) {
            (None, kind) => kind.map(|kind| (kind, String::new())),
            (Some((kind, code)), Some(_)) => {
                if ["", "no_run", "should_panic"].contains(&kind) {
                    found.push(Example::new(path, &code));
                }
                None
            }
            (Some((kind, code)), None) if line.starts_with("# ") => Some((kind, code)),
            (Some((kind, code)), None) => Some((kind, code + line + "\n")),
        };
    }
    found
}

const DECLARATIONS: &[&str] = &[
    "pub fn ",
    "pub const fn ",
    "pub unsafe fn ",
    "pub async fn ",
    "pub struct ",
    "pub enum ",
    "pub union ",
    "pub trait ",
    "pub type ",
    "pub static ",
    "pub const ",
];

fn first_word(text: &str) -> String {
    text.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
}

/// The type of `impl<'a> Type<'a> {`. An `impl` of a trait has no public methods of its own.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let of_type = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest };
    Some(first_word(of_type.trim_start()))
}

/// The public items of a file: those without indentation, and those one level inside an `impl`.
fn items_in(path: &Path, text: &str) -> Vec<Item> {
    let mut found = Vec::new();
    let mut owner = None;
    for line in text.lines() {
        let (line, is_inside) = match line.strip_prefix("    ") {
            Some(line) => (line, true),
            None => (line, false),
        };
        if !is_inside && !line.is_empty() && line != "}" {
            owner = implemented(line);
        }
        let declared = DECLARATIONS.iter().find_map(|declaration| line.strip_prefix(declaration));
        if let Some(name) = declared.filter(|_| !is_inside || owner.is_some()) {
            found.push(Item {
                path: path.to_owned(),
                owner: owner.clone(),
                name: first_word(name),
            });
        } else if !is_inside {
            let known = !line.starts_with("pub ")
                || line.starts_with("pub use ")
                || line.starts_with("pub mod ");
            assert!(known, "{}: what is this: {line}", path.display());
        }
    }
    found
}

/// The library's files, without those of the command.
fn of_library() -> impl Iterator<Item = (PathBuf, String)> {
    let of_command = |path: &Path| {
        path.starts_with(src().join("command/cli"))
            || ["command.rs", "command/cli.rs", "main.rs"]
                .iter()
                .any(|file| *path == src().join(file))
    };
    let paths = sources(&src()).into_iter().filter(move |path| !of_command(path));
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
}

/// What the crates share and users do not see: the names that each `seam.rs` imports.
fn shared() -> HashSet<String> {
    let seams = sources(&src()).into_iter().filter(|path| path.ends_with("seam.rs"));
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

/// The programs in `examples`, each of which is compiled as a whole.
fn programs() -> impl Iterator<Item = Example> {
    let files =
        fs::read_dir(src().with_file_name("examples")).unwrap().map(|entry| entry.unwrap().path());
    let programs = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    programs.map(|path| Example::new(&path, &fs::read_to_string(&path).unwrap()))
}

#[test]
fn every_public_item_has_an_example_or_a_reason_not_to() {
    let files: Vec<_> = of_library().collect();
    let shared = shared();
    assert!(shared.len() > 20, "only {shared:?} are shared");
    let items = files.iter().filter(|(path, _)| !path.ends_with("seam.rs"));
    let items: Vec<_> = items
        .flat_map(|(path, text)| items_in(path, text))
        .filter(|item| !shared.contains(item.owner.as_ref().unwrap_or(&item.name)))
        .collect();
    assert!(items.len() > 200, "only {} public items were found", items.len());
    let of_files = files.iter().flat_map(|(path, text)| examples_in(path, text));
    let examples: Vec<_> = of_files.chain(programs()).collect();

    let unshown = items.iter().filter(|item| !examples.iter().any(|example| example.shows(item)));
    let (excepted, missing): (Vec<_>, Vec<_>) = unshown
        .map(|item| (item.full_name(), item.path.display()))
        .partition(|(name, _)| WITHOUT_EXAMPLE.iter().any(|(excepted, _)| excepted == name));
    assert!(missing.is_empty(), "no example shows these: {missing:#?}");
    for (name, _) in WITHOUT_EXAMPLE {
        assert!(
            excepted.iter().any(|(found, _)| found == name),
            "{name} has an example now, or is gone: unlist it"
        );
    }
}

#[test]
fn only_what_readers_see_and_rustdoc_compiles_counts_as_an_example() {
    let text = "/// ```\n/// seen();\n/// # hidden();\n/// ```\n/// prose\n    /// ```text\n    /// told();\n    /// ```\n\
                //! ```no_run\n//! compiled();\n//! ```\ncode();\n";
    let examples = examples_in(Path::new("a.rs"), text);
    let names = |word: &str| examples.iter().any(|example| example.words.contains(word));
    let words = ["seen", "compiled", "hidden", "prose", "told", "code"];
    assert_eq!(words.map(names), [true, true, false, false, false, false]);
}

#[test]
fn a_method_needs_an_example_that_tells_its_type() {
    let text = "pub(crate) fn inner() {}\npub const MOST: u8 = 1;\nimpl<'a> List<'a> {\n    pub const fn len(&self) {}\n}\n";
    let items = items_in(Path::new("a.rs"), text);
    assert_eq!(items.iter().map(Item::full_name).collect::<Vec<_>>(), ["MOST", "List::len"]);
    let shows = |file: &str, code: &str| Example::new(Path::new(file), code).shows(&items[1]);
    assert!(shows("b.rs", "List::new().len()") && shows("a.rs", "list.len()"));
    assert!(!shows("b.rs", "list.len()") && !shows("b.rs", "List::new().length()"));
}

#[test]
fn the_guide_explains_every_finding() {
    let guide = fs::read_to_string(src().join("guide/findings.md")).unwrap();
    let texts = sources(&src()).into_iter().map(|path| fs::read_to_string(path).unwrap());
    let codes: Vec<String> = texts
        .flat_map(|text| {
            let field = text.lines().filter_map(|line| line.trim().strip_prefix("code: \""));
            // What `finding` takes after the severity.
            let lines = text.lines().zip(text.lines().skip(1));
            let argument = lines
                .filter(|(before, _)| before.trim().to_lowercase().contains("severity"))
                .filter_map(|(_, line)| line.trim().strip_prefix('"'));
            let code = |line: &str| Some(line.strip_suffix("\",")?.to_owned());
            field.chain(argument).filter_map(code).collect::<Vec<_>>()
        })
        .collect();
    assert!(codes.len() > 12, "only {codes:?} were found");
    for code in codes {
        assert!(guide.contains(&format!("\n| `{code}` | ")), "the guide lacks {code}");
    }
}

#[test]
fn every_variable_of_a_launcher_has_a_meaning_and_the_page_that_defines_it() {
    let read: Vec<_> = Launcher::ALL.iter().flat_map(|launcher| launcher.variables()).collect();
    assert!(read.len() > 50, "only {} variables were found", read.len());
    for variable in read.into_iter().chain(AzureVars::VARIABLES) {
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
        if ["batch", "context", "heterogeneous", "pbs", "sample", "spec", "starter"].contains(&file)
        {
            continue;
        }
        assert!(list.contains(&format!(" = {file}, \"")), "{file} is not in the list");
        for line in text.lines().filter_map(|line| line.strip_prefix("    pub struct ")) {
            let table = format!("{}::VARIABLES", first_word(line));
            assert!(text.contains(&table), "{file}: {table} is not among what is read");
        }
    }
}
