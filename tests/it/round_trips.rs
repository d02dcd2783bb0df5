//! What mpienv writes for a program, it reads: any place, through the program's own variables alone.

use std::cell::RefCell;
use std::collections::BTreeMap;

use mpienv::simulate::{Job, Vars};
use mpienv::testing::any_job;
use mpienv::{ClusterInfo, Launcher, Target};
use mpienv_core::seam::{Plan, PlanOptions, Reader};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// The variables of PyTorch, which three programs read too.
const OF_TORCH: [&str; 7] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
];
const ON_TORCH: [Target; 3] = [Target::Torch, Target::DeepSpeed, Target::Lightning];

/// mistral.rs's own variables that only users set.
const GPUS: (&str, &str) = ("MISTRALRS_MN_LOCAL_WORLD_SIZE", "8");
const RING: (&str, &str) = ("MISTRALRS_NO_NCCL", "1");

/// A program, and a place in a job.
#[derive(Clone, Debug)]
struct Case {
    set: Target,
    vars: Vars,
    /// How many workers the process starts, and which of them is the place.
    worker: Option<(u32, u32)>,
}

fn any_case() -> impl Strategy<Value = Case> {
    let set = prop::sample::select(Target::ALL);
    let master = prop::sample::select(vec!["node0", "10.1.2.3", "fd00::9"]);
    let of_any =
        (any_job(), any::<prop::sample::Index>(), master).prop_map(|(job, rank, master)| {
            let mut vars = job.environment(rank.index(job.world_size() as usize) as u32).unwrap();
            vars.push(("MPIENV_MASTER_ADDR".to_owned(), master.to_owned()));
            (vars, None)
        });
    // A platform that lists its hosts.
    let of_platform =
        (1u32..5, any::<prop::sample::Index>(), 0u32..4, any::<prop::sample::Index>());
    let of_platform = of_platform.prop_map(|(nodes, node, workers, worker)| {
        let job = Job::of(Launcher::SkyPilot).nodes(nodes).build().unwrap();
        let vars = job.environment(node.index(nodes as usize) as u32).unwrap();
        let worker = (workers > 0).then(|| (workers, worker.index(workers.max(1) as usize) as u32));
        (vars, worker)
    });
    let place = prop_oneof![of_any, of_platform];
    (set, place, any::<bool>()).prop_map(|(set, (mut vars, worker), has_ring)| {
        let of_user = [GPUS, RING].into_iter().take(1 + usize::from(has_ring));
        vars.extend(of_user.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Case { set, vars, worker }
    })
}

impl Case {
    fn place(&self) -> ClusterInfo {
        let info = ClusterInfo::from_vars(self.vars.clone()).unwrap();
        match self.worker {
            None => info,
            Some((count, index)) => info.workers(count).unwrap().swap_remove(index as usize),
        }
    }

    /// Only the program's own variables, as mpienv sets them for this place, and its file. `None` if
    /// the program cannot run there.
    fn own(&self, place: &ClusterInfo) -> Option<(Vars, Option<tempfile::NamedTempFile>)> {
        let reader = Reader::Program(self.set);
        let plan = Plan::new(place, &PlanOptions { reader, ..PlanOptions::default() });
        let (exports, file) = (plan.variables.ok()?, plan.file);
        let is_own = |name: &str| {
            self.set.variables().any(|variable| variable.name == name)
                || ON_TORCH.contains(&self.set) && OF_TORCH.contains(&name)
        };
        let own = exports.iter().filter(|(name, _)| is_own(name));
        let mut own: Vars =
            own.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        if self.set == Target::MistralRs {
            let is_of_user = |name: &str| [GPUS.0, RING.0].contains(&name);
            own.extend(self.vars.iter().filter(|(name, _)| is_of_user(name)).cloned());
        }
        let file = file.map(|it| {
            let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            std::fs::write(file.path(), it.text).unwrap();
            own.push((it.variable.to_owned(), file.path().to_str().unwrap().to_owned()));
            file
        });
        Some((own, file))
    }
}

/// The launcher whose variables a program's are. JAX also reads Open MPI's.
fn launchers(set: Target) -> &'static [Launcher] {
    match set {
        Target::Torch | Target::DeepSpeed => &[Launcher::User],
        // A run ID that is set already is not one of the exports.
        Target::Lightning => &[Launcher::Torchrun, Launcher::User],
        Target::Jax => &[Launcher::Jax, Launcher::OpenMpi],
        Target::MindSpore => &[Launcher::Msrun],
        Target::TensorFlow => &[Launcher::TfConfig],
        Target::Paddle => &[Launcher::Paddle],
        Target::Mlx => &[Launcher::Mlx],
        Target::MistralRs => &[Launcher::MistralRs],
        Target::Lamellar => &[Launcher::Lamellar],
        Target::TorchComms => &[Launcher::TorchComms],
        // Its variables give only the place on the node.
        _ => &[],
    }
}

/// Compares a value that both have.
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    read: Option<T>,
    written: Option<T>,
) -> Result<(), TestCaseError> {
    if let (Some(read), Some(written)) = (read, written) {
        prop_assert_eq!(read, written, "{}", what);
    }
    Ok(())
}

