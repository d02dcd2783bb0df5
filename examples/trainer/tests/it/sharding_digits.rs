//! A classifier of digits, cut over 8 ranks in several ways: as accurate as data-parallel training.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::data::real_mnist;
use mpienv::collective::threads;
use mpienv_sharding::checkpoint::Checkpoint;
use mpienv_sharding::checkpoint::RunId;
use mpienv_sharding::execute::{Executor, State};
use mpienv_sharding::init::Init;
use mpienv_sharding::network::Chain;
use mpienv_sharding::operator::{kernels, matmul};
use mpienv_sharding::plan::{Collectives, Feed, Plan, Terms};
use mpienv_sharding::tensor::Tensor;
use mpienv_trainer::batch::Batch;
use mpienv_trainer::data::{CLASSES, Dataset, Datasets, PIXELS};

const WORLD: u32 = 8;
const BATCH: usize = 64;
const HIDDEN: usize = 128;

fn plan(strategies: &[(&str, &str)], collectives: Collectives) -> Plan {
    let chain =
        Chain::new(BATCH, PIXELS).matmul("fc1", "w1", HIDDEN).bias_add("bias1", "b1").relu("relu");
    let mut network = chain.matmul("fc2", "w2", CLASSES).bias_add("bias2", "b2").xent("loss");
    for (name, strategy) in strategies {
        network.shard(name, strategy.parse().unwrap()).unwrap();
    }
    let terms =
        Terms { world: WORLD, data_cut: WORLD, collectives, learning_rate: 0.05, momentum: 0.9 };
    Plan::new(&network, &terms).unwrap()
}

fn images(data: &Dataset, positions: std::ops::Range<usize>) -> (Tensor, Tensor) {
    let mut batch = Batch::new(positions.len());
    batch.gather(data, positions);
    let rows = batch.labels().len();
    let labels = batch.labels().iter().map(|&label| f32::from(label)).collect();
    let pixels = batch.images().iter().flatten().copied().collect();
    (Tensor::new(vec![rows, PIXELS], pixels), Tensor::new(vec![rows], labels))
}

/// Trains on the first `count` images, and returns the last loss and the accuracy on the test set.
fn train(plan: &Plan, data: &Datasets, count: usize, epochs: usize) -> (f32, f64) {
    let ran = threads::run(WORLD, Duration::from_secs(1200), |rank| {
        let own = rank.rank().index();
        let mut executor = Executor::new(plan, "", rank).unwrap();
        let init = Init::Normal { seed: 1 };
        let mut state: State = State::new(init.parameters(plan, own));
        let part = plan.fed(Feed::Samples).layout.part(&plan.mesh, own).0 as usize;
        let rows = BATCH / WORLD as usize;
        let mut loss = 0.0;
        for _ in 0..epochs {
            for batch in 0..count / BATCH {
                let start = batch * BATCH + part * rows;
                let (samples, labels) = images(&data.train, start..start + rows);
                loss = executor.step(&mut state, &samples, &labels).unwrap();
            }
        }
        (
            loss,
            (
                PathBuf::from(own.to_string()),
                Checkpoint::new(plan, own, &state, &RunId::new(plan, &init)),
            ),
        )
    })
    .unwrap();
    let (losses, checkpoints): (Vec<f32>, Vec<_>) = ran.into_iter().unzip();
    assert!(losses.iter().all(|loss| *loss == losses[0]));
    (losses[0], accuracy(&Checkpoint::merge(&checkpoints).unwrap(), &data.test))
}

fn accuracy(whole: &Checkpoint, test: &Dataset) -> f64 {
    let tensor = |name| whole.tensor(name).unwrap();
    let (samples, labels) = images(test, 0..test.count());
    let layer = |input: &Tensor, weight, bias| {
        let (mut product, mut sum) = (Tensor::default(), Tensor::default());
        matmul::forward(input, tensor(weight), &mut product);
        kernels::add_bias(&product, tensor(bias), &mut sum);
        sum
    };
    let mut hidden = Tensor::default();
    kernels::relu(&layer(&samples, "w1", "b1"), &mut hidden);
    let logits = layer(&hidden, "w2", "b2");
    let best =
        |row: &[f32]| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as f32;
    let right = logits.rows().zip(&labels.data).filter(|&(row, &label)| best(row) == label).count();
    right as f64 / test.count() as f64
}

/// Asserts that every strategy gives the same result as data-parallel training.
fn assert_all_alike(data: &Datasets, count: usize, epochs: usize, least: f64) {
    let (loss, accuracy) =
        train(&plan(&[("fc1", "((8,1),(1,1))")], Collectives::Compat), data, count, epochs);
    assert!(accuracy > least, "{accuracy}");
    let blocks = [("fc1", "((2,4),(4,1))"), ("fc2", "((2,4),(4,1))")];
    let columns = [("fc1", "((2,1),(1,4))")];
    let grid = [("fc1", "((2,2),(2,2))")];
    for (strategies, collectives) in [
        (&blocks[..], Collectives::Compat),
        (&blocks, Collectives::Min),
        (&columns, Collectives::Min),
        (&grid, Collectives::Min),
    ] {
        let (other_loss, other) = train(&plan(strategies, collectives), data, count, epochs);
        eprintln!(
            "{strategies:?}: accuracy {other}, data parallel {accuracy}; loss {other_loss}, {loss}"
        );
        // Rounding differs, and may change the class of an image or two that lie between classes.
        assert!((other - accuracy).abs() < 0.005, "{strategies:?}: {other} instead of {accuracy}");
        assert!((other_loss - loss).abs() < 0.01, "{strategies:?}: {other_loss} instead of {loss}");
    }
}

#[test]
fn digits_are_recognized_equally_well_under_every_strategy() {
    assert_all_alike(&Datasets::load(None).unwrap(), 4096, 3, 0.9);
}

#[test]
fn real_digits_are_recognized_equally_well_under_every_strategy() {
    let Some((_, data)) = real_mnist() else { return };
    assert_all_alike(&data, 12_000, 2, 0.9);
}
