//! One rank of the jobs over MPI that tests/it/mpi.rs starts: a rank leaves while others go on.
//!
//! `collective_leave lost THEN FOLDER`: the last rank is lost, but its process stays, so that the
//! launcher does not end the others. These write some time later, and then call a barrier or drop
//! the group. They tell each other by files in the folder how far they are.
//!
//! `collective_leave early RANK`: this rank drops its group, and the others call a barrier.

use std::error::Error;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs, io};

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};

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
    let timeout = Duration::from_secs(if is_lost { 1200 } else { 4 });
    let info = ClusterInfo::from_env()?;
    let mut group = Group::builder(&info).backend(Backend::Mpi).timeout(timeout).connect()?;
    group.barrier()?;
    let (own, size) = (group.rank().index(), group.size());
    if !is_lost {
        if words[1] == own.to_string() {
            drop(group);
            println!("rank {own} goes on");
            sleep(Duration::from_secs(3000));
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
    println!("written by rank {own}");
    until_all(folder, "written", own, size - 1)?;
    if words[1] == "drop" {
        drop(group);
        println!("rank {own} goes on");
        until_all(folder, "over", own, size - 1)?;
        return Ok(());
    }
    group.barrier()?;
    Err("the barrier has returned".into())
}
