//! How long many ranks take to meet on one machine, and what it costs rank 0.
//!
//! `cargo bench --bench rendezvous -- --simulate-ranks 10000` serves rank 0 here and plays the other ranks in a
//! second process, since one process may not have open files for both.

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
        [] => serve(1000),
        ["--simulate-ranks", ranks] => ranks.parse().map_err(Failure::from).and_then(serve),
        ["--play", ranks, port, wants_table] => play(ranks, port, wants_table),
        _ => Err("usage: rendezvous [--simulate-ranks N]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rendezvous: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(ranks: u32) -> Result<(), Failure> {
    for (name, wants_table) in [("gather", "0"), ("meet", "1")] {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut others = Command::new(std::env::current_exe()?)
            .args(["--play", &ranks.to_string(), &port.to_string(), wants_table])
            .stdout(Stdio::inherit())
            .spawn()?;
        let port = Port::new(port).ok_or("port 0")?;
        let begun = Instant::now();
        let meeting = Rendezvous::new(Rank::new(0, ranks)?, Host::LOOPBACK, port).meet([0; 2])?;
        let served = begun.elapsed();
        let ended = others.wait()?;
        if !ended.success() {
            return Err("the other ranks failed".into());
        }
        let members = meeting.members().len();
        println!(
            "{name}: {members} ranks met in {:.2} s (all done after {:.2} s), {}",
            served.as_secs_f64(),
            begun.elapsed().as_secs_f64(),
            peak()
        );
    }
    Ok(())
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

fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    format!("rank 0's peak memory {}", line.unwrap_or(" unknown").trim())
}
