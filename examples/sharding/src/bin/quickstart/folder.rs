//! A rank's folder of checkpoints, which are named `CKP-EPOCH_STEP.safetensors`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::STEPS;
use mpienv_sharding::checkpoint::{Checkpoint, CheckpointError};
use mpienv_sharding::file::atomic_write::naming;
use mpienv_sharding::file::folder_lock::{self, FolderLock, LockError};
use mpienv_sharding::program::exit;

/// The number of checkpoints that a rank keeps.
const KEPT: usize = 5;

/// The epoch and step of a checkpoint, both counted from 1.
pub type Moment = (u64, u64);

/// Returns the moment of the step after `steps` completed ones.
pub fn moment_after(steps: u64) -> Moment {
    (steps / STEPS + 1, steps % STEPS + 1)
}

/// Returns a rank's folder below `output`.
pub fn of_rank(output: &Path, rank: u32) -> PathBuf {
    output.join("device").join(rank.to_string())
}

/// Locks a rank's folder for this run, creating it if it is missing.
pub fn take(folder: &Path) -> Result<FolderLock, FolderError> {
    FolderLock::take(folder, &mut |text| exit::say("quickstart", &text)).map_err(
        |error| match error {
            LockError::System(error) => FolderError::System(error),
            taken @ LockError::Taken { .. } => FolderError::Taken(taken),
        },
    )
}

fn name((epoch, step): Moment) -> String {
    format!("CKP-{epoch}_{step}.safetensors")
}

/// Parses the moment in a checkpoint's name.
fn named(name: &str) -> Option<Moment> {
    let (epoch, step) = name.strip_prefix("CKP-")?.strip_suffix(".safetensors")?.split_once('_')?;
    Some((epoch.parse().ok()?, step.parse().ok()?))
}

/// Writes a checkpoint. Keeps the newest five up to `moment` and removes all others.
pub fn add(folder: &Path, moment: Moment, checkpoint: &Checkpoint) -> Result<(), FolderError> {
    checkpoint.write(&folder.join(name(moment)))?;
    let all = moments(folder)?;
    // Newer checkpoints belong to a previous run, which this run replaces.
    let (own, newer) = all.split_at(all.partition_point(|other| *other <= moment));
    for other in own.iter().rev().skip(KEPT).chain(newer) {
        let path = folder.join(name(*other));
        fs::remove_file(&path).map_err(|error| FolderError::System(naming(&path)(error)))?;
    }
    Ok(())
}

/// Lists the moments of a folder's checkpoints, from oldest to newest.
fn moments(folder: &Path) -> Result<Vec<Moment>, FolderError> {
    let entries = folder_lock::entries(folder).map_err(FolderError::System)?.into_iter();
    let mut moments: Vec<Moment> = entries.filter_map(|(name, _path)| named(&name)).collect();
    moments.sort_unstable();
    Ok(moments)
}

/// Reads each folder's checkpoint of the newest moment that all folders have in common.
///
/// # Errors
/// If there is no common moment, or a checkpoint cannot be read.
pub fn newest(folders: &[PathBuf]) -> Result<Vec<(PathBuf, Checkpoint)>, FolderError> {
    let mut common: Option<Vec<Moment>> = None;
    for folder in folders {
        let found = moments(folder)?;
        if found.is_empty() {
            return Err(FolderError::Empty(folder.clone()));
        }
        common = Some(match common {
            None => found,
            Some(before) => before.into_iter().filter(|moment| found.contains(moment)).collect(),
        });
    }
    let Some(moment) = common.unwrap_or_default().pop() else {
        return Err(FolderError::Apart(folders.len()));
    };
    folders
        .iter()
        .map(|folder| {
            let path = folder.join(name(moment));
            Ok((path.clone(), read(&path)?.0))
        })
        .collect()
}

/// Reads a checkpoint, and returns it with the file's SHA-256.
///
/// # Errors
/// If the file cannot be read, or its name is that of another moment or rank. Any other name, such
/// as that of a merged checkpoint, says nothing.
pub fn read(path: &Path) -> Result<(Checkpoint, String), FolderError> {
    let (checkpoint, digest) = Checkpoint::read_with_digest(path)?;
    let Some(named) = path.file_name().and_then(|name| named(name.to_str()?)) else {
        return Ok((checkpoint, digest));
    };
    let found = checkpoint.steps().checked_sub(1).map(moment_after);
    if found != Some(named) {
        return Err(FolderError::Renamed { path: path.to_owned(), named, found });
    }
    // Whole tensors are the same in the folders of all ranks.
    let (rank, world) = checkpoint.of_ranks();
    let folder = fs::canonicalize(path)
        .ok()
        .and_then(|path| path.parent()?.file_name()?.to_str()?.parse().ok());
    match folder {
        // Any other number, such as a job's, is not a rank's.
        Some(folder) if folder < world && folder != rank => {
            Err(FolderError::OtherRank { path: path.to_owned(), folder, rank, world })
        }
        _ => Ok((checkpoint, digest)),
    }
}

/// Why checkpoints cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another run uses the folder.
    #[error("{0}, or name another --output")]
    Taken(LockError),
    /// The folder cannot be created, locked or read, or an old file cannot be removed.
    #[error("{0}")]
    System(io::Error),
    #[error("{}: has no CKP-EPOCH_STEP.safetensors: name the folders of the ranks, such as device/0 device/1", .0.display())]
    Empty(PathBuf),
    #[error(
        "{} says epoch {}, step {} in its name, but holds {}: it was renamed or copied; {}move it away",
        path.display(), named.0, named.1, found.map_or("no step".to_owned(), |(epoch, step)| format!("epoch {epoch}, step {step}")),
        found.map_or(String::new(), |found| format!("name it {}, or ", name(found)))
    )]
    Renamed { path: PathBuf, named: Moment, found: Option<Moment> },
    #[error(
        "{} is in the folder of rank {folder}, but holds the parts of rank {rank} of {world}: it was renamed or copied; put it \
         into folder {rank}, or name a folder with rank {folder}'s own checkpoints",
        path.display()
    )]
    OtherRank { path: PathBuf, folder: u32, rank: u32, world: u32 },
    /// The folders have no moment in common.
    #[error(
        "the {0} folders have no checkpoint of the same epoch and step: they belong to different runs"
    )]
    Apart(usize),
}
