use super::*;
use crate::tests::PLENTY;

#[test]
fn a_split_makes_groups_ordered_by_key() {
    let sums = run(6, PLENTY, |rank| {
        let own = rank.rank().index();
        // The same colors twice, in reverse rank order: 4 2 0 and 5 3 1.
        let mut groups =
            [rank.split(own % 2, 9 - own).unwrap(), rank.split(own % 2, 9 - own).unwrap()];
        let mut sum = [0.0_f32];
        for group in &mut groups {
            sum = [own as f32];
            group.all_reduce_sum(&mut sum).unwrap();
        }
        rank.barrier().unwrap();
        let inner = groups[0].split(0, 0).unwrap();
        (
            groups[1].rank().index(),
            sum[0],
            groups[0].all_gather(&[own as u8]).unwrap().concat(),
            inner.rank(),
        )
    })
    .unwrap();
    for (own, (position, sum, all, inner)) in (0..6).zip(sums) {
        let expected = if own % 2 == 0 { (6.0, [4, 2, 0]) } else { (9.0, [5, 3, 1]) };
        assert_eq!(
            (position, sum, all.as_slice()),
            (2 - own / 2, expected.0, &expected.1[..]),
            "{own}"
        );
        assert_eq!(inner, Rank::new(position, 3).unwrap());
    }
}

#[test]
fn a_rank_that_ends_is_named_by_its_first_number_in_a_split_group() {
    let results = run(4, PLENTY, |rank| {
        let own = rank.rank().index();
        let mut group = rank.split(own % 2, own).unwrap();
        if own == 3 { Ok(()) } else { group.barrier() }
    })
    .unwrap();
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(
        results[1].as_ref().unwrap_err().to_string(),
        "rank 3 on this process is lost: it exited"
    );
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let mut ranks = group(2, Duration::from_millis(50)).unwrap();
    let error = ranks[0].meet(Call::BARRIER).unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 1 on this process did not arrive within 0.05 s: it hangs, is cut off, or needs a longer timeout"
    );
}

#[test]
fn the_others_learn_that_a_rank_has_panicked() {
    let mut ranks = group(2, PLENTY).unwrap();
    let mut first = Group::from(ranks.remove(0));
    let second = Group::from(ranks.remove(0));
    let panics = std::thread::spawn(move || {
        let _group = second;
        panic!("the matrix is singular");
    });
    let error = first.barrier().unwrap_err();
    assert_eq!(error.to_string(), "rank 1 on this process is lost: it panicked");
    assert!(panics.join().is_err());
}
