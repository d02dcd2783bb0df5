//! Ranks that authenticate with MUNGE, with a real munged: only processes of one user meet.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::clock::SLACK;
use crate::support::hosts::Hosts;
use crate::support::launched::master_port;
use crate::support::launched::signal;
use crate::support::munged::{Munged, WAIT};
use crate::support::port::free_port;
use crate::support::script::script;
use crate::support::timeout::PATIENT;
use crate::support::tool::clean;
use crate::support::wire;

/// A user other than the one who runs the tests.
const OTHER: &str = "65534";

fn said(child: Child) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (
        status.code(),
        String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr),
    )
}

#[test]
fn ranks_of_one_user_meet_with_munge_without_a_secret_again_and_again() {
    let Some(munged) = Munged::up() else { return };
    for token in ["", "a token counts too"] {
        let port = free_port();
        let set = (!token.is_empty()).then_some(("MPIENV_TOKEN", token));
        let ranks = [0, 1].map(|index| munged.rank(index, port).envs(set).spawn().unwrap());
        for (index, rank) in ranks.into_iter().enumerate() {
            let (code, text) = said(rank);
            assert_eq!(code, Some(0), "{text}");
            assert!(index > 0 || text.starts_with("2 ranks on 1 host"), "{text}");
        }
    }
    let port = free_port();
    let ranks = [(0, "one"), (1, "other")];
    let ranks = ranks.map(|(index, token)| {
        munged.waiting_rank(index, port).env("MPIENV_TOKEN", token).spawn().unwrap()
    });
    let [_, (code, text)] = ranks.map(said);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("rejected rank 1, because its token differs"), "{text}");
}

#[test]
fn check_of_a_single_rank_fails_if_munge_is_required_and_does_not_answer() {
    for (auth, code) in [("munge:/no/such/socket", 3), ("auto:/no/such/socket", 0)] {
        let port = free_port().to_string();
        let mut check = clean("mpienv");
        check.args(["check", "--timeout", "5"]).env("MPIENV_AUTH", auth).env("MASTER_PORT", port);
        let (status, text) =
            said(check.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(status, Some(code), "{text}");
        assert_eq!(
            text.contains("nothing was checked: MPIENV_AUTH=munge:/no/such"),
            code == 3,
            "{text}"
        );
    }
}

#[test]
fn how_munge_ended_is_seen_although_mpienv_was_started_with_sigchld_ignored() {
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("munge"), "#!/bin/sh\nexit 5\n");
    let line = "PATH=$0:$PATH exec env --ignore-signal=CHLD mpienv check --timeout 2";
    let mut rank = clean("sh");
    rank.args(["-c", line]).arg(folder.path()).env("MPIENV_AUTH", "munge");
    let (code, text) = said(rank.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("munge: exit status: 5"), "{text}");
}

/// A folder with a munge and an unmunge that wait for a program of theirs, which never ends.
fn hanging() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for program in ["munge", "unmunge"] {
        script(&folder.path().join(program), "#!/bin/sh\nsleep 3000\n");
    }
    folder
}

