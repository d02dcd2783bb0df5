//! Reads the process's place with the options that take precedence over the environment.

use crate::{ClusterInfo, Environment, Error, Finding, Severity};
use clap::Args;
pub(super) use mpienv_core::seam::Overrides;
use mpienv_core::seam::{asked, builder, finding, keep_pmix, precludes_mpi};

use super::{Quiet, keeper, stream};

/// Whether a command that all ranks run asks the launcher for what its variables do not say.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct AskOption {
    /// Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]
    ///
    /// Under MPICH, Intel MPI, MVAPICH and Flux, mpienv asks over PMI. All ranks must run the same
    /// command, and wait 60 s for each other, or as many seconds as MPIENV_ASK says. Under Open
    /// MPI 5 and PRRTE, it asks over PMIx.
    #[arg(long)]
    no_ask: bool,
}

impl AskOption {
    /// Reads the process's place, and asks the launcher if nothing names the master.
    pub(super) fn read(
        self,
        overrides: Overrides,
        environment: &Environment,
        quiet: Quiet,
    ) -> Result<ClusterInfo, Error> {
        let read = read(overrides.clone(), environment, quiet);
        if !self.no_ask {
            return asked(read, overrides, environment, keeper::start);
        }
        read
    }

    /// Like [`AskOption::read`], for a command that only inspects: if the launcher does not answer,
    /// returns what the variables say, and the finding `launcher-no-answer`.
    pub(super) fn inspect(
        self,
        overrides: Overrides,
        environment: &Environment,
    ) -> Result<(ClusterInfo, Option<Finding>), Error> {
        let read = read(overrides.clone(), environment, Quiet::NEVER);
        if self.no_ask {
            return Ok((read?, None));
        }
        let unasked = read.as_ref().ok().cloned();
        match (asked(read, overrides, environment, keeper::start), unasked) {
            (Ok(info), _) => Ok((info, None)),
            (Err(error), None) => Err(error),
            (Err(error), Some(info)) => Ok((info, Some(no_answer(&error)))),
        }
    }

    /// Asks only if `condition` holds too.
    pub(super) fn only_if(self, condition: bool) -> AskOption {
        AskOption { no_ask: self.no_ask || !condition }
    }
}

fn no_answer(error: &Error) -> Finding {
    let text = error.to_string();
    let what = text.strip_suffix(&format!("; {}", error.remedy())).unwrap_or(&text);
    finding(
        Severity::Error,
        "launcher-no-answer",
        what.to_owned(),
        "the commands that ask the launcher for rank 0's host fail with this error".into(),
        // After the reason, an error's remedy may go on with "or".
        error.remedy().trim_start_matches("or ").to_owned(),
    )
}

pub(super) fn read(
    overrides: Overrides,
    environment: &Environment,
    quiet: Quiet,
) -> Result<ClusterInfo, Error> {
    if overrides.ask_pmix && !quiet.is_asked(environment) {
        warn_of_asking(environment);
    }
    let info = builder(overrides).environment(environment).read()?;
    keep_pmix(&info, keeper::start)?;
    Ok(info)
}

/// Warns once on each node of what `--ask-pmix` costs, because a program that is started later
/// would fail without naming the cause.
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
