//! How cores are divided among the ranks of a node, on the machines of `tests/machines`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::machine::{Machine, list, names};
use crate::support::tool::{inherited, is_there};
use mpienv::{Bind, ClusterInfo, Environment};
use mpienv_launch::seam::{Core, CoreShare, Cpus, Node, TooFew, Topology, divide, nodes_of};
use proptest::prelude::*;

const SIZES: [usize; 4] = [1, 2, 4, 8];

/// Each machine's cores, and the CPUs that processes may use.
fn topologies() -> Vec<(Topology, Cpus)> {
    let machine = |name: &String| {
        let machine = Machine::new(name);
        (machine.topology(), machine.allowed)
    };
    names().iter().map(machine).collect()
}

/// The shares of the workers that `launch --bind` would start on a machine.
fn launched(
    machine: &Machine,
    bind: Bind,
    workers: usize,
    vars: &[(&str, &str)],
) -> Result<Vec<CoreShare>, String> {
    let vars = || vars.iter().copied().chain([("PATH", "/bin")]);
    let environment = Environment::from_vars(vars());
    let info = ClusterInfo::from_vars(vars()).unwrap();
    let node = Node {
        bind,
        topology: machine.topology(),
        allowed: machine.allowed.clone(),
        environment: &environment,
    };
    let workers = info.workers(u32::try_from(workers).unwrap()).unwrap();
    let division = node.among_workers(&workers).map_err(|error| error.to_string())?;
    Ok(division.shares)
}

fn cpus_of(shares: &[CoreShare]) -> Vec<String> {
    shares.iter().map(|share| share.cpus.to_string()).collect()
}

/// One line for each machine, rule and local size.
fn table() -> String {
    let mut table = String::new();
    for name in names() {
        let machine = Machine::new(&name);
        for bind in [Bind::Core, Bind::Numa, Bind::Device] {
            for size in SIZES {
                let shares = match launched(&machine, bind, size, &[]) {
                    Ok(shares) => cpus_of(&shares).join(" | "),
                    // The reason, without the name of the option and the remedy.
                    Err(_) if machine.topology().devices.all.is_empty() => continue,
                    Err(error) => error.split(": ").skip(1).collect::<Vec<_>>().join(": "),
                };
                table += &format!("{name} {} {size}: {shares}\n", bind.name());
            }
        }
    }
    table
}

#[test]
fn each_machines_cores_are_divided_as_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/shares.table");
    let (found, expected) = (table(), fs::read_to_string(&path).unwrap_or_default());
    if found != expected && inherited("MPIENV_GENERATE").is_some() {
        return fs::write(path, found).unwrap();
    }
    assert_eq!(found, expected, "MPIENV_GENERATE=1 writes shares.table again");
}

