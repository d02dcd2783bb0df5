//! Without the feature `launch`, nothing would end a py-spy together with the launch.

use std::process::Command;

/// Returns no frames.
pub(super) fn stacks(processes: &[u32], _prepare: &dyn Fn(&mut Command)) -> Vec<Vec<String>> {
    vec![Vec::new(); processes.len()]
}
