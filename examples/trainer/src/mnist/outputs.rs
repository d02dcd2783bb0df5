//! The files that a run writes besides its checkpoints: looked at before the training, touched once it begins.

use std::io;
use std::path::PathBuf;

use mpienv::Rank;

use crate::atomic_write;
use crate::cli::MnistArgs;
use crate::metrics::{Begin, Metrics};
#[cfg(feature = "plot")]
use crate::plot::Plot;

/// What rank 0 writes; the other ranks write nothing.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The file of metrics.
    pub metrics: Option<Metrics>,
    /// The picture.
    #[cfg(feature = "plot")]
    pub plot: Option<Plot>,
}

impl Outputs {
    /// Makes sure that what the options name can be written, and leaves it as it is. `steps` are those of an epoch.
    ///
    /// # Errors
    /// When a file cannot be written, is not a regular one, or has two tasks.
    pub fn check(options: &MnistArgs, rank: Rank, steps: usize) -> Result<Outputs, OutputError> {
        #[cfg(not(feature = "plot"))]
        let _ = steps;
        if !rank.is_first() {
            return Ok(Outputs::default());
        }
        let named = [("--weights", &options.weights), ("--metrics", &options.metrics), ("--plot", &options.plot)];
        let mut taken: Vec<(&'static str, PathBuf)> = Vec::new();
        for (name, path) in named.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?))) {
            // What --weights names is only read, and may be a pipe.
            let Ok(place) = atomic_write::place_of(path) else { continue };
            if let Some((other, _)) = taken.iter().find(|(_, other)| *other == place) {
                return Err(OutputError::Same { path: path.to_owned(), names: [*other, name] });
            }
            taken.push((name, place));
        }
        let begin = if options.checkpoints().resume { Begin::GoOn } else { Begin::Anew };
        let metrics = options.metrics.as_deref().map(|path| Metrics::new(path, begin));
        #[cfg(feature = "plot")]
        let plot = options.plot.as_deref().map(|path| Plot::new(path, options.title(rank), steps));
        Ok(Outputs {
            metrics: metrics.transpose().map_err(OutputError::Metrics)?,
            #[cfg(feature = "plot")]
            plot: plot.transpose().map_err(OutputError::Plot)?,
        })
    }
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The file of metrics.
    #[error("{0}; --metrics names a regular file that can be written, or a new one")]
    Metrics(io::Error),
    /// The picture.
    #[error("{0}; --plot names a regular file that can be written, or a new one")]
    Plot(io::Error),
    /// One file for two things.
    #[error("{} is named by {} and by {}: one would overwrite the other; name two files", path.display(), names[0], names[1])]
    Same {
        /// The file.
        path: PathBuf,
        /// The options.
        names: [&'static str; 2],
    },
}