#[test]
fn a_munge_that_is_a_script_and_hangs_ends_with_the_timeout_and_leaves_nothing() {
    let folder = hanging();
    let rank = |auth: &str, index: u32, port: u16, words: &[&str]| {
        let mut command = clean("mpienv");
        // Before the folders in which it finds mpienv.
        let path = command.get_envs().find_map(|(name, path)| path.filter(|_| name == "PATH"));
        let path = [folder.path().as_os_str(), path.unwrap()].join(OsStr::new(":"));
        command.args(words).env("PATH", path).env("MPIENV_AUTH", auth);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "2");
        command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_PORT", port.to_string()).env("OF_HANGING_MUNGE", "1");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let begun = Instant::now();
    // The ranks must use it.
    for index in [0, 1] {
        let (code, text) = said(rank("munge", index, free_port(), &["check", "--timeout", "2"]));
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("munge did not finish in time"), "{text}");
    }
    // They may do without it, and share the time that is left.
    let port = free_port();
    let ranks = [0, 1].map(|index| rank("auto", index, port, &["check", "--timeout", PATIENT]));
    let [(code, text), other] = ranks.map(said);
    assert_eq!((code, other.0), (Some(0), Some(0)), "{text}{}", other.1);
    assert!(
        text.contains("the ranks did not use MUNGE: ")
            && text.contains("munge did not finish in time"),
        "{text}"
    );
    let (code, text) = said(rank("auto", 0, free_port(), &["check", "--timeout", "2"]));
    assert_eq!(code, Some(124), "{text}");
    let (code, text) = said(rank("munge", 0, free_port(), &["doctor", "--timeout", "1"]));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("[munge-no-answer]") && begun.elapsed() < SLACK, "{text}");
    // Neither script nor what it started is left.
    let left = || {
        let mut grep = clean("sh");
        grep.args(["-c", "grep -lz ^OF_HANGING_MUNGE=1 /proc/[0-9]*/environ 2>/dev/null"]);
        String::from_utf8(grep.output().unwrap().stdout).unwrap()
    };
    while !left().is_empty() {
        assert!(begun.elapsed() < SLACK, "{}", left());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn another_users_rank_and_another_users_rank_0_are_refused_and_the_reason_is_named() {
    let Some(munged) = Munged::up() else { return };
    let port = free_port();
    let ranks = [
        munged.waiting_rank(0, port).spawn().unwrap(),
        munged.rank_as(OTHER, 1, port, WAIT).spawn().unwrap(),
    ];
    let [(code, first), (other_code, other)] = ranks.map(said);
    assert_eq!((code, other_code), (Some(124), Some(124)), "{first}{other}");
    assert!(first.starts_with("mpienv: rank 1 of 2 has not connected to "), "{first}");
    assert!(other.contains(&format!("Unauthorized credential for client UID={OTHER}")), "{other}");
    assert!(
        other.contains("run munged with the same key on all hosts, set MPIENV_AUTH to the same")
            && other.contains(", and run them as one user"),
        "{other}"
    );

    // The same the other way around: rank 0 restricts its credential to its own user.
    let port = free_port();
    let ranks = [
        munged.rank_as(OTHER, 0, port, WAIT).spawn().unwrap(),
        munged.waiting_rank(1, port).spawn().unwrap(),
    ];
    let [_, (code, text)] = ranks.map(said);
    assert_eq!(code, Some(124), "{text}");
    assert!(text.contains("Unauthorized credential for client UID=0"), "{text}");
}

#[test]
fn a_program_in_rank_0s_place_with_a_credential_that_was_made_for_something_else_hears_no_hello() {
    let Some(munged) = Munged::up() else { return };
    let Some(foreign) = Munged::with_key(8) else { return };
    let payload = format!("mpienv meeting key {}", "00".repeat(32));
    let expired = munged.credential(&["--restrict-uid=0", "--ttl=1"], &payload);
    // The lifetime is in whole seconds.
    thread::sleep(Duration::from_millis(2500));
    let cases = [
        (expired, "it has expired, or the clocks of the hosts differ"),
        // Made on a host of another cluster.
        (foreign.credential(&["--restrict-uid=0"], &payload), "Invalid credential"),
        // The user gave it to some service, which now poses as rank 0.
        (munged.credential(&[], "hello"), "other users can decode it too"),
        (munged.credential(&[], &payload), "other users can decode it too"),
        (munged.credential(&["--restrict-uid=0"], "hello"), "it was made for another purpose"),
        // As root, munge can make a credential of any user.
        (munged.credential(&["--uid=65534", "--restrict-uid=0"], &payload), "user 65534 made it"),
        (b"MUNGE:AwQFAACg8J7U:".to_vec(), "unmunge: Error: "),
        (b"hello".to_vec(), "it is not a MUNGE credential"),
    ];
    let poses = cases.map(|(credential, reason)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rank = munged.waiting_rank(1, listener.local_addr().unwrap().port()).spawn().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        (
            rank,
            thread::spawn(move || heard_after(&listener, &credential, &[], &flag)),
            is_over,
            reason,
        )
    });
    for (rank, poser, is_over, reason) in poses {
        let (code, text) = said(rank);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(code, Some(124), "{text}");
        assert!(
            text.contains("its MUNGE credential is refused: ") && text.contains(reason),
            "{reason}: {text}"
        );
        assert_eq!(poser.join().unwrap(), b"", "{reason}");
    }
}

#[test]
fn what_replays_a_credential_hears_a_hello_and_is_not_believed() {
    let Some(munged) = Munged::up() else { return };
    let port = free_port();
    let mut first = munged.waiting_rank(0, port).spawn().unwrap();
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SLACK)).unwrap();
                break stream;
            }
            Err(error) => assert!(begun.elapsed() < SLACK, "rank 0 does not listen: {error}"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut greeting = vec![0; wire::GREETING];
    stream.read_exact(&mut greeting).unwrap();
    let length = u32::from_be_bytes(greeting[17..21].try_into().unwrap());
    let mut credential = vec![0; length as usize - 32];
    stream.read_exact(&mut credential).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rank = munged.waiting_rank(1, listener.local_addr().unwrap().port()).spawn().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = is_over.clone();
    let welcome = [wire::reply(1, 36, &[0; 36]), vec![0; 32]].concat();
    let poser = thread::spawn(move || heard_after(&listener, &credential, &welcome, &flag));
    let (code, text) = said(rank);
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(code, Some(124), "{text}");
    assert!(text.contains("what answered cannot prove that it has this job's token"), "{text}");
    let heard = poser.join().unwrap();
    assert!(heard.len() >= wire::CLAIM && heard.starts_with(b"mpienv\r\n"), "{heard:?}");
}

