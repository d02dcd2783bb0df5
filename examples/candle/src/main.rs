//! Trains on MNIST with candle, on any number of ranks: `mpirun -n 2 candle_mnist`,
//! `srun candle_mnist`, or alone.
//!
//! Each rank computes the gradients of its share of every batch, and an all-reduce sums them. The
//! losses therefore equal those of a single rank that computes whole batches.

use std::error::Error;
use std::fs::{self, File};
use std::io::Read;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, SGD, loss::cross_entropy};
use flate2::read::GzDecoder;
use mpienv::collective::Group;
use mpienv::{ClusterInfo, Environment};

const PIXELS: usize = 28 * 28;
/// Samples per batch, on all ranks together.
const BATCH: usize = 64;
const EPOCHS: usize = 2;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut group = Group::connect(&ClusterInfo::from_env()?)?;
    let (rank, size) = (group.rank(), group.size());
    let [train, test] = [samples("train")?, samples("t10k")?];
    let model = [weights(128, PIXELS)?, weights(1, 128)?, weights(10, 128)?, weights(1, 10)?];
    let mut optimizer = SGD::new(model.to_vec(), 0.1)?;

    for epoch in 0..EPOCHS {
        let mut total = 0.0;
        let count = train.1.dim(0)?;
        for start in (0..count).step_by(BATCH) {
            let batch = BATCH.min(count - start);
            // The rank's share of the batch. Any number of ranks divides the same batch and gets
            // the same sum.
            let share = rank.share_of(batch);
            if share.is_empty() {
                return Err(
                    format!("a batch of {batch} samples is too small for {size} ranks").into()
                );
            }
            let (images, labels) = part(&train, start + share.start, share.len())?;
            // Scale the loss so that the ranks' losses add up to the mean over the whole batch.
            let loss = (cross_entropy(&forward(&model, &images)?, &labels)?
                * (share.len() as f64 / batch as f64))?;
            let mut gradients = loss.backward()?;

            // Sum all gradients and the loss in one call.
            let mut values = Vec::new();
            for variable in &model {
                values.extend(gradients.get(variable).unwrap().flatten_all()?.to_vec1::<f32>()?);
            }
            values.push(loss.to_scalar()?);
            group.all_reduce_sum(&mut values)?;

            let mut rest = values.as_slice();
            for variable in &model {
                let (own, others) = rest.split_at(variable.elem_count());
                gradients
                    .insert(variable, Tensor::from_slice(own, variable.shape(), &Device::Cpu)?);
                rest = others;
            }
            optimizer.step(&gradients)?;
            total += f64::from(rest[0]) * batch as f64;
        }
        if rank.is_first() {
            let found = forward(&model, &part(&test, 0, test.1.dim(0)?)?.0)?.argmax(D::Minus1)?;
            let right = found
                .eq(&test.1.to_dtype(DType::U32)?)?
                .to_dtype(DType::F32)?
                .mean_all()?
                .to_scalar::<f32>()?;
            println!(
                "epoch {epoch}: loss {:.6}, test accuracy {right:.4}, {size} ranks",
                total / count as f64
            );
        }
    }
    Ok(group.close()?)
}

fn forward(model: &[Var; 4], images: &Tensor) -> Result<Tensor> {
    let hidden = images.matmul(&model[0].t()?)?.broadcast_add(&model[1])?.relu()?;
    hidden.matmul(&model[2].t()?)?.broadcast_add(&model[3])
}

/// Initial weights that are the same on all ranks and in all runs. candle's random numbers on CPUs
/// cannot be seeded.
fn weights(rows: usize, columns: usize) -> Result<Var> {
    let angles = (Tensor::arange(1.0, (rows * columns) as f64 + 1.0, &Device::Cpu)?.sqr()? * 0.7)?;
    Var::from_tensor(
        &(angles.sin()? * (1.0 / columns as f64).sqrt())?
            .to_dtype(DType::F32)?
            .reshape((rows, columns))?,
    )
}

fn part(samples: &(Tensor, Tensor), start: usize, count: usize) -> Result<(Tensor, Tensor)> {
    let images = (samples.0.narrow(0, start, count)?.to_dtype(DType::F32)? / 255.0)?;
    Ok((images, samples.1.narrow(0, start, count)?))
}

/// The images and labels of MNIST's IDX files, gzipped or not, in the folder DATA_PATH.
fn samples(name: &str) -> std::result::Result<(Tensor, Tensor), Box<dyn Error>> {
    let environment = Environment::current();
    let folder =
        environment.get_str("DATA_PATH")?.ok_or("set DATA_PATH to the folder of MNIST's files")?;
    let read = |kind: &str, header: usize| -> std::result::Result<Vec<u8>, Box<dyn Error>> {
        let path = format!("{folder}/{name}-{kind}-ubyte");
        let mut bytes = Vec::new();
        match File::open(format!("{path}.gz")) {
            Ok(file) => drop(GzDecoder::new(file).read_to_end(&mut bytes)?),
            Err(_) => bytes = fs::read(&path).map_err(|error| format!("{path}: {error}"))?,
        }
        Ok(bytes.split_off(header))
    };
    let (images, labels) = (read("images-idx3", 16)?, read("labels-idx1", 8)?);
    let count = labels.len();
    Ok((
        Tensor::from_vec(images, (count, PIXELS), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}
