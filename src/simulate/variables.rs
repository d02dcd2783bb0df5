//! What each launcher sets, as recorded or documented.

use std::fmt::Display;

use crate::simulate::{Job, Place, Vars, Version};
use crate::value::placement::Launcher;

/// The variables of one rank.
pub(crate) fn of(job: &Job, rank: u32, place: Place) -> Vars {
    let mut vars = Setter(Vec::new());
    let (size, local_size) = (job.world_size(), job.counts[place.node as usize]);
    let nodes = job.counts.len();
    match job.launcher {
        Launcher::OpenMpi => {
            vars.set("OMPI_COMM_WORLD_RANK", rank);
            vars.set("OMPI_COMM_WORLD_SIZE", size);
            vars.set("OMPI_COMM_WORLD_LOCAL_RANK", place.local_rank);
            vars.set("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
            vars.set("OMPI_COMM_WORLD_NODE_RANK", place.local_rank);
            vars.set("OMPI_UNIVERSE_SIZE", size);
            vars.set("PMIX_RANK", rank);
            if job.version == Version::OpenMpi5 {
                vars.set("PMIX_NAMESPACE", "prterun-node0-367@1");
                vars.set("OMPI_VERSION", "5.0.11");
                vars.set("PRTE_LAUNCHED", 1);
            } else {
                vars.set("PMIX_NAMESPACE", 3_024_551_937u32);
                vars.set("OMPI_MCA_orte_num_nodes", nodes);
                vars.set("OMPI_MCA_orte_hnp_uri", uri(0));
                vars.set("OMPI_MCA_orte_local_daemon_uri", uri(place.node));
            }
        }
        Launcher::Hydra => {
            vars.set("PMI_RANK", rank);
            vars.set("PMI_SIZE", size);
            vars.set("PMI_FD", 8);
            vars.set("MPI_LOCALRANKID", place.local_rank);
            vars.set("MPI_LOCALNRANKS", local_size);
            if job.version == Version::IntelMpi {
                vars.set("HYDRA_BSTRAP_NODE_ID", place.node);
                vars.set("I_MPI_HYDRA_UUID", "81030000-6749-4a46-c660-060016adb411");
            }
        }
        Launcher::Mvapich => {
            vars.set("MV2_COMM_WORLD_RANK", rank);
            vars.set("MV2_COMM_WORLD_SIZE", size);
            vars.set("MV2_COMM_WORLD_LOCAL_RANK", place.local_rank);
            vars.set("MV2_COMM_WORLD_LOCAL_SIZE", local_size);
        }
        Launcher::Slurm => slurm(job, rank, place, &mut vars),
        Launcher::Pals => {
            vars.set("PALS_RANKID", rank);
            vars.set("PALS_LOCAL_RANKID", place.local_rank);
            vars.set("PALS_LOCAL_SIZE", local_size);
            vars.set("PALS_NODEID", place.node);
            vars.set("PALS_APID", "6fe1d3a2-1c1f-4a3c-9d5e-0f8e2f6f4a11");
            vars.set("PMI_RANK", rank);
            vars.set("PMI_SIZE", size);
        }
        Launcher::Jsm => {
            vars.set("JSM_NAMESPACE_RANK", rank);
            vars.set("JSM_NAMESPACE_SIZE", size);
            vars.set("JSM_NAMESPACE_LOCAL_RANK", place.local_rank);
            vars.set("JSM_NAMESPACE_LOCAL_SIZE", local_size);
            let hosts: String =
                (0..).zip(&job.counts).map(|(node, count)| format!(" {} {count}", name(node))).collect();
            vars.set("LSB_MCPU_HOSTS", format!("batch0 1{hosts}"));
            vars.set("LSB_JOBID", 4711);
        }
        Launcher::Flux => {
            vars.set("FLUX_TASK_RANK", rank);
            vars.set("FLUX_JOB_SIZE", size);
            vars.set("FLUX_TASK_LOCAL_ID", place.local_rank);
            vars.set("FLUX_JOB_NNODES", nodes);
            vars.set("FLUX_JOB_ID", "ƒ2WdHmxq");
        }
        Launcher::Torchrun => {
            vars.set("TORCHELASTIC_RUN_ID", "none");
            vars.set("TORCHELASTIC_USE_AGENT_STORE", "True");
            vars.set(
                "TORCHELASTIC_ERROR_FILE",
                format!("/tmp/torchelastic/none/attempt_0/{}/error.json", place.local_rank),
            );
            user(job, rank, place, &mut vars);
            vars.set("GROUP_RANK", place.node);
            vars.set("GROUP_WORLD_SIZE", nodes);
        }
        Launcher::User => user(job, rank, place, &mut vars),
        Launcher::SageMaker => {
            let hosts: Vec<_> = (1..=nodes).map(|host| format!("\"algo-{host}\"")).collect();
            vars.set("SM_HOSTS", format!("[{}]", hosts.join(",")));
            vars.set("SM_CURRENT_HOST", format!("algo-{}", place.node + 1));
        }
        Launcher::Kubernetes => {
            vars.set("PET_NODE_RANK", place.node);
            vars.set("PET_NNODES", nodes);
            vars.set("PET_MASTER_ADDR", "train-node-0-0.train");
            vars.set("PET_MASTER_PORT", 29500);
        }
        Launcher::AwsBatch => {
            vars.set("AWS_BATCH_JOB_NODE_INDEX", place.node);
            vars.set("AWS_BATCH_JOB_NUM_NODES", nodes);
            vars.set("AWS_BATCH_JOB_MAIN_NODE_INDEX", 0);
            if place.node > 0 {
                vars.set("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", address(0));
            }
        }
        Launcher::Alone => {}
    }
    vars.0
}

fn user(job: &Job, rank: u32, place: Place, vars: &mut Setter) {
    vars.set("RANK", rank);
    vars.set("WORLD_SIZE", job.world_size());
    vars.set("LOCAL_RANK", place.local_rank);
    vars.set("LOCAL_WORLD_SIZE", job.counts[place.node as usize]);
    vars.set("MASTER_ADDR", name(0));
    vars.set("MASTER_PORT", 29500);
}

fn slurm(job: &Job, rank: u32, place: Place, vars: &mut Setter) {
    let (size, nodes) = (job.world_size(), job.counts.len());
    let hosts = if nodes == 1 { name(0) } else { format!("node[0-{}]", nodes - 1) };
    let here = (0..).zip(&job.places).filter(|(_, other)| other.node == place.node);
    let here: Vec<String> = here.map(|(rank, _): (u32, _)| rank.to_string()).collect();
    vars.set("SLURM_JOB_ID", 4711);
    vars.set("SLURM_STEP_ID", 0);
    vars.set("SLURM_PROCID", rank);
    vars.set("SLURM_NTASKS", size);
    vars.set("SLURM_STEP_NUM_TASKS", size);
    vars.set("SLURM_LOCALID", place.local_rank);
    vars.set("SLURM_GTIDS", here.join(","));
    vars.set("SLURM_STEP_TASKS_PER_NODE", tasks_per_node(&job.counts));
    vars.set("SLURM_NODEID", place.node);
    vars.set("SLURM_NNODES", nodes);
    vars.set("SLURM_STEP_NUM_NODES", nodes);
    vars.set("SLURM_JOB_NODELIST", &hosts);
    vars.set("SLURM_STEP_NODELIST", &hosts);
    vars.set("SLURM_DISTRIBUTION", if job.cyclic { "cyclic" } else { "block" });
}

/// Counts as Slurm writes them: `2(x3),1`.
fn tasks_per_node(counts: &[u32]) -> String {
    let groups = counts.chunk_by(|a, b| a == b).map(|group| match group {
        [count] => count.to_string(),
        _ => format!("{}(x{})", group[0], group.len()),
    });
    groups.collect::<Vec<_>>().join(",")
}

/// Where Open MPI's daemon of a node listens; node 0's is mpirun itself.
fn uri(node: u32) -> String {
    format!("3024551936.{node};tcp://{}:60493", address(node))
}

fn name(node: u32) -> String {
    format!("node{node}")
}

fn address(node: u32) -> String {
    let number = node + 1;
    format!("10.{}.{}.{}", (number >> 16) & 255, (number >> 8) & 255, number & 255)
}

/// Collects variables in order.
struct Setter(Vars);

impl Setter {
    fn set(&mut self, name: &str, value: impl Display) {
        self.0.push((name.to_owned(), value.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_counted_as_slurm_does() {
        assert_eq!(tasks_per_node(&[2, 2, 2, 1]), "2(x3),1");
        assert_eq!(tasks_per_node(&[3, 1]), "3,1");
        assert_eq!(tasks_per_node(&[4]), "4");
    }
}
