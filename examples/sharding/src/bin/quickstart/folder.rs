//! A rank's folder of checkpoints, which are named `CKP-EPOCH_STEP.safetensors`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::STEPS;
use mpienv_sharding::checkpoint::Checkpoint;
use mpienv_sharding::error::Error;
use mpienv_sharding::file::folder::{self, FolderLock, KEPT};
use mpienv_sharding::job;

/// The epoch and step of a checkpoint, both counted from 1.
pub type Moment = (u64, u64);

/// Returns the moment of the step after `steps` completed ones.
pub fn moment_after(steps: u64) -> Moment {
    (steps / STEPS + 1, steps % STEPS + 1)
}

/// Returns a rank's folder below `output`.
pub fn rank_folder(output: &Path, rank: u32) -> PathBuf {
    output.join("device").join(rank.to_string())
}

/// Locks a rank's folder for this run, creating it if it is missing.
pub fn take(folder: &Path) -> Result<FolderLock, Error> {
    FolderLock::take(folder, "--output", Error::input, &mut |text| job::say("quickstart", &text))
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
pub fn add(folder: &Path, moment: Moment, checkpoint: &Checkpoint) -> Result<(), Error> {
    checkpoint.write(&folder.join(name(moment)))?;
    let all = checkpoints(folder)?;
    // Newer checkpoints belong to a previous run, which this run replaces.
    let newer = all.iter().filter(|(other, _)| *other > moment);
    let old = all.iter().rev().filter(|(other, _)| *other <= moment).skip(KEPT);
    folder::remove(newer.chain(old).map(|(_, path)| path.clone())).map_err(Error::input)
}

/// Lists a folder's checkpoints, from oldest to newest.
fn checkpoints(folder: &Path) -> Result<Vec<(Moment, PathBuf)>, Error> {
    folder::files(folder, named).map_err(Error::input)
}

/// Reads each folder's checkpoint of the newest moment that all folders have in common.
///
/// # Errors
/// If there is no common moment, or a checkpoint cannot be read.
pub fn newest(folders: &[PathBuf]) -> Result<Vec<(PathBuf, Checkpoint)>, Error> {
    let mut all: Vec<Vec<Moment>> = Vec::new();
    for folder in folders {
        let found = checkpoints(folder)?;
        if found.is_empty() {
            let remedy = "name the folders of the ranks, such as device/0 device/1";
            let text = format!("has no CKP-EPOCH_STEP.safetensors: {remedy}");
            return Err(Error::in_file(folder, text));
        }
        all.push(found.into_iter().map(|(moment, _)| moment).collect());
    }
    let is_common = |moment: &&Moment| all.iter().all(|found| found.contains(moment));
    let Some(&moment) = all.first().and_then(|found| found.iter().rev().find(is_common)) else {
        return Err(Error::input(format!(
            "the {} folders have no checkpoint of the same epoch and step: they belong to \
             different runs",
            folders.len()
        )));
    };
    let paths = folders.iter().map(|folder| folder.join(name(moment)));
    paths.map(|path| Ok((path.clone(), read(&path)?.0))).collect()
}

/// Reads a checkpoint, and returns it with the file's SHA-256.
///
/// # Errors
/// If the file cannot be read, or its name is that of another moment or rank. Any other name, such
/// as that of a merged checkpoint, says nothing.
pub fn read(path: &Path) -> Result<(Checkpoint, String), Error> {
    let (checkpoint, digest) = Checkpoint::read(path)?;
    let Some(named) = path.file_name().and_then(|name| named(name.to_str()?)) else {
        return Ok((checkpoint, digest));
    };
    let found = checkpoint.steps.checked_sub(1).map(moment_after);
    if found != Some(named) {
        let at = |(epoch, step): Moment| format!("epoch {epoch}, step {step}");
        let remedy = found.map(|found| format!("name it {}, or ", name(found)));
        return Err(Error::input(format!(
            "{} says {} in its name, but holds {}: it was renamed or copied; {}move it away",
            path.display(),
            at(named),
            found.map_or("no step".to_owned(), at),
            remedy.unwrap_or_default()
        )));
    }
    // Whole tensors are the same in the folders of all ranks.
    let Checkpoint { rank, world, .. } = checkpoint;
    let folder: Option<u32> = fs::canonicalize(path)
        .ok()
        .and_then(|path| path.parent()?.file_name()?.to_str()?.parse().ok());
    match folder {
        // Any other number, such as a job's, is not a rank's.
        Some(folder) if folder < world && folder != rank => Err(Error::input(format!(
            "{} is in the folder of rank {folder}, but holds the parts of rank {rank} of \
                 {world}: it was renamed or copied; put it into folder {rank}, or name a folder \
                 with rank {folder}'s own checkpoints",
            path.display()
        ))),
        _ => Ok((checkpoint, digest)),
    }
}
