//! A model whose operators are cut over the ranks trains in the same way as a data-parallel one.

use crate::support::curve::{Curve, TIMEOUT, data_parallel, plan};
use crate::support::few_digits::few_digits;
use mpienv::collective::threads;
use mpienv_sharding::plan::Collectives;
use mpienv_trainer::checkpoint::Checkpoints;
use mpienv_trainer::cli::Cuts;
use mpienv_trainer::data::Datasets;
use mpienv_trainer::model::Architecture;
use mpienv_trainer::train::{TrainConfig, Training};

/// Data-parallel training of the same model, with strategies.
fn sharded(
    architecture: Architecture,
    data: &Datasets,
    ranks: u32,
    plan: &TrainConfig,
    strategies: &[&str],
    collectives: Collectives,
) -> Vec<(Curve, Vec<f32>)> {
    let strategies = strategies.iter().map(|strategy| strategy.parse().unwrap()).collect();
    let cuts = Cuts { strategies, collectives };
    threads::run(ranks, TIMEOUT, |rank| {
        let mut curve = Curve::default();
        let mut model = architecture.model(64);
        let mut parameters = model.initial_parameters(plan.seed);
        let share = plan.largest_share(data.train.count(), rank.rank());
        let cut = cuts.plan(architecture, plan.learning_rate, ranks, share).unwrap();
        let checkpoints = &Checkpoints::default();
        let training =
            Training { data, config: plan, group: rank, checkpoints, report: &mut curve };
        training.sharded(model.as_mut(), &cut, &mut parameters).unwrap();
        (curve, parameters)
    })
    .unwrap()
}

#[track_caller]
fn assert_near(found: f64, expected: f64, what: &str) {
    assert_within(2e-5, found, expected, what);
}

#[track_caller]
fn assert_within(tolerance: f64, found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < tolerance, "{what}: {found} instead of {expected}");
}

/// Asserts that epochs and parameters are the same up to rounding, and that all ranks have the same
/// bits.
#[track_caller]
fn assert_same_run(found: &[(Curve, Vec<f32>)], expected: &[(Curve, Vec<f32>)], what: &str) {
    for (curve, parameters) in found {
        assert_eq!(*parameters, found[0].1, "{what}");
        assert_eq!(curve.epochs.len(), expected[0].0.epochs.len());
        for (epoch, other) in curve.epochs.iter().zip(&expected[0].0.epochs) {
            assert_near(epoch.train_loss, other.train_loss, what);
            assert_near(epoch.test_loss, other.test_loss, what);
            assert_near(epoch.test_accuracy, other.test_accuracy, what);
        }
    }
    for (parameter, other) in found[0].1.iter().zip(&expected[0].1) {
        // If a sum is close to 0, rounding decides whether ReLU passes a sample's gradient on.
        assert_within(2e-4, f64::from(*parameter), f64::from(*other), what);
    }
}

#[test]
fn the_data_parallel_strategy_has_the_losses_of_data_parallel_training_on_each_rank() {
    // 1601 samples leave a last batch of 1 or 17: some ranks have fewer samples than others, or
    // none.
    let data = few_digits(1601, 333);
    for (architecture, ranks, batch) in [
        (Architecture::Linear, 1, 64),
        (Architecture::Linear, 2, 32),
        (Architecture::Linear, 3, 16),
        (Architecture::Linear, 4, 16),
        (Architecture::Mlp, 4, 16),
    ] {
        let what = format!("{architecture:?} on {ranks} ranks");
        let expected = data_parallel(architecture, &data, ranks, &plan(batch));
        let strategy = format!("(({ranks},1),(1,1))");
        let found =
            sharded(architecture, &data, ranks, &plan(batch), &[&strategy], Collectives::Compat);
        assert_same_run(&found, &expected, &what);
        for ((found, _), (expected, _)) in found.iter().zip(&expected) {
            assert_eq!(found.steps.len(), expected.steps.len(), "{what}");
            for (step, other) in found.steps.iter().zip(&expected.steps) {
                assert_eq!((step.epoch, step.step), (other.epoch, other.step), "{what}");
                assert_near(step.loss.into(), other.loss.into(), &what);
            }
        }
    }
}

#[test]
fn every_strategy_trains_as_data_parallel() {
    let data = few_digits(1601, 333);
    let expected = [Architecture::Linear, Architecture::Mlp]
        .map(|architecture| data_parallel(architecture, &data, 1, &plan(64)));
    for (architecture, ranks, strategies) in [
        (Architecture::Linear, 4, &["((2,2),(2,1))"][..]),
        (Architecture::Linear, 4, &["((1,4),(4,1))"]),
        // 10 classes on 4 ranks: two parts, and the same work done twice.
        (Architecture::Linear, 4, &["((1,1),(1,2))"]),
        (Architecture::Mlp, 4, &["((1,1),(1,4))"]),
        (Architecture::Mlp, 8, &["((2,4),(4,1))", "matmul2=((2,4),(4,1))"]),
    ] {
        for collectives in [Collectives::Compat, Collectives::Min] {
            let what =
                format!("{architecture:?} on {ranks} ranks, {strategies:?}, {collectives:?}");
            let found = sharded(
                architecture,
                &data,
                ranks,
                &plan(64 / ranks as usize),
                strategies,
                collectives,
            );
            assert_same_run(
                &found,
                &expected[usize::from(architecture == Architecture::Mlp)],
                &what,
            );
        }
    }
}

#[test]
fn a_set_smaller_than_a_batch_is_one_batch() {
    let data = few_digits(5, 333);
    let expected = data_parallel(Architecture::Linear, &data, 1, &plan(64));
    let found = sharded(
        Architecture::Linear,
        &data,
        4,
        &plan(1000),
        &["((4,1),(1,1))"],
        Collectives::Compat,
    );
    assert_same_run(&found, &expected, "5 samples on 4 ranks");
}

#[test]
fn the_rank_without_samples_has_no_loss_of_its_own() {
    let data = few_digits(2, 333);
    let runs =
        sharded(Architecture::Linear, &data, 3, &plan(1), &["((3,1),(1,1))"], Collectives::Compat);
    assert_eq!(runs.iter().map(|(curve, _)| curve.steps.len()).collect::<Vec<_>>(), [2, 2, 0]);
}

#[test]
fn a_signal_to_one_rank_stops_all_after_the_same_step() {
    let data = few_digits(1601, 333);
    let cuts = Cuts {
        strategies: vec!["((2,2),(2,1))".parse().unwrap()],
        collectives: Collectives::Compat,
    };
    let ended = threads::run(4, TIMEOUT, |rank| {
        let mut model = Architecture::Linear.model(64);
        let mut parameters = model.initial_parameters(1);
        let cut = cuts.plan(Architecture::Linear, 0.01, 4, 16).unwrap();
        let checkpoints = Checkpoints::default();
        let stop = (rank.rank().index() == 2).then(|| checkpoints.stop.clone());
        let mut curve = Curve { stop, ..Curve::default() };
        let (checkpoints, config) = (&checkpoints, &plan(16));
        let training =
            Training { data: &data, config, group: rank, checkpoints, report: &mut curve };
        training.sharded(model.as_mut(), &cut, &mut parameters)
    });
    for ended in ended.unwrap() {
        // All ranks learn of the signal in the step after the one in which it arrived.
        let error = ended.unwrap_err().text;
        assert!(error.starts_with("stopped by SIGTERM in epoch 0 after 12 steps; "), "{error}");
    }
}
