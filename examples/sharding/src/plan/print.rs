//! Prints a plan: the network with its strategies, and each rank's instructions.

use super::{Instruction, Operation, Plan, Terms};
use crate::arguments::name_of;
use crate::error::Error;
use crate::join;
use crate::operator::Operator;
use crate::redistribute::{Kind, Step};
use crate::strategy::tuple;

impl Plan {
    /// Formats the network, then the instructions of a rank.
    pub fn text(&self, rank: u32) -> Result<String, Error> {
        let ranks = self.mesh.world();
        if rank >= ranks {
            let text = format!("rank {rank} of {ranks} does not exist");
            return Err(Error::input(format!("{text}: --rank must be below the number of ranks")));
        }
        Ok(format!("{}{}", self.graph(), self.instructions_of(rank)))
    }

    /// Formats the network, with whole shapes and every operator's strategy.
    pub fn graph(&self) -> String {
        let samples = kind(&self.network.nodes[0].shapes[0]);
        let mut lines = vec![format!("Input() {{name: samples}} : () -> {samples}")];
        let mut value = 0;
        let strategies = self.instructions.iter().filter_map(|one| one.strategy.as_ref());
        for (node, strategy) in self.network.nodes.iter().zip(strategies) {
            let mut inputs = format!("%{value}");
            if let Some(shape) = node.shapes.get(1) {
                inputs += &format!(", %{}", lines.len());
                let (operation, name) = match node.parameter {
                    Some(parameter) => ("Load", self.network.parameters[parameter].name.as_str()),
                    None => ("Input", "labels"),
                };
                lines.push(format!("{operation}() {{name: {name}}} : () -> {}", kind(shape)));
            }
            value = lines.len();
            let (operation, name, kinds) = (node.operator.name(), &node.name, kinds(&node.shapes));
            let output = kind(&node.output());
            lines.push(format!(
                "{operation}({inputs}) {{in_strategy: {strategy:#}; name: {name}}} : ({kinds}) -> {output}"
            ));
        }
        let title = format!("# network on {} ranks, mesh {}\n", self.mesh.world(), self.mesh);
        title + &numbered(lines)
    }

    /// Formats a rank's instructions with the shapes of its parts, then the traffic of a step.
    pub fn instructions_of(&self, rank: u32) -> String {
        let world = self.mesh.world();
        let line = |instruction: &Instruction| {
            let inputs = join(instruction.inputs.iter().map(|input| format!("%{input}")), ", ");
            let of_input = |&input: &usize| self.instructions[input].local_shape(&self.mesh);
            let shapes: Vec<_> = instruction.inputs.iter().map(of_input).collect();
            let (kinds, output) = (kinds(&shapes), kind(&instruction.local_shape(&self.mesh)));
            let attributes = self.attributes(instruction, rank);
            let operation = name(&instruction.operation);
            format!("{operation}({inputs}) {{{attributes}}} : ({kinds}) -> {output}")
        };
        let lines = numbered(self.instructions.iter().map(line));
        let traffic = self.traffic();
        let collectives = name_of(&self.terms.collectives);
        let bytes = (traffic.bytes_per_rank(world) * 100.0).round() / 100.0;
        format!(
            "# rank {rank} of {world}, mesh {}\n{lines}\
             # bytes/step/rank: {bytes}\n# collectives/step: {} ({collectives})\n",
            self.mesh, traffic.calls
        )
    }

    fn attributes(&self, instruction: &Instruction, rank: u32) -> String {
        let name = &instruction.name;
        match &instruction.operation {
            Operation::Momentum(_) => {
                let Terms { learning_rate, momentum, .. } = self.terms;
                format!("learning_rate: {learning_rate}, momentum: {momentum}; name: {name}")
            }
            Operation::Move(step) => self.step(step, instruction, rank),
            _ => match &instruction.strategy {
                Some(strategy) => format!("in_strategy: {strategy:#}; name: {name}"),
                None => format!("name: {name}"),
            },
        }
    }

    fn step(&self, step: &Step, instruction: &Instruction, rank: u32) -> String {
        let group = join(self.mesh.group(rank, step.group()), "-");
        match step.kind {
            Kind::Slice { dim } => {
                let end = instruction.local_shape(&self.mesh);
                let mut begin = vec![0; end.len()];
                begin[dim] = end[dim] * self.mesh.index(rank, &step.axes) as usize;
                let end = begin.iter().zip(&end).map(|(begin, size)| begin + size);
                format!("begin: {}, end: {}", tuple(begin.iter().copied(), true), tuple(end, true))
            }
            Kind::AllReduce => match instruction.bucket {
                // As in MindSpore, sums with the same number are fused into one call.
                Some(number) => format!("group: {group}, op: sum, fusion: {number}"),
                None => format!("group: {group}, op: sum"),
            },
            Kind::ReduceScatter { dim } => format!("group: {group}, op: sum, dim: {dim}"),
            Kind::AllGather { dim } => format!("group: {group}, dim: {dim}"),
            Kind::AllToAll { from, to } => {
                format!("group: {group}, concat_dim: {from}, split_dim: {to}")
            }
        }
    }
}

