//! Ranks on one host that share memory, as processes; the module's own tests run them as threads.
//!
//! The program is an example of this package: `cargo test` builds it, `cargo test --test it` does
//! not.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use mpienv::collective::{Group, GroupBuilder};
use mpienv::{ClusterInfo, Host, Port};

use crate::support::port::free_port;
use crate::support::processes::until;
use crate::support::tool::missing;

const RANKS: u32 = 3;

pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(
        file.is_file(),
        "{} is not built: cargo build --features collective --examples",
        file.display()
    );
    file
}

/// Ranks of a job on this host.
struct Job(Vec<Child>);

impl Job {
    fn start(name: &str, words: &[&str]) -> Job {
        Job::start_after(":", name, words)
    }

    /// Starts every rank in a shell, after this command.
    fn start_after(prepare: &str, name: &str, words: &[&str]) -> Job {
        let port = free_port().to_string();
        let start = |rank: u32| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &format!("{prepare} && exec \"$@\""), "sh"]).arg(example(name));
            command.env_clear().args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
            let [rank, size] = [rank, RANKS].map(|number| number.to_string());
            command.env("RANK", &rank).env("WORLD_SIZE", &size).env("MASTER_PORT", &port);
            command.env("LOCAL_RANK", &rank).env("LOCAL_WORLD_SIZE", &size);
            command.stdin(Stdio::piped()).spawn().unwrap()
        };
        Job((0..RANKS).map(start).collect())
    }

    /// Waits until a rank has printed the line; returns the lines before it.
    fn wait_for(&mut self, rank: usize, line: &str) -> Vec<String> {
        let lines =
            BufReader::new(self.0[rank].stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        lines.take_while(|said| said != line).collect()
    }

    fn kill(&mut self, rank: usize) {
        self.0[rank].kill().unwrap();
    }

    fn end(self) -> Vec<Output> {
        self.0.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
    }
}

/// The files in the folder for shared memory.
pub(crate) fn shared_files() -> BTreeSet<PathBuf> {
    let files = fs::read_dir("/dev/shm").into_iter().flatten();
    // Files of other programs may come and go.
    files
        .map(|file| file.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("mpienv"))
        .collect()
}

/// How many processes on this machine have our memory open or mapped.
fn users_of_memory() -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let maps = processes.filter_map(|process| fs::read_to_string(process.join("maps")).ok());
    maps.filter(|maps| maps.contains("memfd:mpienv-collective")).count()
}

#[test]
fn no_shared_memory_remains_after_any_or_all_ranks_are_killed_at_any_time() {
    for turn in 0..50_u64 {
        // Sums of one round and of many rounds. Some ranks never meet, so the timeout is short.
        let numbers = if turn % 2 == 0 { "7850" } else { "500000" };
        let mut job =
            Job::start("collective_rank", &[numbers, if turn % 5 == 0 { "1" } else { "1200" }]);
        match turn % 5 {
            // At any moment while the ranks meet or share memory.
            0 => std::thread::sleep(Duration::from_micros(turn * 300)),
            _ => drop(job.wait_for(1, if turn % 2 == 0 { "sums" } else { "shared memory" })),
        }
        let all = turn % 3 == 0;
        for rank in if all { 0..3 } else { 2..3 } {
            job.kill(rank);
        }
        for (rank, output) in job.end().into_iter().enumerate().take(if all { 0 } else { 2 }) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "turn {turn}, rank {rank}: {said}");
            // If a rank is killed before all have met, the meeting names it, in different words.
            assert!(
                turn % 5 == 0 || said.starts_with("rank 2 on "),
                "turn {turn}, rank {rank}: {said}"
            );
        }
    }
    assert_eq!(shared_files(), BTreeSet::new());
}

#[test]
fn memory_that_ranks_share_has_no_name_and_goes_with_them() {
    let mut job = Job::start("collective_rank", &["7850", "20"]);
    let described = job.wait_for(0, "sums");
    assert_eq!(described[0], "shared memory");
    assert_eq!(shared_files(), BTreeSet::new());
    assert!(users_of_memory() >= RANKS as usize);
    for rank in 0..RANKS as usize {
        job.kill(rank);
    }
    job.end();
}

#[test]
fn every_rank_gets_the_nccl_id_of_rank_0() {
    let outputs = Job::start("nccl_id", &[]).end();
    let said: BTreeSet<String> = outputs
        .iter()
        .map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            text.split_once(": ").unwrap().1.to_owned()
        })
        .collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said.iter().all(|said| said.ends_with(", over shared memory\n")), "{said:?}");
}

