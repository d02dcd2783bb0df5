//! Whatever the launch on another node sends, valid or not: the workers are stopped, and the error
//! says why.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{MAGIC, new_port, signed_replies};
use crate::support::clock::SLACK;
use crate::support::mutation::fuzz;
use crate::support::wire;
use mpienv::{ClusterInfo, Launch, LaunchError, Port};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

const TOKEN: &[u8] = b"job 1";
/// The blob of the simulated launch.
const BLOB: &[u8] =
    br#"{"base":2,"workers":1,"max_restarts":1,"node_timeout":30000,"host":"node one"}"#;

/// The launch on one of two nodes, whose worker runs until it is stopped.
fn launch(node: &str, port: Port) -> Result<(), LaunchError> {
    let port = (port.get() + 1).to_string();
    let vars =
        [("RANK", node), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    let master = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port), ("MPIENV_TOKEN", "job 1")];
    let info = ClusterInfo::from_vars(vars.into_iter().chain(master))?;
    Launch::new(&info, 1)?.max_restarts(1).run(|_| {
        let mut command = Command::new("sleep");
        command.arg("3000");
        command
    })
}

/// What the first launch answers if all fit together.
const OK: &str = r#"{"Ok":0}"#;
/// A failure of a worker with two lines of stderr, and another one.
const OF_WORKER: &str = r#"{"node":1,"host":"node1","after":1234,"no_restart":null,"cause":{"worker":{"rank":1,"status":9,"stderr":["a\u001b[2J",""]}}}"#;
const OTHER: &str = r#"{"node":1,"host":"node1","after":1234,"no_restart":{"code":2},"cause":{"other":{"text":"cannot start"}}}"#;
const ENDINGS: &str = r#"[{"rank":1,"how":"asked"},{"rank":1,"how":"killed"},{"rank":1,"how":{"exited":3}},{"rank":1,"how":{"signal":11}}]"#;

fn messages(all: &[&str]) -> Vec<u8> {
    let reply = |text: &&str| wire::reply(10, u32::try_from(text.len()).unwrap(), text.as_bytes());
    all.iter().flat_map(reply).collect()
}

/// Each input, once without and once with valid tags.
fn marked(seeds: &[Vec<u8>]) -> Vec<Vec<u8>> {
    seeds.iter().flat_map(|seed| [0, 1].map(|mark| [&[mark], &seed[..]].concat())).collect()
}

const WORDS: &[&[u8]] =
    &[MAGIC, b"\xff\xff\xff\xff", b"4294967296", b"-1", b"\\u001b[2J", b"[[[[[[[[", b"null", b"\""];

/// Asserts that the launch reports one line, which cannot control a terminal.
fn is_plain(outcome: &Result<(), LaunchError>) -> TestCaseResult {
    let said = outcome.as_ref().err().map_or_else(String::new, ToString::to_string);
    prop_assert!(!said.contains(char::is_control), "{said}");
    Ok(())
}

/// Sends this and reads from the other launch until it closes; it reads everything, even if the
/// answer comes early.
fn say_all(stream: &mut TcpStream, said: &[u8]) {
    stream.set_read_timeout(Some(SLACK)).unwrap();
    // The other launch may have closed already.
    let _ = stream.write_all(said).and_then(|()| stream.shutdown(Shutdown::Write));
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Meets the first launch as the launch on the second node; returns the keys of the connection.
fn become_node_1(port: Port, blob: &[u8]) -> (TcpStream, wire::Session) {
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port.get())) {
            Ok(stream) => break stream,
            Err(_) => thread::yield_now(),
        }
    };
    let greeting = wire::hear_greeting(&mut stream);
    let claim = wire::played(1, 2, false, TOKEN, u32::try_from(blob.len()).unwrap()).claim();
    let mut session = wire::Session::of_key(&wire::key_of_launches(TOKEN), &greeting, &claim);
    let (proof, tag) = (session.of_rank.tag(b""), session.of_rank.tag(blob));
    stream.write_all(&[&claim[..], &proof, blob, &tag].concat()).unwrap();
    wire::answer_roll_call(&mut stream, &mut session);
    let mut head = [0; wire::HEAD];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes(head[17..].try_into().unwrap());
    stream.read_exact(&mut vec![0; length as usize + 32]).unwrap();
    (stream, session)
}

