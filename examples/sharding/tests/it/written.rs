//! What a rank actually writes to its connections, in addition to what plans count.

use std::thread;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, Group};
use mpienv_sharding::execute::{Executor, State};
use mpienv_sharding::init::Init;
use mpienv_sharding::network::Chain;
use mpienv_sharding::plan::{Collectives, Plan, Terms};
use mpienv_sharding::random::{Purpose, Stream};
use mpienv_sharding::tensor::Tensor;

use crate::support::port::free_port;

/// The bytes before each message: the header of a frame.
const HEAD: u64 = 28;
const STEPS: u64 = 3;

/// The quick start on 8 ranks, with this strategy for its first product.
fn quick_start(strategy: &str, collectives: Collectives) -> Plan {
    let chain =
        Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16);
    let mut network = chain.mse("loss");
    network.shard("matmul", strategy.parse().unwrap()).unwrap();
    let terms = Terms { world: 8, data_cut: 8, collectives, learning_rate: 0.2, momentum: 0.1 };
    Plan::new(&network, &terms).unwrap()
}

/// Runs ranks that are connected by TCP, each in its own thread.
fn ranks<T: Send>(size: u32, run: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let [size, port] = [size.to_string(), free_port().to_string()];
    thread::scope(|scope| {
        let start = |rank: u32| {
            let (run, rank) = (&run, rank.to_string());
            let vars =
                [("RANK", rank), ("WORLD_SIZE", size.clone()), ("MASTER_PORT", port.clone())];
            scope.spawn(move || {
                let local =
                    [("LOCAL_RANK", vars[0].1.clone()), ("LOCAL_WORLD_SIZE", vars[1].1.clone())];
                let info = ClusterInfo::from_vars(vars.into_iter().chain(local)).unwrap();
                run(Group::builder(&info).backend(Backend::Tcp).connect().unwrap())
            })
        };
        let all: Vec<_> = (0..size.parse().unwrap()).map(start).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What each rank of a plan wrote in a step, and its final state.
fn trained(plan: &Plan) -> Vec<(u64, State)> {
    ranks(8, |mut group| {
        let mut state = State::new(Init::Normal { seed: 1 }.parameters(plan, group.rank().index()));
        let mut executor = Executor::new(plan, "", &mut group).unwrap();
        let mut random = Stream::new(1, Purpose::Digit(0));
        let mut rows = |columns: usize| {
            let numbers = (0..2 * columns).map(|_| random.uniform() as f32);
            Tensor::new(vec![2, columns], numbers.collect())
        };
        let (samples, labels) = (rows(32), rows(16));
        let before = group.bytes_sent().unwrap();
        for _ in 0..STEPS {
            executor.step(&mut state, &samples, &labels).unwrap();
        }
        let written = group.bytes_sent().unwrap() - before;
        assert_eq!(written % STEPS, 0);
        (written / STEPS, state)
    })
}

#[test]
fn a_step_of_the_quick_start_writes_the_bytes_that_the_readme_says() {
    let readme = include_str!("../../README.md");
    // Gathers: 256, 128 and 128 bytes to 3 ranks. Sums: 512 bytes to 3 ranks, twice; the loss to 7;
    // the gradients' 768 to 1.
    let compat = (3 * (256 + 128 + 128) + 2 * 3 * 512 + 7 * 4 + 768, 3 * 3 + 2 * 3 + 7 + 1);
    // Instead, parts of the samples and of the sums.
    let min = (3 * (64 + 128 + 128) + 2 * 3 * 128 + 7 * 4 + 768, 3 * 3 + 2 * 3 + 7 + 1);
    for (name, collectives, (bytes, messages)) in
        [("compat", Collectives::Compat, compat), ("min", Collectives::Min, min)]
    {
        for (written, _) in trained(&quick_start("((2,4),(4,1))", collectives)) {
            assert_eq!(written, bytes + messages * HEAD, "{name}");
        }
        let row =
            format!("| `{name}` over TCP | {bytes} | {messages} | {} |", bytes + messages * HEAD);
        assert!(readme.contains(&row), "{row}");
    }
}

#[test]
fn min_never_writes_more_than_compat_and_learns_the_same_bits() {
    for strategy in [
        "((2,4),(4,1))",
        "((2,1),(1,4))",
        "((8,1),(1,1))",
        "((2,2),(2,2))",
        "((1,8),(8,1))",
        "((4,1),(1,1))",
    ] {
        let [compat, min] =
            [Collectives::Compat, Collectives::Min].map(|by| trained(&quick_start(strategy, by)));
        for ((much, expected), (little, state)) in compat.iter().zip(&min) {
            assert!(little <= much, "{strategy}: {little} instead of {much}");
            assert!(state == expected, "{strategy}");
        }
    }
}
