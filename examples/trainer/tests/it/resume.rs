//! A run that was stopped resumes to the same bits, and replicas that differ make it fail.

use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use crate::support::few_digits::few_digits;
use crate::support::watched::{Watch, watched};
use mpienv::collective::seam::{Numbers, Reduce, Transport};
use mpienv::collective::{CollectiveError, Group, threads};
use mpienv_sharding::error::{Error, Reach};
use mpienv_trainer::batch::Order;
use mpienv_trainer::checkpoint::{Checkpoints, Run, Settings};
use mpienv_trainer::data::Datasets;
use mpienv_trainer::model::Model;
use mpienv_trainer::model::linear::Linear;
use mpienv_trainer::stop::{Signal, Stop};
use mpienv_trainer::train::{self, Epoch, Report, Step, TrainConfig};

const TIMEOUT: Duration = Duration::from_secs(1200);
const RANKS: u32 = 3;
/// 1601 samples in batches of 3 x 16: 34 steps, the last one smaller.
const PLAN: TrainConfig =
    TrainConfig { epochs: 3, batch_size: 16, learning_rate: 0.01, seed: 5, order: Order::Shuffle };
const STEPS: u64 = 34;

/// Records what is reported, and requests a stop after a step.
#[derive(Default)]
struct Curve {
    steps: Vec<Step>,
    /// Train and test loss of each epoch, as bits.
    epochs: Vec<(u32, u64, u64)>,
    stop_at: Option<(Stop, Step)>,
}

impl Report for Curve {
    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.steps.push(*step);
        if let Some((stop, at)) = &self.stop_at
            && (step.epoch, step.step) == (at.epoch, at.step)
        {
            stop.raise(Signal::Terminate);
        }
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.epochs.push((epoch.epoch, epoch.train_loss.to_bits(), epoch.test_loss.to_bits()));
        Ok(())
    }
}

/// Trains on one rank; rank 1 requests a stop after the step that is reported as `stop_at`.
fn run(
    data: &Datasets,
    settings: &Settings,
    rank: &mut Group,
    stop_at: Option<(u32, usize)>,
) -> (Result<(), Error>, Curve, Vec<f32>) {
    let mut model = Linear::new(64);
    let mut parameters = model.initial_parameters(PLAN.seed);
    let terms = Run::new(&PLAN, None, model.parameter_shapes(), RANKS, &data.train);
    let mut curve = Curve::default();
    let begun = Checkpoints::begin(settings, terms, &mut parameters, rank, &mut |_| ());
    let checkpoints = begun.unwrap();
    if let Some((epoch, step)) = stop_at.filter(|_| rank.rank().index() == 1) {
        curve.stop_at = Some((checkpoints.stop.clone(), Step { epoch, step, loss: 0.0 }));
    }
    let (group, checkpoints, report) = (rank, &checkpoints, &mut curve);
    let training = train::Training { data, config: &PLAN, group, checkpoints, report };
    let done = training.data_parallel(&mut model, &mut parameters);
    (done, curve, parameters)
}

fn settings(folder: &Path, resume: bool) -> Settings {
    Settings { folder: Some(folder.to_owned()), every: NonZeroU64::new(7), resume }
}

