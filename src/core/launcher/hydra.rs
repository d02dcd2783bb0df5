//! Hydra: `mpiexec` and `mpiexec.hydra` of MPICH, Intel MPI and related libraries; also any
//! launcher that provides only PMI's rank and size.
//!
//! `srun` sets PMI's variables too, so they indicate Hydra only if Slurm is ruled out. Nothing
//! names rank 0's host.

use crate::cluster::context::CONTEXT;
use crate::launcher::flux;
use crate::launcher::prelude::*;
use crate::launcher::starter::ON_ONE_HOST;

variables! {
    /// The variables that Hydra sets for every process.
    pub struct HydraVars {
        "[MPICH: Hydra's proxy](https://github.com/pmodels/mpich/blob/main/src/pm/hydra/proxy/pmip_cb.c)" {
            RANK = "PMI_RANK" => rank: u32, "rank";
            SIZE = "PMI_SIZE" => size: u32, "world size";
            LOCAL_RANK = "MPI_LOCALRANKID" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "MPI_LOCALNRANKS" => local_size: Option<u32>, "ranks on this node";
        }
        "recorded from Intel MPI 2021.18.1" {
            NODE_ID = "HYDRA_BSTRAP_NODE_ID" => node_id: Option<u32>, "the node's number; Intel MPI only, internal";
            UUID = "I_MPI_HYDRA_UUID" => uuid: Option<String>, "the job's identity, the same on all ranks; Intel MPI only, internal";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[HydraVars::VARIABLES],
    marker: |environment| shared_marker(environment).filter(|_| environment.is_set(LOCAL_RANK)),
    starts: Starts::Processes,
    start: "start the process with mpiexec",
    programs: Some(Programs {
        names: "mpiexec mpiexec.hydra mpirun.mpich mpiexec.mpich",
        verbs: "",
        options: "-n 2",
    }),
    one_per_node: "`mpiexec -ppn 1`",
    unbind: Some("mpiexec -bind-to none (Intel MPI: I_MPI_PIN=off)"),
    mpi: MpiFamily::Mpich,
    local: &[LOCAL_RANK, LOCAL_SIZE],
    identity: Some((UUID, &[NODE_ID])),
    starters: &["hydra_pmi_proxy", "pmi_proxy", ON_ONE_HOST],
    samples: &[
        Sample { title: Some("Hydra (MPICH)"), set },
        Sample {
            title: Some("Hydra (Intel MPI)"),
            set: |process, vars| {
                set(process, vars);
                vars.set(NODE_ID, process.node);
                vars.set(UUID, format!("8103000{}-6749-4a46-c660-060016adb411", process.job));
            },
        },
    ],
    ..LauncherSpec::plain(read)
};

/// Returns a variable that other launchers set too. It counts only if none of them was detected.
pub(super) fn shared_marker(environment: &Environment) -> Option<&'static str> {
    environment.first_set(&[RANK, SIZE]).filter(|_| !is_of_flux(environment))
}

/// Returns whether Flux, started by Hydra, put its own rank and size in these variables. It leaves
/// Hydra's local ones.
fn is_of_flux(environment: &Environment) -> bool {
    let is_same = |own: &str, of_flux: &str| {
        let [own, of_flux] = [own, of_flux].map(|name| environment.text(name));
        own.is_some() && own == of_flux
    };
    // The context shows which of the two has set them since. The numbers may be equal by chance.
    !environment.is_set(CONTEXT) && is_same(RANK, flux::RANK) && is_same(SIZE, flux::SIZE)
}

fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set_all([RANK, SIZE], [process.rank, process.size]);
    vars.set("PMI_FD", 8);
    vars.set_all([LOCAL_RANK, LOCAL_SIZE], [process.local_rank, process.local_size]);
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: HydraVars = marker.read()?;
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size))?
        .with_nodes(by(NODE_ID, vars.node_id), None);
    Ok(placement.with_job(UUID, vars.uuid))
}
