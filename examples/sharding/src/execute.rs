//! Runs a plan on a rank, over any transport.

use std::mem;

use super::exchange::Exchange;
use super::mesh::Axis;
use super::operator::{Operator, kernels, matmul};
use super::plan::{Feed, Instruction, Operation, Plan, Terms};
use super::tensor::Tensor;
use crate::error::{Error, Reach};
use crate::job;
use mpienv::collective::{CollectiveError, Group};

/// A rank's parts of the parameters and momenta.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub parameters: Vec<Tensor>,
    pub momenta: Vec<Tensor>,
    /// The number of completed steps.
    pub steps: u64,
}

impl State {
    /// The state before the first step.
    pub fn new(parameters: Vec<Tensor>) -> State {
        let momenta =
            parameters.iter().map(|parameter| Tensor::zeros(parameter.shape.clone())).collect();
        State { parameters, momenta, steps: 0 }
    }

    /// Cuts the initial state of `rank` from whole parameters in the plan's order.
    pub fn cut_from(plan: &Plan, rank: u32, whole: &[Tensor]) -> State {
        State::new(parts(plan, rank, whole))
    }
}

/// Cuts a rank's parts from whole tensors, which must have the order and shapes of the plan's
/// parameters.
pub(super) fn parts(plan: &Plan, rank: u32, whole: &[Tensor]) -> Vec<Tensor> {
    let parameters = plan.parameters().zip(whole).map(|((_, layout), whole)| {
        let offset = layout.offset(&plan.mesh, &whole.shape, rank);
        whole.cut(&offset, &layout.local_shape(&plan.mesh, &whole.shape))
    });
    parameters.collect()
}

/// Runs the steps of a plan on one rank. Each step reuses the memory of the previous one.
pub struct Executor<'a> {
    plan: &'a Plan,
    exchange: Exchange<'a>,
    /// The result of each instruction. Inputs and parameters are used in place.
    results: Vec<Tensor>,
    /// A buffer for a transposed matrix.
    turned: Tensor,
    /// A buffer for sums that share a call.
    bucket: Vec<f32>,
    /// The mean loss, in the last step, of the samples whose loss this rank computes, if there are
    /// any. These are the rank's own samples if the loss operator is cut like the data set.
    pub own_loss: Option<f32>,
}

