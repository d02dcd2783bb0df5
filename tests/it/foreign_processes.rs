//! A list of processes that is another namespace's, or empty: nobody is taken for a worker's, and no worker's stays.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::namespace::unshared;
use crate::support::root::is_root;
use crate::support::tool::clean;

#[test]
fn in_a_namespace_that_sees_the_outer_processes_a_job_takes_no_longer() {
    let script = "exec mpienv launch --nproc-per-node 1 --grace 60 -- sh -c 'sleep 600 & exit 3'";
    for options in [["--mount", "--fork"], ["--pid", "--fork"]] {
        let start = Instant::now();
        let Some(output) = unshared(&options, script) else { return };
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        // It took the whole grace, for the sake of strangers.
        assert!(start.elapsed() < SLACK, "{options:?}: {:?}", start.elapsed());
    }
}

#[test]
fn a_stranger_with_the_number_of_an_outer_process_is_not_killed() {
    if !is_root() {
        return;
    }
    // Outside: a process and its child. Inside: a worker with the number of the one, a stranger with that of the other.
    let mut outer = Command::new("sh");
    outer.args(["-c", "sleep 600 & echo $! && wait"]).stdout(Stdio::piped());
    let mut outer = outer.spawn().unwrap();
    let mut child = String::new();
    BufReader::new(outer.stdout.take().unwrap()).read_line(&mut child).unwrap();
    let (parent, child) = (outer.id(), child.trim().parse::<u32>().unwrap());
    let next = "/proc/sys/kernel/ns_last_pid";
    // The worker is the third from here: mpienv itself, its watchdog, the thread that copies lines.
    let script = format!(
        "echo {} >{next}; sleep 600 & stranger=$!; echo stranger $stranger; \
         for before in 2 3 4; do echo $(({parent} - before)) >{next}; \
         mpienv launch --nproc-per-node 1 --grace 0.3 -- sh -c 'echo worker $$; exit 3'; done; \
         kill -0 $stranger && echo lives",
        child - 1
    );
    let mut command = clean("unshare");
    let output = command.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script]).output().unwrap();
    outer.kill().unwrap();
    outer.wait().unwrap();
    let _ = Command::new("kill").arg(child.to_string()).status();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("stranger {child}\n")), "{said}");
    assert!(said.contains(&format!("worker {parent}\n")), "{said}");
    assert!(said.ends_with("lives\n"), "{said}: {output:?}");
}

/// A launch of two workers without a list of processes; each worker leaves a process behind that does not listen to
/// SIGTERM. Prints how many are left in the end, when there is a list again.
///
/// What a worker prints comes out of the launch only after its watchdog knows the worker: in the instant in which a
/// worker is started, nothing but a list of processes shows it to the surviving processes.
const WITHOUT_A_LIST: &str = r#"
cd "$(mktemp -d)" && mount -t tmpfs none /proc
: >lines
export ALL='until test "$(grep -c started lines)" = 2; do sleep 0.01; done'
mpienv launch --nproc-per-node 2 --grace 1 -- \
    sh -c 'trap "" TERM; sleep 60 & echo started; eval "$ALL"; '"$WORKER" >>lines &
launch=$!
eval "$ALL"
eval "$THEN"
wait $launch
umount /proc
count() {
    for process in /proc/[0-9]*; do tr '\000' ' ' <$process/cmdline; echo; done 2>/dev/null | grep -c '^sleep 60'
}
looks=0
while test "$(count)" != 0 -a $looks -lt 200; do sleep 0.05; looks=$((looks + 1)); done
count
"#;

#[test]
fn without_a_list_of_processes_a_workers_group_ends_with_the_job() {
    // A worker that has ended, one that fails, a launch that is killed.
    for (worker, then) in [("exit 0", ":"), ("exit 3", ":"), ("wait", "kill -9 $launch")] {
        let script = format!("WORKER='{worker}' THEN='{then}'; {WITHOUT_A_LIST}");
        let Some(output) = unshared(&["--mount", "--pid", "--fork", "--mount-proc"], &script) else { return };
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{worker}: {output:?}");
    }
}
