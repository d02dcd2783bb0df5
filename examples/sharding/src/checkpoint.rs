//! Checkpoints of sharded runs. Each rank writes its parts, which can be merged and cut again for
//! another plan.

use super::execute::{State, parts};
use super::plan::Plan;
use super::tensor::{Tensor, from_bytes, places, to_bytes};
use crate::file::digest::PartsDigest;
use crate::file::digest::{self, Damage, Entries};
use crate::file::tensor_file::{NamedTensor, TensorFile, TensorFileError, Type};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Appended to a parameter's name for its momentum.
const MOMENTUM: &str = ".momentum";

/// One rank's parts, or the whole tensors, which are stored like those of a single rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    about: About,
    tensors: Vec<NamedTensor>,
}

/// The metadata of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    rank: u32,
    world: u32,
    mesh: String,
    /// The operators with their strategies.
    strategies: String,
    steps: u64,
    #[serde(rename = "origin")]
    run_id: RunId,
    /// The place of each tensor.
    places: Vec<Part>,
}

/// The place of a part in its tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    name: String,
    /// The whole shape.
    shape: Vec<usize>,
    layout: String,
    offset: Vec<usize>,
}

impl Checkpoint {
    /// Creates the checkpoint of `rank` in a run of `plan`.
    pub fn new(plan: &Plan, rank: u32, state: &State, run_id: &RunId) -> Checkpoint {
        let mesh = plan.mesh();
        let (mut places, mut tensors) = (Vec::new(), Vec::new());
        for (suffix, parts) in [("", &state.parameters), (MOMENTUM, &state.momenta)] {
            for ((parameter, layout), part) in plan.parameters().zip(parts) {
                let name = format!("{}{suffix}", parameter.name);
                places.push(Part {
                    name: name.clone(),
                    shape: parameter.shape.clone(),
                    layout: layout.to_string(),
                    offset: layout.offset(mesh, &parameter.shape, rank),
                });
                let bytes = to_bytes(&part.data);
                tensors.push(NamedTensor {
                    name,
                    numbers: Type::F32,
                    shape: part.shape.clone(),
                    bytes,
                });
            }
        }
        let about = About {
            rank,
            world: mesh.world(),
            mesh: mesh.to_string(),
            strategies: plan.named_strategies(),
            steps: state.steps,
            run_id: run_id.clone(),
            places,
        };
        Checkpoint { about, tensors }
    }

    /// The rank whose parts these are, and the number of ranks. Whole tensors are those of rank 0
    /// of 1.
    pub fn of_ranks(&self) -> (u32, u32) {
        (self.about.rank, self.about.world)
    }

    /// The number of completed steps.
    pub fn steps(&self) -> u64 {
        self.about.steps
    }

