//! Many consecutive meetings and exports: their speed, and that nothing is left behind.
//!
//! `MPIENV_LOAD` multiplies the load, and the release build must then reach its rate. The default
//! load takes a second or two.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::copy::copy_for_all_users;
use crate::support::port::free_port;
use crate::support::tool::{clean, inherited, missing};
use mpienv::rendezvous::Rendezvous;
use mpienv::{Host, Port, Rank};

fn times(what: usize) -> usize {
    let factor =
        inherited("MPIENV_LOAD").map_or(1, |factor| factor.to_str().unwrap().parse().unwrap());
    what * factor
}

/// Open files, and resident memory in KiB.
fn held() -> (usize, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    (fs::read_dir("/proc/self/fd").unwrap().count(), resident)
}

#[test]
fn meetings_in_a_row_leave_no_file_open_and_no_memory_behind() {
    const RANKS: u32 = 100;
    let meet = || {
        let free = free_port();
        thread::scope(|scope| {
            let part = |index| {
                let rank = Rank::new(index, RANKS).unwrap();
                Rendezvous::new(rank, Host::LOOPBACK, Port::new(free).unwrap())
                    .timeout(Duration::from_secs(1200))
            };
            let start = |index| {
                scope.spawn(move || part(index).all_gather(vec![1; 1000]).unwrap().members().len())
            };
            let ranks: Vec<_> = (0..RANKS).map(start).collect();
            assert!(ranks.into_iter().all(|rank| rank.join().unwrap() == RANKS as usize));
        });
    };
    meet();
    let (files, resident) = held();
    let begun = Instant::now();
    let count = times(10);
    (0..count).for_each(|_| meet());
    let seconds = begun.elapsed().as_secs_f64();
    let (files_then, resident_then) = held();
    eprintln!(
        "{RANKS} ranks met {count} times in {seconds:.1} s; open files {files}, then {files_then}; memory {resident} KiB, \
         then {resident_then} KiB"
    );
    // The other test starts processes at the same time, which takes some open files.
    assert!(files_then <= files + 16, "{files} and then {files_then} open files");
    assert!(
        resident_then <= resident + resident / 2 + 8192,
        "{resident} KiB and then {resident_then} KiB"
    );
}

/// The processor time that this process's children have used, in seconds.
fn taken_by_children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name, in parentheses, may contain any characters; the third field follows it. Ticks are
    // hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    [13, 14].map(|field: usize| fields[field].parse::<f64>().unwrap()).iter().sum::<f64>() / 100.0
}

/// Processes that only fill the process table.
struct Crowd(Vec<Child>);

impl Crowd {
    fn of(size: usize) -> Crowd {
        Crowd((0..size).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// The command of the release build, which is what users run.
fn release() -> PathBuf {
    let path =
        Path::new(env!("CARGO_BIN_EXE_mpienv")).ancestors().nth(2).unwrap().join("release/mpienv");
    assert!(path.exists(), "{}: cargo build --release comes first", path.display());
    path
}

#[test]
fn a_thousand_exports_a_second_go_on_among_many_processes() {
    let is_load = inherited("MPIENV_LOAD").is_some();
    let program = if is_load { release() } else { env!("CARGO_BIN_EXE_mpienv").into() };
    let crowd = Crowd::of(times(100));
    let count = times(200);
    let left = Mutex::new(0..count);
    let (begun, taken) = (Instant::now(), taken_by_children());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while left.lock().unwrap().next().is_some() {
                    let mut command = clean(program.to_str().unwrap());
                    command
                        .arg("export")
                        .env("RANK", "3")
                        .env("WORLD_SIZE", "8")
                        .env("MASTER_ADDR", "10.0.0.4");
                    let output = command.output().unwrap();
                    assert!(
                        output.status.success() && output.stdout.starts_with(b"export RANK=3;\n"),
                        "{output:?}"
                    );
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let taken = taken_by_children() - taken;
    let rate = count as f64 / seconds;
    eprintln!(
        "{count} exports next to {} processes: {rate:.0} a second, {:.2} ms of a processor each",
        crowd.0.len(),
        1000.0 * taken / count as f64
    );
    assert!(!is_load || rate >= 1000.0, "only {rate:.0} exports a second");
}

#[test]
fn an_export_needs_no_process_or_thread_of_its_own() {
    // If a user has reached the process limit, no more processes can start; root has no such limit.
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root
        || !crate::support::tool::is_there("setpriv")
        || !crate::support::tool::is_there("prlimit")
    {
        return missing("root, setpriv and prlimit");
    }
    let mpienv = env!("CARGO_BIN_EXE_mpienv");
    let folder = tempfile::tempdir().unwrap();
    let copy = copy_for_all_users(mpienv, folder.path());
    let run = |command: &[&str]| {
        let mut all = clean("prlimit");
        all.args([
            "--nproc=1:1",
            "setpriv",
            "--reuid=65533",
            "--regid=65533",
            "--clear-groups",
            "sh",
            "-c",
        ]);
        all.arg(command[0])
            .args(&command[1..])
            .env("RANK", "3")
            .env("WORLD_SIZE", "8")
            .env("MASTER_ADDR", "a");
        all.stdin(Stdio::null()).output().unwrap()
    };
    let refused = run(&["/bin/true; echo started"]);
    assert!(
        !refused.stdout.ends_with(b"started\n") || !refused.stderr.is_empty(),
        "the limit holds: {refused:?}"
    );
    let output = run(&["exec \"$0\" export", copy.to_str().unwrap()]);
    assert!(
        output.status.success() && output.stdout.starts_with(b"export RANK=3;\n"),
        "{output:?}"
    );
}
