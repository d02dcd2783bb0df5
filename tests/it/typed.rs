//! Lines that people type, and the line that each error answers with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::tool::clean;

/// The exit code, stdout and stderr of a line in this folder.
fn typed(folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let output = clean("bash").args(["-c", line]).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) {
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_wrong_command_line_is_answered_with_the_line_to_type() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    write(folder.path(), "bin/python", "#!/bin/sh\n", 0o755);
    write(folder.path(), "script.py", "print(1)\n", 0o644);
    write(folder.path(), "program.py", "#!/usr/bin/env python\n", 0o755);
    for (line, right) in [
        ("mpienv python train.py --lr 1", "mpienv exec -- python train.py --lr 1"),
        ("mpienv exec python train.py --epochs 3", "mpienv exec -- python train.py --epochs 3"),
        ("mpienv exec --for jax python train.py", "mpienv exec --for jax -- python train.py"),
        (
            "mpienv exec --nproc-per-node 2 -- python train.py",
            "mpienv launch --nproc-per-node 2 -- python train.py",
        ),
        (
            "mpienv exec --nproc-per-node 2 python train.py",
            "mpienv launch --nproc-per-node 2 -- python train.py",
        ),
        (
            "mpienv launch --nproc-per-node 2 ./train 'a b'",
            "mpienv launch --nproc-per-node 2 -- ./train 'a b'",
        ),
        ("mpienv launch -n 2 -- ./train", "mpienv launch --nproc-per-node 2 -- ./train"),
        ("mpienv launch -np 2 ./train -n 3", "mpienv launch --nproc-per-node 2 -- ./train -n 3"),
        ("mpienv launch -- ./train", "mpienv launch --nproc-per-node auto -- ./train"),
        ("mpienv run -- ./train", "mpienv exec -- ./train"),
        ("mpienv simulate --launcher slurm ./train", "mpienv simulate --launcher slurm -- ./train"),
        ("mpienv --launcher slurm show", "mpienv show --launcher slurm"),
        // The program's own `-n` stays.
        (
            "mpienv launch --nproc-per-node 2 python train.py -n 64",
            "mpienv launch --nproc-per-node 2 -- python train.py -n 64",
        ),
        (
            "mpienv launch python train.py -n 4",
            "mpienv launch --nproc-per-node auto -- python train.py -n 4",
        ),
        (
            "mpienv launch --for jax -n 2 ./train -n 3",
            "mpienv launch --for jax --nproc-per-node 2 -- ./train -n 3",
        ),
        ("mpienv launch -n2 -- ./train", "mpienv launch --nproc-per-node 2 -- ./train"),
        ("mpienv launch -n=2 ./train", "mpienv launch --nproc-per-node 2 -- ./train"),
        // Only the program is missing.
        ("mpienv exec", "mpienv exec -- CMD"),
        ("mpienv exec --", "mpienv exec -- CMD"),
        ("mpienv exec --nproc-per-node 2", "mpienv launch --nproc-per-node 2 -- CMD"),
        ("mpienv launch -n 2", "mpienv launch --nproc-per-node 2 -- CMD"),
        ("mpienv launch -n2", "mpienv launch --nproc-per-node 2 -- CMD"),
        // The line that works, also for a script in this folder and for a command in one word.
        ("mpienv script.py", "mpienv exec -- python script.py"),
        ("mpienv program.py x", "mpienv exec -- ./program.py x"),
        ("mpienv 'python train.py'", "mpienv exec -- python train.py"),
        // Not the line that `exec` refuses.
        ("mpienv mpirun -n 2 ./train 'a b'", "mpirun -n 2 mpienv exec -- ./train 'a b'"),
        (
            "mpienv env A=1 /opt/bin/srun -n 2 ./train",
            "env 'A=1' /opt/bin/srun -n 2 mpienv exec -- ./train",
        ),
        ("mpienv mpirun -n 2 mpienv exec -- ./train", "mpirun -n 2 mpienv exec -- ./train"),
        ("mpienv exec srun -n4 python train.py", "srun -n4 mpienv exec -- python train.py"),
    ] {
        let (code, stdout, stderr) = typed(folder.path(), &format!("PATH=$PWD/bin:$PATH; {line}"));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
        assert!(stderr.contains(&format!("\n  tip: type {right}\n")), "{line}: {stderr}");
        assert_eq!(stderr.matches("tip: ").count(), 1, "{line}: {stderr}");
        // The usage could be that of another subcommand than the tip's.
        assert!(!stderr.contains("Usage: "), "{line}: {stderr}");
    }
    let (_, _, stderr) = typed(folder.path(), "mpienv mpirun --map-by node -n 2 ./train");
    let advice = "\n  tip: put `mpienv exec --` before the program, as in `mpirun -n 2 mpienv exec -- ...`\n";
    assert!(stderr.contains(advice), "{stderr}");
    // A misspelled word is not a program, and no line is better than a wrong one.
    for (line, said) in [
        (
            "mpienv exprot | cat; exit ${PIPESTATUS[0]}",
            "  tip: a similar subcommand exists: 'export'\n",
        ),
        ("mpienv exec --bad | cat; exit ${PIPESTATUS[0]}", "unexpected argument '--bad' found"),
        ("mpienv help python", "unrecognized subcommand 'python'"),
        ("mpienv show -n 2", "unexpected argument '-n' found"),
    ] {
        let (code, stdout, stderr) = typed(folder.path(), line);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
        assert!(stderr.contains(said) && !stderr.contains("tip: type "), "{line}: {stderr}");
        assert!(!stderr.contains(" as a value"), "{line}: {stderr}");
    }
}

