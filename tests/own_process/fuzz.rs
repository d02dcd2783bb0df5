//! Whatever an environment holds, and whatever arrives at a port: no panic, no wrong result, no
//! hang.
//!
//! Each test tries inputs for a second, or for `MPIENV_FUZZ_SECONDS`.

mod launches;
mod messages;
#[cfg(target_os = "linux")]
mod pmi;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use crate::support::mutation::fuzz;
use crate::support::port::free_port;
use crate::support::wire;
use mpienv::rendezvous::{Rendezvous, RendezvousError};
use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Dialect, Host, Launcher, Port, Rank};
use mpienv_core::seam::Hostlist;
use proptest::prelude::*;

/// Separates two variables: no environment can contain it.
const END: u8 = 0;

/// The environments of real launchers' ranks, reduced to what mpienv reads of them, as consecutive
/// `NAME=value` pairs.
fn recorded() -> Vec<Vec<u8>> {
    let read = Launcher::ALL.iter().flat_map(|launcher| launcher.variables());
    let known: BTreeSet<_> = read.map(|variable| variable.name).collect();
    let mut found = Vec::new();
    for folder in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")).unwrap()
    {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let recording: serde_json::Value =
                serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap();
            for rank in recording["ranks"].as_array().unwrap() {
                let env: BTreeMap<String, String> =
                    serde_json::from_value(rank["env"].clone()).unwrap();
                let kept = env.into_iter().filter(|(name, _)| known.contains(name.as_str()));
                found.push(bytes(kept));
            }
        }
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 50);
    found
}

fn bytes(vars: impl IntoIterator<Item = (String, String)>) -> Vec<u8> {
    vars.into_iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
}

/// These environments, a job of each launcher, and what platforms and mpienv itself set.
fn environments() -> Vec<Vec<u8>> {
    let mut all = recorded();
    for builder in Job::of_each() {
        let several = builder
            .clone()
            .nodes(2)
            .per_node(2)
            .build()
            .or_else(|_| builder.clone().nodes(2).build());
        all.extend(several.or_else(|_| builder.build()).unwrap().environments().map(bytes));
    }
    let more: &[&str] = &[
        "MASTER_ADDR=10.0.0.4\0MASTER_PORT=29500\0NCCL_SOCKET_IFNAME=eth0\0RANK=0\0WORLD_SIZE=2\0LOCAL_RANK=0\0LOCAL_WORLD_SIZE=2\0",
        "AZ_BATCH_MASTER_NODE=10.0.0.4:6000\0AZ_BATCHAI_MPI_MASTER_NODE=localhost\0AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5\0OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=4\0OMPI_COMM_WORLD_LOCAL_RANK=1\0OMPI_COMM_WORLD_LOCAL_SIZE=2\0",
        "JOB_COMPLETION_INDEX=1\0WORLD_SIZE=2\0MASTER_ADDR=job-0\0",
        "FLUX_TASK_RANK=1\0FLUX_JOB_SIZE=4\0FLUX_TASK_LOCAL_ID=1\0FLUX_JOB_NNODES=2\0FLUX_JOB_ID=9\0MASTER_ADDR=n\0",
        "MPIENV_LAUNCHER=slurm\0MPIENV_MASTER_ADDR=h\0MPIENV_MASTER_PORT=auto\0MPIENV_NCCL_IFNAME=keep\0MPIENV_TOKEN=t\0",
        "MPIENV_CONTEXT=1 user addr=a port=7 RANK:af63bc4c WORLD_SIZE:af63bf4c token=x\0RANK=0\0WORLD_SIZE=1\0",
    ];
    all.extend(more.iter().map(|text| text.as_bytes().to_vec()));
    all
}

fn variables(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pairs = bytes.split(|&byte| byte == END).filter_map(|variable| {
        let equals = variable.iter().position(|&byte| byte == b'=')?;
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((os(&variable[..equals]), os(&variable[equals + 1..])))
    });
    pairs.collect()
}

