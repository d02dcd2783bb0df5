//! Asking the launcher over PMI-1, where its variables do not name rank 0's host.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufReader;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::launchers::output_of;
use crate::support::clock::SLACK;
use crate::support::pmi::{ANSWERS, ANSWERS_OF_FLUX, Server, heard, question};
use crate::support::python::from_python;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, is_there};
use mpienv_ask::seam::Link;
use mpienv_core::seam::Answer;
use proptest::prelude::*;
use serde_json::Value;

const MPIENV: &str = env!("CARGO_BIN_EXE_mpienv");

/// What each rank of a job learns when all ask at once.
fn asked(server: &Server, size: u32) -> Vec<Answer> {
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            let stream = server.connect();
            thread::spawn(move || question(rank, size, SLACK).ask(&mut Link::of(stream.into())))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
}

#[test]
fn all_ranks_that_ask_learn_rank_0s_host_their_nodes_and_one_secret_as_often_as_they_ask() {
    for mapping in
        [Some("(vector,(0,2,2))"), Some("(vector,[(0,1,2),(1,1,2)]x1)"), Some("(new)"), None]
    {
        let server = Server::new(4, mapping);
        let mut secrets = BTreeSet::new();
        for _ in 0..3 {
            let answers = asked(&server, 4);
            for (rank, answer) in answers.iter().enumerate() {
                assert_eq!(answer.host.as_ref().unwrap().to_string(), "node0");
                assert_eq!(answer.secret, answers[0].secret);
                let node = answer.node_rank.map(|node| node as usize).zip(answer.node_count);
                let is_known = mapping.is_some_and(|mapping| mapping.starts_with("(vector"));
                assert_eq!(node, is_known.then_some((rank / 2, 2)), "{mapping:?}");
            }
            let secret = answers[0].secret.clone().unwrap();
            assert!(secret.as_bytes().len() == 64 && secrets.insert(secret.as_bytes().to_vec()));
        }
    }
    for answer in asked(&Server::new(4, Some("(vector,(0,2,2))")).like_flux(), 4) {
        assert_eq!((&*answer.host.unwrap().to_string(), answer.node_count), ("node0", Some(2)));
    }
    // No rank has to wait where the mapping shows one node.
    let alone = question(1, 2, SLACK)
        .ask(&mut Link::of(Server::new(2, Some("(vector,(0,1,2))")).connect().into()));
    let alone = alone.unwrap();
    assert_eq!((alone.host, alone.local_rank), (None, Some(1)));
}

#[test]
fn a_server_at_a_port_is_asked_like_one_at_a_descriptor() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = Server::new(1, None);
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        server.serve(BufReader::new(stream.try_clone().unwrap()), &mut stream);
    });
    let mut link = Link::of_port("127.0.0.1", port, 0).unwrap();
    let answer = question(0, 1, SLACK).ask(&mut link).unwrap();
    assert_eq!(answer.host.unwrap().to_string(), "node0");
    link.finalize().unwrap();
    serving.join().unwrap();
    let error = Link::of_port("127.0.0.1", port, 0).unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to the launcher: "), "{error}");
}

#[test]
fn a_rank_that_asks_alone_gives_up_and_says_what_the_others_must_do() {
    let mut link = Link::of(Server::new(3, None).connect().into());
    let error = question(2, 3, Duration::from_secs(1)).ask(&mut link).unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 2 of 3 has asked for rank 0's host, and not all other ranks have within 1 s: \
         all ranks must run the same mpienv command"
    );
}

#[test]
fn a_name_of_rank_0_that_means_another_host_elsewhere_is_refused_on_all_ranks() {
    for name in [None, Some("localhost"), Some("127.0.1.1"), Some("a#b"), Some("not/a/host")] {
        let server = Server::new(2, None);
        let ranks = [0, 1].map(|rank| {
            let mut asks = question(rank, 2, SLACK);
            asks.host = name.map(str::to_owned);
            let stream = server.connect();
            thread::spawn(move || asks.ask(&mut Link::of(stream.into())).unwrap_err().to_string())
        });
        for rank in ranks {
            let error = rank.join().unwrap();
            assert_eq!(error, "rank 0's host has no name by which other hosts know it", "{name:?}");
        }
    }
}

