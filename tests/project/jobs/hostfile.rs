//! The run scripts, on the two hosts that they name.

use super::{assert_trained, own_command, printed, project};
use crate::support::hosts::Hosts;
use crate::support::tool::is_there;
use crate::support::trainer::with_trainer;

/// Runs one of the scripts as its comment says; returns rank 0's output.
fn run(tag: &str, script: &str) -> Option<String> {
    if !is_there("mpirun") {
        return None;
    }
    let folder = project();
    let hosts = Hosts::up(tag, 2, &[])?;
    let mut command = with_trainer(hosts.on("nodeA", "sh"))?;
    let line = own_command(&format!("hostfile/{script}"));
    command.args(["-c", &format!("cd \"$0\" && exec timeout 3000 {line}")]).arg(folder.path());
    printed(&mut command);
    let logs = folder.path().join("log_output/1");
    assert!((0..4).all(|rank| logs.join(format!("rank.{rank}/stdout")).is_file()));
    Some(std::fs::read_to_string(logs.join("rank.0/stdout")).unwrap())
}

#[test]
fn the_script_that_names_hosts_trains_on_them() {
    if let Some(text) = run("run1", "run_mpirun_1.sh") {
        assert_trained(&text);
    }
}

#[test]
fn the_script_with_a_hostfile_trains_on_its_hosts() {
    if let Some(text) = run("run2", "run_mpirun_2.sh") {
        assert_trained(&text);
    }
}
