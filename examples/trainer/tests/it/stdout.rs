//! Different targets of stdout: a reader that closes early, and a full disk.

use crate::support::mnist::rank;
use crate::support::port::free_port;
use crate::support::shell::{
    assert_all_end_with_a_reader, assert_ends_with_its_reader, assert_finds_no_room, bash, said,
};
use crate::support::timeout::PATIENT;

const MNIST: &str = env!("CARGO_BIN_EXE_mnist");

#[test]
fn a_run_whose_reader_has_enough_ends_without_a_word() {
    for words in [
        "mnist --epochs 1000000",
        "mnist --epochs 1000000 --log-steps",
        "mnist --epochs 1000000 --ranks 2 --log-steps --timeout 1200",
        "mnist --epochs 1000000 --ranks 2 --timeout 1200 --strategy '((2,1),(1,1))'",
    ] {
        assert_ends_with_its_reader(MNIST, words, "| head -n 1");
    }
}

#[test]
fn a_reader_that_leaves_before_the_last_lines_causes_no_error_message() {
    for words in ["mnist --epochs 1 --quiet", "mnist plan"] {
        assert_ends_with_its_reader(MNIST, &format!("(sleep 0.3; exec {words})"), "| true");
    }
}

#[test]
fn a_rank_whose_reader_is_gone_stops_the_others_and_none_calls_it_lost() {
    let port = free_port();
    assert_all_end_with_a_reader([0, 1].map(|index| {
        let mut command = rank(index, 2, port);
        command.args(["--epochs", "1000000", "--log-steps", "--timeout", PATIENT]);
        command
    }));
}

#[test]
fn help_and_plans_that_find_no_room_are_an_error() {
    for words in ["mnist --help", "mnist -V", "mnist plan"] {
        assert_finds_no_room(MNIST, words);
    }
}

#[test]
fn a_run_that_finds_no_room_for_its_lines_names_stdout() {
    let output = bash(MNIST, "mnist --epochs 1 --quiet", ">/dev/full");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = "mnist: cannot write the reports: stdout: No space left on device";
    assert!(said(&output).starts_with(text), "{}", said(&output));
}

#[test]
fn a_file_beyond_the_limit_of_file_sizes_is_an_error_and_not_a_signal() {
    for ranks in ["", "--ranks 2"] {
        // Bash counts in blocks of 1024 bytes. The model alone has 31,400.
        let output = bash(
            MNIST,
            &format!("(ulimit -f 4; exec mnist --epochs 1 {ranks} --quiet --checkpoint-dir kept)"),
            "2>&1",
        );
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("kept/checkpoint-") && said.contains("File too large"), "{said}");
    }
}