#[test]
fn any_event_of_another_node_ends_the_job_with_an_error_in_time() {
    let failing = r#"{"failing":{"urgency":"failure"}}"#;
    let failed = [OF_WORKER, OTHER]
        .map(|failure| format!(r#"{{"failed":{{"failure":{failure},"endings":{ENDINGS}}}}}"#));
    let stopped = format!(r#"{{"stopped":{{"endings":{ENDINGS},"has_signal":true}}}}"#);
    let done = format!(r#"{{"done":{{"endings":{ENDINGS}}}}}"#);
    let signal = r#""signal""#;
    let seeds = [
        messages(&[failing, &failed[0]]),
        messages(&[failing, "", &failed[1]]),
        messages(&[&stopped, signal]),
        messages(&[&done, signal]),
    ];
    let seeds: Vec<_> = seeds.iter().map(|seed| [BLOB, seed].concat()).collect();
    fuzz("events", &marked(&seeds), WORDS, |bytes| {
        let port = new_port();
        let first = thread::spawn(move || launch("0", port));
        let (mark, bytes) = bytes.split_at(bytes.len().min(1));
        let (blob, bytes) = bytes.split_at(bytes.len().min(BLOB.len()));
        let (mut stream, mut session) = become_node_1(port, blob);
        let said = signed_replies(&[mark, bytes].concat(), &mut session.of_rank);
        say_all(&mut stream, &said);
        let outcome = first.join().map_err(|_| TestCaseError::fail("the first node panicked"))?;
        // Its worker was stopped.
        prop_assert!(outcome.is_err());
        is_plain(&outcome)
    });
}

/// Answers each connection except the first in a way that makes the other launch exit.
fn turn_away(listener: &TcpListener, is_over: &AtomicBool) {
    while let Ok((mut stream, _)) = listener.accept() {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(mut session) = wire::greet_with(&mut stream, &wire::key_of_launches(TOKEN)) {
            let _ = stream.write_all(&session.reply(5, b"come again"));
        }
    }
}

#[test]
fn any_order_of_the_first_node_ends_the_workers_or_is_refused_in_time() {
    let begin = |terms: &str| {
        let welcome = [&1000u32.to_be_bytes()[..], &[7; 32]].concat();
        let reply = |kind, payload: &[u8]| {
            wire::reply(kind, u32::try_from(payload.len()).unwrap(), payload)
        };
        [reply(1, &welcome), reply(7, b""), reply(3, terms.as_bytes()), reply(10, b"")].concat()
    };
    let stop = r#"{"stop":{"again":0,"urgency":"failure"}}"#;
    let start =
        |pause: u32| format!(r#"{{"start":{{"again":1,"pause":{pause},"failure":{OF_WORKER}}}}}"#);
    let done = r#"{"finish":"done"}"#;
    let failed = format!(r#"{{"finish":{{"failed":{{"failure":{OTHER}}}}}}}"#);
    let lost = r#"{"finish":{"lost":{"node":2,"host":"node2","reason":"its mpienv closed the connection"}}}"#;
    let seeds = [
        [begin(OK), messages(&[stop, &start(1)])].concat(),
        [begin(r#"{"Ok":3}"#), messages(&["", stop, &start(u32::MAX), done])].concat(),
        [begin(OK), messages(&[&failed])].concat(),
        [begin(OK), messages(&[lost])].concat(),
        [begin(r#"{"Ok":4294967295}"#), messages(&[done])].concat(),
        begin(r#"{"Err":"node 0 \u001b[2J"}"#),
    ];
    let has_ended_well = AtomicBool::new(false);
    fuzz("orders", &marked(&seeds), WORDS, |bytes| {
        let port = new_port();
        let listener = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
        let is_signed = bytes.first().is_some_and(|mark| mark & 1 == 1);
        let (is_over, bytes) = (Arc::new(AtomicBool::new(false)), bytes.to_vec());
        let first = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                if let Ok(mut session) =
                    wire::greet_with(&mut stream, &wire::key_of_launches(TOKEN))
                {
                    say_all(&mut stream, &signed_replies(&bytes, &mut session.of_master));
                }
                drop(stream);
                turn_away(&listener, &is_over);
            }
        });
        let outcome = launch("1", port);
        is_over.store(true, Ordering::SeqCst);
        if outcome.is_ok() {
            // Only a valid order of the first node has an effect.
            prop_assert!(is_signed);
            has_ended_well.store(true, Ordering::SeqCst);
        }
        let _ = TcpStream::connect(("127.0.0.1", port.get()));
        first
            .join()
            .map_err(|_| TestCaseError::fail("the stand-in for the first node panicked"))?;
        is_plain(&outcome)
    });
    // The valid order was carried out.
    assert!(has_ended_well.into_inner());
}
