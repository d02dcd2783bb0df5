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

use crate::cluster::context::{CONTEXT, Context};
use crate::cluster::info::ClusterInfo;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::export::Exports;
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

            pub(crate) const fn set(self) -> &'static Set {
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
pub(crate) struct Set {
    /// The name, as `--for` takes it.
    name: &'static str,
    /// The program's human-readable name.
    title: &'static str,
    /// Further information, as the rest of a sentence. May be empty.
    note: &'static str,
    /// The page or file that defines its variables, as a Markdown link.
    page: &'static str,
    pub additions: &'static [Addition],
    /// Returns variables that also depend on the environment.
    pub place: Option<Placing>,
    /// The file that the program reads, if the ranks have several.
    pub file: Option<Filing>,
    /// Inherited variables whose names start with one of these are unset.
    pub unset: &'static [&'static str],
    /// The variables of rank 0's scheduler that differ from those of its worker.
    scheduler: Option<&'static [(&'static str, Option<&'static str>)]>,
}

impl Set {
    /// A set that adds no variables.
    const PLAIN: Set = Set {
        name: "",
        title: "",
        note: "",
        page: "",
        additions: &[],
        place: None,
        file: None,
        unset: &[],
        scheduler: None,
    };

    /// Returns whether its programs get what all programs of a rank get.
    pub(crate) fn adds_nothing(&self) -> bool {
        self.additions.is_empty()
            && self.unset.is_empty()
            && self.place.is_none()
            && self.file.is_none()
    }
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
pub(crate) type Filing = fn(&ClusterInfo) -> Result<Option<TargetFile>, Error>;

/// A variable that a set adds.
pub(crate) struct Addition {
    pub name: &'static str,
    meaning: &'static str,
    /// The page that defines it, if that is not the set's.
    page: Option<&'static str>,
    pub value: fn(&ClusterInfo) -> Value,
}

/// The value of a variable. `None` if the variable is not set.
type Value = Result<Option<String>, Error>;

/// Returns one row of a set's table.
const fn addition(
    name: &'static str,
    meaning: &'static str,
    value: fn(&ClusterInfo) -> Value,
) -> Addition {
    Addition { name, meaning, page: None, value }
}

impl Addition {
    /// Returns the same row for a variable that another page defines.
    const fn on(self, page: &'static str) -> Addition {
        Addition { page: Some(page), ..self }
    }
}

// The rows that several programs have, and their values.

const fn rank(name: &'static str) -> Addition {
    addition(name, "the number of this process, from 0", |info| number(Some(info.rank().index())))
}

const fn size(name: &'static str) -> Addition {
    addition(name, "the number of processes", |info| number(Some(info.world_size())))
}

const fn local_size(name: &'static str) -> Addition {
    addition(name, "the number of processes on this node", own_local_size)
}

const fn master(name: &'static str) -> Addition {
    addition(name, "`host:port` of rank 0", endpoint_of_master)
}

fn own_local_size(info: &ClusterInfo) -> Value {
    number(info.local_world_size())
}

fn node_count(info: &ClusterInfo) -> Value {
    number(info.node_count())
}

fn master_addr(info: &ClusterInfo) -> Value {
    Ok(Some(info.master_addr()?.to_string()))
}

fn master_port(info: &ClusterInfo) -> Value {
    Ok(Some(info.master_port().to_string()))
}

fn endpoint_of_master(info: &ClusterInfo) -> Value {
    Ok(Some(info.master_addr()?.with_port(info.master_port())))
}

/// For a variable that the set's `place` or `file` decides.
fn decided(_info: &ClusterInfo) -> Value {
    Ok(None)
}

/// Returns the variables that give a program its place, depending on the inherited ones.
pub(crate) type Placing = fn(&ClusterInfo, &Environment) -> Result<Variables, Error>;

/// Names with their values.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// Returns the local rank, without which a program cannot start.
fn local_rank(info: &ClusterInfo, target: Target) -> Result<u32, Error> {
    info.local_rank().ok_or_else(|| {
        let remedy =
            "start the program with MPIENV_LAUNCHER=user and RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE set";
        Error::new(Reason::NoLocalRank { program: target.title() }, remedy).by(info.launcher())
    })
}

fn number(value: Option<u32>) -> Value {
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
    #[doc(hidden)]
    pub const fn note(self) -> &'static str {
        self.set().note
    }

    /// Returns the variables that the set adds to PyTorch's, including those that are set only in
    /// some environments.
    #[doc(hidden)]
    pub fn variables(self) -> impl Iterator<Item = TargetVariable> {
        let set = self.set();
        let page = |row: &Addition| row.page.unwrap_or(set.page);
        let row = move |row: &Addition| TargetVariable {
            name: row.name,
            meaning: row.meaning,
            page: page(row),
        };
        set.additions.iter().map(row)
    }

    /// Returns the prefixes of the variables that are unset if they are inherited.
    #[doc(hidden)]
    pub const fn removed_prefixes(self) -> &'static [&'static str] {
        self.set().unset
    }
}

/// Parses a [`name`](Target::name).
impl FromStr for Target {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Target, UnknownName> {
        name::find("program", Target::ALL, Target::name, name)
    }
}

impl Exports {
    /// Returns the variables of a rank's scheduler, if these are those of the rank. `None` if the
    /// program needs no scheduler.
    #[doc(hidden)]
    pub fn of_scheduler(&self, set: Target) -> Option<Exports> {
        let variables = set.set().scheduler?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_set_has_the_description_that_is_in_its_place() {
        let names: BTreeSet<_> = Target::ALL.iter().map(|set| set.name()).collect();
        assert_eq!(names.len(), Target::ALL.len());
        for &set in Target::ALL {
            assert_eq!(set.name(), format!("{set:?}").to_lowercase());
            assert_eq!(set.variables().count() == 0, set == Target::Torch);
            let own: BTreeSet<_> = set.variables().map(|variable| variable.name).collect();
            assert_eq!(own.len(), set.variables().count(), "{set:?} has a variable twice");
            for TargetVariable { name, meaning, page } in set.variables() {
                let is_link =
                    page.starts_with('[') && page.contains("](https://") && !page.contains(' ')
                        || set == Target::TensorFlow;
                assert!(is_link && !meaning.is_empty(), "{name}: {page}");
            }
        }
    }
}
