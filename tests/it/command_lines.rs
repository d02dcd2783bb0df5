//! `exec --template`: the command lines of servers and launchers, word for word, on the ranks of
//! simulated jobs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use mpienv::Target;

use crate::support::script::script;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, inherited};

/// The command lines in the guide, after `mpienv exec --template --`.
const LINES: &[&str] = &[
    "torchrun --nnodes {nnodes} --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint {master} train.py",
    "accelerate launch --multi_gpu --num_machines {nnodes} --machine_rank {node_rank} --num_processes {nnodes*8} \
     --main_process_ip {master_addr} --main_process_port {master_port} train.py",
    "deepspeed --no_ssh --hostfile hosts --node_rank {node_rank} --master_addr {master_addr} \
     --master_port {master_port} train.py",
    "vllm serve MODEL --tensor-parallel-size 8 --pipeline-parallel-size {nnodes} --nnodes {nnodes} \
     --node-rank {node_rank} --master-addr {master_addr} --master-port {master_port} {other_nodes}--headless",
    "vllm serve MODEL --data-parallel-size {nnodes*4} --data-parallel-size-local 4 \
     --data-parallel-start-rank {node_rank*4} --data-parallel-address {master_addr} \
     --data-parallel-rpc-port {master_port+1} {other_nodes}--headless",
    "python -m sglang.launch_server --model-path MODEL --tp-size {nnodes*8} --nnodes {nnodes} \
     --node-rank {node_rank} --dist-init-addr {master}",
    "ray start {first_node}--head {first_node}--port=6379 {other_nodes}--address={master_addr}:6379 --block",
    "wordcount -p {rank} -n {world_size} -h hosts.txt",
];

/// Launchers, nodes, and processes on each node.
type Jobs = [(&'static str, &'static str, &'static str); 3];

/// For programs that run once on each node.
const PER_NODE: Jobs = [("open-mpi", "3", "1"), ("slurm", "3", "1"), ("skypilot", "3", "1")];
/// For programs that run once for each rank.
const PER_RANK: Jobs = [("open-mpi", "2", "2"), ("slurm", "2", "2"), ("jsm", "2", "2")];

const EXPECTED: &str = include_str!("command_lines/expected.txt");

/// A folder with programs that only print their names and arguments.
fn stand_ins() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for line in LINES {
        let path = folder.path().join(line.split(' ').next().unwrap());
        script(&path, "#!/bin/sh\necho \"${0##*/}\" \"$@\"\n");
    }
    folder
}

/// `mpienv` as one rank of a simulated job, with the stand-in programs on PATH.
fn rank(folder: &Path, launcher: &str, nodes: &str, per_node: &str, rank: u32) -> Command {
    let mut command = clean("mpienv");
    let old = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, path)| path)
        .unwrap()
        .to_owned();
    let path =
        std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&old)))
            .unwrap();
    command.env("PATH", path);
    command.args(["simulate", "--launcher", launcher, "--nodes", nodes, "--ppn", per_node]);
    command.args(["--rank", &rank.to_string(), "--", "mpienv"]);
    command
}

fn printed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn every_command_line_of_the_guide_is_expanded_word_for_word() {
    let folder = stand_ins();
    let guide = include_str!("../../src/guide/programs.md");
    let mut table = String::new();
    for line in LINES {
        let in_guide = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = guide.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains(&format!("mpienv exec --template -- {in_guide}")),
            "the guide lacks {in_guide}"
        );
        for (launcher, nodes, per_node) in if line.contains("{rank}") { PER_RANK } else { PER_NODE }
        {
            let count: u32 = per_node.parse().unwrap();
            let last = nodes.parse::<u32>().unwrap() * count - 1;
            table += &format!("{launcher}, {nodes} x {per_node}\n");
            for index in [0, count, last] {
                let mut command = rank(folder.path(), launcher, nodes, per_node, index);
                command
                    .args(["exec", "--template", "--master-port", "29500", "--"])
                    .args(line.split(' '));
                table += &format!("  {index}: {}", printed(&command.output().unwrap()));
            }
        }
    }
    if table != EXPECTED && inherited("MPIENV_GENERATE").is_some() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/command_lines/expected.txt");
        return fs::write(path, table).unwrap();
    }
    assert_eq!(table, EXPECTED);
}