#[test]
fn an_unmunge_that_the_deadline_stops_does_not_hide_why_the_credential_was_refused_before() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let unmunge = folder.path().join("unmunge");
    let mark = folder.path().join("ran");
    let script = "#!/bin/sh\n[ -e \"$MARK\" ] && exec sleep 3000\n: > \"$MARK\"\necho 'unmunge: Error: reason' >&2\nexit 14\n";
    crate::support::script::script(&unmunge, script);
    crate::support::script::script(&folder.path().join("munge"), "#!/bin/sh\nexit 0\n");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    // The first rank leaves the mark, so that the only unmunge of the second one never finishes.
    for reason in [
        "(its MUNGE credential is refused: unmunge: Error: reason)",
        "(unmunge did not finish in time)",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut rank = clean(env!("CARGO_BIN_EXE_mpienv"));
        rank.args(["check", "--timeout", WAIT])
            .env("PATH", &path)
            .env("MARK", &mark)
            .env("MPIENV_AUTH", "munge:/socket");
        rank.env("RANK", "1")
            .env("WORLD_SIZE", "2")
            .env("LOCAL_RANK", "1")
            .env("LOCAL_WORLD_SIZE", "2");
        rank.env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", listener.local_addr().unwrap().port().to_string());
        let rank = rank
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        let poser = thread::spawn(move || heard_after(&listener, b"MUNGE:AwQ=:", &[], &flag));
        let (code, text) = said(rank);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(poser.join().unwrap(), b"");
        assert_eq!(code, Some(124), "{text}");
        assert!(text.contains(reason), "{text}");
    }
}

/// A variable that a command sets.
fn both<'a>((name, value): (&'a OsStr, Option<&'a OsStr>)) -> Option<(&'a OsStr, &'a OsStr)> {
    Some((name, value?))
}

/// Greets every connection with this credential until it is over, and answers a hello; returns what
/// the other ends sent.
fn heard_after(
    listener: &TcpListener,
    credential: &[u8],
    answer: &[u8],
    is_over: &AtomicBool,
) -> Vec<u8> {
    let payload = [&[5; 32], credential].concat();
    let greeting = wire::reply(9, u32::try_from(payload.len()).unwrap(), &payload);
    let mut heard = Vec::new();
    listener.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(SLACK)).unwrap();
            // The rank may have given up already.
            let _ = stream.write_all(&greeting);
            let mut hello = [0; wire::CLAIM];
            if !answer.is_empty() && stream.read_exact(&mut hello).is_ok() {
                heard.extend(hello);
                let _ = stream.write_all(answer);
            }
            let _ = stream.read_to_end(&mut heard);
        }
        thread::sleep(Duration::from_millis(10));
    }
    heard
}

#[test]
fn ranks_that_differ_in_whether_they_use_munge_do_not_meet_and_the_error_says_why() {
    let Some(munged) = Munged::up() else { return };
    for (without, reason) in [
        (0, "it sent no MUNGE credential"),
        (1, "it sent a MUNGE credential, and this rank does not use MUNGE"),
    ] {
        let port = free_port();
        let ranks = [0, 1].map(|index| {
            let mut rank = munged.waiting_rank(index, port);
            if index == without {
                rank.env_remove("MPIENV_AUTH");
            }
            rank.spawn().unwrap()
        });
        let [(_, of_first), (code, text)] = ranks.map(said);
        assert_eq!(code, Some(124), "{text}");
        assert!(
            text.contains(reason)
                && text.contains("set MPIENV_AUTH to the same value on all ranks, as with `mpirun"),
            "{text}"
        );
        // mpirun passes the variable of a shell to the first host only, where rank 0 is.
        let remedy = "set MPIENV_AUTH for all ranks, as with `mpirun -x MPIENV_AUTH`";
        assert_eq!(of_first.contains(remedy), without == 1, "{of_first}");
    }
}

