//! Checkpoints of sharded runs. Each rank writes its parts, which can be merged and cut again for
//! another plan.

use super::execute::{State, parts};
use super::network::Parameter;
use super::plan::Plan;
use super::tensor::{Tensor, places};
use crate::error::Error;
use crate::file::tensor_file::{Entries, NamedTensor, TensorFile, digest_of};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Appended to a parameter's name for its momentum.
const MOMENTUM: &str = ".momentum";

/// One rank's parts, or the whole tensors, which are stored like those of a single rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The rank whose parts these are. Whole tensors are those of rank 0 of 1.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
    mesh: String,
    /// The operators with their strategies.
    strategies: String,
    /// The number of completed steps.
    pub steps: u64,
    #[serde(rename = "origin")]
    run_id: RunId,
    places: Vec<Part>,
}

/// A part of a tensor, and its place. The numbers are not in the metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Part {
    name: String,
    /// The whole shape.
    shape: Vec<usize>,
    layout: String,
    offset: Vec<usize>,
    #[serde(skip)]
    tensor: Tensor,
}

impl Checkpoint {
    /// Creates the checkpoint of `rank` in a run of `plan`.
    pub fn new(plan: &Plan, rank: u32, state: &State, run_id: &RunId) -> Checkpoint {
        let mesh = &plan.mesh;
        let mut places = Vec::new();
        for (suffix, parts) in [("", &state.parameters), (MOMENTUM, &state.momenta)] {
            for ((parameter, layout), part) in plan.parameters().zip(parts) {
                places.push(Part {
                    name: format!("{}{suffix}", parameter.name),
                    shape: parameter.shape.clone(),
                    layout: layout.to_string(),
                    offset: layout.offset(mesh, &parameter.shape, rank),
                    tensor: part.clone(),
                });
            }
        }
        Checkpoint {
            rank,
            world: mesh.world(),
            mesh: mesh.to_string(),
            strategies: plan.named_strategies(),
            steps: state.steps,
            run_id: run_id.clone(),
            places,
        }
    }

    /// Returns the ID of the run that resumes from this checkpoint with `plan`.
    pub fn run_id(&self, plan: &Plan) -> RunId {
        self.run_id.resumed(plan, self.steps)
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let entries = serde_json::to_value(self).and_then(serde_json::from_value::<Entries>);
        let entries = entries.map_err(|error| not_a_checkpoint(path, error))?;
        let tensors = self.places.iter().map(|part| NamedTensor::new(&part.name, &part.tensor));
        TensorFile::sealed(entries, tensors.collect()).write(path)
    }

    /// Reads a file, and also returns its SHA-256.
    pub fn read(path: &Path) -> Result<(Checkpoint, String), Error> {
        let (file, digest) = TensorFile::read_with_digest(path)??;
        let entries = file.entries().map_err(|reason| not_a_checkpoint(path, reason))?;
        let entries = file.verify(entries).map_err(|damage| {
            let remedy = "name another checkpoint, or merge the checkpoints of all ranks again";
            Error::in_file(path, format!("{damage}; {remedy}"))
        })?;
        let mut read: Checkpoint = serde_json::from_value(entries.into())
            .map_err(|error| not_a_checkpoint(path, error))?;
        for part in &mut read.places {
            part.tensor =
                file.get(&part.name).and_then(NamedTensor::to_tensor).ok_or_else(|| {
                    not_a_checkpoint(path, format!("tensor {} of f32 is missing", part.name))
                })?;
            if !part.fits() {
                let text = format!("tensor {} does not fit into its whole", part.name);
                return Err(not_a_checkpoint(path, text));
            }
        }
        Ok((read, digest))
    }

