//! Probable errors are reported on stderr by every command that continues, once for each node,
//! unless they are silenced.

mod silence;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::port::free_port;
use crate::support::tool::{clean, is_there};

/// A variable of mpienv with a letter missing.
const MISSPELLED: Vars = &[("MPIENV_TOKN", "secret")];
/// A variable with mpienv's prefix that resembles none of mpienv.
const UNKNOWN: Vars = &[("MPIENV_SECRET", "secret")];
/// Ports that usually only root may open.
const PRIVILEGED: Vars = &[("MPIENV_PORT_RANGE", "1000-1099")];
/// Rank 0 of an mpirun of Open MPI 4 that has ended.
const ENDED: Vars = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "1"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("OMPI_MCA_orte_jobfam_session_dir", "/no/such/session"),
];

pub(super) type Vars<'a> = &'a [(&'a str, &'a str)];

/// A batch script with eight tasks and no srun.
const SCRIPT: Vars = &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
/// Rank 0 of mpirun, with another job's RANK and WORLD_SIZE.
const DISAGREE: Vars = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
];
/// The only node's first rank, with the master of another job: no host has an address in this
/// documentation network.
const STALE_MASTER: Vars = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "1"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("MASTER_ADDR", "192.0.2.7"),
];

/// Jobs that probably have several processes, of which none got a place.
const UNPLACED: [(Vars, &str); 17] = [
    (&[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0")], "place-unknown"),
    (SCRIPT, "slurm-not-a-task"),
    (&[("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "2")], "slurm-not-a-task"),
    (&[("FLUX_ENCLOSING_ID", "f1")], "flux-not-a-task"),
    (&[("PBS_JOBID", "7.a"), ("PBS_TASKNUM", "1"), ("NCPUS", "2")], "pbs-not-a-task"),
    (&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 2 b 2")], "lsf-not-a-task"),
    (&[("LSB_JOBID", "7"), ("LSB_DJOB_NUMPROC", "4")], "lsf-not-a-task"),
    (&[("PE_HOSTFILE", "/a"), ("NSLOTS", "4")], "grid-engine-not-a-task"),
    (&[("COBALT_JOBID", "7"), ("COBALT_JOBSIZE", "4")], "cobalt-not-a-task"),
    (&[("OAR_JOB_ID", "7")], "oar-not-a-task"),
    (&[("PJM_JOBID", "7"), ("PJM_NODE", "4")], "pjm-not-a-task"),
    (&[("K_MPI_JOB_ROLE", "launcher")], "mpijob-not-a-task"),
    (&[("MASTER_ADDR", "localhost"), ("JAX_COORDINATOR_ADDRESS", "h:1234")], "place-unknown"),
    (&[("AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5")], "azure-batch-not-a-task"),
    (&[("OMPI_COMM_WORLD_LOCAL_RANK", "1")], "place-unknown"),
    (&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "4")], "place-unknown"),
    (&[("MASTER_ADDR", "train-0.train"), ("LOCAL_RANK", "0")], "place-unknown"),
];

const COMMANDS: [&[&str]; 3] =
    [&["export"], &["exec", "--", "true"], &["launch", "--nproc-per-node", "1", "--", "true"]];

pub(super) fn run(words: &[&str], vars: &[Vars]) -> (Option<i32>, String, String) {
    let mut command: Command = clean("mpienv");
    let Output { status, stdout, stderr } =
        command.args(words).envs(vars.concat()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn every_command_that_goes_on_says_what_is_probably_wrong() {
    for (vars, code) in [
        (SCRIPT, "slurm-not-a-task"),
        (DISAGREE, "launchers-disagree"),
        (STALE_MASTER, "master-not-here"),
        (MISSPELLED, "unknown-variable"),
        (UNKNOWN, "unknown-variable"),
        (PRIVILEGED, "port-range-privileged"),
        (ENDED, "stale-open-mpi"),
    ] {
        for words in COMMANDS {
            // If a node has two ranks, neither may launch.
            if code == "launchers-disagree" && words[0] == "launch" {
                continue;
            }
            let (status, stdout, stderr) = run(words, &[vars]);
            assert_eq!(status, Some(0), "{words:?}: {stderr}");
            assert_eq!(stderr.matches(&format!("[{code}]: ")).count(), 1, "{words:?}: {stderr}");
            assert!(stderr.contains("\n  why: ") && stderr.contains("\n  remedy: "), "{stderr}");
            assert!(
                words != ["export"] || stdout.lines().all(|line| line.starts_with("export ")),
                "{stdout}"
            );
        }
    }
}

#[test]
fn rank_0_of_several_nodes_says_before_the_start_that_the_master_is_another_host() {
    // Addresses for documentation, which no host has.
    let node = |rank| [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")];
    let master = [("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", "192.0.2.1")];
    for words in [&["exec"][..], &["launch", "--nproc-per-node", "1"]] {
        let words = [words, &["--", "echo", "up"]].concat();
        let said = |rank, more: &[Vars]| {
            let node = node(rank);
            let vars = [&[&node[..], &master], more].concat();
            let (code, stdout, stderr) = run(&words, &vars);
            assert!(code == Some(0) && stdout.contains("up"), "{words:?}: {stdout}{stderr}");
            stderr
        };
        let stderr = said("0", &[]);
        assert_eq!(stderr.matches("warning [master-not-here]: ").count(), 1, "{words:?}: {stderr}");
        assert!(
            stderr.contains("MASTER_ADDR 192.0.2.1 is not an address of this host"),
            "{stderr}"
        );
        assert_eq!(said("1", &[]), "", "{words:?}");
        let agent = [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "1")];
        let more = [("GROUP_RANK", "0"), ("MASTER_PORT", "29500")];
        let stderr = said("0", &[&agent, &more]);
        assert!(!stderr.contains("master-not-here"), "{words:?}: {stderr}");
    }
}

#[test]
fn after_an_error_exec_and_launch_say_that_the_program_starts_anyway() {
    let anyway = "mpienv: the program starts anyway; with --meet TIME, ";
    for words in [&["exec"][..], &["launch", "--nproc-per-node", "1"]] {
        let said = |more: &[&str], vars| {
            let (code, stdout, stderr) =
                run(&[words, more, &["--", "echo", "up"]].concat(), &[vars]);
            assert!(code == Some(0) && stdout.contains("up"), "{words:?}: {stdout}{stderr}");
            stderr
        };
        let stderr = said(&[], STALE_MASTER);
        assert!(stderr.contains("error [master-not-here]: "), "{stderr}");
        assert!(stderr.lines().any(|line| line.starts_with(anyway)), "{words:?}: {stderr}");
        // A warning does not look like the end, and a meeting decides by itself.
        for (more, vars) in [(&[][..], MISSPELLED), (&["--meet", "1"], STALE_MASTER)] {
            let stderr = said(more, vars);
            assert!(!stderr.contains(anyway), "{words:?} {more:?}: {stderr}");
        }
    }
}

#[test]
fn every_process_that_a_batch_system_left_without_a_place_warns() {
    for (vars, code) in UNPLACED {
        for words in COMMANDS {
            let (status, _, stderr) = run(words, &[vars]);
            assert_eq!(status, Some(0), "{words:?}: {stderr}");
            assert!(!stderr.contains(r#"10.0.0.5" and"#), "each variable once: {stderr}");
            assert_eq!(
                stderr.matches(&format!("warning [{code}]: ")).count(),
                1,
                "{words:?}: {stderr}"
            );
        }
    }
}

#[test]
fn a_pbs_script_warns_unless_the_file_of_its_nodes_has_one_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let vars = [("PBS_JOBID", "7.a"), ("PBS_TASKNUM", "1"), ("PBS_NODEFILE", &path)];
    for (text, warns) in
        [("nodeA\n", false), ("nodeA\nnodeA\n", true), ("nodeA\nnodeB\n", true), ("", true)]
    {
        fs::write(file.path(), text).unwrap();
        let stderr = run(&["exec", "--", "true"], &[&vars]).2;
        assert_eq!(stderr.contains("[pbs-not-a-task]"), warns, "{text:?}: {stderr}");
        let port = free_port().to_string();
        let (status, stdout, stderr) =
            run(&["check", "--timeout", "5"], &[&vars, &[("MASTER_PORT", &port)]]);
        assert_eq!(status, Some(if warns { 3 } else { 0 }), "{text:?}: {stdout}{stderr}");
    }
    fs::write(file.path(), "nodeA\nnodeB\n").unwrap();
    assert!(run(&["show"], &[&vars]).1.contains("with 2 lines for 2 hosts are set"));
    // Torque has a line for each core.
    let torque = [&vars[..], &[("PBS_NUM_PPN", "2")]].concat();
    for (text, warns) in [("nodeA\nnodeA\n", false), ("nodeA\nnodeB\n", true)] {
        fs::write(file.path(), text).unwrap();
        let stderr = run(&["exec", "--", "true"], &[&torque]).2;
        assert_eq!(stderr.contains("[pbs-not-a-task]"), warns, "{text:?}: {stderr}");
    }
    // A container does not have the file, so nothing shows how many processes there are.
    file.close().unwrap();
    assert!(run(&["exec", "--", "true"], &[&vars]).2.contains("warning [pbs-not-a-task]"));
    let shown = run(&["show"], &[&vars]).1;
    assert!(
        shown.contains("[pbs-not-a-task]") && shown.contains(", which cannot be read, are set"),
        "{shown}"
    );
    assert!(
        run(&["exec", "--", "true"], &[&vars, &[("PBS_NUM_NODES", "2")]])
            .2
            .contains("warning [pbs-not-a-task]")
    );
}

/// A pod of Kubeflow's, whose template asks torchrun for eight ranks.
const POD: Vars = &[
    ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
    ("PET_NODE_RANK", "0"),
    ("PET_NNODES", "2"),
    ("PET_NPROC_PER_NODE", "8"),
    ("PET_MASTER_ADDR", "127.0.0.1"),
    ("PET_MASTER_PORT", "29400"),
];

#[test]
fn exec_and_launch_say_that_a_template_asks_for_another_number_of_ranks() {
    let exec = &["exec", "--", "true"];
    let launch = |count| ["launch", "--nproc-per-node", count, "--", "true"];
    let code = "warning [workers-differ]: PET_NPROC_PER_NODE=8 asks for 8 ranks on each node, and";
    for (words, starts) in [(&exec[..], "exec starts 1"), (&launch("4"), "launch starts 4")] {
        let stderr = run(words, &[POD]).2;
        assert!(stderr.contains(&format!("{code} {starts}\n")), "{stderr}");
        assert!(stderr.contains("`mpienv launch --nproc-per-node 8`"), "{stderr}");
    }
    let per_node = ["exec", "--per-node", "--", "true"];
    for (words, vars) in [
        (&launch("8")[..], POD),
        (&launch("auto"), POD),
        (&per_node, POD),
        (exec, &[POD, &[("PET_NPROC_PER_NODE", "auto")]].concat()),
        (exec, &[("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_GPUS_PER_NODE", "8")]),
    ] {
        let stderr = run(words, &[vars]).2;
        assert!(!stderr.contains("workers-differ"), "{words:?}: {stderr}");
    }
}

#[test]
fn per_node_warns_of_a_script_that_gets_neither_rank_nor_world_size() {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python3");
    std::os::unix::fs::symlink("/bin/true", &python).unwrap();
    let warns = |options: &[&str], line: &str, vars: Vars| {
        let line = line.replace("python3", python.to_str().unwrap());
        let words = [&["exec"], options, &["--"], &line.split(' ').collect::<Vec<_>>()].concat();
        let stderr = run(&words, &[vars]).2;
        let warns = stderr.contains("[not-torchrun]");
        let names = stderr.contains("/python3 train.py` gets neither RANK nor WORLD_SIZE with ");
        assert_eq!(warns, names, "{stderr}");
        warns
    };
    for line in
        ["python3 train.py", "python3 -u train.py -m x", "env A=1 timeout 9 python3 train.py"]
    {
        assert!(warns(&["--per-node"], line, POD), "{line}");
        assert!(!warns(&["--per-node"], line, &[]), "{line}, alone");
        assert!(!warns(&["--per-node", "--template"], line, POD), "{line}, with a template");
        assert!(!warns(&[], line, POD), "{line}, with its own rank");
    }
    // They may start torchrun, or are a launcher.
    for line in [
        "torchrun --nproc-per-node=8 train.py",
        "python3 -m torch.distributed.run train.py",
        "accelerate launch train.py",
        "python3 -m train train.py",
        "python3 torch/distributed/launch.py train.py",
        "python3 torch/distributed/run.py train.py",
        "python3 -c 1",
        "true python3 train.py",
        "sh -c true train.py",
    ] {
        assert!(!warns(&["--per-node"], line, POD), "{line}");
    }
}

#[test]
fn a_world_size_of_more_ranks_than_nodes_is_what_launch_auto_starts_and_exec_warns_of() {
    let launch = ["launch", "--nproc-per-node", "auto", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE"];
    for index in ["JOB_COMPLETION_INDEX", "NODE_RANK"] {
        let pod = [(index, "1"), ("NNODES", "2"), ("MASTER_ADDR", "192.0.2.1")];
        let said = |words: &[&str], size: &str| run(words, &[&pod, &[("WORLD_SIZE", size)]]).2;
        let code = "warning [workers-differ]: ";
        let what = "WORLD_SIZE=8 asks for 4 ranks on each node, and exec starts 1\n";
        let stderr = said(&["exec", "--", "true"], "8");
        assert!(stderr.contains(&format!("{code}rank 1 on ")) && stderr.contains(what), "{stderr}");
        assert!(stderr.contains("or set WORLD_SIZE to 2\n"), "{stderr}");
        // Some count nodes.
        assert!(!said(&["exec", "--", "true"], "2").contains(code));
        let (_, stdout, stderr) = run(&launch, &[&pod, &[("WORLD_SIZE", "8")]]);
        assert!(stdout.contains("[7] 7/8\n") && !stderr.contains(code), "{stdout}{stderr}");
        assert!(stderr.contains("4 workers on this node: WORLD_SIZE=8"), "{stderr}");
    }
}

#[test]
fn each_rank_says_that_its_variables_are_of_a_job_that_has_ended() {
    let rank_1 = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let launch = &["launch", "--nproc-per-node", "auto", "--", "true"];
    for words in [&["export"][..], &["exec", "--", "true"], &["check", "--timeout", "0.2"], launch]
    {
        let (_, _, stderr) = run(words, &[ENDED, &rank_1]);
        assert_eq!(stderr.matches("warning [stale-open-mpi]: ").count(), 1, "{words:?}: {stderr}");
    }
    // Where these variables are not the place, the first rank of the node says it for all.
    for rank in ["0", "1"] {
        let place = [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank)];
        let more = [("LOCAL_WORLD_SIZE", "2"), ("MPIENV_LAUNCHER", "user")];
        let (_, _, stderr) = run(&["exec", "--", "true"], &[ENDED, &place, &more]);
        assert_eq!(stderr.contains("[stale-open-mpi]: "), rank == "0", "{rank}: {stderr}");
    }
}

#[test]
fn a_place_that_is_left_from_an_ended_hydra_or_launch_is_named_where_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let exec = "mpienv exec -- sh -c 'echo rank $RANK of $WORLD_SIZE'";
    for start in ["mpiexec.hydra -n 2", "mpienv launch --nproc-per-node 2 --"] {
        if start.starts_with("mpiexec") && !is_there("mpiexec.hydra") {
            continue;
        }
        // Each rank is silent below the launcher, also without the launcher's descriptor.
        let close = "3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
        let of_rank = format!(
            "export -p >$1/$RANK$PMI_RANK; exec >$1/out.$RANK$PMI_RANK 2>&1 {close}; {exec}"
        );
        fs::write(folder.path().join("rank.sh"), of_rank).unwrap();
        let said = |script: &str| {
            let mut command = clean("sh");
            command.args(["-c", script]).arg(folder.path());
            let Output { status, stdout, stderr } = command.output().unwrap();
            assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
            String::from_utf8([stdout, stderr].concat()).unwrap()
        };
        said(&format!("{start} sh $0/rank.sh $0"));
        let of_rank = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(of_rank("out.1"), "rank 1 of 2\n", "{start}");
        let found = said(&format!(". $0/1; {exec}"));
        // It is looked for in the first namespace of process IDs alone.
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
        let warnings = usize::from(namespace == Path::new("pid:[4026531836]"));
        assert_eq!(found.matches("warning [stale-place]: ").count(), warnings, "{start}: {found}");
        assert!(found.starts_with("rank 1 of 2\n"), "{start}: {found}");
    }
    let simulated =
        ["simulate", "--launcher", "hydra", "--ppn", "2", "--", "mpienv", "exec", "--", "true"];
    assert_eq!(run(&simulated, &[]).2, "");
}

#[test]
fn a_script_that_sets_a_port_of_its_own_has_not_inherited_a_part_of_its_place() {
    let script = "MASTER_PORT=29873 mpienv exec -- true";
    let launch = ["launch", "--nproc-per-node", "2", "--", "sh", "-c", script];
    let (status, _, stderr) = run(&launch, &[]);
    assert_eq!((status, stderr.contains("partly-inherited")), (Some(0), false), "{stderr}");
}

#[test]
fn an_interface_that_this_host_does_not_have_is_named_by_exec_and_check() {
    let port = free_port().to_string();
    let check = ["check", "--timeout", "5"];
    for (variable, code, remedy) in [
        ("GLOO_SOCKET_IFNAME", "gloo-no-such-interface", "set GLOO_SOCKET_IFNAME to"),
        ("NCCL_SOCKET_IFNAME", "nccl-nothing-left", "correct or unset NCCL_SOCKET_IFNAME"),
        ("MPIENV_NCCL_IFNAME", "nccl-nothing-left", "set MPIENV_NCCL_IFNAME to a name"),
    ] {
        for words in [&["exec", "--", "true"][..], &check] {
            let vars = [(variable, "none9"), ("MASTER_PORT", port.as_str())];
            let (status, _, stderr) = run(words, &[&vars]);
            assert_eq!(status, Some(0), "{stderr}");
            assert!(stderr.contains(&format!("warning [{code}]: ")), "{stderr}");
            assert!(stderr.contains(&format!("remedy: {remedy}")), "{stderr}");
        }
    }
    assert_eq!(run(&["exec", "--", "true"], &[&[("NCCL_SOCKET_IFNAME", "lo")]]).2, "");
}

#[test]
fn a_secret_that_can_be_guessed_is_a_warning_once() {
    let code = "warning [secret-short]: the secret of MPIENV_TOKEN has 5 bytes";
    let vars: Vars = &[("MPIENV_TOKEN", "12345")];
    let launch = ["launch", "--nproc-per-node", "2", "--", "mpienv", "exec", "--", "true"];
    for words in [&["exec", "--", "mpienv", "exec", "--", "true"][..], &launch] {
        let stderr = run(words, &[vars]).2;
        assert_eq!(stderr.matches(code).count(), 1, "{stderr}");
        assert!(!stderr.contains("12345"), "{stderr}");
    }
    assert_eq!(run(&["exec", "--", "true"], &[&[("MPIENV_TOKEN", "0123456789abcdef")]]).2, "");
}

#[test]
fn a_launch_of_several_workers_on_the_only_node_does_not_say_that_the_script_runs_once() {
    let launch = |workers: &str, vars: &[Vars]| {
        run(&["launch", "--nproc-per-node", workers, "--", "true"], vars).2
    };
    let pbs: Vars =
        &[("PBS_JOBID", "7.a"), ("PBS_NP", "4"), ("PBS_NUM_NODES", "1"), ("PBS_NUM_PPN", "4")];
    assert_eq!(launch("4", &[pbs]), "");
    let nodes = |count| [("SLURM_NNODES", count)];
    assert_eq!(launch("4", &[SCRIPT, &nodes("1")]), "");
    for (workers, vars) in
        [("1", &[SCRIPT, &nodes("1")][..]), ("4", &[SCRIPT, &nodes("2")]), ("4", &[SCRIPT])]
    {
        let said = launch(workers, vars);
        assert_eq!(
            said.matches("warning [slurm-not-a-task]: ").count(),
            1,
            "{workers} {vars:?}: {said}"
        );
    }
    // Other batch systems' jobs on several hosts.
    for (vars, code) in
        UNPLACED.iter().filter(|(vars, _)| vars.iter().any(|(name, _)| *name == "LSB_MCPU_HOSTS"))
    {
        assert!(launch("4", &[vars]).contains(&format!("warning [{code}]: ")));
    }
}

/// The stderr of a program that the tests build, which must succeed.
fn said_by(program: &mut Command, vars: Vars) -> String {
    let Output { status, stderr, .. } =
        program.env_clear().envs(vars.iter().copied()).output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{program:?}: {stderr}");
    stderr
}

fn example(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_BIN_EXE_mpienv")).with_file_name("examples").join(name))
}

#[test]
fn rust_programs_warn_as_the_command_does() {
    let by_command = run(&["exec", "--", "true"], &[SCRIPT]).2;
    assert!(by_command.starts_with("warning [slurm-not-a-task]: "), "{by_command}");
    let quiet = [SCRIPT, &[("MPIENV_QUIET", "1")]].concat();
    let second =
        [DISAGREE, &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")]].concat();
    // The README's program.
    assert_eq!(said_by(&mut example("cluster_info"), SCRIPT), by_command);
    assert_eq!(said_by(&mut example("cluster_info"), &quiet), "");
    assert!(
        said_by(&mut example("cluster_info"), DISAGREE)
            .starts_with("warning [launchers-disagree]: ")
    );
    assert_eq!(said_by(&mut example("cluster_info"), &second), "");
    // It connects twice. A group of one rank is refused there, but not a place that is only
    // suspicious.
    for vars in [SCRIPT, &quiet] {
        let output = example("collective_twice").env_clear().envs(vars.iter().copied()).output();
        let Output { status, stderr, .. } = output.unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(
            !status.success() && stderr.contains("srun did not start this process"),
            "{stderr}"
        );
    }
    let misspelled = [MISSPELLED, &[("MPIENV_QUIET", "1")]].concat();
    let by_command = run(&["exec", "--", "true"], &[MISSPELLED]).2;
    assert_eq!(said_by(&mut example("collective_twice"), MISSPELLED), by_command);
    assert_eq!(said_by(&mut example("collective_twice"), &misspelled), "");
    assert_eq!(said_by(example("collective_twice").arg("quiet"), MISSPELLED), "");
}

#[test]
fn warnings_accompany_what_show_prints_if_they_are_asked_for() {
    // A process by itself gets another port each time.
    let show = |words: &[&str]| run(words, &[SCRIPT, &[("MASTER_PORT", "29500")]]);
    let (plain, asked) = (show(&["show", "--json"]), show(&["show", "--json", "--warn"]));
    assert_eq!((plain.1, plain.2.as_str()), (asked.1, ""));
    assert_eq!(asked.2, run(&["exec", "--", "true"], &[SCRIPT]).2);
    assert_eq!(run(&["show", "--warn"], &[SCRIPT, &[("MPIENV_QUIET", "1")]]).2, "");
}

#[test]
fn show_has_each_finding_that_it_prints_as_a_warning() {
    for vars in [&[][..], &[("MPIENV_QUIET", "1")]] {
        for (wrong, code) in [(STALE_MASTER, "master-not-here"), (ENDED, "stale-open-mpi")] {
            let (status, stdout, stderr) = run(&["show", "--json", "--warn"], &[wrong, vars]);
            assert_eq!(status, Some(0), "{stderr}");
            let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            let codes: Vec<_> =
                shown["findings"].as_array().unwrap().iter().map(|found| &found["code"]).collect();
            assert_eq!(codes, [code]);
        }
    }
}

#[test]
fn a_master_that_is_set_together_with_the_rank_may_also_be_left_from_another_job() {
    let place = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29500")];
    for (host, code) in
        [("192.0.2.7", "master-not-here"), ("no-such-host.invalid", "master-unresolved")]
    {
        for words in COMMANDS {
            let (_, _, stderr) = run(words, &[&place, &[("MASTER_ADDR", host)]]);
            assert!(stderr.contains(&format!("error [{code}]: ")), "{words:?}: {stderr}");
            let remedy =
                format!("remedy: unset MASTER_ADDR={host}, if it is left from another job");
            assert!(stderr.contains(&remedy), "{words:?}: {stderr}");
            // A master that is set is never replaced, so asking the launcher does not help.
            assert!(!stderr.contains("--ask-pmix"), "{words:?}: {stderr}");
        }
    }
    let (_, _, stderr) = run(&["export"], &[STALE_MASTER, &[("PMIX_RANK", "0")]]);
    assert!(stderr.contains("master-not-here") && !stderr.contains("--ask-pmix"), "{stderr}");
}

#[test]
fn check_of_one_rank_fails_if_the_master_or_its_port_cannot_be_right() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port().to_string();
    for (vars, code) in [
        (&[("MASTER_ADDR", "192.0.2.7")], "master-not-here"),
        (&[("MASTER_ADDR", "no-such-host.invalid")], "master-unresolved"),
        (&[("MASTER_PORT", &*taken)], "port-in-use"),
    ] {
        for words in [&["check"][..], &["check", "--json"], &["check", "-q", "--json"]] {
            let (status, stdout, stderr) = run(words, &[vars, &[("MPIENV_LAUNCHER", "alone")]]);
            assert_eq!(status, Some(3), "{words:?}: {stdout}{stderr}");
            assert!(stderr.starts_with(&format!("error [{code}]: ")), "{words:?}: {stderr}");
            assert!(
                stderr.ends_with("mpienv: check found problems; see the findings above\n"),
                "{stderr}"
            );
            if words.contains(&"--json") {
                let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
                assert_eq!(map["findings"][0]["code"], code, "{stdout}");
            }
        }
    }
}

#[test]
fn no_warning_comes_without_a_reason() {
    let script_of_one: Vars =
        &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NNODES", "1")];
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let own_name: Vars = &[("MASTER_ADDR", host.trim())];
    for vars in [&[][..], script_of_one, own_name, &[("MASTER_ADDR", "localhost")]] {
        for words in COMMANDS {
            assert_eq!(run(words, &[vars]).2, "", "{words:?} {vars:?}");
        }
    }
}

#[test]
fn check_that_refuses_to_meet_only_itself_prints_the_finding_and_the_error_as_json() {
    for (vars, code) in UNPLACED {
        let (status, stdout, stderr) = run(&["check", "--json"], &[vars]);
        let object: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((status, object["findings"][0]["code"].as_str()), (Some(3), Some(code)));
        assert_eq!(stderr, format!("mpienv: {}\n", object["error"].as_str().unwrap()));
    }
}

#[test]
fn check_fails_in_a_batch_script_that_has_not_started_its_tasks() {
    let (status, stdout, stderr) = run(&["check", "--timeout", "5"], &[SCRIPT]);
    assert_eq!((status, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(
        stderr.starts_with("mpienv: nothing was checked: ") && stderr.contains("`srun`"),
        "{stderr}"
    );
    for (vars, code) in UNPLACED {
        let (status, stdout, stderr) = run(&["check", "--timeout", "5"], &[vars]);
        assert_eq!((status, stdout.as_str()), (Some(3), ""), "{code}: {stderr}");
        assert!(stderr.starts_with("mpienv: nothing was checked: "), "{code}: {stderr}");
    }
    // Nor does it call a process alone that is one of several by other variables.
    let alone: Vars = &[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let (status, stdout, stderr) = run(&["check", "--timeout", "5"], &[DISAGREE, alone]);
    assert_eq!((status, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(
        stderr.starts_with("mpienv: nothing was checked: Open MPI says rank 0 of 1"),
        "{stderr}"
    );
    // A job of one task is complete.
    let port = free_port().to_string();
    let (status, stdout, stderr) = run(
        &["check", "--timeout", "5"],
        &[SCRIPT, &[("SLURM_NTASKS", "1"), ("MASTER_PORT", &port)]],
    );
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
}

#[test]
fn check_prints_what_is_probably_wrong_after_its_map() {
    let (status, stdout, stderr) = run(&["check"], &[&[("MPIENV_LAUNCHR", "slurm")]]);
    assert_eq!(status, Some(0), "{stderr}");
    assert!(
        stdout.starts_with("1 rank on 1 host") && stderr.contains("[unknown-variable]"),
        "{stdout}{stderr}"
    );
}
