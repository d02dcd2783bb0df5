//! How long many ranks take to meet on one machine, and what it costs rank 0.
//!
//! `cargo bench --bench rendezvous -- --simulate-ranks 10000` serves rank 0 here and simulates the
//! other ranks in a second process, because the limit on open files may be too low for both in one
//! process. `--simulate-ranks 100000 --per-node 100` measures a two-level layout: the 100 ranks of
//! one node gather at its first rank (all nodes do so at the same time, each on its own machine),
//! then the first ranks of 1,000 nodes meet, each for its whole node. With `--times 100`, all ranks
//! meet 100 times. The benchmark fails if rank 0 holds more open files or more memory at the end
//! than after the first time.

#[path = "../support/wire.rs"]
#[expect(dead_code, reason = "rank 0 is the real one")]
mod wire;

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use mpienv::rendezvous::Rendezvous;
use mpienv::{Host, Port, Rank};
use socket2::{Domain, Socket, Type};

type Failure = Box<dyn std::error::Error>;

/// The size of each rank's blob, which says where the rank listens.
const BLOB: usize = 2;
/// The length of the tag behind each reply.
const TAG: usize = 32;
/// What `openssl rand -hex 32` prints.
const SECRET: &str = "c01d1a5f3e6a2f0b9d8e7c6b5a49382716f5e4d3c2b1a0918273645546372819";

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => plain("1000", "1"),
        ["--simulate-ranks", ranks] => plain(ranks, "1"),
        ["--simulate-ranks", ranks, "--times", times] => plain(ranks, times),
        ["--simulate-ranks", ranks, "--per-node", per_node] => with_leaders(ranks, per_node),
        ["--play", ranks, port, needs_table, blob, token] => {
            play([ranks, port, needs_table, blob], token)
        }
        _ => Err("usage: rendezvous [--simulate-ranks N [--per-node P | --times N]]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rendezvous: {error}");
            ExitCode::FAILURE
        }
    }
}

fn plain(ranks: &str, times: &str) -> Result<(), Failure> {
    let (ranks, times) = (ranks.parse()?, times.parse()?);
    for (with, token) in [("without a secret", ""), ("with a secret", SECRET)] {
        serve(&format!("gather {with}"), ranks, BLOB, false, times, token)?;
        serve(&format!("meet {with}"), ranks, BLOB, true, times, token)?;
    }
    Ok(())
}

/// One node's ranks gather, then the nodes' first ranks meet.
fn with_leaders(ranks: &str, per_node: &str) -> Result<(), Failure> {
    let (ranks, per_node): (u32, u32) = (ranks.parse()?, per_node.parse()?);
    let nodes = ranks.checked_div(per_node).filter(|nodes| nodes * per_node == ranks);
    let nodes = nodes.ok_or("--per-node does not divide the ranks into whole nodes")?;
    let blob_of_node = BLOB * usize::try_from(per_node)?;
    serve("gather of one node", per_node, BLOB, false, 1, SECRET)?;
    serve("gather of the nodes", nodes, blob_of_node, false, 1, SECRET)?;
    serve("meet of the nodes", nodes, blob_of_node, true, 1, SECRET)
}

fn serve(
    name: &str,
    ranks: u32,
    blob: usize,
    needs_table: bool,
    times: u32,
    token: &str,
) -> Result<(), Failure> {
    let (before, mut first, mut slowest, mut all) =
        (Held::now(), None, Duration::ZERO, Duration::ZERO);
    for _ in 0..times {
        let took = meet_once(ranks, blob, needs_table, token)?;
        slowest = slowest.max(took);
        all += took;
        first.get_or_insert_with(Held::now);
    }
    let (first, last) = (first.ok_or("0 times is never")?, Held::now());
    let processor = (last.processor - before.processor) / f64::from(times);
    println!(
        "{name}: {ranks} ranks met {times} times, in {:.3} s each and {:.3} s at most, with {processor:.2} s of \
         rank 0's processor; its open files {} and then \
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
    Ok(())
}

/// Returns how long it took until rank 0 knew all ranks.
fn meet_once(ranks: u32, blob: usize, needs_table: bool, token: &str) -> Result<Duration, Failure> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut others = Command::new(std::env::current_exe()?)
        .args([
            "--play",
            &ranks.to_string(),
            &port.to_string(),
            &needs_table.to_string(),
            &blob.to_string(),
            token,
        ])
        .stdout(Stdio::null())
        .spawn()?;
    let port = Port::new(port).ok_or("port 0")?;
    let begun = Instant::now();
    let zero = Rendezvous::new(Rank::new(0, ranks)?, Host::LOOPBACK, port);
    let zero =
        Some(token).filter(|token| !token.is_empty()).into_iter().fold(zero, Rendezvous::token);
    let meeting = zero.all_gather(vec![0; blob])?;
    let took = begun.elapsed();
    if !others.wait()?.success() || meeting.members().len() != ranks as usize {
        return Err("the other ranks failed".into());
    }
    Ok(took)
}

/// Simulates every rank except 0, with one socket each, byte by byte as the wire format specifies.
fn play([ranks, port, needs_table, blob]: [&str; 4], token: &str) -> Result<(), Failure> {
    let (ranks, port, needs_table): (u32, u16, bool) =
        (ranks.parse()?, port.parse()?, needs_table.parse()?);
    let blob = vec![1; blob.parse()?];
    let mut lines = Vec::new();
    for rank in 1..ranks {
        let line = loop {
            match connect(rank, port) {
                Ok(line) => break line,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error.into()),
            }
        };
        lines.push(line);
    }
    let mut sessions = Vec::new();
    for (rank, line) in (1..).zip(&mut lines) {
        let played =
            wire::played(rank, ranks, needs_table, token.as_bytes(), u32::try_from(blob.len())?);
        sessions.push(played.join(line, &blob));
    }
    lines
        .iter_mut()
        .zip(&mut sessions)
        .for_each(|(line, session)| wire::answer_roll_call(line, session));
    let (mut bytes, mut report) = (0, Vec::new());
    for mut line in lines {
        // A rank closes once it has the report: rank 0 waits for that.
        let mut head = [0; wire::HEAD];
        line.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[17], head[18], head[19], head[20]]);
        report.resize(usize::try_from(length)? + TAG, 0);
        line.read_exact(&mut report)?;
        bytes += head.len() + report.len();
    }
    println!("  {bytes} bytes came to {} ranks", ranks - 1);
    Ok(())
}

/// Connects from an address that only this meeting uses, and few of its ranks share. Otherwise the
/// benchmark would mainly measure the search for a free port: each closed connection keeps its port
/// for a minute.
fn connect(rank: u32, port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let [high, low] = port.to_be_bytes();
    let own = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, high, low, 1)) + rank / 1000);
    socket.bind(&SocketAddr::from((own, 0)).into())?;
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    Ok(socket.into())
}

/// The resources that this process holds.
struct Held {
    files: usize,
    /// In KiB, like `peak`.
    resident: u64,
    peak: u64,
    /// Processor time used, in seconds. Unlike elapsed time, it does not depend on other programs.
    processor: f64,
}

impl Held {
    /// 0 if the system does not provide it.
    fn now() -> Held {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        // User and system time, in hundredths of a second.
        let processor = (ticks(11) + ticks(12)) / 100.0;
        Held { files, resident: field("VmRSS:"), peak: field("VmHWM:"), processor }
    }
}
