//! One rank of the jobs over MPI that tests/it/mpi.rs starts: a rank leaves while others go on.
//!
//! `collective_leave lost THEN`: the last rank is lost, but its process stays, so that the launcher
//! does not end the others. These write for some time, and then call a barrier or drop the group.
//!
//! `collective_leave early RANK`: this rank drops its group, and the others call a barrier.

use std::error::Error;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};

fn main() -> Result<(), Box<dyn Error>> {
    let [way, word] = [1, 2].map(|word| std::env::args().nth(word).unwrap());
    let timeout = Duration::from_secs(if way == "lost" { 1200 } else { 4 });
    let info = ClusterInfo::from_env()?;
    let mut group = Group::builder(&info).backend(Backend::Mpi).timeout(timeout).connect()?;
    group.barrier()?;
    let (own, last) = (group.rank().index(), group.size() - 1);
    if way == "lost" && own == last {
        // The others have long left the barrier. All connections of the process close.
        sleep(Duration::from_secs(1));
        return Err(Command::new("sleep").arg("60").exec().into());
    }
    if way == "lost" {
        sleep(Duration::from_secs(3));
        println!("written by rank {own}");
    }
    if word == "drop" || word == own.to_string() {
        drop(group);
        println!("rank {own} goes on");
        sleep(Duration::from_secs(if way == "lost" { 3 } else { 60 }));
        return Ok(());
    }
    group.barrier()?;
    Err("the barrier has returned".into())
}
