//! Jobs that each rank of another launcher has started by itself: they warn, and are not checked.

use std::collections::BTreeMap;

use super::{applied, lines, nested, over};
use crate::support::tool::is_there;
use mpienv::simulate::{Job, JobBuilder};
use mpienv::{ClusterInfo, Environment, Launcher};

#[test]
fn a_job_of_one_process_in_each_rank_that_mpienv_has_placed_warns_on_all_but_the_first() {
    let outer = Job::open_mpi().per_node(2).build().unwrap();
    let one = Job::torchrun().number(1).build().unwrap();
    for (rank, warnings) in [(0, 0), (1, 1)] {
        let read = |vars: &Environment| ClusterInfo::from_environment(vars).unwrap().marked();
        let placed = applied(outer.environment(rank).unwrap(), read);
        let below = ClusterInfo::from_vars(over(&placed, one.environment(0).unwrap())).unwrap();
        assert_eq!((below.launcher(), below.world_size()), (Launcher::Torchrun, 1));
        let codes = below.warnings().into_iter().filter(|one| one.code == "launchers-disagree");
        assert_eq!(codes.count(), warnings, "rank {rank}");
    }
}

#[test]
fn a_torchrun_by_itself_on_each_node_warns_below_exec_and_launch_of_several_nodes() {
    let pods = [("JOB_COMPLETION_INDEX", "1"), ("NNODES", "2"), ("MASTER_ADDR", "job-0.svc")];
    let hosts = [("NODE_RANK", "1"), ("NNODES", "2"), ("MASTER_ADDR", "10.1.2.3")];
    for vars in [pods, hosts] {
        for start in ["mpienv exec --per-node", "mpienv launch --nproc-per-node 1"] {
            for (workers, nodes, is_warned) in [(1, 1, true), (2, 1, true), (2, 2, false)] {
                // What torchrun gives the first worker of this node.
                let (of_nodes, size) = (nodes == 2, workers * nodes);
                let (node, first) = if of_nodes { (1, workers) } else { (0, 0) };
                let worker = format!(
                    "env TORCHELASTIC_RUN_ID=x RANK={first} WORLD_SIZE={size} LOCAL_RANK=0 LOCAL_WORLD_SIZE={workers} \
                     GROUP_RANK={node} GROUP_WORLD_SIZE={nodes} MASTER_ADDR=10.1.2.3 MASTER_PORT=1025"
                );
                let script = format!("{start} -- sh -c '{worker} mpienv show'");
                let found = lines(nested(&script).envs(vars));
                let found = found.iter().filter(|line| line.contains("[launchers-disagree]: "));
                assert_eq!(found.count(), usize::from(is_warned), "{vars:?} {script}");
            }
        }
    }
}

#[test]
fn torchrun_that_replaces_the_rank_of_a_platform_on_one_of_its_nodes_warns_and_fails_in_check() {
    // A pod of a PyTorchJob, in which a script starts torchrun without the other pods.
    let pod = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-0.svc")];
    let worker = |workers: u32, nodes: u32| {
        format!(
            "env TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE={} LOCAL_RANK=0 LOCAL_WORLD_SIZE={workers} \
             GROUP_RANK=0 GROUP_WORLD_SIZE={nodes} MASTER_ADDR=10.1.2.3 MASTER_PORT=1025",
            workers * nodes
        )
    };
    for (workers, nodes, is_warned) in [(1, 1, true), (2, 1, true), (2, 2, false)] {
        let script = format!("{} mpienv show; :", worker(workers, nodes));
        let found = lines(nested(&script).envs(pod)).join("\n");
        assert_eq!(found.contains("warning [launchers-disagree]: "), is_warned, "{found}");
        assert_eq!(found.contains("torchrun --nnodes N --node-rank R"), is_warned, "{found}");
    }
    for command in ["check", "exec --meet 5s -- true"] {
        let script = format!("{} mpienv {command} 2>&1; echo code $?", worker(1, 1));
        let found = lines(nested(&script).envs(pod)).join("\n");
        assert!(found.contains("code 3"), "{found}");
    }
}

