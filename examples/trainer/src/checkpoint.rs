//! Checkpoints. A resumed run produces the same bits as an uninterrupted one.
//!
//! Only rank 0 reads and writes checkpoints, and only its options count. All other ranks follow it.

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agreement;
use crate::data::Dataset;
use crate::parameters::{self, Shapes};
use crate::stop::Stop;
use crate::train::TrainConfig;
use mpienv::collective::Group;
use mpienv_sharding::arguments::{at_least_one, name_of};
use mpienv_sharding::error::{Error, Reach};
use mpienv_sharding::file::folder::{self, FolderLock, KEPT};
use mpienv_sharding::file::tensor_file::{Entries, TensorFile};
use mpienv_sharding::file::{naming, sibling};
use mpienv_sharding::join;
use mpienv_sharding::plan::Plan;

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The number of completed steps in the epoch.
    pub step: u64,
    /// The sum of the losses of all samples in the completed steps.
    #[serde(with = "exact")]
    pub loss_sum: f64,
}

impl Position {
    /// The number of steps since the start of a run whose epochs have `epoch_steps` steps.
    pub fn steps(&self, epoch_steps: u64) -> u64 {
        u64::from(self.epoch).saturating_mul(epoch_steps).saturating_add(self.step)
    }
}

/// When and where checkpoints are written: nowhere without a folder, which must not contain any
/// unless the run resumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Settings {
    /// Keep the run's last five checkpoints in a folder: one after each epoch, one when Ctrl-C or
    /// SIGTERM stops the run
    #[arg(long = "checkpoint-dir", value_name = "DIR")]
    pub folder: Option<PathBuf>,

    /// Also write a checkpoint every N steps
    #[arg(long = "checkpoint-every", value_name = "N", requires = "folder", value_parser = at_least_one::<NonZeroU64>)]
    pub every: Option<NonZeroU64>,

    /// Resume from the newest checkpoint, if there is one
    #[arg(long, requires = "folder")]
    pub resume: bool,
}

/// Everything that determines a run's bits.
#[derive(Clone, Debug)]
pub struct Run {
    terms: Vec<(&'static str, String)>,
    shapes: Shapes,
    /// The number of steps in an epoch.
    epoch_steps: u64,
}

impl Run {
    /// Describes a run of a model with these [`crate::model::Model::parameter_shapes`]: with its
    /// operators cut by a plan, or data parallel.
    pub fn new(
        config: &TrainConfig,
        cut: Option<&Plan>,
        shapes: Shapes,
        ranks: u32,
        train: &Dataset,
    ) -> Run {
        let terms = vec![
            (STRATEGY, cut.map_or(agreement::DATA_PARALLEL.to_owned(), Plan::named_strategies)),
            ("ranks", ranks.to_string()),
            ("batch size", config.batch_size.to_string()),
            ("learning rate", config.learning_rate.to_string()),
            ("seed", config.seed.to_string()),
            ("order", name_of(&config.order)),
            ("training set, labels 0 to 9", join(train.class_counts(), " ")),
        ];
        Run { terms, shapes, epoch_steps: config.steps(train.count(), ranks) as u64 }
    }
}

/// The name of the term for the strategies. A checkpoint without this term belongs to a
/// data-parallel run.
const STRATEGY: &str = "strategy";

/// The checkpoints of a run in progress. The default keeps none and starts at the first step.
#[derive(Debug, Default)]
pub struct Checkpoints {
    /// Raised to request a last checkpoint and the end of the run.
    pub stop: Stop,
    /// `Some` only on rank 0 of a run that keeps checkpoints.
    writer: Option<(Folder, Run)>,
    shared: Shared,
}

/// What all ranks know of the checkpoints.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Shared {
    start: Position,
    kept: bool,
    every: Option<NonZeroU64>,
}

impl Checkpoints {
    /// Starts or resumes a run. If it resumes, rank 0 loads the newest checkpoint's parameters into
    /// `parameters`.
    ///
    /// All ranks of `group` must call this. Only rank 0's `settings` count. Messages for the user
    /// go to `remark`.
    ///
    /// # Errors
    /// On all ranks, if rank 0 cannot use the folder or resume from it.
    pub fn begin(
        settings: &Settings,
        run: Run,
        parameters: &mut Vec<f32>,
        group: &mut Group,
        remark: &mut dyn FnMut(&str),
    ) -> Result<Checkpoints, Error> {
        let mut writer = None;
        let own = group.rank().is_first().then(|| {
            let Some(path) = &settings.folder else { return Ok(Shared::default()) };
            let (folder, start) = open(path, settings.resume, &run, parameters, remark)?;
            writer = Some((folder, run));
            Ok(Shared { start, kept: true, every: settings.every })
        });
        let shared = from_first(own, group)?;
        Ok(Checkpoints { stop: Stop::default(), writer, shared })
    }

    pub fn start(&self) -> Position {
        self.shared.start
    }

    /// Returns whether the run keeps checkpoints. All ranks return the same value.
    pub fn are_kept(&self) -> bool {
        self.shared.kept
    }

