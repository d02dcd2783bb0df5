//! What a rank writes to its connections.

use super::*;
use crate::tcp::frame::HEAD;

#[test]
fn parts_of_a_sum_are_sent_alone() {
    for (size, length) in [(1, 5), (2, 0), (3, 300), (4, 16_384), (4, 3), (5, 40_000), (3, PIECE)] {
        ranks_with(false, PLENTY, size, |tcp| {
            let mut group = Group::new(Box::new(tcp));
            let values = numbers(group.rank().index(), length);
            let before = group.bytes_sent().unwrap();
            let part = group.reduce_scatter_sum(&values).unwrap();
            let all = 4 * (length - part.len()) + HEAD * (size as usize - 1);
            assert_eq!(group.bytes_sent().unwrap() - before, all as u64);
        });
    }
}

#[test]
fn an_all_to_all_sends_each_rank_its_part_alone() {
    let all = ranks_with(false, PLENTY, 4, |tcp| {
        let mut group = Group::new(Box::new(tcp));
        let own = group.rank().index() as u8;
        let parts: Vec<_> = (0..4).map(|to| vec![16 * own + to; 1000]).collect();
        let before = group.bytes_sent().unwrap();
        let heard = group.all_to_all(&parts).unwrap();
        assert_eq!(group.bytes_sent().unwrap() - before, 3 * (1000 + HEAD as u64));
        heard
    });
    for (own, heard) in (0..).zip(all) {
        let expected: Vec<_> = (0..4).map(|from| vec![16 * from + own; 1000]).collect();
        assert_eq!(heard, expected);
    }
}

#[test]
fn a_rank_that_announces_more_bytes_than_exist_ends_the_group() {
    let errors = ranks(2, |mut tcp| {
        if tcp.rank().index() == 0 {
            let length = (u64::MAX / 2).to_le_bytes();
            let exchange = vec![Exchange::default(), Exchange::both(&length, &mut [])];
            tcp.members.transfer(Call::broadcast(0), exchange).unwrap();
            return tcp.meet(Call::BARRIER).unwrap_err().to_string();
        }
        let mut group = Group::new(Box::new(tcp));
        let first = group.broadcast_bytes(&mut Vec::new(), 0).unwrap_err().to_string();
        let again = group.barrier().unwrap_err().to_string();
        assert!(again.contains("in an earlier call"), "{again}");
        first
    });
    let announced = "it announced 9223372036854775807 bytes, more than this rank can allocate";
    assert!(errors[1].contains(announced), "{errors:?}");
    assert!(errors[0].contains(&format!("gave up on this rank: {announced}")), "{errors:?}");
}
