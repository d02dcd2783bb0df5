//! How long many ranks take to meet on one machine, and what it costs rank 0.
//!
//! `cargo bench --bench rendezvous -- --simulate-ranks 10000` serves rank 0 here and plays the other ranks in a
//! second process, since one process may not have open files for both. With `--times 100` they meet so often, and it
//! fails when rank 0 holds more open files or more memory at the end than after the first time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use mpienv::rendezvous::Rendezvous;
use mpienv::{Host, Port, Rank};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => serve("1000", "1"),
        ["--simulate-ranks", ranks] => serve(ranks, "1"),
        ["--simulate-ranks", ranks, "--times", times] => serve(ranks, times),
        ["--play", ranks, port, wants_table] => play(ranks, port, wants_table),
        _ => Err("usage: rendezvous [--simulate-ranks N [--times N]]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rendezvous: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(ranks: &str, times: &str) -> Result<(), Failure> {
    let (ranks, times): (u32, u32) = (ranks.parse()?, times.parse()?);
    for (name, wants_table) in [("gather", "0"), ("meet", "1")] {
        let (mut first, mut slowest, mut all) = (None, Duration::ZERO, Duration::ZERO);
        for _ in 0..times {
            let took = meet_once(ranks, wants_table)?;
            slowest = slowest.max(took);
            all += took;
            first.get_or_insert_with(Held::now);
        }
        let (first, last) = (first.ok_or("0 times is never")?, Held::now());
        println!(
            "{name}: {ranks} ranks met {times} times, in {:.2} s each and {:.2} s at most; rank 0's open files {} and then \
             {}, memory {} KiB and then {} KiB, at most {} KiB",
            all.as_secs_f64() / f64::from(times),
            slowest.as_secs_f64(),
            first.files,
            last.files,
            first.resident,
            last.resident,
            last.peak
        );
        if last.files > first.files || last.resident > first.resident + first.resident / 4 + 4096 {
            return Err("rank 0 holds more at the end than after the first time".into());
        }
    }
    Ok(())
}

/// How long it took until rank 0 knew all.
fn meet_once(ranks: u32, wants_table: &str) -> Result<Duration, Failure> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut others = Command::new(std::env::current_exe()?)
        .args(["--play", &ranks.to_string(), &port.to_string(), wants_table])
        .stdout(Stdio::null())
        .spawn()?;
    let port = Port::new(port).ok_or("port 0")?;
    let begun = Instant::now();
    let meeting = Rendezvous::new(Rank::new(0, ranks)?, Host::LOOPBACK, port).meet([0; 2])?;
    let took = begun.elapsed();
    if !others.wait()?.success() || meeting.members().len() != ranks as usize {
        return Err("the other ranks failed".into());
    }
    Ok(took)
}

/// Every rank but 0, one socket each, as the frames lay them down.
fn play(ranks: &str, port: &str, wants_table: &str) -> Result<(), Failure> {
    let (ranks, port, wants_table): (u32, u16, u8) = (ranks.parse()?, port.parse()?, wants_table.parse()?);
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut lines = Vec::new();
    for rank in 1..ranks {
        let mut line = connect();
        let mut hello = b"mpienv\r\n\0\x01\0\0\0\x01\0\0".to_vec();
        hello.extend(rank.to_be_bytes());
        hello.extend(ranks.to_be_bytes());
        hello.extend([wants_table, 0, 0, 0, 0, 2, 1, 2]);
        line.write_all(&hello)?;
        lines.push(line);
    }
    let (mut bytes, mut sink) = (0, Vec::new());
    for mut line in lines {
        sink.clear();
        bytes += line.read_to_end(&mut sink)?;
    }
    println!("  {bytes} bytes came to {} ranks", ranks - 1);
    Ok(())
}

/// What this process holds.
struct Held {
    files: usize,
    /// In KiB, as `peak`.
    resident: u64,
    peak: u64,
}

impl Held {
    /// 0 where the system does not tell.
    fn now() -> Held {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Held { files, resident: field("VmRSS:"), peak: field("VmHWM:") }
    }
}
