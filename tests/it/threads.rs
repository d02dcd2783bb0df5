//! A rank's share of its host's cores, by default: OMP_NUM_THREADS and RAYON_NUM_THREADS.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use crate::support::slurm::Slurm;
use crate::support::tool::{clean, is_there};

/// Prints what the program gets, in one write: both variables, and the processors of its mask.
const SAY: &str = "printf '%s\\n' \"${OMP_NUM_THREADS-none} ${RAYON_NUM_THREADS-none} \
                   $(env -u OMP_NUM_THREADS nproc)\"";

/// What a program gets on a mask of this many processors.
fn given(threads: usize, cpus: usize) -> String {
    format!("{threads} {threads} {cpus}")
}

/// How many processors this test may use without its binding, and how many cores these are.
struct Host {
    cpus: usize,
    cores: usize,
}

impl Host {
    /// Asks the system, not mpienv. `None` if a program is missing.
    fn here() -> Option<Host> {
        if !is_there("taskset") {
            return None;
        }
        let mut all = clean("taskset");
        all.args(["-c", "0-1023", "sh", "-c", "nproc; taskset -cp $$"]);
        let output = String::from_utf8(all.output().unwrap().stdout).unwrap();
        let (cpus, list) = output.split_once('\n').unwrap();
        let list = list.trim().rsplit(' ').next().unwrap();
        let ranges = list.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().unwrap()..=last.parse().unwrap()
        });
        let siblings = |cpu: u32| {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(file).unwrap_or(format!("{cpu}"))
        };
        let cores: std::collections::BTreeSet<_> = ranges.flatten().map(siblings).collect();
        // The tests' own cgroup may have a quota, which another test compares.
        Some(Host { cpus: cpus.parse().unwrap(), cores: cores.len() })
    }

    fn share(&self, ranks: usize) -> usize {
        (self.cores / ranks).max(1)
    }
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A launcher with this line of words.
fn start(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = clean(words.next().unwrap());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(words);
    command
}

/// What the program gets after this line of words, in any order.
fn said(line: &str) -> Vec<String> {
    lines(&start(line).args(["sh", "-c", SAY]).output().unwrap())
}

#[test]
fn ranks_of_mpirun_and_hydra_divide_the_cores_of_their_node() {
    let Some(host) = Host::here() else { return };
    for (launcher, ranks) in [
        ("mpirun -n 1", 1),
        ("mpirun --oversubscribe -n 2", 2),
        ("mpirun --oversubscribe -n 4", 4),
        ("mpiexec.hydra -n 1", 1),
        ("mpiexec.hydra -n 2", 2),
        ("mpiexec.hydra -n 4", 4),
    ] {
        if !is_there(launcher.split(' ').next().unwrap()) {
            continue;
        }
        let found = said(&format!("{launcher} mpienv exec --"));
        assert_eq!(found, vec![given(host.share(ranks), host.cpus); ranks], "{launcher}");
    }
}

#[test]
fn workers_of_launch_divide_the_cores_of_their_node() {
    let Some(host) = Host::here() else { return };
    for ranks in [1, 2, 3] {
        let found = said(&format!("mpienv launch --nproc-per-node {ranks} --"));
        let worker = |rank| format!("[{rank}] {}", given(host.share(ranks), host.cpus));
        assert_eq!(found, (0..ranks).map(worker).collect::<Vec<_>>());
    }
    // Restarted workers get the same.
    let restarted = start("mpienv launch --max-restarts 1 --nproc-per-node 2 --")
        .args(["sh", "-c", &format!("test $MPIENV_RESTART_COUNT = 1 || exit 1; {SAY}")])
        .output()
        .unwrap();
    let last: Vec<_> = lines(&restarted);
    assert_eq!(last, [0, 1].map(|rank| format!("[{rank}] {}", given(host.share(2), host.cpus))));
}