#[test]
fn any_environment_is_read_or_refused_with_a_remedy() {
    let words: &[&[u8]] = &[
        b"\0RANK=1\0WORLD_SIZE=2\0",
        b"\0SLURM_PROCID=0\0SLURM_STEP_ID=1\0",
        b"\0MASTER_ADDR=",
        b"\0MASTER_PORT=",
        b"\0MPIENV_LAUNCHER=open-mpi\0",
        b"\0PMI_RANK=0\0PMI_SIZE=2\0",
        b"4294967295",
        b"99999999999999999999",
        b"[1-4]",
        b"(x3)",
        b"[fe80::1]:6000",
        b"$(x)",
        b"\xff",
        b" ",
        b"\n",
        b"'",
        b"\0",
        b"=",
    ];
    fuzz("environments", &environments(), words, |bytes| {
        let vars = variables(bytes);
        let info = match ClusterInfo::from_vars(vars.clone()) {
            Ok(info) => info,
            Err(error) => {
                let text = error.to_string();
                prop_assert!(
                    !text.contains('\n')
                        && !error.remedy().is_empty()
                        && text.ends_with(error.remedy()),
                    "{text}"
                );
                return Ok(());
            }
        };
        prop_assert_eq!(info.world_size(), info.rank().size());
        if let (Some(rank), Some(size)) = (info.local_rank(), info.local_world_size()) {
            prop_assert!(rank < size && size <= info.world_size());
        }
        if let Some(count) = info.node_count() {
            prop_assert!(info.node_rank().unwrap_or(0) < count && count <= info.world_size());
        }
        if let Ok(workers) = info.workers(3) {
            prop_assert_eq!(workers.len(), 3);
        }
        let Ok(exports) = info.exports() else {
            prop_assert!(info.findings().iter().any(|finding| finding.code == "master-unknown"));
            return Ok(());
        };
        for dialect in Dialect::ALL {
            // Values that cannot be represented are a separate error.
            let _ = exports.to_text(*dialect);
        }
        // Exported values are read as the same place.
        let gone: Vec<&str> = exports.removals().collect();
        let kept = vars.into_iter().filter(|(name, _)| !gone.iter().any(|gone| name == gone));
        let set = exports
            .iter()
            .filter_map(|(name, value)| Some((OsString::from(name), OsString::from(value?))));
        let again = ClusterInfo::from_vars(kept.chain(set));
        let again = again
            .map_err(|error| TestCaseError::fail(format!("after its own exports: {error}")))?;
        prop_assert_eq!(again.rank(), info.rank());
        prop_assert_eq!(again.master_addr().ok(), info.master_addr().ok());
        // The port of the only rank may be this process's own.
        if info.world_size() > 1 {
            prop_assert_eq!(again.master_port(), info.master_port());
        }
        Ok(())
    });
}

#[test]
fn any_hostlist_is_the_same_list_by_every_way_into_it() {
    let seeds = [
        "gpu[01-04,07],login",
        "n[1-2][3-4][5-6]-ib m",
        "a,b,a",
        "fd00::[1-2]",
        "r[0-9]n[098-101]x",
    ];
    let words: &[&[u8]] = &[
        b"[",
        b"]",
        b"-",
        b",",
        b" ",
        b"[1-3]",
        b"[0-0]",
        b"[00-99]",
        b"18446744073709551615",
        b"[[",
        b"\xc3\xa9",
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec());
    fuzz("hostlists", &seeds, words, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        match Hostlist::parse(text) {
            Ok(list) => {
                prop_assert!(list.len() > 0);
                prop_assert_eq!(list.iter().next(), Some(list.first()));
                let mut count = 0;
                for host in list.iter().take(100) {
                    prop_assert!(!host.is_empty() && !host.contains(['[', ']', ',']), "{host:?}");
                    count += 1;
                }
                prop_assert_eq!(count, list.len().min(100));
            }
            Err(error) => prop_assert!(error.to_string().starts_with("column "), "{error}"),
        }
        Ok(())
    });
}

