//! What a program tells Open MPI about its job, through parameters that Open MPI reads from the environment.

#![expect(unsafe_code, reason = "Open MPI reads its parameters from the environment of the process")]

use std::env;

use super::MpiVars;

/// Open MPI 4 and before call their component for shared memory vader.
pub(super) const VADER_EAGER_LIMIT: &str = "OMPI_MCA_btl_vader_eager_limit";
/// Open MPI 5 calls it sm.
pub(super) const SM_EAGER_LIMIT: &str = "OMPI_MCA_btl_sm_eager_limit";

/// What a program knows about its job and Open MPI does not. Open MPI is faster with it. The default is no hints.
///
/// Hints become parameters of Open MPI (`OMPI_MCA_...`, see `ompi_info --all` and
/// <https://docs.open-mpi.org/en/main/mca.html>) where neither `mpirun --mca` nor the environment sets them. Other
/// MPIs take no notice.
///
/// ```
/// use mpienv::mpi::Hints;
///
/// // SAFETY: this program has one thread.
/// let hints = unsafe { Hints::new() }.one_machine(true).eager_limit(64 * 1024);
/// # let _ = hints;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Hints {
    one_machine: bool,
    eager_limit: Option<u32>,
}

impl Hints {
    /// No hints yet.
    ///
    /// # Safety
    /// Hints are set as variables of this process's environment when they are given to
    /// [`World::init_with`](super::World::init_with). No other thread may read or change the environment during that call,
    /// except through `std::env`.
    pub const unsafe fn new() -> Hints {
        Hints { one_machine: false, eager_limit: None }
    }

    /// All ranks are on one machine: Open MPI is not to look for a network between machines, which is most of its
    /// initialization. Every rank must say the same.
    ///
    /// `pml=ob1` and `btl=self,vader,tcp`, in Open MPI 5 `btl=self,sm,tcp`; nothing where any of `pml`, `mtl` and `btl` is
    /// set.
    pub const fn one_machine(self, one_machine: bool) -> Hints {
        Hints { one_machine, ..self }
    }

    /// Sets the longest message, in bytes with its header, that is sent to a rank on the same machine at once. Before
    /// a longer message Open MPI asks the receiver, which takes some microseconds. Open MPI's default is 4096.
    ///
    /// `btl_vader_eager_limit`, in Open MPI 5 `btl_sm_eager_limit`.
    pub const fn eager_limit(self, bytes: u32) -> Hints {
        Hints { eager_limit: Some(bytes), ..self }
    }

    /// Puts the parameters into the environment, for the library's initialization, which is to follow.
    #[expect(clippy::disallowed_methods, reason = "Open MPI reads its parameters nowhere else")]
    pub(super) fn set(&self, version: &str, vars: &MpiVars<'_>) {
        for (name, value) in self.parameters(version, vars) {
            // SAFETY: the caller that made the hints keeps other threads from the environment.
            unsafe { env::set_var(name, value) };
        }
    }

    /// The variables that say so to a library of that version.
    fn parameters(&self, version: &str, vars: &MpiVars<'_>) -> Vec<(&'static str, String)> {
        let Some(version) = version.strip_prefix("Open MPI v") else { return Vec::new() };
        let fifth = version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= 5);
        let (shared_memory, limit_name) = if fifth { ("sm", SM_EAGER_LIMIT) } else { ("vader", VADER_EAGER_LIMIT) };
        let mut parameters = Vec::new();
        if self.one_machine && !vars.transport_is_set {
            parameters.push(("OMPI_MCA_pml", "ob1".to_owned()));
            // By name: ob1 alone would open InfiniBand's in Open MPI 4, which warns.
            parameters.push(("OMPI_MCA_btl", format!("self,{shared_memory},tcp")));
        }
        if let Some(limit) = self.eager_limit.filter(|_| !vars.eager_limit_is_set) {
            parameters.push((limit_name, limit.to_string()));
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    // SAFETY: they are never set.
    const NONE: Hints = unsafe { Hints::new() };
    const BOTH: Hints = NONE.one_machine(true).eager_limit(65536);

    fn given(hints: Hints, version: &str, set: &[&str]) -> Vec<String> {
        let environment = Environment::from_vars(set.iter().map(|&name| (name, "")));
        let parameters = hints.parameters(version, &MpiVars::of(&environment));
        parameters.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn each_open_mpi_is_told_by_the_names_that_it_knows() {
        let fourth = ["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader,tcp", "OMPI_MCA_btl_vader_eager_limit=65536"];
        let fifth = ["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm,tcp", "OMPI_MCA_btl_sm_eager_limit=65536"];
        assert_eq!(given(BOTH, "Open MPI v4.1.4", &[]), fourth);
        assert_eq!(given(BOTH, "Open MPI v5.0.11", &[]), fifth);
        assert_eq!(given(BOTH, "Open MPI v10.0.0", &[]), fifth);
        assert!(given(BOTH, "MPICH Version: 5.0.2", &[]).is_empty());
        assert!(given(NONE, "Open MPI v5.0.11", &[]).is_empty());
    }

    #[test]
    fn what_the_user_has_set_stays() {
        for name in ["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"] {
            assert_eq!(given(BOTH, "Open MPI v4.1.4", &[name]), ["OMPI_MCA_btl_vader_eager_limit=65536"], "{name}");
        }
        // Version 5 takes the name of version 4, too.
        for limit in [SM_EAGER_LIMIT, VADER_EAGER_LIMIT] {
            let names = given(BOTH, "Open MPI v5.0.11", &[limit]);
            assert_eq!(names, ["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm,tcp"], "{limit}");
        }
    }
}