#[test]
fn a_rank_that_is_bound_gets_no_more_than_its_cores() {
    let Some(host) = Host::here() else { return };
    if host.cores < 2 || !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    // The rank's own binding: the share would be every core.
    for bound in [
        "mpirun -n 1 --bind-to core mpienv exec --",
        "mpirun -n 1 mpienv exec --keep-binding --",
        "mpiexec.hydra -n 1 -bind-to core mpienv exec --",
        "mpiexec.hydra -n 1 taskset -c 0 mpienv exec --",
    ] {
        assert!(said(bound)[0].starts_with("1 1 "), "{bound}");
    }
    // The binding of all ranks: they divide it.
    let shared = "taskset -c 0-1 mpiexec.hydra -n 2 mpienv exec --";
    assert_eq!(said(shared), vec![given(1, 2); 2]);
    let kept = "taskset -c 0 mpienv launch --keep-binding --nproc-per-node 1 --";
    assert_eq!(said(kept), ["[0] 1 1 1"]);
    // launch widens the binding.
    let widened = "taskset -c 0 mpienv launch --nproc-per-node 1 --";
    assert_eq!(said(widened), [format!("[0] {}", given(host.share(1), host.cpus))]);
}

#[test]
fn tasks_of_a_real_srun_divide_the_cores_of_their_node() {
    let (Some(host), Some(slurm)) = (Host::here(), Slurm::up()) else { return };
    for tasks in [1, 2] {
        let count = tasks.to_string();
        let words = ["srun", "-n", &count, "mpienv", "exec", "--", "sh", "-c", SAY];
        let found = lines(&slurm.command(&words).output().unwrap());
        assert_eq!(found.len(), tasks);
        for line in &found {
            let numbers: Vec<usize> =
                line.split(' ').map(|number| number.parse().unwrap()).collect();
            // Slurm may have bound the task.
            let expected = host.share(tasks).min(numbers[2]);
            assert_eq!(numbers[..2], [expected, expected], "{line}");
        }
    }
}

#[test]
fn each_variable_that_the_user_set_stays_and_an_option_replaces_it() {
    let Some(host) = Host::here() else { return };
    let share = host.share(2);
    let launch = |options: &str, vars: &[(&str, &str)]| {
        let line = format!("mpienv launch {options}--nproc-per-node 2 --");
        let mut command = start(&line);
        let output = command.args(["sh", "-c", SAY]).envs(vars.iter().copied()).output().unwrap();
        let line = lines(&output).swap_remove(1);
        line.rsplit_once(' ').unwrap().0.to_owned()
    };
    let omp = ("OMP_NUM_THREADS", "7");
    assert_eq!(launch("", &[omp]), format!("[1] 7 {share}"));
    assert_eq!(launch("", &[("RAYON_NUM_THREADS", "7")]), format!("[1] {share} 7"));
    assert_eq!(launch("--threads share ", &[omp]), format!("[1] {share} {share}"));
    assert_eq!(launch("--threads 3 ", &[omp]), "[1] 3 3");
    assert_eq!(launch("--threads keep ", &[]), "[1] none none");
    assert_eq!(launch("", &[("MPIENV_THREADS", "keep")]), "[1] none none");
    assert_eq!(launch("", &[("MPIENV_THREADS", "3"), omp]), "[1] 3 3");
    assert_eq!(launch("--threads 4 ", &[("MPIENV_THREADS", "3")]), "[1] 4 4");
}

#[test]
fn an_inner_mpienv_divides_what_an_outer_one_has_set() {
    let Some(host) = Host::here() else { return };
    if !is_there("mpirun") {
        return;
    }
    let workers = [0, 1].map(|rank| format!("[{rank}] {}", given(host.share(2), host.cpus)));
    let launch = "mpienv launch --nproc-per-node 2 --";
    assert_eq!(said(&format!("mpirun -n 1 mpienv exec -- {launch}")), workers);
    // The user's own number passes through both.
    let found = said(&format!("mpirun -n 1 mpienv exec --threads 5 -- {launch}"));
    assert_eq!(found, [0, 1].map(|rank| format!("[{rank}] 5 5 {}", host.cpus)));
    let twice = "mpirun --oversubscribe -n 2 mpienv exec -- mpienv exec --";
    assert_eq!(said(twice), vec![given(host.share(2), host.cpus); 2]);
    // One that keeps the binding keeps it for the inner one too.
    let kept = "mpirun -n 1 mpienv exec --keep-binding -- mpienv exec --";
    assert!(said(kept)[0].starts_with("1 1 "), "{kept}");
}

