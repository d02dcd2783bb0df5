//! The folder of a run's checkpoints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CheckpointError, Position};
use mpienv_sharding::file::atomic_write::{naming, sibling};
use mpienv_sharding::file::digest::{self, Entries};
use mpienv_sharding::file::folder_lock::{self, FolderLock};
use mpienv_sharding::file::tensor_file::{TensorFile, TensorFileError};

/// The number of checkpoints to keep.
pub(super) const KEPT: usize = 5;

const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".safetensors";

/// An undamaged checkpoint.
#[derive(Debug)]
pub(super) struct Whole {
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
    pub(super) fn open(
        path: &Path,
        remark: &mut dyn FnMut(&str),
    ) -> Result<Folder, CheckpointError> {
        Ok(Folder { path: path.to_owned(), _lock: FolderLock::take(path, remark)? })
    }

    /// Removes files that a killed run left unfinished.
    pub(super) fn remove_unfinished(&self) -> Result<(), CheckpointError> {
        let unfinished =
            folder_lock::entries(&self.path).map_err(CheckpointError::Folder)?.into_iter();
        for (_, path) in unfinished.filter(|(name, _)| is_unfinished(name)) {
            fs::remove_file(&path)
                .map_err(|error| CheckpointError::Folder(naming(&path)(error)))?;
        }
        Ok(())
    }

    /// Removes old checkpoints, then writes one. There are never more than [`KEPT`], even if the
    /// process is killed.
    pub(super) fn save(&self, steps: u64, file: &TensorFile) -> Result<PathBuf, CheckpointError> {
        let path = self.path.join(name_of(steps));
        let others = self.list()?.into_iter().map(|(_, path)| path).filter(|other| *other != path);
        for old in others.rev().skip(KEPT - 1) {
            match fs::remove_file(&old) {
                // Another process removed the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(|error| CheckpointError::Folder(naming(&old)(error)))?,
            }
        }
        file.write(&path).map_err(CheckpointError::File)?;
        Ok(path)
    }

    /// Returns the path of the newest checkpoint, damaged or not.
    pub(super) fn last(&self) -> Result<Option<PathBuf>, CheckpointError> {
        Ok(self.list()?.pop().map(|(_, path)| path))
    }

    /// Returns the newest undamaged checkpoint. Newer, damaged ones are renamed, with a remark.
    pub(super) fn newest(
        &self,
        remark: &mut dyn FnMut(&str),
    ) -> Result<Option<Whole>, CheckpointError> {
        for (named, path) in self.list()?.into_iter().rev() {
            let reason = match TensorFile::read(&path) {
                Ok(file) => match digest::open(&file) {
                    Ok(entries) => return Ok(Some(Whole { path, named, entries, file })),
                    Err(reason) => format!("{}: {reason}", path.display()),
                },
                // A read error does not mean that the file is damaged.
                Err(error @ TensorFileError::Unreadable { .. }) => {
                    return Err(CheckpointError::File(error));
                }
                Err(error) => error.to_string(),
            };
            let aside = sibling(&path, ".corrupt");
            fs::rename(&path, &aside)
                .map_err(|error| CheckpointError::Folder(naming(&path)(error)))?;
            remark(&format!(
                "{reason}; it was renamed to {}, and the previous checkpoint is used",
                aside.display()
            ));
        }
        Ok(None)
    }

    /// Lists all checkpoints, damaged or not, from oldest to newest.
    fn list(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let entries =
            folder_lock::entries(&self.path).map_err(CheckpointError::Folder)?.into_iter();
        let mut list: Vec<_> =
            entries.filter_map(|(name, path)| Some((steps_of(&name)?, path))).collect();
        list.sort();
        Ok(list)
    }
}

/// Checks that a checkpoint has the name of its own position, in a run whose epochs have
/// `epoch_steps` steps.
pub(super) fn check_name(
    whole: &Whole,
    position: Position,
    epoch_steps: u64,
) -> Result<(), CheckpointError> {
    let Whole { path, named, .. } = whole;
    let (Position { epoch, step, .. }, steps) = (position, position.steps(epoch_steps));
    if *named == steps {
        return Ok(());
    }
    Err(CheckpointError::Renamed {
        path: path.clone(),
        named: *named,
        epoch,
        step,
        steps,
        name: name_of(steps),
    })
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