/// Writes each line after its number.
fn numbered(lines: impl IntoIterator<Item = String>) -> String {
    let lines = lines.into_iter().enumerate();
    lines.map(|(number, line)| format!("%{number} = {line}\n")).collect()
}

fn name(operation: &Operation) -> String {
    let name = match operation {
        Operation::Input(_) => "Input",
        Operation::Load(_) => "Load",
        Operation::Forward(operator) => operator.name(),
        Operation::Gradient(Operator::MatMul, 0) => "MatMulGradFirst",
        Operation::Gradient(Operator::MatMul, _) => "MatMulGradSecond",
        Operation::Gradient(operator, _) => return format!("{}Grad", operator.name()),
        Operation::Momentum(_) => "Momentum",
        Operation::Move(step) => match step.kind {
            Kind::Slice { .. } => "StridedSlice",
            Kind::AllReduce => "AllReduce",
            Kind::ReduceScatter { .. } => "ReduceScatter",
            Kind::AllGather { .. } => "AllGather",
            Kind::AllToAll { .. } => "AllToAll",
        },
    };
    name.to_owned()
}

/// Formats a shape of f32 numbers.
fn kind(shape: &[usize]) -> String {
    format!("f32[{}]", join(shape, ","))
}

fn kinds(shapes: &[Vec<usize>]) -> String {
    join(shapes.iter().map(|shape| kind(shape)), ", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Chain;
    use crate::plan::{Collectives, Terms};

    fn plan(collectives: Collectives) -> Plan {
        let chain =
            Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16);
        let mut network = chain.mse("loss");
        network.shard("matmul", "((2,4),(4,1))".parse().unwrap()).unwrap();
        let terms = Terms { world: 8, data_cut: 8, collectives, learning_rate: 0.4, momentum: 0.1 };
        Plan::new(&network, &terms).unwrap()
    }

    #[test]
    fn the_graph_has_whole_shapes_and_strategies() {
        let expected = "\
# network on 8 ranks, mesh (2,4)
%0 = Input() {name: samples} : () -> f32[16,32]
%1 = Load() {name: w} : () -> f32[32,16]
%2 = MatMul(%0, %1) {in_strategy: ((2, 4), (4, 1)); name: matmul} : (f32[16,32], f32[32,16]) -> f32[16,16]
%3 = ReLU(%2) {in_strategy: ((2, 4),); name: relu} : (f32[16,16]) -> f32[16,16]
%4 = Load() {name: w2} : () -> f32[16,16]
%5 = MatMul(%3, %4) {in_strategy: ((2, 4), (4, 1)); name: matmul2} : (f32[16,16], f32[16,16]) -> f32[16,16]
%6 = Input() {name: labels} : () -> f32[16,16]
%7 = MSELoss(%5, %6) {in_strategy: ((8, 1), (8, 1)); name: loss} : (f32[16,16], f32[16,16]) -> f32[]
";
        assert_eq!(plan(Collectives::Compat).graph(), expected);
    }

    #[test]
    fn a_ranks_instructions_have_its_slices_and_groups() {
        let text = plan(Collectives::Compat).instructions_of(1);
        for line in [
            "%1 = AllGather(%0) {group: 0-1-2-3, dim: 0} : (f32[2,32]) -> f32[8,32]\n",
            "%2 = StridedSlice(%1) {begin: (0, 8), end: (8, 16)} : (f32[8,32]) -> f32[8,8]\n",
            "%4 = MatMul(%2, %3) {in_strategy: ((2, 4), (4, 1)); name: matmul} : (f32[8,8], f32[8,16]) -> f32[8,16]\n",
            "%5 = AllReduce(%4) {group: 0-1-2-3, op: sum} : (f32[8,16]) -> f32[8,16]\n",
            "%6 = StridedSlice(%5) {begin: (0, 4), end: (8, 8)} : (f32[8,16]) -> f32[8,4]\n",
            "%7 = ReLU(%6) {in_strategy: ((2, 4),); name: relu} : (f32[8,4]) -> f32[8,4]\n",
            "AllReduce(%20) {group: 1-5, op: sum, fusion: 1} : (f32[8,16]) -> f32[8,16]\n",
            "AllReduce(%16) {group: 1-5, op: sum, fusion: 1} : (f32[4,16]) -> f32[4,16]\n",
            "{learning_rate: 0.4, momentum: 0.1; name: w2} : (f32[4,16]) -> f32[4,16]\n",
            "# bytes/step/rank: 3847\n# collectives/step: 7 (compat)\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let text = plan(Collectives::Min).instructions_of(6);
        for line in [
            "%1 = AllToAll(%0) {group: 4-5-6-7, concat_dim: 0, split_dim: 1} : (f32[2,32]) -> f32[8,8]\n",
            "= ReduceScatter(%3) {group: 4-5-6-7, op: sum, dim: 1} : (f32[8,16]) -> f32[8,4]\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
