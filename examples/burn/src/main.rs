//! Trains on MNIST with Burn, on any number of ranks: `mpirun -n 2 burn_mnist`, `srun burn_mnist`,
//! or alone.
//!
//! Each rank computes the gradients of its share of every batch, and an all-reduce sums them. The
//! losses therefore equal those of a single rank that computes whole batches.

use std::error::Error;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;
use mpienv::collective::Group;
use mpienv::{ClusterInfo, Environment};

const PIXELS: usize = 28 * 28;
/// Samples per batch, on all ranks together.
const BATCH: usize = 64;
const EPOCHS: usize = 2;

/// Images, and a label for each.
type Samples = (Vec<u8>, Vec<u8>);

#[derive(Module, Debug)]
struct Model {
    hidden: Linear,
    output: Linear,
}

impl Model {
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(images)))
    }
}

/// The gradients of all parameters, as numbers that ranks can sum.
struct Flat {
    gradients: GradientsParams,
    values: Vec<f32>,
    /// Whether the values go into the gradients, or the gradients into the values.
    is_summed: bool,
}

impl ModuleVisitor for Flat {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let mut gradient = self.gradients.remove::<D>(parameter.id).expect("it has a gradient");
        if self.is_summed {
            let sum = self.values.drain(..gradient.shape().num_elements()).collect();
            let sum = TensorData::new::<f32, _>(sum, gradient.shape());
            gradient = Tensor::from_data(sum, &gradient.device());
        } else {
            self.values.extend(gradient.to_data().iter::<f32>());
        }
        self.gradients.register(parameter.id, gradient);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut group = Group::connect(&ClusterInfo::from_env()?)?;
    let (rank, size) = (group.rank(), group.size());
    let device = Device::flex().autodiff();
    // All ranks begin with the same weights.
    device.seed(1);
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let mut model = Model { hidden: layer(PIXELS, 128), output: layer(128, 10) };
    let mut optimizer = SgdConfig::new().init();
    let loss_of = CrossEntropyLossConfig::new().init(&device);
    let [train, test] = [samples("train")?, samples("t10k")?];

    for epoch in 0..EPOCHS {
        let (mut total, count) = (0.0, train.1.len());
        for start in (0..count).step_by(BATCH) {
            let batch = BATCH.min(count - start);
            // The rank's share of the batch. Any number of ranks divides the same batch and gets
            // the same sum.
            let share = rank.share_of(batch);
            if share.is_empty() {
                return Err(format!("{size} ranks cannot share {batch} samples").into());
            }
            // Scale the loss so that the ranks' losses add up to the mean over the whole batch.
            let scale = share.len() as f32 / batch as f32;
            let (images, labels) = part(&train, start + share.start..start + share.end, &device);
            let loss = loss_of.forward(model.forward(images), labels) * scale;
            let gradients = GradientsParams::from_grads(loss.backward(), &model);

            // Sum the loss and all gradients in one call.
            let values = vec![loss.into_scalar::<f32>()];
            let mut flat = Flat { gradients, values, is_summed: false };
            model.visit(&mut flat);
            group.all_reduce_sum(&mut flat.values)?;
            total += f64::from(flat.values.remove(0)) * batch as f64;
            flat.is_summed = true;
            model.visit(&mut flat);
            model = optimizer.step(0.1, model, flat.gradients);
        }
        if rank.is_first() {
            let (images, labels) = part(&test, 0..test.1.len(), &device);
            let found = model.forward(images).argmax(1).reshape([-1]);
            let right = found.equal(labels).int().sum().into_scalar::<i64>() as f64;
            let (loss, accuracy) = (total / count as f64, right / test.1.len() as f64);
            println!("epoch {epoch}: loss {loss:.6}, test accuracy {accuracy:.4}, {size} ranks");
        }
    }
    Ok(group.close()?)
}

/// The images and labels of MNIST's IDX files, gzipped or not, in the folder DATA_PATH.
fn samples(name: &str) -> Result<Samples, Box<dyn Error>> {
    let environment = Environment::current();
    let folder = environment.get_str("DATA_PATH")?.ok_or("set DATA_PATH to MNIST's folder")?;
    let read = |kind: &str, header: usize| -> Result<Vec<u8>, Box<dyn Error>> {
        let path = format!("{folder}/{name}-{kind}-ubyte");
        let mut bytes = Vec::new();
        match File::open(format!("{path}.gz")) {
            Ok(file) => drop(GzDecoder::new(file).read_to_end(&mut bytes)?),
            Err(_) => bytes = fs::read(&path).map_err(|error| format!("{path}: {error}"))?,
        }
        Ok(bytes.split_off(header))
    };
    Ok((read("images-idx3", 16)?, read("labels-idx1", 8)?))
}

fn part(samples: &Samples, range: Range<usize>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let (images, labels) = samples;
    let pixels = &images[range.start * PIXELS..range.end * PIXELS];
    let pixels: Vec<f32> = pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
    let labels: Vec<i64> = labels[range].iter().copied().map(i64::from).collect();
    let count = labels.len();
    let images = Tensor::from_data(TensorData::new(pixels, [count, PIXELS]), device);
    (images, Tensor::from_data(TensorData::new(labels, [count]), device))
}
