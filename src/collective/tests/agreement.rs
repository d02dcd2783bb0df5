//! No rank returns from a call whose parameters differ between ranks: every call with every
//! parameter, against every other one.

use super::calls::{CALLS, Made, RINGS, is_named};
use super::*;

/// Checks that no rank returns without an error when rank `odd` makes the call `other` and all
/// others make `one`, and that every error names what differs.
fn check(size: u32, one: (&str, Made), other: (&str, Made), odd: u32) {
    for (over, results) in over_each(size, |group| {
        let begun = Instant::now();
        let call = if group.rank().index() == odd { other.1 } else { one.1 };
        (call(group), begun.elapsed())
    }) {
        let what = format!("{over}: {}, and on rank {odd} {}: {results:?}", one.0, other.0);
        for (result, took) in &results {
            assert!(result.as_ref().is_err_and(is_named) && *took < PLENTY, "{what}");
        }
    }
}

#[test]
fn no_rank_returns_from_a_call_of_which_any_parameter_differs_on_another_rank() {
    let mut odd = 0;
    for (index, one) in CALLS.iter().enumerate() {
        for other in &CALLS[index + 1..] {
            odd = (odd + 1) % 3;
            check(3, *one, *other, odd);
        }
    }
}

#[test]
fn no_rank_returns_from_a_message_where_another_rank_makes_another_call() {
    let mut odd = 0;
    for (index, one) in RINGS.iter().enumerate() {
        for other in RINGS[index + 1..].iter().chain(CALLS) {
            odd = (odd + 1) % 3;
            // Each of three ranks passes messages to both others.
            check(3, *one, *other, odd);
            check(3, *other, *one, odd);
        }
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
