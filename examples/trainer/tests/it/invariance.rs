//! The number of ranks does not matter: W ranks of batch b train as one rank of batch W * b.

use std::io;

use crate::support::curve::{Curve, TIMEOUT, data_parallel, plan, trained};
use crate::support::few_digits::few_digits;
use mpienv::collective::Group;
use mpienv::collective::threads;
use mpienv_trainer::batch::Order;
use mpienv_trainer::checkpoint::Checkpoints;
use mpienv_trainer::data::{Dataset, Datasets, digits};
use mpienv_trainer::model::Architecture;
use mpienv_trainer::model::linear::Linear;
use mpienv_trainer::train::{Epoch, Report, Step, TrainConfig, Training};

#[test]
fn one_rank_and_four_train_alike_and_replicas_are_the_same_bits() {
    [Architecture::Linear, Architecture::Mlp].into_iter().for_each(assert_trains_alike);
}

fn assert_trains_alike(architecture: Architecture) {
    let data = few_digits(1601, 333);
    let mut alone = (Curve::default(), Vec::new());
    alone.1 = trained(architecture, &data, &plan(64), &mut Group::alone(), &mut alone.0).unwrap();
    for (ranks, batch) in [(1, 64), (2, 32), (4, 16), (3, 64)] {
        let runs = data_parallel(architecture, &data, ranks, &plan(batch));
        let bits = |parameters: &[f32]| parameters.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (curve, parameters) in &runs {
            assert_eq!(bits(parameters), bits(&runs[0].1), "{ranks} ranks");
            for (epoch, first) in curve.epochs.iter().zip(&runs[0].0.epochs) {
                assert_eq!(
                    (epoch.train_loss, epoch.test_loss),
                    (first.train_loss, first.test_loss)
                );
            }
        }
        if ranks * batch as u32 != 64 {
            continue;
        }
        for (own, other) in runs[0].0.epochs.iter().zip(&alone.0.epochs) {
            assert!(
                (own.train_loss - other.train_loss).abs() < 1e-5,
                "{ranks} ranks: {own:?} {other:?}"
            );
            assert!(
                (own.test_loss - other.test_loss).abs() < 1e-5,
                "{ranks} ranks: {own:?} {other:?}"
            );
            assert_eq!(own.test_accuracy, other.test_accuracy, "{ranks} ranks");
        }
        let furthest =
            runs[0].1.iter().zip(&alone.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5, "{ranks} ranks: {furthest}");
        // The mean consists of the ranks' own losses, each over 16 or 32 samples of the first step.
        let mean = runs.iter().map(|(curve, _)| curve.steps[0].loss).sum::<f32>() / ranks as f32;
        assert!((mean - alone.0.steps[0].loss).abs() < 1e-5, "{ranks} ranks");
    }
}

#[test]
fn more_ranks_than_samples_train_as_one() {
    let Datasets { train: set, test } = few_digits(1601, 333);
    let few = Dataset::new(
        set.image(0).iter().chain(set.image(1)).copied().collect(),
        set.labels()[..2].to_vec(),
    );
    let data = Datasets { train: few.unwrap(), test };
    let runs = data_parallel(Architecture::Linear, &data, 3, &plan(1));
    let one = data_parallel(Architecture::Linear, &data, 1, &plan(3));
    assert!((runs[0].0.epochs[1].test_loss - one[0].0.epochs[1].test_loss).abs() < 1e-5);
    // The rank without samples has no loss to report.
    assert_eq!(runs.iter().map(|(curve, _)| curve.steps.len()).collect::<Vec<_>>(), [2, 2, 0]);
}

#[test]
fn a_loss_that_is_not_a_number_stops_every_rank_in_the_same_step() {
    let data = few_digits(1601, 333);
    let plan = TrainConfig { learning_rate: 1e38, ..plan(16) };
    let errors = threads::run(4, TIMEOUT, |rank| {
        trained(Architecture::Linear, &data, &plan, rank, &mut Curve::default())
            .unwrap_err()
            .to_string()
    })
    .unwrap();
    assert!(errors[0].starts_with("epoch 0, step "), "{errors:?}");
    assert!(errors.iter().all(|error| error == &errors[0]), "{errors:?}");
}

#[test]
fn a_rank_that_ends_in_the_middle_is_named_by_the_others() {
    /// A reporter that cannot report step 10.
    struct Full;
    impl Report for Full {
        fn step(&mut self, step: &Step) -> io::Result<()> {
            if step.step == 10 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
        fn epoch(&mut self, _: &Epoch) -> io::Result<()> {
            Ok(())
        }
    }
    let data = few_digits(1601, 333);
    let mut ranks = threads::group(2, TIMEOUT).unwrap().into_iter();
    let work = |rank: threads::ThreadRank, mut report: Box<dyn Report>| {
        trained(Architecture::Linear, &data, &plan(32), &mut rank.into(), report.as_mut())
            .unwrap_err()
    };
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| work(first, Box::<Curve>::default()));
        let second = scope.spawn(|| work(second, Box::new(Full)));
        (first.join().unwrap(), second.join().unwrap())
    });
    let first = first.to_string();
    assert!(first.starts_with("rank 1 called close or dropped its group, rank 0 "), "{first}");
    assert!(second.text.starts_with("cannot write the reports: "), "{second}");
}

#[test]
fn every_rank_begins_with_the_parameters_of_rank_0() {
    let data = few_digits(1601, 333);
    let plan = TrainConfig { epochs: 0, ..plan(32) };
    let parameters = threads::run(2, TIMEOUT, |rank| {
        let mut parameters = vec![rank.rank().index() as f32; 7850];
        let (checkpoints, report) = (&Checkpoints::default(), &mut Curve::default());
        let training = Training { data: &data, config: &plan, group: rank, checkpoints, report };
        training.data_parallel(&mut Linear::new(64), &mut parameters).unwrap();
        parameters
    })
    .unwrap();
    assert_eq!(parameters, [vec![0.0; 7850], vec![0.0; 7850]]);
}

#[test]
fn the_embedded_digits_are_learned_but_not_trivial_and_a_hidden_layer_helps() {
    let data = digits::draw();
    let plan = TrainConfig {
        epochs: 5,
        batch_size: 32,
        learning_rate: 0.01,
        seed: 1,
        order: Order::Shuffle,
    };
    let [linear, mlp] = [Architecture::Linear, Architecture::Mlp].map(|architecture| {
        let curve = data_parallel(architecture, &data, 1, &plan).swap_remove(0).0;
        assert!((2.2..3.5).contains(&curve.steps[0].loss), "{}", curve.steps[0].loss);
        curve.epochs[4].test_accuracy
    });
    assert!((0.85..0.99).contains(&linear), "{linear}");
    assert!(linear + 0.01 < mlp && mlp < 0.995, "{linear} {mlp}");
}