/// torchrun divides the cores of a NUMA node among all devices there, even those without a rank.
#[test]
fn a_rank_gets_what_torchrun_gives_it_or_more_on_the_same_numa_node() {
    let mut torchrun: BTreeMap<(&str, &str), Vec<Cpus>> = BTreeMap::new();
    let text = include_str!("../machines/torchrun.table");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        torchrun.entry((words[0], words[1])).or_default().push(list(words[3]));
    }
    let mut compared = 0;
    for ((name, mode), choice) in &torchrun {
        let machine = Machine::new(name);
        for size in 1..=choice.len() {
            let ours = launched(&machine, Bind::Device, size, &[]).unwrap();
            for (rank, theirs) in choice.iter().enumerate().take(size) {
                let our = &ours[rank].cpus;
                let nodes = |cpus| nodes_of(&machine.topology().cores_of(cpus));
                match *mode {
                    "exclusive" if size == choice.len() => assert_eq!(our, theirs, "{name} {rank}"),
                    "exclusive" => assert!(our.len() >= theirs.len(), "{name} {rank} of {size}"),
                    // torchrun's ranks share these.
                    _ => assert!(our.and(theirs) == *our, "{name} {mode} {rank}"),
                }
                if *mode != "socket" {
                    assert_eq!(nodes(our), nodes(theirs), "{name} {mode} {rank}");
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

/// The sets of CPUs that hwloc finds for a type of object.
fn of_hwloc(machine: &Machine, kind: &str) -> BTreeSet<Cpus> {
    let hwloc = |words: &[&str]| {
        let mut command = Command::new("hwloc-calc");
        command.env("HWLOC_FSROOT", machine.root()).env("HWLOC_COMPONENTS", "linux,stop");
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "{} {words:?}: {output:?}", machine.name);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let count: u32 = hwloc(&["--number-of", kind, "all"]).parse().unwrap();
    let cpus = |index| {
        let object = format!("{kind}:{index}");
        list(&hwloc(&["--physical-output", "--intersect", "PU", &object]))
    };
    (0..count).map(cpus).filter(|cpus| !cpus.is_empty()).collect()
}

#[test]
fn hwloc_finds_the_same_cores_and_numa_nodes_and_no_share_splits_one() {
    if !is_there("hwloc-calc") {
        return;
    }
    for name in names() {
        let machine = Machine::new(&name);
        let topology = machine.topology();
        let ours =
            |cores: &[Core]| cores.iter().map(|core| core.cpus.clone()).collect::<BTreeSet<_>>();
        let (cores, nodes) = (of_hwloc(&machine, "core"), of_hwloc(&machine, "numanode"));
        assert_eq!(ours(&topology.cores), cores, "{name}");
        let node = |number: &u32| {
            let here = topology.cores.iter().filter(|core| core.node == Some(*number));
            here.flat_map(|core| core.cpus.iter()).collect::<Cpus>()
        };
        let own: BTreeSet<Cpus> = topology.nodes().iter().map(node).collect();
        assert_eq!(own, nodes, "{name}");
        for size in SIZES {
            for share in launched(&machine, Bind::Core, size, &[]).unwrap() {
                let is_whole = |core: &&Cpus| {
                    let allowed = core.and(&machine.allowed);
                    allowed.and(&share.cpus).is_empty() || allowed.and(&share.cpus) == allowed
                };
                assert!(cores.iter().all(|core| is_whole(&core)), "{name} {size}: {}", share.cpus);
                let largest = nodes.iter().map(|node| node.and(&machine.allowed).len()).max();
                let within = nodes.iter().filter(|node| !node.and(&share.cpus).is_empty()).count();
                let fits = machine.allowed.len() / size <= largest.unwrap_or(0);
                assert!(!fits || within <= 1, "{name} {size}: {}", share.cpus);
            }
        }
    }
}

#[test]
fn a_rank_gets_fewer_cores_rather_than_those_of_two_numa_nodes() {
    let mut machine = Machine::new("two_sockets");
    let shares =
        |machine: &Machine, ranks| cpus_of(&launched(machine, Bind::Core, ranks, &[]).unwrap());
    assert_eq!(shares(&machine, 3), ["0-3", "4-7", "8-15"]);
    assert_eq!(shares(&machine, 5), ["0-2", "3-5", "6-7", "8-11", "12-15"]);
    // A cpuset leaves one core of the second socket.
    machine.allowed = list("0-8");
    assert_eq!(shares(&machine, 2), ["0-3", "4-7"]);
    assert_eq!(shares(&machine, 9).len(), 9);
    // Without /sys, as in some containers, each CPU counts as a core.
    let bare = Node {
        bind: Bind::Core,
        topology: Topology::default(),
        allowed: list("0-3"),
        environment: &Environment::default(),
    };
    let workers = ClusterInfo::from_vars([("PATH", "/bin")]).unwrap().workers(2).unwrap();
    let division = bare.among_workers(&workers).unwrap();
    assert_eq!(cpus_of(&division.shares), ["0-1", "2-3"]);
}

#[test]
fn a_rank_without_a_device_gets_an_error_that_names_what_there_is() {
    let fails = |name: &str, workers, vars: &[(&str, &str)]| {
        launched(&Machine::new(name), Bind::Device, workers, vars).unwrap_err()
    };
    assert_eq!(
        fails("two_sockets", 2, &[]),
        "bind=\"device\": this host has no GPU of NVIDIA or AMD on its PCI bus: 16 cores and 2 \
         NUMA nodes; use core or numa instead"
    );
    assert!(
        fails("power9", 7, &[]).contains("rank 6 has no device 6; the visible devices are 0004:")
    );
    let uuid = fails("power9", 1, &[("CUDA_VISIBLE_DEVICES", "GPU-8932f937")]);
    assert!(uuid.contains("names devices by UUID, which PCI does not show"), "{uuid}");
    let none = fails("power9", 1, &[("CUDA_VISIBLE_DEVICES", "")]);
    assert!(none.contains("CUDA_VISIBLE_DEVICES shows no device"), "{none}");
    let far = fails("power9", 1, &[("CUDA_VISIBLE_DEVICES", "6")]);
    assert!(far.contains("CUDA_VISIBLE_DEVICES=6 names device 6, and PCI shows 6"), "{far}");
}

#[test]
fn a_list_of_visible_devices_is_followed_and_so_are_slurms_numbers() {
    let of = |vars: &[(&str, &str)]| launched(&Machine::new("power9"), Bind::Device, 2, vars);
    assert_eq!(cpus_of(&of(&[("CUDA_VISIBLE_DEVICES", "5,0")]).unwrap()), ["88-103", "0-15"]);
    // Both use the one that they see.
    assert_eq!(cpus_of(&of(&[("CUDA_VISIBLE_DEVICES", "4")]).unwrap()), ["88-95", "96-103"]);
    // Slurm hides devices 0 to 3, and CUDA counts those that are left.
    let renumbered = [("CUDA_VISIBLE_DEVICES", "0,1"), ("SLURM_STEP_GPUS", "2,3")];
    assert_eq!(cpus_of(&of(&renumbered).unwrap()), ["0-15", "88-103"]);
    let unknown = of(&[("CUDA_VISIBLE_DEVICES", "0,1"), ("SLURM_STEP_GPUS", "3,4,5")]);
    assert!(unknown.unwrap_err().contains("does not tell which of Slurm's devices 3,4,5"));
}

#[test]
fn devices_that_cuda_or_a_container_may_number_otherwise_are_an_error() {
    let machine = Machine::new("power9");
    machine.write("sys/bus/pci/devices/0006:00:00.0/device", "0x20b0");
    let error = launched(&machine, Bind::Device, 2, &[]).unwrap_err();
    assert!(error.contains("CUDA numbers the fastest first"), "{error}");
    let ordered = launched(&machine, Bind::Device, 2, &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    assert_eq!(cpus_of(&ordered.unwrap()), ["0-7", "8-15"]);

    let machine = Machine::new("power9");
    machine.write("dev/nvidia3", "");
    let error = launched(&machine, Bind::Device, 1, &[]).unwrap_err();
    assert!(error.contains("/dev has 1 of the host's 6 devices"), "{error}");
    // The driver's folder has only the devices of the container.
    machine.write("proc/driver/nvidia/gpus/0007:00:00.0/information", "Model: V100");
    assert_eq!(cpus_of(&launched(&machine, Bind::Device, 1, &[]).unwrap()), ["88-103"]);

    let machine = Machine::new("power9");
    machine.write("sys/bus/pci/devices/0004:05:00.0/numa_node", "-1");
    let error = launched(&machine, Bind::Device, 1, &[]).unwrap_err();
    assert!(
        error.contains("the firmware does not tell the NUMA node of the device at 0004:05:00.0"),
        "{error}"
    );
}

#[test]
fn ranks_whose_devices_share_a_numa_node_without_enough_cores_get_an_error() {
    let mut machine = Machine::new("power9");
    machine.allowed = list("0-7,88-103");
    let error = launched(&machine, Bind::Device, 6, &[]).unwrap_err();
    let expected = "3 ranks with a device on NUMA node 0, of which this process may use 2 cores \
                    (allowed CPUs: 0-7,88-103)";
    assert!(error.contains(expected), "{error}");
}

/// A rank that a launcher started, and its share with `exec --bind device`.
#[test]
fn a_rank_that_sees_only_its_device_shares_the_numa_node_with_its_other_devices() {
    let machine = Machine::new("dgx_h100");
    let share = |rank: &str, devices: &str| {
        let vars = [
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("CUDA_VISIBLE_DEVICES", devices),
        ];
        let environment = Environment::from_vars(vars);
        let info = ClusterInfo::from_vars(vars).unwrap();
        let (topology, allowed) = (machine.topology(), machine.allowed.clone());
        let node = Node { bind: Bind::Device, topology, allowed, environment: &environment };
        let (share, note) = node.of_this(&info).unwrap();
        (share.cpus.to_string(), share.cores, note.is_some())
    };
    assert_eq!(share("0", "0,1"), ("0-27,112-139".to_owned(), 28, false));
    assert_eq!(share("1", "0,1"), ("28-55,140-167".to_owned(), 28, false));
    assert_eq!(share("1", "0,7"), ("56-111,168-223".to_owned(), 56, false));
    assert_eq!(share("1", "7"), ("98-111,210-223".to_owned(), 14, true));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_two_ranks_share_a_core_while_another_is_idle(
        (topology, all) in prop::sample::select(topologies()),
        hidden in prop::collection::btree_set(0_u32..256, 0..200),
        ranks in 1_usize..150,
        homes in prop::collection::vec(0_usize..8, 150),
    ) {
        let allowed: Cpus = all.iter().filter(|cpu| !hidden.contains(cpu)).collect();
        let cores = topology.cores_of(&allowed);
        prop_assume!(!cores.is_empty());
        let nodes = nodes_of(&cores);
        let homes: Vec<u32> = homes[..ranks].iter().filter_map(|home| nodes.get(home % nodes.len().max(1)).copied()).collect();
        for bind in [Bind::Core, Bind::Numa, Bind::Device] {
            let near = bind == Bind::Device;
            let ranks = if near { homes.len() } else { ranks };
            let shares = match divide(&cores, ranks, bind, &homes) {
                Ok(shares) => shares,
                Err(TooFew { node, cores: few, ranks: many }) => {
                    prop_assert!(near && few < many && ranks <= cores.len() && nodes.contains(&node));
                    continue;
                }
            };
            prop_assert_eq!(shares.len(), ranks);
            let users = |core: &Core| shares.iter().filter(|share| !share.cpus.and(&core.cpus).is_empty()).count();
            let counts: Vec<usize> = cores.iter().map(users).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            for share in &shares {
                // Whole cores, all allowed.
                let own: Vec<&Core> = cores.iter().filter(|core| !core.cpus.and(&share.cpus).is_empty()).collect();
                let whole: Cpus = own.iter().flat_map(|core| core.cpus.iter()).collect();
                prop_assert_eq!(&whole, &share.cpus);
                prop_assert!(share.cores > 0 && own.len() == share.cores);
            }
            if ranks <= cores.len() {
                prop_assert!(*most <= 1 || *least >= 1 && bind == Bind::Numa, "{:?}", counts);
            } else if bind == Bind::Core {
                prop_assert!(most - least <= 1, "{:?}", counts);
            }
        }
    }
}
