//! How programs ask the launcher for what its variables do not say.

use crate::cluster::discover::ClusterInfoBuilder;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::{ASK, Overrides};
use crate::environment::Environment;
use crate::error::Error;
use crate::pmix;
use crate::value::launcher::Launcher;

impl ClusterInfoBuilder {
    /// Asks the launcher for rank 0's host and the nodes, if nothing names the master.
    ///
    /// The launchers of MPICH, Intel MPI, MVAPICH and Flux answer over PMI, those of Open MPI 5 and
    /// PRRTE over PMIx, for which a libpmix is loaded. All ranks must ask, because over PMI they
    /// wait for each other: 60 seconds, or as many as the variable `MPIENV_ASK` says; 0 does not
    /// ask. Where no launcher can be asked, and under Open MPI 4, which would refuse a later
    /// `MPI_Init`, this changes nothing.
    ///
    /// A process that has asked over PMI, and the programs that it starts, can no longer call
    /// `MPI_Init`, except under Flux: it takes its leave of the launcher at once, because the
    /// launcher would otherwise take its exit for a failure and kill the other ranks. `mpienv exec`
    /// asks without this limit.
    /// Over PMIx, the connection stays open until the process exits. If it replaces itself by
    /// another program, `MPI_Init` of that program may hang.
    ///
    /// Reading fails if the launcher does not answer, or if not all ranks ask. Only this process's
    /// own environment is asked about, not [`vars`](ClusterInfoBuilder::vars).
    ///
    /// ```no_run
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::builder().ask_launcher().read()?;
    /// println!("rank 0 runs on {}", info.master_addr()?);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    pub fn ask_launcher(mut self) -> ClusterInfoBuilder {
        self.overrides.ask_launcher = true;
        self
    }

    /// Asks the launcher for what its variables do not say.
    pub(super) fn ask(
        &self,
        environment: &Environment,
        read: Result<ClusterInfo, Error>,
    ) -> Result<ClusterInfo, Error> {
        if let Some(info) = self.ask_pmix(environment, &read)? {
            return Ok(info);
        }
        if let Some(answer) = read.as_ref().map_or(Ok(None), ClusterInfo::ask_once)? {
            let overrides = Overrides { answer: Some(answer), ..self.overrides.clone() };
            return ClusterInfoBuilder { overrides, environment: None }.discover(environment);
        }
        read
    }

    /// Asks the launcher's PMIx server if nothing names the master, and a program that is started
    /// later can still call `MPI_Init`. `None` if there is nothing to ask.
    pub(crate) fn ask_pmix(
        &self,
        environment: &Environment,
        read: &Result<ClusterInfo, Error>,
    ) -> Result<Option<ClusterInfo>, Error> {
        let is_open = match read {
            Ok(info) => info.is_served_pmix(environment),
            // `prterun` sets no size.
            Err(error) => error.variable() == Some(pmix::RANK) && pmix::is_harmless(environment),
        };
        if !is_open {
            return Ok(None);
        }
        if environment.setting::<u32>(ASK)?.is_some_and(|seconds| seconds.value == 0) {
            return Ok(None);
        }
        let overrides = Overrides { ask_pmix: true, ..self.overrides.clone() };
        ClusterInfoBuilder { overrides, environment: None }.discover(environment).map(Some)
    }
}

impl ClusterInfo {
    /// Returns whether nothing names the master of this process, and its launcher serves PMIx
    /// without harm to a later `MPI_Init`.
    pub(crate) fn is_served_pmix(&self, environment: &Environment) -> bool {
        // Other launchers name the master, or their own server is PMI's.
        let is_open = self.launcher() == Launcher::OpenMpi && self.master_addr().is_err();
        is_open && pmix::is_harmless(environment)
    }
}
