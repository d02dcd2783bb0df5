//! The guide's page for Rust programs, with a program of its own, as a user has one.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::cargo::with_cargo;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/rust.md");
    fs::read_to_string(path).unwrap()
}

/// Runs cargo with these words, without the network.
fn cargo(words: &[&str], folder: &Path) -> Output {
    let mut command = with_cargo(env!("CARGO"));
    // The compiler beside this cargo. `rustc` on PATH may be rustup, which may replace the
    // toolchain of the machine before it compiles.
    let compiler = Path::new(env!("CARGO")).with_file_name("rustc");
    assert!(compiler.is_file(), "no {}", compiler.display());
    command.env("RUSTC", compiler);
    command.env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", folder.join("target"));
    // Compiles in less time.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    command.args(words).current_dir(folder).output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_pages_program_compiles_in_a_package_of_its_own_which_cannot_be_published() {
    let top = env!("CARGO_MANIFEST_DIR");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |words: &[&str]| {
        let output = cargo(words, folder);
        assert!(output.status.success(), "{words:?}: {}", texts(&output).1);
        output
    };
    run(&["init", "--name", "total", "--vcs", "none"]);
    run(&["add", "--path", top, "--features", "collective"]);
    // The versions whose sources are there.
    fs::copy(Path::new(top).join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let page = page();
    let (_, program) = page.split_once("```rust\n").unwrap();
    let (program, _) = program.split_once("```\n").unwrap();
    fs::write(folder.join("src/main.rs"), program).unwrap();
    let said = texts(&run(&["run", "--quiet"])).0;
    assert_eq!(said, "249750 over a single rank\n");
    let refused = cargo(&["package", "--allow-dirty"], folder);
    let (_, said) = texts(&refused);
    assert!(!refused.status.success() && said.contains("mpienv"), "{said}");
}

#[test]
fn the_page_has_every_feature_and_how_many_crates_it_compiles() {
    let page = page();
    let rows = page.lines().skip_while(|line| !line.starts_with("| feature |")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let count = |feature: &str| {
        let words = ["tree", "--package", "mpienv", "--edges", "normal,build", "--prefix", "none"];
        let words = [&words[..], &["--no-dedupe", "--features", feature]].concat();
        let mut command = with_cargo(env!("CARGO"));
        command.env("CARGO_NET_OFFLINE", "true").args(words);
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        let (tree, said) = texts(&output);
        assert!(output.status.success(), "{said}");
        let mut lines: Vec<&str> = tree.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        lines.len().to_string()
    };
    let found: Vec<_> = rows
        .iter()
        .map(|row| count(row[0].trim_matches('`').replace("none", "").as_str()))
        .collect();
    let said: Vec<_> = rows.iter().map(|row| row[2].to_owned()).collect();
    assert_eq!(said, found);
    let names: Vec<_> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let (_, features) = manifest.split_once("\n[features]\n").unwrap();
    let (features, _) = features.split_once("\n[").unwrap();
    for feature in features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name)
    {
        let is_there = ["cli", "default", "gpu"].contains(&feature) || names.contains(&feature);
        assert!(is_there, "the page lacks {feature}");
    }
}