#[test]
fn a_job_on_one_node_that_may_be_meant_is_not_refused() {
    let torchrun = Job::torchrun().per_node(1).build().unwrap().environment(0).unwrap();
    let of_slurm = Job::slurm().per_node(4).build().unwrap().environment(0).unwrap();
    // In a shell of `srun -n 4 --pty`, which is rank 0.
    let shell = ClusterInfo::from_vars(of_slurm.into_iter().chain(torchrun)).unwrap();
    assert_eq!(shell.launcher(), Launcher::Torchrun);
    shell.require_place().unwrap();
    // A group of workers that Ray has put on the second node.
    let node = "NODE_RANK=1 NNODES=2 MASTER_ADDR=10.1.2.3 mpienv exec --per-node --";
    let workers = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 NODE_RANK=0";
    let script = format!("{node} env {workers} MPIENV_REQUIRE_LAUNCHER=1 mpienv show");
    lines(&mut nested(&script));
    // A torchrun of one to two nodes, which has lost the other one.
    let worker = "TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
                  GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29871";
    for (nodes, code) in [("1:2", 0), ("2", 3)] {
        let script = format!(
            "export RANK=1 WORLD_SIZE=2 PET_NNODES={nodes}; sh -c '{worker} mpienv check; echo code $?'"
        );
        let found = lines(&mut nested(&script)).join("\n");
        assert!(found.contains(&format!("code {code}")), "{nodes}: {found}");
    }
}

#[test]
fn of_two_jobs_that_two_ranks_have_started_the_second_fails_in_check() {
    if !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    let check = "mpirun -n 2 mpiexec.hydra -n 2 sh -c 'mpienv check; echo code $?' 2>&1";
    // The inner one replaces the variables of the outer one if both are the same.
    for check in [check, &check.replace("mpirun", "mpiexec.hydra")] {
        let found = lines(&mut nested(check)).join("\n");
        let doubt = "error [launchers-disagree]: rank 0: Hydra says rank 0 of 2";
        assert!(found.contains(doubt), "{found}");
        assert_eq!((found.matches("code 0").count(), found.matches("code 3").count()), (2, 2));
    }
    // Also below exec.
    for below in ["exec", "exec -q", "exec --launcher hydra"] {
        let check = check.replace("mpienv check", &format!("mpienv {below} -- mpienv check"));
        let found = lines(&mut nested(&check)).join("\n");
        let failed = if below.contains("hydra") { 0 } else { 2 };
        assert_eq!(found.matches("code 3").count(), failed, "{below}: {found}");
        assert_eq!(found.matches("code 0").count(), 4 - failed, "{below}: {found}");
    }
}

#[test]
fn the_first_rank_of_a_job_on_several_nodes_that_a_later_task_has_started_is_refused() {
    let task = |rank: u32| Job::slurm().nodes(2).per_node(1).build().unwrap().environment(rank);
    let job = |builder: JobBuilder| builder.nodes(2).per_node(2).build().unwrap();
    for (inner, is_refused) in [
        (job(Job::open_mpi()), true),
        (job(Job::hydra()), true),
        // torchrun numbers the nodes in the order in which they arrive.
        (job(Job::torchrun()), false),
    ] {
        for (outer, rank) in [(0, 0), (1, 0), (1, 2)] {
            let vars = task(outer).unwrap().into_iter().chain(inner.environment(rank).unwrap());
            let info = ClusterInfo::from_vars(vars.chain([("MPIENV_ASK".into(), "0".into())]));
            let Err(error) = info.unwrap().require_place() else {
                assert!(!is_refused || (outer, rank) != (1, 0), "{inner:?}");
                continue;
            };
            assert!(is_refused && (outer, rank) == (1, 0), "{inner:?} {outer} {rank}: {error}");
        }
    }
}

