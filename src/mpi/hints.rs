//! Hints about a job, set as parameters that Open MPI reads from the environment.

#![expect(
    unsafe_code,
    reason = "Open MPI reads its parameters from the environment of the process"
)]

use std::env;

use mpienv_core::Environment;

/// The component for shared memory is named vader in Open MPI 4 and earlier.
const VADER_EAGER_LIMIT: &str = "OMPI_MCA_btl_vader_eager_limit";
/// The component for shared memory is named sm in Open MPI 5.
const SM_EAGER_LIMIT: &str = "OMPI_MCA_btl_sm_eager_limit";

/// How messages of a rank to itself are copied.
const SELF_COPY: &str = "OMPI_MCA_btl_self_flags";
/// What the component for shared memory of Open MPI 4 copies messages with.
const VADER_SINGLE_COPY: &str = "OMPI_MCA_btl_vader_single_copy_mechanism";
/// The same in Open MPI 5.
const SINGLE_COPY: &str = "OMPI_MCA_smsc";

/// What a program knows about its job but Open MPI does not. Open MPI is faster with hints. By
/// default, there are none.
///
/// Hints become parameters of Open MPI (`OMPI_MCA_...`, see `ompi_info --all` and
/// <https://docs.open-mpi.org/en/main/mca.html>) unless `mpirun --mca` or the environment sets
/// them. Other MPIs ignore hints.
///
/// ```
/// use mpienv::mpi::Hints;
///
/// let hints = Hints::new().one_machine(true).eager_limit(64 * 1024);
/// # let _ = hints;
/// ```
///
/// [`World::init_with`](super::World::init_with) sets the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Hints {
    one_machine: bool,
    eager_limit: Option<u32>,
    single_copy: bool,
}

impl Hints {
    /// No hints yet.
    pub const fn new() -> Hints {
        Hints { one_machine: false, eager_limit: None, single_copy: false }
    }

    /// Sets whether all ranks are on one machine. If so, Open MPI does not look for a network
    /// between machines, which takes most of its initialization time. Every rank must pass the same
    /// value.
    ///
    /// Sets `pml=ob1` and `btl=self,vader,tcp`, or in Open MPI 5 `btl=self,sm,tcp`, unless any of
    /// `pml`, `mtl` and `btl` is already set.
    pub const fn one_machine(self, one_machine: bool) -> Hints {
        Hints { one_machine, ..self }
    }

    /// Sets the longest message, in bytes including its header, that is sent to a rank on the same
    /// machine at once. Before it sends a longer message, Open MPI asks the receiver, which takes
    /// some microseconds. Its default is 4096.
    ///
    /// Sets `btl_vader_eager_limit`, or in Open MPI 5 `btl_sm_eager_limit`, unless either is
    /// already set.
    pub const fn eager_limit(self, bytes: u32) -> Hints {
        Hints { eager_limit: Some(bytes), ..self }
    }

    /// Lets Open MPI copy long messages directly from the memory of a rank on the same machine, as
    /// it does in programs in C. Otherwise they go through shared memory, which may take longer:
    /// `btl_vader_single_copy_mechanism=none`, or in Open MPI 5 `smsc=^cma,knem,xpmem`, and
    /// `btl_self_flags=send,inplace` are set, unless they already are. Every rank must make the same
    /// choice.
    ///
    /// ```
    /// use mpienv::mpi::Hints;
    ///
    /// // SAFETY: the ranks of this program have compared all lengths before.
    /// let hints = unsafe { Hints::new().single_copy() };
    /// # let _ = hints;
    /// ```
    ///
    /// # Safety
    /// Lengths must agree in every call: a message has as many values as its receiver expects, and
    /// in a call of all ranks every rank passes the same number. Of a longer message, Open MPI
    /// overwrites [other memory](super::Communicator#lengths) of the receiver.
    pub const unsafe fn single_copy(self) -> Hints {
        Hints { single_copy: true, ..self }
    }

    /// Puts the parameters into the environment. The library must be initialized afterwards.
    #[expect(clippy::disallowed_methods, reason = "Open MPI reads its parameters nowhere else")]
    pub(super) fn set(&self, version: &str, environment: &Environment) {
        for (name, value) in self.parameters(version, environment) {
            // SAFETY: MPI_Init, which comes next, sets variables too (Open MPI 4.1 sets five under
            // mpirun). Initializing MPI while another thread reads the environment, except through
            // `std::env`, is therefore wrong in any case, which `World::init` says.
            unsafe { env::set_var(name, value) };
        }
    }