#[test]
fn any_address_of_mpirun_gives_a_host_that_it_names_or_none() {
    let seeds = [
        "3024486400.0;tcp://10.77.0.1:39829",
        "3030122496.0;tcp://10.77.0.1,10.78.0.1:49239;tcp6://[fd77::1]:50139",
        "1.0;tcp://172.17.0.1,169.254.3.4,127.0.0.1:1",
        "1.0;tcp6://[fe80::b9b:ac5d,2620:10d:c083:150e::3000:2]:43370",
    ];
    let words: &[&[u8]] = &[
        b";",
        b"tcp://",
        b"tcp6://[",
        b"]",
        b":",
        b",",
        b"::1",
        b"0.0.0.0",
        b"10.0.0.256",
        b"65536",
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec());
    fuzz("hnp_uri", &seeds, words, |bytes| {
        let os = |text: &str| OsString::from(text);
        let vars = [
            (os("OMPI_COMM_WORLD_RANK"), os("0")),
            (os("OMPI_COMM_WORLD_SIZE"), os("4")),
            (os("OMPI_COMM_WORLD_LOCAL_RANK"), os("0")),
            (os("OMPI_COMM_WORLD_LOCAL_SIZE"), os("2")),
            (os("OMPI_MCA_orte_hnp_uri"), OsString::from_vec(bytes.to_vec())),
            (os("OMPI_MCA_orte_local_daemon_uri"), OsString::from_vec(bytes.to_vec())),
        ];
        let Ok(text) = std::str::from_utf8(bytes) else {
            prop_assert!(ClusterInfo::from_vars(vars).is_err());
            return Ok(());
        };
        let info = match ClusterInfo::from_vars(vars) {
            Ok(info) => info,
            Err(error) => return Err(TestCaseError::fail(format!("{error}"))),
        };
        if let Ok(master) = info.master_addr() {
            let address: IpAddr = master.address().unwrap();
            prop_assert!(!address.is_loopback() && !address.is_unspecified());
            // With a port after it, or without one.
            let mut parts = text
                .split([',', ';', '/', '[', ']'])
                .flat_map(|part| [part, part.rsplit_once(':').unwrap_or((part, "")).0]);
            let named = parts.any(|part| part.parse() == Ok(address));
            prop_assert!(named, "{master}");
        }
        Ok(())
    });
}

fn new_port() -> Port {
    Port::new(free_port()).unwrap()
}

fn part(index: u32, port: Port, timeout: Duration) -> Rendezvous {
    Rendezvous::new(Rank::new(index, 2).unwrap(), Host::LOOPBACK, port)
        .timeout(timeout)
        .token("job 1")
}

/// The fields of a hello and its blob, after a byte that says whether to make a valid proof and tag
/// for them.
fn hello(is_signed: bool, rank: u32, size: u32, blob: &[u8]) -> Vec<u8> {
    let length = u32::try_from(blob.len()).unwrap();
    [&[u8::from(is_signed)], &wire::played(rank, size, true, b"job 1", length).claim()[..], blob]
        .concat()
}

/// The input as it is, or with a valid proof and tag, so that the changes reach the code behind
/// these checks.
fn signed_hello(input: &[u8], greeting: &[u8]) -> Vec<u8> {
    match input.split_first() {
        Some((mark, fields)) if mark & 1 == 1 && fields.len() >= wire::CLAIM => {
            let (claim, blob) = fields.split_at(wire::CLAIM);
            let claim = [&claim[..wire::FIELDS], &*wire::PUBLIC_OF_RANK].concat();
            let mut session = wire::Session::new(b"job 1", greeting, &claim);
            let (proof, tag) = (session.of_rank.tag(b""), session.of_rank.tag(blob));
            [&claim[..], &proof, blob, &tag].concat()
        }
        Some((_, bytes)) => bytes.to_vec(),
        None => Vec::new(),
    }
}

/// The replies as they are, or each with a valid tag, and the number of the meeting encrypted.
fn signed_replies(input: &[u8], direction: &mut wire::Direction) -> Vec<u8> {
    let Some((mark, mut rest)) = input.split_first() else { return Vec::new() };
    let mut out = Vec::new();
    while mark & 1 == 1 && rest.len() >= wire::HEAD {
        let length = u32::from_be_bytes(rest[17..21].try_into().unwrap()) as usize;
        let Some((reply, later)) = rest.split_at_checked(wire::HEAD + length) else { break };
        let mut reply = reply.to_vec();
        if reply[16] == 1 && length == 4 + 32 {
            let number = direction.seal_number(&reply.split_off(wire::HEAD + 4));
            reply[20] = 4 + wire::NUMBER as u8;
            reply.extend(number);
        }
        out.extend(&reply);
        out.extend(direction.tag(&reply));
        rest = later;
    }
    out.extend(rest);
    out
}

const MAGIC: &[u8] = b"mpienv\r\n";

