//! Every call with every parameter, for tests of ranks that make different calls.

use super::{CollectiveError, Group};

pub(crate) type Made = fn(&mut Group) -> Result<(), CollectiveError>;

/// One entry for each value of each parameter: operation, reduction, type, length, root.
pub(crate) const CALLS: [(&str, Made); 22] = [
    ("barrier", Group::barrier),
    ("split", |group| group.split(0, 0).map(drop)),
    ("all_gather", |group| group.all_gather(&[1; 32]).map(drop)),
    ("all_to_all of 32", |group| {
        group.all_to_all(&vec![vec![1; 32]; group.size() as usize]).map(drop)
    }),
    ("all_to_all of 33", |group| {
        group.all_to_all(&vec![vec![1; 33]; group.size() as usize]).map(drop)
    }),
    ("broadcast from 0", |group| group.broadcast(&mut vec![1; 8], 0)),
    ("broadcast from 1", |group| group.broadcast(&mut vec![2; 8], 1)),
    ("broadcast from the last", |group| group.broadcast(&mut vec![3; 8], group.size() - 1)),
    ("sum of f32", |group| group.all_reduce_sum(&mut [1.0_f32; 8])),
    ("sum of one f32 more", |group| group.all_reduce_sum(&mut [1.0_f32; 9])),
    ("sum of i32", |group| group.all_reduce_sum(&mut [1_i32; 8])),
    ("sum of f64", |group| group.all_reduce_sum(&mut [1.0_f64; 4])),
    ("sum of none", |group| group.all_reduce_sum::<f32>(&mut [])),
    ("min", |group| group.all_reduce_min(&mut [1.0_f32; 8])),
    ("max", |group| group.all_reduce_max(&mut [1.0_f32; 8])),
    ("long sum", |group| group.all_reduce_sum(&mut vec![1.0_f32; 300_000])),
    ("long sum of one more", |group| group.all_reduce_sum(&mut vec![1.0_f32; 300_001])),
    ("part of a sum", |group| group.reduce_scatter_sum(&[1.0_f32; 8]).map(drop)),
    ("part of a sum of one more", |group| group.reduce_scatter_sum(&[1.0_f32; 9]).map(drop)),
    ("part of a sum of f64", |group| group.reduce_scatter_sum(&[1.0_f64; 8]).map(drop)),
    ("broadcast from no rank", |group| group.broadcast(&mut vec![1; 8], group.size())),
    ("all_to_all of too few", |group| group.all_to_all(&[]).map(drop)),
];

/// Returns whether an error names what differs between ranks, or what is wrong with the rank's own
/// arguments.
pub(crate) fn is_named(error: &CollectiveError) -> bool {
    let text = error.to_string();
    let is_of_two = text.contains(" called ") || text.contains(" numbers to a reduction of ");
    is_of_two || matches!(error, CollectiveError::Argument { .. })
}
