//! What every operation returns for every type, computed from what the ranks are known to bring.

use std::fmt::Debug;

use super::half::{bf16, f16};
use super::{CollectiveError, Element, Group, Reduction};

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Product, Reduction::Mean];

/// A type, the values that ranks bring, and their reductions.
pub(crate) trait Sample: Element + PartialEq + Debug {
    fn sample(seed: u32) -> Self;

    /// The reduction of the ranks' values; `None` if there is none.
    fn reduced(by: Reduction, values: &[Self]) -> Option<Self>;
}

/// Implements integers, which wrap around.
macro_rules! integers {
    ($($number:ident)*) => {
        $(impl Sample for $number {
            fn sample(seed: u32) -> $number {
                seed.wrapping_mul(2_654_435_761) as $number
            }

            fn reduced(by: Reduction, values: &[$number]) -> Option<$number> {
                let values = values.iter().copied();
                match by {
                    Reduction::Sum => values.reduce($number::wrapping_add),
                    Reduction::Product => values.reduce($number::wrapping_mul),
                    Reduction::Min => values.min(),
                    Reduction::Max => values.max(),
                    _ => None,
                }
            }
        })*
    };
}

integers! { i8 u8 i32 i64 u32 u64 }

/// Implements numbers with fractions, from the type in which they are computed.
macro_rules! fractions {
    ($($number:ident $wide:ident $most:literal $widen:expr, $narrow:expr;)*) => {
        $(impl Sample for $number {
            fn sample(seed: u32) -> $number {
                $narrow((seed.wrapping_mul(2_654_435_761) >> 8) as $wide % $most - $most / 4.0)
            }

            fn reduced(by: Reduction, values: &[$number]) -> Option<$number> {
                let count = values.len() as $wide;
                let values = values.iter().map(|value: &$number| $widen(*value));
                let reduced = match by {
                    Reduction::Sum => values.reduce(|a, b| a + b),
                    Reduction::Mean => values.reduce(|a, b| a + b).map(|sum| sum / count),
                    Reduction::Product => values.reduce(|a, b| a * b),
                    Reduction::Min => values.reduce($wide::min),
                    _ => values.reduce($wide::max),
                };
                reduced.map($narrow)
            }
        })*
    };
}

// Sums and products of whole numbers below 17 are exact in any order, which MPI does not guarantee.
// Of half-precision numbers, they are rounded.
fractions! {
    f32 f32 16.0 |value| value, |value| value;
    f64 f64 16.0 |value| value, |value| value;
    f16 f32 3001.0 f16::to_f32, f16::from_f32;
    bf16 f32 3001.0 bf16::to_f32, bf16::from_f32;
}

impl Sample for bool {
    fn sample(seed: u32) -> bool {
        !seed.wrapping_mul(2_654_435_761).is_multiple_of(3)
    }

    fn reduced(by: Reduction, values: &[bool]) -> Option<bool> {
        match by {
            Reduction::Sum | Reduction::Max => Some(values.contains(&true)),
            Reduction::Product | Reduction::Min => Some(!values.contains(&false)),
            _ => None,
        }
    }
}

/// Makes every call with every type, and returns the first that has another result than it should.
pub(crate) fn check_all(group: &mut Group, count: usize) -> Result<(), String> {
    check::<f32>(group, count)?;
    check::<f64>(group, count)?;
    check::<f16>(group, count)?;
    check::<bf16>(group, count)?;
    check::<i8>(group, count)?;
    check::<u8>(group, count)?;
    check::<i32>(group, count)?;
    check::<i64>(group, count)?;
    check::<u32>(group, count)?;
    check::<u64>(group, count)?;
    check::<bool>(group, count)
}

/// Fails if a call returned an error or something else than `expected`.
fn compare<T: Sample>(
    what: &str,
    result: Result<(), CollectiveError>,
    found: &[T],
    expected: &[T],
) -> Result<(), String> {
    let what = format!("{what} of {} {}", expected.len(), std::any::type_name::<T>());
    result.map_err(|error| format!("{what}: {error}"))?;
    if found == expected {
        return Ok(());
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("{what}: {:?} at {at}, not {:?}", found[at], expected[at])),
        None => Err(format!("{what}: {} values", found.len())),
    }
}

/// Makes every call with one type.
pub(crate) fn check<T: Sample>(group: &mut Group, count: usize) -> Result<(), String> {
    let rows: Vec<Vec<T>> = (0..group.size())
        .map(|rank| (0..count as u32).map(|index| T::sample(97 * index + rank)).collect())
        .collect();
    check_reductions(group, &rows)?;
    check_moves(group, &rows)?;
    check_messages(group, &rows)
}

