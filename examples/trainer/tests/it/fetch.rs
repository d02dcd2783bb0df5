//! `mnist fetch` with working and faulty servers.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::data::real_mnist;
use crate::support::server::{Answer, Server, etag};
use crate::support::tool::missing;
use flate2::Compression;
use flate2::write::GzEncoder;
use mpienv_sharding::file;
use mpienv_trainer::fetch::{Content, Fetch};

const PATH: &str = "/mnist/a.gz";

/// Incompressible bytes, so that the packed file has about the same length.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..200_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The right file, packed.
fn right() -> Vec<u8> {
    packed(&bytes(1))
}

/// The right file with a different byte in its middle.
fn corrupt() -> Vec<u8> {
    let mut file = right();
    file[100_000] ^= 1;
    file
}

fn serve(answers: &[Answer]) -> Server {
    Server::start(HashMap::from([(PATH.to_owned(), answers.to_vec())]))
}

/// The result of fetching from the servers: the standard output, the progress messages, and the
/// final result.
///
/// They may be silent for longer than any test waits.
fn fetch(folder: &Path, servers: &[&Server]) -> (String, String, Result<(), String>) {
    fetch_within(3 * SLACK, folder, servers)
}

/// For servers that stall. A busy machine may take nearly as long to answer.
const SHORT: Duration = Duration::from_secs(8);

/// The same with the time that a server may be silent.
fn fetch_within(
    timeout: Duration,
    folder: &Path,
    servers: &[&Server],
) -> (String, String, Result<(), String>) {
    let bytes = bytes(1);
    let hex = file::sha256(&bytes);
    let fetch = Fetch {
        files: vec![Content { name: "a", size: bytes.len() as u64, sha256: hex.leak() }],
        folder: folder.to_owned(),
        mirrors: servers.iter().map(|server| format!("{}/mnist/", server.url)).collect(),
        timeout,
    };
    let (mut out, mut remarks) = (Vec::new(), Vec::new());
    let result = fetch.run(&mut out, &mut remarks).map_err(|error| error.to_string());
    (String::from_utf8(out).unwrap(), String::from_utf8(remarks).unwrap(), result)
}

/// Asserts that the folder contains only the right file.
#[track_caller]
fn assert_whole(folder: &Path, file: &[u8]) {
    assert!(fs::read(folder.join("a.gz")).unwrap() == file, "other bytes");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
}

fn ranges(server: &Server) -> Vec<Option<String>> {
    server.asked().into_iter().map(|request| request.range).collect()
}

#[test]
fn a_server_that_does_well_is_asked_once_and_never_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&[Answer::File(right())]);
    let path = folder.path().join("new/folder");
    let (out, remarks, result) = fetch(&path, &[&server]);
    assert_eq!((remarks.as_str(), result), ("", Ok(())));
    assert!(out.contains(&format!("from {}/mnist/a.gz, SHA-256 verified\n", server.url)), "{out}");
    assert!(
        out.ends_with(&format!("MNIST is complete: mnist --data {}\n", path.display())),
        "{out}"
    );
    assert_whole(&path, &right());
    let (out, _, result) = fetch(&path, &[&server]);
    assert_eq!((server.asked().len(), result), (1, Ok(())));
    assert!(out.contains("a.gz already exists"), "{out}");
}

#[test]
fn a_transfer_that_is_cut_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        serve(&[Answer::Cut(right(), 50_000), Answer::Cut(right(), 70_000), Answer::File(right())]);
    let (_, remarks, result) = fetch(folder.path(), &[&server]);
    assert_eq!(result, Ok(()));
    assert!(
        remarks.contains("resuming at byte 50000\n")
            && remarks.contains("resuming at byte 120000\n"),
        "{remarks}"
    );
    assert_whole(folder.path(), &right());
    let asked = server.asked();
    assert_eq!(asked[1].range.as_deref(), Some("bytes=50000-"));
    assert_eq!(asked[1].if_range, Some(etag(&right())));
}