fn bits(parameters: &[f32]) -> Vec<u32> {
    parameters.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_run_that_is_stopped_twice_ends_with_the_bits_of_one_that_is_not() {
    let data = few_digits(1601, 100);
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let on_all = |settings: &Settings, stop_at| {
        threads::run(RANKS, TIMEOUT, |rank| run(&data, settings, rank, stop_at))
    };
    let uninterrupted = on_all(&settings(whole.path(), false), None).unwrap();
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); RANKS as usize];
    let mut epochs = Vec::new();
    // In the middle of the first epoch, and then in the last step that the third epoch reports.
    for (resume, stop_at, stopped) in [
        (false, Some((0, 10)), Some((0, 12))),
        (true, Some((2, 30)), Some((2, 32))),
        (true, None, None),
    ] {
        let part = on_all(&settings(parts.path(), resume), stop_at).unwrap();
        for (index, (done, curve, parameters)) in part.into_iter().enumerate() {
            match (done, stopped) {
                // All ranks learn of the signal in the step after the one in which it arrived.
                (Err(error), Some((epoch, step))) => {
                    let stopped =
                        format!("stopped by SIGTERM in epoch {epoch} after {step} steps; ");
                    assert!(error.text.starts_with(&stopped), "{error}");
                    assert_eq!(error.text.contains("rank 0 has written"), index != 0, "{error}");
                    assert_eq!((error.code, error.reach), (143, Reach::First));
                }
                (Ok(()), None) => assert_eq!(bits(&parameters), bits(&uninterrupted[index].2)),
                (done, _) => panic!("{stop_at:?}: {done:?}"),
            }
            steps[index].extend(curve.steps);
            if index == 0 {
                epochs.extend(curve.epochs);
            }
        }
    }
    for (steps, (_, curve, _)) in steps.iter().zip(&uninterrupted) {
        assert_eq!(*steps, curve.steps);
    }
    assert_eq!(epochs, uninterrupted[0].1.epochs);
    // The files also have the same bytes, because the last ones are from the same steps.
    let last = format!("checkpoint-{:09}.safetensors", 3 * STEPS);
    let read = |folder: &tempfile::TempDir| std::fs::read(folder.path().join(&last)).unwrap();
    assert_eq!(read(&parts), read(&whole));
}

#[test]
fn every_checkpoint_leads_to_the_same_bits() {
    let data = few_digits(1601, 100);
    let folder = tempfile::tempdir().unwrap();
    let on_all = |settings: &Settings| {
        threads::run(RANKS, TIMEOUT, |rank| run(&data, settings, rank, None)).unwrap()
    };
    let whole = on_all(&settings(folder.path(), false));
    let mut files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 5);
    // Tries each checkpoint by itself, starting with the newest.
    while let Some(newest) = files.pop() {
        let own = tempfile::tempdir().unwrap();
        std::fs::copy(&newest, own.path().join(newest.file_name().unwrap())).unwrap();
        let again = on_all(&settings(own.path(), true));
        assert!(
            again
                .iter()
                .all(|(done, _, parameters)| done.is_ok() && bits(parameters) == bits(&whole[0].2))
        );
    }
}

/// A rank whose tenth sum has one bit flipped.
struct Faulty {
    sums: u32,
}

impl Watch for Faulty {
    fn reduce(
        &mut self,
        transport: &mut dyn Transport,
        reduce: Reduce,
        mut numbers: Numbers<'_>,
    ) -> Result<(), CollectiveError> {
        let values = Numbers::new(numbers.as_mut::<f32>().unwrap());
        transport.reduce(reduce, values)?;
        self.sums += 1;
        if self.sums == 10 {
            let values = numbers.as_mut::<f32>().unwrap();
            values[300] = f32::from_bits(values[300].to_bits() ^ (1 << 22));
        }
        Ok(())
    }

    fn of_part(&self) -> Faulty {
        unreachable!("data-parallel training splits no group")
    }
}

#[test]
fn a_rank_whose_parameters_differ_is_named_by_all_and_nothing_is_kept_of_it() {
    let data = few_digits(1601, 100);
    for keeps in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let settings = if keeps { settings(folder.path(), false) } else { Settings::default() };
        let errors = threads::run(RANKS, TIMEOUT, |rank| {
            let odd = rank.rank().index() == 2;
            let done = if odd {
                let group = std::mem::replace(rank, Group::alone());
                run(&data, &settings, &mut watched(group, Faulty { sums: 0 }), None)
            } else {
                run(&data, &settings, rank, None)
            };
            done.0.unwrap_err().to_string()
        })
        .unwrap();
        // Detected at the next checkpoint, or else at the end of the epoch.
        let step = if keeps { 14 } else { STEPS };
        let text = format!("epoch 0, step {step}: rank 2 holds other parameters than ranks 0, 1: ");
        assert!(errors.iter().all(|error| error.starts_with(&text)), "{errors:?}");
        let kept = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(kept, if keeps { 2 } else { 0 });
    }
}
