use std::fs;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::batch::Order;
use crate::cli::Cuts;
use crate::data::PIXELS;
use mpienv::collective::Group;
use mpienv::collective::threads;
use mpienv_sharding::plan::Collectives;

const PLAN: TrainConfig =
    TrainConfig { epochs: 2, batch_size: 4, learning_rate: 0.1, seed: 1, order: Order::Shuffle };
const LONG: Duration = Duration::from_secs(1200);

fn train_set() -> Dataset {
    Dataset::new(vec![0; 2 * PIXELS], vec![3, 9]).unwrap()
}

fn run_with(plan: &TrainConfig, ranks: u32) -> Run {
    Run::new(plan, None, vec![("weight", vec![2]), ("bias", vec![])], ranks, &train_set())
}

fn settings(folder: &Path, resume: bool) -> Settings {
    Settings { folder: Some(folder.to_owned()), every: NonZeroU64::new(2), resume }
}

/// Begins a run on a single rank. Also returns the remarks.
fn begin(
    settings: &Settings,
    run: Run,
    parameters: &mut Vec<f32>,
) -> (Result<Checkpoints, String>, Vec<String>) {
    let mut remarks = Vec::new();
    let begun = Checkpoints::begin(settings, run, parameters, &mut Group::alone(), &mut |text| {
        remarks.push(text.to_owned())
    });
    (begun.map_err(|error| error.to_string()), remarks)
}

fn refusal(settings: &Settings, run: Run) -> String {
    begin(settings, run, &mut vec![0.0; 3]).0.unwrap_err()
}

/// Saves checkpoints after 0, 2, 4 .. 12 steps, of which 4 .. 12 remain. Every parameter equals the
/// number of steps.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (begun, remarks) =
        begin(&settings(folder.path(), false), run_with(&PLAN, 1), &mut vec![0.0; 3]);
    let checkpoints = begun.unwrap();
    assert_eq!((checkpoints.start(), remarks.len()), (Position::default(), 0));
    for steps in (1..=12).filter(|&steps| checkpoints.steps_until_due(steps - 1) == Some(1)) {
        let path =
            checkpoints.save(position(steps), &[steps as f32; 3], &mut Group::alone()).unwrap();
        assert_eq!(path, Some(path_of(folder.path(), steps)));
    }
    folder
}

fn position(steps: u64) -> Position {
    // This sum does not survive the round trip through a JSON number. The two samples are one step.
    Position { epoch: 1, step: steps - 1, loss_sum: steps as f64 / 3.0 + 0.1 }
}

fn path_of(folder: &Path, steps: u64) -> PathBuf {
    folder.join(format!("checkpoint-{steps:09}.safetensors"))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_last_five_are_kept_and_nothing_else_is_touched() {
    let folder = folder();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let expected = [4, 6, 8, 10, 12].map(|steps| format!("checkpoint-{steps:09}.safetensors"));
    assert_eq!(names(folder.path())[..5], expected);
    let (begun, _) = begin(&settings(folder.path(), true), run_with(&PLAN, 1), &mut Vec::new());
    begun.unwrap().save(position(14), &[0.0; 3], &mut Group::alone()).unwrap();
    assert_eq!(names(folder.path()).len(), 6);
    assert!(folder.path().join("notes.txt").is_file());
}

#[test]
fn the_newest_gives_position_and_parameters_to_the_last_bit() {
    let folder = folder();
    let mut parameters = vec![0.0; 3];
    let (begun, remarks) =
        begin(&settings(folder.path(), true), run_with(&PLAN, 1), &mut parameters);
    assert_eq!((begun.unwrap().start(), parameters), (position(12), vec![12.0; 3]));
    let path = path_of(folder.path(), 12);
    assert_eq!(remarks, [format!("resuming from {}: epoch 1, step 11", path.display())]);
}

#[test]
fn checkpoints_are_not_overwritten_unasked() {
    let folder = folder();
    let error = refusal(&settings(folder.path(), false), run_with(&PLAN, 1));
    let path = path_of(folder.path(), 12);
    let text = "already exists: continue from it with --resume, or name another --checkpoint-dir";
    assert_eq!(error, format!("{} {text}", path.display()));
}

#[test]
fn a_folder_without_checkpoints_begins_with_a_remark() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, remarks) =
        begin(&settings(&folder.path().join("new"), true), run_with(&PLAN, 1), &mut vec![1.0; 3]);
    assert_eq!(begun.unwrap().start(), Position::default());
    assert!(
        remarks[0].ends_with("has no checkpoint to resume from: starting at the first step"),
        "{remarks:?}"
    );
}

