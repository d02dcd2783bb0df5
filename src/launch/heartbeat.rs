//! The sign of life of a worker that computes without printing anything.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use crate::launch::error::LaunchError;
use crate::launch::target_file::HeldFile;
use mpienv_core::Environment;
use mpienv_core::seam::TargetFile;

/// Names the file of a worker.
pub(crate) const VARIABLE: &str = "MPIENV_HEARTBEAT_FILE";

/// Shows the launch that this worker is making progress although it prints nothing.
///
/// It sets the time of the file that `MPIENV_HEARTBEAT_FILE` names: see [`Launch::stall_timeout`].
/// Without that variable, it does nothing. It takes some microseconds, so that it may be called in
/// every step.
///
/// ```
/// for _step in 0..3 {
///     // Compute for some minutes.
///     mpienv::heartbeat()?;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the file cannot be opened, for example because the launch is gone.
///
/// [`Launch::stall_timeout`]: crate::Launch::stall_timeout
pub fn heartbeat() -> io::Result<()> {
    // Read once: a program may call this a thousand times a second.
    static FILE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let environment = Environment::current();
        environment.get(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
    });
    FILE.as_deref().map_or(Ok(()), touch)
}

fn touch(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.set_modified(SystemTime::now())
}

/// The file of a worker, for as long as this exists.
#[derive(Debug)]
pub(super) struct Heartbeat(HeldFile);

impl Heartbeat {
    pub(super) fn new() -> Result<Heartbeat, LaunchError> {
        HeldFile::write(TargetFile { variable: VARIABLE, text: String::new() }).map(Heartbeat)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_heartbeat_changes_the_time_of_its_file_and_nothing_else() {
        let file = Heartbeat::new().unwrap();
        let before = fs::metadata(file.path()).unwrap().modified().unwrap();
        while fs::metadata(file.path()).unwrap().modified().unwrap() <= before {
            touch(file.path()).unwrap();
        }
        assert_eq!(fs::read(file.path()).unwrap(), b"");
        let path = file.path().to_owned();
        drop(file);
        assert!(touch(&path).is_err());
    }
}
