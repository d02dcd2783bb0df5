//! Names that number a process among several in the words of a launcher that mpienv does not know.
//!
//! A number such as `X_RANK` and a size such as `X_NUM_RANKS` show that this process is one of
//! several, and so does a rank above 0. They never give it a place: what they count (processes,
//! nodes, or shards of the work) is not known.

use crate::environment::{Environment, digits};
use crate::finding::Finding;
use crate::launcher::VARIABLES;
use crate::launcher::alone::BY_ITSELF;

/// What the last words of a process's number are, if a number above 0 is a sign by itself.
const SIGNS: &str = "RANK RANK_ID RANKID RANK_INDEX PROCID PE_ID APP_PE MY_PE NODE_INDEX \
                     PROCESS_INDEX ALLOC_INDEX";

/// The last words of numbers that may also be identifiers, or the numbers of independent tasks: they
/// are a sign only beside a size.
const NUMBERS: &str = "PROC_ID PROCESS_ID NODE_ID NODEID WORKER_ID WORKER_INDEX WORKER_NUMBER \
                       TASK_ID TASK_INDEX REPLICA_ID REPLICA_INDEX HOST_INDEX HOST_ID \
                       MACHINE_INDEX MACHINE_ID SLICE_ID POD_INDEX";

/// Words that say that a number is a size.
const SIZES: &str = "SIZE COUNT TOTAL NUM NUMBER N WORLD";

/// Members, which are also the last words of lists of them.
const MEMBERS: &str = "RANKS PROCS PROCESSES PES NODES WORKERS TASKS REPLICAS HOSTS MACHINES PEERS \
                       PODS SLICES NRANKS NPROCS NPES NNODES NTASKS NWORKERS NHOSTS";

/// Last words of lists only.
const LISTS: &str = "HOSTNAMES NODELIST HOSTLIST IPS ADDRESSES ENDPOINTS";

/// Further words between the prefix of a launcher and the end of a name.
const PARTS: &str = "RANK PROC PROCESS PE NODE WORKER TASK REPLICA HOST MACHINE PEER SLICE POD \
                     ALLOC MPI COMM JOB GROUP GLOBAL LOCAL APP";

/// Words of numbers' names only.
const ENDS: &str = "ID INDEX NUMBER MY RANKID PROCID NODEID";

/// Words of names that number independent parts of the work: shards of a continuous integration's
/// tests, processes of test runners and of pools, array jobs. And those of ranks of other things:
/// of matrices, tensors, decompositions and pages. `TENSOR_PARALLEL_RANK` and `TT_MESH_HOST_RANK` are
/// processes'.
const INDEPENDENT: &str = "CI CIRCLE SNAP BUILDKITE SEMAPHORE TEST TESTS JEST VITEST MOCHA NEXTEST \
                           XDIST SHARD ARRAY CLOUD_RUN PARSL LORA QLORA DORA GALORE ADAPTER MATRIX \
                           SVD DECOMP LOW MAX MIN PAGE TENSOR_RANK TT_RANK TUCKER FACTOR BOND \
                           KERNEL EMBEDDING";

/// Numbers that do not follow these rules, each with its size: those of Snowflake's jobs,
/// ByteDance's Arnold, NVIDIA's Grove, NIM and Base Command, NEC MPI, IBM POE and OpenPAI.
const PAIRS: &[(&str, &str)] = &[
    ("SNOWFLAKE_JOB_INDEX", "SNOWFLAKE_JOBS_COUNT"),
    ("ARNOLD_ID", "ARNOLD_WORKER_NUM"),
    ("GROVE_PCLQ_POD_INDEX", "GROVE_PCSG_TEMPLATE_NUM_PODS"),
    ("NIM_NODE_RANK", "NIM_NUM_COMPUTE_NODES"),
    ("NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE"),
    ("MPIRANK", "MPISIZE"),
    ("MP_CHILD", "MP_PROCS"),
    ("PAI_TASK_INDEX", "PAI_CURRENT_TASK_ROLE_TASK_COUNT"),
];

/// The same with a list that has a member for each: those of Tencent's Taiji, Google's TPU hosts and
/// AWS Neuron.
const LISTED: &[(&str, &str)] = &[
    ("INDEX", "NODE_IP_LIST"),
    ("CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES"),
    ("NEURON_PJRT_PROCESS_INDEX", "NEURON_PJRT_PROCESSES_NUM_DEVICES"),
];

/// Words of numbers that may be those of independent replicas, of which each has a launcher.
const REPLICAS: &str = "NODE HOST MACHINE REPLICA POD ALLOC SLICE NODEID";

/// Why signs of other processes matter.
pub(super) const ONE_OF_SEVERAL: &str = "this process seems to be one of several, and mpienv treats it as the only one: each of them becomes rank 0";

/// Returns whether a word is in one of these lists.
fn is_in(lists: &[&str], word: &str) -> bool {
    lists.iter().any(|list| list.split(' ').any(|one| one == word))
}

