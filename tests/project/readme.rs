//! The console blocks of the pages for users, run exactly as written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::cargo::with_cargo;
use crate::support::tool::{clean, is_there};
use mpienv::simulate::Job;

/// One command of a block and the lines it prints.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// The commands of all console blocks. A command continues after a backslash.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut goes_on) = (false, false);
    for (number, line) in text.lines().enumerate() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, _) if goes_on => {
                goes_on = line.ends_with('\\');
                let step = steps.last_mut().unwrap();
                step.command = format!("{}\n{line}", step.command);
            }
            (true, _) => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    goes_on = command.ends_with('\\');
                    steps.push(Step {
                        line: number + 1,
                        command: command.to_owned(),
                        output: Vec::new(),
                    });
                }
                (None, Some(step)) => step.output.push(line.to_owned()),
                (None, None) => panic!("line {}: output without a command", number + 1),
            },
            _ => {}
        }
    }
    steps
}

/// Whether a line is as expected, where `[..]` stands for anything.
fn line_matches(expected: &str, found: &str) -> bool {
    let mut pieces = expected.split("[..]");
    let Some(mut rest) = found.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<_> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Whether the lines are as expected, where a line `...` stands for any number of lines.
fn lines_match(expected: &[String], found: &[&str]) -> bool {
    match (expected.split_first(), found.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "..." => {
            lines_match(rest, found)
                || found.split_first().is_some_and(|(_, found)| lines_match(expected, found))
        }
        (Some((first, expected)), Some((line, found))) => {
            line_matches(first, line) && lines_match(expected, found)
        }
        _ => false,
    }
}

/// Runs a page's commands in the project's folder; each must print what the page says.
fn run_commands_of(page: &str, at_least: usize) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(top.join(page)).unwrap();
    let steps = steps(&text);
    assert!(steps.len() >= at_least, "{page} has only {} commands", steps.len());
    for step in steps {
        // The tests themselves would start the tests again.
        if step.command == "tests/run" || (step.command.contains("mpirun") && !is_there("mpirun")) {
            continue;
        }
        let mut command = with_cargo("bash");
        // Containers run as root, and have few cores.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let script = format!("exec 2>&1; {}", step.command);
        let output = command.args(["-c", &script]).current_dir(top).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        let found: Vec<_> = found.lines().collect();
        let place = format!("{page}:{}: {}", step.line, step.command);
        assert!(
            lines_match(&step.output, &found),
            "{place}\nexpected {:#?}\nfound {found:#?}",
            step.output
        );
    }
}

#[test]
fn every_console_block_prints_what_the_readme_says() {
    run_commands_of("README.md", 4);
}

#[test]
fn every_console_block_prints_what_the_guides_page_of_commands_says() {
    run_commands_of("src/guide/commands.md", 3);
}

#[test]
fn every_console_block_prints_what_the_page_of_examples_says() {
    run_commands_of("examples/README.md", 3);
}

#[test]
fn every_console_block_prints_what_the_guides_page_of_platforms_says() {
    run_commands_of("src/guide/platforms.md", 12);
}

#[test]
fn the_guides_page_of_platforms_has_every_one_that_starts_one_process_on_each_node() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/platforms.md");
    let text = fs::read_to_string(page).unwrap();
    for builder in
        Job::of_each().filter(|builder| builder.clone().nodes(2).per_node(2).build().is_err())
    {
        let Ok(job) = builder.nodes(2).build() else { continue };
        assert!(text.contains(&format!(" --launcher {} ", job.launcher())), "{}", job.launcher());
    }
}

