//! What `jax.distributed.initialize` reads.
//!
//! Of its own variables, JAX (0.10) reads only the coordinator's address. It takes the number of
//! processes and the process's own number from a cluster that it detects: Open MPI 4 by
//! `OMPI_MCA_orte_hnp_uri`, then Slurm by five variables. If it detects neither, or if their
//! variables describe another process (the one that started the workers, or an outer launcher),
//! mpienv sets Open MPI's variables to this process's place, because JAX checks those first.

use super::{Set, Target, Variables, decided, local_rank, master};
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::error::Error;

const PAGE: &str = "[jax/_src/distributed.py](https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/distributed.py)";
const CLUSTER: &str = "[jax/_src/clusters/ompi_cluster.py]\
                       (https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/clusters/ompi_cluster.py)";

pub(super) const SET: Set = Set {
    name: "jax",
    title: "JAX",
    note: "; OMPI_* only if JAX would not find the place of the process from Open MPI 4 or Slurm by itself",
    additions: &[
        master("JAX_COORDINATOR_ADDRESS", PAGE),
        decided(OF_OPEN_MPI[0], "the number of processes", CLUSTER),
        decided(OF_OPEN_MPI[1], "the number of this process, from 0", CLUSTER),
        decided(OF_OPEN_MPI[2], "the number of this process on its node, from 0", CLUSTER),
        decided(LOCAL_SIZE, "the number of processes on this node", CLUSTER),
        decided(OPEN_MPI, "any value: it shows JAX the variables above", CLUSTER),
    ],
    place: Some(place),
    ..Set::PLAIN
};

const OPEN_MPI: &str = "OMPI_MCA_orte_hnp_uri";
const SLURM: [&str; 2] = ["SLURM_JOB_ID", "SLURM_STEP_NODELIST"];
/// The variables of the number of processes, of this process's number, and of its number on its
/// node.
type Names = [&'static str; 3];
const OF_OPEN_MPI: Names =
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"];
const OF_SLURM: Names = ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"];
const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";

/// Returns variables that let JAX find this process's place, if it would not find it otherwise.
fn place(info: &ClusterInfo, environment: &Environment) -> Result<Variables, Error> {
    let values = [Some(info.world_size()), Some(info.rank().index()), info.local_rank()];
    if detected(environment).is_some_and(|names| says(environment, names, values)) {
        return Ok(Vec::new());
    }
    let (size, rank, local_rank) = (info.world_size(), info.rank(), local_rank(info, Target::Jax)?);
    let [of_size, of_rank, of_local_rank] = OF_OPEN_MPI;
    let mut variables = vec![(of_size, size.to_string()), (of_rank, rank.to_string())];
    variables.push((of_local_rank, local_rank.to_string()));
    variables.extend(info.local_world_size().map(|size| (LOCAL_SIZE, size.to_string())));
    // JAX checks only whether this variable is set. The coordinator's address comes from another
    // variable.
    let is_there = environment.get(OPEN_MPI).is_some();
    variables.extend(
        (!is_there).then(|| (OPEN_MPI, format!("0.0;tcp://127.0.0.1:{}", info.master_port()))),
    );
    Ok(variables)
}

/// Returns the variables of the cluster that JAX detects. JAX checks only whether they are set,
/// even if blank.
fn detected(environment: &Environment) -> Option<Names> {
    let has = |name: &&str| environment.get(name).is_some();
    if has(&OPEN_MPI) {
        return Some(OF_OPEN_MPI);
    }
    SLURM.iter().chain(&OF_SLURM).all(has).then_some(OF_SLURM)
}

fn says(environment: &Environment, names: Names, values: [Option<u32>; 3]) -> bool {
    let number = |name: &str| environment.text(name)?.parse::<u32>().ok();
    names.iter().zip(values).all(|(name, value)| value.is_some() && number(name) == value)
}