#[test]
fn all_other_ranks_name_a_rank_that_aborts_although_it_stays() {
    for backend in ["shared-memory", "tcp"] {
        for group in ["world", "part"] {
            let mut job = Job::start("collective_abort", &[backend, group]);
            let last = job.0.split_off(2);
            for output in job.end() {
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(3), "{backend}, {group}: {said}");
                assert!(
                    said.starts_with("rank 2 on ")
                        && said
                            .ends_with(" is lost: it aborted with exit code 9: the loss is NaN\n"),
                    "{backend}, {group}: {said}"
                );
            }
            for last in Job(last).end() {
                assert!(last.status.success() && last.stderr.is_empty(), "{last:?}");
            }
        }
    }
}

#[test]
fn all_other_ranks_learn_that_a_rank_has_panicked() {
    for backend in ["shared-memory", "tcp"] {
        let outputs = Job::start("collective_halo", &[backend, "1200", "panic"]).end();
        for (output, code) in outputs.iter().zip([3, 101, 3]) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{backend}: {said}");
            let is_told =
                said.starts_with("rank 1 on ") && said.ends_with(" is lost: it panicked\n");
            assert!(is_told || code == 101, "{backend}: {said}");
        }
    }
}

/// Checks that all ranks have ended well, after a line that begins like this.
fn check_sums(job: Job, described: &str) {
    for output in job.end() {
        let [out, err] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success() && out.starts_with(described), "{out}{err}");
        assert!(out.ends_with("\nsummed\n") && err.is_empty(), "{out}{err}");
    }
}

#[test]
fn a_forked_child_can_neither_use_nor_end_the_group_of_its_parent() {
    for (backend, described) in [("shared-memory", "shared memory\n"), ("tcp", "TCP\n")] {
        check_sums(Job::start("collective_fork", &[backend]), described);
        // Encrypted messages are counted: one more would end the job.
        check_sums(
            Job::start_after("export MPIENV_TOKEN=0123456789abcdef", "collective_fork", &[backend]),
            described,
        );
    }
}

#[test]
fn a_limit_of_file_sizes_below_that_of_the_memory_is_a_reason_to_use_tcp() {
    // In blocks of 512 or 1024 bytes.
    let job = Job::start_after("ulimit -f 64", "collective_fork", &["shared-memory"]);
    check_sums(job, "TCP (rank 0 cannot share memory: the limit of file sizes (ulimit -f) is ");
}

#[test]
fn ranks_meet_at_an_address_that_rank_0_has_bound_and_published() {
    for (address, secret) in [("127.0.0.1:0", ""), ("[::]:0", ""), ("0.0.0.0:0", "a secret")] {
        let Ok(listener) = TcpListener::bind(address) else {
            missing(&format!("address like {address}"));
            continue;
        };
        let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let info = |rank: u32| {
            // No master: nothing but what rank 0 publishes leads there.
            let vars = [("RANK", rank.to_string()), ("WORLD_SIZE", "3".to_owned())].into_iter();
            let secret = Some(secret).filter(|secret| !secret.is_empty());
            let token = secret.map(|secret| ("MPIENV_TOKEN", secret.to_owned()));
            ClusterInfo::from_vars(vars.chain(token)).unwrap()
        };
        let sum = |builder: GroupBuilder<'_>, own: u32| {
            let mut group = builder.quiet(true).connect().unwrap();
            let mut values = [own, 1];
            group.all_reduce_sum(&mut values).unwrap();
            values
        };
        std::thread::scope(|scope| {
            let others = [1, 2].map(|rank| {
                scope.spawn(move || {
                    let info = info(rank);
                    sum(Group::builder(&info).meet_at(Host::LOOPBACK, port), rank)
                })
            });
            let info = info(0);
            assert_eq!(sum(Group::builder(&info).listener(listener), 0), [3, 3], "{address}");
            for other in others {
                assert_eq!(other.join().unwrap(), [3, 3], "{address}");
            }
        });
        // The socket goes with the builder, apart from copies in processes that other tests start.
        until("the port is free", || TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok());
    }
}

#[test]
fn where_the_launcher_knows_rank_0s_host_the_error_names_the_ways_to_ask() {
    let said = |vars: &[(&str, &str)]| {
        let mut rank = Command::new(example("collective_rank"));
        let rank = rank.env_clear().args(["1", "1", "tcp"]).envs(vars.iter().copied());
        String::from_utf8(rank.output().unwrap().stderr).unwrap()
    };
    let ways = "; or start the program with `mpienv exec --`, read its place with `mpienv::ask::read`, or connect the \
                ranks by MPI (feature `mpi`)\n";
    let hydra = said(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "9")]);
    assert!(hydra.contains(": MASTER_ADDR=HOST; or ") && hydra.ends_with(ways), "{hydra}");
    let by_hand = said(&[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert!(by_hand.ends_with(": MASTER_ADDR=HOST\n"), "{by_hand}");
}
