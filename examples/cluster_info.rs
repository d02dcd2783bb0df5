//! Prints this process's rank and launcher: `mpirun -n 2 cargo run --example cluster_info`.

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