    /// The number of steps until the next checkpoint is due, if any is, after `steps` steps of the
    /// whole run; at least 1. All ranks return the same value.
    pub fn steps_until_due(&self, steps: u64) -> Option<u64> {
        let every = self.shared.every.filter(|_| self.shared.kept)?.get();
        Some(every - steps % every)
    }

    /// Saves a run at `position`. Returns when the checkpoint is on disk.
    ///
    /// All ranks must call this. Only rank 0 gets the path. Does nothing if the run does not keep
    /// checkpoints.
    ///
    /// # Errors
    /// On all ranks, if rank 0 cannot write the checkpoint.
    pub fn save(
        &self,
        position: Position,
        parameters: &[f32],
        group: &mut Group,
    ) -> Result<Option<PathBuf>, Error> {
        if !self.shared.kept {
            return Ok(None);
        }
        let mut path = None;
        let own = self.writer.as_ref().map(|(folder, run)| {
            let steps = position.steps(run.epoch_steps);
            path = Some(folder.save(steps, &file(run, position, parameters))?);
            Ok(())
        });
        from_first(own, group)?;
        Ok(path)
    }
}

/// Opens the folder for a run, and finds where the run starts: if it resumes, at the newest
/// checkpoint, whose parameters are loaded into `parameters`.
fn open(
    path: &Path,
    resume: bool,
    run: &Run,
    parameters: &mut Vec<f32>,
    remark: &mut dyn FnMut(&str),
) -> Result<(Folder, Position), Error> {
    let folder = Folder::open(path, remark)?;
    let mut start = Position::default();
    if resume {
        match folder.newest(remark)? {
            Some(whole) => {
                let path = &whole.path;
                (start, *parameters) = read(&whole, run).map_err(|reason| {
                    let refused = format!("{} {reason}", path.display());
                    Error::input(format!(
                        "{refused}; to resume, use the same model, options, data and number of \
                         ranks, or name another --checkpoint-dir"
                    ))
                })?;
                check_name(&whole, start, run.epoch_steps)?;
                let Position { epoch, step, .. } = start;
                remark(&format!("resuming from {}: epoch {epoch}, step {step}", path.display()));
            }
            None => remark(&format!(
                "{} has no checkpoint to resume from: starting at the first step",
                path.display()
            )),
        }
    } else if let Some((_, newest)) = folder.list()?.pop() {
        return Err(Error::input(format!(
            "{} already exists: continue from it with --resume, or name another --checkpoint-dir",
            newest.display()
        )));
    }
    // Remove files only once the run is accepted. A refused run must not change the folder.
    folder.remove_unfinished()?;
    if start == Position::default() {
        // This shows immediately whether the folder is writable.
        folder.save(start.steps(run.epoch_steps), &file(run, start, parameters))?;
    }
    Ok((folder, start))
}

/// Tells all other ranks, whose `own` is `None`, what rank 0 did or why it could not. All ranks of
/// `group` must call this.
fn from_first<T: Serialize + DeserializeOwned>(
    own: Option<Result<T, Error>>,
    group: &mut Group,
) -> Result<T, Error> {
    let mut word = Vec::new();
    if let Some(own) = &own {
        word = serde_json::to_vec(&own.as_ref().map_err(Error::to_string)).map_err(Error::input)?;
    }
    group.broadcast_vec(&mut word, 0)?;
    let outcome = match own {
        Some(own) => own,
        None => {
            let word = serde_json::from_slice::<Result<T, String>>(&word);
            word.unwrap_or_else(|error| Err(error.to_string())).map_err(|reason| {
                Error::input(format!("rank 0: {}", mpienv::printable(reason.as_bytes())))
            })
        }
    };
    outcome.map_err(|error| error.reaching(Reach::All))
}

/// Builds a checkpoint: named parameters, with the position and the run as metadata.
fn file(run: &Run, position: Position, parameters: &[f32]) -> TensorFile {
    let Position { epoch, step, loss_sum } = position;
    let position = [
        ("epoch", epoch.to_string()),
        ("step", step.to_string()),
        ("loss sum", loss_sum.to_string()),
    ];
    let is_written =
        |(name, text): &&(&str, String)| *name != STRATEGY || text != agreement::DATA_PARALLEL;
    let terms = run.terms.iter().filter(is_written).cloned().chain(position);
    let entries = terms.map(|(name, text)| (name.to_owned(), text.into())).collect();
    TensorFile::sealed(entries, parameters::to_tensors(&run.shapes, parameters))
}

/// Reads the position and the parameters, or returns why an undamaged file is no checkpoint of this
/// run.
fn read(whole: &Undamaged, run: &Run) -> Result<(Position, Vec<f32>), String> {
    let parameters = parameters::from_file(&run.shapes, &whole.file)
        .map_err(|reason| format!("is of another model: it {reason}"))?;
    for (name, expected) in &run.terms {
        let found = match entry(whole, name) {
            Err(_) if *name == STRATEGY => agreement::DATA_PARALLEL.to_owned(),
            found => found?,
        };
        if found != *expected {
            let found = format!("it has {name} {found}, this run has {expected}");
            return Err(format!("is of another run: {found}"));
        }
    }
    let position = Position {
        epoch: entry(whole, "epoch")?,
        step: entry(whole, "step")?,
        loss_sum: entry(whole, "loss sum")?,
    };
    Ok((position, parameters))
}