    /// Merges the parts of several ranks. Their paths are used in errors.
    ///
    /// If several ranks hold the same part, one of them is enough.
    ///
    /// # Errors
    /// If parts are missing, contradict each other, or belong to different runs.
    pub fn merge(parts: &[(PathBuf, Checkpoint)]) -> Result<Checkpoint, Error> {
        let Some((first_path, first)) = parts.first() else {
            let text = "there are no checkpoints to merge: name the folders of all ranks";
            return Err(Error::input(text));
        };
        let terms = |Checkpoint { world, mesh, strategies, steps, run_id, .. }: &Checkpoint| {
            format!("step {steps} of {world} ranks, mesh {mesh}, {strategies}, {run_id}")
        };
        for (path, other) in parts {
            let wholes = [other, first].map(|checkpoint| {
                checkpoint.places.iter().map(|part| (&part.name, &part.shape)).collect::<Vec<_>>()
            });
            if terms(other) != terms(first)
                || other.run_id != first.run_id
                || wholes[0] != wholes[1]
            {
                return Err(Error::input(format!(
                    "{}: is of {}; {} is of {}: only parts of one step of one run can be merged, \
                     with the same options, initial weights and --resume-from",
                    path.display(),
                    terms(other),
                    first_path.display(),
                    terms(first)
                )));
            }
        }
        let places = (0..first.places.len()).map(|index| merge_tensor(index, parts));
        let (places, mesh) = (places.collect::<Result<_, _>>()?, "()".to_owned());
        Ok(Checkpoint { rank: 0, world: 1, mesh, places, ..first.clone() })
    }

    /// Returns a tensor by name: a parameter, or its momentum if the name ends in `.momentum`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.places.iter().find(|part| part.name == name).map(|part| &part.tensor)
    }

    /// Cuts the parts of `rank` under a plan from a merged checkpoint of any strategy and number of
    /// ranks.
    ///
    /// # Errors
    /// If the checkpoint has only one rank's parts, or belongs to another network.
    pub fn state(&self, path: &Path, plan: &Plan, rank: u32) -> Result<State, Error> {
        if self.world != 1 {
            let Checkpoint { rank, world, .. } = self;
            let text = format!("has only the parts of rank {rank} of {world}");
            let remedy = "merge the checkpoints of all ranks first";
            return Err(Error::in_file(path, format!("{text}: {remedy}")));
        }
        let own = |suffix: &str| -> Result<Vec<Tensor>, Error> {
            let mut whole = Vec::new();
            for (Parameter { name, shape }, _) in plan.parameters() {
                let name = format!("{name}{suffix}");
                let found = self.tensor(&name).filter(|found| found.shape == *shape);
                whole.push(found.cloned().ok_or_else(|| {
                    let text = format!("the network has a tensor {name} of shape {shape:?}");
                    not_a_checkpoint(path, format!("{text}, the file does not"))
                })?);
            }
            Ok(parts(plan, rank, &whole))
        };
        Ok(State { parameters: own("")?, momenta: own(MOMENTUM)?, steps: self.steps })
    }
}

impl Part {
    /// Returns whether the part lies in its whole.
    fn fits(&self) -> bool {
        let Part { shape, offset, tensor, .. } = self;
        let ends = offset.iter().zip(&tensor.shape).map(|(offset, size)| offset.checked_add(*size));
        let whole = shape.iter().try_fold(1, |product: usize, &size| product.checked_mul(size));
        [tensor.shape.len(), offset.len()] == [shape.len(); 2]
            && ends.zip(shape).all(|(end, size)| end.is_some_and(|end| end <= *size))
            && whole.is_some()
    }
}

/// Merges the parts of tensor number `index`.
fn merge_tensor(index: usize, parts: &[(PathBuf, Checkpoint)]) -> Result<Part, Error> {
    let Part { name, shape, .. } = &parts[0].1.places[index];
    let (given, world) = (parts.len(), parts[0].1.world);
    let name_all = format!("checkpoints: name the folders of all {world} ranks");
    // Nothing is allocated that the parts cannot fill.
    let count: usize = shape.iter().product();
    let most: usize = parts.iter().map(|(_, part)| part.places[index].tensor.data.len()).sum();
    if most < count {
        return Err(Error::input(format!(
            "of the {count} numbers of {name}, at most {most} are in the {given} {name_all}"
        )));
    }
    let mut whole = Tensor::zeros(shape.clone());
    // For each number, the checkpoint that it comes from.
    let mut sources: Vec<Option<usize>> = vec![None; whole.data.len()];
    for (source, (path, checkpoint)) in parts.iter().enumerate() {
        let Part { offset, tensor, .. } = &checkpoint.places[index];
        for (at, number) in places(shape, offset, &tensor.shape).zip(&tensor.data) {
            match sources[at] {
                Some(other) if whole.data[at].to_bits() != number.to_bits() => {
                    return Err(Error::input(format!(
                        "{}: number {at} of {name} differs from that in {}: the ranks diverged, or \
                         a file was changed",
                        path.display(),
                        parts[other].0.display()
                    )));
                }
                Some(_) => {}
                None => (whole.data[at], sources[at]) = (*number, Some(source)),
            }
        }
    }
    if let Some(at) = sources.iter().position(Option::is_none) {
        let missing = sources.iter().filter(|source| source.is_none()).count();
        return Err(Error::input(format!(
            "{missing} of the {count} numbers of {name}, starting with number {at}, are in none of \
             the {given} {name_all}"
        )));
    }
    let layout = format!("[{}]", vec!["-"; shape.len()].join(", "));
    let offset = vec![0; shape.len()];
    Ok(Part { name: name.clone(), shape: shape.clone(), layout, offset, tensor: whole })
}

