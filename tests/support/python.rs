//! Programs that Debian does not have, from PyPI.

use std::path::{Path, PathBuf};

use super::tool::missing;

/// A program from a Python environment that `tests/run` creates.
pub fn from_python(environment: &str, program: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let path = target.join("python").join(environment).join("bin").join(program);
    if path.is_file() {
        return Some(path);
    }
    missing(&format!("{environment} from PyPI (tests/run installs it)"));
    None
}
