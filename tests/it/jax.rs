//! `--for jax`: `jax.distributed.initialize()` without arguments finds every process's place.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::python::from_python;
use crate::support::slurm::Slurm;
use crate::support::tool::{clean, is_there};
use mpienv::simulate::{Job, Vars};
use mpienv::{ClusterInfo, Environment, Launcher, Target};

/// What JAX 0.10 reads from variables: the number of processes, this process's number, and its
/// number on its node. As in `jax/_src/clusters`, Open MPI 4 comes before Slurm, and other
/// launchers in this test are not supported.
fn seen_by_jax(vars: &BTreeMap<String, String>) -> Option<[u32; 3]> {
    let numbers = |names: [&str; 3]| names.map(|name| vars[name].parse().unwrap());
    if vars.contains_key("OMPI_MCA_orte_hnp_uri") {
        return Some(numbers([
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ]));
    }
    let slurm =
        ["SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"];
    slurm
        .iter()
        .all(|name| vars.contains_key(*name))
        .then(|| numbers([slurm[2], slurm[3], slurm[4]]))
}

/// The environment of a program that `place` starts for JAX.
fn for_jax(
    vars: Vars,
    place: impl Fn(ClusterInfo) -> ClusterInfo,
) -> (ClusterInfo, BTreeMap<String, String>) {
    let environment = Environment::from_vars(vars.clone());
    let builder = ClusterInfo::builder().master_addr("node0".parse().unwrap());
    let info = place(builder.environment(&environment).read().unwrap());
    let exports = info.exports_for(Target::Jax).unwrap();
    let mut vars: BTreeMap<_, _> = vars.into_iter().collect();
    for (name, value) in exports.iter() {
        match value {
            Some(value) => drop(vars.insert(name.to_owned(), value.to_owned())),
            None => drop(vars.remove(name)),
        }
    }
    (info, vars)
}

fn assert_seen(what: &str, info: &ClusterInfo, vars: &BTreeMap<String, String>) {
    let expected = [info.world_size(), info.rank().index(), info.local_rank().unwrap()];
    assert_eq!(seen_by_jax(vars), Some(expected), "{what}");
    let again = ClusterInfo::from_vars(vars.clone()).unwrap();
    let place = |info: &ClusterInfo| {
        (info.rank(), info.local_rank(), info.master_addr().ok().cloned(), info.master_port())
    };
    assert_eq!(place(&again), place(info), "{what}: who reads again comes to the same place");
    // Workers that a torchrun process starts do not use torchrun's store.
    let known = ["local-rank-order", "stale-agent-store"];
    assert!(
        again.findings().iter().all(|finding| known.contains(&finding.code)),
        "{:?}",
        again.findings()
    );
}

#[test]
fn jax_sees_the_place_of_every_launchers_rank_and_of_its_workers() {
    for builder in Job::of_each() {
        for (nodes, per_node) in [(1, 1), (2, 1), (2, 3)] {
            let Ok(job) = builder.clone().nodes(nodes).per_node(per_node).build() else { continue };
            for (rank, vars) in job.environments().enumerate() {
                // JAX needs the local rank.
                if ClusterInfo::from_vars(vars.clone()).unwrap().local_rank().is_none() {
                    continue;
                }
                let what = format!("{builder:?} {nodes} x {per_node}, rank {rank}");
                let (info, after) = for_jax(vars.clone(), |info| info);
                assert_seen(&what, &info, &after);
                let (info, after) = for_jax(vars.clone(), |info| info.marked());
                assert_seen(&format!("{what}, by exec"), &info, &after);
                for workers in [1, 2] {
                    if info.local_world_size() == Some(1) {
                        let last =
                            |info: ClusterInfo| info.workers(workers).unwrap().pop().unwrap();
                        let (info, after) = for_jax(vars.clone(), last);
                        assert_seen(&format!("{what}, last of {workers} workers"), &info, &after);
                    }
                }
            }
        }
    }
}

#[test]
fn what_jax_finds_by_itself_is_left_as_it_is() {
    for builder in [Job::open_mpi(), Job::slurm()] {
        let job = builder.nodes(2).per_node(2).build().unwrap();
        let vars = job.environment(3).unwrap();
        let (_, after) = for_jax(vars.clone(), |info| info.marked());
        assert!(vars.iter().all(|(name, value)| after.get(name) == Some(value)), "{after:?}");
        assert_eq!(after.contains_key("OMPI_COMM_WORLD_SIZE"), job.launcher() == Launcher::OpenMpi);
    }
}

const PROGRAM: &str = "import jax
jax.config.update('jax_platforms', 'cpu')
jax.distributed.initialize(initialization_timeout=1200)
one = jax.numpy.full(jax.local_device_count(), jax.process_index() + 1.0)
total = jax.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')(one)
print('process %d of %d: psum %g\\n' % (jax.process_index(), jax.process_count(), total[0]), end='', flush=True)
jax.distributed.shutdown()
";

#[test]
fn real_jax_sums_under_every_launcher_of_this_machine() {
    let Some(python) = from_python("jax", "python") else { return };
    let run = |command: &mut Command, launcher: &[&str]| {
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.args(launcher).args(["--for", "jax", "--"]).arg(&python).args(["-c", PROGRAM]);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{launcher:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.split("] ").last().unwrap().to_owned());
        let mut lines: Vec<_> = lines.filter(|line| line.starts_with("process ")).collect();
        lines.sort();
        assert_eq!(lines, ["process 0 of 2: psum 3", "process 1 of 2: psum 3"], "{launcher:?}");
    };
    let exec = ["-n", "2", "mpienv", "exec"];
    run(&mut clean("mpienv"), &["launch", "--nproc-per-node", "2"]);
    if is_there("mpirun") {
        run(clean("mpirun").arg("--oversubscribe"), &exec);
        run(&mut clean("mpirun"), &["-n", "1", "mpienv", "launch", "--nproc-per-node", "2"]);
    }
    if is_there("mpiexec.hydra") {
        run(&mut clean("mpiexec.hydra"), &exec);
    }
    if let Some(slurm) = Slurm::up() {
        run(&mut slurm.command(&["srun"]), &exec);
    }
    if let Some(mpirun) = from_python("openmpi", "mpirun") {
        run(
            clean(mpirun.to_str().unwrap()).args(["--allow-run-as-root", "--oversubscribe"]),
            &exec,
        );
    }
    if let Some(mpiexec) = from_python("impi-rt", "mpiexec.hydra") {
        run(&mut clean(mpiexec.to_str().unwrap()), &exec);
    }
}
