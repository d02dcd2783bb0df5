//! The variables that a program reads: PyTorch's, and those of other programs.

mod deepspeed;
mod jax;
mod lamellar;
mod lightning;
mod mindspore;
mod mistralrs;
mod mlx;
mod oneccl;
mod paddle;
mod peers;
mod tensorflow;
mod torch;
mod torchcomms;

use std::str::FromStr;

use crate::cluster::discover::launcher_of;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::LAUNCHER;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::export::Exports;
use crate::launcher::context::{CONTEXT, Context};
use crate::launcher::seen;
use crate::value::launcher::Launcher;
use crate::value::name::{self, UnknownName};

macro_rules! targets {
    ($($target:ident = $file:ident, $meaning:literal;)+) => {
        /// The programs whose variables can be exported.
        ///
        /// `mpienv::guide::variables` lists the variables of each, with the page that
        /// defines them.
        ///
        /// ```
        /// use mpienv::Target;
        ///
        /// for &set in Target::ALL {
        ///     assert_eq!(set.name().parse(), Ok(set));
        ///     println!("--for {}: {}", set.name(), set.title());
        /// }
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Target {
            #[default]
            $(#[doc = $meaning] $target,)+
        }

        impl Target {
            /// Every set.
            pub const ALL: &'static [Target] = &[$(Target::$target,)+];

            const fn set(self) -> &'static Set {
                match self {
                    $(Target::$target => &$file::SET,)+
                }
            }
        }
    };
}

// To add a set, write a file with its SET, its `mod` above and a line here. `.ci/generate` then
// adds it to the guide.
targets! {
    Torch = torch, "PyTorch and programs that read its variables: [`ClusterInfo::exports`].";
    Jax = jax, "`jax.distributed.initialize()` without arguments.\n\nJAX reads the number of processes and its own number from Open MPI 4 or Slurm. Under other launchers, and in workers, it reads them from Open MPI's variables, which mpienv sets.";
    MindSpore = mindspore, "Programs written for MindSpore's `msrun`.\n\nThey also need a scheduler: the program of rank 0 once more with `MS_ROLE=MS_SCHED`, which `Launch` starts.";
    Lightning = lightning, "Lightning's `Fabric` and `Trainer`.";
    DeepSpeed = deepspeed, "Programs written for DeepSpeed's launcher.";
    TensorFlow = tensorflow, "TensorFlow's `MultiWorkerMirroredStrategy`.";
    Paddle = paddle, "PaddlePaddle's `init_parallel_env()`.";
    OneCcl = oneccl, "Intel's oneCCL, also in PyTorch.";
    Mlx = mlx, "Apple's MLX.";
    MistralRs = mistralrs, "mistral.rs: one process on each node, or one for each rank of its ring.";
    Lamellar = lamellar, "Lamellar, with all ranks on one node.";
    TorchComms = torchcomms, "PyTorch's torchcomms.";
}

/// A variable that a set adds to PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetVariable {
    /// Its name.
    pub name: &'static str,
    /// What mpienv sets it to.
    pub meaning: &'static str,
    /// The page or file that defines it, as a Markdown link.
    pub page: &'static str,
}

/// What a set has besides PyTorch's variables.
struct Set {
    /// The name, as `--for` takes it.
    name: &'static str,
    /// The program's human-readable name.
    title: &'static str,
    /// Further information, as the rest of a sentence. May be empty.
    note: &'static str,
    additions: &'static [Addition],
    /// Returns variables that also depend on the environment.
    place: Option<Placing>,
    /// The file that the program reads, if the ranks have several.
    file: Option<Filing>,
    /// Inherited variables whose names start with one of these are unset.
    unset: &'static [&'static str],
    /// The variables of rank 0's scheduler that differ from those of its worker.
    scheduler: Option<&'static [(&'static str, Option<&'static str>)]>,
}

impl Set {
    /// A set that adds no variables.
    const PLAIN: Set = Set {
        name: "",
        title: "",
        note: "",
        additions: &[],
        place: None,
        file: None,
        unset: &[],
        scheduler: None,
    };
}

/// A file that a program reads, and the variable that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFile {
    /// The variable that is to name the file.
    pub variable: &'static str,
    /// What is to be in the file.
    pub text: String,
}