#[test]
fn without_munged_or_munge_the_error_names_what_is_missing_on_which_side() {
    let Some(mut munged) = Munged::up() else { return };
    munged.daemon.kill().unwrap();
    munged.daemon.wait().unwrap();
    let port = free_port();
    let (code, text) = said(munged.rank(0, port).spawn().unwrap());
    assert_eq!(code, Some(3), "{text}");
    let start = "mpienv: the ranks authenticate with MUNGE, which does not work on this host: munge: Error: ";
    assert!(
        text.starts_with(start) && text.contains("install MUNGE here and start munged"),
        "{text}"
    );

    let mut command = munged.rank(0, port);
    // setpriv and mpienv are found by their paths.
    let output = Command::new(munged.folder.path().join("mpienv"))
        .args(["check", "--timeout", PATIENT])
        .env_clear()
        .envs(command.env("PATH", "/nowhere").get_envs().filter_map(both))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("munge cannot run (No such file or directory (os error 2))"), "{text}");

    // `munge` alone is not enough.
    let only = tempfile::tempdir().unwrap();
    script(&only.path().join("munge"), "#!/bin/sh\necho MUNGE:AwQ=:\n");
    let mut rank = clean(env!("CARGO_BIN_EXE_mpienv"));
    rank.arg("check").envs(munged.rank(0, port).get_envs().filter_map(both));
    let output = rank.env("MPIENV_AUTH", "auto").env("PATH", only.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("on this host: unmunge cannot run (No such file"), "{text}");

    // Both ranks know at once: rank 1 needs no rank 0 for it.
    for (index, words) in [(1, "check"), (0, "doctor"), (1, "doctor")] {
        let mut rank = clean("mpienv");
        rank.arg(words).envs(munged.rank(index, free_port()).get_envs().filter_map(both));
        let begun = Instant::now();
        let output = rank.args(["--timeout", PATIENT]).output().unwrap();
        assert!(begun.elapsed() < SLACK, "{words} waited: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}{said}");
        let found = "error [munge-no-answer]: MPIENV_AUTH=munge:";
        match words {
            "check" => assert!(said.starts_with(start), "{said}"),
            _ => {
                assert!(text.contains(found) && !text.contains("no problems found"), "{text}");
                assert_eq!((text + &said).matches("munge: Error: ").count(), 1);
            }
        }
    }

    // Rank 0's munged runs, that of rank 1 does not.
    munged.daemon = Munged::start(munged.folder.path());
    let port = free_port();
    let mut first = munged.rank(0, port).spawn().unwrap();
    let (code, text) =
        said(munged.rank(1, port).env("MPIENV_AUTH", "munge:/no/such/socket").spawn().unwrap());
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(": munge: Error: Failed to access \"/no/such/socket\""), "{text}");

    // A munged that hangs does not hold up rank 0 for longer than its timeout.
    signal("STOP", &munged.daemon);
    let (code, text) = said(munged.rank_as("0", 0, free_port(), "1").spawn().unwrap());
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("munge did not finish in time"), "{text}");
}

#[test]
fn ranks_take_munge_if_it_answers_on_their_hosts_and_meet_only_ranks_that_do_the_same() {
    let Some(munged) = Munged::up() else { return };
    let answered = munged.auth().replace("munge:", "auto:");
    let [yes, no] = [&answered, "auto:/no/such/socket"];
    let meet = |auth: [&str; 2]| {
        let port = free_port();
        let ranks = [0, 1].map(|index| {
            let is_alike = auth[0] == auth[1];
            let rank = if is_alike { Munged::rank } else { Munged::waiting_rank };
            let mut rank = rank(&munged, index, port);
            rank.env("MPIENV_AUTH", auth[index as usize]).spawn().unwrap()
        });
        ranks.map(said)
    };
    let why = "the ranks did not use MUNGE: MUNGE does not work on this host: munge: Error: ";
    for (auth, end, is_used) in [(yes, ", with MUNGE\n", true), (no, ", without a secret\n", false)]
    {
        let [(code, text), _] = meet([auth, auth]);
        assert_eq!(code, Some(0), "{auth}: {text}");
        assert!(text.contains(end) && text.contains(why) != is_used, "{auth}: {text}");
        let mut doctor = clean("mpienv");
        let output = doctor.arg("doctor").env("MPIENV_AUTH", auth).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let mut rows = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
        let protection = if is_used { "MUNGE" } else { "none" };
        assert!(rows.any(|row| row == ["protection", protection]), "{auth}: {text}");
    }
    for (auth, reason) in [
        (
            [yes, no],
            "it sent a MUNGE credential, and MUNGE does not work on this host: munge: Error: ",
        ),
        (
            [no, yes],
            "it sent no MUNGE credential: on its host, MPIENV_AUTH is not set or MUNGE does not \
             work",
        ),
    ] {
        let [(_, of_first), (code, text)] = meet(auth);
        assert_eq!(code, Some(124), "{auth:?}: {text}");
        let why = "; rank 0 does without MUNGE, which does not work on its host (munge: Error: ";
        assert_eq!(of_first.contains(why), auth[0] == no, "{auth:?}: {of_first}");
        let both =
            ": if they are ranks of this job, no munged answers on their hosts, or MPIENV_AUTH";
        assert_eq!(of_first.contains(both), auth[0] == yes, "{auth:?}: {of_first}");
        assert!(text.contains(reason), "{auth:?}: {text}");
    }
}

