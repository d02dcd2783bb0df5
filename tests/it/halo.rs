//! What a solver's ranks print and return if one of them hangs, panics or makes another call
//! between messages.

use std::process::{Command, Output};

use crate::collective::example;
use crate::mpi;
use crate::support::launched::{launch, text};
use crate::support::timeout::in_time;

/// Starts three ranks with `mpienv launch`.
fn launched(backend: &str, mistake: &str) -> Output {
    let script = format!("exec {} {backend} 1200 {mistake}", example("collective_halo").display());
    launch("halo", 3, &[], &script).output().unwrap()
}

/// Prints the exit code of a rank: Hydra may return 9, the signal with which it kills the others.
const SAYS_CODE: &str = r#""$0" "$@"; code=$?; echo "code $code"; exit $code"#;

/// Runs ranks under each of the system's MPI launchers, with longer and longer timeouts until they
/// print what is expected.
fn over_mpi(ranks: u32, mistake: &str, wanted: &str, check: impl Fn(&Output)) {
    for launcher in mpi::of_system() {
        let run = |timeout: u32| {
            let _guard = mpi::one_of_two_jobs();
            let mut command: Command = mpi::command(launcher.as_ref());
            command.args(["-n", &ranks.to_string(), "sh", "-c", SAYS_CODE]);
            command.arg(example("collective_halo"));
            command.args(["mpi", &timeout.to_string(), mistake]).output().unwrap()
        };
        check(&in_time(run, |output| text(&output.stderr).contains(wanted)));
    }
}

#[test]
fn a_rank_that_hangs_in_a_halo_exchange_over_mpi_is_named_and_the_exit_code_is_124() {
    over_mpi(3, "hang", "rank 1 on ", |output| {
        let said = text(&output.stderr);
        assert!(
            said.contains(
                " s: it hangs, waits in another call, is cut off, or needs a longer timeout"
            ),
            "{said}"
        );
        assert!(text(&output.stdout).contains("code 124"), "{output:?}");
        assert!(!said.contains("rank 0 on ") && !said.contains("rank 2 on "), "{said}");
    });
}

#[test]
fn no_rank_is_blamed_over_mpi_if_one_calls_barrier_and_the_other_send_receive() {
    over_mpi(2, "barrier", " s; which one is unknown", |output| {
        let said = text(&output.stderr);
        let waits = ["rank 0 waited in ", "rank 1 waited in "];
        assert!(waits.iter().any(|waits| said.contains(waits)), "{said}");
        assert!(said.contains(" in the group of ranks 0-1: compare "), "{said}");
        assert!(!said.contains("it hangs, "), "{said}");
        assert!(text(&output.stdout).contains("code 124"), "{output:?}");
    });
}

#[test]
fn an_error_over_mpi_is_the_only_line_of_a_rank_whose_call_has_failed() {
    let rule = ": a message needs the same count and type on both ranks";
    over_mpi(2, "length", rule, |output| {
        let said = text(&output.stderr);
        assert!(!said.contains("leaves MPI without MPI_Finalize"), "{said}");
        assert!(text(&output.stdout).contains("code 3"), "{output:?}");
    });
}

#[test]
fn a_plate_in_blocks_gets_the_same_heat_from_any_number_of_ranks() {
    let plate = |ranks: u32| {
        let script = format!("exec {}", example("heat2d").display());
        let output = launch("plate", ranks, &[], &script).output().unwrap();
        assert!(output.status.success(), "{ranks}: {output:?}");
        text(&output.stdout)
    };
    let alone = plate(1);
    assert!(alone.ends_with("1037 steps; the middle has 0.1936494637\n"), "{alone}");
    // A row of blocks, blocks of unequal sizes, and grids.
    for ranks in [2, 4, 5, 6] {
        assert_eq!(plate(ranks), alone, "{ranks}");
    }
}

/// Checks what the ranks print after this mistake, over shared memory and over TCP.
fn check_that_ranks_say(mistake: &str, wanted: &[&str]) {
    for backend in ["shared-memory", "tcp"] {
        let said = text(&launched(backend, mistake).stderr);
        for part in wanted {
            assert!(said.contains(part), "{backend}: {said}");
        }
    }
}

#[test]
fn two_ranks_that_both_send_learn_that_one_must_receive() {
    let rule = ": one rank must receive what the other sends, with the same count and type; send_receive does both";
    check_that_ranks_say("send", &[rule]);
}

#[test]
fn a_halo_of_another_length_is_named_with_both_lengths() {
    let rule = ": a message needs the same count and type on both ranks";
    check_that_ranks_say("length", &[rule, " of 3 f64 ", " of 4 f64 "]);
}

#[test]
fn a_rank_that_panics_is_the_one_that_failed() {
    for backend in ["shared-memory", "tcp"] {
        for _ in 0..5 {
            let output = launched(backend, "panic");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(101), "{backend}: {said}");
            let failed = said.lines().find(|line| line.starts_with("mpienv: rank 1 on "));
            assert!(
                failed.is_some_and(|line| line.contains(" failed with exit code 101")),
                "{said}"
            );
        }
    }
}
