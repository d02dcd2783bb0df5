//! Turns a network and its cuts into instructions.

use super::{Collectives, Feed, Instruction, Operation, Placed, Plan, Terms};
use crate::error::Error;
use crate::layout::Layout;
use crate::mesh::Axis;
use crate::network::{Network, Node, Parameter};
use crate::operator::Operator;
use crate::propagate;
use crate::redistribute::redistribute;

pub(super) fn build(network: &Network, terms: &Terms) -> Result<Plan, Error> {
    let cuts = propagate::propagate(network, terms.world, terms.data_cut)?;
    let nodes = &network.nodes;
    let strategies: Vec<_> = nodes
        .iter()
        .zip(&cuts.arrangements)
        .map(|(node, cuts)| node.operator.strategy(cuts))
        .collect();
    let axes: Vec<_> =
        cuts.arrangements.iter().map(|arrangement| cuts.mesh.axes_of(arrangement)).collect();
    let place = |shape: &[usize]| {
        let layout = propagate::fed(&cuts.mesh, terms.data_cut, shape);
        Placed { shape: shape.to_vec(), layout }
    };
    // A network ends in its loss, so there is at least one operator.
    let last = nodes.len() - 1;
    let samples = place(&nodes[0].shapes[0]);
    let labels = place(&nodes[last].shapes[1]);

    let mut builder = Builder { instructions: Vec::new(), collectives: terms.collectives };
    let forward = builder.forward(nodes, &axes, &strategies, &samples, &labels);
    let gradients = builder.backward(nodes, &axes, &forward);
    let loss_operator = forward[last].1;
    let sums = builder.sums(network, loss_operator, gradients);
    let parameters = builder.update(network, &sums, terms);
    Ok(Plan {
        mesh: cuts.mesh,
        collectives: terms.collectives,
        network: network.clone(),
        strategies,
        instructions: builder.instructions,
        parameters,
        samples,
        labels,
        loss_operator,
        loss: sums.loss,
    })
}

struct Builder {
    instructions: Vec<Instruction>,
    collectives: Collectives,
}

/// The inputs and the result of each operator, for the backward pass.
type Forward = Vec<(Vec<usize>, usize)>;

/// The numbers of results without pending sums.
struct Sums {
    loss: usize,
    /// The gradient of each parameter.
    gradients: Vec<usize>,
}

impl Builder {
    fn push(
        &mut self,
        operation: Operation,
        inputs: &[usize],
        shape: &[usize],
        layout: Layout,
        name: &str,
    ) -> usize {
        let (inputs, shape, name) = (inputs.to_vec(), shape.to_vec(), name.to_owned());
        let instruction =
            Instruction { operation, inputs, shape, layout, name, strategy: None, bucket: None };
        self.instructions.push(instruction);
        self.instructions.len() - 1
    }

    /// Redistributes a result. Returns the number of the result with `layout`.
    fn moved_to(&mut self, mut value: usize, layout: &Layout, name: &str) -> usize {
        for step in redistribute(&self.instructions[value].layout, layout) {
            let steps = match self.collectives {
                Collectives::Compat => step.lowered(),
                Collectives::Min => vec![step],
            };
            for step in steps {
                let before = &self.instructions[value];
                let (shape, mut after) = (before.shape.clone(), before.layout.clone());
                step.apply(&mut after);
                value = self.push(Operation::Move(step), &[value], &shape, after, name);
            }
        }
        value
    }

    fn forward(
        &mut self,
        nodes: &[Node],
        axes: &[Vec<Vec<Axis>>],
        strategies: &[crate::strategy::Strategy],
        samples: &Placed,
        labels: &Placed,
    ) -> Forward {
        let input = Operation::Input(Feed::Samples);
        let mut value = self.push(input, &[], &samples.shape, samples.layout.clone(), "samples");
        let mut steps = Vec::new();
        for ((node, axes), strategy) in nodes.iter().zip(axes).zip(strategies) {
            let rule = node.operator.rule();
            let mut inputs = vec![self.moved_to(value, &rule.input(0, axes), &node.name)];
            if let Some(parameter) = node.parameter {
                let load = Operation::Load(parameter);
                inputs.push(self.push(load, &[], &node.shapes[1], rule.input(1, axes), &node.name));
            } else if let Some(shape) = node.shapes.get(1) {
                let fed = self.push(
                    Operation::Input(Feed::Labels),
                    &[],
                    shape,
                    labels.layout.clone(),
                    "labels",
                );
                inputs.push(self.moved_to(fed, &rule.input(1, axes), &node.name));
            }
            let operation = Operation::Forward(node.operator);
            value = self.push(operation, &inputs, &node.output(), rule.output(axes), &node.name);
            self.instructions[value].strategy = Some(strategy.clone());
            steps.push((inputs, value));
        }
        steps
    }