#[test]
fn the_guide_has_a_command_line_for_each_set() {
    let guide = include_str!("../../src/guide/programs.md");
    for set in Target::ALL.iter().filter(|&&set| set != Target::Torch) {
        let words = format!("mpienv exec --for {} ", set.name());
        assert!(guide.contains(&words), "the guide lacks {words}");
    }
}

#[test]
fn a_server_learns_its_own_address_by_a_variable_in_its_command() {
    let mut command = clean("mpienv");
    command.args([
        "exec",
        "--template",
        "--wait-for-master",
        "9",
        "--",
        "env",
        "VLLM_HOST_IP={own_addr}",
    ]);
    let output =
        command.args(["sh", "-c", "echo $VLLM_HOST_IP on $0", "{interface}"]).output().unwrap();
    assert_eq!(printed(&output), "127.0.0.1 on lo\n");
}

#[test]
fn a_word_that_is_wrong_is_found_before_the_master_is_waited_for() {
    let begun = std::time::Instant::now();
    let mut command = clean("mpienv");
    command.args([
        "exec",
        "--template",
        "--wait-for-master",
        "600",
        "--meet",
        "600",
        "--",
        "echo",
        "{nodes}",
    ]);
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "no-such-host.invalid");
    assert_eq!(command.output().unwrap().status.code(), Some(2));
    assert!(begun.elapsed() < crate::support::clock::SLACK);
}

#[test]
fn a_dry_run_prints_the_words_quoted_for_a_shell_and_starts_nothing() {
    let mut command = clean("mpienv");
    command.args([
        "exec",
        "--template",
        "--dry-run",
        "--meet",
        "60",
        "--",
        "no-such-program",
        "--rank={rank}",
    ]);
    command.args([
        "a b",
        "{first_node}--head",
        "{other_nodes}--headless",
        "{{\"a\": $(id)}}",
        "it's",
    ]);
    command
        .env("MPIENV_TOKEN", "sesame")
        .env("RANK", "0")
        .env("WORLD_SIZE", "1")
        .env("LOCAL_WORLD_SIZE", "1");
    let text = printed(&command.output().unwrap());
    let lines: Vec<_> = text.lines().collect();
    let expected =
        ["no-such-program", "--rank=0", "'a b'", "--head", "'{\"a\": $(id)}'", r"'it'\''s'"];
    assert_eq!(lines, expected);
}

#[test]
fn a_secret_is_not_a_placeholder() {
    for word in ["{token}", "{MPIENV_TOKEN}"] {
        let mut command = clean("mpienv");
        let output = command
            .args(["exec", "--template", "--dry-run", "--", "echo", word])
            .env("MPIENV_TOKEN", "sesame");
        let output = output.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("sesame"));
    }
}

#[test]
fn all_ranks_get_one_random_secret_in_a_variable_and_in_no_word() {
    let run = |more: &[&str], words: &[&str]| {
        let simulate = ["simulate", "--launcher", "open-mpi", "--ppn", "3", "--", "mpienv", "exec"];
        let mut command = clean("mpienv");
        command.args(simulate).arg("--template").args(more).arg("--").args(words);
        command.output().unwrap()
    };
    let meet = ["--meet", PATIENT];
    let say = r#"echo "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN"; tr '\0' ' ' <"/proc/$$/cmdline" >&2"#;
    let words = ["env", "RAY_AUTH_TOKEN={secret}", "RAY_AUTH_MODE=token", "sh", "-c", say];
    let output = run(&meet, &words);
    let text = printed(&output);
    let secrets: Vec<_> = text.lines().map(|line| line.rsplit_once(' ').unwrap().1).collect();
    let [first, ..] = secrets[..] else { panic!("{text}") };
    assert!(secrets == [first; 3] && first.len() == 64, "{text}");
    assert!(text.lines().all(|line| line.contains("token ")), "{text}");
    let read = String::from_utf8_lossy(&output.stderr);
    assert!(read.contains("RAY_AUTH_TOKEN") && !read.contains(first), "{read}");
    assert!(!printed(&run(&meet, &words)).contains(first));
    let shown = printed(&run(&[&meet[..], &["--dry-run"]].concat(), &words));
    assert_eq!(shown.matches("RAY_AUTH_TOKEN={secret}").count(), 3, "{shown}");
    for (more, words, text) in [
        (&[][..], &words[..], "{secret} is not known here: the ranks get it when they meet"),
        (&meet, &["echo", "{secret}"], "other users of the host can read the words of a command"),
    ] {
        let output = run(more, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(text), "{said}");
    }
}

