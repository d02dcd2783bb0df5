//! Medians of a step's parts on one rank: gather and normalise, loss and gradient, move the parameters.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use mpienv_trainer::batch::Batch;
use mpienv_trainer::data::digits;
use mpienv_trainer::model::{self, Architecture};
use mpienv_trainer::shard::Order;

fn main() {
    let data = digits::draw().train;
    let mut order = vec![0; data.count()];
    Order::Shuffle.arrange(&mut order, 1, 0);
    println!("model   batch   gather us   gradient us   update us   step us    samples/s");
    for architecture in Architecture::value_variants() {
        for size in [32, 64, 256, 1024] {
            let mut model = architecture.model(size);
            let mut parameters = model.initial_parameters(1);
            let mut gradient = vec![0.0; parameters.len()];
            let mut batch = Batch::new(size);
            let mut taken = Vec::new();
            for start in (0..400).map(|step| step * size % (data.count() - size)) {
                let indices = || order[start..start + size].iter().copied();
                let begun = Instant::now();
                Batch::fetch(&data, indices());
                batch.gather(&data, indices());
                let gathered = begun.elapsed();
                model.gradient(&parameters, batch.images(), batch.labels(), size, &mut gradient);
                let differentiated = begun.elapsed();
                model::descend(&mut parameters, &gradient, 0.01);
                let moved = begun.elapsed();
                taken.push([gathered, differentiated - gathered, moved - differentiated, moved]);
            }
            let [gather, gradient, update, step] = std::array::from_fn(|part| median(&taken, part) * 1e6);
            let (name, rate) = (model.name(), size as f64 / step * 1e6);
            println!("{name:<6} {size:>6} {gather:>11.1} {gradient:>13.1} {update:>11.1} {step:>9.1} {rate:>12.0}");
        }
    }
}

/// In seconds; the first tenth warms up.
fn median(taken: &[[Duration; 4]], part: usize) -> f64 {
    let mut times: Vec<Duration> = taken[taken.len() / 10..].iter().map(|times| times[part]).collect();
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