/// Returns the file that a program reads. `None` if it needs none, or if the user named one.
type Filing = fn(&ClusterInfo) -> Result<Option<TargetFile>, Error>;

/// A variable and its value, `None` if it is not set.
struct Addition {
    variable: TargetVariable,
    value: fn(&ClusterInfo) -> Result<Option<String>, Error>,
}

/// Returns one row of a set's table.
const fn addition(
    name: &'static str,
    meaning: &'static str,
    page: &'static str,
    value: fn(&ClusterInfo) -> Result<Option<String>, Error>,
) -> Addition {
    Addition { variable: TargetVariable { name, meaning, page }, value }
}

// The rows that several programs have.

const fn rank(name: &'static str, page: &'static str) -> Addition {
    addition(name, "the number of this process, from 0", page, |info| {
        number(Some(info.rank().index()))
    })
}

const fn size(name: &'static str, page: &'static str) -> Addition {
    addition(name, "the number of processes", page, |info| number(Some(info.world_size())))
}

const fn local_size(name: &'static str, page: &'static str) -> Addition {
    addition(name, "the number of processes on this node", page, |info| {
        number(info.local_world_size())
    })
}

const fn master(name: &'static str, page: &'static str) -> Addition {
    addition(name, "`host:port` of rank 0", page, endpoint_of_master)
}

/// A variable that the set's `place` or `file` decides.
const fn decided(name: &'static str, meaning: &'static str, page: &'static str) -> Addition {
    addition(name, meaning, page, |_| Ok(None))
}

fn endpoint_of_master(info: &ClusterInfo) -> Result<Option<String>, Error> {
    Ok(Some(info.master_addr()?.with_port(info.master_port())))
}

/// Returns the variables that give a program its place, depending on the inherited ones.
type Placing = fn(&ClusterInfo, &Environment) -> Result<Variables, Error>;

/// Names with their values.
type Variables = Vec<(&'static str, String)>;

/// Returns the local rank, without which a program cannot start.
fn local_rank(info: &ClusterInfo, target: Target) -> Result<u32, Error> {
    info.local_rank().ok_or_else(|| {
        let remedy =
            "start the program with MPIENV_LAUNCHER=user and RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE set";
        Error::new(Reason::NoLocalRank { program: target.title() }, remedy).by(info.launcher())
    })
}

fn number(value: Option<u32>) -> Result<Option<String>, Error> {
    Ok(value.map(|value| value.to_string()))
}

impl Target {
    /// Returns the name, as `--for` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.set().name
    }

    /// Returns the human-readable name.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.set().title
    }

    /// Returns further information about the set, as the rest of a sentence. May be empty.
    pub(crate) const fn note(self) -> &'static str {
        self.set().note
    }

    /// Returns the variables that the set adds to PyTorch's, including those that are set only in
    /// some environments.
    pub(crate) fn variables(self) -> impl Iterator<Item = &'static TargetVariable> {
        self.set().additions.iter().map(|addition| &addition.variable)
    }

    /// Returns the prefixes of the variables that are unset if they are inherited.
    pub(crate) const fn removed_prefixes(self) -> &'static [&'static str] {
        self.set().unset
    }

    /// Returns the variables by which the scheduler differs from rank 0. `None` if the program
    /// needs no scheduler.
    pub(crate) fn scheduler(self) -> Option<&'static [(&'static str, Option<&'static str>)]> {
        self.set().scheduler
    }
}

/// Parses a [`name`](Target::name).
impl FromStr for Target {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Target, UnknownName> {
        name::find("program", Target::ALL, Target::name, name)
    }
}

