//! The folder of a run's checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Position;
use mpienv_sharding::error::Error;
use mpienv_sharding::file::atomic_write::{naming, sibling};
use mpienv_sharding::file::digest::{self, Entries};
use mpienv_sharding::file::folder::{self, FolderLock, KEPT};
use mpienv_sharding::file::tensor_file::TensorFile;

const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".safetensors";

/// An undamaged checkpoint.
#[derive(Debug)]
pub(super) struct Undamaged {
    pub(super) path: PathBuf,
    /// The number of steps in its name.
    pub(super) named: u64,
    pub(super) entries: Entries,
    pub(super) file: TensorFile,
}

/// A folder of checkpoints, locked for one run. Each file is named after the number of completed
/// steps.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: FolderLock,
}

impl Folder {
    /// Locks the folder for this run, creating it if it is missing. Leaves the checkpoints in it
    /// unchanged.
    pub(super) fn open(path: &Path, remark: &mut dyn FnMut(&str)) -> Result<Folder, Error> {
        let lock =
            FolderLock::take(path, "--checkpoint-dir", remark).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::ResourceBusy => Error::input(error),
                    _ => unusable(error),
                }
            })?;
        Ok(Folder { path: path.to_owned(), _lock: lock })
    }

    /// Removes files that a killed run left unfinished.
    pub(super) fn remove_unfinished(&self) -> Result<(), Error> {
        let unfinished = |name: &str| is_unfinished(name).then_some(());
        folder::files(&self.path, unfinished)
            .and_then(|files| folder::remove(files.into_iter().map(|(_, path)| path)))
            .map_err(unusable)
    }

    /// Removes old checkpoints, then writes one. There are never more than [`KEPT`], even if the
    /// process is killed.
    pub(super) fn save(&self, steps: u64, file: &TensorFile) -> Result<PathBuf, Error> {
        let path = self.path.join(name_of(steps));
        let others = self.list()?.into_iter().map(|(_, path)| path).filter(|other| *other != path);
        folder::remove(others.rev().skip(KEPT - 1)).map_err(unusable)?;
        file.write(&path).map_err(unusable)?;
        Ok(path)
    }

    /// Returns the path of the newest checkpoint, damaged or not.
    pub(super) fn last(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.list()?.pop().map(|(_, path)| path))
    }

    /// Returns the newest undamaged checkpoint. Newer, damaged ones are renamed, with a remark.
    pub(super) fn newest(&self, remark: &mut dyn FnMut(&str)) -> Result<Option<Undamaged>, Error> {
        for (named, path) in self.list()?.into_iter().rev() {
            // A read error does not mean that the file is damaged.
            let reason = match TensorFile::read_with_digest(&path).map_err(unusable)? {
                Ok((file, _)) => match digest::open(&file) {
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
pub(super) fn check_name(
    whole: &Undamaged,
    position: Position,
    epoch_steps: u64,
) -> Result<(), Error> {
    let Undamaged { path, named, .. } = whole;
    let (Position { epoch, step, .. }, steps) = (position, position.steps(epoch_steps));
    if *named == steps {
        return Ok(());
    }
    Err(Error::input(format!(
        "{} says {named} steps in its name, but holds epoch {epoch}, step {step}, which is after \
         {steps} steps: it was renamed or copied; name it {}, or move it away",
        path.display(),
        name_of(steps)
    )))
}

fn unusable(error: impl std::fmt::Display) -> Error {
    let remedy = "--checkpoint-dir must name a folder in which rank 0 can read and write";
    Error::input(format!("{error}; {remedy}"))
}

fn name_of(steps: u64) -> String {
    format!("{PREFIX}{steps:09}{SUFFIX}")
}

/// Parses the number of steps from a checkpoint's name.
fn steps_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Returns whether this is the temporary name under which [`mpienv_sharding::file::atomic_write`]
/// writes a checkpoint.
fn is_unfinished(name: &str) -> bool {
    let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
    name.and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(name, _process)| steps_of(name).is_some())
}