impl<'a> Executor<'a> {
    /// Checks that all ranks of `world` have the same plan, and creates the groups. All ranks must
    /// call this.
    ///
    /// `terms` lists options that must be the same on all ranks, one per line.
    ///
    /// # Errors
    /// If a rank has another plan or other terms, the plan is for another number of ranks, or a
    /// rank is lost.
    pub fn new(plan: &'a Plan, terms: &str, world: &mut Group) -> Result<Executor<'a>, Error> {
        let rank = world.rank();
        let text = format!("{terms}\n{}{}", plan.graph(), plan.instructions_of(0));
        // Check this first, because ranks with other plans would make other calls.
        agree(&text, world)?;
        if rank.size() != plan.mesh.world() {
            let (planned, found) = (plan.mesh.world(), rank.size());
            let text = format!("the plan is for {planned} ranks, there are {found}");
            return Err(Error::input(text).reaching(Reach::All));
        }
        let moves =
            plan.instructions.iter().filter_map(|instruction| match &instruction.operation {
                Operation::Move(step) => Some(step),
                _ => None,
            });
        let exchange = Exchange::new(&plan.mesh, moves, world)?;
        let results = plan.instructions.iter().map(|_| Tensor::default()).collect();
        Ok(Executor {
            plan,
            exchange,
            results,
            turned: Tensor::default(),
            bucket: Vec::new(),
            own_loss: None,
        })
    }

    /// Runs a step with this rank's part of the samples and labels. Returns the loss of all samples
    /// before the step.
    pub fn step(
        &mut self,
        state: &mut State,
        samples: &Tensor,
        labels: &Tensor,
    ) -> Result<f32, Error> {
        let count = self.plan.fed(Feed::Labels).shape.iter().product();
        self.step_of(count, state, samples, labels)
    }

    /// Runs a step like [`Executor::step`], but the loss is the mean over `count` labels on all
    /// ranks, which excludes the labels of empty rows; see [`kernels`].
    pub fn step_of(
        &mut self,
        count: usize,
        state: &mut State,
        samples: &Tensor,
        labels: &Tensor,
    ) -> Result<f32, Error> {
        let plan = self.plan;
        check_shape(plan, Feed::Samples, &samples.shape)?;
        check_shape(plan, Feed::Labels, &labels.shape)?;
        let mut number = 0;
        while let Some(instruction) = plan.instructions.get(number) {
            if let (Operation::Move(step), Some(_)) = (&instruction.operation, instruction.bucket) {
                number = self.sum_bucket(number, step.group())?;
                continue;
            }
            if let Operation::Momentum(parameter) = instruction.operation {
                update(state, parameter, &self.results[instruction.inputs[0]], &plan.terms);
                number += 1;
                continue;
            }
            let mut result = mem::take(&mut self.results[number]);
            let input = |index: usize| {
                let number = instruction.inputs[index];
                match plan.instructions[number].operation {
                    Operation::Input(Feed::Samples) => samples,
                    Operation::Input(Feed::Labels) => labels,
                    Operation::Load(parameter) => &state.parameters[parameter],
                    _ => &self.results[number],
                }
            };
            match &instruction.operation {
                Operation::Move(step) => self.exchange.apply(step, input(0), &mut result)?,
                operation => compute(operation, input, count, &mut self.turned, &mut result),
            }
            if number == plan.loss_operator {
                let labels = input(1);
                let is_xent = instruction.operation == Operation::Forward(Operator::Xent);
                let own = if is_xent { kernels::samples(labels) } else { labels.data.len() };
                let share = result.data[0];
                self.own_loss = (own > 0).then(|| share * (count as f64 / own as f64) as f32);
            }
            debug_assert!(
                matches!(instruction.operation, Operation::Input(_) | Operation::Load(_))
                    || result.shape == instruction.local_shape(&plan.mesh),
                "{instruction:?} has {:?}",
                result.shape
            );
            self.results[number] = result;
            number += 1;
        }
        state.steps += 1;
        Ok(self.results[plan.loss].data[0])
    }

    /// Computes the sums of the bucket that starts at instruction `first`. Returns the number of
    /// the next instruction.
    fn sum_bucket(&mut self, first: usize, axes: &[Axis]) -> Result<usize, CollectiveError> {
        let instructions = &self.plan.instructions;
        let same = |instruction: &&Instruction| instruction.bucket == instructions[first].bucket;
        let end = first + instructions[first..].iter().take_while(same).count();
        let bucket = &mut self.bucket;
        bucket.clear();
        for instruction in &instructions[first..end] {
            bucket.extend_from_slice(&self.results[instruction.inputs[0]].data);
        }
        self.exchange.add(axes, bucket)?;
        let mut rest = bucket.as_slice();
        for (number, instruction) in (first..).zip(&instructions[first..end]) {
            let (before, sum) = self.results.split_at_mut(number);
            let (before, sum) = (&before[instruction.inputs[0]], &mut sum[0]);
            sum.shape_as(&before.shape);
            let own;
            (own, rest) = rest.split_at(before.data.len());
            sum.data.copy_from_slice(own);
        }
        Ok(end)
    }
}

/// Checks that a rank feeds what the plan expects of it.
pub fn check_shape(plan: &Plan, feed: Feed, found: &[usize]) -> Result<(), Error> {
    let expected = plan.fed(feed).local_shape(&plan.mesh);
    if *found == expected {
        return Ok(());
    }
    Err(Error::input(format!(
        "the rank's {feed:?} have the shape {found:?}, the plan has {expected:?}"
    )))
}

/// Computes an operation that involves no other rank. `turned` is a buffer.
fn compute<'t>(
    operation: &Operation,
    input: impl Fn(usize) -> &'t Tensor,
    count: usize,
    turned: &mut Tensor,
    result: &mut Tensor,
) {
    use Operation::{Forward, Gradient, Input, Load, Momentum, Move};
    use Operator::{BiasAdd, MatMul, Mse, Relu, Xent};
    let mut scalar = |number: f32| {
        result.shape_as(&[]);
        result.data[0] = number;
    };
    match *operation {
        Forward(MatMul) => matmul::forward(input(0), input(1), result),
        Forward(BiasAdd) => kernels::add_bias(input(0), input(1), result),
        Forward(Relu) => kernels::relu(input(0), result),
        Forward(Mse) => scalar(kernels::mse(input(0), input(1), count)),
        Forward(Xent) => scalar(kernels::xent(input(0), input(1), count)),
        Gradient(MatMul, 0) => matmul::gradient_of_first(input(0), input(1), turned, result),
        Gradient(MatMul, _) => matmul::gradient_of_second(input(0), input(1), result),
        Gradient(BiasAdd, _) => kernels::bias_gradient(input(0), result),
        Gradient(Relu, _) => kernels::relu_gradient(input(0), input(1), result),
        Gradient(Mse, _) => kernels::mse_gradient(input(0), input(1), count, result),
        Gradient(Xent, _) => kernels::xent_gradient(input(0), input(1), count, result),
        // Inputs and parameters are used in place. The caller handles moves and updates.
        Input(_) | Load(_) | Move(_) | Momentum(_) => {}
    }
}

