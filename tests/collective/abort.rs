//! One rank of the jobs that tests/it/collective.rs and tests/it/mpi.rs start: the last rank aborts
//! the job with code 9 and stays, until its stdin is closed.
//!
//! `collective_abort BACKEND GROUP`: `part` aborts on a group that was split off.

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let [backend, group] = [1, 2].map(|word| std::env::args().nth(word).unwrap());
    let backend = match backend.as_str() {
        "tcp" => Backend::Tcp,
        "mpi" => Backend::Mpi,
        _ => Backend::SharedMemory,
    };
    let info = ClusterInfo::from_env()?;
    let builder = Group::builder(&info).backend(backend).timeout(Duration::from_secs(1200));
    let mut world = builder.connect()?;
    let mut part = world.split(0, 0)?;
    let group = if group == "part" { &mut part } else { &mut world };
    if group.rank().index() + 1 == group.size() {
        group.abort(9, "the loss is NaN");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = world.barrier() {
        eprintln!("{error}");
        return Ok(ExitCode::from(3));
    }
    Ok(ExitCode::SUCCESS)
}
