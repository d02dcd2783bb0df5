//! Strangers at the ports of ranks that are about to train over TCP.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::timeout::PATIENT;

/// One rank of two; `shell` runs before it.
fn rank(index: u32, port: u16, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command.env_clear().args([
        "-c",
        &format!("{shell} exec \"$0\" \"$@\""),
        env!("CARGO_BIN_EXE_mnist"),
    ]);
    command.args(["--backend", "tcp", "--epochs", "1", "--timeout", PATIENT]);
    command
        .env("RANK", index.to_string())
        .env("WORLD_SIZE", "2")
        .env("MPIENV_TOKEN", format!("job {port}"));
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The ports on which a process listens.
fn ports(process: &Child) -> Vec<u16> {
    let folder = format!("/proc/{}/fd", process.id());
    let sockets: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter_map(|target| {
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (words[1], words[3], words[9]);
        let here = state == "0A" && sockets.iter().any(|socket| socket == inode);
        here.then(|| u16::from_str_radix(address.split(':').nth(1).unwrap(), 16).unwrap())
    });
    listening.collect()
}

/// A process's peak memory, in KiB.
fn peak(process: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

fn ended(process: Child) -> (Option<i32>, String) {
    let output = process.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Two ranks train while strangers keep connections to every port of rank 0, which may open this
/// many files.
fn train_among_strangers(open_files: &str, idle: usize) -> (String, usize, Duration) {
    let port = free_port();
    let zero = rank(0, port, &format!("ulimit -n {open_files};")).spawn().unwrap();
    let begun = Instant::now();
    let ports = loop {
        let ports = ports(&zero);
        if ports.len() == 2 {
            break ports;
        }
        assert!(begun.elapsed() < SLACK, "{ports:?}");
        thread::sleep(Duration::from_millis(5));
    };
    let before = peak(&zero);
    let greeting = [&b"mpienv\r\n"[..], &[0; 200]].concat();
    let sorts: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0xff; 100_000],
        b"mpienv",
        b"mpienv\r\n",
        &greeting,
    ];
    let mut strangers = Vec::new();
    for port in ports {
        for bytes in (0..20).flat_map(|_| sorts).chain((0..idle).map(|_| &b""[..])) {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // The other end may have closed already, or may accept no data for now.
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(bytes);
            strangers.push(stream);
        }
    }
    let begun = Instant::now();
    let grown = peak(&zero) - before;
    let one = rank(1, port, "").spawn().unwrap();
    let (code, said) = ended(zero);
    let trained = begun.elapsed();
    assert_eq!(code, Some(0), "{said}");
    let (code, others) = ended(one);
    assert_eq!(code, Some(0), "{others}");
    assert!(grown < 8 * 1024, "{grown} KiB");
    (said, strangers.len(), trained)
}

#[test]
fn strangers_at_the_ports_of_ranks_are_counted_and_keep_no_rank_from_training() {
    let (said, strangers, trained) = train_among_strangers("4096", 500);
    let finding = "mnist: connections to rank 0 that were not from ranks of this job: ";
    let count =
        said.lines().find_map(|line| line.strip_prefix(finding)?.split(';').next()?.parse().ok());
    // All strangers connected before rank 1, at both ports. If a busy machine lets rank 1 come
    // again, its first connection counts too.
    assert!(count.is_some_and(|count: usize| count >= strangers), "{said}");
    assert!(trained < SLACK, "{trained:?}");
    eprintln!("{strangers} strangers counted, trained within {trained:?}");
}

#[test]
fn strangers_give_way_when_open_files_run_out() {
    let (said, ..) = train_among_strangers("64", 300);
    assert!(said.contains("not from ranks of this job: "), "{said}");
}
