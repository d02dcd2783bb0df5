//! What ranks learn that do not make the same calls, or whose arguments cannot be used.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{CALLS, Made, RINGS, is_named};
use super::measured::longer_than;
use super::{OVER, PLENTY, SHARED, TCP, over_each, over_each_owned, over_each_within, over_one};
use crate::{CollectiveError, Group, Reduction, threads};

/// Waits until so many ranks have been counted.
fn wait_for(ranks: u32, counted: &AtomicU32) {
    while counted.load(Ordering::Relaxed) < ranks {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ranks_that_call_different_operations_are_named_with_what_they_called() {
    for (over, errors) in over_each(3, |group| match group.rank().index() {
        2 => group.barrier().unwrap_err().to_string(),
        _ => group.all_reduce_sum(&mut [1.0_f32; 10]).unwrap_err().to_string(),
    }) {
        // Either rank may have found the difference.
        let [first, second] =
            ["rank 2 called barrier, rank ", " called all_reduce_sum of 10 f32, rank 2 barrier: "];
        for error in &errors {
            assert!(
                error.starts_with("rank ") && (error.starts_with(first) || error.contains(second)),
                "{over}: {errors:?}"
            );
        }
    }
}

#[test]
fn the_calls_of_a_part_name_ranks_by_their_numbers_in_the_job() {
    type Calls = fn(&mut Group, usize) -> Result<(), CollectiveError>;
    let message: Calls = |part, own| match own {
        0 => part.send(&[1.0_f64; 10], 1),
        _ => part.receive(&mut [0.0_f64; 9], 0),
    };
    let roots: Calls = |part, own| part.broadcast(&mut [0_u64; 4], own as u32);
    for (calls, [first, second]) in [
        (message, ["send of 10 f64 to rank 3", "receive of 9 f64 from rank 1"]),
        (roots, ["broadcast of 4 u64 from rank 1", "broadcast of 4 u64 from rank 3"]),
    ] {
        for (over, errors) in over_each(4, |group| {
            let own = group.rank().index();
            let mut part = group.split(own % 2, own).unwrap();
            // Groups that share connections fail together.
            group.barrier().unwrap();
            match (own % 2, part.rank().index()) {
                (1, place) => calls(&mut part, place as usize).unwrap_err().to_string(),
                _ => group.barrier().unwrap_err().to_string(),
            }
        }) {
            for error in &errors {
                let is_whole = error.contains(first) && error.contains(second);
                let names = error.starts_with("rank 1 ") || error.starts_with("rank 3 ");
                assert!(is_whole && names, "{over}: {errors:?}");
            }
        }
    }
}

#[test]
fn a_split_that_all_ranks_have_entered_completes_although_ranks_of_another_color_fail() {
    for turn in 0..20 {
        for (over, results) in over_each(4, |group| {
            let own = group.rank().index();
            let mut half = group.split(own / 2, own)?;
            if own < 2 {
                half.all_reduce_sum(&mut vec![1.0; 3 + own as usize]).unwrap_err();
            }
            Ok::<_, CollectiveError>(())
        }) {
            assert!(results.iter().all(Result::is_ok), "{over}, turn {turn}: {results:?}");
        }
    }
}

#[test]
fn lengths_that_differ_are_named_with_both_lengths() {
    for (over, errors) in over_each(2, |group| {
        let length = 100_000 + group.rank().index() as usize;
        group.all_reduce_sum(&mut vec![1_i32; length]).unwrap_err().to_string()
    }) {
        let sums = [("0", "100000"), ("1", "100001")];
        let named = |one: usize, other: usize| {
            let ([(rank, count), (own, expected)], sum) =
                ([sums[one], sums[other]], "all_reduce_sum");
            format!(
                "rank {rank} called {sum} of {count} i32, rank {own} {sum} of {expected} i32: \
                 a reduction needs the same count on all ranks"
            )
        };
        let either = [named(0, 1), named(1, 0)];
        assert!(errors.iter().all(|error| either.contains(error)), "{over}: {errors:?}");
    }
}

#[test]
fn a_group_that_has_failed_fails_again_at_once_and_names_the_same_rank() {
    for (over, errors) in over_each(3, |group| {
        let first = if group.rank().index() == 1 {
            group.barrier()
        } else {
            group.all_gather(b"x").map(drop)
        };
        let begun = Instant::now();
        let again = [group.barrier().is_err(), group.all_reduce_sum(&mut [1_u64]).is_err()];
        (first.unwrap_err().to_string(), again, begun.elapsed())
    }) {
        for (error, again, took) in errors {
            assert_eq!(again, [true; 2], "{over}: {error}");
            assert!(took < PLENTY, "{over}: {took:?}");
        }
    }
}

#[test]
fn a_group_that_has_failed_closes_with_an_error_of_the_same_kind_and_rank() {
    type Fails = fn(&mut Group) -> Result<(), CollectiveError>;
    let fails: [Fails; 3] = [
        |group| match group.rank().index() {
            1 => group.barrier(),
            _ => group.all_gather(b"x").map(drop),
        },
        |group| group.split(0, 0)?.broadcast(&mut [0_u8], group.rank().index()),
        |group| match group.rank().index() {
            1 => {
                group.abort(3, "the matrix is singular");
                group.barrier()
            }
            _ => group.barrier(),
        },
    ];
    for fail in fails {
        for (over, errors) in over_each_owned(PLENTY, 3, |mut group| {
            let first = fail(&mut group).unwrap_err();
            (first, group.close())
        }) {
            for (first, closed) in errors {
                let closed = closed.unwrap_err();
                let same = (closed.kind(), closed.rank()) == (first.kind(), first.rank());
                assert!(same, "{over}: {closed}, after {first}");
            }
        }
    }
}

#[test]
fn a_group_that_has_timed_out_says_so_in_later_calls_and_when_it_closes() {
    for backend in [SHARED, TCP] {
        let left = AtomicU32::new(0);
        let results = over_one(backend, Duration::from_millis(100), 2, &|mut group: Group| {
            if group.rank().index() == 1 {
                wait_for(1, &left);
                return Vec::new();
            }
            let errors = [group.barrier(), group.barrier(), group.close()];
            left.store(1, Ordering::Relaxed);
            errors.map(|result| result.map_err(|error| (error.kind(), error.rank()))).to_vec()
        });
        assert_eq!(results[0], [Err((mpienv_core::ErrorKind::TimedOut, Some(1))); 3], "{backend}");
    }
}

/// A timeout within which ranks arrive that do not wait on purpose, also on a busy machine.
const IN_TIME: Duration = Duration::from_secs(2);

#[test]
fn a_rank_that_comes_after_the_others_have_given_up_learns_it_when_it_closes() {
    for backend in OVER {
        let left = AtomicU32::new(0);
        let run = |mut group: Group| {
            if group.rank().index() == 1 {
                wait_for(2, &left);
                // All ranks have made this call.
                let came = group.barrier();
                return came.and(group.close()).map_err(|error| error.to_string());
            }
            group.barrier().unwrap_err();
            drop(group);
            left.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let results = over_one(backend, IN_TIME, 3, &run);
        let error = results[1].as_ref().unwrap_err();
        assert!(error.contains("no longer wait for this rank"), "{backend}: {error}");
    }
}

#[test]
fn a_rank_that_learns_of_a_timeout_says_how_long_the_other_one_has_waited() {
    for backend in OVER {
        let left = AtomicU32::new(0);
        let run = |mut group: Group| {
            match group.rank().index() {
                0 => group.set_timeout(IN_TIME),
                1 => {
                    wait_for(2, &left);
                    return String::new();
                }
                _ => {}
            }
            let error = group.barrier().unwrap_err().to_string();
            left.fetch_add(1, Ordering::Relaxed);
            error
        };
        let [first, _, last] = over_one(backend, PLENTY, 3, &run).try_into().unwrap();
        assert!(first.starts_with("rank 1 on ") && first.contains(" within 2 s: "), "{first}");
        assert_eq!(last, first, "{backend}");
    }
}

#[test]
fn a_rank_that_comes_late_to_a_long_sum_blames_no_other_rank() {
    for backend in OVER {
        let left = AtomicU32::new(0);
        let run = |mut group: Group| {
            if group.rank().index() == 1 {
                wait_for(2, &left);
                // It may have connected later than the others.
                thread::sleep(Duration::from_millis(300));
            }
            // More than the system's buffers hold.
            let summed = group.all_reduce_sum(&mut vec![1.0_f64; 1_000_000]);
            let closed = summed.and_then(|()| group.close());
            left.fetch_add(1, Ordering::Relaxed);
            closed.map_err(|error| (error.kind(), error.to_string()))
        };
        let results = over_one(backend, IN_TIME, 3, &run);
        let (kind, error) = results[1].as_ref().unwrap_err();
        assert!(error.contains("no longer wait for this rank"), "{backend}: {error}");
        assert_eq!(*kind, mpienv_core::ErrorKind::TimedOut, "{backend}");
    }
}

#[test]
fn the_ranks_of_a_host_that_come_late_to_a_long_call_blame_no_rank_of_another_host() {
    const LONG: usize = 8 << 20;
    // Over shared memory, two late ranks cannot tell which of them the others have missed.
    for backend in &OVER[1..] {
        let left = AtomicU32::new(0);
        let run = |mut group: Group| {
            let is_late = group.rank().index() < 2;
            if is_late {
                wait_for(2, &left);
                thread::sleep(Duration::from_millis(300));
            }
            let gathered = group.all_gather_into(&vec![1_u8; LONG], &mut vec![0; 4 * LONG]);
            drop(group);
            left.fetch_add(1, Ordering::Relaxed);
            gathered
        };
        let results = over_one(backend, IN_TIME, 4, &run);
        assert!(results.iter().all(Result::is_err), "{backend}");
        for late in &results[..2] {
            let error = late.as_ref().unwrap_err();
            assert!(error.rank().is_some_and(|rank| rank < 2), "{backend}: {error}");
        }
    }
}

#[test]
fn a_rank_that_is_lost_in_a_long_pause_is_named_by_the_others() {
    for backend in OVER {
        let lost = AtomicU32::new(0);
        let run = |mut group: Group| {
            if group.rank().index() == 2 {
                group.into_transport().tcp().unwrap().members.links().fail_silently();
                lost.store(1, Ordering::Relaxed);
                return None;
            }
            wait_for(1, &lost);
            // Longer than the timeout, in which the two ranks then hear of each other on a busy
            // machine too.
            thread::sleep(Duration::from_millis(3500));
            let error = group.all_reduce_sum(&mut vec![1.0_f64; 1_000_000]).unwrap_err();
            Some((error.kind(), error.rank()))
        };
        let results = over_one(backend, Duration::from_secs(3), 3, &run);
        let named = Some((mpienv_core::ErrorKind::Lost, Some(2)));
        assert_eq!(results, [named, named, None], "{backend}");
    }
}

#[test]
fn a_rank_that_exits_without_a_goodbye_after_its_last_call_does_not_fail_the_others() {
    for backend in OVER {
        let left = AtomicU32::new(0);
        let closed = over_one(backend, PLENTY, 2, &|mut group: Group| {
            group.barrier().unwrap();
            if group.rank().index() == 1 {
                let transport = group.into_transport();
                transport.tcp().unwrap().members.links().fail_silently();
                left.store(1, Ordering::Relaxed);
                return Ok(());
            }
            wait_for(1, &left);
            group.close()
        });
        assert!(closed.iter().all(Result::is_ok), "{backend}: {closed:?}");
    }
}

#[test]
fn a_group_whose_calls_were_all_made_or_refused_on_all_ranks_closes_without_an_error() {
    for (over, closed) in over_each_owned(PLENTY, 3, |mut group| {
        group.barrier().unwrap();
        group.broadcast(&mut [0_u8], 3).unwrap_err();
        group.send(&[0_u8], 3).unwrap_err();
        group.close()
    }) {
        assert!(closed.iter().all(Result::is_ok), "{over}: {closed:?}");
    }
    assert!(Group::alone().close().is_ok());
}

#[test]
fn arguments_that_no_rank_could_use_are_errors_that_leave_the_group_usable() {
    for (over, sums) in over_each(2, |group| {
        let errors = [
            group.broadcast(&mut [1_u8], 2).unwrap_err(),
            group.all_to_all(&[vec![1]]).unwrap_err(),
            group.all_to_all_into(&[1; 3], &mut [0; 3]).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, CollectiveError::Argument { .. })));
        assert_eq!(
            errors[0].to_string(),
            "broadcast: there is no rank 2: the group has ranks 0 and 1"
        );
        let mut sum = [1_u32];
        group.all_reduce_sum(&mut sum).unwrap();
        sum
    }) {
        assert_eq!(sums, [[2], [2]], "{over}");
    }
}

#[test]
fn a_rank_that_closes_or_drops_its_group_too_early_is_named_with_the_call_of_those_that_wait() {
    type Waits = fn(&mut Group) -> Result<(), CollectiveError>;
    let waits: [Waits; 3] = [
        |group| group.all_reduce_sum(&mut [1.0_f64]),
        |group| group.all_reduce_sum(&mut vec![1.0_f64; 3_000_000]),
        |group| match group.rank().index() {
            0 => group.send(&[1.0_f64; 3_000_000], 1),
            _ => group.receive(&mut [1.0_f64], 1),
        },
    ];
    let calls = ["all_reduce_sum of 1 f64", "all_reduce_sum of 3000000 f64", ""];
    for ((wait, call), closes) in
        waits.iter().zip(calls).flat_map(|one| [(one, true), (one, false)])
    {
        let ended = AtomicU32::new(0);
        for (over, errors) in over_each_owned(PLENTY, 3, |mut group| {
            group.barrier().unwrap();
            let all = ended.load(Ordering::Relaxed) / 2 * 2 + 2;
            if group.rank().index() == 1 {
                if closes {
                    group.close().unwrap();
                } else {
                    drop(group);
                }
                while ended.load(Ordering::Relaxed) < all {
                    thread::sleep(Duration::from_millis(1));
                }
                return String::new();
            }
            let error = wait(&mut group).unwrap_err();
            ended.fetch_add(1, Ordering::Relaxed);
            error.to_string()
        }) {
            for (own, error) in errors.iter().enumerate().filter(|(own, _)| *own != 1) {
                let is_named = (0..3).any(|rank| {
                    let own = if rank == 1 { own } else { rank };
                    let text = "rank 1 called close or dropped its group, rank";
                    error.starts_with(&format!("{text} {own} {call}"))
                });
                assert!(is_named, "{over}: {error}");
            }
        }
    }
}

#[test]
fn a_panic_that_drops_only_a_part_of_the_group_is_the_reason_on_all_ranks() {
    let ended = AtomicU32::new(0);
    for (over, errors) in over_each(3, |group| {
        let mut part = group.split(0, 0).unwrap();
        if group.rank().index() != 1 {
            let error = part.barrier().unwrap_err().to_string();
            ended.fetch_add(1, Ordering::Relaxed);
            return error;
        }
        let all = ended.load(Ordering::Relaxed) + 2;
        let panics = thread::spawn(move || {
            let _part = part;
            panic!("a panic that this test expects");
        });
        assert!(panics.join().is_err());
        // It makes no call meanwhile.
        wait_for(all, &ended);
        group.barrier().unwrap_err().to_string()
    }) {
        let is_named = |error: &str| {
            error.starts_with("rank 1 on ") && error.contains(" is lost: it panicked")
        };
        assert!(errors.iter().all(|error| is_named(error)), "{over}: {errors:?}");
    }
}

#[test]
fn ranks_that_wait_for_each_other_in_a_ring_name_their_own_calls_and_what_to_call_instead() {
    type ToAndFrom = fn(&mut Group, u32, u32) -> Result<(), CollectiveError>;
    let right: [ToAndFrom; 3] = [
        |group, to, _| group.send(&[1.0_f64], to),
        |group, _, from| group.receive(&mut [1.0_f64], from),
        |group, to, _| group.send_receive(&[1.0_f64], to, &mut [], None),
    ];
    let timeout = longer_than(Duration::from_secs(4), || {
        over_each(3, |group| {
            let own = group.rank().index();
            group.send_receive(&[1.0_f64], (own + 1) % 3, &mut [0.0], (own + 2) % 3).unwrap();
        });
    });
    for (index, call) in right.iter().enumerate() {
        for (over, errors) in over_each_within(timeout, 3, |group| {
            let own = group.rank().index();
            let first = call(group, (own + 1) % 3, (own + 2) % 3).unwrap_err();
            (first, group.barrier().unwrap_err().to_string())
        }) {
            for (own, (error, later)) in errors.iter().enumerate() {
                let (to, from) = ((own + 1) % 3, (own + 2) % 3);
                let waited = match index {
                    0 => format!(
                        "rank {own} waited in send of 1 f64 to rank {to} in the group of ranks 0-2: "
                    ),
                    2 => format!(
                        "rank {own} waited in send_receive of 1 f64 to rank {to} in the group of ranks 0-2: "
                    ),
                    _ => format!(
                        "rank {own} waited in receive of 1 f64 from rank {from} in the group of ranks 0-2: "
                    ),
                };
                let text = error.to_string();
                assert!(matches!(error, CollectiveError::SomeTimedOut { .. }), "{over}: {text}");
                assert!(text.contains(&waited), "{over}: {text}");
                assert_eq!(
                    text.contains("call send_receive instead"),
                    index == 0,
                    "{over}: {text}"
                );
                assert_eq!(*later, format!("{text} (in an earlier call)"), "{over}");
            }
        }
    }
}

#[test]
fn ranks_that_block_in_long_sends_time_out_although_they_did_not_begin_at_once() {
    // More than the system takes while the other rank does not read.
    let long = vec![1.0_f64; 1_000_000];
    let timeout = longer_than(Duration::from_secs(2), || {
        over_one(TCP, PLENTY, 3, &|mut group| group.barrier().unwrap());
    });
    let errors = over_one(TCP, timeout, 3, &|mut group| {
        let own = group.rank().index();
        thread::sleep(Duration::from_millis(300) * own);
        group.send(&long, (own + 1) % 3).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.kind().exit_code(), 124, "{error}");
    }
}

#[test]
fn what_is_wrong_with_arguments_says_what_is_needed() {
    let texts = threads::run(3, PLENTY, |group| {
        let own = group.rank().index();
        [
            group.broadcast(&mut [1_u8], 99).unwrap_err(),
            group.broadcast_vec(&mut vec![1_u8], 99).unwrap_err(),
            group.send_receive(&[1_u8; 3], own, &mut [0; 4], own).unwrap_err(),
            group.gather(&[1_u8; 2], &mut [0; 3], own).unwrap_err(),
            group.all_to_all_into(&[1_u8; 4], &mut [0; 4]).unwrap_err(),
            group.all_to_all_into(&[1_u8; 3], &mut [0; 6]).unwrap_err(),
            group.all_gather_into(&[1_u8; 2], &mut [0; 3]).unwrap_err(),
            group.reduce_scatter_into(&[1_u8; 3], &mut [0; 2], Reduction::Sum).unwrap_err(),
            group.reduce_scatter_into(&[1_u8; 3], &mut [0; 2], Reduction::Max).unwrap_err(),
            group.all_to_all(&[vec![1]]).unwrap_err(),
            group.send(&[1_u8], own).unwrap_err(),
            group.receive(&mut [1_u8], 3).unwrap_err(),
        ]
        .map(|error| error.to_string())
    });
    for (own, texts) in texts.unwrap().into_iter().enumerate() {
        let itself = format!("send: rank {own} is this rank itself: name another one");
        let expected = [
            "broadcast: there is no rank 99: the group has ranks 0 to 2",
            "broadcast_vec: there is no rank 99: the group has ranks 0 to 2",
            "send_receive: 3 values, and room for 4: both must be the same",
            "gather: 3 values where 6 are needed: 2 for each of 3 ranks",
            "all_to_all_into: 4 values, which 3 ranks cannot share equally",
            "all_to_all_into: 3 values, and room for 6: both must be the same",
            "all_gather_into: 3 values where 6 are needed: 2 for each of 3 ranks",
            "reduce_scatter_into: room for 2 numbers, and this rank's part has 1",
            "reduce_scatter_into: room for 2 numbers, and this rank's part has 1",
            "all_to_all: 1 parts where 3 are needed: one for each rank",
            &itself,
            "receive: there is no rank 3: the group has ranks 0 to 2",
        ];
        assert_eq!(texts, expected);
    }
}

#[test]
fn what_is_wrong_with_arguments_in_a_split_group_has_the_number_in_the_job() {
    for (over, texts) in over_each(4, |group| {
        let own = group.rank().index();
        let mut half = group.split(own / 2, 0).unwrap();
        [half.send(&[1], own % 2).unwrap_err(), half.receive(&mut [1], 3).unwrap_err()]
            .map(|error| error.to_string())
    }) {
        assert_eq!(
            texts[3],
            [
                "send: rank 1 of this group of 2 (rank 3 of the job) is this rank itself: name another one",
                "receive: there is no rank 3: the group, which was split from another, has ranks 0 and 1",
            ],
            "{over}"
        );
    }
}

#[test]
fn ranks_that_wait_in_two_groups_learn_in_which_ones() {
    let timeout = longer_than(Duration::from_secs(2), || {
        over_one(SHARED, PLENTY, 2, &|mut group| group.barrier().unwrap());
    });
    let errors = over_one(SHARED, timeout, 3, &|mut group| {
        let own = group.rank().index();
        let mut part = group.split(own / 2, 0).unwrap();
        let group = if own == 0 { &mut part } else { &mut group };
        group.all_reduce_sum(&mut [1.0]).unwrap_err().to_string()
    });
    for (own, (error, ranks)) in errors.iter().zip(["0-1", "0-2", "0-2"]).enumerate() {
        let text = format!(
            "rank {own} waited in all_reduce_sum of 1 f64 in the group of ranks {ranks}: compare \
             the calls of the ranks and their groups, "
        );
        // On a busy machine, a rank that waits too may be named.
        let is_named = error.contains("waits in another call");
        assert!(error.contains(&text) || is_named, "{error}");
    }
}

/// Checks that no rank returns without an error when one of three makes the call `other` and the
/// others make `one`, and that every error names what differs. Which rank and which transport it
/// is changes from `turn` to turn.
fn check(one: (&str, Made), other: (&str, Made), turn: usize) {
    let (odd, over) = ((turn % 3) as u32, OVER[turn / 3 % OVER.len()]);
    let results = over_one(over, PLENTY, 3, &|mut group: Group| {
        let begun = Instant::now();
        let call = if group.rank().index() == odd { other.1 } else { one.1 };
        (call(&mut group), begun.elapsed())
    });
    let what = format!("{over}: {}, and on rank {odd} {}: {results:?}", one.0, other.0);
    for (result, took) in &results {
        assert!(result.as_ref().is_err_and(is_named) && *took < PLENTY, "{what}");
    }
}

#[test]
fn no_rank_returns_from_a_call_of_which_any_parameter_differs_on_another_rank() {
    let pairs = CALLS.iter().enumerate().flat_map(|(index, one)| {
        // Calls that differ in one parameter stand beside each other: those on every transport.
        let near = CALLS[index + 1..].iter().take(2).flat_map(|other| [other; 9]);
        near.chain(CALLS[index + 1..].iter().skip(2)).map(move |other| (one, other))
    });
    for (turn, (one, other)) in pairs.enumerate() {
        check(*one, *other, turn);
    }
}

#[test]
fn no_rank_returns_from_a_message_where_another_rank_makes_another_call() {
    let pairs = RINGS.iter().enumerate().flat_map(|(index, one)| {
        // Each of three ranks passes messages to both others.
        let others = RINGS[index + 1..].iter().chain(CALLS);
        others.flat_map(move |other| [(one, other), (other, one)])
    });
    for (turn, (one, other)) in pairs.enumerate() {
        check(*one, *other, turn);
    }
}

#[test]
fn no_rank_returns_from_a_broadcast_with_a_different_root_on_each_rank_however_often() {
    for turn in 0..40 {
        for (over, results) in over_each(4, |group| {
            let own = group.rank().index();
            group
                .broadcast(&mut [own as u8; 16], (own + turn) % 4)
                .map_err(|error| error.to_string())
        }) {
            assert!(
                results
                    .iter()
                    .all(|result| matches!(result, Err(error) if error.contains(" called "))),
                "{over}: {results:?}"
            );
        }
    }
}

#[test]
fn no_call_of_a_part_of_one_rank_succeeds_once_its_calls_are_canceled() {
    let have_split = Barrier::new(2);
    for (over, errors) in over_each(2, |group| {
        let mut alone = group.split(group.rank().index(), 0).unwrap();
        have_split.wait();
        group.canceller().cancel();
        let sum = alone.all_reduce_sum(&mut [1.0_f32]);
        [sum, alone.barrier()].map(|call| call.unwrap_err().to_string())
    }) {
        let canceled = "the call was canceled by another thread of this process";
        assert!(errors.iter().flatten().all(|error| error == canceled), "{over}: {errors:?}");
    }
}
