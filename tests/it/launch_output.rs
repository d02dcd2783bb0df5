//! What the workers of `mpienv launch` write: whole lines with their rank, files, and the last
//! lines of a failure.

use std::fs;
use std::io::Read;
use std::thread;
use std::time::Duration;

use crate::support::launched::{launch, living, piped, signal, sorted, text};
use crate::support::processes::until;
use crate::support::tool::clean;

#[test]
fn whole_lines_have_their_rank_before_them() {
    // Lines in several pieces, lines of a megabyte, and a last line without a newline.
    let script = "for i in 1 2 3 4 5; do printf \"$RANK.\"; sleep 0.01; echo $i; done; \
                  head -c 1000000 /dev/zero | tr '\\0' $RANK; echo; printf end; echo err >&2";
    let output = launch("lines", 4, &[], script).output().unwrap();
    assert!(output.status.success());
    let found = sorted(&output.stdout);
    assert_eq!(found.len(), 4 * 7);
    for rank in 0..4 {
        let prefix = format!("[{rank}] ");
        let mut own: Vec<_> = found.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
        own.sort_by_key(|line| line.len());
        let short = [1, 2, 3, 4, 5].map(|number| format!("{rank}.{number}"));
        assert_eq!(own[..6], [&short[0], &short[1], &short[2], &short[3], &short[4], "end"]);
        let long = own.last().unwrap();
        assert!(
            long.len() == 1_000_000 && long.bytes().all(|byte| byte == b'0' + rank),
            "{}",
            long.len()
        );
    }
    assert_eq!(sorted(&output.stderr), ["[0] err", "[1] err", "[2] err", "[3] err"]);
}

#[test]
fn output_goes_to_files_when_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("a/b");
    // Rank 1 fails after rank 0 has written.
    let script = "echo out $RANK; echo err $RANK >&2; test $RANK = 0 && exec sleep 3000; \
                  while ! test -s $LOGS/rank.0/stdout; do sleep 0.01; done; exit 3";
    let mut command = launch("logs", 2, &["--log-dir", logs.to_str().unwrap()], script);
    let output = command.env("LOGS", &logs).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""));
    let file = logs.join("rank.1/stderr");
    assert!(
        text(&output.stderr)
            .contains(&format!("its stderr ends with: err 1 ({})\n", file.display()))
    );
    assert_eq!(fs::read_to_string(file).unwrap(), "err 1\n");
    for rank in ["0", "1"] {
        let stdout = fs::read_to_string(logs.join(format!("rank.{rank}/stdout"))).unwrap();
        assert_eq!(stdout, format!("out {rank}\n"));
    }
    let output = launch("logs", 1, &["--log-dir", "/dev/null/logs"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write \"/dev/null/logs\": "));
}

#[test]
fn a_launch_does_not_destroy_the_files_to_which_another_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    let named = logs.to_str().unwrap();
    let is_over = folder.path().join("over");
    let waits = "echo first; while ! test -e $OVER; do sleep 0.01; done; echo last";
    let fails_once = format!("test $MPIENV_RESTART_COUNT = 1 || exit 1; {waits}");
    for (options, script, of_first, running) in [
        (&["--log-dir", named][..], waits, "rank.0", "rank.0"),
        // The second launch would start in the folder of the attempt that is over.
        (
            &["--log-dir", named, "--max-restarts", "1"],
            &fails_once,
            "attempt_0/rank.0",
            "attempt_1/rank.0",
        ),
    ] {
        let file = logs.join(running).join("stdout");
        let has_begun = || fs::read_to_string(&file).is_ok_and(|text| text == "first\n");
        let mut command = launch("shared", 1, options, script);
        let mut first = command.env("OVER", &is_over).spawn().unwrap();
        until("the first launch's worker writes", has_begun);
        let second = launch("shared", 1, options, "echo second").output().unwrap();
        let said = text(&second.stderr);
        assert_eq!(second.status.code(), Some(1), "{said}");
        let expected = format!(
            "cannot write {:?}: another launch writes there; wait until it ends, or choose another \
             folder for the workers' output",
            logs.join(of_first)
        );
        assert!(said.contains(&expected), "{said}");
        fs::write(&is_over, "").unwrap();
        assert!(first.wait().unwrap().success());
        assert_eq!(fs::read_to_string(&file).unwrap(), "first\nlast\n");
        fs::remove_file(&is_over).unwrap();
        // A lock is gone with its launch, however that ends.
        let mut command = launch("shared", 1, options, script);
        let mut first = command.env("OVER", &is_over).spawn().unwrap();
        until("the worker of the launch that is killed writes", has_begun);
        signal("KILL", &first);
        first.wait().unwrap();
        let next = launch("shared", 1, options, "echo next").output().unwrap();
        assert!(next.status.success(), "{}", text(&next.stderr));
        fs::remove_dir_all(&logs).unwrap();
    }
    until("nothing is left", || living("shared").is_empty());
}

