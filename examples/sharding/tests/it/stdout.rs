//! Different targets of stdout: a reader that closes early, and a full disk.

use crate::support::port::free_port;
use crate::support::rank::rank_of;
use crate::support::shell::{
    assert_all_end_with_a_reader, assert_ends_with_its_reader, assert_finds_no_room,
};
use crate::support::timeout::PATIENT;

const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");

#[test]
fn a_run_whose_reader_leaves_ends_without_a_word() {
    let words = "quickstart --threads 2 --epochs 100000";
    assert_ends_with_its_reader(QUICKSTART, words, "| head -n 1");
    for words in ["quickstart plan", "quickstart --threads 2 --epochs 1"] {
        assert_ends_with_its_reader(QUICKSTART, &format!("(sleep 0.3; exec {words})"), "| true");
    }
}

#[test]
fn a_rank_whose_reader_is_gone_stops_the_others_and_none_calls_it_lost() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    assert_all_end_with_a_reader([0, 1].map(|index| {
        let mut command = rank_of(QUICKSTART, index, 2, port);
        command.args(["--epochs", "100000", "--timeout", PATIENT, "--output"]).arg(folder.path());
        command
    }));
}

#[test]
fn help_and_plans_that_find_no_room_are_an_error() {
    for words in ["quickstart --help", "quickstart plan --help", "quickstart plan"] {
        assert_finds_no_room(QUICKSTART, words);
    }
}