#[test]
fn without_template_braces_are_braces() {
    let words = ["exec", "--", "echo", "{rank}", "{\"a\": {}}", "{{"];
    let output = clean("mpienv").args(words).output().unwrap();
    assert_eq!(printed(&output), "{rank} {\"a\": {}} {{\n");
}

#[test]
fn a_placeholder_that_is_unknown_or_has_no_value_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("started");
    let run = |word: &str, vars: &[(&str, &str)], verb: &[&str]| {
        let mut command = clean("mpienv");
        command
            .args(verb)
            .args(["--template", "--", "touch"])
            .arg(&file)
            .arg(word)
            .envs(vars.iter().copied());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let several = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "a")];
    for (word, vars, code, text) in [
        ("{nodes}", &[][..], 2, "unknown placeholder {nodes}; the names are rank, world_size, "),
        ("{", &[], 2, "a { is not closed"),
        ("{node_rank}", &several, 1, "{node_rank} is not known here: "),
    ] {
        let (found, stderr) = run(word, vars, &["exec"]);
        assert!(found == Some(code) && stderr.contains(text), "{found:?} {stderr}");
    }
    let (code, stderr) = run("{nodes}", &[], &["launch", "--nproc-per-node", "2"]);
    assert!(code == Some(2) && stderr.contains("unknown placeholder {nodes}"), "{code:?} {stderr}");
    assert!(!file.exists());
}

#[test]
fn each_worker_of_launch_gets_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = rank(folder.path(), "slurm", "2", "1", 1);
    let words = ["launch", "--nproc-per-node", "2", "--template", "--", "echo"];
    command.args(words).args([
        "{rank}/{world_size}",
        "{local_rank}",
        "{node_rank*nproc_per_node}",
        "{first_node}head",
    ]);
    let text = printed(&command.output().unwrap());
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[2] 2/4 0 2", "[3] 3/4 1 2"]);
}

#[test]
fn a_server_for_each_process_of_a_node_is_warned_of_once_on_each_node() {
    let folder = tempfile::tempdir().unwrap();
    let warns = |index: u32, verb: &[&str], words: &[&str]| {
        let per_node = if verb.contains(&"launch") { "1" } else { "2" };
        let mut command = rank(folder.path(), "slurm", "2", per_node, index);
        let output =
            command.args(verb).args(["--template", "--", "echo"]).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap().contains("warning [same-words-on-node]")
    };
    for words in [&["{node_rank}"][..], &["{node_rank*8}"], &["{other_nodes}--headless"]] {
        assert!(warns(2, &["exec"], words) && !warns(3, &["exec"], words), "{words:?}");
        assert!(!warns(2, &["exec", "-q"], words));
    }
    assert!(warns(1, &["launch", "--nproc-per-node", "2"], &["{node_rank}"]));
    for words in
        [&["{node_rank}", "{local_rank}"][..], &["{node_rank*8}", "{rank+1}"], &["{world_size}"]]
    {
        assert!(!warns(2, &["exec"], words), "{words:?}");
    }
}

#[test]
fn a_command_for_the_whole_node_has_the_nodes_values_and_no_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let run = |word: &str| {
        let mut command = rank(folder.path(), "open-mpi", "2", "1", 1);
        command.args(["exec", "--per-node", "--template", "--", "echo", word]).output().unwrap()
    };
    assert_eq!(printed(&run("{node_rank}/{nnodes}")), "1/2\n");
    let output = run("{rank}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains(
            "{rank} is not known here: the command is for the whole node; known are node_rank"
        ),
        "{stderr}"
    );
}
