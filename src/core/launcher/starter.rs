//! Finds the launcher's process that started this one, as Linux lists it. Variables do not show
//! this process.
//!
//! MPICH gives two jobs on one machine the same variables, but each job has its own process that
//! starts its ranks.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::iter;
use std::path::PathBuf;

use crate::environment::Environment;
use crate::launcher::{Launcher, slurm};
use crate::value::job::Job;
use crate::value::sourced::Sourced;

/// MPICH's launcher for one host. Its variables do not say that all ranks are there.
pub(crate) const ON_ONE_HOST: &str = "mpiexec.gforker";
/// Starters that another host's command has started: what that passes on is not in their own
/// environment.
pub(crate) const DAEMONS: [&str; 4] = [slurm::STARTER, "orted", "prted", "mpispawn"];
/// Open MPI's launcher, and the names by which it is called.
pub(crate) const ORTERUN: &str = "orterun";
const MPIRUN: [&str; 4] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi"];
/// How many processes are inspected, this one and its ancestors. The limit ends the search even if
/// the chain changes meanwhile.
const MOST: usize = 65;
/// Linux truncates the name of a process to this many bytes.
const NAME: usize = 15;
/// Room for a process's status, and for its command line or its variables.
const STAT: usize = 512;
const STRINGS: usize = 8192;

/// The nearest ancestor of this process that starts the ranks of a job on this node.
pub(crate) struct Starter {
    pub program: &'static str,
    pub process: Process,
    /// The process that it started: this one, or an ancestor.
    pub child: Process,
}

impl Starter {
    /// Finds the nearest ancestor that starts ranks for this launcher. `None` unless the
    /// environment is this process's.
    pub(crate) fn of(launcher: Launcher, environment: &Environment) -> Option<Starter> {
        Starter::nearest(launcher.spec().starters, environment)
    }

    /// Finds the nearest ancestor among these programs.
    pub(crate) fn nearest(programs: &[&'static str], environment: &Environment) -> Option<Starter> {
        if programs.is_empty() {
            return None;
        }
        let mut line = line(environment);
        let mut child = line.next()?;
        for process in line {
            if let Some(program) = process.runs(programs) {
                return Some(Starter { program, process, child });
            }
            child = process;
        }
        None
    }

    /// Returns a number that is higher for a process that started later on this host.
    pub(crate) fn born(&self) -> u64 {
        // Linux numbers processes below 2^22.
        self.process.start << 22 | u64::from(self.process.id)
    }

    /// Returns the job whose ranks this process starts.
    pub(crate) fn job(&self) -> Sourced<Job> {
        let Starter { program, process: Process { id, start, .. }, .. } = self;
        let source = format!("hash of {program}, process {id}, which started all ranks");
        Sourced::new(Job::new(format!("{id}.{start}")), source)
    }
}

/// Returns this process, its parent, the parent's parent and so on. None unless the environment is
/// this process's.
fn line(environment: &Environment) -> impl Iterator<Item = Process> {
    let is_visible = environment.is_current() && cfg!(target_os = "linux");
    let own = is_visible.then(|| Process::read("self")).flatten();
    iter::successors(own, Process::parent).take(MOST)
}

/// Returns the process that one of another user has started, whom the system hides, as with
/// `hidepid`: this process or an ancestor.
pub(crate) fn below_hidden(environment: &Environment) -> Option<Process> {
    let last = line(environment).last()?;
    // The parent of a container's first process has the number 0.
    let is_hidden = last.parent != 0 && Process::read(&last.parent.to_string()).is_none();
    is_hidden.then_some(last)
}

/// Returns this process's parent, the parent's parent and so on. None unless the environment is
/// this process's.
pub(crate) fn ancestors(environment: &Environment) -> impl Iterator<Item = Process> {
    line(environment).skip(1)
}

/// Programs of batch systems that give the processes of a job its cores. Above them is the whole node.
const BATCH_SYSTEMS: &[&str] =
    &["slurmstepd", "pbs_mom", "sge_shepherd", "res", "condor_starter", "flux-shell", "palsd"];

/// Returns the IDs of this process's ancestors that have the cores of its job: those up to Open MPI's
/// mpirun, which binds the ranks that it starts, and below a batch system.
pub fn ancestors_in_job() -> Vec<u32> {
    let is_in_job = |ancestor: &Process| ancestor.runs(BATCH_SYSTEMS).is_none();
    let mut found = Vec::new();
    for ancestor in ancestors(&Environment::current()).take_while(is_in_job) {
        found.push(ancestor.id);
        if ancestor.runs(Launcher::OpenMpi.spec().starters).is_some() {
            break;
        }
    }
    found
}

/// A process as `/proc/PID/stat` describes it.
pub(crate) struct Process {
    pub id: u32,
    /// The name by which it was called, which Linux truncates.
    pub name: String,
    parent: u32,
    start: u64,
    folder: String,
    /// The name of the file that it runs, once it was needed.
    file: OnceCell<OsString>,
}

impl Process {
    fn read(id: &str) -> Option<Process> {
        let folder = format!("/proc/{id}");
        let stat = read(&folder, "stat", STAT)?;
        let stat = String::from_utf8_lossy(&stat);
        let (id, name, parent, start) = parse(&stat)?;
        Some(Process { id, name: name.to_owned(), parent, start, folder, file: OnceCell::new() })
    }

