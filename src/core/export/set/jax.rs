//! What `jax.distributed.initialize` reads.
//!
//! Of its own variables, JAX (0.10) reads only the coordinator's address; programs written for
//! Kubeflow pass on two more. JAX takes the number of
//! processes and the process's own number from a cluster that it detects: Open MPI 4 by
//! `OMPI_MCA_orte_hnp_uri`, then Slurm by five variables. If it detects neither, or if their
//! variables describe another process (the one that started the workers, or an outer launcher),
//! mpienv sets Open MPI's variables to this process's place, because JAX checks those first.

use std::net::IpAddr;

use super::{Set, Target, Variables, addition, decided, local_rank, master, rank, size};
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::{jax, open_mpi, slurm};

const PAGE: &str = "[jax/_src/distributed.py](https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/distributed.py)";
const KUBEFLOW: &str = "[plugins/jax/jax.go](https://github.com/kubeflow/trainer/blob/master/pkg/runtime/framework/plugins/jax/jax.go)";
const CLUSTER: &str = "[jax/_src/clusters/ompi_cluster.py]\
                       (https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/clusters/ompi_cluster.py)";

pub(super) const SET: Set = Set {
    name: "jax",
    title: "JAX",
    note: "; OMPI_* only if JAX would not find the place of the process from Open MPI 4 or Slurm by itself",
    page: CLUSTER,
    additions: &[
        master(jax::COORDINATOR).on(PAGE),
        size(jax::SIZE).on(KUBEFLOW),
        rank(jax::RANK).on(KUBEFLOW),
        addition(OF_OPEN_MPI[0], "the number of processes", decided),
        addition(OF_OPEN_MPI[1], "the number of this process, from 0", decided),
        addition(OF_OPEN_MPI[2], "the number of this process on its node, from 0", decided),
        addition(open_mpi::LOCAL_SIZE, "the number of processes on this node", decided),
        addition(OPEN_MPI, "any value: it shows JAX the variables above", decided),
    ],
    place: Some(place),
    ..Set::PLAIN
};

const OPEN_MPI: &str = open_mpi::HNP_URI;
const SLURM: [&str; 2] = [slurm::JOB_ID, slurm::NODELIST];
/// The variables of the number of processes, of this process's number, and of its number on its
/// node.
type Names = [&'static str; 3];
const OF_OPEN_MPI: Names = [open_mpi::SIZE, open_mpi::RANK, open_mpi::LOCAL_RANK];
const OF_SLURM: Names = [slurm::SIZE, slurm::RANK, slurm::LOCAL_RANK];

/// Returns variables that let JAX find this process's place, if it would not find it otherwise.
fn place(info: &ClusterInfo, environment: &Environment) -> Result<Variables, Error> {
    let values = [Some(info.world_size()), Some(info.rank().index()), info.local_rank()];
    if detected(environment).is_some_and(|names| says(environment, names, values)) {
        return Ok(Vec::new());
    }
    let values = [info.world_size(), info.rank().index(), local_rank(info, Target::Jax)?];
    let values = values.map(|value| value.to_string());
    let mut variables: Variables = OF_OPEN_MPI.into_iter().zip(values).collect();
    variables.extend(info.local_world_size().map(|size| (open_mpi::LOCAL_SIZE, size.to_string())));
    // JAX checks only whether this variable is set. The coordinator's address comes from another
    // variable.
    if environment.get(OPEN_MPI).is_none() {
        let port = info.master_port();
        let contact = match info.master_addr()?.address() {
            Some(IpAddr::V6(host)) => format!("tcp6://[{host}]:{port}"),
            Some(IpAddr::V4(host)) => format!("tcp://{host}:{port}"),
            None => format!("tcp://127.0.0.1:{port}"),
        };
        variables.push((OPEN_MPI, format!("0.0;{contact}")));
    }
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
    names
        .iter()
        .zip(values)
        .all(|(name, value)| value.is_some() && environment.digits(name) == value)
}
