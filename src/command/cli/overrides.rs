//! Reads the process's place with the options that take precedence over the environment.

use crate::{ClusterInfo, Environment, Error};
pub(super) use mpienv_core::seam::Overrides;
use mpienv_core::seam::{builder, precludes_mpi};

use super::{Quiet, stream};

pub(super) fn read(
    overrides: Overrides,
    environment: &Environment,
    quiet: Quiet,
) -> Result<ClusterInfo, Error> {
    if overrides.ask_pmix && !quiet.is_asked(environment) {
        warn_of_asking(environment);
    }
    builder(overrides).environment(environment).read()
}

/// Warns once on each node of what `--ask-pmix` costs, because a program that is started later would
/// fail without naming the cause.
fn warn_of_asking(environment: &Environment) {
    let is_first = environment.get("OMPI_COMM_WORLD_LOCAL_RANK").is_none_or(|rank| rank == "0");
    if is_first && precludes_mpi(environment) {
        let style = anstyle::AnsiColor::Yellow.on_default().bold();
        let text = format!(
            "{style}mpienv: warning:{style:#} --ask-pmix under Open MPI 4: this rank and the programs it starts can no \
             longer call MPI_Init; if a program needs MPI, first run `mpirun ... mpienv show --ask-pmix` on the same hosts, \
             then start the job with `mpirun -x MASTER_ADDR=HOST`\n"
        );
        stream::report(text.as_bytes());
    }
}