#[test]
fn the_ranks_of_jobs_of_hydra_below_exec_of_hydra_have_the_port_of_their_job() {
    if !is_there("mpiexec.hydra") {
        return;
    }
    let say = "echo $WORLD_SIZE $MASTER_PORT";
    for exec in ["exec", "exec --launcher alone"] {
        let inner = format!("{say}; mpiexec.hydra -n 2 mpienv exec -q -- sh -c '{say}'");
        let script =
            format!("mpiexec.hydra -n 2 mpienv {exec} -- sh -c \"{}\"", inner.replace('$', "\\$"));
        let mut ports = BTreeMap::<_, usize>::new();
        for port in lines(&mut nested(&script)) {
            *ports.entry(port).or_default() += 1;
        }
        let of_size = |size: &str| {
            let ports = ports.iter().filter(|(port, _)| port.starts_with(size));
            ports.map(|(_, ranks)| *ranks).collect::<Vec<_>>()
        };
        // Those of the outer job, and of the two inner ones.
        let (two, one) = if exec == "exec" { (3, 0) } else { (2, 2) };
        assert_eq!((of_size("2 "), of_size("1 ")), (vec![2; two], vec![1; one]), "{ports:?}");
    }
}

#[test]
fn a_process_whose_parents_have_exited_stays_in_its_job_below_an_outer_launcher() {
    if !is_there("mpiexec.hydra") {
        return;
    }
    // It becomes a child of the launch, above which the outer job's proxy is.
    let folder = tempfile::tempdir().unwrap();
    let say = "mpienv exec -- sh -c 'echo $RANK $MASTER_PORT'";
    let rank = format!(
        "{say} >$1/own.$PMI_RANK; (setsid sh -c 'until test $(ps -o ppid= $$) -ne $0; do sleep 0.01; done; \
         {} >$1/new.$PMI_RANK; mv $1/new.$PMI_RANK $1/later.$PMI_RANK' $$ $1 &); \
         until test -e $1/later.$PMI_RANK; do sleep 0.01; done",
        say.replace('\'', "\"").replace('$', "\\$")
    );
    std::fs::write(folder.path().join("rank.sh"), rank).unwrap();
    let at = folder.path().display();
    let job = format!("mpiexec.hydra -n 2 mpienv exec -- sh {at}/rank.sh {at}");
    lines(&mut nested(&format!(
        "mpiexec.hydra -n 1 mpienv launch --nproc-per-node 1 --allow-launcher -- {job}"
    )));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for rank in ["0", "1"] {
        assert_eq!(read(&format!("later.{rank}")), read(&format!("own.{rank}")), "{rank}");
    }
}

#[test]
fn a_job_of_its_own_that_is_asked_for_in_a_rank_is_silent() {
    let rank = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "10.1.2.3")];
    for per_node in ["1", "2"] {
        let inner = format!("mpienv launch --launcher alone --nproc-per-node {per_node}");
        let script = format!("mpienv exec -- {inner} -- mpienv exec -- true");
        assert_eq!(lines(nested(&script).envs(rank)), [""; 0], "{per_node}");
    }
}

#[test]
fn a_torchrun_that_ignores_the_other_pods_of_an_indexed_job_warns_whatever_it_starts() {
    for (pods, workers) in [(2, 1), (2, 2), (4, 2), (3, 8), (4, 6), (8, 4)] {
        let torchrun = Job::torchrun().per_node(workers).build().unwrap();
        for pod in [0, pods - 1] {
            let vars = [
                ("JOB_COMPLETION_INDEX", pod.to_string()),
                ("NNODES", pods.to_string()),
                ("MASTER_ADDR", "job-0.svc".to_owned()),
            ];
            let vars = vars.map(|(name, value)| (name.to_owned(), value));
            let mut vars: BTreeMap<_, _> =
                torchrun.environment(0).unwrap().into_iter().chain(vars).collect();
            vars.insert("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
            let info = ClusterInfo::from_vars(vars).unwrap();
            assert_eq!((info.launcher(), info.world_size()), (Launcher::Torchrun, workers));
            let codes: Vec<_> = info.warnings().iter().map(|found| found.code).collect();
            assert!(codes.contains(&"launchers-disagree"), "{pod}/{pods} {workers}: {codes:?}");
        }
    }
}