#[test]
fn a_fetch_that_failed_goes_on_when_it_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = Answer::Cut(right(), 0);
    let server = serve(&[Answer::Cut(right(), 50_000), nothing, Answer::File(right())]);
    let (_, _, result) = fetch(folder.path(), &[&server]);
    assert!(result.unwrap_err().starts_with("a.gz could not be fetched: "));
    assert!(!folder.path().join("a.gz").exists());
    assert_eq!(fetch(folder.path(), &[&server]).2, Ok(()));
    assert_eq!(ranges(&server)[2].as_deref(), Some("bytes=50000-"));
    assert_whole(folder.path(), &right());
}

#[test]
fn a_mirror_that_sends_nothing_leaves_the_part_of_another() {
    for status in ["404 Not Found", "416 Range Not Satisfiable", "206 Partial Content"] {
        let folder = tempfile::tempdir().unwrap();
        let nothing = Answer::Cut(right(), 0);
        let first = serve(&[Answer::Cut(right(), 50_000), nothing, Answer::File(right())]);
        let other = serve(&[Answer::Status(status)]);
        assert!(fetch(folder.path(), &[&first, &other]).2.is_err());
        assert_eq!(other.asked().len(), 1);
        assert_eq!(fetch(folder.path(), &[&first]).2, Ok(()));
        assert_eq!(ranges(&first)[2].as_deref(), Some("bytes=50000-"), "{status}");
        assert_whole(folder.path(), &right());
    }
}

#[test]
fn a_mirror_that_sends_the_file_replaces_the_longer_part_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let long = [right(), right()].concat();
    let first = serve(&[Answer::Cut(long.clone(), 300_000), Answer::Cut(long, 0)]);
    let other = serve(&[Answer::File(right())]);
    assert_eq!(fetch(folder.path(), &[&first, &other]).2, Ok(()));
    assert_eq!(ranges(&other), [None]);
    assert_whole(folder.path(), &right());
}

#[test]
fn a_part_goes_on_where_it_ended_or_is_fetched_again_from_its_beginning() {
    let cut = || Answer::Cut(right(), 50_000);
    for (what, part, answers, ranges_asked) in [
        // It sends the whole file, because the ETag is another one.
        (
            "a file that changed",
            None,
            vec![Answer::Cut(packed(&bytes(2)), 50_000), Answer::File(right())],
            &[0, 50_000][..],
        ),
        ("a server without ranges", None, vec![cut(), Answer::Whole(right())], &[0, 50_000]),
        (
            "a server that sends another range",
            None,
            vec![cut(), Answer::OtherRange(right()), Answer::File(right())],
            &[0, 50_000, 0],
        ),
        (
            "a server that stalls",
            None,
            vec![Answer::Stall(right(), 50_000), Answer::File(right())],
            &[0, 50_000],
        ),
        (
            "a part longer than the file",
            Some(vec![0; 300_000]),
            vec![Answer::File(right())],
            &[300_000, 0],
        ),
        (
            "pieces that do not fit",
            Some(corrupt()[..150_000].to_vec()),
            vec![Answer::File(right())],
            &[150_000, 0],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = serve(&answers);
        if let Some(part) = part {
            let origin = format!("{}{PATH}\n", server.url);
            fs::write(folder.path().join("a.gz.part"), part).unwrap();
            fs::write(folder.path().join("a.gz.part.from"), origin).unwrap();
        }
        let stalls = matches!(answers[0], Answer::Stall(..));
        let timeout = if stalls { SHORT } else { 3 * SLACK };
        assert_eq!(fetch_within(timeout, folder.path(), &[&server]).2, Ok(()), "{what}");
        let range = |&start: &u32| (start > 0).then(|| format!("bytes={start}-"));
        assert_eq!(ranges(&server), ranges_asked.iter().map(range).collect::<Vec<_>>(), "{what}");
        assert_whole(folder.path(), &right());
    }
}

#[test]
fn a_byte_that_is_wrong_sends_to_the_next_mirror() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, good) = (serve(&[Answer::File(corrupt())]), serve(&[Answer::File(right())]));
    let (_, remarks, result) = fetch(folder.path(), &[&bad, &good]);
    assert_eq!(result, Ok(()));
    assert!(
        remarks.contains("the file is not MNIST's: the SHA-256 of its content is "),
        "{remarks}"
    );
    assert_eq!(ranges(&bad), [None]);
    assert_whole(folder.path(), &right());
}

