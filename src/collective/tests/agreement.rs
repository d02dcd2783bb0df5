//! No rank returns from a call whose parameters differ between ranks: every call with every
//! parameter, against every other one.

use super::calls::{CALLS, Made, is_named};
use super::*;

/// Checks that no rank returns without an error when rank `odd` makes the call `other` and all
/// others make `one`, and that every error names what differs.
fn check(one: (&str, Made), other: (&str, Made), odd: u32) {
    for (over, results) in over_each(4, |group| {
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
    for (index, one) in CALLS.into_iter().enumerate() {
        for other in CALLS.into_iter().skip(index + 1) {
            odd = (odd + 1) % 4;
            check(one, other, odd);
        }
    }
}

#[test]
fn no_rank_returns_from_a_broadcast_with_a_different_root_on_each_rank_however_often() {
    for turn in 0..40 {
        for (over, results) in over_each(4, |group| {
            let own = group.rank().index();
            group
                .broadcast(&mut vec![own as u8; 16], (own + turn) % 4)
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
