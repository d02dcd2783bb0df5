//! Strangers at the master's port, and other programs in rank 0's place: what they cost, and what
//! the token keeps out.

mod memory;
mod rank_0;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::attacker;
use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::clean;
use crate::support::wire::{self, Played};

/// The limit on the growth of rank 0's peak memory in KiB, whatever connects to its port. Linux
/// counts pages for each core and adds them up in batches, so a peak is known to some hundred KiB.
const GROWTH: u64 = 3072;

/// A listener and its port.
fn listener() -> (TcpListener, u16) {
    let port = free_port();
    (TcpListener::bind(("127.0.0.1", port)).unwrap(), port)
}

/// A token for one job: with a shared token, jobs could meet at the port that all share, which is
/// the last one tried.
fn job(port: u16) -> String {
    format!("job {port}")
}

/// `mpienv check` as one rank of a job that has no launcher; `shell` runs before it.
fn rank_after(shell: &str, index: u32, size: u32, port: u16, token: &str, words: &[&str]) -> Child {
    let mut command: Command = clean("sh");
    command.args(["-c", &format!("{shell} exec mpienv check \"$@\""), "sh"]).args(words);
    if !words.contains(&"--timeout") {
        command.args(["--timeout", PATIENT]);
    }
    command.env("RANK", index.to_string()).env("WORLD_SIZE", size.to_string());
    if !token.is_empty() {
        command.env("MPIENV_TOKEN", token);
    }
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn rank(index: u32, size: u32, port: u16, token: &str, words: &[&str]) -> Child {
    rank_after("", index, size, port, token, words)
}

/// Exit code, stdout and stderr.
fn ended(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A process's peak memory, in KiB; none if it has exited.
fn peak(child: &Child) -> Option<u64> {
    attacker::peak(child.id())
}

fn stranger(port: u16, bytes: &[u8]) -> TcpStream {
    let begun = Instant::now();
    loop {
        if let Ok(stream) = stranger_at_once(port, bytes) {
            return stream;
        }
        assert!(begun.elapsed() < SLACK, "no process listens on {port}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn stranger_at_once(port: u16, bytes: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    // The other end may have closed already.
    let _ = stream.write_all(bytes);
    Ok(stream)
}

/// Waits until a rank listens; returns whether it did before it exited.
fn listens(rank: &mut Child, port: u16) -> bool {
    while stranger_at_once(port, b"").is_err() {
        if rank.try_wait().unwrap().is_some() {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A rank played by this program.
fn played(rank: u32, size: u32, token: &str, blob_length: u32) -> Played<'_> {
    wire::played(rank, size, false, token.as_bytes(), blob_length)
}

type Said<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Strangers of every kind, a hundred of each, and a thousand that send nothing.
fn strangers(port: u16) -> Vec<TcpStream> {
    let (token, other) = (job(port), job(port).to_uppercase());
    let sorts: [Said<'_>; 8] = [
        &|_| b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        &|_| b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        &|_| vec![0; 100_000],
        &|_| vec![0xff; 31],
        &|_| b"mpienv\r\n".to_vec(),
        &|greeting| played(1, 2, &token, u32::MAX).hello(greeting, b"").0,
        &|greeting| played(1, 2, &token, 1000).hello(greeting, b"").0,
        &|greeting| played(1, 2, &other, 1 << 20).hello(greeting, &[1; 64 * 1024]).0,
    ];
    let one = |said: Said<'_>| {
        let mut stream = stranger(port, b"");
        let said = said(&wire::hear_greeting(&mut stream));
        let _ = stream.write_all(&said);
        stream
    };
    let mut all: Vec<_> = (0..100).flat_map(|_| sorts.map(one)).collect();
    all.extend((0..1000).map(|_| stranger(port, b"")));
    all
}

#[test]
fn two_thousand_strangers_of_all_sorts_take_neither_time_nor_memory() {
    let port = free_port();
    let zero = rank(0, 2, port, &job(port), &["--json", "--timeout", PATIENT]);
    drop(stranger(port, b""));
    let before = peak(&zero).unwrap();
    let others = strangers(port);
    let mut dripping: Vec<_> = (0..20).map(|_| stranger(port, b"")).collect();
    let greetings: Vec<_> = dripping.iter_mut().map(wire::hear_greeting).collect();
    let meeting = AtomicBool::new(true);
    thread::scope(|scope| {
        // Meanwhile, twenty send a byte at a time.
        scope.spawn(|| {
            let token = job(port);
            let hello = |greeting| played(1, 2, &token, 1000).hello(greeting, b"").0;
            let hellos: Vec<_> = greetings.iter().map(|greeting| hello(greeting)).collect();
            for at in 0..hellos[0].len() {
                dripping
                    .iter_mut()
                    .zip(&hellos)
                    .for_each(|(to, hello)| drop(to.write_all(&hello[at..=at])));
                thread::sleep(Duration::from_millis(20));
                if !meeting.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        thread::sleep(Duration::from_millis(200));
        let grown = peak(&zero).unwrap() - before;
        assert!(grown < GROWTH, "{grown} KiB");
        let begun = Instant::now();
        assert_eq!(ended(rank(1, 2, port, &job(port), &[])).0, Some(0));
        let (code, stdout, stderr) = ended(zero);
        let waited = begun.elapsed();
        meeting.store(false, Ordering::Relaxed);
        assert_eq!(code, Some(0), "{stderr}");
        let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        // If a busy machine lets rank 1 come again, its first connection counts too.
        let count = map["strangers"].as_u64().unwrap() as usize;
        assert!(count >= 1 + others.len() + 20, "{count}");
        assert!(waited < SLACK, "{waited:?}");
        eprintln!("{count} strangers: {grown} KiB, the last rank was through after {waited:?}");
    });
}

/// Runs `during` while four threads connect and send noise as fast as they can.
fn flooded<T>(port: u16, during: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                        let _ = stream.write_all(b"\xff\xfe");
                    }
                }
            });
        }
        let done = during();
        over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn a_flood_does_not_move_the_deadline_and_is_counted() {
    let flood = |timeout: u32| {
        let port = free_port();
        let begun = Instant::now();
        let mut zero = rank(0, 3, port, &job(port), &["--timeout", &timeout.to_string()]);
        let before = if listens(&mut zero, port) { peak(&zero) } else { None };
        let (end, after) = flooded(port, || {
            thread::sleep(Duration::from_secs(timeout.into()) / 2);
            let after = peak(&zero);
            (ended(zero), after)
        });
        // It was there in the middle of the flood.
        let grown = before.zip(after).map(|(before, after)| after - before);
        (end, grown, begun.elapsed())
    };
    let ((code, stdout, stderr), grown, waited) = in_time(flood, |(_, grown, _)| grown.is_some());
    assert_eq!((code, stdout.as_str()), (Some(124), ""), "{stderr}");
    assert!(waited < SLACK, "{waited:?}");
    assert!(grown.is_some_and(|grown| grown < GROWTH), "{grown:?} KiB");
    assert!(stderr.contains("ranks 1-2 of 3 have not connected"), "{stderr}");
    assert!(
        stderr.contains(" connections that were not ranks of this job were rejected"),
        "{stderr}"
    );
}

#[test]
fn ranks_meet_in_a_flood() {
    let port = free_port();
    let zero = rank(0, 3, port, &job(port), &["--json", "--timeout", PATIENT]);
    drop(stranger(port, b""));
    let begun = Instant::now();
    let ends = flooded(port, || {
        thread::sleep(Duration::from_millis(300));
        [1, 2].map(|index| rank(index, 3, port, &job(port), &["--timeout", PATIENT])).map(ended)
    });
    assert!(ends.iter().all(|(code, ..)| *code == Some(0)), "{ends:?}");
    let (code, stdout, stderr) = ended(zero);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(map["strangers"].as_u64().unwrap() > 100, "{stdout}");
}

#[test]
fn idle_strangers_make_room_for_ranks_when_open_files_run_out() {
    let port = free_port();
    let zero =
        rank_after("ulimit -n 64;", 0, 9, port, &job(port), &["--json", "--timeout", PATIENT]);
    let idle: Vec<_> = (0..500).map(|_| stranger(port, b"")).collect();
    let others: Vec<_> =
        (1..9).map(|index| rank(index, 9, port, &job(port), &["--timeout", PATIENT])).collect();
    // For as long as the port accepts connections.
    let more: Vec<_> =
        (0..500).map_while(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    let (code, stdout, stderr) = ended(zero);
    assert_eq!(code, Some(0), "{stderr}");
    let map: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(map["strangers"].as_u64().unwrap() >= 500, "{stdout}");
    for other in others {
        assert_eq!(ended(other).0, Some(0));
    }
    drop((idle, more));
}

#[test]
fn strangers_that_wait_silently_are_counted_when_the_time_is_up() {
    let visited = |timeout: u32| {
        let port = free_port();
        let mut zero = rank(0, 2, port, &job(port), &["--timeout", &timeout.to_string()]);
        listens(&mut zero, port);
        let idle: Vec<_> =
            (0..30).map_while(|_| stranger_at_once(port, b"mpienv\r\n").ok()).collect();
        (ended(zero), idle.len())
    };
    let counted = "; 31 connections that were not ranks of this job were rejected";
    let ((code, _, stderr), _) = in_time(visited, |((_, _, stderr), _)| stderr.contains(counted));
    assert_eq!(code, Some(124));
    assert!(stderr.contains(counted), "{stderr}");
}

#[test]
fn a_second_job_on_the_port_gets_an_error_and_leaves_the_first_alone() {
    let port = free_port();
    let first = rank(0, 2, port, "one", &["--timeout", PATIENT]);
    drop(stranger(port, b""));
    let (code, _, stderr) = ended(rank(0, 2, port, "two", &["--timeout", PATIENT]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains(&format!("port {port} is in use on this host, where rank 0 must listen"))
            && stderr.contains("or another process that is also rank 0 holds it"),
        "{stderr}"
    );
    let (code, _, stderr) = ended(rank(1, 2, port, "two", &["--timeout", PATIENT]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(" rejected rank 1, because its token differs"), "{stderr}");
    assert_eq!(ended(rank(1, 2, port, "one", &[])).0, Some(0));
    let (code, stdout, _) = ended(first);
    assert_eq!(code, Some(0));
    let finding = "note [strangers]: 2 connections to the master's port were not ranks of this job";
    assert!(stdout.contains(finding), "{stdout}");
}

#[test]
fn jobs_without_a_token_are_not_distinguished() {
    let port = free_port();
    let first = rank(0, 2, port, "", &[]);
    assert_eq!(ended(rank(1, 2, port, "", &[])).0, Some(0));
    assert_eq!(ended(first).0, Some(0));
}

#[test]
fn a_stranger_that_has_the_token_counts_as_a_rank() {
    let port = free_port();
    let zero = rank(0, 2, port, "sesame", &["--json"]);
    let report = br#"{"host":"elsewhere","local_rank":null,"local_size":null,"master":""}"#;
    let mut stranger = stranger(port, b"");
    let length = u32::try_from(report.len()).unwrap();
    let mut session = played(1, 2, "sesame", length).join(&mut stranger, report);
    wire::answer_roll_call(&mut stranger, &mut session);
    let (code, stdout, stderr) = ended(zero);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("elsewhere"), "{stdout}");
    drop(stranger);
}

#[test]
fn a_rank_sends_nothing_to_a_program_that_is_not_mpienv() {
    let (listener, port) = listener();
    let one = rank(1, 2, port, "sesame", &["--timeout", "8"]);
    // Like a scheduler that waits for its workers, and reports every byte that it cannot read.
    let (mut stream, _) = listener.accept().unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"");
    let (code, _, stderr) = ended(one);
    assert_eq!(code, Some(124));
    assert!(stderr.contains("it took the connection and said nothing"), "{stderr}");
}

#[test]
fn the_token_is_never_sent_not_even_to_what_greets_as_rank_0() {
    let (listener, port) = listener();
    let one = rank(1, 2, port, "sesame", &["--timeout", "8"]);
    let mut said = vec![0; 150];
    let mut stream = listener.accept().unwrap().0;
    stream.write_all(&wire::greeting()).unwrap();
    stream.read_exact(&mut said).unwrap();
    assert!(said.starts_with(b"mpienv\r\n") && !said.windows(6).any(|window| window == b"sesame"));
    drop((listener, stream));
    assert_eq!(ended(one).0, Some(124));
}

#[test]
fn the_port_is_open_on_all_addresses_unless_the_master_is_a_loopback_address() {
    for (master, open) in [("127.0.0.1", false), ("192.0.2.7", true)] {
        let port = free_port();
        let mut command = clean("mpienv");
        command.args(["check", "--timeout", PATIENT]).env("RANK", "0").env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", master).env("MASTER_PORT", port.to_string());
        let mut zero = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        drop(stranger(port, b""));
        let is_open = TcpStream::connect(("127.0.0.2", port)).is_ok();
        zero.kill().unwrap();
        zero.wait().unwrap();
        assert_eq!(is_open, open, "{master}");
    }
}