fn not_a_checkpoint(path: &Path, reason: impl fmt::Display) -> Error {
    Error::in_file(path, format!("is not a checkpoint of this network: {reason}"))
}

/// The number of digits of a digest to print.
const SHOWN: usize = 8;

/// Digests of a run's plan and of how its initial parameters came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunId {
    plan: String,
    start: String,
}

impl RunId {
    /// Identifies a run of `plan` with initial parameters drawn by `drawn`, such as an
    /// [`Init`](super::init::Init).
    pub fn new(plan: &Plan, drawn: &impl fmt::Debug) -> RunId {
        RunId { plan: plan_digest(plan), start: digest_of([format!("{drawn:?}")]) }
    }

    /// Identifies the run that resumes with `plan` after `steps` steps. It is the same run if the
    /// plan is the same.
    pub fn resumed(&self, plan: &Plan, steps: u64) -> RunId {
        let next = plan_digest(plan);
        if next == self.plan {
            return self.clone();
        }
        RunId { plan: next, start: digest_of([&self.plan, &self.start, &steps.to_string()]) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunId { plan, start } = self;
        write!(f, "plan {plan:.SHOWN$}, start {start:.SHOWN$}")
    }
}

fn plan_digest(plan: &Plan) -> String {
    digest_of([plan.graph(), plan.instructions_of(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::Init;
    use crate::network::Chain;
    use crate::plan::{Collectives, Terms};

    fn plan(learning_rate: f32, collectives: Collectives) -> Plan {
        let network = Chain::new(8, 8).matmul("matmul", "w", 8).mse("loss");
        Plan::new(
            &network,
            &Terms { world: 2, data_cut: 2, collectives, learning_rate, momentum: 0.1 },
        )
        .unwrap()
    }

    #[test]
    fn runs_differ_in_plan_first_weights_and_what_they_go_on_from() {
        let (one, other) = (plan(0.1, Collectives::Compat), plan(0.2, Collectives::Compat));
        let seed = |seed| Init::Normal { seed };
        let first = RunId::new(&one, &seed(1));
        assert_eq!(first, RunId::new(&plan(0.1, Collectives::Compat), &seed(1)));
        let all = [
            first.clone(),
            RunId::new(&one, &seed(2)),
            RunId::new(&one, &Init::MindSpore1),
            RunId::new(&other, &seed(1)),
            RunId::new(&plan(0.1, Collectives::Min), &seed(1)),
            first.resumed(&other, 4),
            first.resumed(&other, 5),
            RunId::new(&one, &seed(2)).resumed(&other, 4),
            first.resumed(&other, 4).resumed(&one, 8),
        ];
        for (index, run_id) in all.iter().enumerate() {
            assert!(!all[..index].contains(run_id), "{index}");
        }
    }

    #[test]
    fn a_run_that_goes_on_by_its_plan_is_the_same_run() {
        let plan = plan(0.1, Collectives::Compat);
        let first = RunId::new(&plan, &Init::Normal { seed: 1 });
        assert_eq!(first.resumed(&plan, 4), first);
        let text = first.to_string();
        assert_eq!(text.len(), "plan 01234567, start 01234567".len(), "{text}");
    }
}