#[test]
fn a_server_that_is_silent_is_left_after_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let (silent, good) = (serve(&[Answer::Stall(right(), 0)]), serve(&[Answer::File(right())]));
    let start = Instant::now();
    let (_, remarks, result) = fetch_within(SHORT, folder.path(), &[&silent, &good]);
    assert_eq!(result, Ok(()));
    assert!(remarks.contains("the server was silent for 8s"), "{remarks}");
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert_whole(folder.path(), &right());
}

#[test]
fn a_server_that_answers_with_an_error_is_left_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let bad = [
        serve(&[Answer::Status("404 Not Found")]),
        serve(&[Answer::Status("500 Internal Server Error")]),
    ];
    let good = serve(&[Answer::File(right())]);
    let (_, remarks, result) = fetch(folder.path(), &[&bad[0], &bad[1], &good]);
    assert_eq!(result, Ok(()));
    assert!(remarks.contains("the server answered 404 Not Found\n"), "{remarks}");
    assert!(remarks.contains("the server answered 500 Internal Server Error\n"), "{remarks}");
    assert!(bad.iter().all(|server| server.asked().len() == 1));
    assert_whole(folder.path(), &right());
}

#[test]
fn a_file_that_is_nowhere_is_named_with_what_each_mirror_did() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [serve(&[Answer::Status("404 Not Found")]), serve(&[Answer::File(corrupt())])];
    let (out, _, result) = fetch(folder.path(), &[&servers[0], &servers[1]]);
    let error = result.unwrap_err();
    assert!(error.starts_with("a.gz could not be fetched: http://127.0.0.1:"), "{error}");
    assert!(error.contains("404 Not Found; http://127.0.0.1:"), "{error}");
    assert!(
        error.ends_with(
            "; try another mirror with --mirror URL, or put the files into the folder by hand"
        ),
        "{error}"
    );
    assert_eq!(out, "");
    assert!(!folder.path().join("a.gz").exists());
}

#[test]
fn a_server_that_sends_on_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let good = serve(&[Answer::File(right())]);
    let first = serve(&[Answer::Redirect(format!("{}{PATH}", good.url))]);
    assert_eq!(fetch(folder.path(), &[&first]).2, Ok(()));
    assert_whole(folder.path(), &right());
}

#[test]
fn a_server_that_unpacks_the_file_is_well_too() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(fetch(folder.path(), &[&serve(&[Answer::File(bytes(1))])]).2, Ok(()));
    assert_whole(folder.path(), &bytes(1));
}

#[test]
fn a_file_that_is_not_mnists_is_not_overwritten() {
    for name in ["a", "a.gz"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), "mine").unwrap();
        let server = serve(&[Answer::File(right())]);
        let error = fetch(folder.path(), &[&server]).2.unwrap_err();
        assert!(error.contains("already exists but is not MNIST's"), "{error}");
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"mine");
        assert!(server.asked().is_empty());
    }
}

fn mnist(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.args(arguments).env_clear();
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_program_names_the_mirror_and_ends_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&[Answer::File(right())]);
    let output =
        mnist(&["fetch", "--only", "--mirror", &server.url]).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("train-images-idx3-ubyte.gz could not be fetched: "),
        "{}",
        said(&output)
    );
    assert_eq!(server.asked()[0].path, "/train-images-idx3-ubyte.gz");
}

#[test]
fn ranks_do_not_fetch() {
    let mut command = mnist(&["fetch", "d", "--only", "--mirror", "http://127.0.0.1:1"]);
    let output = command
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("this is one of 2 ranks"), "{}", said(&output));
}

#[test]
fn mnist_itself_is_fetched_and_trained_on() {
    let Some((folder, _)) = real_mnist() else { return };
    let names = mpienv_trainer::fetch::FILES.map(|file| format!("{}.gz", file.name));
    let read =
        |name| Some((format!("/{name}"), vec![Answer::File(fs::read(folder.join(name)).ok()?)]));
    let Some(files) = names.iter().map(read).collect() else {
        return missing("packed MNIST (set DATA_PATH)");
    };
    let server = Server::start(files);
    let folder = tempfile::tempdir().unwrap();
    let output =
        mnist(&["fetch", "--only", "--mirror", &server.url]).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let output =
        mnist(&["--epochs", "1", "--quiet", "--data"]).arg(folder.path()).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("test accuracy is 0.9"),
        "{}",
        said(&output)
    );
}
