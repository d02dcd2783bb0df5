//! One rank of the jobs that tests/it/mpi.rs starts: over MPI, one rank after the other makes
//! another call than the rest.

use std::error::Error;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group};

#[path = "../../src/collective/tests/calls.rs"]
mod calls;

use calls::CALLS;

fn main() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    let mut group =
        Group::builder(&info).backend(Backend::Mpi).timeout(Duration::from_secs(1200)).connect()?;
    let (own, size) = (group.rank().index(), group.size());
    let mut odd = 0;
    for (index, one) in CALLS.iter().enumerate() {
        for other in &CALLS[index + 1..] {
            // With two ranks, the last is rank 1.
            if size == 2 && one.0 == "broadcast from 1" && other.0 == "broadcast from the last" {
                continue;
            }
            odd = (odd + 1) % size;
            let call = if own == odd { other.1 } else { one.1 };
            let result = call(&mut group);
            if !result.as_ref().is_err_and(calls::is_named) {
                return Err(format!("{}, and on rank {odd} {}: {result:?}", one.0, other.0).into());
            }
        }
    }
    // MPI has seen no call that differs, so it still works.
    let all = group.all_gather(&[own as u8])?.concat();
    let is_right = all.iter().copied().map(u32::from).eq(0..size);
    println!("compared: {is_right}");
    let result = if own == 0 { group.close() } else { group.barrier() };
    println!("close compared: {}", result.is_err_and(|error| calls::is_named(&error)));
    Ok(())
}