#[test]
fn a_failures_last_lines_are_quoted_once_if_they_are_not_in_sight() {
    // In a file.
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().to_str().unwrap();
    let output =
        launch("quoted", 1, &["--log-dir", logs], "seq 11 15 >&2; exit 3").output().unwrap();
    let said = text(&output.stderr);
    let quote = format!(
        " failed with exit code 3\n  last lines of its stderr ({logs}/rank.0/stderr):\n    11\n    12\n    13\n    14\n    15\n"
    );
    assert!(said.ends_with(&quote), "{said}");
    // Followed by many lines.
    let output =
        launch("quoted", 1, &[], "seq 11 15 >&2; sleep 1; seq 100; exit 3").output().unwrap();
    let said = text(&output.stderr);
    let quote = "[0] 15\nmpienv: rank 0 on ";
    assert!(said.contains(quote), "{said}");
    assert!(
        said.ends_with(
            " failed with exit code 3\n  last lines of its stderr:\n    11\n    12\n    13\n    14\n    15\n"
        )
    );
}

#[test]
fn workers_learn_that_their_reader_has_left() {
    let mut command = clean("sh");
    command.args(["-c", "mpienv launch --nproc-per-node 2 -- yes | head -n 1"]);
    assert!(command.output().unwrap().stdout.ends_with(b"] y\n"));
}

#[test]
fn a_reader_that_takes_its_time_gets_every_line() {
    let mut command = clean("bash");
    let launch = "mpienv launch --nproc-per-node 2 -- sh -c 'seq 1 20000; seq 1 10 >&2' 2>&1";
    command.args(["-c", &format!("{launch} | (sleep 2.5; wc -l); echo ${{PIPESTATUS[@]}}")]);
    assert_eq!(text(&command.output().unwrap().stdout), "40020\n0 0\n");
}

#[test]
fn a_signal_ends_a_launch_whose_reader_never_reads() {
    // If output cannot be written, the launch does not succeed, and no report is lost.
    for (script, exit) in [
        ("seq 1 12000", Err(15)),
        ("seq 1 12000; exit 3", Ok(3)),
        ("seq 1 12000 >&2; exit 3", Err(15)),
    ] {
        let mut child = piped(&mut launch("unread", 1, &[], script));
        until(
            "the launch is alone",
            || matches!(&living("unread")[..], [one] if one.starts_with("mpienv launch ")),
        );
        // It waits for the reader, as cat would, and longer than it waits for a process that is not
        // a worker.
        thread::sleep(Duration::from_millis(1500));
        assert!(child.try_wait().unwrap().is_none());
        signal("TERM", &child);
        let status = child.wait().unwrap();
        let ended = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(status.code().ok_or(ended.unwrap_or(0)), exit, "{script}: {status}");
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said.contains(" failed with exit code 3"), exit.is_ok(), "{script}: {said}");
        until("nothing is left", || living("unread").is_empty());
    }
}
