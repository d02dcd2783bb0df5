//! A rank's folder of checkpoints, which are named `CKP-EPOCH_STEP.safetensors`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::atomic_write::naming;
use crate::exit;
use crate::folder_lock::{self, FolderLock, LockError};
use crate::sharding::checkpoint::{Checkpoint, CheckpointError};

/// The number of checkpoints that a rank keeps.
const KEPT: usize = 5;

/// The epoch and step of a checkpoint, both counted from 1.
pub type Moment = (u64, u64);

/// Returns a rank's folder below `output`.
pub fn of_rank(output: &Path, rank: u32) -> PathBuf {
    output.join("device").join(rank.to_string())
}

/// Locks a rank's folder for this run, creating it if it is missing.
///
/// # Errors
/// If another run uses the folder, or it cannot be written.
pub fn take(folder: &Path) -> Result<FolderLock, FolderError> {
    FolderLock::take(folder, &mut |text| exit::say("quickstart", &text)).map_err(|error| match error {
        LockError::System(error) => FolderError::System(error),
        taken @ LockError::Taken { .. } => FolderError::Taken(taken),
    })
}

/// Returns the path of the checkpoint of a moment.
pub fn file(folder: &Path, (epoch, step): Moment) -> PathBuf {
    folder.join(format!("CKP-{epoch}_{step}.safetensors"))
}

/// Writes a checkpoint. Keeps the newest five up to `moment` and removes all others.
///
/// # Errors
/// If a file cannot be written or removed.
pub fn add(folder: &Path, moment: Moment, checkpoint: &Checkpoint) -> Result<(), FolderError> {
    checkpoint.write(&file(folder, moment))?;
    let all = moments(folder)?;
    // Newer checkpoints belong to a previous run, which this run replaces.
    let (own, newer) = all.split_at(all.partition_point(|other| *other <= moment));
    for other in own.iter().rev().skip(KEPT).chain(newer) {
        let path = file(folder, *other);
        fs::remove_file(&path).map_err(|error| FolderError::System(naming(&path)(error)))?;
    }
    Ok(())
}

/// Lists the moments of a folder's checkpoints, from oldest to newest.
fn moments(folder: &Path) -> Result<Vec<Moment>, FolderError> {
    let moment = |(name, _path): (String, PathBuf)| {
        let (epoch, step) = name.strip_prefix("CKP-")?.strip_suffix(".safetensors")?.split_once('_')?;
        Some((epoch.parse().ok()?, step.parse().ok()?))
    };
    let entries = folder_lock::entries(folder).map_err(FolderError::System)?.into_iter();
    let mut moments: Vec<Moment> = entries.filter_map(moment).collect();
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
            let path = file(folder, moment);
            Ok((path.clone(), Checkpoint::read(&path)?))
        })
        .collect()
}

/// Why checkpoints cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// The folders have no moment in common.
    #[error("the {0} folders have no checkpoint of the same epoch and step: they belong to different runs")]
    Apart(usize),
}
