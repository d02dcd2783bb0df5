//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use crate::cluster::azure::AzureVars;
use crate::cluster::discover::unplaced;
use crate::cluster::info::ClusterInfo;
use crate::cluster::interface::{Interface, OwnAddr, OwnInterface};
use crate::environment::{Environment, Variables as _};
use crate::error::{Error, Reason};
use crate::export::{Exports, Target};
use crate::finding::{Finding, Severity};
use crate::launcher::starter::{Starter, ancestors};
use crate::launcher::{Launcher, markers};
use crate::value::host::Host;
use crate::value::port::{Port, PortRange};

pub use crate::cluster::answer::{Answer, PMIX_NAMESPACE, PMIX_RANK, refused};
pub use crate::cluster::attempt::Attempt;
pub use crate::cluster::context::Server;
pub use crate::cluster::device::{Shown, is_device, shown, visible};
pub use crate::cluster::nccl::{DEFAULT as NCCL_DEFAULT, VARIABLE as NCCL_IFNAME};
pub use crate::cluster::overrides::{ASK, ASKED, INTERFACE, MASTER_PORT, PORT_RANGE, SIMULATED};
pub use crate::cluster::own_variables::OWN_VARIABLES;
pub use crate::cluster::threads::{ThreadCount, VARIABLES as THREAD_VARIABLES};
pub use crate::cluster::warn::is_silenced;
pub use crate::environment::Variable;
pub use crate::error::{ENVIRONMENT, RANKS, READER_GONE, TIMED_OUT, USAGE, signal};
pub use crate::export::syntax::posix_quoted as shell_quoted;
pub use crate::export::{Placeholders, TargetFile, TargetVariable, TemplateError};
pub use crate::hostlist::{Hostlist, HostlistError, Hosts};
pub use crate::launcher::spec::{Advice, MpiFamily, Programs, Starts};
pub use crate::plan::{Needs, Options as PlanOptions, Plan, Reader, WordsError};
pub use crate::value::port::UNPRIVILEGED;
pub use crate::value::printable::commands;
pub use crate::value::printable::counted;
pub use crate::value::rank::share;
pub use crate::value::rank::{list as list_of_ranks, ranges, runs as runs_of_ranks};
pub use crate::value::sourced::{Given, Source, Sourced, by};

/// The variables of Azure that name the master.
pub const OF_AZURE: &[Variable] = AzureVars::VARIABLES;

/// The codes of findings about a process that does not know its place.
pub const UNPLACED: &[&str] = unplaced::CODES;

