//! A rank's share of its node's cores, which is the number of threads that it should start.

use std::fmt;

use crate::affinity;
use crate::bind::widen_default_binding;
use crate::cores::{self, Allowed};
use crate::topology::Cpus;
use mpienv_core::seam::{ThreadCount, counted};
use mpienv_core::{ClusterInfo, Environment, Launcher};

/// How many threads the libraries of a program start in each rank.
///
/// OpenMP, MKL, OpenBLAS, oneDNN and PyTorch read `OMP_NUM_THREADS`, and Rayon
/// `RAYON_NUM_THREADS`. Without these variables, each of them starts one thread for each core in
/// every rank. See [`Launch::threads`](crate::Launch::threads).
///
/// ```
/// use mpienv::{ClusterInfo, Launch, Threads};
/// use std::process::Command;
///
/// let info = ClusterInfo::from_vars([("PATH", "/bin")])?;
/// Launch::new(&info, 2)?.threads(Threads::Number(3)).run(|_worker| {
///     let mut command = Command::new("sh");
///     command.args(["-c", "test $OMP_NUM_THREADS = 3 && test $RAYON_NUM_THREADS = 3"]);
///     command
/// })?;
/// # Ok::<(), mpienv::LaunchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Threads {
    /// The cores that the node's ranks may use, divided by the number of these ranks, at least 1.
    /// Replaces a value that is already set.
    Share,
    /// The variables stay as they are.
    Keep,
    /// This number, which replaces a value that is already set. 0 counts as 1.
    Number(u32),
}

impl Threads {
    /// Returns the number for a rank with this share. `None` if the variables stay as they are.
    /// Without a request, the share is for the variables that the user has not set.
    pub fn count(asked: Option<Threads>, share: Option<u32>) -> Option<ThreadCount> {
        match asked {
            None => share.map(ThreadCount::ShareIfUnset),
            Some(Threads::Share) => share.map(ThreadCount::Share),
            Some(Threads::Number(number)) => Some(ThreadCount::Asked(number.max(1))),
            Some(Threads::Keep) => None,
        }
    }
}

/// A rank's share of its node's cores. As text, what it follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The number of threads, at least 1.
    pub threads: u32,
    /// The ranks on this node.
    pub ranks: u32,
    /// What these ranks may use together.
    pub allowed: Allowed,
    /// What the program may use, if the binding is this rank's own.
    bound: Option<Allowed>,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: u32, noun| counted(count as usize, noun);
        let (cores, ranks) = (many(self.allowed.cores, "core"), many(self.ranks, "rank"));
        write!(f, "of {cores}, {ranks} on this node")?;
        if let Some(bound) = &self.bound {
            write!(f, "; bound to {}", many(bound.cores, "core"))?;
        }
        self.allowed.quota.map_or(Ok(()), |quota| write!(f, "; cpu.max {quota}"))
    }
}

impl Share {
    /// Returns the processors that the program may use.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        &self.bound.as_ref().unwrap_or(&self.allowed).cpus
    }

    /// Divides what the ranks of a node may use together.
    fn divided(allowed: Allowed, ranks: u32) -> Share {
        let threads = (allowed.at_once() / ranks.max(1)).max(1);
        Share { threads, ranks, allowed, bound: None }
    }

    /// Returns the share of a rank that has cores of its own. Several ranks may be bound to the
    /// same part of a node, so this limits the share, and does not replace it.
    fn bound(own: Allowed, all: Allowed, ranks: u32) -> Share {
        let share = Share::divided(all, ranks);
        let threads = share.threads.min(own.at_once());
        Share { threads, bound: Some(own), ..share }
    }
}

/// Returns the share of each of this node's ranks, which this process starts.
pub fn of_workers(ranks: u32, keep_binding: bool) -> Share {
    Share::divided(cores::of_children(keep_binding), ranks)
}

/// Returns this rank's share, for a program that it becomes. `None` if the launcher does not
/// provide the number of ranks on this node.
///
/// `keep_binding`: the program keeps the launcher's binding, and otherwise only one that
/// [`widen_default_binding`](crate::seam::widen_default_binding) leaves.
pub fn of_rank(info: &ClusterInfo, environment: &Environment, keep_binding: bool) -> Option<Share> {
    let ranks = match info.launcher() {
        Launcher::Alone => 1,
        _ => info.ranks_on_host()?,
    };
    affinity::elsewhere(|| {
        if !keep_binding {
            widen_default_binding(info, environment);
        }
        let own = cores::allowed();
        affinity::widen();
        let all = cores::allowed();
        match own.cpus.len() < all.cpus.len() && !is_of_all_ranks(info, &own) {
            true => Share::bound(own, all, ranks),
            false => Share::divided(own, ranks),
        }
    })
}

/// Returns whether the process that starts the ranks has the same binding, as under
/// `taskset -c 0-3 mpiexec`: all ranks of the node then share these cores.
fn is_of_all_ranks(info: &ClusterInfo, own: &Allowed) -> bool {
    let mask = info.starter().and_then(|id| affinity::mask(Some(id)).ok());
    mask.is_some_and(|cpus| cpus == own.cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(cores: u32, quota: Option<f64>) -> Allowed {
        Allowed { cpus: (0..cores).collect(), cores, quota }
    }

    #[test]
    fn ranks_divide_their_nodes_cores_and_get_at_least_one() {
        for (cores, quota, ranks, threads, text) in [
            (64, None, 8, 8, "of 64 cores, 8 ranks on this node"),
            (4, Some(2.5), 2, 1, "of 4 cores, 2 ranks on this node; cpu.max 2.5"),
            (64, Some(12.0), 4, 3, "of 64 cores, 4 ranks on this node; cpu.max 12"),
            (2, None, 4, 1, "of 2 cores, 4 ranks on this node"),
            (1, Some(0.5), 1, 1, "of 1 core, 1 rank on this node; cpu.max 0.5"),
            (7, None, 2, 3, "of 7 cores, 2 ranks on this node"),
            (16, None, 1, 16, "of 16 cores, 1 rank on this node"),
        ] {
            let share = Share::divided(allowed(cores, quota), ranks);
            assert_eq!((share.threads, share.to_string().as_str()), (threads, text));
        }
    }

    #[test]
    fn a_bound_rank_gets_no_more_than_its_cores_and_no_more_than_its_share() {
        for (own, all, quota, ranks, threads) in [
            // srun -n 2 -c 4, and -c 1.
            (4, 64, None, 2, 4),
            (1, 64, None, 2, 1),
            // Four of eight ranks are bound to each of two sockets.
            (32, 64, None, 8, 8),
            (8, 64, Some(6.0), 2, 3),
            (1, 2, None, 4, 1),
        ] {
            let share = Share::bound(allowed(own, quota), allowed(all, quota), ranks);
            assert_eq!(share.threads, threads, "{share}");
            assert!(share.to_string().contains(&format!("; bound to {own} core")), "{share}");
            assert_eq!(share.cpus().len(), own as usize);
        }
    }

    #[test]
    fn without_a_request_the_share_is_for_variables_that_are_not_set() {
        use Threads::{Keep, Number};
        for (asked, share, expected) in [
            (None, Some(2), Some(ThreadCount::ShareIfUnset(2))),
            (None, None, None),
            (Some(Threads::Share), Some(2), Some(ThreadCount::Share(2))),
            (Some(Number(9)), None, Some(ThreadCount::Asked(9))),
            (Some(Number(0)), Some(2), Some(ThreadCount::Asked(1))),
            (Some(Keep), Some(2), None),
        ] {
            assert_eq!(Threads::count(asked, share), expected, "{asked:?} {share:?}");
        }
    }
}
