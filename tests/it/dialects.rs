//! The output of `mpienv export`, read by real shells and by readers written from the
//! documentation.

use std::cell::Cell;

use crate::support::tool::{clean, is_there};
use mpienv::{ClusterInfo, Dialect, NcclIfname, Unrepresentable};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Values with all characters that a shell could interpret.
fn nasty() -> impl Strategy<Value = String> {
    let pieces = vec![
        "$", "`", "!", "!!", "{a,b}", "=ls", "~", "*", "?", "[", "]", "#", "&", "|", ";", "<", ">",
        "(", ")", " ", "  ", "\t", "\n", "\r", "%", "^", "-", "$(id)", "${HOME}", "\\n", "ü", "‘",
        "\u{1b}", "\u{7f}", "EOF", "eth0",
    ];
    let piece = prop_oneof![
        2 => prop::sample::select(vec!["'", "\"", "\\", "\\\\", "\n", "\nEOF\n"]).prop_map(str::to_owned),
        4 => prop::sample::select(pieces).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat().replace('\0', ""))
}

/// The output for rank 0 of 1 whose NCCL_SOCKET_IFNAME is `value`, without anything to unset.
pub(super) fn text(dialect: Dialect, value: &str) -> Result<String, Unrepresentable> {
    let builder = ClusterInfo::builder().nccl_ifname(NcclIfname::Value(value.to_owned()));
    let info = builder.vars([("RANK", "0"), ("WORLD_SIZE", "1")]).read().unwrap();
    info.exports().unwrap().to_text(dialect)
}

/// The output that unsets TORCHELASTIC_USE_AGENT_STORE, which is last.
pub(super) fn text_of_unset(dialect: Dialect) -> Result<String, Unrepresentable> {
    let vars = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    ClusterInfo::from_vars(vars).unwrap().exports().unwrap().to_text(dialect)
}

