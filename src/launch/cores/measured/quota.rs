//! The share of the processors' time that this process's cgroup grants.
//!
//! Version 2: <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files>, version 1:
//! <https://docs.kernel.org/scheduler/sched-bwc.html>.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Roots;

/// The folders in which systems mount version 1's controller of processors.
const VERSION_1: [&str; 3] = ["cpu,cpuacct", "cpu", "cpuacct,cpu"];

/// Returns how many processors' time this process gets at most, if its cgroup or one above it sets
/// a limit.
pub(super) fn quota(roots: &Roots) -> Option<f64> {
    let text = fs::read_to_string(roots.proc.join("self/cgroup")).ok()?;
    let mount = roots.sys.join("fs/cgroup");
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

    /// A host whose process is in these cgroups, and whose folders have these files.
    fn found(cgroup: &str, files: &[(&str, &str)]) -> Option<f64> {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { sys: root.path().join("sys"), proc: root.path().join("proc") };
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(roots.proc.join("self/cgroup"), cgroup);
        files.iter().for_each(|(path, text)| write(roots.sys.join("fs/cgroup").join(path), text));
        quota(&roots)
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
        assert_eq!(quota(&Roots { sys: "/nowhere".into(), proc: "/nowhere".into() }), None);
    }
}
