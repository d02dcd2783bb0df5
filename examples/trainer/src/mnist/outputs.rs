//! Files that a run writes in addition to checkpoints. They are checked before training and written
//! once it starts.

use std::io;
use std::path::PathBuf;

use mpienv::Rank;

use crate::cli::MnistArgs;
use crate::metrics::{Begin, Metrics};
use crate::train::Report;
use mpienv_sharding::error::Error;
use mpienv_sharding::file::atomic_write;

/// Checks that the named files can be written, without changing them. An epoch has `steps` steps.
pub fn check(options: &MnistArgs, rank: Rank, steps: usize) -> Result<Vec<Box<dyn Report>>, Error> {
    let mut outputs: Vec<Box<dyn Report>> = Vec::new();
    if !rank.is_first() {
        return Ok(outputs);
    }
    let named = [
        ("--weights", &options.weights),
        ("--metrics", &options.metrics),
        ("--plot", &options.plot),
    ];
    let mut taken: Vec<(&'static str, PathBuf)> = Vec::new();
    for (name, path) in named.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)))
    {
        // --weights is already read, and the outputs are checked below.
        let Ok(place) = atomic_write::place_of(path) else { continue };
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == place) {
            return Err(Error::input(format!(
                "{} is named by {other} and by {name}: one would overwrite the other; name two files",
                path.display()
            )));
        }
        taken.push((name, place));
    }
    let wrong = |option: &'static str| {
        move |error: io::Error| {
            let text = format!("{option} must name a writable regular file, or a new one");
            Error::input(format!("{error}; {text}"))
        }
    };
    let begin = if options.checkpoints().resume { Begin::Append } else { Begin::Truncate };
    if let Some(path) = &options.metrics {
        outputs.push(Box::new(Metrics::new(path, begin).map_err(wrong("--metrics"))?));
    }
    #[cfg(feature = "plot")]
    if let Some(path) = &options.plot {
        let plot = crate::plot::Plot::new(path, options.title(rank), steps);
        outputs.push(Box::new(plot.map_err(wrong("--plot"))?));
    }
    #[cfg(feature = "progress")]
    if !options.quiet {
        outputs.push(Box::new(crate::progress::Progress::new(options.config().epochs, steps)));
    }
    #[cfg(not(any(feature = "plot", feature = "progress")))]
    let _ = steps;
    Ok(outputs)
}