    /// Returns the ID of the run that resumes from this checkpoint with `plan`.
    pub fn run_id(&self, plan: &Plan) -> RunId {
        self.about.run_id.resumed(plan, self.about.steps)
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<(), CheckpointError> {
        let entries = serde_json::to_value(&self.about).and_then(serde_json::from_value::<Entries>);
        let entries = entries.map_err(|error| CheckpointError::Strange {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(digest::seal(entries, self.tensors.clone()).write(path)?)
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
        Ok(Checkpoint::read_with_digest(path)?.0)
    }

    /// Reads a file like [`Checkpoint::read`], and also returns its SHA-256.
    pub fn read_with_digest(path: &Path) -> Result<(Checkpoint, String), CheckpointError> {
        let strange = |reason: String| CheckpointError::Strange { path: path.to_owned(), reason };
        let (file, digest) = TensorFile::read_with_digest(path)?;
        let entries = digest::open(&file).map_err(|damage| match damage {
            Damage::Metadata(_) => strange(damage.to_string()),
            damage => CheckpointError::Damaged { path: path.to_owned(), damage },
        })?;
        let about: About =
            serde_json::from_value(entries.into()).map_err(|error| strange(error.to_string()))?;
        let mut tensors = Vec::new();
        for place in &about.places {
            let Some(tensor) = file.get(&place.name) else {
                return Err(strange(format!("there is no tensor {}", place.name)));
            };
            let fits =
                place.shape.len() == tensor.shape.len() && place.shape.len() == place.offset.len();
            let ends = place
                .offset
                .iter()
                .zip(&tensor.shape)
                .map(|(offset, size)| offset.checked_add(*size));
            let part: usize = tensor.shape.iter().product();
            let whole =
                place.shape.iter().try_fold(1, |product: usize, &size| product.checked_mul(size));
            // Merging allocates the whole tensor, so it must not be larger than the ranks' parts
            // can fill.
            let filled = |whole: usize| (whole as u128) <= part as u128 * u128::from(about.world);
            let inside =
                ends.zip(&place.shape).all(|(end, size)| end.is_some_and(|end| end <= *size));
            if !fits || !inside || !whole.is_some_and(filled) {
                return Err(strange(format!("tensor {} does not fit into its whole", place.name)));
            }
            tensors.push(tensor.clone());
        }
        Ok((Checkpoint { about, tensors }, digest))
    }

    /// Merges the parts of several ranks. Their paths are used in errors.
    ///
    /// If several ranks hold the same part, one of them is enough.
    ///
    /// # Errors
    /// If parts are missing, contradict each other, or belong to different runs.
    pub fn merge(parts: &[(PathBuf, Checkpoint)]) -> Result<Checkpoint, CheckpointError> {
        let Some((first_path, first)) = parts.first() else {
            return Err(CheckpointError::Nothing);
        };
        for (path, other) in parts {
            let terms = |checkpoint: &Checkpoint| {
                let About { world, mesh, strategies, steps, run_id, .. } = &checkpoint.about;
                format!("step {steps} of {world} ranks, mesh {mesh}, {strategies}, {run_id}")
            };
            let wholes = |checkpoint: &Checkpoint| {
                let named = checkpoint.about.places.iter().zip(&checkpoint.tensors);
                named
                    .map(|(place, tensor)| {
                        (place.name.clone(), place.shape.clone(), tensor.numbers)
                    })
                    .collect::<Vec<_>>()
            };
            if terms(other) != terms(first)
                || other.about.run_id != first.about.run_id
                || wholes(other) != wholes(first)
            {
                return Err(CheckpointError::Different {
                    path: path.clone(),
                    found: terms(other),
                    first: first_path.clone(),
                    expected: terms(first),
                });
            }
        }
        let mut tensors = Vec::new();
        let mut places = Vec::new();
        for (index, place) in first.about.places.iter().enumerate() {
            tensors.push(merge_tensor(place, index, parts)?);
            let layout = format!("[{}]", vec!["-"; place.shape.len()].join(", "));
            places.push(Part { layout, offset: vec![0; place.shape.len()], ..place.clone() });
        }
        let about =
            About { rank: 0, world: 1, mesh: "()".to_owned(), places, ..first.about.clone() };
        Ok(Checkpoint { about, tensors })
    }

    /// Returns a tensor by name: a parameter, or its momentum if the name ends in `.momentum`.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let tensor = self
            .tensors
            .iter()
            .find(|tensor| tensor.name == name && tensor.numbers == Type::F32)?;
        Some(Tensor::new(tensor.shape.clone(), from_bytes(&tensor.bytes)))
    }

    /// Cuts the parts of `rank` under a plan from a merged checkpoint of any strategy and number of
    /// ranks.
    ///
    /// # Errors
    /// If the checkpoint has only one rank's parts, or belongs to another network.
    pub fn state(&self, path: &Path, plan: &Plan, rank: u32) -> Result<State, CheckpointError> {
        if self.about.world != 1 {
            let About { rank, world, .. } = self.about;
            return Err(CheckpointError::OnlyPart { path: path.to_owned(), rank, world });
        }
        let whole = |suffix: &str| -> Result<Vec<Tensor>, CheckpointError> {
            let find = |(parameter, _): (&super::network::Parameter, _)| {
                let name = format!("{}{suffix}", parameter.name);
                let found = self.tensor(&name).filter(|found| found.shape == parameter.shape);
                let shape = &parameter.shape;
                let reason = || {
                    format!("the network has a tensor {name} of shape {shape:?}, the file does not")
                };
                found.ok_or_else(|| CheckpointError::Strange {
                    path: path.to_owned(),
                    reason: reason(),
                })
            };
            plan.parameters().map(find).collect()
        };
        let state = |whole: Vec<Tensor>| parts(plan, rank, &whole);
        Ok(State {
            parameters: state(whole("")?),
            momenta: state(whole(MOMENTUM)?),
            steps: self.about.steps,
        })
    }
}

/// Merges the parts of tensor number `index`.
fn merge_tensor(
    place: &Part,
    index: usize,
    parts: &[(PathBuf, Checkpoint)],
) -> Result<NamedTensor, CheckpointError> {
    let numbers = parts[0].1.tensors[index].numbers;
    let size = numbers.size();
    let count: usize = place.shape.iter().product();
    let mut bytes = vec![0; count * size];
    // For each number, the checkpoint that it comes from.
    let mut sources: Vec<Option<usize>> = vec![None; count];
    for (source, (path, checkpoint)) in parts.iter().enumerate() {
        let (place, part) = (&checkpoint.about.places[index], &checkpoint.tensors[index]);
        for (at, number) in
            places(&place.shape, &place.offset, &part.shape).zip(part.bytes.chunks_exact(size))
        {
            let whole = &mut bytes[at * size..(at + 1) * size];
            match sources[at] {
                Some(other) if whole != number => {
                    return Err(CheckpointError::Replicas {
                        name: place.name.clone(),
                        at,
                        path: path.clone(),
                        other: parts[other].0.clone(),
                    });
                }
                Some(_) => {}
                None => {
                    whole.copy_from_slice(number);
                    sources[at] = Some(source);
                }
            }
        }
    }
    match sources.iter().position(Option::is_none) {
        Some(at) => Err(CheckpointError::Missing {
            name: place.name.clone(),
            at,
            missing: sources.iter().filter(|source| source.is_none()).count(),
            count,
            world: parts[0].1.about.world,
            given: parts.len(),
        }),
        None => {
            Ok(NamedTensor { name: place.name.clone(), numbers, shape: place.shape.clone(), bytes })
        }
    }
}

/// Why a checkpoint cannot be written, read or merged.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] TensorFileError),
    #[error("{}: {damage}; name another checkpoint, or merge the checkpoints of all ranks again", path.display())]
    Damaged { path: PathBuf, damage: Damage },
    #[error("{}: is not a checkpoint of this network: {reason}", path.display())]
    Strange { path: PathBuf, reason: String },
    #[error("there are no checkpoints to merge: name the folders of all ranks")]
    Nothing,
    #[error("{}: is of {found}; {} is of {expected}: only parts of one step of one run can be merged, with the same options, initial weights and --resume-from", path.display(), first.display())]
    Different { path: PathBuf, found: String, first: PathBuf, expected: String },
    #[error("{}: number {at} of {name} differs from that in {}: the ranks diverged, or a file was changed", path.display(), other.display())]
    Replicas { name: String, at: usize, path: PathBuf, other: PathBuf },
    #[error(
        "{missing} of the {count} numbers of {name}, starting with number {at}, are in none of the {given} checkpoints: name the folders of all {world} ranks"
    )]
    Missing { name: String, at: usize, missing: usize, count: usize, world: u32, given: usize },
    #[error("{}: has only the parts of rank {rank} of {world}: merge the checkpoints of all ranks first", path.display())]
    OnlyPart { path: PathBuf, rank: u32, world: u32 },
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
        RunId { plan: of_plan(plan), start: digest(&[&format!("{drawn:?}")]) }
    }

    /// Identifies the run that resumes with `plan` after `steps` steps. It is the same run if the
    /// plan is the same.
    pub fn resumed(&self, plan: &Plan, steps: u64) -> RunId {
        let next = of_plan(plan);
        if next == self.plan {
            return self.clone();
        }
        RunId { plan: next, start: digest(&[&self.plan, &self.start, &steps.to_string()]) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunId { plan, start } = self;
        write!(f, "plan {plan:.SHOWN$}, start {start:.SHOWN$}")
    }
}

fn of_plan(plan: &Plan) -> String {
    digest(&[&plan.graph(), &plan.instructions_of(0)])
}

fn digest(texts: &[&str]) -> String {
    let mut sha = PartsDigest::default();
    texts.iter().for_each(|text| sha.add(text));
    sha.finish()
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
