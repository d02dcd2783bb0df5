//! What `mpienv export` prints, read by real shells.

#[path = "support/tool.rs"]
mod tool;

use std::process::Command;

use mpienv::{ClusterInfo, Dialect, NcclIfname};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tool::{clean, is_there};

/// Values with everything that a shell could read something into.
fn nasty() -> impl Strategy<Value = String> {
    let pieces = vec![
        "'", "\"", "\\", "$", "`", "!", "{a,b}", "=ls", "~", "*", "?", "[", "]", "#", "&", "|", ";", "<", ">", "(",
        ")", " ", "  ", "\t", "\n", "\r", "%", "^", "-", "$(id)", "${HOME}", "\\n", "ü", "\u{1b}", "\u{7f}", "eth0",
    ];
    prop::collection::vec(prop_oneof![prop::sample::select(pieces).prop_map(str::to_owned), any::<String>()], 0..6)
        .prop_map(|pieces| pieces.concat().replace('\0', ""))
}

/// The bytes of NCCL_SOCKET_IFNAME after a shell has evaluated what we print for `value`.
fn through(shell: &str, value: &str) -> Vec<u8> {
    let info = ClusterInfo::builder().nccl_ifname(NcclIfname::Value(value.to_owned()));
    let info = info.from_vars([("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap();
    let text = info.exports().unwrap().to_text(Dialect::Posix).unwrap();
    let mut command = Command::new(shell);
    command.arg("-c").arg(r#"eval "$1"; printf %s "$NCCL_SOCKET_IFNAME"; printf /%s "$RANK""#);
    let output = command.args([shell, &text]).env_remove("NCCL_SOCKET_IFNAME").output().unwrap();
    assert!(output.status.success(), "{shell}: {text}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn values_survive(shell: &str) {
    if !is_there(shell) {
        return;
    }
    // A shell is started for each case; PROPTEST_CASES asks for more.
    let config = Config { cases: Config::default().cases.min(10_000), ..Config::default() };
    let outcome = TestRunner::new(config).run(&nasty(), |value| {
        prop_assert_eq!(through(shell, &value), format!("{value}/0").into_bytes());
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{shell}: {error}"));
}

#[test]
fn values_survive_eval_in_dash_byte_for_byte() {
    values_survive("dash");
}

#[test]
fn values_survive_eval_in_bash_byte_for_byte() {
    values_survive("bash");
}

#[test]
fn values_survive_eval_in_zsh_byte_for_byte() {
    values_survive("zsh");
}

#[test]
fn an_eval_without_quotes_works_too() {
    let script = "eval $(mpienv export); printf %s $RANK/$WORLD_SIZE@$MASTER_ADDR:$MASTER_PORT";
    let output = clean("bash").args(["-c", script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0/1@127.0.0.1:54965");
}

#[test]
fn json_is_one_object_of_texts_and_null_for_what_must_go() {
    let mut command = clean("mpienv");
    command.args(["export", "--shell", "json"]).env("TORCHELASTIC_USE_AGENT_STORE", "True");
    let output = command.output().unwrap();
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "54965", "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "TORCHELASTIC_USE_AGENT_STORE": null,
    });
    assert_eq!(object, expected);
}

#[test]
fn a_stale_agent_store_is_unset() {
    let output = clean("mpienv").arg("export").env("TORCHELASTIC_USE_AGENT_STORE", "True").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("unset TORCHELASTIC_USE_AGENT_STORE;\n"));
}
