//! The output of `mpienv export`, read by real shells and by readers written from the
//! documentation.

use std::cell::Cell;
use std::process::Command;

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
fn text(dialect: Dialect, value: &str) -> Result<String, Unrepresentable> {
    let builder = ClusterInfo::builder().nccl_ifname(NcclIfname::Value(value.to_owned()));
    let info = builder.vars([("RANK", "0"), ("WORLD_SIZE", "1")]).read().unwrap();
    info.exports().unwrap().to_text(dialect)
}

/// The output that unsets TORCHELASTIC_USE_AGENT_STORE, which is last.
fn text_of_unset(dialect: Dialect) -> Result<String, Unrepresentable> {
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
fn the_documented_words_work_in_each_shell() {
    let shown = "echo $RANK/$WORLD_SIZE@$MASTER_ADDR:$MASTER_PORT $NCCL_SOCKET_IFNAME";
    let forms: [(&[&str], &str); 9] = [
        (&["dash"], r#"eval "$(mpienv export)""#),
        (&["dash"], "eval $(mpienv export)"),
        (&["bash"], r#"eval "$(mpienv export --shell bash)""#),
        (&["bash"], "eval $(mpienv export)"),
        (&["zsh", "-f"], r#"eval "$(mpienv export --shell zsh)""#),
        (&["ksh"], r#"eval "$(mpienv export)""#),
        (&["fish", "--no-config"], "mpienv export --shell fish | source"),
        (&["fish", "--no-config"], "eval (mpienv export --shell fish)"),
        (&["tcsh", "-f"], r#"eval "`mpienv export --shell csh`""#),
    ];
    for (shell, form) in forms {
        if is_there(shell[0]) {
            // csh would interpret the colon as the start of a modifier.
            let shown = shown.replace(
                "$MASTER_ADDR:",
                if shell[0] == "tcsh" { "${MASTER_ADDR}:" } else { "$MASTER_ADDR:" },
            );
            let mut command: Command = clean(shell[0]);
            command
                .args(&shell[1..])
                .args(["-c", &format!("{form}; {shown}")])
                .env("MASTER_PORT", "29500");
            let output = command.output().unwrap();
            let found = String::from_utf8_lossy(&output.stdout);
            assert_eq!(found, "0/1@127.0.0.1:29500 ^docker0,lo\n", "{shell:?} {form}");
        }
    }
}

#[test]
fn every_dialect_writes_these_words() {
    let all = |line: fn(&str, &str) -> String| {
        let variables = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("NODE_RANK", "0"),
        ];
        let more = [
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("NCCL_SOCKET_IFNAME", "^docker0,lo"),
        ];
        variables.iter().chain(&more).map(|(name, value)| line(name, value)).collect::<String>()
    };
    let table = [
        (
            Dialect::Fish,
            all(|n, v| format!("set -gx {n} '{v}';\n")),
            "set -e TORCHELASTIC_USE_AGENT_STORE;\n",
        ),
        (
            Dialect::Csh,
            all(|n, v| format!("setenv {n} '{v}';\n")),
            "unsetenv TORCHELASTIC_USE_AGENT_STORE;\n",
        ),
        (
            Dialect::PowerShell,
            all(|n, v| format!("$env:{n} = '{v}';\n")),
            "Remove-Item Env:TORCHELASTIC_USE_AGENT_STORE -ErrorAction SilentlyContinue;\n",
        ),
        (
            Dialect::Cmd,
            all(|n, v| format!("set \"{n}={v}\"\n")),
            "set \"TORCHELASTIC_USE_AGENT_STORE=\"\n",
        ),
        (Dialect::Docker, all(|n, v| format!("{n}={v}\n")), ""),
        (
            Dialect::Apptainer,
            all(|n, v| {
                let v = if v.starts_with('^') { format!("'{v}'") } else { v.to_owned() };
                format!("export APPTAINERENV_{n}={v} SINGULARITYENV_{n}={v};\n")
            }),
            "unset TORCHELASTIC_USE_AGENT_STORE APPTAINERENV_TORCHELASTIC_USE_AGENT_STORE \
             SINGULARITYENV_TORCHELASTIC_USE_AGENT_STORE;\n",
        ),
        (
            Dialect::GitHub,
            all(|n, v| format!("{n}<<EOF\n{v}\nEOF\n")),
            "TORCHELASTIC_USE_AGENT_STORE<<EOF\n\nEOF\n",
        ),
    ];
    for (dialect, set, unset) in table {
        assert_eq!(text_of_unset(dialect).unwrap(), set + unset);
    }
    let simple = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29500")];
    let simple = ClusterInfo::from_vars(simple).unwrap().exports().unwrap();
    assert_eq!(simple.to_text(Dialect::Dotenv).unwrap(), all(|n, v| format!("{n}='{v}'\n")));
}

#[test]
fn values_are_quoted_so() {
    let table = [
        (Dialect::Posix, "it's", r"export NCCL_SOCKET_IFNAME='it'\''s';"),
        (Dialect::Fish, "it's \\ a\nb", r"set -gx NCCL_SOCKET_IFNAME 'it\'s \\ a'\n'b';"),
        (Dialect::Csh, "it's!", r"setenv NCCL_SOCKET_IFNAME 'it'\''s\!';"),
        (Dialect::PowerShell, "it's $x `n", "$env:NCCL_SOCKET_IFNAME = 'it''s $x `n';"),
        (Dialect::PowerShell, "a’b", "$env:NCCL_SOCKET_IFNAME = 'a' + [char]0x2019 + 'b';"),
        (
            Dialect::PowerShell,
            "\r\n",
            "$env:NCCL_SOCKET_IFNAME = '' + [char]0x000d + [char]0x000a;",
        ),
        (Dialect::PowerShell, "😀", "$env:NCCL_SOCKET_IFNAME = '' + [char]0xd83d + [char]0xde00;"),
        (Dialect::Cmd, "^a & b|c > d'", "set \"NCCL_SOCKET_IFNAME=^a & b|c > d'\""),
        (Dialect::Dotenv, r#"a "$b" \c #d"#, r#"NCCL_SOCKET_IFNAME='a "$b" \c #d'"#),
        (Dialect::Dotenv, "it's `d`", "NCCL_SOCKET_IFNAME=\"it's `d`\""),
        (Dialect::Docker, " # 'a", "NCCL_SOCKET_IFNAME= # 'a"),
        (Dialect::Docker, "", "NCCL_SOCKET_IFNAME="),
        (Dialect::GitHub, "a\nEOF\nEOF_", "NCCL_SOCKET_IFNAME<<EOF__\na\nEOF\nEOF_\nEOF__"),
    ];
    for (dialect, value, expected) in table {
        let text = text(dialect, value).unwrap();
        assert!(text.contains(&format!("\n{expected}\n")), "{dialect:?}: {text}");
    }
}

#[test]
fn what_cannot_be_said_is_refused_with_the_reason() {
    let table = [
        (Dialect::Posix, "\0", "NUL"),
        (Dialect::Csh, "a\nb", "newline"),
        (Dialect::PowerShell, "", "removes a variable"),
        (Dialect::PowerShell, "\0", "NUL"),
        (Dialect::Cmd, "", "removes a variable"),
        (Dialect::Cmd, "a\"b", "double quote"),
        (Dialect::Cmd, "100%", "%"),
        (Dialect::Cmd, "a!", "delayed expansion"),
        (Dialect::Cmd, "a\nb", "reads lines"),
        (Dialect::Cmd, "ü", "ASCII"),
        (Dialect::Dotenv, "a\rb", "carriage return"),
        (Dialect::Dotenv, "'\"", "readers disagree"),
        (Dialect::Dotenv, "'$", "readers disagree"),
        (Dialect::Dotenv, r"'\", "readers disagree"),
        (Dialect::Dotenv, r"a\\b", "readers disagree"),
        (Dialect::Dotenv, r"a\", "readers disagree"),
        (Dialect::Dotenv, "${A}", "python-dotenv"),
        (Dialect::Docker, "a\nb", "ends with its line"),
        (Dialect::Docker, "a\r", "carriage return"),
        (Dialect::Docker, "'a'", "strip quotes"),
        (Dialect::Docker, "\"\"", "strip quotes"),
        (Dialect::Apptainer, "$HOME", "evaluate"),
        (Dialect::Apptainer, "`id`", "evaluate"),
        (Dialect::Apptainer, r"a\b", "evaluate"),
        (Dialect::GitHub, "a\r", "carriage return"),
    ];
    for (dialect, value, reason) in table {
        let error = text(dialect, value).unwrap_err();
        assert!(error.reason.contains(reason), "{dialect:?} {value:?}: {error}");
        assert_eq!(
            (error.name.as_str(), error.value.as_deref()),
            ("NCCL_SOCKET_IFNAME", Some(value))
        );
    }
    assert_eq!(
        text(Dialect::Docker, "a\nb").unwrap_err().to_string(),
        "NCCL_SOCKET_IFNAME=\"a\\nb\" cannot be written as docker: a value ends with its line, and this \
         format has no escapes; correct NCCL_SOCKET_IFNAME or choose another dialect"
    );
    assert_eq!(
        text_of_unset(Dialect::Dotenv).unwrap_err().to_string(),
        "TORCHELASTIC_USE_AGENT_STORE cannot be unset in dotenv: such a file can only set variables; unset \
         TORCHELASTIC_USE_AGENT_STORE before, or choose another dialect"
    );
}

#[test]
fn docker_refuses_only_quotes_around_a_whole_value() {
    for (value, said) in [
        ("'", true),
        ("\"", true),
        ("'a", true),
        ("a\"", true),
        ("\"a'", true),
        ("''", false),
        ("\"a\"", false),
    ] {
        assert_eq!(text(Dialect::Docker, value).is_ok(), said, "{value}");
    }
}

#[test]
fn of_values_one_of_which_cannot_be_said_none_is_printed() {
    let output = clean("mpienv")
        .args(["export", "--shell", "cmd", "--nccl-ifname", "100%"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), b"cmd /c exit 1\n".to_vec()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be written as cmd"));
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