#[test]
fn any_hello_leaves_rank_0_able_to_meet_or_to_say_why_not() {
    let seeds = [
        hello(true, 1, 2, b"blob"),
        hello(false, 1, 2, b""),
        hello(true, 0, 2, b""),
        hello(true, 1, 3, &[7; 100]),
        // Longer than the fields and the proof, so rank 0 checks the proof.
        [&hello(false, 1, 2, b"")[..], &[3; 64]].concat(),
    ];
    let words: &[&[u8]] =
        &[MAGIC, b"\0\x07", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x01", b"GET / HTTP/1.1\r\n"];
    fuzz("hellos", &seeds, words, |bytes| {
        let port = new_port();
        let zero = thread::spawn(move || part(0, port, Duration::from_secs(40)).all_gather("a"));
        let mut stranger = loop {
            match TcpStream::connect(("127.0.0.1", port.get())) {
                Ok(stream) => break stream,
                Err(_) => thread::yield_now(),
            }
        };
        let said = signed_hello(bytes, &wire::hear_greeting(&mut stranger));
        let _ = stranger.write_all(&said);
        let is_proven = bytes.first().is_some_and(|mark| mark & 1 == 1) && said.starts_with(MAGIC);
        // A stranger with the token may take rank 1's place. Rank 1 would then wait for a meeting
        // that is over.
        let patience = Duration::from_millis(if is_proven { 200 } else { 10_000 });
        let one = loop {
            let one = part(1, port, patience).all_gather("b");
            if one.is_ok() || !is_proven || zero.is_finished() {
                break one;
            }
        };
        let zero = zero.join().map_err(|_| TestCaseError::fail("rank 0 panicked"))?;
        match (zero, one) {
            (Ok(zero), Ok(one)) => {
                prop_assert_eq!(zero.members()[1].blob(), b"b");
                prop_assert_eq!(one.members()[0].blob(), b"a");
            }
            // The stranger has the token, so the meeting may be over before rank 1 connects.
            (Err(RendezvousError::Mismatch { .. } | RendezvousError::Lost { .. }), Err(_)) => {
                prop_assert!(is_proven)
            }
            (Ok(zero), Err(_)) => prop_assert!(is_proven && zero.members()[1].blob() != b"b"),
            (zero, one) => return Err(TestCaseError::fail(format!("{zero:?} {one:?}"))),
        }
        Ok(())
    });
}

#[test]
fn any_answer_gives_a_rank_a_meeting_or_an_error_in_time() {
    let reply =
        |kind, payload: &[u8]| wire::reply(kind, u32::try_from(payload.len()).unwrap(), payload);
    let welcome = reply(1, &[&1000u32.to_be_bytes()[..], &[7; 32]].concat());
    let row = |place: &[u8], blob: &[u8]| {
        let length = u32::try_from(blob.len()).unwrap().to_be_bytes();
        [&1u32.to_be_bytes()[..], place, &length, blob].concat()
    };
    let table = [row(&[0], b"a"), row(&[4, 10, 0, 0, 2], b"bcd")].concat();
    let run = [&2u32.to_be_bytes()[..], &[0, 0, 0, 0, 0]].concat();
    let seeds = [
        [welcome.clone(), reply(2, &table)].concat(),
        [welcome.clone(), reply(2, &run)].concat(),
        [welcome.clone(), reply(7, b""), reply(2, &table)].concat(),
        [welcome.clone(), reply(4, b"rank 0 says no")].concat(),
        reply(5, b"rank 0 says no"),
        reply(6, b""),
    ];
    let seeds = seeds.iter().flat_map(|seed| [0, 1].map(|mark| [&[mark], &seed[..]].concat()));
    let seeds: Vec<Vec<u8>> = seeds.collect();
    let words: &[&[u8]] =
        &[MAGIC, b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x02", &welcome, b"\x1b[2J"];
    fuzz("answers", &seeds, words, |bytes| {
        let port = new_port();
        let listener = TcpListener::bind(("127.0.0.1", port.get())).unwrap();
        let bytes = bytes.to_vec();
        let zero = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            if let Ok(mut session) = wire::greet(&mut stream, b"job 1") {
                let _ = stream.write_all(&signed_replies(&bytes, &mut session.of_master));
            }
        });
        let met = part(1, port, Duration::from_millis(20)).all_gather("b");
        // If the time was up before the rank connected, the stand-in still waits for a connection.
        let _ = TcpStream::connect(("127.0.0.1", port.get()));
        zero.join().map_err(|_| TestCaseError::fail("the stand-in for rank 0 panicked"))?;
        match met {
            Ok(meeting) => prop_assert_eq!(meeting.members().len(), 2),
            Err(error) => prop_assert!(!error.to_string().contains(char::is_control), "{error}"),
        }
        Ok(())
    });
}