#[test]
fn a_checkpoint_of_another_run_is_refused_naming_both() {
    let folder = folder();
    let resume = settings(folder.path(), true);
    let path = path_of(folder.path(), 12);
    let remedy = "; to resume, use the same model, options, data and number of ranks, or name another \
                  --checkpoint-dir";
    for (plan, ranks, text) in [
        (PLAN, 4, "is of another run: it has ranks 1, this run has 4"),
        (TrainConfig { seed: 2, ..PLAN }, 1, "is of another run: it has seed 1, this run has 2"),
        (
            TrainConfig { batch_size: 8, ..PLAN },
            1,
            "is of another run: it has batch size 4, this run has 8",
        ),
        (
            TrainConfig { learning_rate: 0.2, ..PLAN },
            1,
            "is of another run: it has learning rate 0.1, this run has 0.2",
        ),
        (
            TrainConfig { order: Order::File, ..PLAN },
            1,
            "is of another run: it has order shuffle, this run has file",
        ),
    ] {
        assert_eq!(
            refusal(&resume, run_with(&plan, ranks)),
            format!("{} {text}{remedy}", path.display())
        );
    }
    let other_data = Dataset::new(vec![0; 2 * PIXELS], vec![3, 8]).unwrap();
    let run = Run {
        terms: Run::new(&PLAN, None, Vec::new(), 1, &other_data).terms,
        ..run_with(&PLAN, 1)
    };
    let text =
        "it has training set, labels 0 to 9 0 0 0 1 0 0 0 0 0 1, this run has 0 0 0 1 0 0 0 0 1 0";
    assert!(refusal(&resume, run).contains(text));
    let run = Run { shapes: vec![("weight", vec![3])], ..run_with(&PLAN, 1) };
    let text = "is of another model: it has bias (), weight (2); the model has weight (3)";
    assert_eq!(refusal(&resume, run), format!("{} {text}{remedy}", path.display()));
    // The number of epochs may differ.
    assert!(
        begin(&resume, run_with(&TrainConfig { epochs: 9, ..PLAN }, 1), &mut Vec::new()).0.is_ok()
    );
    assert_eq!(names(folder.path()).len(), 5);
}

#[test]
fn a_checkpoint_of_a_sharded_run_is_of_another_model_and_this_programs_is_refused_by_it() {
    use crate::model::Architecture;
    use mpienv_sharding::checkpoint::{Checkpoint, RunId};
    use mpienv_sharding::execute::State;
    use mpienv_sharding::init::Init;
    let folder = folder();
    let error = Checkpoint::read(&path_of(folder.path(), 12)).unwrap_err().to_string();
    assert!(error.contains(": is not a checkpoint of this network: "), "{error}");
    let cuts = Cuts { strategies: Vec::new(), collectives: Collectives::Min };
    let plan = cuts.plan(Architecture::Linear, 0.1, 1, 1).unwrap();
    let init = Init::Normal { seed: 1 };
    let state = State::new(init.parameters(&plan, 0));
    let other = Checkpoint::new(&plan, 0, &state, &RunId::new(&plan, &init));
    other.write(&path_of(folder.path(), 14)).unwrap();
    let error = refusal(&settings(folder.path(), true), run_with(&PLAN, 1));
    assert!(
        error.contains(" is of another model: it has bias (10), bias.momentum (10)"),
        "{error}"
    );
}

#[test]
fn a_checkpoint_that_is_not_whole_is_set_aside_and_the_one_before_is_taken() {
    let folder = folder();
    let cut = fs::read(path_of(folder.path(), 12)).unwrap();
    fs::write(path_of(folder.path(), 12), &cut[..cut.len() - 3]).unwrap();
    let mut changed = fs::read(path_of(folder.path(), 10)).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(path_of(folder.path(), 10), changed).unwrap();
    fs::write(path_of(folder.path(), 8), []).unwrap();
    let mut parameters = Vec::new();
    let (begun, remarks) =
        begin(&settings(folder.path(), true), run_with(&PLAN, 1), &mut parameters);
    assert_eq!((begun.unwrap().start(), parameters), (position(6), vec![6.0; 3]));
    assert_eq!(remarks.len(), 4, "{remarks:?}");
    for (remark, (steps, text)) in remarks.iter().zip([
        (12, "is not a complete safetensors file: "),
        (10, "it has changed since it was written: "),
        (8, "is not a complete safetensors file: "),
    ]) {
        assert!(
            remark.starts_with(&format!("{}: {text}", path_of(folder.path(), steps).display())),
            "{remark}"
        );
        assert!(
            remark.ends_with(&format!(
                "{steps:09}.safetensors.corrupt, and the previous checkpoint is used"
            )),
            "{remark}"
        );
    }
}

