//! One rank of the jobs that tests/it/halo.rs starts: a solver whose ranks are a chain and exchange
//! halos with their neighbors, until rank 1 makes a mistake. It exits as the guide recommends.
//!
//! `collective_halo BACKEND TIMEOUT MISTAKE`, with a timeout in seconds.

use std::process::ExitCode;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group};

fn run() -> Result<(), CollectiveError> {
    let [backend, timeout, mistake] = [1, 2, 3].map(|word| std::env::args().nth(word).unwrap());
    let info = ClusterInfo::from_env()?;
    let backend = match backend.as_str() {
        "tcp" => Backend::Tcp,
        "mpi" => Backend::Mpi,
        _ => Backend::SharedMemory,
    };
    let timeout = Duration::from_secs(timeout.parse().unwrap());
    let mut group = Group::builder(&info).backend(backend).timeout(timeout).connect()?;
    for _ in 0..10 {
        exchange(&mut group, &[1.0; 4])?;
    }
    let own = group.rank().index();
    match mistake.as_str() {
        "hang" if own == 1 => std::thread::sleep(Duration::from_secs(3000)),
        "panic" if own == 1 => panic!("the matrix is singular"),
        "barrier" if own == 1 => group.barrier()?,
        "length" if own == 1 => exchange(&mut group, &[1.0; 3])?,
        // Both send, and none receives.
        "send" if own < 2 => group.send(&[1.0; 3], own ^ 1)?,
        _ => {}
    }
    exchange(&mut group, &[1.0; 4])?;
    group.close()
}

/// Exchanges a halo with each neighbor. The first and the last rank have one.
fn exchange(group: &mut Group, values: &[f64]) -> Result<(), CollectiveError> {
    let (own, size) = (group.rank().index(), group.size());
    // Pairs 0-1, 2-3, ... first, then 1-2, 3-4, ...
    for neighbor in [own ^ 1, ((own + 1) ^ 1).wrapping_sub(1)] {
        if neighbor < size {
            group.send_receive(values, neighbor, &mut vec![0.0; values.len()], neighbor)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
