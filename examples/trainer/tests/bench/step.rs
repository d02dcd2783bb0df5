//! Measures the parts of a step, as medians in microseconds: on one rank by model and batch, and on
//! two ranks over each transport.
//!
//! If DATA_PATH names a folder, the benchmark reads its files. Otherwise, it draws digits.

#[path = "job.rs"]
mod job;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use job::Failure;
use job::tool::inherited;
use mpienv::collective::Group;
use mpienv_sharding::arguments::name_of;
use mpienv_trainer::batch::{self, Batch, Order};
use mpienv_trainer::data::{Dataset, Datasets};
use mpienv_trainer::model::{self, Architecture};

const TIMES: usize = 400;

const HEAD: &str = "\
| model | batch | ranks | gather | forward | softmax, backward | all-reduce | update | step | samples/s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

fn main() -> Result<(), Failure> {
    job::run(HEAD, &[1, 2], |group, over| {
        let data = data()?;
        let size = group.rank().size();
        let (ranks, batches) = if size == 1 {
            ("1".to_owned(), &[32, 64, 256, 1024][..])
        } else {
            (format!("{size}, {over}"), &[32][..])
        };
        for &architecture in Architecture::value_variants() {
            for &batch in batches {
                measure(architecture, batch, &data, group, &ranks)?;
            }
        }
        Ok(())
    })
}

fn data() -> Result<Dataset, Failure> {
    let folder = inherited("DATA_PATH").filter(|folder| !folder.is_empty());
    Ok(Datasets::load(folder.as_ref().map(Path::new))?.train)
}

/// Measures the steps of [`data_parallel`](mpienv_trainer::train::Training::data_parallel) with `size`
/// samples per rank. Rank 0 prints a line.
fn measure(
    architecture: Architecture,
    size: usize,
    data: &Dataset,
    group: &mut Group,
    ranks: &str,
) -> Result<(), Failure> {
    let rank = group.rank();
    let order = Order::Shuffle.arrange(data.count(), 1, 0);
    let mut model = architecture.model(size);
    let mut parameters = model.initial_parameters(1);
    let mut sum = vec![0.0; parameters.len() + 2];
    let mut batch = Batch::new(size);
    let whole = size * rank.size() as usize;
    let batches: Vec<_> =
        batch::global_batches(data.count(), whole).filter(|batch| batch.len() == whole).collect();
    let gather = |batch: &mut Batch, step: usize| {
        let positions = batches[step % batches.len()].clone();
        Batch::fetch(data, batch::share(positions.clone(), rank).map(|position| order[position]));
        batch.gather(data, batch::share(positions, rank).map(|position| order[position]));
    };
    let mut taken = Vec::new();
    for step in 0..TIMES {
        let begun = Instant::now();
        gather(&mut batch, step);
        let gathered = begun.elapsed();
        let (gradient, rest) = sum.split_at_mut(parameters.len());
        let loss = model.loss(&parameters, batch.images(), batch.labels(), whole);
        model.gradient_part(batch.images(), 0, gradient);
        rest.copy_from_slice(&[loss, 0.0]);
        let differentiated = begun.elapsed();
        group.all_reduce_sum(&mut sum)?;
        let summed = begun.elapsed();
        model::sgd_step(&mut parameters, &sum, 0.01);
        let moved = begun.elapsed();
        taken.push([
            gathered,
            differentiated - gathered,
            summed - differentiated,
            moved - summed,
            moved,
        ]);
    }
    // The forward pass is part of the gradient. Measure it with the caches in the same state.
    let mut forward = Vec::new();
    for step in 0..TIMES {
        gather(&mut batch, step);
        let begun = Instant::now();
        model.logits(&parameters, batch.images());
        forward.push([begun.elapsed()]);
    }
    group.barrier()?;
    let [gather, gradient, sum, update, step] = medians(&taken);
    let [forward] = medians(&forward);
    let (name, backward, rate) =
        (name_of(&architecture), gradient - forward, whole as f64 / step * 1e6);
    if rank.is_first() {
        println!(
            "| {name} | {size} | {ranks} | {gather:.1} | {forward:.1} | {backward:.1} | {sum:.1} | {update:.1} | {step:.1} \
             | {rate:.0} |"
        );
    }
    Ok(())
}

/// Returns medians in microseconds. Ignores the first tenth, which warms up.
fn medians<const N: usize>(taken: &[[Duration; N]]) -> [f64; N] {
    std::array::from_fn(|part| {
        let mut times: Vec<Duration> =
            taken[taken.len() / 10..].iter().map(|times| times[part]).collect();
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e6
    })
}
