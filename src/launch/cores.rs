//! The cores that this process may use, and those that it could use without its binding.
//!
//! Linux says them in three places: the affinity mask of this thread, the siblings of each hardware
//! thread, and the quota of the cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::affinity;
use crate::topology::{Cpus, text};

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
    pub fn at_once(&self) -> u32 {
        self.within_quota(self.cores)
    }

    /// Returns how many hardware threads there are within the cgroup's quota, at least 1.
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
pub fn of_children(keep_binding: bool) -> Allowed {
    let then = || {
        if !keep_binding {
            affinity::release();
        }
        allowed()
    };
    // Without another thread, the binding of this one is all that is known.
    affinity::elsewhere(then).unwrap_or_else(allowed)
}

/// Returns how many CPUs this process may use, and how many it could use without its binding.
/// `None` if the system does not tell.
///
/// CPUs that the cgroup forbids are not counted, because no option of a launcher can bring them
/// back.
pub fn count() -> Option<(usize, usize)> {
    Some((affinity::allowed().ok()?.len(), affinity::usable().ok()?.len()))
}

/// Returns what this thread may use.
pub(crate) fn allowed() -> Allowed {
    // A mask that cannot be read allows one processor for certain.
    let cpus = affinity::allowed().unwrap_or_else(|_| Cpus::from_iter([0]));
    let cores = cores_of(&cpus, Path::new("/sys"));
    Allowed { cpus, cores, quota: quota(Path::new("/")) }
}

/// Returns the number of cores that these processors belong to. A processor whose core is not known
/// counts as one.
///
/// A core is known by the first of its hardware threads, which it has even if the process may use
/// only another one.
fn cores_of(cpus: &Cpus, sys: &Path) -> u32 {
    let folder = sys.join("devices/system/cpu");
    // On a large host, this saves hundreds of files.
    let is_off = text(&folder.join("smt/active")) == Some(0);
    let core = |cpu: u32| {
        let list = folder.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        text(&list).and_then(|siblings: Cpus| siblings.first().copied()).unwrap_or(cpu)
    };
    let count = match is_off {
        true => cpus.len(),
        false => cpus.iter().map(core).collect::<BTreeSet<_>>().len(),
    };
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// The folders in which systems mount version 1's controller of processors.
const VERSION_1: [&str; 3] = ["cpu,cpuacct", "cpu", "cpuacct,cpu"];

/// Returns how many processors' time this process gets at most, if its cgroup or one above it sets
/// a limit.
fn quota(root: &Path) -> Option<f64> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    let limits = text.lines().flat_map(|line| {
        // `0::/PATH`, or `4:cpu,cpuacct:/PATH`.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        match controllers {
            "" => along(&mount, path, version_2),
            list if list.split(',').any(|name| name == "cpu") => {
                let mounts = VERSION_1.iter().map(|name| mount.join(name));
                mounts.flat_map(|mount| along(&mount, path, version_1)).collect()
            }
            _ => Vec::new(),
        }
    });
    limits.reduce(f64::min)
}

/// Returns the limits of a cgroup and all above it.
///
/// In a container, the path may be that of the host, which does not exist there: the mount itself
/// is then the container's cgroup.
fn along(mount: &Path, path: &str, limit: fn(&Path) -> Option<f64>) -> Vec<f64> {
    let names = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
    let inner: PathBuf = names.collect();
    inner.ancestors().filter_map(|path| limit(&mount.join(path))).collect()
}

/// `250000 100000`: microseconds in each period of so many. `max` means unlimited.
fn version_2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let mut words = text.split_ascii_whitespace();
    ratio(words.next()?, words.next()?)
}

