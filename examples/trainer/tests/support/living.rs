//! Processes, found by their variables: all that a test has started, directly or indirectly.

use std::fs;

use rustix::process::Pid;

/// The running processes that have all these variables, each `NAME=value`.
pub fn living(variables: &[&str]) -> Vec<Pid> {
    let has_all = |pid: i32| {
        // A process that has exited has none.
        let own = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let own: Vec<&[u8]> = own.split(|&byte| byte == 0).collect();
        variables.iter().all(|variable| own.contains(&variable.as_bytes()))
    };
    let processes = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| has_all(pid)).filter_map(Pid::from_raw).collect()
}
