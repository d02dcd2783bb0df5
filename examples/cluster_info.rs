//! Prints this process's rank and launcher: `mpirun -n 2 target/debug/examples/cluster_info`.
//!
//! Build it with `cargo build --example cluster_info`.

use mpienv::{ClusterInfo, Error};

fn main() -> Result<(), Error> {
    let info = ClusterInfo::from_env()?;
    info.warn();
    let master = info.master_addr()?.with_port(info.master_port());
    println!(
        "rank {} of {}, started by {}, meeting at {master}",
        info.rank(),
        info.world_size(),
        info.launcher().title()
    );
    Ok(())
}
