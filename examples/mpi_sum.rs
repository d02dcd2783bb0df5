//! Sums the rank numbers over MPI: `mpirun -n 4 target/debug/examples/mpi_sum`.
//!
//! Build it with `cargo build --features mpi --example mpi_sum`, which does not require MPI. The
//! same program runs under the `mpirun` of Open MPI, MPICH and Intel MPI.

use std::error::Error;
use std::process::ExitCode;

use mpienv::{ClusterInfo, mpi::World};

fn main() -> ExitCode {
    match sum() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn sum() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    // Loads the MPI library of the launcher that started this process.
    let world = World::init(&info)?;

    let mut sum = [f64::from(info.rank().index())];
    world.communicator().all_reduce_sum(&mut sum)?;
    let (rank, size, version) = (info.rank(), info.world_size(), world.version());
    println!("rank {rank} of {size}: all ranks sum to {}, by {version}", sum[0]);
    world.finalize()?;
    Ok(())
}