/// Methods of a type that are this crate's own, for the others.
macro_rules! methods {
    ($(#[$doc:meta])* $trait:ident of $type:ty {
        $(
            $(#[$of:meta])*
            fn $name:ident($self:ident: $receiver:ty $(, $arg:ident: $ty:ty)*) $(-> $result:ty)?
            $body:block
        )+
    }) => {
        $(#[$doc])*
        pub trait $trait {
            $(
                #[doc = concat!("See the type's own `", stringify!($name), "`.")]
                $(#[$of])*
                fn $name($self: $receiver $(, $arg: $ty)*) $(-> $result)?;
            )+
        }

        impl $trait for $type {
            $($(#[$of])* fn $name($self: $receiver $(, $arg: $ty)*) $(-> $result)? $body)+
        }
    };
}

methods! {
    /// A job's attempts, and what the command says about it.
    InfoSeam of ClusterInfo {
        fn run(self: &Self) -> (String, u32) { ClusterInfo::run(self) }
        fn enter(self: &mut Self, attempt: Attempt) { ClusterInfo::enter(self, attempt); }
        fn agent_listens(self: &Self) -> bool { self.run_of_agent().is_some() }
        fn meeting_port(self: &Self) -> Port { ClusterInfo::meeting_port(self) }
        fn launchers_port(self: &Self) -> Port { ClusterInfo::launchers_port(self) }
        fn default_port_range(self: &Self) -> Option<PortRange> {
            let default = &self.meeting.default_port;
            default.is_used.then_some(default.range)
        }
        fn environment(self: &Self) -> &Environment { &self.inherited }
        fn asked_interface(self: &Self) -> Option<&Sourced<Interface>> {
            ClusterInfo::asked_interface(self)
        }
        fn with_interface(self: &Self, found: Option<OwnInterface>) -> ClusterInfo {
            ClusterInfo::with_interface(self, found)
        }
        fn nccl_is_default(self: &Self) -> bool { self.surroundings.nccl.is_default }
        fn without_nccl_default(self: Self, why: &'static str) -> ClusterInfo {
            let mut info = self;
            info.surroundings.nccl.ifname = Sourced::new(None, why);
            info
        }
        fn with_own_addr(self: &Self, own: Result<OwnAddr, Error>) -> ClusterInfo {
            ClusterInfo::with_own_addr(self, own)
        }
        fn default_port_is_own(self: &Self) -> bool { self.meeting.default_port.is_derived }
        fn users_master(self: &Self) -> Option<(&Sourced<Host>, Host)> {
            ClusterInfo::users_master(self)
        }
        fn set_own_port(self: &mut Self, port: Port, source: &'static str) {
            ClusterInfo::set_own_port(self, port, source);
        }
        fn has_secret(self: &Self) -> bool { ClusterInfo::has_secret(self) }
        fn secret_source(self: &Self) -> Option<&'static str> { ClusterInfo::secret_source(self) }
        fn check_per_node(self: &Self) -> Result<(), Error> { ClusterInfo::check_per_node(self) }
        fn workers_of_platform(self: &Self) -> Option<&Sourced<String>> {
            self.placement.workers.as_ref()
        }
        fn warnings_and(self: &Self, others: impl FnOnce() -> Vec<Finding>) -> Vec<Finding> {
            ClusterInfo::warnings_and(self, others)
        }
        fn users_threads(self: &Self) -> Option<usize> { ClusterInfo::users_threads(self) }
        fn keeps_binding(self: &Self) -> bool { self.earlier.keeps_binding }
        fn ranks_on_host(self: &Self) -> Option<u32> { ClusterInfo::ranks_on_host(self) }
        fn parents(self: &Self) -> Vec<u32> {
            ancestors(&self.inherited).map(|parent| parent.id).collect()
        }
        fn starter(self: &Self) -> Option<u32> {
            Some(Starter::of(self.launcher(), &self.inherited)?.id())
        }
        fn own_endpoint(self: &Self, own: &OwnAddr) -> Result<String, Error> {
            ClusterInfo::own_endpoint(self, own)
        }
        fn with_endpoints(self: &Self, endpoints: Vec<String>) -> ClusterInfo {
            ClusterInfo::with_endpoints(self, endpoints)
        }
    }
}

methods! {
    /// A variable that the caller adds.
    ExportsSeam of Exports {
        fn set(self: &mut Self, name: &'static str, value: String) {
            Exports::set(self, name, value);
        }
        fn of_scheduler(self: &Self, set: Target) -> Option<Exports> {
            Exports::of_scheduler(self, set)
        }
    }
}

methods! {
    /// A finding's text.
    FindingSeam of Finding {
        fn lines(self: &Self, severity: &str, hint: &str) -> String {
            Finding::lines(self, severity, hint)
        }
    }
}

methods! {
    /// A launcher without its readers.
    LauncherSeam of Launcher {
        fn advice(self: Self) -> &'static Advice { &self.spec().advice }
        fn mpi_family(self: Self) -> MpiFamily { self.spec().mpi }
        fn starts(self: Self) -> Starts { self.spec().starts }
        fn refused(self: Self, reason: Reason, variable: &str, value: &str) -> Error {
            self.refuse(reason, variable, value)
        }
        fn variables(self: Self) -> impl Iterator<Item = &'static Variable> {
            Launcher::variables(self)
        }
    }
}

methods! {
    /// What the tables of programs say.
    TargetSeam of Target {
        fn note(self: Self) -> &'static str { Target::note(self) }
        fn variables(self: Self) -> impl Iterator<Item = &'static TargetVariable> {
            Target::variables(self)
        }
        fn removed_prefixes(self: Self) -> &'static [&'static str] {
            Target::removed_prefixes(self)
        }
    }
}

methods! {
    /// What is asked with an environment.
    EnvironmentSeam of Environment {
        fn is_current(self: &Self) -> bool { Environment::is_current(self) }
        fn text(self: &Self, name: &str) -> Option<&str> { Environment::text(self, name) }
        fn number(self: &Self, name: &'static str) -> Result<Option<u32>, Error> {
            Ok(self.setting::<u32>(name)?.map(|number| number.value))
        }
    }
}

/// Returns a finding.
pub fn finding(
    severity: Severity,
    code: &'static str,
    what: String,
    why: String,
    remedy: String,
) -> Finding {
    Finding { severity, code, what, why, remedy }
}

/// Returns the error of a variable or an option that has this value.
pub fn error(reason: impl Into<Reason>, remedy: String, name: String, value: String) -> Error {
    Error::new(reason, remedy).of(name).found(value)
}

/// Returns the launchers that have left variables.
pub fn detected(environment: &Environment) -> impl Iterator<Item = Launcher> {
    markers(environment).map(|marker| marker.launcher)
}

/// Returns the ports of a range, starting with the one that the number selects.
pub fn ports_from(range: PortRange, number: u64) -> impl Iterator<Item = Port> {
    range.ports_from(number)
}