#[test]
fn a_checkpoint_in_another_ones_name_is_refused_naming_both() {
    let folder = folder();
    let resume = settings(folder.path(), true);
    let copy = path_of(folder.path(), 14);
    fs::copy(path_of(folder.path(), 8), &copy).unwrap();
    let text = "says 14 steps in its name, but holds epoch 1, step 7, which is after 8 steps: it was renamed or copied; \
                name it checkpoint-000000008.safetensors, or move it away";
    assert_eq!(refusal(&resume, run_with(&PLAN, 1)), format!("{} {text}", copy.display()));
    assert_eq!(names(folder.path()).len(), 6);
    fs::remove_file(copy).unwrap();
    let (begun, _) = begin(&resume, run_with(&PLAN, 1), &mut Vec::new());
    assert_eq!(begun.unwrap().start(), position(12));
}

#[test]
fn what_is_not_a_regular_file_is_refused_at_once_and_left_as_it_is() {
    let folder = folder();
    let resume = settings(folder.path(), true);
    let path = path_of(folder.path(), 14);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    let text = "cannot be read: it is a pipe and not a regular file; --checkpoint-dir must name a folder in which rank 0 \
                can read and write";
    assert_eq!(refusal(&resume, run_with(&PLAN, 1)), format!("{}: {text}", path.display()));
    assert!(fs::symlink_metadata(&path).is_ok() && names(folder.path()).len() == 6);
}

#[test]
fn what_a_killed_run_left_half_written_is_removed() {
    let folder = folder();
    let half = folder.path().join(".checkpoint-000000014.safetensors.4711.part");
    fs::write(&half, "half").unwrap();
    fs::write(folder.path().join(".other.4711.part"), "not ours").unwrap();
    begin(&settings(folder.path(), true), run_with(&PLAN, 1), &mut Vec::new()).0.unwrap();
    assert!(!half.exists() && folder.path().join(".other.4711.part").exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_named_before_any_training() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = refusal(&settings(&file, false), run_with(&PLAN, 1));
    assert!(error.starts_with(&format!("{}: ", file.display())), "{error}");
    assert!(
        error.ends_with("; --checkpoint-dir must name a folder in which rank 0 can read and write"),
        "{error}"
    );
}

#[test]
fn rank_0_decides_for_all_and_its_failure_is_everybodys() {
    let kept = folder();
    let begin = |resume| {
        threads::run(2, LONG, |rank| {
            // Only rank 0's settings count.
            let settings = if rank.rank().is_first() {
                settings(kept.path(), resume)
            } else {
                Settings::default()
            };
            let begun = Checkpoints::begin(
                &settings,
                run_with(&PLAN, 1),
                &mut vec![0.0; 3],
                rank,
                &mut |_| (),
            );
            begun
                .map(|checkpoints| (checkpoints.start(), checkpoints.steps_until_due(0)))
                .map_err(|error| error.to_string())
        })
        .unwrap()
    };
    assert_eq!(begin(true), [Ok((position(12), Some(2))), Ok((position(12), Some(2)))]);
    let errors: Vec<String> = begin(false).into_iter().map(Result::unwrap_err).collect();
    assert!(errors[0].contains("already exists"), "{errors:?}");
    assert_eq!(errors[1], format!("rank 0: {}", errors[0]));
}

#[test]
fn what_rank_0_says_does_not_command_the_terminal_of_another_rank() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("\u{1b}[2J");
    fs::write(&file, "").unwrap();
    let errors = threads::run(2, LONG, |rank| {
        let (settings, run) = (settings(&file, false), run_with(&PLAN, 1));
        let begun = Checkpoints::begin(&settings, run, &mut vec![0.0; 3], rank, &mut |_| ());
        begun.unwrap_err().to_string()
    })
    .unwrap();
    assert!(errors[1].contains("/\u{fffd}[2J: "), "{errors:?}");
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let errors = threads::run(2, LONG, |rank| {
        let begun = Checkpoints::begin(
            &settings(&path, false),
            run_with(&PLAN, 1),
            &mut vec![0.0; 3],
            rank,
            &mut |_| (),
        );
        let checkpoints = begun.unwrap();
        rank.barrier().unwrap();
        if rank.rank().is_first() {
            fs::remove_dir_all(&path).unwrap();
            fs::write(&path, "in the way").unwrap();
        }
        checkpoints.save(position(2), &[0.0; 3], rank).unwrap_err().to_string()
    })
    .unwrap();
    assert!(errors[0].contains("kept: Not a directory"), "{errors:?}");
    assert_eq!(errors[1], format!("rank 0: {}", errors[0]));
}
