//! Sharded training is equivalent to dense training: random networks, strategies and numbers of
//! ranks.

mod dense;
mod random_network;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::counting::counting;

use mpienv::collective::threads;
use mpienv_sharding::checkpoint::Checkpoint;
use mpienv_sharding::checkpoint::RunId;
use mpienv_sharding::exchange::Exchange;
use mpienv_sharding::execute::{Executor, State};
use mpienv_sharding::mesh::{Layout, Mesh};
use mpienv_sharding::plan::{Collectives, Feed, Instruction, Plan};
use mpienv_sharding::redistribute::Traffic;
use mpienv_sharding::redistribute::redistribute;
use mpienv_sharding::tensor::{Tensor, places};
use proptest::prelude::*;
use random_network::Case;

const LONG: Duration = Duration::from_secs(1200);
/// How far f32 may be from the reference in f64, relative to numbers above 1.
const TOLERANCE: f64 = 1e-6;

fn part(mesh: &Mesh, placed: &Instruction, whole: &Tensor, rank: u32) -> Tensor {
    let offset = placed.layout.offset(mesh, &placed.shape, rank);
    whole.cut(&offset, &placed.layout.local_shape(mesh, &placed.shape))
}

/// The results of a rank: its losses, its checkpoint, and what each step sent.
struct Ran {
    losses: Vec<f32>,
    checkpoint: Checkpoint,
    traffic: Vec<Traffic>,
}

/// Runs `steps` steps on threads, from whole parameters or a whole checkpoint.
fn run(case: &Case, plan: &Plan, from: Option<&Checkpoint>, steps: u64) -> Vec<Ran> {
    let mesh = &plan.mesh;
    threads::run(mesh.world(), LONG, |rank| {
        let own = rank.rank().index();
        let (mut group, counter) = counting(rank.split(0, own).unwrap());
        let mut executor = Executor::new(plan, "", &mut group).unwrap();
        let (mut state, run_id) = match from {
            Some(checkpoint) => (
                checkpoint.state(&PathBuf::from("whole"), plan, own).unwrap(),
                checkpoint.run_id(plan),
            ),
            None => {
                (State::cut_from(plan, own, &case.parameters), RunId::new(plan, &case.parameters))
            }
        };
        let _of_the_start = counter.take();
        let samples = part(mesh, plan.fed(Feed::Samples), &case.samples, own);
        let labels = part(mesh, plan.fed(Feed::Labels), &case.labels, own);
        let (mut losses, mut traffic) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            losses.push(executor.step(&mut state, &samples, &labels).unwrap());
            traffic.push(counter.take());
        }
        Ran { losses, checkpoint: Checkpoint::new(plan, own, &state, &run_id), traffic }
    })
    .unwrap()
}

/// All parts merged; fails if replicas differ in a bit.
fn merged(ran: &[Ran]) -> Checkpoint {
    let named =
        |(rank, ran): (usize, &Ran)| (PathBuf::from(rank.to_string()), ran.checkpoint.clone());
    Checkpoint::merge(&ran.iter().enumerate().map(named).collect::<Vec<_>>()).unwrap()
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let difference = (f64::from(*found) - expected).abs();
        assert!(
            difference <= TOLERANCE * expected.abs().max(1.0),
            "{what}: {found:?} instead of {expected}"
        );
    }
}

fn assert_dense(case: &Case, collectives: Collectives) {
    const STEPS: u64 = 3;
    let plan = case.plan(collectives);
    let dense = dense::train(case, STEPS);
    let ran = run(case, &plan, None, STEPS);
    for rank in &ran {
        assert_near(&rank.losses, &dense.losses, "loss");
        assert_eq!(rank.losses, ran[0].losses);
    }
    let whole = merged(&ran);
    for (parameter, expected) in case.network.parameters.iter().zip(&dense.parameters) {
        assert_near(&whole.tensor(&parameter.name).unwrap().data, expected, &parameter.name);
    }
}

/// What all ranks print alike: everything except the rank, where its slices begin and end, and who
/// is in its groups.
fn common(instructions: &str) -> Vec<String> {
    let mut lines = instructions.lines();
    let head = lines.next().unwrap();
    assert!(head.starts_with("# rank "), "{head}");
    let line = |line: &str| match line.split_once("{begin: ") {
        Some((before, rest)) => format!("{before}{}", rest.split_once('}').unwrap().1),
        None => match line.split_once("{group: ") {
            Some((before, rest)) => format!("{before}{}", rest.split_once(", ").unwrap().1),
            None => line.to_owned(),
        },
    };
    let rank_of = head.split_once(" of ").unwrap().1.to_owned();
    std::iter::once(rank_of).chain(lines.map(line)).collect()
}

/// Asserts that in each line, the printed groups of all ranks are disjoint, have the same size, and
/// contain their own rank.
fn assert_groups_are_whole(plan: &Plan) {
    let groups = |rank: u32| -> Vec<Vec<u32>> {
        let text = plan.instructions_of(rank);
        let groups =
            text.lines().filter_map(|line| line.split_once("{group: ")?.1.split_once(", "));
        groups
            .map(|(group, _)| group.split('-').map(|rank| rank.parse().unwrap()).collect())
            .collect()
    };
    let all: Vec<_> = (0..plan.mesh.world()).map(groups).collect();
    for (rank, groups) in (0..).zip(&all) {
        for (line, group) in groups.iter().enumerate() {
            assert!(group.contains(&rank), "rank {rank} is not in {group:?}");
            for &member in group {
                assert_eq!(&all[member as usize][line], group, "ranks {rank} and {member}");
            }
        }
    }
}