/// Reports a number of this process among several that no launcher's variables explain.
pub(super) fn finding(environment: &Environment) -> Option<Finding> {
    let numbers: Vec<_> = numbers(environment).collect();
    let is_number = |name| environment.digits::<u32>(name).is_some();
    let counts = |name| environment.digits::<u32>(name).is_some_and(|n| n > 1);
    let lists = |name| {
        let list = environment.text(name).unwrap_or_default();
        list.split(',').filter(|member| !member.trim().is_empty()).nth(1).is_some()
    };
    let pair = PAIRS.iter().find(|(name, size)| is_number(name) && counts(size));
    let pair = pair.or(LISTED.iter().find(|(name, list)| is_number(name) && lists(list)));
    let pair = pair.map(|&(name, size)| (name, Some(size)));
    let sized =
        numbers.iter().filter_map(|number| Some((number.name, Some(number.size(environment)?))));
    let (name, size) = pair.into_iter().chain(sized).next().or_else(|| {
        let mut alone = numbers.iter().filter(|number| number.is_sign && number.value > 0);
        alone.next().map(|number| (number.name, None))
    })?;
    Some(unknown(environment, name, size))
}

/// Reports a number above 0 and its size beside the place of a launcher's only rank: what the rank
/// has started is one of several.
pub(super) fn of_launched(environment: &Environment) -> Option<Finding> {
    numbers(environment).find_map(|number| {
        let has_prefix = !number.prefix().is_empty();
        let is_replica = number.name.split('_').any(|word| is_in(&[REPLICAS], word));
        let size = number.size(environment).filter(|_| has_prefix && !is_replica)?;
        (number.value > 0).then(|| unknown(environment, number.name, Some(size)))
    })
}

/// Returns the names of numbers that no launcher's variables explain, and of some sizes, as far as a
/// context can hold them.
pub(crate) fn names(environment: &Environment) -> impl Iterator<Item = &str> {
    let pairs = PAIRS.iter().chain(LISTED).flat_map(|&(number, size)| [number, size]);
    let names = pairs.chain(numbers(environment).map(|number| number.name));
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
}

fn numbers(environment: &Environment) -> impl Iterator<Item = Number<'_>> {
    environment.texts().filter_map(|(name, value)| Number::of(name, value))
}

fn unknown(environment: &Environment, name: &str, size: Option<&str>) -> Finding {
    let number = environment.shown(name);
    let what = match size {
        Some(size) => {
            let size = environment.shown(size);
            format!("{number} and {size} are set, and no launcher's variables that mpienv reads")
        }
        None => format!("{number} is set, and no launcher's variables that mpienv reads"),
    };
    Finding::warning(
        "place-unknown",
        what,
        ONE_OF_SEVERAL,
        format!(
            "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR from the variables of what starts the \
             processes; or set {BY_ITSELF}"
        ),
    )
}

/// A variable whose name numbers a process.
struct Number<'a> {
    name: &'a str,
    value: u32,
    /// Whether it is a sign without a size.
    is_sign: bool,
}

impl<'a> Number<'a> {
    fn of(name: &'a str, value: &str) -> Option<Number<'a>> {
        // First, because few variables are numbers.
        let value = digits(value)?;
        let is_end =
            |end: &str| name.strip_suffix(end).is_some_and(|p| p.is_empty() || p.ends_with('_'));
        // The longest end is the most exact one.
        let ends = SIGNS.split(' ').chain(NUMBERS.split(' ')).filter(|end| is_end(end));
        let end = ends.max_by_key(|end| end.len())?;
        let words = format!("_{name}_");
        let is_shard = || INDEPENDENT.split(' ').any(|word| words.contains(&format!("_{word}_")));
        // What a launcher reads is explained elsewhere, or is set outside of jobs too.
        if VARIABLES.contains(name) || is_shard() {
            return None;
        }
        Some(Number { name, value, is_sign: is_in(&[SIGNS], end) && name.len() > end.len() })
    }

    /// Returns the launcher's part of the name, without the words that describe the number.
    fn prefix(&self) -> &'a str {
        let words = self.name.rsplit('_').take_while(|word| is_in(&[PARTS, ENDS], word));
        let words: usize = words.map(|word| word.len() + 1).sum();
        &self.name[..self.name.len().saturating_sub(words)]
    }

    /// Returns a variable of the same prefix that holds a size above 1, or a list of several hosts.
    fn size(&self, environment: &'a Environment) -> Option<&'a str> {
        let prefix = self.prefix();
        let is_size = |&(name, value): &(&'a str, &str)| {
            let rest = match prefix {
                "" => Some(name),
                prefix => name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')),
            };
            rest.is_some_and(|rest| is_several(rest, value, self.value))
        };
        environment.texts().find(is_size).map(|(name, _)| name)
    }
}

/// Returns whether the rest of a name, without its prefix, is a size's, and the value one of
/// several processes of which one has the number `index`.
fn is_several(rest: &str, value: &str, index: u32) -> bool {
    let last = rest.rsplit('_').next().unwrap_or_default();
    if is_in(&[MEMBERS, LISTS], last) {
        let mut members = value.split([',', ';', ' ', '\n']).filter(|member| !member.is_empty());
        if members.next().is_some() && members.next().is_some() {
            return true;
        }
    }
    let is_size = rest.split('_').any(|word| is_in(&[SIZES], word)) || is_in(&[MEMBERS], last);
    let is_known = |word| is_in(&[SIZES, MEMBERS, PARTS], word);
    // Some count from 1.
    let fits = |size: u32| size > 1 && index <= size;
    is_size && rest.split('_').all(is_known) && digits(value).is_some_and(fits)
}
