//! What a rank writes to its connections.

use super::*;
use crate::collective::tcp::frame::HEAD;

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
fn a_rank_that_announces_more_bytes_than_exist_ends_the_group() {
    let errors = ranks(2, |mut tcp| {
        if tcp.rank().index() == 0 {
            let length = (u64::MAX / 2).to_le_bytes();
            let mut others = [0; 8];
            let exchange = vec![Exchange::default(), Exchange::both(&length, &mut others)];
            tcp.members.transfer(Call::broadcast(0), exchange).unwrap();
            return tcp.meet(Call::BARRIER).unwrap_err().to_string();
        }
        let first = tcp.broadcast(&mut Vec::new(), 0).unwrap_err().to_string();
        let again = tcp.meet(Call::BARRIER).unwrap_err().to_string();
        assert!(again.contains("in an earlier call"), "{again}");
        first
    });
    let announced = "it announced 9223372036854775807 bytes, more than rank 1 can allocate";
    assert!(errors[1].contains(announced), "{errors:?}");
    assert!(errors[0].contains(&format!("gave up on this rank: {announced}")), "{errors:?}");
}
