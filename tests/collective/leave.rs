//! One rank of the jobs over MPI that tests/it/mpi.rs starts: a rank leaves while others go on.
//!
//! `collective_leave lost THEN FOLDER`: the last rank is lost, but its process stays, so that the
//! launcher does not end the others. These write some time later, and then call a barrier or drop
//! the group. They tell each other by files in the folder how far they are.
//!
//! `collective_leave at-once`: all ranks drop their groups as soon as they are connected.
//!
//! `collective_leave early RANK`: this rank drops its group, and the others call a barrier.
//! `collective_leave returns RANK`: this rank also returns from main.
//!
//! `collective_leave threads`: two threads of rank 0 call a barrier at the same time, which the
//! other ranks never call.

use std::error::Error;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::Duration;
use std::{env, fs, io};

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group};

/// Tells how far this rank is, and waits until all `ranks` are.
fn until_all(folder: &str, word: &str, own: u32, ranks: u32) -> io::Result<()> {
    fs::write(format!("{folder}/{word}.{own}"), "")?;
    (0..ranks).for_each(|rank| until_exists(&format!("{folder}/{word}.{rank}")));
    Ok(())
}

fn until_exists(path: &str) {
    while !Path::new(path).exists() {
        sleep(Duration::from_millis(10));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let is_lost = words[0] == "lost";
    let is_early = words[0] == "early";
    let timeout = Duration::from_secs(if is_early { 4 } else { 1200 });
    let info = ClusterInfo::from_env()?;
    // On a busy machine, MPI takes long to start.
    let builder = Group::builder(&info).connect_timeout(Duration::from_secs(1200));
    let mut group = builder.backend(Backend::Mpi).timeout(timeout).connect()?;
    if words[0] == "at-once" {
        return Ok(());
    }
    group.barrier()?;
    let (own, size) = (group.rank().index(), group.size());
    if words[0] == "threads" {
        let part = group.split(0, own)?;
        if own > 0 {
            sleep(Duration::from_secs(3000));
        }
        let (errors, error) = mpsc::channel();
        for mut group in [group, part] {
            let errors = errors.clone();
            thread::spawn(move || errors.send(group.barrier().unwrap_err()));
        }
        let at_once =
            |error: &CollectiveError| matches!(error, CollectiveError::CallsAtOnce { .. });
        let error = error.iter().find(at_once).ok_or("no thread was refused")?;
        return Err(error.into());
    }
    if !is_lost {
        if words[1] == own.to_string() {
            drop(group);
            println!("rank {own} goes on");
            sleep(Duration::from_secs(if is_early { 3000 } else { 0 }));
            return Ok(());
        }
        group.barrier()?;
        return Err("the barrier has returned".into());
    }
    let folder = &words[2];
    until_all(folder, "met", own, size)?;
    if own == size - 1 {
        // All connections of the process close.
        let script =
            r#": >"$0/lost"; until [ -e "$0/over.0" ] && [ -e "$0/over.1" ]; do sleep 0.1; done"#;
        return Err(Command::new("sh").args(["-c", script, folder]).exec().into());
    }
    until_exists(&format!("{folder}/lost"));
    // Long enough for the others to notice.
    sleep(Duration::from_secs(3));
    until_all(folder, "written", own, size - 1)?;
    if words[1] == "drop" {
        drop(group);
        until_all(folder, "over", own, size - 1)?;
        return Ok(());
    }
    group.barrier()?;
    Err("the barrier has returned".into())
}
