//! Turns a network and its cuts into instructions.

use super::{Collectives, Feed, Instruction, Operation, Plan, Terms};
use crate::error::Error;
use crate::mesh::{Axis, Layout};
use crate::network::{Network, Node, Parameter};
use crate::operator::Operator;
use crate::propagate::{self, Cuts};
use crate::redistribute::redistribute;

impl Plan {
    /// Plans a step: cuts the operators and inserts the exchanges between them.
    pub fn new(network: &Network, terms: &Terms) -> Result<Plan, Error> {
        let cuts = propagate::propagate(network, terms.world, terms.data_cut)?;
        let axes =
            cuts.arrangements.iter().map(|arrangement| cuts.mesh.axes_of(arrangement)).collect();
        let mut builder = Builder { network, terms, cuts: &cuts, axes, instructions: Vec::new() };
        let forward = builder.forward();
        let gradients = builder.backward(&forward);
        // A network ends in its loss, so there is at least one operator.
        let loss_operator = forward[network.nodes.len() - 1].1;
        let (loss, gradients) = builder.sums(loss_operator, gradients);
        builder.update(&gradients);
        Ok(Plan {
            instructions: builder.instructions,
            mesh: cuts.mesh,
            terms: *terms,
            network: network.clone(),
            loss_operator,
            loss,
        })
    }
}

struct Builder<'a> {
    network: &'a Network,
    terms: &'a Terms,
    cuts: &'a Cuts,
    /// The axes that cut each loop of each operator.
    axes: Vec<Vec<Vec<Axis>>>,
    instructions: Vec<Instruction>,
}

/// The inputs and the result of each operator, for the backward pass.
type Forward = Vec<(Vec<usize>, usize)>;

impl Builder<'_> {
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

    fn input(&mut self, feed: Feed, shape: &[usize], name: &str) -> usize {
        let layout = propagate::fed(&self.cuts.mesh, self.terms.data_cut, shape);
        self.push(Operation::Input(feed), &[], shape, layout, name)
    }

    /// Redistributes a result. Returns the number of the result with `layout`.
    fn moved_to(&mut self, mut value: usize, layout: &Layout, name: &str) -> usize {
        for step in redistribute(&self.instructions[value].layout, layout) {
            let steps = match self.terms.collectives {
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

    fn forward(&mut self) -> Forward {
        let mut value = self.input(Feed::Samples, &self.network.nodes[0].shapes[0], "samples");
        let mut steps = Vec::new();
        for (index, node) in self.network.nodes.iter().enumerate() {
            let (rule, name) = (node.operator.rule(), &node.name);
            let layout = |builder: &Self, input| rule.input(input, &builder.axes[index]);
            let mut inputs = vec![self.moved_to(value, &layout(self, 0), name)];
            if let Some(parameter) = node.parameter {
                let (load, layout) = (Operation::Load(parameter), layout(self, 1));
                let Parameter { name, shape } = &self.network.parameters[parameter];
                inputs.push(self.push(load, &[], shape, layout, name));
            } else if let Some(labels) = node.shapes.get(1) {
                let fed = self.input(Feed::Labels, labels, "labels");
                inputs.push(self.moved_to(fed, &layout(self, 1), name));
            }
            let (operation, layout) =
                (Operation::Forward(node.operator), rule.output(&self.axes[index]));
            value = self.push(operation, &inputs, &node.output(), layout, name);
            let strategy = node.operator.strategy(&self.cuts.arrangements[index]);
            self.instructions[value].strategy = Some(strategy);
            steps.push((inputs, value));
        }
        steps
    }

    /// Returns each parameter's number and the number of its gradient, which may have pending sums.
    fn backward(&mut self, forward: &Forward) -> Vec<(usize, usize)> {
        let (nodes, mut gradients) = (&self.network.nodes, Vec::new());
        // The gradient of the current operator's result. The loss's result has none.
        let mut gradient = None;
        for (index, node) in nodes.iter().enumerate().rev() {
            let (rule, name) = (node.operator.rule(), &node.name);
            let (inputs, output) = &forward[index];
            let is_learnt = |nodes: &[Node]| nodes.iter().any(|node| node.parameter.is_some());
            if !is_learnt(&nodes[..=index]) {
                break;
            }
            // All ranks that hold the same part of a result need the part's whole gradient.
            let whole = rule.output(&self.axes[index]).complete();
            let of_output = gradient.map(|gradient| self.moved_to(gradient, &whole, name));
            let mut push = |input: usize, inputs: &[usize]| {
                let operation = Operation::Gradient(node.operator, input);
                let layout = rule.gradient(input, &self.axes[index]);
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
    /// ranks share a call. Returns the numbers of the sums.
    fn sums(&mut self, loss: usize, mut gradients: Vec<(usize, usize)>) -> (usize, Vec<usize>) {
        gradients.sort_unstable();
        let name = |parameter: usize| self.network.parameters[parameter].name.as_str();
        let named = gradients.iter().map(|&(parameter, value)| (value, name(parameter)));
        let all: Vec<(usize, &str)> = std::iter::once((loss, "loss")).chain(named).collect();
        let axes: Vec<_> =
            all.iter().map(|&(value, _)| self.instructions[value].layout.partial.clone()).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        // Move sums over the same ranks next to each other.
        order.sort_by_key(|&index| axes.iter().position(|other| *other == axes[index]));
        let (mut sums, mut buckets) = (vec![0; all.len()], 0);
        for same in order.chunk_by(|&a, &b| axes[a] == axes[b]) {
            let is_bucket = same.len() > 1 && !axes[same[0]].is_empty();
            buckets += usize::from(is_bucket);
            for &index in same {
                let (value, name) = all[index];
                let layout = self.instructions[value].layout.complete();
                sums[index] = self.moved_to(value, &layout, name);
                if is_bucket {
                    self.instructions[sums[index]].bucket = Some(buckets);
                }
            }
        }
        let gradients = sums.split_off(1);
        (sums[0], gradients)
    }

    /// Updates the parameters, after their last use.
    fn update(&mut self, gradients: &[usize]) {
        for (parameter, &gradient) in gradients.iter().enumerate() {
            let layout = self.instructions[gradient].layout.clone();
            let Parameter { name, shape } = &self.network.parameters[parameter];
            self.push(Operation::Momentum(parameter), &[gradient], shape, layout, name);
        }
    }
}