#[test]
fn launches_that_meet_without_munge_although_it_was_asked_for_where_it_works_say_so_once() {
    let meet = ["--meet", PATIENT];
    for (options, expected) in [
        (&meet[..], "warning [munge-no-answer]: MPIENV_AUTH=auto:"),
        (
            &["--max-restarts", "1"],
            "mpienv: processes of other users can meet the nodes' `mpienv launch`, because MPIENV_AUTH=",
        ),
        (
            &["--max-restarts", "1", meet[0], meet[1]],
            "warning [munge-no-answer]: MPIENV_AUTH=auto:",
        ),
    ] {
        let port = master_port().to_string();
        let launch = |node: &str| {
            let mut command = clean("mpienv");
            command.env("MPIENV_AUTH", "auto:/no/such/socket").args(["launch", "--nnodes", "2"]);
            command.args(["--node-rank", node, "--master-addr", "127.0.0.1", "--nproc-per-node"]);
            command.args(["1", "--master-port", &port]).args(options).args(["--", "true"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let [(_, first), (code, second)] = [launch("0"), launch("1")].map(said);
        assert_eq!((code, second.as_str()), (Some(0), ""), "{first}");
        assert!(first.starts_with(expected), "{first}");
        assert_eq!(first.matches("MUNGE does not work on this host").count(), 1, "{first}");
    }
}

#[test]
fn another_way_to_authenticate_is_an_error_that_names_the_variable() {
    let output = clean("mpienv").arg("check").env("MPIENV_AUTH", "kerberos").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let expected = "mpienv: MPIENV_AUTH=\"kerberos\": not a way for ranks to authenticate: munge, auto, or one of them \
                    with the absolute path of munged's socket, as in munge:SOCKET; correct MPIENV_AUTH or unset it\n";
    assert_eq!((output.status.code(), &*text), (Some(1), expected));
}

#[test]
fn the_launches_of_two_nodes_and_their_workers_authenticate_with_munge() {
    let Some(munged) = Munged::up() else { return };
    // The launches meet at the port below the master's.
    let mut ports = [free_port(), free_port()];
    while ports[0] + 1 != ports[1] {
        ports = [ports[1], free_port()];
    }
    let port = ports[1].to_string();
    let launch = |node: &str| {
        let mut command = clean("mpienv");
        command.env("MPIENV_AUTH", munged.auth()).args([
            "launch",
            "--node-rank",
            node,
            "--nnodes",
            "2",
        ]);
        command.args(["--master-addr", "127.0.0.1", "--master-port", &port, "--max-restarts", "1"]);
        command.args(["--nproc-per-node", "1", "--", "sh", "-c"]);
        command
            .arg("mpienv check --timeout 1200; echo $MPIENV_AUTH ; [ $MPIENV_RESTART_COUNT = 1 ]");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let launches = [launch("0"), launch("1")];
    for (index, launch) in launches.into_iter().enumerate() {
        let (code, text) = said(launch);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(&munged.auth()), "{text}");
        assert!(index > 0 || text.matches("2 ranks on 1 host").count() == 2, "{text}");
    }
}

#[test]
fn slurms_ranks_on_two_hosts_meet_with_slurms_own_munge() {
    let Some(hosts) = Hosts::up("munge", 2, &[]) else { return };
    let (mpienv, folder) =
        (env!("CARGO_BIN_EXE_mpienv"), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let Some(mut command) = hosts.slurm(folder.path()) else { return };
    let auth = "MPIENV_AUTH=munge:/run/slurm/munge.socket";
    let step =
        format!("srun -N2 -n4 --ntasks-per-node=2 env {auth} {mpienv} check --json --timeout 1200");
    let output = command.args(["sh", "-c", &step]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let map: Value = serde_json::from_slice(&output.stdout).unwrap();
    let hosts: Vec<_> = (0..4).map(|rank| map["ranks"][rank]["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["nodeA", "nodeA", "nodeB", "nodeB"]);
}