    /// The variables that pass the hints to a library of that version.
    fn parameters(&self, version: &str, environment: &Environment) -> Vec<(&'static str, String)> {
        // `mpirun --mca` or a user has chosen.
        let is_set = |names: &[&str]| names.iter().any(|name| environment.get(name).is_some());
        let Some(version) = version.strip_prefix("Open MPI v") else { return Vec::new() };
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        let (shared_memory, limit_name, copies) = match major {
            Some(5..) => ("sm", SM_EAGER_LIMIT, (SINGLE_COPY, "^cma,knem,xpmem")),
            _ => ("vader", VADER_EAGER_LIMIT, (VADER_SINGLE_COPY, "none")),
        };
        let mut parameters = Vec::new();
        if self.one_machine && !is_set(&["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"]) {
            parameters.push(("OMPI_MCA_pml", "ob1".to_owned()));
            // Name the transports: with ob1 alone, Open MPI 4 would open InfiniBand's, which prints
            // a warning.
            parameters.push(("OMPI_MCA_btl", format!("self,{shared_memory},tcp")));
        }
        if let Some(limit) = self.eager_limit
            && !is_set(&[VADER_EAGER_LIMIT, SM_EAGER_LIMIT])
        {
            parameters.push((limit_name, limit.to_string()));
        }
        if !self.single_copy && !is_set(&[copies.0]) {
            parameters.push((copies.0, copies.1.to_owned()));
        }
        if !self.single_copy && !is_set(&[SELF_COPY]) {
            // Without `get` and `put`.
            parameters.push((SELF_COPY, "send,inplace".to_owned()));
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::undocumented_unsafe_blocks, reason = "nothing is sent")]
    const NONE: Hints = unsafe { Hints::new().single_copy() };
    const BOTH: Hints = NONE.one_machine(true).eager_limit(65536);

    fn given(hints: Hints, version: &str, set: &[&str]) -> Vec<String> {
        let environment = Environment::from_vars(set.iter().map(|&name| (name, "")));
        let parameters = hints.parameters(version, &environment);
        parameters.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn each_version_of_open_mpi_gets_the_hints_that_it_knows() {
        let fourth = [
            "OMPI_MCA_pml=ob1",
            "OMPI_MCA_btl=self,vader,tcp",
            "OMPI_MCA_btl_vader_eager_limit=65536",
        ];
        let fifth =
            ["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm,tcp", "OMPI_MCA_btl_sm_eager_limit=65536"];
        assert_eq!(given(BOTH, "Open MPI v4.1.4", &[]), fourth);
        assert_eq!(given(BOTH, "Open MPI v5.0.11", &[]), fifth);
        assert_eq!(given(BOTH, "Open MPI v10.0.0", &[]), fifth);
        assert!(given(BOTH, "MPICH Version: 5.0.2", &[]).is_empty());
        assert!(given(NONE, "Open MPI v5.0.11", &[]).is_empty());
        let two_copies = |version| given(Hints::new(), version, &[]);
        let vader = "OMPI_MCA_btl_vader_single_copy_mechanism=none";
        let of_self = "OMPI_MCA_btl_self_flags=send,inplace";
        assert_eq!(two_copies("Open MPI v4.1.4"), [vader, of_self]);
        assert_eq!(two_copies("Open MPI v5.0.11"), ["OMPI_MCA_smsc=^cma,knem,xpmem", of_self]);
    }

    #[test]
    fn what_the_user_has_set_stays() {
        for name in ["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"] {
            assert_eq!(
                given(BOTH, "Open MPI v4.1.4", &[name]),
                ["OMPI_MCA_btl_vader_eager_limit=65536"],
                "{name}"
            );
        }
        // Version 5 also accepts the name of version 4.
        for limit in [SM_EAGER_LIMIT, VADER_EAGER_LIMIT] {
            let names = given(BOTH, "Open MPI v5.0.11", &[limit]);
            assert_eq!(names, ["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm,tcp"], "{limit}");
        }
        // No version reads the other one's name.
        for (version, own, other) in [
            ("Open MPI v5.0.11", SINGLE_COPY, VADER_SINGLE_COPY),
            ("Open MPI v4.1.4", VADER_SINGLE_COPY, SINGLE_COPY),
        ] {
            let names = |name| given(Hints::new(), version, &[name]);
            assert!(!names(own).iter().any(|set| set.starts_with(own)), "{version}");
            assert!(names(other).iter().any(|set| set.starts_with(own)), "{version}");
        }
    }
}
