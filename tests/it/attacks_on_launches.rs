//! What an attacker can do to the launches of several nodes, which stay connected: each is refused
//! and named.

use std::fs;
use std::io::{Read, Write};
#[cfg(target_os = "linux")]
use std::net::Ipv4Addr;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mpienv::rendezvous::Rendezvous;
use mpienv::{Host, Port, Rank};
use tempfile::TempDir;

#[cfg(target_os = "linux")]
use crate::support::attacker::{Claim, flood, peak_during};
use crate::support::clock::SLACK;
use crate::support::port::free_port;
use crate::support::timeout::in_time;
use crate::support::tool::clean;
use crate::support::wire::{self, GREETING, HEAD, READY, WELCOME};

const SECRET: &str = "c01d1a5f3e6a2f0b9d8e7c6b5a49382716f5e4d3c2b1a0918273645546372819";
const OTHER_JOB: u8 = 6;

/// A file with the secret.
fn secret() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, SECRET).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

/// A free port for the launches; the one above it is the master's.
fn launches_port() -> u16 {
    let mut ports = [free_port(), free_port()];
    while ports[0] + 1 != ports[1] {
        ports = [ports[1], free_port()];
    }
    ports[0]
}

/// The launch on one of two nodes. It has the secret, and each node has one worker.
fn node(rank: u32, port: u16, secret: &TempDir, script: &str) -> Child {
    let mut command: Command = clean("mpienv");
    command.env("MPIENV_TOKEN_FILE", secret.path().join("secret"));
    launch(command, rank, port, script)
}