#[test]
fn what_the_launcher_must_not_answer_is_named_with_the_request() {
    for valid in [ANSWERS, ANSWERS_OF_FLUX] {
        assert_eq!(heard(valid.as_bytes()).unwrap().host.unwrap().to_string(), "node0");
    }
    let long = format!("rc=0 value={}", "x".repeat(70_000));
    for (from, to, part) in [
        ("pmi_version=1", "pmi_version=2", "`init` with \"cmd=response_to_init pmi_version=2"),
        ("pmi_subversion=1 rc=0", "rc=-1", "the launcher does not serve PMI-1"),
        ("keylen_max=64", "keylen_max=-1", "`get_maxes`"),
        ("kvsname=kvs", "kvsname= kvs", "it has no name"),
        ("kvsname=kvs", "kvsname=\u{85}kvs", "not printable text"),
        ("kvsname=kvs", "pmi_version=\u{202e}kvs", "\\u{202e}"),
        ("vallen_max=1024", "vallen_max=20", "the launcher stores at most 20 bytes"),
        ("kvsname_max=256", "kvsname_max=1", "the name is longer than the launcher allows"),
        ("cmd=maxes", "cmd=barrier_out", "request; another process of this rank may"),
        ("rc=0 msg=success\n", "rc=1\n", "it does not store the value"),
        ("barrier_out\n", "barrier_out\n\n", "not printable text"),
        ("tag=0", "rc=3", "the ranks cannot wait for each other"),
        ("mpienv1#", "mpienv2#", "not what this version of mpienv stores on rank 0"),
        ("#node0#", "#no de#", "not what this version of mpienv stores on rank 0"),
        ("#node0#", "#no/de#", "it does not name a host"),
        ("#0011", "#001", "it has no secret"),
        ("rc=-1 msg=key_mpienv-0_not_found value=unknown", &long, "is longer than 65536 bytes"),
        ("cmd=my_kvsname", "\u{1b}[2Jcmd=my_kvsname", "not printable text"),
    ] {
        let answers = ANSWERS.replacen(from, to, 1);
        assert_ne!(answers, ANSWERS, "{from}");
        let error = heard(answers.as_bytes()).unwrap_err().to_string();
        // An empty line is the answer to the next request.
        let is_named =
            error.contains(part) || to.ends_with("\n\n") && error.contains("not the answer");
        assert!(is_named && !error.contains(char::is_control), "{to}: {error}");
    }
}

proptest! {
    #[test]
    fn an_answer_that_is_cut_anywhere_is_an_error(at in 0..ANSWERS.len() - 1) {
        let error = heard(&ANSWERS.as_bytes()[..at]).unwrap_err().to_string();
        prop_assert!(error.starts_with("the launcher has closed the connection at `"), "{}", error);
    }

    #[test]
    fn any_line_in_place_of_an_answer_is_an_error_or_changes_nothing(
        at in 0..9_usize,
        line in "[ -~]{0,60}|cmd=[a-z_]{0,12}( [a-z]{1,4}=[ -~]{0,9}){0,3}",
    ) {
        let mut lines: Vec<_> = ANSWERS.lines().collect();
        lines[at] = &line;
        match heard((lines.join("\n") + "\n").as_bytes()) {
            Ok(answer) => prop_assert_eq!(answer.host.unwrap().to_string(), "node0"),
            Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
        }
    }
}

/// Every Hydra on this machine that can start its proxies without ssh.
fn hydras() -> Vec<PathBuf> {
    let of_system = is_there("mpiexec.hydra").then(|| "mpiexec.hydra".into());
    of_system.into_iter().chain(from_python("mpich", "mpiexec.hydra")).collect()
}

