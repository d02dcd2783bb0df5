//! Jobs that an MPI launcher starts.

use std::path::Path;
use std::process::Command;

use super::port::free_port;
use super::tool::{inherited, own_tmp};

/// Several ranks of a program, started by a launcher with its options; if the job hangs, it is
/// killed.
pub fn job(launcher: &Path, options: &[&str], ranks: u32, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .env_clear()
        .envs(["HOME", "PATH"].into_iter().filter_map(|name| Some((name, inherited(name)?))));
    command.env("TMPDIR", own_tmp());
    // Concurrent jobs must not meet.
    command.env("MASTER_PORT", free_port().to_string());
    // Without these, Open MPI 4 and 5 refuse to run as root, as containers do, and to start more
    // ranks than there are cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    // It also kills a launcher that was sent a signal, and Open MPI 4 takes its time.
    command.args(["-k", "1000", "3000"]).arg(launcher).args(options).args([
        "-n",
        &ranks.to_string(),
        program,
    ]);
    command
}