fn launch(mut command: Command, rank: u32, port: u16, script: &str) -> Child {
    command.args(["launch", "--node-rank", &rank.to_string()]);
    command.args([
        "--nnodes",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        &(port + 1).to_string(),
    ]);
    command.args([
        "--max-restarts",
        "1",
        "--node-timeout",
        "12",
        "--nproc-per-node",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn connect(port: u16) -> TcpStream {
    let begun = Instant::now();
    while begun.elapsed() < SLACK {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.set_read_timeout(Some(SLACK)).unwrap();
            return stream;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing listens");
}

/// The kind of the reply to a hello.
fn answer(stream: &mut TcpStream, hello: &[u8]) -> u8 {
    stream.write_all(hello).unwrap();
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).unwrap();
    head[16]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What rank 1 sends in a meeting of two ranks with the secret.
fn hello_of_a_rank() -> Vec<u8> {
    let (port, between) = (free_port(), free_port());
    let part = |index, port| {
        let rank = Rank::new(index, 2).unwrap();
        Rendezvous::new(rank, Host::LOOPBACK, Port::new(port).unwrap()).token(SECRET).timeout(SLACK)
    };
    let listener = TcpListener::bind(("127.0.0.1", between)).unwrap();
    let [zero, one] = [part(0, port), part(1, between)]
        .map(|part| thread::spawn(move || part.gather("").map(drop)));
    let (mut rank, mut master) = (listener.accept().unwrap().0, connect(port));
    let mut hello = [0; wire::CLAIM + 32 + 32];
    rank.write_all(&wire::hear_greeting(&mut master)).unwrap();
    rank.read_exact(&mut hello).unwrap();
    master.write_all(&hello).unwrap();
    let (mut from, mut to) = (rank.try_clone().unwrap(), master.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut from, &mut to).map(drop));
    std::io::copy(&mut master, &mut rank).unwrap();
    let _ = rank.shutdown(Shutdown::Both);
    for part in [zero, one] {
        part.join().unwrap().unwrap();
    }
    hello.to_vec()
}

#[test]
fn strangers_and_ranks_are_refused_at_the_launches_port_and_the_nodes_meet() {
    let (port, secret) = (launches_port(), secret());
    let script =
        "env | grep '^MPIENV_TOKEN' | sort; env | grep -c c01d1a5f; test $MPIENV_RESTART_COUNT = 1";
    let first = node(0, port, &secret, script);
    // A wrong secret, a rank that has the right one, and a recording of what a rank sent elsewhere.
    let guess = |token: &str| {
        let mut stream = connect(port);
        let greeting = wire::hear_greeting(&mut stream);
        let (hello, _) = wire::played(1, 2, false, token.as_bytes(), 0).hello(&greeting, b"");
        answer(&mut stream, &hello)
    };
    assert_eq!([guess(""), guess("guess"), guess(SECRET)], [OTHER_JOB; 3]);
    let mut replayed = connect(port);
    wire::hear_greeting(&mut replayed);
    assert_eq!(answer(&mut replayed, &hello_of_a_rank()), OTHER_JOB);
    // Their guesses do not start anything either.
    let second = node(1, port, &secret, script);
    let path = secret.path().join("secret");
    for (rank, child) in [first, second].into_iter().enumerate() {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        assert_eq!(status.code(), Some(0), "{}", text(&stderr));
        // In both attempts, the secret is in the same file. A worker may be stopped before it has
        // printed that.
        let expected =
            [format!("[{rank}] MPIENV_TOKEN_FILE={}", path.display()), format!("[{rank}] 0")];
        let said = text(&stdout);
        assert!(
            said.lines().all(|line| expected.iter().any(|expected| line == expected)),
            "{said}"
        );
        assert!(expected.iter().all(|expected| said.contains(expected)), "{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn blobs_that_never_end_take_little_of_a_launchs_memory_and_the_nodes_meet() {
    let (port, key) = (launches_port(), wire::key_of_launches(b""));
    let [first, second] = [0, 1].map(|rank| move || launch(clean("mpienv"), rank, port, "exit 0"));
    let first = first();
    drop(connect(port));
    let process = first.id();
    let say = |_, greeting: &[u8]| Claim::long(&key, 1, 2).hello(greeting).unfinished();
    let (ends, most) = peak_during(process, || {
        flood(Ipv4Addr::LOCALHOST, port, 300, &say, || {
            thread::sleep(Duration::from_secs(1));
            let second = second();
            [first, second].map(|node| node.wait_with_output().unwrap())
        })
    });
    assert!(ends.iter().all(|end| end.status.success()), "{ends:?}");
    assert!(most < 64_000, "{most} KiB");
}

#[test]
fn a_launch_is_refused_by_ranks() {
    let port = free_port();
    let part = Rendezvous::new(Rank::new(0, 2).unwrap(), Host::LOOPBACK, Port::new(port).unwrap())
        .token(SECRET);
    let zero = thread::spawn(move || {
        part.timeout(Duration::from_secs(8)).gather("").unwrap_err().to_string()
    });
    let mut stream = connect(port);
    let greeting = wire::hear_greeting(&mut stream);
    let played = wire::played(1, 2, false, SECRET.as_bytes(), 0);
    let claim = played.claim();
    let mut session =
        wire::Session::of_key(&wire::key_of_launches(SECRET.as_bytes()), &greeting, &claim);
    let (proof, tag) = (session.of_rank.tag(b""), session.of_rank.tag(b""));
    assert_eq!(answer(&mut stream, &[&claim[..], &proof, &tag].concat()), OTHER_JOB);
    let error = zero.join().unwrap();
    assert!(error.contains("with another job's token from 127.0.0.1"), "{error}");
}

#[test]
fn a_program_in_the_first_nodes_place_without_the_secret_starts_no_worker() {
    let (port, secret) = (launches_port(), secret());
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut second = node(1, port, &secret, "echo started");
    for _ in 0..3 {
        let mut stream = listener.accept().unwrap().0;
        // It knows the protocol, but only guesses the secret.
        let Ok(mut session) = wire::greet(&mut stream, b"guess") else { continue };
        let terms = br#"{"Ok":0}"#;
        let _ = stream.write_all(
            &[session.welcome(1000), session.reply(3, terms), session.reply(10, b"")].concat(),
        );
    }
    // It still waits for the first node.
    assert!(second.try_wait().unwrap().is_none());
    second.kill().unwrap();
    assert_eq!(text(&second.wait_with_output().unwrap().stdout), "");
}

/// Forwards one connection to a port and back. `change` may modify the bytes of a direction, by
/// their position there.
fn forward(
    listener: TcpListener,
    port: u16,
    change: impl Fn(bool, usize, &mut Vec<u8>) + Send + Sync + 'static,
) {
    let change = Arc::new(change);
    thread::spawn(move || {
        let rank = listener.accept().unwrap().0;
        let master = connect(port);
        let copy = |mut from: TcpStream, mut to: TcpStream, is_up: bool| {
            let change = Arc::clone(&change);
            thread::spawn(move || {
                let (mut at, mut buffer) = (0, [0; 4096]);
                from.set_read_timeout(None).unwrap();
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    let mut bytes = buffer[..length].to_vec();
                    change(is_up, at, &mut bytes);
                    at += length;
                    if to.write_all(&bytes).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            })
        };
        let up = copy(rank.try_clone().unwrap(), master.try_clone().unwrap(), true);
        let down = copy(master, rank, false);
        for copy in [up, down] {
            copy.join().unwrap();
        }
    });
}

/// The output and exit codes of both launches if `change` modifies what they exchange.
fn attacked(
    change: impl Fn(bool, usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> [(Option<i32>, String); 2] {
    let (port, between, secret) = (launches_port(), launches_port(), secret());
    forward(TcpListener::bind(("127.0.0.1", between)).unwrap(), port, change);
    let begun = Instant::now();
    let nodes =
        [node(0, port, &secret, "exec sleep 3000"), node(1, between, &secret, "exec sleep 3000")];
    let said = nodes.map(|node| node.wait_with_output().unwrap());
    assert!(begun.elapsed() < SLACK);
    said.map(|output| (output.status.code(), text(&output.stderr)))
}

const ALTERED: &str = "is gone: a message was changed, repeated or left out on the way";
/// Length of a message without a payload.
const SIGN: usize = HEAD + 32;

#[test]
fn an_order_that_is_changed_on_the_way_ends_the_job() {
    // In the first node's second heartbeat.
    let terms = r#"{"Ok":0}"#.len();
    let place = GREETING + WELCOME + READY + HEAD + terms + 32 + SIGN + 30;
    let said = attacked(move |is_up, at, bytes| {
        if !is_up && (at..at + bytes.len()).contains(&place) {
            bytes[place - at] ^= 4;
        }
    });
    assert_eq!([said[0].0, said[1].0], [Some(3); 2], "{said:?}");
    assert!(
        said[1].1.contains("node 0 (127.0.0.1)") && said[1].1.contains(ALTERED),
        "{}",
        said[1].1
    );
    assert!(said[0].1.contains("node 1 ("), "{}", said[0].1);
}

#[test]
fn an_event_that_an_attacker_adds_ends_the_job() {
    // After a heartbeat of the other node: an event that says it fails.
    let is_done = AtomicBool::new(false);
    let said = attacked(move |is_up, _, bytes| {
        let is_sign = bytes.len() == SIGN && bytes[..17] == wire::reply(10, 0, b"")[..17];
        if is_up && is_sign && !is_done.swap(true, Ordering::Relaxed) {
            let event = br#"{"failing":{"urgency":"failure"}}"#;
            bytes.extend(wire::reply(10, u32::try_from(event.len()).unwrap(), event));
            bytes.extend([0; 32]);
        }
    });
    assert_eq!([said[0].0, said[1].0], [Some(3); 2], "{said:?}");
    assert!(said[0].1.contains("node 1 (") && said[0].1.contains(ALTERED), "{}", said[0].1);
    assert!(!said[0].1.contains("attempt"), "{}", said[0].1);
}

#[test]
fn a_rank_of_an_earlier_attempt_is_rejected_in_the_next() {
    let mut command = clean("mpienv");
    command.env("MPIENV_TOKEN", SECRET).args([
        "launch",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--",
        "sh",
        "-c",
    ]);
    // In the second attempt, rank 1 is left over from the first.
    let script = "test $MPIENV_RESTART_COUNT = 1 || exit 5; test $RANK = 0 || export MPIENV_RESTART_COUNT=0; \
                  exec mpienv check --timeout $TIMEOUT";
    command.arg(script);
    let mut run = |timeout: u32| {
        let output = command.env("TIMEOUT", timeout.to_string()).output().unwrap();
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(!output.status.success(), "{said}");
        said
    };
    let rejected = "rank 1 belongs to attempt 0 of this job, and rank 0 to attempt 1";
    let said = in_time(&mut run, |said| said.contains(rejected));
    assert!(said.contains(rejected), "{said}");
}