#[test]
fn an_option_or_a_value_of_another_launcher_is_answered_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let launch = |options: &str| format!("mpienv launch --nproc-per-node 2 {options} -- true");
    let tip = |options: &str, tip: &str| (launch(options), format!("\n  tip: {tip}"));
    for (line, said) in [
        tip("--rdzv-backend c10d", "omit it: the launcher, MASTER_ADDR or --master-addr names"),
        tip("--rdzv_id=7", "omit it: the launcher"),
        tip("--wait-for-master 2", "exec has this option"),
        tip("--standalone", "omit it: without other nodes"),
        tip("--hostfile FILE", "launch starts the workers of one node: start it on each host, as"),
        tip("-H a,b", "launch starts the workers of one node"),
        tip("-m train", "start Python yourself, as in `-- python -m MODULE`"),
        tip("--log-dri x", "a similar argument exists: '--log-dir'"),
        ("mpienv help nosuch".to_owned(), "\n  tip: `mpienv help` lists all\n".to_owned()),
        (
            "mpienv help lauch".to_owned(),
            "\n  tip: a similar subcommand exists: 'launch'\n".to_owned(),
        ),
        (
            "mpienv launch --ranks 2 -- true".to_owned(),
            "\n  tip: type mpienv launch --nproc-per-node 2 -- true".to_owned(),
        ),
    ] {
        let (code, _, stderr) = typed(folder.path(), &line);
        assert!(code == Some(2) && stderr.contains(&said), "{line}: {stderr}");
        assert_eq!(stderr.matches("tip: ").count(), 1, "{line}: {stderr}");
    }
    for shape in ["--ntasks-per-node 2", "--nproc_per_node=2", "-N 2 -n 4", "-n4", "--nnodes 2"] {
        let line = format!("mpienv simulate --launcher slurm {shape}");
        let said =
            "\n  tip: simulate takes the number of nodes and of ranks on each: --nodes N --ppn P\n";
        let (code, _, stderr) = typed(folder.path(), &line);
        assert!(code == Some(2) && stderr.contains(said), "{line}: {stderr}");
        assert_eq!(stderr.matches("tip: ").count(), 1, "{line}: {stderr}");
    }
    for (line, said) in [
        ("mpienv completions tcsh".to_owned(), "[possible values: bash, elvish, fish, "),
        ("mpienv exec --for nosuch -- true".to_owned(), "[possible values: torch, jax, "),
        (launch("--max-restarts x"), "'x' for '--max-restarts <N>': expected a whole number"),
        (launch("--nnodes 0"), "'0' for '--nnodes <N>': expected a whole number of 1 or more"),
        (launch("--nnodes 2 --node-rank ''"), "'--node-rank <R>': it is empty; expected a whole"),
        (launch("--nccl-ifname ''"), "'--nccl-ifname <VALUE>': expected NCCL's names of"),
        (launch("--port-range 9-1"), "the range runs backwards"),
    ] {
        let (code, _, stderr) = typed(folder.path(), &line);
        assert!(code == Some(2) && stderr.contains(said), "{line}: {stderr}");
        assert!(!stderr.contains("tip: ") && !stderr.contains("Usage: "), "{line}: {stderr}");
    }
    let (code, _, stderr) = typed(folder.path(), &launch("--nnodes 2"));
    let said = "--node-rank: not given, although --nnodes 2 is; give each node its number, 0 to 1";
    assert!(code == Some(1) && stderr.contains(said), "{stderr}");
    assert_eq!(
        typed(folder.path(), &launch("--nnodes=1")),
        (Some(0), String::new(), String::new())
    );
}