#[test]
fn the_python_block_of_the_page_of_examples_sets_what_mpienv_exports() {
    if !is_there("python3") {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/README.md");
    let text = fs::read_to_string(page).unwrap();
    let (_, block) = text.split_once("\n```python\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let shown = "print([os.environ.get(name) for name in ('RANK', 'WORLD_SIZE', 'TORCHELASTIC_USE_AGENT_STORE')])";
    let mut command = clean("sh");
    command.args(["-c", "exec python3 -c \"$0\""]).arg(format!("{block}\n{shown}"));
    command.env("RANK", "0").env("WORLD_SIZE", "1");
    let output = command.env("TORCHELASTIC_USE_AGENT_STORE", "True").output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(found, "['0', '1', None]\n", "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every page in a folder and below it.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| !path.ends_with("target") && !path.is_symlink());
    let pages = entries.flat_map(|path| if path.is_dir() { pages_in(&path) } else { vec![path] });
    pages.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// But for tables, what is copied or printed, and what cannot be broken.
#[test]
fn no_line_of_a_page_is_longer_than_one_of_the_code() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![top.join("README.md"), top.join("CHANGELOG.md")];
    pages.extend(
        [".github", "examples", "src", "tests"].map(|name| pages_in(&top.join(name))).concat(),
    );
    assert!(pages.len() > 25, "{pages:?}");
    for page in pages {
        let mut is_code = false;
        for (line, text) in fs::read_to_string(&page).unwrap().lines().enumerate() {
            let start = text.trim_start();
            is_code ^= start.starts_with("```");
            let is_whole = start.starts_with(['|', '#', '<']) || start.starts_with("![");
            let is_link = start.starts_with('[') && start.contains("]: ");
            let columns = text.chars().count();
            assert!(
                columns <= 100 || is_code || is_whole || is_link || !start.contains(' '),
                "{}:{} has {columns} columns, which are at most 100",
                page.display(),
                line + 1
            );
        }
    }
}

/// Links to files of the project, and to headings of its pages.
#[test]
fn links_lead_somewhere() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut checked = 0;
    let guide = fs::read_dir(top.join("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = ["README.md", ".github/CONTRIBUTING.md", "examples/README.md", "tests/README.md"];
    let packages = ["examples/sharding/README.md", "examples/trainer/README.md"];
    for page in pages.into_iter().chain(packages).map(|page| top.join(page)).chain(guide) {
        let text = fs::read_to_string(&page).unwrap();
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let defined = text.lines().filter(|line| line.starts_with('['));
        let defined = defined.filter_map(|line| line.split_once("]: "));
        let links = inline.map(|(link, _)| link).chain(defined.map(|(_, link)| link));
        for link in links.filter(|link| !link.starts_with("crate::")) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            let text = || fs::read_to_string(&target).unwrap().to_lowercase();
            let headings = || text().replace(' ', "-").replace('.', "");
            assert!(
                heading.is_empty() || headings().contains(&format!("#-{heading}\n")),
                "{}: {link}",
                page.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} links were found");
}

#[test]
fn the_guides_page_of_how_it_works_names_folders_and_files_that_exist() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(top.join("src/guide/how_it_works.md")).unwrap();
    let starts = ["src/", "examples", "tests", ".ci/"];
    let words = text.split('`').skip(1).step_by(2).filter_map(|code| code.split(' ').next());
    let paths: Vec<_> =
        words.filter(|word| starts.iter().any(|start| word.starts_with(start))).collect();
    assert!(paths.len() > 20, "{paths:?}");
    for path in &paths {
        assert!(top.join(path).exists(), "{path} is not there");
    }
    for entry in fs::read_dir(top.join("src")).unwrap() {
        let entry = entry.unwrap();
        let room = format!("src/{}", entry.file_name().display());
        let is_room = entry.file_type().unwrap().is_dir();
        assert!(!is_room || paths.contains(&room.as_str()), "the page lacks {room}");
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let (_, needs) = manifest.split_once("\n[dependencies]\n").unwrap();
        let needs = needs.split("\n[").next().unwrap().lines();
        let others =
            needs.filter_map(|line| line.strip_prefix("mpienv-")?.split(['.', ' ']).next());
        let others: Vec<_> = others.collect();
        let others =
            if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
        let row = format!("\n| `{room}`{others} |");
        assert!(text.contains(&row), "the page lacks {row}");
    }
}

/// The pages link to each other by definitions that the Rust documentation replaces.
#[test]
fn links_between_the_guides_pages_lead_to_files_and_to_modules() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    let modules = fs::read_to_string(guide.join("links.txt")).unwrap();
    let pages: Vec<_> = fs::read_dir(&guide).unwrap().map(|entry| entry.unwrap().path()).collect();
    let pages = || pages.iter().filter(|path| path.extension().is_some_and(|end| end == "md"));
    let index = fs::read_to_string(guide.join("README.md")).unwrap();
    for path in pages() {
        let (text, name) = (fs::read_to_string(path).unwrap(), path.file_name().unwrap().display());
        let listed = name.to_string() == "README.md" || index.contains(&format!("][{name}]"));
        assert!(listed, "the index lacks {name}");
        for page in pages().map(|path| path.file_name().unwrap().display()) {
            let inline = format!("]({page}");
            assert!(!text.contains(&inline), "{name}: write [text][{page}], and define it below");
        }
        let used = text.split("][").skip(1).filter_map(|rest| rest.split_once(']'));
        for (label, _) in used.filter(|(label, _)| label.contains(".md")) {
            assert!(text.contains(&format!("\n[{label}]: {label}\n")), "{name}: define {label}");
            let module = label.replacen(".md", "", 1);
            let line = format!("[{label}]: crate::guide::{module}\n");
            assert!(modules.contains(&line), "links.txt lacks {line}");
        }
    }
}

#[test]
fn a_line_is_as_expected_up_to_its_wildcards() {
    assert!(line_matches("a[..]c", "abbc") && line_matches("[..]", "") && line_matches("a", "a"));
    assert!(
        !line_matches("a[..]c", "abb")
            && !line_matches("a", "ab")
            && !line_matches("[..]x[..]y", "yx")
    );
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(
        lines_match(&lines("a\n...\nc"), &["a", "b", "b", "c"]) && lines_match(&lines("..."), &[])
    );
    assert!(
        !lines_match(&lines("a\n...\nc"), &["a", "b"]) && !lines_match(&lines("a"), &["a", "b"])
    );
}
