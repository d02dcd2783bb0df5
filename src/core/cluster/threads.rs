//! The number of threads that a program starts, as the libraries that it uses read it.

use crate::cluster::context::Context;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::SIMULATED;
use crate::environment::Environment;

/// The variables. OpenMP, MKL, OpenBLAS, oneDNN and PyTorch read the first, Rayon the second.
pub const VARIABLES: [&str; 2] = [OMP, RAYON];

/// <https://www.openmp.org/spec-html/5.0/openmpse50.html>
const OMP: &str = "OMP_NUM_THREADS";
/// <https://docs.rs/rayon/latest/rayon/struct.ThreadPoolBuilder.html#method.num_threads>
const RAYON: &str = "RAYON_NUM_THREADS";

/// A number of threads for the program, and what it may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadCount {
    /// This rank's share of the cores, where the user has set no number.
    ShareIfUnset(u32),
    /// This rank's share of the cores, also where the user has set a number.
    Share(u32),
    /// The number that the user asks for.
    Asked(u32),
}

/// Returns the inherited variables that an outer mpienv set and nothing has changed since, with
/// their values.
pub(crate) fn of_outer(
    environment: &Environment,
    context: Option<&Context>,
) -> Vec<(&'static str, u32)> {
    let Some(context) = context else { return Vec::new() };
    let is_ours = |name: &&'static str| context.seen.is_known(environment, name);
    let value = |name| Some((name, environment.digits(name)?));
    VARIABLES.into_iter().filter(is_ours).filter_map(value).collect()
}

impl ClusterInfo {
    /// Returns the variables that a program gets.
    pub(crate) fn threads(&self, count: Option<ThreadCount>) -> Vec<(&'static str, u32)> {
        let outer = |name| {
            let mut earlier = self.earlier.threads.iter();
            earlier.find(|(of, _)| *of == name).map(|(_, count)| *count)
        };
        // The share of a process that a rank starts is a part of that rank's share.
        let part = |name, share: u32| outer(name).map_or(share, |outer| outer.min(share));
        let is_users = |name| self.inherited.is_set(name) && outer(name).is_none();
        let value = |name| match count? {
            ThreadCount::Asked(number) => Some(number),
            ThreadCount::Share(share) => Some(part(name, share)),
            ThreadCount::ShareIfUnset(share) => (!is_users(name)).then(|| part(name, share)),
        };
        VARIABLES.into_iter().filter_map(|name| Some((name, value(name)?))).collect()
    }

    /// Returns those of the program's variables whose value is mpienv's own, which an inner mpienv
    /// may replace.
    pub(crate) fn own_threads(&self, count: Option<ThreadCount>) -> Vec<(&'static str, u32)> {
        match count {
            None => self.earlier.threads.clone(),
            Some(ThreadCount::Asked(_)) => Vec::new(),
            Some(ThreadCount::Share(_) | ThreadCount::ShareIfUnset(_)) => self.threads(count),
        }
    }

    /// Returns how many OpenMP threads the user asks for. `None` if mpienv has set the number. In a
    /// list for nested regions, the first number counts.
    #[doc(hidden)]
    pub fn users_threads(&self) -> Option<usize> {
        if self.earlier.threads.iter().any(|(name, _)| *name == OMP) {
            return None;
        }
        self.inherited.text(OMP)?.split(',').next()?.trim().parse().ok()
    }

    /// Returns how many OpenMP threads a program gets. `None` if no number is set for it.
    pub(crate) fn omp_threads(&self, count: Option<ThreadCount>) -> Option<u32> {
        self.threads(count).into_iter().find(|(name, _)| *name == OMP).map(|(_, count)| count)
    }

