//! The same numbers as PyTorch and MindSpore, on real MNIST.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fs, io};

use mpienv_trainer::checkpoint::Checkpoints;
use mpienv_trainer::collective::threads;
use mpienv_trainer::data::Datasets;
use mpienv_trainer::data::source::Source;
use mpienv_trainer::initial;
use mpienv_trainer::model::Model;
use mpienv_trainer::model::linear::Linear;
use mpienv_trainer::shard::Order;
use mpienv_trainer::train::{Epoch, Plan, Report, Step, train};

/// What the other systems gave: tests/parity/expected.json.
#[derive(serde::Deserialize)]
struct Expected {
    one_rank: Vec<Run>,
    two_ranks: Vec<Run>,
}

#[derive(serde::Deserialize)]
struct Run {
    system: String,
    test_accuracy: f64,
    loss: BTreeMap<usize, f32>,
}

/// Keeps what is reported.
#[derive(Default)]
struct Curve {
    losses: BTreeMap<usize, f32>,
    test_accuracy: f64,
}

impl Report for Curve {
    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.losses.insert(step.step, step.loss);
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.test_accuracy = epoch.test_accuracy;
        Ok(())
    }
}

/// MNIST, if DATA_PATH names it.
#[expect(clippy::disallowed_methods, reason = "the variables are the person's who runs the tests")]
fn mnist() -> Option<Datasets> {
    const SIZES: (usize, usize) = (60_000, 10_000);
    let folder = env::var_os("DATA_PATH").filter(|folder| !folder.is_empty());
    let data = folder.map(|folder| Source::Folder(folder.into()).load());
    let count = |data: &Datasets| (data.train.count(), data.test.count());
    match data {
        // The first labels, for Fashion-MNIST has the same names and sizes.
        Some(Ok(data)) if count(&data) == SIZES && data.train.labels().starts_with(&[5, 0, 4, 1, 9, 2]) => Some(data),
        _ => {
            assert_ne!(env::var_os("MPIENV_REQUIRE_ALL"), Some("1".into()), "no MNIST (set DATA_PATH)");
            eprintln!("skipped: no MNIST (set DATA_PATH)");
            None
        }
    }
}

/// What rank 0 of `ranks` reports of one epoch.
fn first_epoch(data: &Datasets, ranks: u32, first: &[f32], seed: u64, order: Order) -> Curve {
    let plan = Plan { epochs: 1, batch_size: 32, learning_rate: 0.01, seed, order };
    let mut curves = threads::run(ranks, Duration::from_secs(60), |rank| {
        let (mut curve, mut parameters) = (Curve::default(), first.to_vec());
        train(&mut Linear::new(64), &mut parameters, data, &plan, rank, &Checkpoints::default(), &mut curve).unwrap();
        curve
    })
    .unwrap();
    curves.swap_remove(0)
}

#[test]
fn one_epoch_gives_the_losses_and_the_accuracy_of_other_systems() {
    let Some(data) = mnist() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity");
    let expected: Expected = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let first = initial::read(&folder.join("w0.f32"), &Linear::new(1).parameter_shapes()).unwrap();
    for (ranks, runs) in [(1, expected.one_rank), (2, expected.two_ranks)] {
        let curve = first_epoch(&data, ranks, &first, 1, Order::File);
        assert_eq!(runs.len(), 2);
        for run in runs {
            let system = run.system;
            assert_eq!(curve.test_accuracy, run.test_accuracy, "{ranks} ranks, {system}");
            assert_eq!(run.loss.len(), 11);
            for (step, loss) in run.loss {
                let own = curve.losses[&step];
                assert!((own - loss).abs() <= 5e-6, "{ranks} ranks, step {step}: {own}, {system} {loss}");
            }
        }
    }
}

#[test]
fn one_epoch_reaches_nine_tenths() {
    let Some(data) = mnist() else { return };
    let mut accuracies = [1, 2, 3].map(|seed| {
        let first = Linear::new(1).initial_parameters(seed);
        first_epoch(&data, 1, &first, seed, Order::Shuffle).test_accuracy
    });
    accuracies.sort_by(f64::total_cmp);
    assert!(accuracies[1] >= 0.90, "{accuracies:?}");
}
