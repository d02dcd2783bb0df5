//! Completions and the manual page, read by the programs for which they are made.

use std::process::Command;

use crate::support::tool::{clean, is_there};

const VERBS: [&str; 9] =
    ["export", "exec", "launch", "show", "doctor", "check", "simulate", "completions", "man"];

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
    printed(
        clean(shell)
            .args(options)
            .args(["-c", words])
            .env("FILE", &file)
            .env("HOME", folder.path()),
    )
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
        "sh bash zsh fish csh powershell cmd dotenv docker apptainer github json\n"
    );
}

#[test]
fn bash_completes_launchers_programs_and_placeholders() {
    if !is_there("bash") {
        return;
    }
    let complete = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let [.., before, word] = words[..] else { panic!("{line}") };
        let array = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let last = words.len() - 1;
        let script = format!(
            ". $FILE; COMP_WORDS=({array}); COMP_CWORD={last}; _mpienv mpienv '{word}' '{before}'; echo ${{COMPREPLY[@]}}"
        );
        with_script("bash", &["--norc"], &script)
    };
    assert_eq!(complete("mpienv exec --launcher hy"), "hydra\n");
    assert_eq!(complete("mpienv simulate --launcher sag"), "sagemaker\n");
    assert_eq!(complete("mpienv launch --for mi"), "mindspore mistralrs\n");
    assert_eq!(complete("mpienv exec --template -- vllm {no"), "{node_rank}\n");
    assert_eq!(
        complete("mpienv exec --template -- vllm --rank = {no"),
        "{node_rank}\n",
        "bash splits words at ="
    );
    assert_eq!(complete("mpienv exec -- vllm {no"), "\n");
}

/// Types each line and a tab into a zsh on a terminal of its own, and prints the lines that come of
/// it.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; autoload -U compinit; compinit -D -u; . $FILE'
zpty -w shell 'say() { print -r -- "BUFFER=$BUFFER."; BUFFER= }; zle -N say; bindkey "^X^X" say; print REA""DY'
zpty -r shell out '*READY*'
while read -r line; do
    zpty -w -n shell "$line"$'\t\x18\x18'
    zpty -r shell out '*BUFFER=*.'
    print -r -- "${${out##*BUFFER=}%.}"
done
zpty -d shell
"#;

#[test]
fn zsh_completes_launchers_programs_dialects_and_placeholders() {
    if !is_there("zsh") {
        return;
    }
    let lines = [
        ("mpienv exec --launcher hy", "mpienv exec --launcher hydra "),
        ("mpienv simulate --launcher sag", "mpienv simulate --launcher sagemaker "),
        ("mpienv launch --for mind", "mpienv launch --for mindspore "),
        ("mpienv export --shell pow", "mpienv export --shell powershell "),
        ("mpienv exec --template -- vllm {no", "mpienv exec --template -- vllm {node_rank}"),
        (
            "mpienv exec --template -- vllm --rank={no",
            "mpienv exec --template -- vllm --rank={node_rank}",
        ),
        ("mpienv exec --template -- vllm '{no", "mpienv exec --template -- vllm '{node_rank}' "),
        ("mpienv exec -- vllm {no", "mpienv exec -- vllm {no"),
    ];
    let typed: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("typed"), typed).unwrap();
    let script = format!("cd {}; {{ {ZSH} }} <typed", folder.path().display());
    let expected: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
    assert_eq!(with_script("zsh", &["-f"], &script), expected);
}

#[test]
fn fish_completes_launchers_programs_and_placeholders() {
    if !is_there("fish") {
        return;
    }
    let complete = |line: &str| {
        let words = format!("source $FILE; complete -C \"{line}\"");
        let text = with_script("fish", &["--no-config"], &words);
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete("mpienv exec --launcher hy"), ["hydra"]);
    assert_eq!(complete("mpienv simulate --launcher sag"), ["sagemaker"]);
    assert_eq!(complete("mpienv launch --for mi"), ["mindspore", "mistralrs"]);
    assert_eq!(complete("mpienv exec --template -- vllm {no"), ["{node_rank}"]);
    assert_eq!(complete("mpienv exec --template -- vllm --rank={no"), ["--rank={node_rank}"]);
    assert_eq!(complete("mpienv exec --template -- vllm '{no"), ["{node_rank}"]);
    assert_eq!(complete("mpienv exec -- vllm {no"), [""; 0]);
}

#[test]
fn help_lists_the_values_that_are_names() {
    let words = |help: &str| help.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for verb in ["export", "exec", "launch", "show", "doctor", "check", "simulate"] {
        let help = words(&printed(clean("mpienv").args([verb, "--help"])));
        assert!(help.contains("[possible values: torchrun, horovod, msrun, "), "{verb}: {help}");
    }
    for verb in ["export", "exec", "launch"] {
        let help = words(&printed(clean("mpienv").args([verb, "--help"])));
        assert!(help.contains("[possible values: torch, jax, "), "{verb}: {help}");
    }
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
            let words =
                format!("fish --no-config -n $FILE; and source $FILE; complete -C '{line}'");
            with_script("fish", &["--no-config"], &words)
        };
        assert!(complete("mpienv exp").starts_with("export\tPrint assignments"));
        // fish expands variables in a description, which would lose their names.
        let line = complete("mpienv export --shell gi");
        assert!(line.starts_with("github\t") && line.contains("GITHUB_ENV"), "{line}");
        assert_eq!(complete("mpienv export --shell=gi").lines().count(), 1);
    }
}