    /// Returns how many ranks of the job share this host. All ranks of a simulated job do, whatever
    /// its nodes are called.
    #[doc(hidden)]
    pub fn ranks_on_host(&self) -> Option<u32> {
        match self.inherited.is_set(SIMULATED) {
            true => Some(self.world_size()),
            false => self.local_world_size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Exports;
    use crate::plan::{Options, Plan};

    const RANK: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];

    /// Returns the variables that a program gets.
    fn exports(info: &ClusterInfo, count: Option<ThreadCount>, is_marked: bool) -> Exports {
        let options = Options { threads: count, is_marked, ..Options::default() };
        Plan::new(info, &options).variables.unwrap()
    }

    /// Returns the variables of a process after another one has applied its exports to its own.
    fn after(vars: &[(String, String)], count: Option<ThreadCount>) -> Vec<(String, String)> {
        let exports = exports(&read(vars), count, true);
        let mut vars: std::collections::BTreeMap<_, _> = vars.iter().cloned().collect();
        for (name, value) in exports.iter() {
            match value {
                Some(value) => drop(vars.insert(name.to_owned(), value.to_owned())),
                None => drop(vars.remove(name)),
            }
        }
        vars.into_iter().collect()
    }

    fn rank(more: &[(&str, &str)]) -> Vec<(String, String)> {
        let vars = RANK.iter().chain(more);
        vars.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn read(vars: &[(String, String)]) -> ClusterInfo {
        ClusterInfo::from_vars(vars.iter().cloned()).unwrap()
    }

    fn threads(info: &ClusterInfo, count: Option<ThreadCount>) -> [Option<String>; 2] {
        let exports = exports(info, count, false);
        VARIABLES.map(|name| exports.get(name).map(str::to_owned))
    }

    fn both(omp: &str, rayon: &str) -> [Option<String>; 2] {
        [omp, rayon].map(|value| Some(value.to_owned()).filter(|value| !value.is_empty()))
    }

    #[test]
    fn each_variable_that_the_user_set_stays_unless_an_option_replaces_it() {
        use ThreadCount::{Asked, Share, ShareIfUnset};
        for (more, count, expected) in [
            (&[][..], ShareIfUnset(3), both("3", "3")),
            (&[(OMP, "8")], ShareIfUnset(3), both("", "3")),
            (&[(RAYON, "8")], ShareIfUnset(3), both("3", "")),
            (&[(OMP, " ")], ShareIfUnset(3), both("3", "3")),
            (&[(OMP, "8")], Share(3), both("3", "3")),
            (&[(OMP, "8")], Asked(5), both("5", "5")),
        ] {
            let found = threads(&read(&rank(more)), Some(count));
            assert_eq!(found, expected, "{more:?} {count:?}");
        }
        assert_eq!(threads(&read(&rank(&[])), None), both("", ""));
    }

    #[test]
    fn an_inner_process_takes_a_part_of_the_share_that_an_outer_one_set() {
        let outer = rank(&[]);
        let inner = after(&outer, Some(ThreadCount::Share(4)));
        assert_eq!(read(&inner).users_threads(), None);
        let share = |of: &[_], share| threads(&read(of), Some(ThreadCount::ShareIfUnset(share)));
        assert_eq!(share(&inner, 1), both("1", "1"));
        // What the outer process has is all that there is for the inner ones.
        assert_eq!(share(&inner, 8), both("4", "4"));
        // The mark stays if a process in between changes nothing.
        assert_eq!(share(&after(&inner, None), 2), both("2", "2"));
        // Another launcher in between changes nothing either.
        let ranks = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "node0")];
        let ranks = ranks.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let nested = [&inner[..], &ranks].concat();
        assert_eq!(read(&nested).launcher(), crate::Launcher::Hydra);
        assert_eq!(share(&nested, 2), both("2", "2"));
    }

    #[test]
    fn what_a_user_sets_between_two_processes_or_asks_for_is_not_replaced() {
        let outer = rank(&[]);
        let mut inner = after(&outer, Some(ThreadCount::ShareIfUnset(4)));
        inner.iter_mut().filter(|(name, _)| name == OMP).for_each(|(_, value)| *value = "6".into());
        assert_eq!(read(&inner).users_threads(), Some(6));
        let share = Some(ThreadCount::ShareIfUnset(1));
        assert_eq!(threads(&read(&inner), share), both("", "1"));
        let inner = after(&outer, Some(ThreadCount::Asked(4)));
        assert_eq!(read(&inner).users_threads(), Some(4));
        assert_eq!(threads(&read(&inner), share), both("", ""));
    }

    #[test]
    fn a_nodes_exports_unset_the_share_of_the_process_that_is_replaced() {
        let outer = [("MPIENV_LAUNCHER", "alone".to_owned())];
        let outer: Vec<_> =
            outer.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let inner = after(&outer, Some(ThreadCount::Share(4)));
        let exports = read(&inner).per_node_exports().unwrap();
        for name in VARIABLES {
            assert!(exports.removals().any(|removed| removed == name), "{name}: {exports:?}");
        }
        let users = [&outer[..], &[(OMP.to_owned(), "4".to_owned())]].concat();
        let exports = read(&users).per_node_exports().unwrap();
        assert!(exports.removals().all(|removed| removed != OMP));
    }
}
