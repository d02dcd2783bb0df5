//! How programs read a [`ClusterInfo`]: the constructors, and the overrides of a builder.

use std::ffi::OsString;

use crate::cluster::answer::Answer;
use crate::cluster::info::ClusterInfo;
use crate::cluster::interface::Interface;
use crate::cluster::nccl::NcclIfname;
use crate::cluster::overrides::{ASKED, MasterPort, Overrides};
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::Launcher;
use crate::value::host::Host;
use crate::value::port::PortRange;
use crate::value::rank::Rank;
use crate::value::sourced::by;
use once_cell::sync::OnceCell;

impl ClusterInfo {
    /// Reads this process's environment.
    ///
    /// A process that no launcher started is rank 0 of 1, or an error if
    /// `MPIENV_REQUIRE_LAUNCHER=1` is set. **This prints nothing, even if the process is probably one
    /// of several.** Call [`require_place`](ClusterInfo::require_place) to refuse such a process, or
    /// [`warn`](ClusterInfo::warn) to print what is suspicious. `Group::connect` and `World::init` do
    /// both.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::from_env()?.require_place()?;
    /// info.warn();
    /// println!("rank {} of {}", info.rank(), info.world_size());
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the variables contradict each other or are incomplete: see
    /// [`Reason`](crate::Reason).
    pub fn from_env() -> Result<ClusterInfo, Error> {
        ClusterInfo::builder().read()
    }

    /// Reads the given variables instead of this process's environment, for tests and for other
    /// processes.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<ClusterInfo, Error>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        ClusterInfo::builder().vars(vars).read()
    }

    /// Reads a snapshot of an environment, for a program that reads other variables as well.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_environment(environment: &Environment) -> Result<ClusterInfo, Error> {
        ClusterInfo::builder().environment(environment).read()
    }

    /// Like [`ClusterInfo::from_env`], but reads the environment only once. Later calls return the
    /// first success.
    ///
    /// ```
    /// let info = mpienv::ClusterInfo::current()?;
    /// assert!(std::ptr::eq(info, mpienv::ClusterInfo::current()?));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`]. A failure is not remembered.
    pub fn current() -> Result<&'static ClusterInfo, Error> {
        // The standard library's OnceLock has no stable way to initialize with a function that may
        // fail.
        static CURRENT: OnceCell<ClusterInfo> = OnceCell::new();
        CURRENT.get_or_try_init(ClusterInfo::from_env)
    }

    /// Returns a builder that overrides values such as the launcher, the master or the interface.
    pub fn builder() -> ClusterInfoBuilder {
        ClusterInfoBuilder::default()
    }
}

/// Reads a [`ClusterInfo`] with overrides, which take precedence over the environment.
///
/// ```
/// use mpienv::{ClusterInfo, ClusterInfoBuilder, Launcher, NcclIfname, Port};
///
/// let builder: ClusterInfoBuilder = ClusterInfo::builder()
///     .launcher(Launcher::OpenMpi)
///     .master_addr("node-0".parse()?)
///     .master_port(Port::try_from(29500_u16)?)
///     .port_range("1400-1999".parse()?)
///     .nccl_ifname(NcclIfname::Unset)
///     // Without this, the process's own environment is read.
///     .vars([
///         ("OMPI_COMM_WORLD_RANK", "5"),
///         ("OMPI_COMM_WORLD_SIZE", "8"),
///         ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
///         ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
///     ]);
/// let info = builder.read()?;
/// assert_eq!(info.master_addr()?.with_port(info.master_port()), "node-0:29500");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClusterInfoBuilder {
    pub(crate) overrides: Overrides,
    /// What to read. `None` for this process's environment.
    pub(super) environment: Option<Environment>,
}