/// The same in two files. A quota of -1 means unlimited.
fn version_1(folder: &Path) -> Option<f64> {
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    ratio(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (u32, u32) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

    #[test]
    fn a_bound_thread_counts_its_own_cores_and_all_cores_and_stays_bound() {
        let (allowed, all) = count().unwrap();
        assert!(allowed <= all);
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        // A separate thread, because the binding would affect the next test.
        let bound = std::thread::spawn(move || {
            sched_setaffinity(None, &one).unwrap();
            let bound = super::allowed();
            assert_eq!((bound.cpus, bound.cores), (Cpus::from_iter([first as u32]), 1));
            (count(), sched_getaffinity(None).unwrap() == one)
        });
        assert_eq!(bound.join().unwrap(), (Some((1, all)), true));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let whole = affinity::mask(Some(std::process::id())).unwrap();
        assert_eq!(whole, affinity::allowed().unwrap());
    }

    /// A folder that describes hardware threads by their lists of siblings.
    fn host(siblings: &[&str], smt: Option<&str>) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("devices/system/cpu");
        for (cpu, list) in siblings.iter().enumerate() {
            let topology = folder.join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("thread_siblings_list"), format!("{list}\n")).unwrap();
        }
        if let Some(active) = smt {
            fs::create_dir_all(folder.join("smt")).unwrap();
            fs::write(folder.join("smt/active"), format!("{active}\n")).unwrap();
        }
        sys
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let far = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"];
        let near = ["0-1", "0-1", "2-3", "2-3"];
        let single = ["0", "1", "2", "3"];
        for (siblings, smt, cpus, expected) in [
            (&far[..], Some("1"), &[0, 1, 2, 3, 4, 5, 6, 7][..], 4),
            (&far, None, &[0, 4], 1),
            (&far, None, &[4, 5], 2),
            (&near, Some("1"), &[0, 1, 2], 2),
            (&near, Some("1"), &[1, 3], 2),
            (&single, None, &[0, 1, 2, 3], 4),
            (&single, Some("0"), &[0, 2], 2),
            // Nothing is known.
            (&[], None, &[0, 1, 2], 3),
            (&["?", ""], None, &[0, 1], 2),
        ] {
            let sys = host(siblings, smt);
            assert_eq!(
                cores_of(&cpus.iter().copied().collect(), sys.path()),
                expected,
                "{siblings:?} {smt:?} {cpus:?}"
            );
        }
    }

    /// A host whose process is in these cgroups, and whose folders have these files.
    fn found(cgroup: &str, files: &[(&str, &str)]) -> Option<f64> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(root.path().join("proc/self/cgroup"), cgroup);
        let mount = root.path().join("sys/fs/cgroup");
        files.iter().for_each(|(path, text)| write(mount.join(path), text));
        quota(root.path())
    }

    #[test]
    fn the_smallest_limit_of_the_cgroup_and_those_above_it_counts() {
        let own = "0::/user.slice/job_7/task_0\n";
        let task = ("user.slice/job_7/task_0/cpu.max", "max 100000\n");
        let job = ("user.slice/job_7/cpu.max", "250000 100000\n");
        let slice = ("user.slice/cpu.max", "800000 100000\n");
        assert_eq!(found(own, &[task, job, slice]), Some(2.5));
        assert_eq!(found(own, &[task, slice]), Some(8.0));
        assert_eq!(found(own, &[task]), None);
        assert_eq!(found(own, &[("other/cpu.max", "100000 100000\n")]), None);
        assert_eq!(found("0::/\n", &[("cpu.max", "50000 100000\n")]), Some(0.5));
    }

    #[test]
    fn a_container_without_its_hosts_path_reads_the_mount_itself() {
        let limit = ("cpu.max", "200000 100000\n");
        for path in ["/kubepods/pod1/abc", "/../../abc", "/"] {
            assert_eq!(found(&format!("0::{path}\n"), &[limit]), Some(2.0), "{path}");
        }
    }

    #[test]
    fn version_1_has_two_files_and_a_controller_of_its_own() {
        let own = "12:memory:/job\n4:cpu,cpuacct:/job/step\n0::/x\n";
        for mount in VERSION_1 {
            let quota = format!("{mount}/job/cpu.cfs_quota_us");
            let period = format!("{mount}/job/cpu.cfs_period_us");
            let none = format!("{mount}/job/step/cpu.cfs_quota_us");
            let files = [(&*quota, "150000\n"), (&*period, "50000\n"), (&*none, "-1\n")];
            assert_eq!(found(own, &files), Some(3.0), "{mount}");
            assert_eq!(found("12:cpuset:/job\n", &files), None, "{mount}");
        }
    }

    #[test]
    fn text_of_another_form_is_no_limit() {
        for text in ["", "max", "x 100000", "100000", "0 100000", "100000 0", "-1 100000"] {
            assert_eq!(found("0::/\n", &[("cpu.max", text)]), None, "{text}");
        }
        assert_eq!(found("", &[("cpu.max", "100000 100000")]), None);
        assert_eq!(quota(Path::new("/nowhere")), None);
    }
}