fn check_reductions<T: Sample>(group: &mut Group, rows: &[Vec<T>]) -> Result<(), String> {
    let (own, size) = (group.rank().index() as usize, rows.len());
    for by in REDUCTIONS {
        let mut column = vec![T::default(); size];
        let reduced = (0..rows[0].len()).map(|index| {
            column.iter_mut().zip(rows).for_each(|(value, row)| *value = row[index]);
            T::reduced(by, &column)
        });
        let Some(expected) = reduced.collect::<Option<Vec<T>>>() else { continue };
        if rows[0].is_empty() && T::reduced(by, &[T::sample(0)]).is_none() {
            continue;
        }
        let mut values = rows[own].clone();
        let result = group.all_reduce(&mut values, by);
        compare(&format!("all_reduce {by:?}"), result, &values, &expected)?;

        // Parts of another length on each rank.
        let part = rows[own].len() / (own + 2) + 1;
        let mut values = vec![T::default(); rows[own].len()];
        let result = group.all_reduce_in_parts(&mut values, by, part, |first, part| {
            part.copy_from_slice(&rows[own][first..][..part.len()]);
        });
        compare(&format!("all_reduce_in_parts {by:?}"), result, &values, &expected)?;

        let root = (by as usize + 1) % size;
        let mut values = rows[own].clone();
        let result = group.reduce(&mut values, by, root as u32);
        let left = if own == root { &expected } else { &rows[own] };
        compare(&format!("reduce {by:?}"), result, &values, left)?;

        let share = group.rank().share_of(expected.len());
        let mut part = vec![T::default(); share.len()];
        let result = group.reduce_scatter_into(&rows[own], &mut part, by);
        compare(&format!("reduce_scatter {by:?}"), result, &part, &expected[share])?;
    }
    Ok(())
}

fn check_moves<T: Sample>(group: &mut Group, rows: &[Vec<T>]) -> Result<(), String> {
    let (own, size, count) = (group.rank().index() as usize, rows.len(), rows[0].len());
    let all = rows.concat();
    for root in 0..size {
        let mut values = rows[own].clone();
        let result = group.broadcast(&mut values, root as u32);
        compare("broadcast", result, &values, &rows[root])?;

        let mut gathered = vec![T::default(); if own == root { all.len() } else { 0 }];
        let result = group.gather(&rows[own], &mut gathered, root as u32);
        compare("gather", result, &gathered, if own == root { &all } else { &[] })?;

        let mut part = vec![T::default(); count];
        let sent = if own == root { &all[..] } else { &[] };
        let result = group.scatter(sent, &mut part, root as u32);
        compare("scatter", result, &part, &rows[own])?;
    }
    let mut gathered = vec![T::default(); all.len()];
    let result = group.all_gather_into(&rows[own], &mut gathered);
    compare("all_gather", result, &gathered, &all)?;

    // Rank r sends the row of rank r + s to rank s.
    let sent: Vec<T> = (0..size).flat_map(|to| rows[(own + to) % size].clone()).collect();
    let expected: Vec<T> = (0..size).flat_map(|from| rows[(from + own) % size].clone()).collect();
    let result = group.all_to_all_into(&sent, &mut gathered);
    compare("all_to_all", result, &gathered, &expected)?;
    check_any_counts(group, rows)
}

/// Makes the calls whose parts have any counts, some of them 0.
fn check_any_counts<T: Sample>(group: &mut Group, rows: &[Vec<T>]) -> Result<(), String> {
    let (own, size, count) = (group.rank().index() as usize, rows.len(), rows[0].len());
    // None, a third, two thirds or all.
    let part = |from: usize, to: usize| &rows[from][..count * ((from + 2 * to) % 4) / 3];
    for root in 0..size {
        let mut values = if own == root { part(own, 0).to_vec() } else { rows[own].clone() };
        let result = group.broadcast_vec(&mut values, root as u32);
        compare("broadcast_vec", result, &values, part(root, 0))?;
    }
    let compare_parts = |what, parts: Result<Vec<Vec<T>>, CollectiveError>, expected: Vec<&[T]>| {
        let (result, found) = match parts {
            Ok(parts) if parts.len() == size => (Ok(()), parts.concat()),
            Ok(parts) => return Err(format!("{what}: {} parts", parts.len())),
            Err(error) => (Err(error), Vec::new()),
        };
        compare(what, result, &found, &expected.concat()[..])
    };
    let gathered = group.all_gather(part(own, 0));
    let expected = (0..size).map(|from| part(from, 0)).collect();
    compare_parts("all_gather of any count", gathered, expected)?;

    let parts: Vec<Vec<T>> = (0..size).map(|to| part(own, to).to_vec()).collect();
    let exchanged = group.all_to_all(&parts);
    let expected = (0..size).map(|from| part(from, own)).collect();
    compare_parts("all_to_all of any count", exchanged, expected)
}

fn check_messages<T: Sample>(group: &mut Group, rows: &[Vec<T>]) -> Result<(), String> {
    let (own, size, count) = (group.rank().index() as usize, rows.len(), rows[0].len());
    let [next, before] = [(own + 1) % size, (own + size - 1) % size];
    let mut values = vec![T::default(); count];
    let result = group.send_receive(&rows[own], next as u32, &mut values, before as u32);
    compare("send_receive", result, &values, &rows[before])?;
    if size == 1 {
        return Ok(());
    }
    // From rank 0 to the last and back, while the others wait in the next call.
    let last = size - 1;
    let mut values = rows[own].clone();
    let result = match own {
        0 => {
            group.send(&rows[0], last as u32).and_then(|()| group.receive(&mut values, last as u32))
        }
        own if own == last => {
            group.receive(&mut values, 0).and_then(|()| group.send(&rows[last], 0))
        }
        _ => Ok(()),
    };
    let expected = if own == 0 {
        last
    } else if own == last {
        0
    } else {
        own
    };
    compare("send and receive", result, &values, &rows[expected])
}
