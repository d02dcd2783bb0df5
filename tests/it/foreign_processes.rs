//! A process list that belongs to another namespace, or is empty: no stranger is treated as a
//! worker's process, and no worker's process survives.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::namespace::unshared;
use crate::support::root::is_root;
use crate::support::tool::clean;

#[test]
fn in_a_namespace_that_sees_the_outer_processes_a_job_takes_no_longer() {
    let script =
        "exec mpienv launch --nproc-per-node 1 --grace 3000 -- sh -c 'sleep 3000 & exit 3'";
    for options in [["--mount", "--fork"], ["--pid", "--fork"]] {
        let start = Instant::now();
        let Some(output) = unshared(&options, script) else { return };
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        // Otherwise it waited for the whole grace period because of strangers.
        assert!(start.elapsed() < SLACK, "{options:?}: {:?}", start.elapsed());
    }
}

#[test]
fn a_stranger_with_the_number_of_an_outer_process_is_not_killed() {
    if !is_root() {
        return;
    }
    // Outside: a process and its child. Inside: a worker with the PID of the former, and a stranger
    // with the PID of the latter.
    let mut outer = Command::new("sh");
    outer.args(["-c", "sleep 3000 & echo $! && wait"]).stdout(Stdio::piped());
    let mut outer = outer.spawn().unwrap();
    let mut child = String::new();
    BufReader::new(outer.stdout.take().unwrap()).read_line(&mut child).unwrap();
    let (parent, child) = (outer.id(), child.trim().parse::<u32>().unwrap());
    let next = "/proc/sys/kernel/ns_last_pid";
    // The worker is one of the next processes: mpienv itself, its threads and its watchdog come
    // first.
    let script = format!(
        "echo {} >{next}; sleep 3000 & stranger=$!; echo stranger $stranger; \
         for before in 2 3 4 5 6 7 8 9; do echo $(({parent} - before)) >{next}; \
         mpienv launch --nproc-per-node 1 --grace 0.3 -- sh -c 'echo worker $$; exit 3'; done; \
         kill -0 $stranger && echo lives",
        child - 1
    );
    let mut command = clean("unshare");
    let output =
        command.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script]).output().unwrap();
    outer.kill().unwrap();
    outer.wait().unwrap();
    let _ = Command::new("kill").arg(child.to_string()).status();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("stranger {child}\n")), "{said}");
    assert!(said.contains(&format!("worker {parent}\n")), "{said}");
    assert!(said.ends_with("lives\n"), "{said}: {output:?}");
}

/// A launch of two workers without a process list. Each worker leaves behind a process that ignores
/// SIGTERM. Prints how many are left at the end, when there is a list again.
///
/// The launch prints a worker's output only after its watchdog knows the worker. At the moment when
/// a worker is started, only a process list shows it to the surviving processes.
const WITHOUT_A_LIST: &str = r#"
cd "$(mktemp -d)" && mount -t tmpfs none /proc
: >lines
export ALL='until test "$(grep -c started lines)" = 2; do sleep 0.01; done'
mpienv launch --nproc-per-node 2 --grace 1 -- \
    sh -c 'trap "" TERM; sleep 3000 & echo started; eval "$ALL"; '"$WORKER" >>lines &
launch=$!
eval "$ALL"
eval "$THEN"
wait $launch
umount /proc
count() {
    for process in /proc/[0-9]*; do tr '\000' ' ' <$process/cmdline; echo; done 2>/dev/null | grep -c '^sleep 3000'
}
looks=0
while test "$(count)" != 0 -a $looks -lt 24000; do sleep 0.05; looks=$((looks + 1)); done
count
"#;

#[test]
fn without_a_list_of_processes_a_workers_group_ends_with_the_job() {
    // A worker that has exited, one that fails, and a launch that is killed.
    for (worker, then) in [("exit 0", ":"), ("exit 3", ":"), ("wait", "kill -9 $launch")] {
        let script = format!("WORKER='{worker}' THEN='{then}'; {WITHOUT_A_LIST}");
        let Some(output) = unshared(&["--mount", "--pid", "--fork", "--mount-proc"], &script)
        else {
            return;
        };
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{worker}: {output:?}");
    }
}