#[test]
fn powershell_completions_name_every_verb() {
    // PowerShell is not available to the tests.
    let script = script("powershell");
    assert!(script.contains("Register-ArgumentCompleter -Native -CommandName 'mpienv'"));
    for verb in VERBS {
        assert!(
            script.contains(&format!("CompletionResult]::new('{verb}', '{verb}'")),
            "{verb}: {script}"
        );
    }
}

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
    let first = ["NAME", "SYNOPSIS", "DESCRIPTION"].map(str::to_owned);
    let last = ["OPTIONS", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES", "\"SEE ALSO\""];
    let last = last.map(str::to_owned);
    let expected: Vec<_> = first.into_iter().chain(verbs).chain(last).collect();
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
    for example in [
        "eval \"`mpienv export --shell csh`\"",
        "mpienv completions zsh > ~/.zfunc/_mpienv",
        "sh -c 'echo",
    ] {
        assert!(text.contains(example), "{example}: {text}");
    }
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]"),
        "{text}"
    );
}

#[test]
fn man_and_mandoc_find_nothing_wrong_with_the_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mpienv.1");
    std::fs::write(&file, printed(clean("mpienv").arg("man"))).unwrap();
    if is_there("man") {
        let mut command = clean("man");
        printed(command.args(["--warnings", "-l"]).arg(&file).env("MANPAGER", "cat"));
    }
    if is_there("mandoc") {
        assert_eq!(printed(clean("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&file)), "");
    }
}

#[test]
fn the_manual_page_has_common_options_once_and_values_in_its_synopses() {
    let page = printed(clean("mpienv").arg("man"));
    assert_eq!(page.matches("\n\\fB\\-\\-master\\-addr\\fR").count(), 1, "{page}");
    assert_eq!(page.matches("[\\fICOMMON\\-OPTION\\fR]...").count(), 6, "{page}");
    assert!(page.contains("[\\fB\\-\\-log\\-dir\\fR \\fIDIR\\fR]"), "{page}");
}

#[test]
fn the_manual_page_has_every_variable_that_help_names() {
    let page = printed(clean("mpienv").arg("man"));
    let (_, environment) = page.split_once("\n.SH ENVIRONMENT\n").unwrap();
    let (environment, _) = environment.split_once("\n.SH ").unwrap();
    let is_name = |char: char| char.is_ascii_uppercase() || char == '_';
    let mut found = 0;
    for verb in VERBS {
        let help = printed(clean("mpienv").args([verb, "--help"]));
        for name in help.split(|char: char| !is_name(char)).filter(|w| w.starts_with("MPIENV_")) {
            assert!(environment.contains(name), "{name} of {verb}");
            found += 1;
        }
    }
    assert!(found > 20, "only {found} names were found");
}

#[test]
fn the_guides_table_of_commands_is_what_help_says() {
    let page = include_str!("../../src/guide/commands.md");
    let help = printed(clean("mpienv").arg("--help"));
    let help = help.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `mpienv ")?.split_once("` | "))
        .collect();
    assert_eq!(rows.iter().map(|(verb, _)| *verb).collect::<Vec<_>>(), VERBS);
    for (verb, what) in rows {
        let line = format!("{verb} {}", what.trim_end_matches(" |"));
        assert!(help.contains(&line), "{line}: {help}");
    }
}

#[test]
fn the_guides_exit_codes_are_those_of_the_manual_page() {
    let guide = include_str!("../../src/guide/commands.md");
    let (_, table) = guide.split_once("\n| code | what it means |\n| --- | --- |\n").unwrap();
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
    for words in
        VERBS.map(|verb| vec![verb, "--help"]).into_iter().chain([vec!["--help"], vec!["-h"]])
    {
        let help = printed(clean("mpienv").args(&words));
        let (_, examples) =
            help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{words:?}: {help}"));
        assert!(
            examples.lines().any(|line| line.starts_with("  ") && line.contains("mpienv ")),
            "{words:?}: {help}"
        );
    }
}

#[test]
fn help_names_each_dialect_and_what_it_is_for() {
    let help = printed(clean("mpienv").args(["export", "--help"]));
    for line in [
        "- csh:        csh and tcsh",
        "- docker:     A file for docker run --env-file or podman run --env-file",
        "[default: sh]",
    ] {
        assert!(help.lines().any(|found| found.trim() == line), "{line}: {help}");
    }
}

#[test]
fn other_names_of_shells_are_taken() {
    for (name, dialect) in [
        ("tcsh", "csh"),
        ("pwsh", "powershell"),
        ("dash", "sh"),
        ("ksh", "sh"),
        ("singularity", "apptainer"),
    ] {
        let export = |shell| {
            printed(clean("mpienv").args(["export", "--shell", shell]).env("MASTER_PORT", "29500"))
        };
        assert_eq!(export(name), export(dialect));
    }
}