/// Parses an entry of a file's metadata.
fn entry<T: FromStr>(whole: &Undamaged, name: &str) -> Result<T, String> {
    let text = whole.entries.get(name).and_then(serde_json::Value::as_str);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("is not a checkpoint: its metadata has no readable {name}"))
}

/// Stores a number as its bits, because the JSON parser does not round exactly.
mod exact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".safetensors";

/// An undamaged checkpoint.
#[derive(Debug)]
struct Undamaged {
    path: PathBuf,
    /// The number of steps in its name.
    named: u64,
    entries: Entries,
    file: TensorFile,
}

/// A folder of checkpoints, locked for one run. Each file is named after the number of completed
/// steps.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    _lock: FolderLock,
}

impl Folder {
    /// Locks the folder for this run, creating it if it is missing. Leaves the checkpoints in it
    /// unchanged.
    fn open(path: &Path, remark: &mut dyn FnMut(&str)) -> Result<Folder, Error> {
        let lock = FolderLock::take(path, "--checkpoint-dir", unusable, remark)?;
        Ok(Folder { path: path.to_owned(), _lock: lock })
    }

    /// Removes files that a killed run left unfinished.
    fn remove_unfinished(&self) -> Result<(), Error> {
        folder::files(&self.path, steps_of_unfinished)
            .and_then(|files| folder::remove(files.into_iter().map(|(_, path)| path)))
            .map_err(unusable)
    }

    /// Removes old checkpoints, then writes one. There are never more than [`KEPT`], even if the
    /// process is killed.
    fn save(&self, steps: u64, file: &TensorFile) -> Result<PathBuf, Error> {
        let path = self.path.join(file_name(steps));
        let others = self.list()?.into_iter().map(|(_, path)| path).filter(|other| *other != path);
        folder::remove(others.rev().skip(KEPT - 1)).map_err(unusable)?;
        file.write(&path).map_err(unusable)?;
        Ok(path)
    }

    /// Returns the newest undamaged checkpoint. Newer, damaged ones are renamed, with a remark.
    fn newest(&self, remark: &mut dyn FnMut(&str)) -> Result<Option<Undamaged>, Error> {
        for (named, path) in self.list()?.into_iter().rev() {
            // A read error does not mean that the file is damaged.
            let reason = match TensorFile::read_with_digest(&path).map_err(unusable)? {
                Ok((file, _)) => match file.entries().and_then(|entries| file.verify(entries)) {
                    Ok(entries) => return Ok(Some(Undamaged { path, named, entries, file })),
                    Err(reason) => format!("{}: {reason}", path.display()),
                },
                Err(error) => error.to_string(),
            };
            let aside = sibling(&path, ".corrupt");
            fs::rename(&path, &aside).map_err(naming(&path)).map_err(unusable)?;
            remark(&format!(
                "{reason}; it was renamed to {}, and the previous checkpoint is used",
                aside.display()
            ));
        }
        Ok(None)
    }

    /// Lists all checkpoints, damaged or not, from oldest to newest.
    fn list(&self) -> Result<Vec<(u64, PathBuf)>, Error> {
        folder::files(&self.path, steps_of).map_err(unusable)
    }
}

/// Checks that a checkpoint has the name of its own position, in a run whose epochs have
/// `epoch_steps` steps.
fn check_name(whole: &Undamaged, position: Position, epoch_steps: u64) -> Result<(), Error> {
    let Undamaged { path, named, .. } = whole;
    let (Position { epoch, step, .. }, steps) = (position, position.steps(epoch_steps));
    if *named == steps {
        return Ok(());
    }
    Err(Error::input(format!(
        "{} says {named} steps in its name, but holds epoch {epoch}, step {step}, which is after \
         {steps} steps: it was renamed or copied; name it {}, or move it away",
        path.display(),
        file_name(steps)
    )))
}

fn unusable(error: impl std::fmt::Display) -> Error {
    let remedy = "--checkpoint-dir must name a folder in which rank 0 can read and write";
    Error::input(format!("{error}; {remedy}"))
}

fn file_name(steps: u64) -> String {
    format!("{PREFIX}{steps:09}{SUFFIX}")
}

/// Parses the number of steps from a checkpoint's name.
fn steps_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Parses the number of steps from the temporary name under which [`mpienv_sharding::file::write`] writes a
/// checkpoint.
fn steps_of_unfinished(name: &str) -> Option<u64> {
    let (name, _process) = name.strip_prefix('.')?.strip_suffix(".part")?.rsplit_once('.')?;
    steps_of(name)
}

#[cfg(test)]
mod tests;