/// A job of four ranks on two nodes, both of which are this machine.
fn on_two_nodes(hydra: &PathBuf) -> Command {
    let mut command = clean("timeout");
    command.args(["-k", "5", "3000"]).arg(hydra);
    command.args(["-launcher", "fork", "-hosts", "one,two", "-n", "4"]);
    command
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let status = output.status;
    assert!(status.success(), "{status}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ranks_on_several_nodes_of_mpich_get_their_master_and_end_when_they_want() {
    let host = mpienv::host_name().unwrap();
    for hydra in hydras() {
        let say = "sleep $((PMI_RANK / 2)); echo $RANK $NODE_RANK $MASTER_ADDR ${#MPIENV_TOKEN}";
        let run = |words: &[&str]| lines(&output_of(on_two_nodes(&hydra).args(words)));
        // MPICH would kill ranks 2 and 3 when the others exit, if nothing said goodbye for them.
        let expected: Vec<_> =
            (0..4).map(|rank| format!("{rank} {} {host} 64", rank % 2)).collect();
        assert_eq!(run(&[MPIENV, "exec", "--", "sh", "-c", say]), expected, "{hydra:?}");
        assert_eq!(
            run(&[MPIENV, "exec", "--", MPIENV, "exec", "--", "sh", "-c", say]),
            expected,
            "{hydra:?}"
        );
        // A shell asks as often as it likes. Its variables do not have the secret.
        let shell = format!(
            "for each in 1 2; do {MPIENV} exec -- true; done; eval \"$({MPIENV} export)\"; {say}"
        );
        let expected: Vec<_> = (0..4).map(|rank| format!("{rank} {} {host} 0", rank % 2)).collect();
        assert_eq!(run(&["sh", "-c", &shell]), expected, "{hydra:?}");
        // Processes that a rank starts at once share its connection, and ask in turn.
        let shell = format!("seq 3 | xargs -P 3 -I@ {MPIENV} exec -- sh -c '{say}'");
        let found = run(&["sh", "-c", &shell]);
        let expected: Vec<_> =
            (0..12).map(|line| format!("{} {} {host} 64", line / 3, line / 3 % 2)).collect();
        assert_eq!(found, expected, "{hydra:?}");
        // The program and its children know where the values come from.
        let shown = run(&[MPIENV, "exec", "--", MPIENV, "show"]).join("\n");
        for part in [&format!("{host}  PMI: rank 0's host"), "node count        2"] {
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&shown).matches(&words(part)).count(), 4, "{shown}");
        }
    }
}

/// Starts a command as Flux starts one of four ranks on two nodes.
fn as_flux(server: &Server, rank: u32, words: &[&str]) -> Child {
    // A launcher leaves a number above those of the standard streams.
    let mut command = clean("sh");
    command.args(["-c", "exec 5<&0 </dev/null \"$@\"", "sh"]).args(words);
    command.stdin(Stdio::from(OwnedFd::from(server.connect())));
    let local = rank % 2;
    for (name, value) in [
        ("FLUX_TASK_RANK", rank),
        ("FLUX_JOB_SIZE", 4),
        ("FLUX_TASK_LOCAL_ID", local),
        ("FLUX_JOB_NNODES", 2),
        ("PMI_RANK", rank),
        ("PMI_SIZE", 4),
        ("PMI_FD", 5),
    ] {
        command.env(name, value.to_string());
    }
    command.env("FLUX_JOB_ID", "ƒNELAWE3");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn tasks_of_flux_and_their_children_know_the_master_and_the_ranks_of_their_node() {
    let server = Server::new(4, Some("(vector,(0,2,2))")).like_flux();
    let show = [MPIENV, "exec", "--", MPIENV, "show", "--json"];
    let tasks: Vec<_> = (0..4).map(|rank| as_flux(&server, rank, &show)).collect();
    for (rank, task) in tasks.into_iter().enumerate() {
        let output = task.wait_with_output().unwrap();
        let shown: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(shown["launcher"], "flux", "{shown}");
        assert_eq!(shown["master_addr"], *mpienv::host_name().unwrap(), "{shown}");
        for (name, value) in [
            ("rank", rank),
            ("local_rank", rank % 2),
            ("local_world_size", 2),
            ("node_rank", rank / 2),
            ("node_count", 2),
        ] {
            assert_eq!(shown[name], value, "{name} of rank {rank}: {shown}");
        }
    }
    // Flux does not mind an exit without a goodbye.
    assert!(!server.heard("finalize"));
}

#[test]
fn no_rank_asks_if_a_user_names_the_master_or_does_not_want_it() {
    for hydra in hydras() {
        let run = |words: &[&str]| output_of(on_two_nodes(&hydra).args(words));
        let said = run(&[
            "env",
            "MASTER_ADDR=10.0.0.9",
            MPIENV,
            "exec",
            "--",
            "sh",
            "-c",
            "echo $MASTER_ADDR $MPIENV_TOKEN",
        ]);
        assert_eq!(lines(&said), ["10.0.0.9"; 4]);
        for words in
            [&["env", "MPIENV_ASK=0", MPIENV, "export"][..], &[MPIENV, "export", "--no-ask"]]
        {
            let output = run(words);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && said.contains("no variable names rank 0's host"),
                "{said}"
            );
        }
        let said = run(&["env", "MPIENV_ASK=soon", MPIENV, "export"]);
        assert!(
            String::from_utf8_lossy(&said.stderr)
                .contains("MPIENV_ASK=\"soon\": not a whole number")
        );
    }
}

