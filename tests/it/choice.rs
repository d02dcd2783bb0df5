//! Which launcher mpienv uses, and what its variables mean, for cases that no recording covers.

use mpienv::{ClusterInfo, Launcher};

type Vars<'a> = &'a [(&'a str, &'a str)];

fn read(parts: &[Vars]) -> ClusterInfo {
    ClusterInfo::from_vars(parts.concat()).unwrap()
}

const STEP: Vars = &[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
const PMI: Vars = &[("PMI_RANK", "1"), ("PMI_SIZE", "2")];
const HYDRA: Vars = &[("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];

#[test]
fn pmi_is_sruns_own_unless_mpiexec_has_set_a_local_rank() {
    assert_eq!(read(&[STEP, PMI]).launcher(), Launcher::Slurm);
    let inner = read(&[STEP, PMI, HYDRA]);
    assert_eq!(
        (inner.launcher(), inner.rank().index(), inner.local_rank()),
        (Launcher::Hydra, 1, Some(1))
    );
    let bare = read(&[PMI]);
    assert_eq!(
        (bare.launcher(), bare.rank().index(), bare.local_rank()),
        (Launcher::Hydra, 1, None)
    );
}

#[test]
fn half_a_pair_of_mvapich_names_the_other_half() {
    for (found, missing) in [
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ] {
        let error = ClusterInfo::from_vars([(found, "1")]).unwrap_err();
        assert_eq!(
            (error.launcher(), error.variable()),
            (Some(Launcher::Mvapich), Some(missing)),
            "{error}"
        );
    }
}

#[test]
fn flux_tells_the_local_size_by_its_nodes_where_they_leave_no_choice() {
    for (nodes, local_size) in [("1", Some(4)), ("4", Some(1)), ("2", None)] {
        let vars = [("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "4"), ("FLUX_TASK_LOCAL_ID", "0")];
        let info = read(&[&vars, &[("FLUX_JOB_NNODES", nodes)]]);
        assert_eq!(
            (info.launcher(), info.local_world_size()),
            (Launcher::Flux, local_size),
            "{nodes}"
        );
    }
}

#[test]
fn only_awss_main_node_may_lack_its_own_address() {
    let node =
        |index| read(&[&[("AWS_BATCH_JOB_NODE_INDEX", index), ("AWS_BATCH_JOB_NUM_NODES", "2")]]);
    assert_eq!(node("0").master_addr().unwrap().to_string(), "0.0.0.0");
    assert!(node("1").master_addr().is_err());
}

#[test]
fn another_launcher_that_disagrees_is_named_once() {
    // Two variables together identify Hydra.
    let mpirun = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let place = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let info = read(&[&mpirun, &place, PMI, HYDRA, &[("RANK", "1"), ("WORLD_SIZE", "9")]]);
    let found: Vec<_> =
        info.findings().iter().filter(|finding| finding.code == "launchers-disagree").collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].what.contains("Hydra says rank 1 of 2"), "{found:?}");
    assert!(found[1].what.contains("RANK and WORLD_SIZE say rank 1 of 9"), "{found:?}");
}