#[test]
fn nothing_is_set_where_nothing_is_shared_or_the_program_divides_the_cores_itself() {
    let none = |line: &str| {
        let mut command = start(line);
        let output = command.args(["env"]).output().unwrap();
        for line in lines(&output) {
            assert!(!line.contains("OMP_NUM_THREADS=") && !line.contains("RAYON"), "{line}");
        }
    };
    none("mpienv exec --");
    none("mpienv exec --per-node --");
    none("mpienv simulate --launcher skypilot --nodes 2 --rank 0 -- mpienv exec --template --");
    none("mpienv simulate --launcher skypilot --nodes 2 --rank 0 -- mpienv exec --per-node --");
    none("mpienv exec --allow-launcher -- mpienv simulate --launcher slurm --rank 0 --");
    // A launcher that does not provide the local size.
    none("env RANK=0 WORLD_SIZE=2 MASTER_ADDR=a mpienv exec --");
    // What an outer mpienv set is not for torchrun's workers.
    none("mpienv exec --threads share -- mpienv exec --per-node --");
    let set = said("mpienv exec --threads 3 --");
    assert!(set[0].starts_with("3 3 "), "{set:?}");
}

#[test]
fn export_sets_the_share_only_on_request_and_for_the_mask_of_its_shell() {
    let exported = |line: &str| {
        let output = start(line).output().unwrap();
        let vars: BTreeMap<String, Option<String>> =
            serde_json::from_slice(&output.stdout).unwrap();
        ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"].map(|name| vars.get(name).cloned().flatten())
    };
    let one = [Some("1".to_owned()), Some("1".to_owned())];
    assert_eq!(exported("mpienv export --shell json"), [None, None]);
    assert_eq!(exported("env MPIENV_THREADS=share mpienv export --shell json"), [None, None]);
    if is_there("taskset") {
        let bound = "taskset -c 0 mpienv export --threads share --shell json";
        assert_eq!(exported(bound), one);
    }
    let nine = exported("mpienv export --threads 9 --shell json");
    assert_eq!(nine, [Some("9".to_owned()), Some("9".to_owned())]);
}