    /// Returns each parameter's number and the number of its gradient, which may have pending sums.
    fn backward(
        &mut self,
        nodes: &[Node],
        axes: &[Vec<Vec<Axis>>],
        forward: &Forward,
    ) -> Vec<(usize, usize)> {
        let mut gradients = Vec::new();
        // The gradient of the current operator's result. The loss's result has none.
        let mut gradient = None;
        for (index, node) in nodes.iter().enumerate().rev() {
            let (rule, name, axes) = (node.operator.rule(), &node.name, &axes[index]);
            let (inputs, output) = &forward[index];
            let is_learnt = |nodes: &[Node]| nodes.iter().any(|node| node.parameter.is_some());
            if !is_learnt(&nodes[..=index]) {
                break;
            }
            // All ranks that hold the same part of a result need the part's whole gradient.
            let of_output = gradient
                .map(|gradient| self.moved_to(gradient, &rule.output(axes).complete(), name));
            let mut push = |input: usize, inputs: &[usize]| {
                let (operation, layout) =
                    (Operation::Gradient(node.operator, input), rule.gradient(input, axes));
                self.push(operation, inputs, &node.shapes[input], layout, name)
            };
            let of_second = match (node.operator, of_output) {
                (Operator::MatMul, Some(gradient)) => Some(vec![inputs[0], gradient]),
                (Operator::BiasAdd, Some(gradient)) => Some(vec![gradient]),
                _ => None,
            };
            if let (Some(inputs), Some(parameter)) = (of_second, node.parameter) {
                gradients.push((parameter, push(1, &inputs)));
            }
            if !is_learnt(&nodes[..index]) {
                break;
            }
            gradient = match (node.operator, of_output) {
                (Operator::MatMul, Some(gradient)) => Some(push(0, &[gradient, inputs[1]])),
                (Operator::Relu, Some(gradient)) => Some(push(0, &[gradient, *output])),
                (Operator::Mse | Operator::Xent, _) => Some(push(0, inputs)),
                // For a bias, the gradient of the first input equals the gradient of the result.
                (_, of_result) => of_result,
            };
        }
        gradients
    }

    /// Adds the sums of the loss and the gradients, which no operator waits for. Sums over the same
    /// ranks share a call.
    fn sums(&mut self, network: &Network, loss: usize, mut gradients: Vec<(usize, usize)>) -> Sums {
        gradients.sort_unstable();
        let named = gradients
            .iter()
            .map(|&(parameter, value)| (value, network.parameters[parameter].name.as_str()));
        let all: Vec<(usize, &str)> = std::iter::once((loss, "loss")).chain(named).collect();
        let axes: Vec<_> =
            all.iter().map(|&(value, _)| self.instructions[value].layout.partial.clone()).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        // Move sums over the same ranks next to each other.
        order.sort_by_key(|&index| axes.iter().position(|other| *other == axes[index]));
        let mut sums = vec![0; all.len()];
        let (mut buckets, mut last) = (0, None);
        for index in order {
            let (value, name) = all[index];
            let layout = self.instructions[value].layout.complete();
            sums[index] = self.moved_to(value, &layout, name);
            if axes[index].is_empty()
                || axes.iter().filter(|other| **other == axes[index]).count() == 1
            {
                continue;
            }
            if last != Some(&axes[index]) {
                buckets += 1;
                last = Some(&axes[index]);
            }
            self.instructions[sums[index]].bucket = Some(buckets);
        }
        let gradients = sums.split_off(1);
        Sums { loss: sums[0], gradients }
    }

    /// Updates the parameters, after their last use. Returns their layouts.
    fn update(&mut self, network: &Network, sums: &Sums, terms: &Terms) -> Vec<Layout> {
        let Terms { learning_rate, momentum, .. } = *terms;
        let mut layouts = Vec::new();
        for ((number, parameter), &gradient) in
            network.parameters.iter().enumerate().zip(&sums.gradients)
        {
            let layout = self.instructions[gradient].layout.clone();
            let operation = Operation::Momentum { parameter: number, learning_rate, momentum };
            let Parameter { name, shape } = parameter;
            self.push(operation, &[gradient], shape, layout.clone(), name);
            layouts.push(layout);
        }
        layouts
    }
}