impl ClusterInfo {
    /// Returns the variables that a program reads: those of [`exports`](ClusterInfo::exports), and
    /// its own.
    ///
    /// Inherited launcher variables that would mislead the program are unset, as listed in
    /// [`Target`].
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Target};
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("RANK", "1"),
    ///     ("WORLD_SIZE", "2"),
    ///     ("LOCAL_RANK", "0"),
    ///     ("LOCAL_WORLD_SIZE", "1"),
    ///     ("MASTER_ADDR", "fe::1"),
    /// ])?;
    /// let exports = info.exports_for(Target::Jax)?;
    /// assert_eq!(exports.get("JAX_COORDINATOR_ADDRESS"), Some("[fe::1]:6105"));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ClusterInfo::exports`]. It also returns an error if the program needs a value that
    /// the launcher does not provide, such as the local rank or the hosts of all ranks, or a file:
    /// only `Launch` and `mpienv exec` write files.
    pub fn exports_for(&self, set: Target) -> Result<Exports, Error> {
        let (exports, file) = self.exports_and_file(set)?;
        let Some(TargetFile { variable, .. }) = file else { return Ok(exports) };
        let what = "a file with the addresses of the ranks".to_owned();
        let remedy = format!(
            "start the program with `mpienv exec --for {0}` or `mpienv launch --for {0}`, which write it, or set {variable} \
             to a file of your own",
            set.name()
        );
        Err(Error::new(Reason::ProgramNeeds { program: set.title(), what }, remedy).of(variable))
    }

    /// Returns the variables that a program reads, and the file that it needs besides. The caller
    /// writes the file, and sets its variable to the file's path.
    pub(crate) fn exports_and_file(
        &self,
        set: Target,
    ) -> Result<(Exports, Option<TargetFile>), Error> {
        let inherited: &Environment = &self.inherited;
        let mut exports = self.exports()?;
        let before = inherited.with(exports.iter());
        let Set { additions, place, unset, file, .. } = set.set();
        let file = file.map(|file| file(self)).transpose()?.flatten();
        for Addition { variable, value } in *additions {
            if let Some(value) = value(self)? {
                exports.set(variable.name, value);
            }
        }
        let place = place
            .map(|place| place(self, &inherited.with(exports.iter())))
            .transpose()?
            .unwrap_or_default();
        let is_placed = !place.is_empty();
        place.into_iter().for_each(|(name, value)| exports.set(name, value));
        let wanted =
            |name: &&str| unset.iter().any(|prefix| name.starts_with(prefix)) && is_plain(name);
        let names: Vec<_> = inherited.names().filter(wanted).map(str::to_owned).collect();
        // mpienv in a child process cannot detect the launcher from variables that were unset.
        let is_gone = !names.is_empty();
        if is_gone && inherited.is_set(LAUNCHER) && self.passed_on.leaves_context.is_none() {
            exports.set(LAUNCHER, Launcher::User.name().to_owned());
        }
        let takes_some = self
            .launcher()
            .variables()
            .any(|variable| names.iter().any(|name| name == variable.name));
        names.into_iter().for_each(|name| exports.remove(name));
        let after = inherited.with(exports.iter());
        // The launcher would still be detected, but its variables could not be read.
        let is_torn = takes_some && (self.launcher().spec().marker)(&after).is_some();
        // The program's variables are also those of a launcher of its own.
        let is_other = || launcher_of(&after) != launcher_of(&before);
        // The context keeps launcher variables that are meant only for the program from misleading
        // other processes.
        if let Some(launcher) = self
            .passed_on
            .leaves_context
            .or_else(|| (is_placed || is_torn || is_other()).then_some(self.launcher()))
        {
            let launcher = if is_gone { Launcher::User } else { launcher };
            let context = self.context(launcher, seen(&after), &exports);
            exports.set(CONTEXT, context.to_text());
        }
        Ok((exports, file))
    }
}

impl Exports {
    /// Returns the variables of a rank's scheduler, if these are those of the rank. `None` if the
    /// program needs no scheduler.
    pub(crate) fn of_scheduler(&self, set: Target) -> Option<Exports> {
        let variables = set.scheduler()?;
        let mut exports = self.clone();
        for &(name, value) in variables {
            match value {
                Some(value) => exports.set(name, value.to_owned()),
                None => exports.remove(name),
            }
        }
        // The other role must not look like that of another launcher.
        if let Some(mut context) = self.get(CONTEXT).and_then(Context::parse) {
            variables.iter().for_each(|(name, value)| context.seen.put(name, *value));
            exports.set(CONTEXT, context.to_text());
        }
        Some(exports)
    }
}

/// Returns whether every dialect can express this name. Programs do not read variables with other
/// names.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
