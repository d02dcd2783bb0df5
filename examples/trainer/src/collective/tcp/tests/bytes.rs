//! What a rank really writes to its connections, beside what plans count.

use crate::collective::tcp::peer::HEAD;
use crate::quickstart::data;
use crate::sharding::execute::{Executor, State};
use crate::sharding::init::Init;
use crate::sharding::network::Chain;
use crate::sharding::plan::{Collectives, Plan, Terms};

use super::*;

const STEPS: u64 = 3;

/// The quick start on 8 ranks, its first product cut so.
fn quick_start(strategy: &str, collectives: Collectives) -> Plan {
    let chain = Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16);
    let mut network = chain.mse("loss");
    network.shard("matmul", strategy.parse().unwrap()).unwrap();
    let terms = Terms { world: 8, data_cut: 8, collectives, learning_rate: 0.2, momentum: 0.1 };
    Plan::new(&network, &terms).unwrap()
}

/// What each rank of a plan wrote in a step, and what it learnt.
fn trained(plan: &Plan) -> Vec<(u64, State<f32>)> {
    ranks(8, |mut tcp| {
        let mut state = State::new(Init::Normal { seed: 1 }.parameters(plan, tcp.rank().index()));
        let mut executor = Executor::new(plan, "", &mut tcp).unwrap();
        let (samples, labels) = data::draw();
        let before = tcp.group.written();
        for _ in 0..STEPS {
            executor.step(&mut state, &samples, &labels).unwrap();
        }
        let written = tcp.group.written() - before;
        assert_eq!(written % STEPS, 0);
        (written / STEPS, state)
    })
}

#[test]
fn a_step_of_the_quick_start_writes_the_bytes_that_the_readme_says() {
    let readme = include_str!("../../../../README.md");
    // Gathers: 3 times 256 + 128 + 128 bytes to 3 ranks, each after 8 bytes of length. Sums: 512 bytes to 3 ranks, twice;
    // the loss to 7; the gradients' 768 to 1.
    let compat = (3 * (256 + 128 + 128 + 3 * 8) + 2 * 3 * 512 + 7 * 4 + 768, 3 * 6 + 2 * 3 + 7 + 1);
    // Parts of the samples, and of the sums, instead.
    let min = (3 * 64 + 3 * (128 + 128 + 2 * 8) + 2 * 3 * 128 + 7 * 4 + 768, 3 + 2 * 6 + 2 * 3 + 7 + 1);
    for (name, collectives, (bytes, messages)) in
        [("compat", Collectives::Compat, compat), ("min", Collectives::Min, min)]
    {
        for (written, _) in trained(&quick_start("((2,4),(4,1))", collectives)) {
            assert_eq!(written, bytes + messages * HEAD as u64, "{name}");
        }
        let row = format!("| `{name}` over TCP | {bytes} | {messages} | {} |", bytes + messages * HEAD as u64);
        assert!(readme.contains(&row), "{row}");
    }
}

#[test]
fn min_never_writes_more_than_compat_and_learns_the_same_bits() {
    for strategy in
        ["((2,4),(4,1))", "((2,1),(1,4))", "((8,1),(1,1))", "((2,2),(2,2))", "((1,8),(8,1))", "((4,1),(1,1))"]
    {
        let [compat, min] = [Collectives::Compat, Collectives::Min].map(|by| trained(&quick_start(strategy, by)));
        for ((much, expected), (little, state)) in compat.iter().zip(&min) {
            assert!(little <= much, "{strategy}: {little} instead of {much}");
            assert!(state == expected, "{strategy}");
        }
    }
}

#[test]
fn parts_of_a_sum_are_sent_alone_and_have_its_bits_where_sums_are_small() {
    for (size, length) in [(1, 5), (2, 0), (3, 300), (4, 16_384), (4, 3), (5, 40_000), (3, 3 * PIECE)] {
        let small = 4 * length <= DIRECT_EACH;
        let parts = ranks(size, |mut tcp| {
            let own = tcp.rank().index();
            let values = numbers(own, length);
            let before = tcp.group.written();
            let part = tcp.reduce_scatter_sum(&values).unwrap();
            let others = u64::from(size - 1);
            let each = (length / size as usize * 4 + HEAD) as u64;
            assert_eq!(tcp.group.written() - before, others * each);
            assert_eq!(tcp.reduce_scatter_sum(&values).unwrap(), part, "another run");
            let mut sum = values;
            tcp.all_reduce_sum(&mut sum).unwrap();
            let start = part.len() * own as usize;
            (part.clone(), sum[start..start + part.len()].to_vec())
        });
        for (rank, (part, of_the_sum)) in (0..).zip(&parts) {
            assert_eq!(part.len(), length / size as usize);
            if small {
                assert_eq!(part, of_the_sum, "{size} ranks, {length} numbers, rank {rank}");
            }
            for (number, other) in part.iter().zip(of_the_sum) {
                assert!((number - other).abs() <= 1e-5 * number.abs().max(100.0), "{number} {other}");
            }
        }
    }
}

#[test]
fn an_all_to_all_sends_each_rank_its_part_alone() {
    let all = ranks(4, |mut tcp| {
        let own = tcp.rank().index() as u8;
        let parts: Vec<_> = (0..4).map(|to| vec![16 * own + to; 1000]).collect();
        let before = tcp.group.written();
        let heard = tcp.all_to_all(&parts).unwrap();
        assert_eq!(tcp.group.written() - before, 3 * (1000 + HEAD as u64));
        heard
    });
    for (own, heard) in (0..).zip(all) {
        let expected: Vec<_> = (0..4).map(|from| vec![16 * from + own; 1000]).collect();
        assert_eq!(heard, expected);
    }
}

#[test]
fn ranks_that_bring_different_lengths_to_parts_of_a_sum_are_named() {
    let errors =
        ranks(2, |mut tcp| tcp.reduce_scatter_sum(&vec![1.0; 4 + 2 * tcp.rank().index() as usize]).unwrap_err());
    for (own, error) in (0u32..).zip(&errors) {
        match error {
            CollectiveError::Length { rank, .. } => assert_eq!(*rank, 1 - own),
            CollectiveError::Lost { rank, reason, .. } => {
                assert!(*rank == 1 - own && reason.contains("numbers to a sum of"), "{error}");
            }
            _ => panic!("{error}"),
        }
    }
}
