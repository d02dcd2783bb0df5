//! What a rank writes to its connections.

use super::*;
use crate::collective::tcp::peer::HEAD;

#[test]
fn parts_of_a_sum_are_sent_alone_and_have_its_bits() {
    for (size, length) in [(1, 5), (2, 0), (3, 300), (4, 16_384), (4, 3), (5, 40_000), (3, PIECE)] {
        let parts = ranks_with(false, PLENTY, size, |mut tcp| {
            let own = tcp.rank().index();
            let values = numbers(own, length);
            let before = tcp.members.written();
            let part = tcp.reduce_scatter_sum(&values).unwrap();
            let all = 4 * (length - part.len()) + HEAD * (size as usize - 1);
            assert_eq!(tcp.members.written() - before, all as u64);
            assert_eq!(tcp.reduce_scatter_sum(&values).unwrap(), part, "another run");
            let mut sum = values;
            tcp.all_reduce_sum(&mut sum).unwrap();
            let whole = Numbers::new(&mut sum).part(own as usize, size as usize);
            assert_eq!(
                part,
                sum[whole.start / 4..whole.end / 4],
                "{size} ranks, {length} numbers, rank {own}"
            );
            part
        });
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), length);
    }
}

#[test]
fn an_all_to_all_sends_each_rank_its_part_alone() {
    let all = ranks_with(false, PLENTY, 4, |mut tcp| {
        let own = tcp.rank().index() as u8;
        let parts: Vec<_> = (0..4).map(|to| vec![16 * own + to; 1000]).collect();
        let before = tcp.members.written();
        let heard = tcp.all_to_all(&parts).unwrap();
        assert_eq!(tcp.members.written() - before, 3 * (1000 + HEAD as u64));
        heard
    });
    for (own, heard) in (0..).zip(all) {
        let expected: Vec<_> = (0..4).map(|from| vec![16 * from + own; 1000]).collect();
        assert_eq!(heard, expected);
    }
}

#[test]
fn ranks_that_bring_different_lengths_to_parts_of_a_sum_are_named() {
    let errors = ranks(2, |mut tcp| {
        tcp.reduce_scatter_sum(&vec![1.0; 4 + 2 * tcp.rank().index() as usize]).unwrap_err()
    });
    for (own, error) in (0u32..).zip(&errors) {
        match error {
            CollectiveError::Length { rank, .. } => assert_eq!(*rank, 1 - own),
            CollectiveError::Disagree { rank, difference } => {
                assert!(*rank == 1 - own && difference.contains("numbers to a sum of"), "{error}");
            }
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn more_bytes_than_a_piece_come_piece_by_piece() {
    for length in [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
        let all = ranks(3, |mut tcp| {
            let own = tcp.rank().index() as u8;
            // Some ranks bring fewer pieces than others.
            let gathered = tcp.all_gather(&vec![own; length / (usize::from(own) + 1)]).unwrap();
            let mut bytes = if own == 1 { vec![9; length] } else { vec![own; 3] };
            tcp.broadcast(&mut bytes, 1).unwrap();
            (gathered, bytes)
        });
        for (gathered, bytes) in all {
            assert!(bytes == vec![9; length]);
            assert!(
                (0_u8..3)
                    .zip(gathered)
                    .all(|(rank, row)| row == vec![rank; length / (usize::from(rank) + 1)])
            );
        }
    }
}

#[test]
fn a_rank_that_announces_more_bytes_than_exist_ends_the_group() {
    let errors = ranks(2, |mut tcp| {
        if tcp.rank().index() == 0 {
            let length = (u64::MAX / 2).to_le_bytes();
            let mut lengths = [0; 16];
            let inbox = &mut Rows { bytes: &mut lengths, length: 8 };
            tcp.members.transfer(Call::broadcast(0), |_| Some(&length), inbox).unwrap();
            return tcp.barrier().unwrap_err().to_string();
        }
        let first = tcp.broadcast(&mut Vec::new(), 0).unwrap_err().to_string();
        let again = tcp.barrier().unwrap_err().to_string();
        assert!(again.contains("in an earlier call"), "{again}");
        first
    });
    let announced = "it announced 9223372036854775807 bytes, more than rank 1 can allocate";
    assert!(errors[1].contains(announced), "{errors:?}");
    assert!(errors[0].contains(&format!("gave up on this rank: {announced}")), "{errors:?}");
}