/// Every value is either refused or returned unchanged by `read`, and enough of them are returned.
fn values_survive(dialect: Dialect, read: impl Fn(&str) -> Vec<Option<String>>) {
    let written = Cell::new(0);
    // Each case starts a shell; PROPTEST_CASES selects more cases.
    let config = Config { cases: Config::default().cases.min(10_000), ..Config::default() };
    let least = config.cases / 8;
    let outcome = TestRunner::new(config).run(&nasty(), |value| {
        if let Ok(text) = text(dialect, &value) {
            written.set(written.get() + 1);
            for found in read(&text) {
                prop_assert_eq!(found.as_deref(), Some(value.as_str()), "{}", text);
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{dialect:?}: {error}"));
    assert!(written.get() > least, "{dialect:?} writes only {} values", written.get());
}

/// Runs a shell script on a file with `text`. The script finally runs `env -0`, which shows the
/// values that arrived.
fn values_survive_in(shell: &[&str], dialect: Dialect, script: &str) {
    if !is_there(shell[0]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    let environment = |text: &str, locale: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = clean(shell[0]);
        command.args(&shell[1..]).arg("-c").arg(format!("{script}; exec env -0"));
        command.env("FILE", &file).env("HOME", folder.path()).env("LC_ALL", locale);
        let output = command.env("TORCHELASTIC_USE_AGENT_STORE", "True").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{shell:?}: {text}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let has =
        |environment: &str, variable: &str| environment.split('\0').any(|found| found == variable);
    values_survive(dialect, |text| {
        let read = |locale| {
            let environment = environment(text, locale);
            assert!(
                has(&environment, "RANK=0")
                    && has(&environment, "TORCHELASTIC_USE_AGENT_STORE=True")
            );
            environment
                .split('\0')
                .find_map(|pair| pair.strip_prefix("NCCL_SOCKET_IFNAME=").map(str::to_owned))
        };
        vec![read("C"), read("C.UTF-8")]
    });
    let environment = environment(&text_of_unset(dialect).unwrap(), "C");
    assert!(
        has(&environment, "RANK=0") && !environment.contains("TORCHELASTIC_USE_AGENT_STORE"),
        "{environment}"
    );
}

const EVAL: &str = r#"eval "$(cat $FILE)""#;

#[test]
fn values_survive_eval_in_dash_byte_for_byte() {
    values_survive_in(&["dash"], Dialect::Posix, EVAL);
}

#[test]
fn values_survive_eval_in_bash_byte_for_byte() {
    values_survive_in(&["bash"], Dialect::Posix, EVAL);
}

#[test]
fn values_survive_eval_in_zsh_byte_for_byte() {
    values_survive_in(&["zsh", "-f"], Dialect::Posix, EVAL);
}

#[test]
fn values_survive_eval_in_ksh_byte_for_byte() {
    values_survive_in(&["ksh"], Dialect::Posix, EVAL);
}

#[test]
fn values_survive_source_in_fish_byte_for_byte() {
    values_survive_in(&["fish", "--no-config"], Dialect::Fish, "cat $FILE | source");
}

#[test]
fn values_survive_eval_in_fish_byte_for_byte() {
    values_survive_in(&["fish", "--no-config"], Dialect::Fish, "eval (cat $FILE)");
}

#[test]
fn values_survive_eval_in_tcsh_byte_for_byte() {
    values_survive_in(&["tcsh", "-f"], Dialect::Csh, r#"eval "`cat $FILE`""#);
}

/// A stand-in for Apptainer and Singularity, whose starter puts each `APPTAINERENV_` value (or
/// `SINGULARITYENV_` value) between quotes and lets a shell evaluate the line: `injectEnvHandler`
/// in internal/pkg/runtime/engine/apptainer/process_linux.go of Apptainer 1.5.3.
fn in_apptainer(prefix: &str, evaluates: bool) -> String {
    let line = if evaluates {
        r#"escaped=${value//\"/\\\"}; eval "export $name=\"$escaped\"""#
    } else {
        r#"quote="'\"'\"'"; escaped=${value//\'/$quote}; eval "export $name='$escaped'""#
    };
    format!(
        "{EVAL}; for full in $(compgen -e {prefix}); do value=${{!full}}; name=${{full#{prefix}}}; {line}; done"
    )
}

#[test]
fn values_survive_in_apptainer_with_and_without_evaluation() {
    for prefix in ["APPTAINERENV_", "SINGULARITYENV_"] {
        for evaluates in [true, false] {
            values_survive_in(&["bash"], Dialect::Apptainer, &in_apptainer(prefix, evaluates));
        }
    }
}

#[test]
fn values_survive_in_every_reader_of_dotenv_files() {
    values_survive(Dialect::Dotenv, |text| {
        crate::support::dotenv::READERS
            .iter()
            .map(|reader| reader.value(text, "NCCL_SOCKET_IFNAME"))
            .collect()
    });
}

/// The rules of `docker run --env-file`; `strips` says whether it removes quotes around a value.
fn docker_reads(text: &str, strips: bool) -> Option<String> {
    let line = |line: &str| {
        let line = line.strip_suffix('\r').unwrap_or(line).trim_start();
        let value = line.strip_prefix("NCCL_SOCKET_IFNAME=")?;
        let inner = ['\'', '"']
            .iter()
            .find_map(|&q| value.strip_prefix(q)?.strip_suffix(q))
            .filter(|_| strips);
        Some(inner.unwrap_or(value).to_owned())
    };
    text.split('\n').find_map(line)
}

#[test]
fn values_survive_in_a_file_for_docker() {
    values_survive(Dialect::Docker, |text| {
        vec![docker_reads(text, false), docker_reads(text, true)]
    });
}

/// The rules of GitHub's runner, which on Windows also accepts `\r\n` as a line ending.
fn github_reads(text: &str, windows: bool) -> Option<String> {
    let content = |line: &str| -> usize {
        line.len() - if windows && line.ends_with("\r\n") { 2 } else { 1 }
    };
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        let (name, delimiter) = line[..content(line)].split_once("<<")?;
        let mut value = String::new();
        let mut end = 0;
        for line in lines.by_ref().take_while(|line| &line[..content(line)] != delimiter) {
            end = value.len() + content(line);
            value += line;
        }
        if name == "NCCL_SOCKET_IFNAME" {
            return Some(value[..end].to_owned());
        }
    }
    None
}

#[test]
fn values_survive_in_a_file_for_github() {
    values_survive(Dialect::GitHub, |text| {
        vec![github_reads(text, false), github_reads(text, true)]
    });
}

#[test]
fn json_is_one_object_of_texts_and_null_for_what_must_go() {
    let mut command = clean("mpienv");
    command
        .args(["export", "--shell", "json"])
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env("MASTER_PORT", "29500");
    let output = command.output().unwrap();
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "TORCHELASTIC_USE_AGENT_STORE": null,
    });
    assert_eq!(object, expected);
}

#[test]
fn values_survive_in_json() {
    values_survive(Dialect::Json, |text| {
        let object: serde_json::Value = serde_json::from_str(text).unwrap();
        vec![object["NCCL_SOCKET_IFNAME"].as_str().map(str::to_owned)]
    });
}

#[test]
fn a_script_that_evaluates_a_failed_export_stops_in_every_shell() {
    // An invalid rank, and an invalid option; the variables of an earlier job are set.
    for (vars, option) in [("four", ""), ("0", " --bogus")] {
        for shell in ["sh", "dash", "bash", "ksh", "zsh", "csh", "tcsh", "fish"] {
            if !is_there(shell) {
                continue;
            }
            let export = format!("mpienv export{option}");
            let (flags, script) = match shell {
                "csh" | "tcsh" => {
                    ("-efc", format!("eval \"`{export} --shell csh`\"; echo went on"))
                }
                // fish has no equivalent of `set -e`.
                "fish" => ("-c", format!("{export} --shell fish | source; and echo went on")),
                "zsh" => ("-fc", format!("set -eu; eval \"$({export})\"; echo went on")),
                _ => ("-c", format!("set -eu; eval \"$({export})\"; echo went on")),
            };
            let mut command = clean(shell);
            command
                .args([flags, &script])
                .env("RANK", vars)
                .env("WORLD_SIZE", "8")
                .env("MASTER_ADDR", "old");
            let output = command.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{shell}: {output:?}");
            assert_ne!(output.status.code(), Some(0), "{shell}: {output:?}");
            // Unquoted, and without `set -e`: the exit status shows the failure.
            if matches!(shell, "sh" | "bash") {
                let script = format!("eval $({export}) || exit 7");
                assert_eq!(
                    clean(shell).args(["-c", &script]).env("RANK", "four").status().unwrap().code(),
                    Some(7)
                );
            }
        }
    }
}
