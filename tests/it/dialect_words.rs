//! What each dialect writes, and what it refuses to write.

use std::process::Command;

use super::dialects::{text, text_of_unset};
use crate::support::tool::{clean, is_there};
use mpienv::{ClusterInfo, Dialect};

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
