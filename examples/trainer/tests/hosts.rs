//! The trainer on several hosts: started by the real mpirun in every layout, and by hand under faults.
#![cfg(target_os = "linux")]

#[path = "hosts/checkpoints.rs"]
mod checkpoints;
#[path = "hosts/faults.rs"]
mod faults;
#[path = "../../../tests/support/hosts.rs"]
mod hosts;
#[path = "hosts/job.rs"]
mod job;
#[path = "hosts/launched.rs"]
mod launched;
#[path = "../../../tests/support/python.rs"]
mod python;
#[path = "hosts/random_faults.rs"]
mod random_faults;
#[path = "../../../tests/support/root.rs"]
mod root;
#[path = "../../../tests/support/tool.rs"]
mod tool;
