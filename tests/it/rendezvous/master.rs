//! What a rank experiences if rank 0 is not there, or is gone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use mpienv::rendezvous::{ConnectFailure, Rendezvous, RendezvousError};
use mpienv::{ErrorKind, Port, Rank};
use socket2::{Domain, Socket, Type};

use super::{free_port, part, short};
use crate::support::wire;

#[test]
fn a_rank_without_rank_0_says_what_it_met() {
    let short = short();
    let failure = |host: &str, port: Port| {
        let rank = Rank::new(3, 8).unwrap();
        let error = Rendezvous::new(rank, host.parse().unwrap(), port)
            .timeout(short)
            .all_gather("")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.starts_with("rank 3 did not reach rank 0 at "), "{text}");
        match error {
            RendezvousError::NoMaster { failure, .. } => failure,
            other => panic!("{other}"),
        }
    };
    assert_eq!(failure("127.0.0.1", free_port()), ConnectFailure::Refused);
    assert!(matches!(failure("no-such-host.invalid", free_port()), ConnectFailure::Unresolved(_)));
    let port = free_port();
    let _silent = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    assert_eq!(failure("127.0.0.1", port), ConnectFailure::Silent);
    // Not the same port: a program that another test starts may hold it open for a moment.
    let port = free_port();
    let web = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = web.accept() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    assert!(
        matches!(failure("127.0.0.1", port), ConnectFailure::NotMpienv(said) if said.starts_with("it said \"HTTP"))
    );
    // A host that does not answer: once a listener's queue is full, the system drops new
    // connections.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let port = full.local_addr().unwrap().as_socket().unwrap().port();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_millis(300))
        })
        .collect();
    assert_eq!(failure("127.0.0.1", Port::new(port).unwrap()), ConnectFailure::TimedOut);
    drop((full, waiting));
}

#[test]
fn for_a_master_with_a_name_the_error_is_the_last_real_cause_and_not_what_the_deadline_cut_short() {
    for timeout in [50, 90, 130, 200, 210, 250, 300, 410, 500] {
        let fail = || {
            let (rank, port) = (Rank::new(1, 2).unwrap(), free_port());
            let rendezvous = Rendezvous::new(rank, "localhost".parse().unwrap(), port);
            let error =
                rendezvous.timeout(Duration::from_millis(timeout)).all_gather("").unwrap_err();
            let RendezvousError::NoMaster { failure, .. } = error else {
                panic!("{timeout} ms: {error}")
            };
            failure
        };
        // A busy machine may not have resolved the name by then.
        let is_slow = |failure: &ConnectFailure| matches!(failure, ConnectFailure::Unresolved(_));
        let failure =
            (0..50).map(|_| fail()).find(|failure| !is_slow(failure)).unwrap_or_else(fail);
        assert!(matches!(failure, ConnectFailure::Refused), "{timeout} ms: {failure:?}");
    }
}

#[test]
fn a_rank_0_of_an_earlier_protocol_believes_the_hello_and_its_answer_names_both() {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    let [protocol, ..] = wire::own_version();
    let text = "rank 1 (127.0.0.1) runs mpienv of now, rank 0 runs mpienv of then";
    let of_then = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = wire::greeting();
        greeting[8..10].copy_from_slice(&(protocol - 1).to_be_bytes());
        stream.write_all(&greeting).unwrap();
        let mut hello = [0; wire::CLAIM + 32];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(hello[8..10], protocol.to_be_bytes());
        // Between two versions, keys are made without an exchange.
        let (claim, proof) = hello.split_at(wire::CLAIM);
        let mut session = wire::Session::unexchanged(&wire::job_key(b"job 1"), &greeting, claim);
        assert_eq!(proof, session.of_rank.tag(b""));
        let welcome = session.reply(1, &[&10_000u32.to_be_bytes()[..], &[7; 32]].concat());
        let mismatch = session.reply(5, text.as_bytes());
        stream.write_all(&[welcome, mismatch].concat()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        // It is not believed that it can give the rank a place.
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&greeting).unwrap();
        stream.read_exact(&mut hello).unwrap();
        let mut session =
            wire::Session::unexchanged(&wire::job_key(b"job 1"), &greeting, &hello[..wire::CLAIM]);
        let welcome = session.reply(1, &[&10_000u32.to_be_bytes()[..], &[7; 32]].concat());
        let mut done = wire::reply(3, 0, b"");
        done[8..10].copy_from_slice(&greeting[8..10]);
        let tag = session.of_master.tag(&done);
        stream.write_all(&[&welcome[..], &done, &tag].concat()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = part(1, 2, port).all_gather("").unwrap_err();
    assert!(
        matches!(&error, RendezvousError::Mismatch { report, .. } if report == text),
        "{error}"
    );
    let error = part(1, 2, port).all_gather("").unwrap_err().to_string();
    let runs = format!("it runs mpienv {} (protocol {})", env!("CARGO_PKG_VERSION"), protocol - 1);
    assert!(error.contains(&runs), "{error}");
    of_then.join().unwrap();
}

#[test]
fn a_rank_0_that_dies_is_named_and_its_error_is_referred_to_once() {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
    let dying = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = wire::greet(&mut stream, b"job 1").unwrap();
        stream.write_all(&session.welcome(10_000)).unwrap();
    });
    let error = part(1, 2, port).all_gather("").unwrap_err();
    dying.join().unwrap();
    assert!(matches!(error, RendezvousError::MasterLost { .. }), "{error}");
    assert_eq!(error.to_string().matches("an error that rank 0 printed").count(), 1, "{error}");
}
