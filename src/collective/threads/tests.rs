use super::*;

const LONG: Duration = Duration::from_secs(1200);

#[test]
fn sums_are_the_same_bits_on_every_rank() {
    let sums = run(4, LONG, |rank| {
        let own = rank.rank().index() as f32;
        let mut last = Vec::new();
        for round in 0..100 {
            last = vec![0.1 + own * 1e7, own, round as f32];
            rank.all_reduce_sum(&mut last).unwrap();
        }
        last
    })
    .unwrap();
    assert_eq!(sums[0][1..], [6.0, 396.0]);
    assert!(sums.iter().all(|sum| sum == &sums[0]));
}

#[test]
fn every_rank_gets_what_the_others_bring() {
    let seen = run(3, LONG, |rank| {
        let own = rank.rank().index() as u8;
        let all = rank.all_gather(&vec![own; usize::from(own)]).unwrap();
        let mut word = if own == 2 { b"from two".to_vec() } else { Vec::new() };
        rank.broadcast(&mut word, 2).unwrap();
        rank.barrier().unwrap();
        (all, word)
    })
    .unwrap();
    let expected = (vec![vec![], vec![1], vec![2, 2]], b"from two".to_vec());
    assert!(seen.iter().all(|one| *one == expected), "{seen:?}");
}

#[test]
fn a_split_makes_groups_ordered_by_key() {
    let sums = run(6, LONG, |rank| {
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
    let results = run(4, LONG, |rank| {
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
fn a_reduce_scatter_gives_each_rank_its_part_of_the_sum() {
    let parts = run(2, LONG, |rank| {
        let own = rank.rank().index() as f32;
        rank.reduce_scatter_sum(&[1.0_f32, 2.0 + own, 3.0, 4.0 + own]).unwrap()
    })
    .unwrap();
    assert_eq!(parts, [[2.0, 5.0], [6.0, 9.0]]);
}

#[test]
fn an_all_to_all_brings_every_rank_its_parts() {
    let parts = run(3, LONG, |rank| {
        let own = rank.rank().index() as u8;
        rank.all_to_all(&(0..3).map(|to| vec![own, to]).collect::<Vec<_>>()).unwrap()
    })
    .unwrap();
    for (own, parts) in (0..3).zip(parts) {
        assert_eq!(parts, [[0, own], [1, own], [2, own]]);
    }
}

#[test]
fn a_rank_that_ends_is_named() {
    let results =
        run(3, LONG, |rank| if rank.rank().index() == 1 { Ok(()) } else { rank.barrier() })
            .unwrap();
    for result in [&results[0], &results[2]] {
        assert_eq!(
            result.as_ref().unwrap_err().to_string(),
            "rank 1 on this process is lost: it exited"
        );
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let mut ranks = group(2, Duration::from_millis(50)).unwrap();
    let error = Transport::barrier(&mut ranks[0]).unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 1 on this process did not come within 0.05 s: it hangs, is cut off, or was never started"
    );
}

#[test]
fn a_rank_that_brings_another_length_is_named() {
    let results = run(2, LONG, |rank| {
        rank.all_reduce_sum(&mut vec![1.0_f32; 3 + rank.rank().index() as usize])
    })
    .unwrap();
    let error = results[0].as_ref().unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 1 brought 4 numbers to a sum of 3: all ranks must run the same program with the same options"
    );
}
