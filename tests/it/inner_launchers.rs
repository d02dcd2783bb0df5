//! `exec` and `launch` of another launcher, whose ranks would get one rank's variables.

use crate::support::script::script;
use crate::support::tool::clean;

/// The second of two ranks.
const RANK_1: &[(&str, &str)] = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node0")];
/// The second of two nodes with one process each.
const NODE_1: &[(&str, &str)] = &[
    ("SKYPILOT_NODE_RANK", "1"),
    ("SKYPILOT_NUM_NODES", "2"),
    ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
];

/// The exit code, stdout and stderr of `mpienv` with a stand-in for the launcher, which prints a
/// line.
fn run(verb: &[&str], line: &str, vars: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let path = folder.path().join(words[0]);
    script(&path, "#!/bin/sh\necho started\n");
    let output = clean("mpienv")
        .args(verb)
        .arg("--")
        .arg(path)
        .args(&words[1..])
        .envs(vars.iter().copied())
        .output();
    let output = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_launcher_of_jobs_is_refused_with_the_right_order_of_words() {
    for (line, right) in [
        ("mpirun -n 2 ./solver", "/mpirun -n 2 mpienv exec -- ./solver`"),
        ("mpiexec -n 2 ./solver", "/mpiexec -n 2 mpienv exec -- ./solver`"),
        ("mpiexec.hydra -n 2 ./solver", "/mpiexec.hydra -n 2 mpienv exec -- ./solver`"),
        ("orterun -n 2 ./solver", "/orterun -n 2 mpienv exec -- ./solver`"),
        ("prterun -n 2 ./solver", "/prterun -n 2 mpienv exec -- ./solver`"),
        ("prun -n 2 ./solver", "/prun -n 2 mpienv exec -- ./solver`"),
        ("srun -n 2 ./solver", "/srun -n 2 mpienv exec -- ./solver`"),
        ("flux run -n 2 ./solver", "/flux run -n 2 mpienv exec -- ./solver`"),
        ("flux submit -n 2 ./solver", "/flux submit -n 2 mpienv exec -- ./solver`"),
        ("horovodrun -np 2 python train.py", "/horovodrun -np 2 mpienv exec -- python train.py`"),
        ("jsrun -n 2 ./solver", "/jsrun -n 2 mpienv exec -- ./solver`"),
        ("aprun -n 2 ./solver", "/aprun -n 2 mpienv exec -- ./solver`"),
    ] {
        // Alone, too: all ranks would inherit RANK=0 and WORLD_SIZE=1.
        for verb in [&["exec"][..], &["exec", "--per-node"], &["launch", "--nproc-per-node", "1"]] {
            let (code, stdout, stderr) = run(verb, line, &[]);
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{verb:?} {line}: {stderr}");
            assert!(stderr.contains(right), "{verb:?} {line}: {stderr}");
            assert!(
                stderr.contains("this process's RANK=0 and WORLD_SIZE=1"),
                "{verb:?} {line}: {stderr}"
            );
        }
        for (verb, vars) in [(&["exec"][..], RANK_1), (&["launch", "--nproc-per-node", "2"], &[])] {
            let (code, stdout, stderr) = run(verb, line, vars);
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{verb:?} {line}: {stderr}");
            assert!(
                stderr.contains("each of the 2 ranks would start its own ")
                    && stderr.contains(right),
                "{stderr}"
            );
        }
        // Each of its ranks gets its own variables.
        for verb in [&["exec"][..], &["exec", "--per-node"]] {
            let program = format!(" {}", line.split(' ').next_back().unwrap());
            let nested = line.replace(&program, &format!(" /usr/bin/mpienv exec --{program}"));
            let (code, stdout, stderr) = run(verb, &nested, NODE_1);
            assert_eq!((code, stdout.as_str()), (Some(0), "started\n"), "{nested}: {stderr}");
        }
        // Under `launch`, each worker would still run a job of its own.
        let nested = format!("{} mpienv exec -- ./solver", line.split(" ./").next().unwrap());
        let (code, stdout, stderr) = run(&["launch", "--nproc-per-node", "2"], &nested, &[]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{nested}: {stderr}");
        assert_eq!(stderr.matches("mpienv exec -- ").count(), 1, "{nested}: {stderr}");
        let (code, stdout, stderr) = run(&["exec", "--allow-launcher"], line, RANK_1);
        assert_eq!((code, stdout.as_str()), (Some(0), "started\n"), "{line}: {stderr}");
        let (code, stdout, _) =
            run(&["launch", "--nproc-per-node", "2", "--allow-launcher"], line, &[]);
        assert_eq!((code, stdout.matches("] started\n").count()), (Some(0), 2), "{line}: {stdout}");
    }
}

#[test]
fn a_launcher_of_a_nodes_ranks_is_refused_for_each_rank_unless_its_options_name_the_other_nodes() {
    for (line, options, right) in [
        ("torchrun train.py", "--nnodes 2", "`mpienv exec --per-node -- torchrun ...`"),
        ("deepspeed train.py", "--no_ssh", "deepspeed --no_ssh --node_rank {node_rank} "),
        (
            "accelerate launch train.py",
            "--machine_rank 1",
            "accelerate launch --multi_gpu --num_machines {nnodes} ",
        ),
    ] {
        for vars in [RANK_1, NODE_1] {
            let (code, stdout, stderr) = run(&["exec"], line, vars);
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
            assert!(
                stderr.contains("each of the 2 ranks would start its own ")
                    && stderr.contains(right),
                "{stderr}"
            );
            assert!(stderr.contains("; --allow-launcher starts it anyway"), "{stderr}");
            assert_eq!(
                run(&["exec"], &format!("{line} {options}"), vars).1,
                "started\n",
                "{line} {options}"
            );
            assert_eq!(run(&["exec", "--allow-launcher"], line, vars).1, "started\n", "{line}");
        }
        assert_eq!(run(&["exec", "--per-node"], line, NODE_1).1, "started\n", "{line}");
        assert_eq!(run(&["exec"], line, &[]).1, "started\n", "alone {line} is as without mpienv");
        let (code, _, stderr) = run(&["launch", "--nproc-per-node", "2"], line, &[]);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(
            stderr.contains("as in `mpienv launch --nproc-per-node N -- python train.py`"),
            "{stderr}"
        );
    }
    for variable in ["PET_NNODES", "PET_RDZV_ENDPOINT"] {
        assert_eq!(
            run(&["exec"], "torchrun train.py", &[RANK_1, &[(variable, "2")]].concat()).1,
            "started\n"
        );
    }
}

#[test]
fn a_standalone_torchrun_is_refused_on_each_of_several_nodes() {
    let line = "torchrun --standalone train.py";
    let (code, stdout, stderr) = run(&["exec", "--per-node"], line, NODE_1);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    let right = "--standalone, torchrun would run a separate job on each of the 2 nodes; omit it, ";
    assert!(stderr.contains(right), "{stderr}");
    let anyway = ["exec", "--per-node", "--allow-launcher"];
    assert_eq!(run(&anyway, line, NODE_1).1, "started\n");
    let of_script = "torchrun --nproc-per-node 2 train.py --standalone";
    assert_eq!(run(&["exec", "--per-node"], of_script, NODE_1).1, "started\n", "the script's own");
    let alone = [("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_NODES", "1")];
    assert_eq!(run(&["exec", "--per-node"], line, &alone).1, "started\n", "one node has no other");
}

#[test]
fn a_torchrun_of_one_node_is_refused_on_each_of_several_and_not_for_a_word_of_the_program() {
    for (options, is_refused) in [
        ("--nnodes 1", true),
        ("--nnodes=1", true),
        ("--nnodes 1:1", true),
        ("--nnodes=1:1", true),
        ("--nnodes 2", false),
        ("--nproc-per-node 2 train.py --nnodes 1", false),
        ("--no-python ./solver --nnodes 1", false),
    ] {
        let line = format!("torchrun {options} train.py");
        let (code, stdout, stderr) = run(&["exec", "--per-node"], &line, NODE_1);
        let right = "with --nnodes 1, torchrun would run a separate job on each of the 2 nodes";
        assert_eq!((code == Some(2), stderr.contains(right)), (is_refused, is_refused), "{line}");
        assert_eq!(stdout.is_empty(), is_refused, "{line}: {stderr}");
    }
}

#[test]
fn below_another_launcher_the_right_order_is_without_the_outer_one() {
    let slurm =
        |size| [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", size)];
    for (vars, outer) in [(slurm("2"), Some("srun")), (slurm("1"), None)] {
        let stderr = run(&["exec"], "mpirun -n 2 ./solver", &vars).2;
        let right = "mpirun -n 2 mpienv exec -- ./solver`";
        let rest = outer.map_or("; ".to_owned(), |name| format!(", without the outer {name}; "));
        assert!(stderr.contains(&format!("{right}{rest}")), "{outer:?}: {stderr}");
    }
}
