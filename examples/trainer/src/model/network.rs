//! Builds the models as networks of the sharding engine.

use super::{Architecture, mlp};
use crate::data::{CLASSES, PIXELS};
use mpienv_sharding::network::{Chain, Network};

impl Architecture {
    /// Builds the model's network for `rows` samples on all ranks together; at least 1.
    ///
    /// The parameters have the names and order of [`super::Model::parameter_shapes`], but weights
    /// are transposed: (inputs, outputs).
    pub fn network(self, rows: usize) -> Network {
        let samples = Chain::new(rows, PIXELS);
        let chain = match self {
            Architecture::Linear => {
                samples.matmul("matmul", "weight", CLASSES).bias_add("bias", "bias").relu("relu")
            }
            Architecture::Mlp => samples
                .matmul("matmul", "hidden.weight", mlp::HIDDEN)
                .bias_add("bias", "hidden.bias")
                .relu("relu")
                .matmul("matmul2", "output.weight", CLASSES)
                .bias_add("bias2", "output.bias"),
        };
        chain.xent("loss")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_networks_parameters_are_the_models_with_weights_transposed() {
        for architecture in Architecture::value_variants() {
            let expected = architecture.model(1).parameter_shapes();
            let network = architecture.network(8);
            assert_eq!(network.parameters().len(), expected.len());
            for (parameter, (name, mut shape)) in network.parameters().iter().zip(expected) {
                shape.reverse();
                assert_eq!((parameter.name.as_str(), &parameter.shape), (name, &shape));
            }
        }
    }
}
