//! Broadcasts rank 0's NCCL id, 128 bytes:
//! `mpienv launch --nproc-per-node 4 -- target/debug/examples/nccl_id`.
//!
//! Build it with `cargo build --features collective --example nccl_id`. No GPU is needed: random
//! bytes stand for the id.

use std::error::Error;

use mpienv::ClusterInfo;
use mpienv::collective::Group;

fn main() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    let mut group = Group::connect(&info)?;
    // With cudarc, call `Id::new()` on rank 0 and `Comm::from_rank(stream, rank, world, id)` on
    // every rank.
    let mut id = if info.rank().is_first() { new_id()? } else { Vec::new() };
    group.broadcast_vec(&mut id, 0)?;
    println!(
        "rank {} of {}: the id begins with {:02x?}, over {}",
        info.rank(),
        info.world_size(),
        &id[..4],
        group.describe()
    );
    Ok(group.close()?)
}

fn new_id() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut id = vec![0; 128];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}