/// Asserts that each number of a parameter is in the parts of equally many ranks, and that parts
/// are identical or disjoint.
fn assert_parts_tile_parameters(plan: &Plan) {
    let (mesh, world) = (&plan.mesh, plan.mesh.world() as usize);
    for (parameter, layout) in plan.parameters() {
        let mut parts = BTreeMap::<Vec<usize>, usize>::new();
        for rank in 0..mesh.world() {
            *parts.entry(layout.offset(mesh, &parameter.shape, rank)).or_default() += 1;
        }
        let size = layout.local_shape(mesh, &parameter.shape);
        let mut holders = vec![0; parameter.shape.iter().product()];
        for (offset, ranks) in &parts {
            assert_eq!(*ranks, world / parts.len(), "{} at {offset:?}", parameter.name);
            for place in places(&parameter.shape, offset, &size) {
                holders[place] += 1;
            }
        }
        assert!(holders.iter().all(|&parts| parts == 1), "{}: {parts:?}", parameter.name);
    }
}

proptest! {
    // A case starts up to four groups of ranks. PROPTEST_CASES asks for more of them.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn losses_and_parameters_are_those_of_dense_training(case in random_network::case()) {
        for collectives in [Collectives::Compat, Collectives::Min] {
            assert_dense(&case, collectives);
        }
    }

    #[test]
    fn what_is_sent_is_what_was_planned(case in random_network::case()) {
        let mut planned = Vec::new();
        for collectives in [Collectives::Compat, Collectives::Min] {
            let plan = case.plan(collectives);
            planned.push(plan.traffic());
            for rank in run(&case, &plan, None, 2) {
                prop_assert_eq!(&rank.traffic, &vec![plan.traffic(); 2]);
            }
        }
        prop_assert!(planned[1].bytes <= planned[0].bytes, "{:?}", planned);
    }

    #[test]
    fn all_ranks_print_one_network_and_slices_of_their_own(case in random_network::case()) {
        for collectives in [Collectives::Compat, Collectives::Min] {
            let plan = case.plan(collectives);
            let first = plan.instructions_of(0);
            prop_assert_eq!(first.lines().count(), plan.instructions.len() + 3);
            for rank in 0..plan.mesh.world() {
                prop_assert_eq!(plan.text(rank).unwrap(), plan.graph() + &plan.instructions_of(rank));
                prop_assert_eq!(common(&plan.instructions_of(rank)), common(&first));
            }
            assert_groups_are_whole(&plan);
            assert_parts_tile_parameters(&plan);
        }
    }

    #[test]
    fn a_merged_checkpoint_resumes_under_any_strategy(case in random_network::case(), other in any::<u64>()) {
        let plan = case.plan(Collectives::Min);
        let half = merged(&run(&case, &plan, None, 2));
        let whole = merged(&run(&case, &plan, None, 4));
        // The same strategy: the same bits.
        prop_assert_eq!(&merged(&run(&case, &plan, Some(&half), 2)), &whole);
        // Another strategy and number of ranks: the same numbers up to rounding.
        let case = case.cut_anew(other);
        let plan = case.plan(Collectives::Compat);
        let resumed = merged(&run(&case, &plan, Some(&half), 2));
        prop_assert_eq!(resumed.steps, 4);
        for parameter in &case.network.parameters {
            for name in [parameter.name.clone(), format!("{}.momentum", parameter.name)] {
                let (found, expected) = (resumed.tensor(&name).unwrap(), whole.tensor(&name).unwrap());
                let expected: Vec<f64> = expected.data.iter().copied().map(f64::from).collect();
                assert_near(&found.data, &expected, &name);
            }
        }
    }

    #[test]
    fn redistribution_brings_every_part_to_its_place(
        (mesh, from, to) in random_network::layouts(),
        extra in 1..3usize,
    ) {
        let mesh = Mesh::new(mesh);
        let (from, to): (Layout, Layout) = (from, to);
        let world = mesh.world() as usize;
        let shape = vec![extra * world, world];
        let count: usize = shape.iter().product();
        let whole = Tensor::new(shape.clone(), (0..count).map(|number| number as f32).collect());
        let steps = redistribute(&from, &to);
        for steps in [steps.clone(), steps.into_iter().flat_map(|step| step.lowered()).collect()] {
            threads::run(mesh.world(), LONG, |rank| {
                let own = rank.rank().index();
                let mut exchange = Exchange::new(&mesh, &steps, rank).unwrap();
                let cut = |layout: &Layout| {
                    whole.cut(&layout.offset(&mesh, &shape, own), &layout.local_shape(&mesh, &shape))
                };
                let mut value = cut(&from);
                // Parts of sums: powers of 2 are added exactly.
                let (index, size) = (mesh.index(own, &from.partial), mesh.size(&from.partial));
                let share = if index + 1 < size { 0.5f32.powi(index as i32 + 1) } else { 0.5f32.powi(index as i32) };
                value.data.iter_mut().for_each(|number| *number *= share);
                for step in &steps {
                    let mut moved = Tensor::default();
                    exchange.apply(step, &value, &mut moved).unwrap();
                    value = moved;
                }
                assert_eq!(value, cut(&to), "{mesh} {from} {to} {steps:?}");
            }).unwrap();
        }
    }
}
