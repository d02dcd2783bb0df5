//! Without the feature `launch`, the report of a stall is only on stderr.

use super::report::Stall;
use crate::launch::error::LaunchError;
use crate::launch::log_file::Folder;

pub(super) fn write(_stall: &Stall, _folder: &Folder) -> Result<(), LaunchError> {
    Ok(())
}