fn check(case: &Case, place: &ClusterInfo, own: &Vars) -> Result<(), TestCaseError> {
    let Case { set, .. } = *case;
    let read = ClusterInfo::from_vars(own.clone());
    if set == Target::OneCcl {
        let said = match &read {
            Ok(info) => format!("{:?}", info.findings()),
            Err(error) => error.to_string(),
        };
        prop_assert!(said.contains("neither the rank nor the world size"), "{own:?}: {said}");
        return Ok(());
    }
    // Open MPI's and torchrun's ranks all have a local size, which these programs do not need.
    if place.local_world_size().is_none()
        && let Err(error) = &read
    {
        let missing = match set {
            Target::Jax => "OMPI_COMM_WORLD_LOCAL_SIZE is not set",
            _ => "LOCAL_WORLD_SIZE is not set",
        };
        let is_said = error.to_string().contains(missing);
        prop_assert!(
            [Target::Jax, Target::Lightning].contains(&set) && is_said,
            "{own:?}: {error}"
        );
        return Ok(());
    }
    let info = read.map_err(|error| TestCaseError::fail(format!("{own:?}: {error}")))?;
    prop_assert_eq!(
        (info.rank(), info.world_size()),
        (place.rank(), place.world_size()),
        "{:?}",
        own
    );
    if place.world_size() > 1 {
        prop_assert!(launchers(set).contains(&info.launcher()), "{own:?}: {}", info.launcher());
    }
    // TensorFlow and MLX number the ranks of a host by the ports where they listen.
    let in_blocks = place
        .local_world_size()
        .is_some_and(|size| place.local_rank() == Some(place.rank().index() % size));
    if in_blocks || ![Target::TensorFlow, Target::Mlx].contains(&set) {
        same("local rank", info.local_rank(), place.local_rank())?;
    }
    same("local size", info.local_world_size(), place.local_world_size())?;
    same("node", info.node_rank(), place.node_rank())?;
    same("nodes", info.node_count(), place.node_count())?;
    let is_one_node = info.local_world_size() == Some(info.world_size());
    match (info.master_addr(), place.master_addr()) {
        // The first node of mistral.rs has no address of its own, and one node needs none. A list of
        // all ranks has the launcher's name of the first host.
        (Ok(host), Ok(expected)) => prop_assert!(
            host == expected
                || is_one_node
                || host.to_string() == "0.0.0.0"
                || place.hosts().is_some_and(|hosts| hosts.first() == Some(host)),
            "{own:?}: {host}, not {expected}"
        ),
        (Err(_), _) => {
            let codes: Vec<_> = info.findings().iter().map(|finding| finding.code).collect();
            prop_assert!(codes.contains(&"master-unknown"), "{own:?}: {codes:?}");
        }
        (Ok(_), Err(_)) => {}
    }
    let is_named = own.iter().any(|(name, _)| info.provenance().master_port.starts_with(name));
    if is_named {
        prop_assert_eq!(info.master_port(), place.master_port(), "{:?}", own);
    }
    let tells_local = [Target::Torch, Target::DeepSpeed, Target::Lightning, Target::Paddle];
    if tells_local.contains(&set) {
        prop_assert_eq!(info.local_rank(), place.local_rank());
        prop_assert_eq!(info.local_world_size(), place.local_world_size());
    }
    if [Target::Lamellar, Target::TensorFlow].contains(&set) {
        prop_assert!(info.local_world_size().is_some(), "{own:?}");
    }
    let tells_master = [Target::MindSpore, Target::TensorFlow, Target::Paddle, Target::Mlx];
    if tells_master.contains(&set) || ON_TORCH.contains(&set) {
        prop_assert!(info.master_addr().is_ok(), "{own:?}");
    }
    Ok(())
}

#[test]
fn what_mpienv_writes_for_any_program_it_reads() {
    const CASES: u32 = 10_000;
    let config =
        ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let read: RefCell<BTreeMap<&str, [u32; 2]>> = RefCell::default();
    let result = TestRunner::new(config).run(&any_case(), |case| {
        let place = case.place();
        let Some((own, _file)) = case.own(&place) else { return Ok(()) };
        let mut read = read.borrow_mut();
        let of_set = read.entry(case.set.name()).or_default();
        of_set[usize::from(place.world_size() > 1)] += 1;
        check(&case, &place, &own)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let read = read.into_inner();
    println!("places read, of one process and of several: {read:?}");
    assert_eq!(read.len(), Target::ALL.len());
    assert!(read.values().all(|[one, several]| *one > 10 && *several > 50), "{read:?}");
}

/// Without PyTorch's variables, what DeepSpeed and Lightning read besides is never taken for a
/// process by itself in silence.
#[test]
fn what_three_programs_read_besides_pytorchs_variables_is_not_alone_in_silence() {
    let job = Job::slurm().nodes(2).per_node(2).build().unwrap();
    let info = ClusterInfo::from_vars(job.environment(3).unwrap()).unwrap();
    for set in [Target::DeepSpeed, Target::Lightning] {
        let exports = info.exports_for(set).unwrap();
        let own = set.variables().filter_map(|it| Some((it.name, exports.get(it.name)?)));
        match ClusterInfo::from_vars(own) {
            Ok(alone) => assert_eq!(alone.findings()[0].code, "place-unknown", "{set:?}"),
            Err(error) => assert!(error.to_string().contains("RANK is not set"), "{error}"),
        }
    }
}