#[test]
fn a_program_that_cannot_be_started_is_answered_with_the_line_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name, text, mode| write(folder.path(), name, text, mode);
    script("train.py", "#!/usr/bin/env python\nprint(1)\n", 0o644);
    // sh would run the program `import` of ImageMagick.
    script("plain.py", "import os\n", 0o755);
    script("solver", "#!/bin/sh\n", 0o755);
    script("plain.sh", "#!/bin/sh\n", 0o755);
    fs::create_dir(folder.path().join("bin")).unwrap();
    script("bin/python", "#!/bin/sh\n", 0o755);
    let path = "PATH=$PWD/bin:$PATH";
    for (line, code, why, right) in [
        ("exec -- ./train.py --lr 1", 126, "not executable", "exec -- python ./train.py --lr 1"),
        (
            "exec -- train.py",
            127,
            "in this folder, which is not on PATH",
            "exec -- python train.py",
        ),
        (
            "exec --for jax -- solver x",
            127,
            "in this folder, which is not on PATH",
            "exec --for jax -- ./solver x",
        ),
        (
            "exec -- ./plain.py",
            126,
            "its first line names no interpreter",
            "exec -- python ./plain.py",
        ),
        ("exec -- 'python train.py'", 127, "it is one word with blanks", "exec -- python train.py"),
        ("exec -- 'cd /; ls'", 127, "no shell interprets it", "exec -- sh -c 'cd /; ls'"),
        (
            r#"exec -- "python3 train.py --lr 0.1 'a b'""#,
            127,
            "no shell interprets it",
            r"exec -- sh -c 'python3 train.py --lr 0.1 '\''a b'\'''",
        ),
        (
            "exec -- 'cat *.py' x",
            127,
            "no shell interprets it",
            "exec -- sh -c 'cat *.py \"$@\"' sh x",
        ),
        (
            "exec -- 'A=1 python train.py'",
            127,
            "omit the quotes",
            "exec -- env 'A=1' python train.py",
        ),
        ("exec -- plain.sh", 127, "in this folder", "exec -- ./plain.sh"),
        (
            "exec -- DATA=/data ./solver",
            127,
            "it is an assignment",
            "exec -- env 'DATA=/data' ./solver",
        ),
        ("exec -- A=1 ./solver", 127, "it is an assignment", "exec -- env 'A=1' ./solver"),
        (
            "launch --nproc-per-node 1 -- ./plain.py",
            126,
            "its first line names no interpreter",
            "launch --nproc-per-node 1 -- python ./plain.py",
        ),
        (
            "simulate --launcher slurm --rank 0 -- ./plain.py",
            126,
            "its first line names no interpreter",
            "simulate --launcher slurm --rank 0 -- python ./plain.py",
        ),
    ] {
        let (found, stdout, stderr) = typed(folder.path(), &format!("{path} mpienv {line}"));
        assert_eq!((found, stdout.as_str()), (Some(code), ""), "{line}: {stderr}");
        assert!(
            stderr.contains(why) && stderr.contains(&format!("; type `mpienv {right}`")),
            "{line}: {stderr}"
        );
    }
    let (_, _, stderr) = typed(folder.path(), "mpienv exec -- no-such-program");
    assert!(!stderr.contains("type `"), "{stderr}");
}

#[test]
fn a_host_that_has_only_python3_is_told_its_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("python3"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(folder.path().join("python3"), PermissionsExt::from_mode(0o755)).unwrap();
    let line = "mpienv=$(command -v mpienv); PATH=$PWD exec $mpienv exec -- python train.py";
    let (code, _, stderr) = typed(folder.path(), line);
    assert_eq!(code, Some(127));
    assert!(stderr.ends_with("; type `mpienv exec -- python3 train.py`\n"), "{stderr}");
}

#[test]
fn a_wrong_export_stops_the_shell_wherever_its_options_stand() {
    let folder = tempfile::tempdir().unwrap();
    for line in
        ["mpienv --launcher alone export", "mpienv export --bad", "mpienv --shell sh export"]
    {
        let (code, stdout, stderr) =
            typed(folder.path(), &format!("eval \"$({line})\" && echo goes on"));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{line}: {stderr}");
    }
    // Another command's words, and a program's.
    for line in
        ["mpienv show export", "mpienv exec --bad -- export", "mpienv launch -x -- mpienv export"]
    {
        let (code, stdout, stderr) = typed(folder.path(), line);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
    }
}

#[test]
fn a_batch_system_in_place_of_a_launcher_is_answered_with_the_launchers_that_it_uses() {
    for (typed, tip) in [
        (
            "pbs",
            "PBS starts the ranks with an MPI: choose open-mpi, hydra (MPICH, Intel MPI) or pals (Cray)",
        ),
        ("LSF", "LSF starts the ranks with jsrun or an MPI: choose jsm, open-mpi or hydra"),
        ("intel_mpi", "its name is hydra"),
        (
            "azureml",
            "AzureML starts the ranks with mpirun (`type: mpi`): choose open-mpi; or sets RANK and WORLD_SIZE (`type: \
             pytorch`): choose user",
        ),
        ("slrum", "a similar value exists: 'slurm'"),
    ] {
        let output = clean("mpienv").args(["simulate", "--launcher", typed]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("\n  tip: {tip}\n")), "{stderr}");
        assert_eq!(stderr.matches("tip: ").count(), 1, "{stderr}");
    }
}