#[test]
fn a_job_in_which_only_one_rank_asks_ends_with_its_error() {
    for hydra in hydras() {
        let start = Instant::now();
        let alone =
            format!("test $PMI_RANK = 1 || exec sleep 9; MPIENV_ASK=1 {MPIENV} export || exit 1");
        let output = output_of(on_two_nodes(&hydra).args(["sh", "-c", &alone]));
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = "rank 1 of 4 has asked for rank 0's host, and not all other ranks have within 1 s: \
                        all ranks must run the same mpienv command; or give rank 0's host to all ranks";
        assert!(said.contains("mpienv: Hydra: PMI_FD=") && said.contains(expected), "{said}");
        assert!(!output.status.success() && start.elapsed() < SLACK, "{said}");
    }
}

#[test]
fn the_descriptor_is_left_as_it_was_found() {
    for hydra in hydras() {
        let look = "sed -n '/^flags/p' /proc/self/fdinfo/$PMI_FD";
        let before = output_of(on_two_nodes(&hydra).args(["sh", "-c", look]));
        let after = output_of(on_two_nodes(&hydra).args([MPIENV, "exec", "--", "sh", "-c", look]));
        assert_eq!(lines(&after), lines(&before));
        assert_eq!(lines(&after).len(), 4);
    }
}

#[test]
fn a_number_that_is_no_connection_to_the_launcher_is_named() {
    let ask = |number: &str| {
        let vars = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", number)];
        let output = clean(MPIENV).arg("export").envs(vars).output().unwrap();
        assert_eq!(output.stdout, b"false;\n");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for number in ["0", "1", "77", "-1", "2147483647"] {
        let said = ask(number);
        let start =
            format!("mpienv: Hydra: PMI_FD={number:?}: it is not a connection to the launcher (");
        assert!(
            said.starts_with(&start) && said.contains("; or give rank 0's host to all ranks"),
            "{said}"
        );
    }
    assert!(ask("x").starts_with("mpienv: Hydra: PMI_FD=\"x\": not a whole number"));
}

#[test]
fn doctor_asks_as_check_does_and_compares_all_ranks() {
    let host = mpienv::host_name().unwrap();
    for hydra in hydras() {
        let words = [MPIENV, "doctor", "--timeout", PATIENT];
        let output = output_of(on_two_nodes(&hydra).args(words));
        let text = String::from_utf8_lossy(&output.stdout);
        let row = text.lines().find(|line| line.starts_with("master address")).unwrap();
        assert!(row.contains(&host) && row.ends_with("PMI: rank 0's host"), "{text}");
        assert!(text.contains("\nrank 1:") || text.contains("\nranks 1"), "{text}");
        assert!(!text.contains("master-unknown"), "{text}");
    }
}

#[test]
fn doctor_reports_what_it_can_if_the_launcher_does_not_answer() {
    let vars = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "77")];
    let output = clean(MPIENV).arg("doctor").envs(vars).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{text}");
    let found = "error [launcher-no-answer]: Hydra: PMI_FD=\"77\": it is not a connection";
    assert!(text.contains(found) && text.contains("master-unknown"), "{text}");
}

#[test]
fn show_and_a_doctor_of_one_rank_talk_to_no_launcher() {
    if !is_there("strace") {
        return;
    }
    for hydra in hydras() {
        // Each thread has a file of its own: in one, a call that another one interrupts has two
        // lines.
        let trace = |command: &[&str]| {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let file = folder.path().join("traced");
            let words = ["strace", "-ff", "-e", "trace=network,process", "-o"];
            output_of(on_two_nodes(&hydra).args(words).arg(file).arg(MPIENV).args(command));
            let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            files.map(|file| fs::read_to_string(file).unwrap()).collect::<String>()
        };
        let said = trace(&["show"]);
        assert!(said.contains("exit_group(0)"), "{said}");
        for call in ["connect(", "socket(", "sendto(", "sendmsg(", "recvfrom(", "recvmsg("] {
            assert!(!said.contains(call), "{call}: {said}");
        }
        let starts = said.lines().filter(|line| line.contains("clone") || line.contains("fork("));
        assert!(starts.clone().all(|line| line.contains("CLONE_THREAD")), "{said}");
        for option in [&["--timeout", "0"][..], &["--no-ask"]] {
            let said = trace(&[&["doctor"], option].concat());
            assert!(said.contains("exit_group(") && !said.contains("cmd=init"), "{said}");
        }
        // The same commands would show it.
        assert!(trace(&["doctor"]).contains("cmd=init"));
    }
}
