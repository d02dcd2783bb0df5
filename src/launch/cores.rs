//! The cores that this process may use, and those that it could use without its binding.

mod measured;

use std::path::PathBuf;

use crate::launch::affinity;
use crate::launch::topology::Cpus;

pub use self::measured::allowed;

/// Where the system describes its processors and this process.
#[derive(Clone, Debug)]
pub struct Roots {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// What a thread, and the programs that it becomes or starts, may use of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowed {
    /// The numbers of the processors that the affinity mask allows, in order. With SMT, each
    /// hardware thread is one.
    pub cpus: Cpus,
    /// The cores that these processors belong to, at least 1.
    pub cores: u32,
    /// How many processors' time the cgroup grants, if it sets a limit. It may be a fraction.
    pub quota: Option<f64>,
}

impl Allowed {
    /// Returns how many threads that compute can run at once: one for each core, within the
    /// cgroup's quota, and at least 1.
    ///
    /// Hardware threads of one core share its arithmetic units, so two of them compute no faster
    /// than one. PyTorch and MKL start one thread for each core too.
    #[must_use]
    pub fn at_once(&self) -> u32 {
        self.within_quota(self.cores)
    }

    /// Returns how many hardware threads there are within the cgroup's quota, at least 1.
    #[must_use]
    pub fn hardware_threads(&self) -> u32 {
        self.within_quota(u32::try_from(self.cpus.len()).unwrap_or(u32::MAX))
    }

    fn within_quota(&self, number: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let quota = self.quota.map_or(u32::MAX, |quota| quota.floor() as u32);
        number.min(quota).max(1)
    }
}

/// Returns what a process that this one starts may use: without the binding of this process, unless
/// it keeps that.
#[must_use]
pub fn of_children(keep_binding: bool) -> Allowed {
    let now = || allowed(&Roots::default());
    let then = || {
        if !keep_binding {
            affinity::widen();
        }
        now()
    };
    // Without another thread, the binding of this one is all that is known.
    affinity::elsewhere(then).unwrap_or_else(now)
}

/// Returns how many CPUs this process may use, and how many it could use without its binding.
/// `None` if the system does not tell.
///
/// CPUs that the cgroup forbids are not counted, because no option of a launcher can bring them
/// back.
#[must_use]
pub fn count() -> Option<(usize, usize)> {
    Some((affinity::allowed().ok()?.len(), affinity::usable().ok()?.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_limits_the_cores_and_a_fraction_is_rounded_down() {
        let allowed = |cores, quota| Allowed { cpus: (0..2 * cores).collect(), cores, quota };
        for (cores, quota, at_once, hardware_threads) in [
            (4, None, 4, 8),
            (4, Some(2.5), 2, 2),
            (4, Some(6.0), 4, 6),
            (4, Some(0.5), 1, 1),
            (1, Some(64.0), 1, 2),
        ] {
            let found = allowed(cores, quota);
            assert_eq!(
                (found.at_once(), found.hardware_threads()),
                (at_once, hardware_threads),
                "{found:?}"
            );
        }
    }
}