/// Updates a parameter: v = momentum v + g, p = p - learning rate v.
fn update(state: &mut State, parameter: usize, gradient: &Tensor, terms: &Terms) {
    let Terms { learning_rate, momentum, .. } = *terms;
    let moved = state.momenta[parameter].data.iter_mut().zip(&gradient.data);
    for (number, (velocity, &gradient)) in state.parameters[parameter].data.iter_mut().zip(moved) {
        *velocity = momentum * *velocity + gradient;
        *number -= learning_rate * *velocity;
    }
}

/// Checks that all ranks have the same text.
fn agree(own: &str, world: &mut Group) -> Result<(), Error> {
    let all = world.all_gather(own.as_bytes())?;
    let expected = job::majority(&all);
    let odd = all.iter().enumerate().find(|(_, text)| Some(*text) != expected);
    let Some(((rank, found), expected)) = odd.zip(expected) else { return Ok(()) };
    let (found, expected) = (String::from_utf8_lossy(found), String::from_utf8_lossy(expected));
    let lines = found.lines().map(Some).chain(std::iter::repeat(None));
    let expected_lines = expected.lines().map(Some).chain(std::iter::repeat(None));
    let (found, expected) = lines.zip(expected_lines).find(|(a, b)| a != b).unwrap_or_default();
    let line = |line: Option<&str>| mpienv::printable(line.unwrap_or("nothing").as_bytes());
    let text = format!(
        "rank {rank} has another plan: \"{}\" where others have \"{}\"; all ranks must run the same \
         program with the same options",
        line(found),
        line(expected)
    );
    Err(Error::input(text).reaching(Reach::All))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Chain;
    use crate::plan::{Collectives, Terms};
    use mpienv::collective::threads;
    use std::time::Duration;

    fn plan(world: u32, strategy: &str, learning_rate: f32) -> Plan {
        let mut network = Chain::new(8, 8).matmul("matmul", "w", 8).mse("loss");
        network.shard("matmul", strategy.parse().unwrap()).unwrap();
        let collectives = Collectives::Compat;
        Plan::new(
            &network,
            &Terms { world, data_cut: world, collectives, learning_rate, momentum: 0.0 },
        )
        .unwrap()
    }

    fn errors(world: u32, plan_of: impl Fn(u32) -> (Plan, &'static str) + Sync) -> Vec<String> {
        threads::run(world, Duration::from_secs(1200), |rank| {
            let (plan, terms) = plan_of(rank.rank().index());
            Executor::new(&plan, terms, rank).map(drop).unwrap_err().to_string()
        })
        .unwrap()
    }

    #[test]
    fn a_rank_with_another_plan_is_named_by_all() {
        let strategy = |rank| if rank == 2 { "((4,1),(1,1))" } else { "((2,2),(2,1))" };
        let errors = errors(4, |rank| (plan(4, strategy(rank), 0.1), ""));
        let expected = "rank 2 has another plan: \"# network on 4 ranks, mesh (4)\" where others have \
            \"# network on 4 ranks, mesh (2,2)\"; all ranks must run the same program with the same options";
        assert_eq!(errors, [expected; 4]);
    }

    #[test]
    fn the_odd_rank_is_named_even_if_it_is_the_first() {
        let errors =
            errors(4, |rank| (plan(4, "((1,1),(1,1))", if rank == 0 { 0.2 } else { 0.1 }), ""));
        assert!(
            errors.iter().all(|error| error.starts_with("rank 0 has another plan: ")),
            "{errors:?}"
        );
        assert!(errors[0].contains("learning_rate: 0.2, "), "{}", errors[0]);
    }

    #[test]
    fn a_rank_with_other_terms_is_named() {
        let errors = errors(2, |rank| {
            (plan(2, "((2,1),(1,1))", 0.1), ["seed: 1", "seed: 2"][rank as usize])
        });
        assert!(
            errors[0]
                .starts_with("rank 1 has another plan: \"seed: 2\" where others have \"seed: 1\";")
        );
    }

    #[test]
    fn a_plan_for_other_ranks_is_refused() {
        assert_eq!(
            errors(2, |_| (plan(4, "((2,2),(2,1))", 0.1), ""))[1],
            "the plan is for 4 ranks, there are 2"
        );
    }

    #[test]
    fn data_of_another_shape_is_refused() {
        let plan = plan(2, "((2,1),(1,1))", 0.1);
        let error = threads::run(2, Duration::from_secs(1200), |rank| {
            let mut executor = Executor::new(&plan, "", rank).unwrap();
            let mut state = State::new(vec![Tensor::zeros(vec![8, 8])]);
            let whole = Tensor::zeros(vec![8, 8]);
            executor.step(&mut state, &whole, &whole).unwrap_err().to_string()
        });
        assert_eq!(
            error.unwrap()[0],
            "the rank's Samples have the shape [8, 8], the plan has [4, 8]"
        );
    }
}
