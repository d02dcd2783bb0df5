//! Completions and the manual page, read by the programs for which they are made.

use std::process::Command;

use crate::support::tool::{clean, is_there};

const VERBS: [&str; 9] = ["export", "exec", "launch", "show", "doctor", "check", "simulate", "completions", "man"];

/// The stdout of a command, which must write nothing on stderr.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn script(shell: &str) -> String {
    printed(clean("mpienv").args(["completions", shell]))
}

/// The output of a shell that runs `words`. `$FILE` names the completion script.
fn with_script(shell: &str, options: &[&str], words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mpienv");
    std::fs::write(&file, script(shell)).unwrap();
    printed(clean(shell).args(options).args(["-c", words]).env("FILE", &file).env("HOME", folder.path()))
}

#[test]
fn bash_completes_verbs_and_dialects() {
    if !is_there("bash") {
        return;
    }
    let complete = |words: &[&str]| {
        let last = words.len() - 1;
        let words = format!(
            ". $FILE; COMP_WORDS=({}); COMP_CWORD={last}; _mpienv mpienv '{}' '{}'; echo ${{COMPREPLY[@]}}",
            words.join(" "),
            words[last],
            words[last - 1]
        );
        with_script("bash", &["--norc"], &words)
    };
    assert_eq!(complete(&["mpienv", "exp"]), "export\n");
    assert_eq!(
        complete(&["mpienv", "export", "--shell", "''"]),
        "sh bash zsh fish csh powershell cmd dotenv docker github json\n"
    );
}

#[test]
fn zsh_takes_its_completions() {
    if is_there("zsh") {
        assert_eq!(with_script("zsh", &["-f"], "zsh -f -n $FILE"), "");
        let defined = "autoload -U compinit; compinit -D -u; . $FILE; echo $_comps[mpienv]";
        assert_eq!(with_script("zsh", &["-f"], defined), "_mpienv\n");
    }
}

#[test]
fn fish_completes_verbs_and_dialects() {
    if is_there("fish") {
        let complete = |line: &str| {
            let words = format!("fish --no-config -n $FILE; and source $FILE; complete -C '{line}'");
            with_script("fish", &["--no-config"], &words)
        };
        assert!(complete("mpienv exp").starts_with("export\tPrint assignments"));
        assert_eq!(complete("mpienv export --shell=gi").lines().count(), 1);
    }
}

#[test]
fn powershell_completions_name_every_verb() {
    // PowerShell is not available to the tests.
    let script = script("powershell");
    assert!(script.contains("Register-ArgumentCompleter -Native -CommandName 'mpienv'"));
    for verb in VERBS {
        assert!(script.contains(&format!("CompletionResult]::new('{verb}', '{verb}'")), "{verb}: {script}");
    }
}

// Without PMIx, the command has one option fewer.
#[cfg(feature = "pmix")]
#[test]
fn what_packages_carry_is_what_the_command_prints() {
    let share = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".dist/data/share");
    let files = [
        ("man/man1/mpienv.1", printed(clean("mpienv").arg("man"))),
        ("bash-completion/completions/mpienv", script("bash")),
        ("zsh/site-functions/_mpienv", script("zsh")),
        ("fish/vendor_completions.d/mpienv.fish", script("fish")),
    ];
    for (file, text) in files {
        let packaged = std::fs::read_to_string(share.join(file)).unwrap();
        assert!(packaged == text, "{file} is out of date: .ci/generate writes it anew");
    }
}

#[test]
fn the_manual_page_has_every_verb_with_its_examples() {
    let page = printed(clean("mpienv").arg("man"));
    assert!(page.contains("\n.TH MPIENV 1"), "{page}");
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let verbs = VERBS.map(|verb| format!("\"MPIENV {}\"", verb.to_uppercase()));
    let expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"].map(str::to_owned).into_iter().chain(verbs);
    let expected: Vec<_> = expected.chain(["\"EXIT STATUS\"".to_owned(), "EXAMPLES".to_owned()]).collect();
    assert_eq!(headings, expected);
    assert_eq!(page.lines().filter(|line| *line == ".SS EXAMPLES").count(), VERBS.len());
}

#[test]
fn groff_finds_nothing_wrong_with_the_manual_page() {
    if !is_there("groff") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mpienv.1");
    std::fs::write(&file, printed(clean("mpienv").arg("man"))).unwrap();
    let text = printed(clean("groff").args(["-man", "-ww", "-Tutf8", "-P-c", "-P-bou"]).arg(&file));
    // Users copy examples from the page, so every character must be unchanged.
    for example in ["eval \"`mpienv export --shell csh`\"", "mpienv completions zsh > ~/.zfunc/_mpienv", "sh -c 'echo"]
    {
        assert!(text.contains(example), "{example}: {text}");
    }
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]"), "{text}");
}

#[test]
fn the_readmes_table_of_commands_is_what_help_says() {
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let help = printed(clean("mpienv").arg("--help"));
    let help = help.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<_> = readme.lines().filter_map(|line| line.strip_prefix("| `mpienv ")?.split_once("` | ")).collect();
    assert_eq!(rows.iter().map(|(verb, _)| *verb).collect::<Vec<_>>(), VERBS);
    for (verb, what) in rows {
        let line = format!("{verb} {}", what.trim_end_matches(" |"));
        assert!(help.contains(&line), "{line}: {help}");
    }
}

#[test]
fn the_readmes_exit_codes_are_those_of_the_manual_page() {
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, table) = readme.split_once("\n| code | what it means |\n| --- | --- |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let page = printed(clean("mpienv").arg("man"));
    let (_, status) = page.split_once("\n.SH \"EXIT STATUS\"\n.TP\n").unwrap();
    let (status, _) = status.split_once("\n.SH ").unwrap();
    let pairs = status.split("\n.TP\n").map(|pair| pair.lines().take(2).collect::<Vec<_>>());
    let rows: Vec<_> = pairs.map(|pair| format!("| {} |", pair.join(" | "))).collect();
    assert_eq!(table.lines().collect::<Vec<_>>(), rows);
}

#[test]
fn every_help_ends_with_examples() {
    for words in VERBS.map(|verb| vec![verb, "--help"]).into_iter().chain([vec!["--help"], vec!["-h"]]) {
        let help = printed(clean("mpienv").args(&words));
        let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{words:?}: {help}"));
        assert!(examples.lines().any(|line| line.starts_with("  ") && line.contains("mpienv ")), "{words:?}: {help}");
    }
}

#[test]
fn help_names_each_dialect_and_what_it_is_for() {
    let help = printed(clean("mpienv").args(["export", "--help"]));
    for line in ["- csh:        csh and tcsh", "- docker:     A file for docker run --env-file", "[default: sh]"] {
        assert!(help.lines().any(|found| found.trim() == line), "{line}: {help}");
    }
}

#[test]
fn other_names_of_shells_are_taken() {
    for (name, dialect) in [("tcsh", "csh"), ("pwsh", "powershell"), ("dash", "sh"), ("ksh", "sh")] {
        let export = |shell| printed(clean("mpienv").args(["export", "--shell", shell]).env("MASTER_PORT", "29500"));
        assert_eq!(export(name), export(dialect));
    }
}