    /// Returns the process that started it, or that it was given to. None if it cannot be seen.
    pub(crate) fn parent(&self) -> Option<Process> {
        Process::read(&self.parent.to_string())
    }

    /// Returns the file that it runs; an empty path if it belongs to another user.
    pub(crate) fn path(&self) -> PathBuf {
        fs::read_link(format!("{}/exe", self.folder)).unwrap_or_default()
    }

    /// Returns which of these programs the process runs.
    pub(crate) fn runs(&self, programs: &[&'static str]) -> Option<&'static str> {
        // A process's name is the one by which it was called, such as `mpirun` for orterun. Its
        // file cannot be read if it belongs to another user.
        let file = self.file.get_or_init(|| self.path().file_name().unwrap_or_default().to_owned());
        let is_mpirun = file.is_empty() && MPIRUN.contains(&&*self.name);
        let is_it = |program: &&str| {
            let bytes = program.as_bytes();
            *file == OsStr::new(program)
                || self.name.as_bytes() == &bytes[..bytes.len().min(NAME)]
                || is_mpirun && *program == ORTERUN
        };
        programs.iter().copied().find(is_it)
    }

    /// Returns the words of its command line. None if the process has ended.
    pub(crate) fn words(&self) -> Vec<String> {
        let text = self.text("cmdline");
        text.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the variables that it was started with. None if the process belongs to another user.
    pub(crate) fn environment(&self) -> Environment {
        let text = self.text("environ");
        Environment::from_vars(text.split('\0').filter_map(|pair| pair.split_once('=')))
    }

    /// Returns the text of a file whose strings each end with a zero byte.
    fn text(&self, file: &str) -> String {
        let bytes = read(&self.folder, file, STRINGS).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Reads a file of `/proc`. Its size is 0, so `fs::read` would start with 32 bytes and read it in
/// many steps; with room for the usual size, it is read in one.
fn read(folder: &str, file: &str, usual: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usual);
    let file = File::open(format!("{folder}/{file}")).ok()?;
    // A `Take` does not ask for the size.
    file.take(u64::MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Parses `ID (NAME) STATE PARENT ...`: the ID, the name, the parent, and the start in ticks. The
/// name may contain anything, but nothing after it contains a parenthesis.
fn parse(stat: &str) -> Option<(u32, &str, u32, u64)> {
    // A search for one character is quick even where this crate is not optimized.
    let (before, fields) = stat.rsplit_once(')')?;
    let (id, name) = before.split_once('(')?;
    let mut fields = fields.split(' ');
    let parent = fields.nth(2)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some((id.trim_end().parse().ok()?, name, parent, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let tail = "S 41 7 7 0 -1 4194560 90 0 0 0 0 0 0 0 20 0 1 0 123456 2500";
        for name in ["hydra_pmi_proxy", "a) S 9 (b", "", "\u{e9} x"] {
            let stat = format!("42 ({name}) {tail}\n");
            assert_eq!(parse(&stat), Some((42, name, 41, 123_456)), "{name}");
        }
        for bad in ["", "42", "42 (x", "42 (x) S", "42 (x) S 41 7", "42 )x( S 41"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_environment_of_this_process_has_parents() {
        let parent = std::os::unix::process::parent_id();
        let file = fs::read_link(format!("/proc/{parent}/exe")).unwrap();
        let programs: &[&'static str] =
            &[file.file_name().unwrap().to_str().unwrap().to_owned().leak()];
        let current = Environment::current();
        let nearest = |environment: &Environment| {
            Starter::nearest(programs, environment).map(|starter| starter.process.id)
        };
        assert_eq!(nearest(&current), Some(parent));
        assert_eq!(nearest(&current.with([])), Some(parent));
        assert!(Starter::nearest(&["no program"], &current).is_none());
        assert_eq!(nearest(&Environment::default()), None);
    }
}