impl ClusterInfoBuilder {
    /// Reads these variables instead of this process's environment.
    pub fn vars<N, V>(self, vars: impl IntoIterator<Item = (N, V)>) -> ClusterInfoBuilder
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        self.environment(&Environment::from_vars(vars))
    }

    /// Reads a snapshot of an environment instead of this process's environment.
    pub fn environment(mut self, environment: &Environment) -> ClusterInfoBuilder {
        self.environment = Some(environment.clone());
        self
    }

    /// Reads this process's place.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn read(&self) -> Result<ClusterInfo, Error> {
        self.discover(&self.snapshot())
    }

    /// Reads only this launcher's variables. Overrides the variable `MPIENV_LAUNCHER`.
    pub fn launcher(mut self, launcher: Launcher) -> ClusterInfoBuilder {
        self.overrides.launcher = by(ASKED, Some(launcher));
        self
    }

    /// Sets rank 0's host, like the variable `MPIENV_MASTER_ADDR`. It overrides all variables.
    pub fn master_addr(mut self, host: Host) -> ClusterInfoBuilder {
        self.overrides.master_addr = by(ASKED, Some(host));
        self
    }

    /// Sets the port on rank 0's host, like the variable `MPIENV_MASTER_PORT`. It overrides all
    /// variables.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, MasterPort, Port};
    ///
    /// const PORT: Port = Port::new(29500).unwrap();
    /// let builder = ClusterInfo::builder().master_port(PORT);
    /// assert_eq!(u16::from(builder.read()?.master_port()), 29500);
    /// // A number that is known only at run time, and a port derived from the job:
    /// let builder = builder.master_port(Port::try_from(29501_u16)?);
    /// let builder = builder.master_port(MasterPort::FromJob);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn master_port(mut self, port: impl Into<MasterPort>) -> ClusterInfoBuilder {
        self.overrides.master_port = by(ASKED, Some(port.into()));
        self
    }

    /// Sets the range of ports from which the job's port is derived. Overrides the variable
    /// `MPIENV_PORT_RANGE`. The range must be the same on all ranks. The default is 20000 to 29999.
    pub fn port_range(mut self, range: PortRange) -> ClusterInfoBuilder {
        self.overrides.port_range = by(ASKED, Some(range));
        self
    }

    /// Sets the number of this node and the number of nodes, for a platform that does not provide
    /// them. This process is then the only one of the job on its node. The platform's master and
    /// hosts are kept.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Rank};
    ///
    /// let builder = ClusterInfo::builder().node(Rank::new(1, 2)?).master_addr("node-0".parse()?);
    /// let info = builder.vars([("JOB_COMPLETION_INDEX", "1")]).read()?;
    /// assert_eq!((info.node_rank(), info.node_count()), (Some(1), Some(2)));
    /// assert_eq!(info.workers(4)?[0].rank().index(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn node(mut self, node: Rank) -> ClusterInfoBuilder {
        self.overrides.node = Some(node);
        self
    }

    /// Treats the rank as the number of the node, for launchers that start one process on each node
    /// and do not provide a local rank. Reading fails if a variable contradicts this.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-0")];
    /// assert_eq!(ClusterInfo::from_vars(vars)?.node_rank(), None);
    /// assert_eq!(ClusterInfo::builder().vars(vars).one_per_node().read()?.node_rank(), Some(1));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    pub fn one_per_node(mut self) -> ClusterInfoBuilder {
        self.overrides.one_per_node = true;
        self
    }

    /// Sets how `NCCL_SOCKET_IFNAME` is treated. Overrides the variable `MPIENV_NCCL_IFNAME`.
    pub fn nccl_ifname(mut self, ifname: NcclIfname) -> ClusterInfoBuilder {
        self.overrides.nccl_ifname = by(ASKED, Some(ifname));
        self
    }

    /// Sets which network interface the program's libraries use. Overrides the variable
    /// `MPIENV_INTERFACE`. Reading does not look for it: `mpienv::ask::on_interface` does.
    pub fn interface(mut self, interface: Interface) -> ClusterInfoBuilder {
        self.overrides.interface = by(ASKED, Some(interface));
        self
    }

    /// Returns the environment that is read.
    #[doc(hidden)]
    #[must_use]
    pub fn snapshot(&self) -> Environment {
        self.environment.clone().unwrap_or_else(Environment::current)
    }

    /// Adds what the launcher's server has said.
    #[doc(hidden)]
    pub fn answer(mut self, answer: Answer) -> ClusterInfoBuilder {
        self.overrides.answer = Some(answer);
        self
    }
}