#[test]
fn a_number_that_is_none_and_a_share_that_is_not_known_are_errors() {
    let refused = |line: &str, code: i32| {
        let output = start(line).args(["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
        String::from_utf8(output.stderr).unwrap()
    };
    let what = "expected a whole number from 1 to 65536, share or keep";
    for command in ["exec", "launch --nproc-per-node 1"] {
        for bad in ["0", "-1", "all", "1.5"] {
            let text = refused(&format!("mpienv {command} --threads={bad} --"), 2);
            assert!(text.contains(what), "{text}");
        }
        let text = refused(&format!("env MPIENV_THREADS=0 mpienv {command} --"), 1);
        let expected = format!("MPIENV_THREADS=\"0\": {what}; correct or unset MPIENV_THREADS");
        assert!(text.contains(&expected), "{text}");
    }
    let unknown = "env RANK=0 WORLD_SIZE=2 MASTER_ADDR=a mpienv exec --threads share --";
    let text = refused(unknown, 1);
    assert!(text.contains("does not provide the number of ranks on this node"), "{text}");
    assert!(text.contains("give a number, as in --threads 4, or keep"), "{text}");
    let text = refused("mpienv exec --per-node --threads 3 --", 2);
    assert!(text.contains("cannot be used with"), "{text}");
}

#[test]
fn far_more_threads_than_cores_are_a_warning() {
    let Some(host) = Host::here() else { return };
    let many = (host.cores + 1).to_string();
    let warns = |line: &str, vars: &[(&str, &str)]| {
        let output = start(line).args(["true"]).envs(vars.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        text.contains("[too-many-threads]").then_some(text)
    };
    let omp = [("OMP_NUM_THREADS", many.as_str())];
    let text = warns("mpienv launch --nproc-per-node 2 --", &omp).unwrap();
    let expected = format!(
        "warning [too-many-threads]: OMP_NUM_THREADS is {many}: the 2 ranks of this node start {} \
         threads on {} cores",
        2 * (host.cores + 1),
        host.cores
    );
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains("; or pass --threads share"), "{text}");
    let by_option = format!("mpienv launch --threads {many} --nproc-per-node 2 --");
    assert!(warns(&by_option, &[]).unwrap().contains(&format!(": --threads is {many}: ")));
    // Twice as many as there are cores may be meant.
    let half = host.cores.to_string();
    let half = [("OMP_NUM_THREADS", half.as_str())];
    assert_eq!(warns("mpienv launch --nproc-per-node 2 --", &half), None);
    assert_eq!(warns("mpienv launch --threads share --nproc-per-node 2 --", &omp), None);
    assert_eq!(warns("mpienv launch -q --nproc-per-node 2 --", &omp), None);
    let rank = "env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1";
    assert!(warns(&format!("{rank} mpienv exec --"), &omp).is_some());
    let second = rank.replace("RANK=0", "RANK=1");
    assert_eq!(warns(&format!("{second} mpienv exec --"), &omp), None);
    for command in ["show --json", "doctor --json"] {
        let output = start(&format!("{rank} mpienv {command}")).envs(omp).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let codes = shown["findings"].as_array().unwrap().iter().map(|finding| &finding["code"]);
        assert_eq!(codes.filter(|code| **code == "too-many-threads").count(), 1, "{command}");
    }
}

#[test]
fn show_and_doctor_say_the_share_and_where_it_comes_from() {
    let Some(host) = Host::here() else { return };
    let rank = "env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1";
    let row = |line: &str| {
        let output = start(line).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let row = text.lines().find_map(|line| line.strip_prefix("threads ")).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let cores = if host.cores == 1 { "core" } else { "cores" };
    let share = format!("{} of {} {cores}, 2 ranks on this node", host.share(2), host.cores);
    for command in ["show", "doctor --timeout 0"] {
        assert!(row(&format!("{rank} mpienv {command}")).starts_with(&share), "{command}");
        let set = row(&format!("{rank} OMP_NUM_THREADS=9 mpienv {command}"));
        assert!(set.starts_with(&format!("9 OMP_NUM_THREADS; the share is {share}")), "{set}");
        let fixed = row(&format!("{rank} MPIENV_THREADS=9 mpienv {command}"));
        assert_eq!(fixed, "9 MPIENV_THREADS");
        let kept = row(&format!("{rank} MPIENV_THREADS=keep mpienv {command}"));
        assert_eq!(kept, "- MPIENV_THREADS=keep");
        assert_eq!(row(&format!("mpienv {command}")), "- set only under a launcher");
        let unknown =
            row(&format!("env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 mpienv {command}"));
        assert_eq!(unknown, "- the launcher does not provide the number of ranks on this node");
    }
    for command in ["show --json", "doctor --json"] {
        let output = start(&format!("{rank} mpienv {command}")).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let info = if command == "show --json" { &shown } else { &shown["info"] };
        assert_eq!(info["local_world_size"], 2);
        let threads = &shown["threads"];
        assert_eq!(threads["number"], host.share(2), "{threads}");
        assert_eq!((&threads["cores"], &threads["ranks"]), (&host.cores.into(), &2.into()));
        assert!(!threads["cpus"].as_array().unwrap().is_empty());
    }
    // All ranks of a simulated job are on this host.
    let simulated = "mpienv simulate --launcher slurm --nodes 2 --ppn 2 --rank 3 -- mpienv show";
    assert!(row(simulated).contains(", 4 ranks on this node"));
}
