//! Jobs with one rank on each of four hosts, which measure the network between them.

use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::hosts::Hosts;
use super::timeout::PATIENT;
use super::tool::missing;

/// One rank runs on each.
pub const HOSTS: [&str; 4] = ["nodeA", "nodeB", "nodeC", "nodeD"];

/// A shell script on a host, which must succeed.
pub fn on(hosts: &Hosts, host: &str, script: &str) {
    let output = hosts.on(host, "sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The ranks of a job with one rank on each host, with these options; `late` is a rank whose clock
/// is 5 s behind.
pub fn ranks(hosts: &Hosts, words: &[&str], late: Option<usize>) -> Vec<Child> {
    let start = |(index, host): (usize, &&str)| {
        let mut command = hosts.on(host, env!("CARGO_BIN_EXE_mpienv"));
        command.args(["check", "--json", "--timeout", PATIENT]).args(words);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", HOSTS.len().to_string());
        command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "6105");
        if late == Some(index) {
            command.env("LD_PRELOAD", faketime().unwrap());
            command.env("FAKETIME", "-5s").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    HOSTS.iter().enumerate().map(start).collect()
}

/// Where Debian keeps the library that changes a program's clock.
pub fn faketime() -> Option<&'static str> {
    let found = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    ];
    let found = found.into_iter().find(|path| Path::new(path).is_file());
    if found.is_none() {
        missing("libfaketime");
    }
    found
}

/// Rank 0's map, and the code and the text of each finding of this measurement, with which its code
/// begins. Rank 0 fails if there are any, and the other ranks do not.
pub fn measured(children: Vec<Child>, part: &str) -> (Value, Vec<(String, String)>) {
    let mut ends = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let first = ends.next().unwrap();
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    for other in ends {
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    }
    let map: Value = serde_json::from_slice(&first.stdout).unwrap_or_else(|error| {
        panic!("{error}: {said}");
    });
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let findings = map["findings"].as_array().unwrap().iter();
    let findings = findings.map(|finding| (text(finding, "code"), text(finding, "what")));
    let findings: Vec<_> = findings.filter(|(code, _)| code.starts_with(part)).collect();
    let code = if findings.is_empty() { 0 } else { 3 };
    assert_eq!(first.status.code(), Some(code), "{said}{map}");
    let is_blocked = findings.iter().any(|(code, _)| code.ends_with("-blocked"));
    assert_eq!(said.contains("some hosts cannot connect to each other"), is_blocked, "{said}");
    (map, findings)
}
