//! Every call with every parameter, for tests of ranks that make different calls.

use super::half::bf16;
use super::{CollectiveError, Element, Group, Reduction};

pub(crate) type Made = fn(&mut Group) -> Result<(), CollectiveError>;

/// One entry for each value of each parameter: operation, reduction, type, length, root.
pub(crate) const CALLS: &[(&str, Made)] = &[
    ("barrier", Group::barrier),
    ("split", |group| group.split(0, 0).map(drop)),
    ("all_gather of any count of u8", |group| group.all_gather(&[1_u8; 32]).map(drop)),
    ("all_gather of any count of i8", |group| group.all_gather(&[1_i8; 32]).map(drop)),
    ("all_to_all of any count of u8", |group| {
        group.all_to_all(&vec![vec![1_u8; 32]; group.size() as usize]).map(drop)
    }),
    ("all_to_all of any count of i8", |group| {
        group.all_to_all(&vec![vec![1_i8; 32]; group.size() as usize]).map(drop)
    }),
    ("broadcast from 0", |group| group.broadcast(&mut [1_u8; 8], 0)),
    ("broadcast from 1", |group| group.broadcast(&mut [2_u8; 8], 1)),
    ("broadcast from the last", |group| group.broadcast(&mut [3_u8; 8], group.size() - 1)),
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
    ("broadcast from no rank", |group| group.broadcast(&mut [1_u8; 8], group.size())),
    ("all_to_all of too few", |group| group.all_to_all::<u8>(&[]).map(drop)),
    ("broadcast of one more", |group| group.broadcast(&mut [1_u8; 9], 0)),
    ("broadcast of i8", |group| group.broadcast(&mut [1_i8; 8], 0)),
    ("long broadcast", |group| group.broadcast(&mut vec![1_u64; 300_000], 0)),
    ("broadcast of any count from 0", |group| group.broadcast_vec(&mut vec![1_u8; 8], 0)),
    ("broadcast of any count from 1", |group| group.broadcast_vec(&mut vec![1_u8; 8], 1)),
    ("broadcast of any count of i8", |group| group.broadcast_vec(&mut vec![1_i8; 8], 0)),
    ("sum of bf16", |group| group.all_reduce_sum(&mut [bf16::ONE; 8])),
    ("sum of u8", |group| group.all_reduce_sum(&mut [1_u8; 8])),
    ("sum of bool", |group| group.all_reduce_sum(&mut [true; 8])),
    ("product", |group| group.all_reduce(&mut [1.0_f32; 8], Reduction::Product)),
    ("mean", |group| group.all_reduce(&mut [1.0_f32; 8], Reduction::Mean)),
    ("mean of integers", |group| group.all_reduce(&mut [1; 8], Reduction::Mean)),
    ("part of a mean", |group| part(group, Reduction::Mean)),
    ("part of a product", |group| part(group, Reduction::Product)),
    ("part of a min", |group| part(group, Reduction::Min)),
    ("part of a max", |group| part(group, Reduction::Max)),
    ("part of another length", |group| {
        group.reduce_scatter_into(&[1.0_f32; 8], &mut [0.0; 7], Reduction::Sum)
    }),
    ("sum to 0", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Sum, 0)),
    ("sum to 1", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Sum, 1)),
    ("sum to no rank", |group| group.reduce(&mut [1_u8], Reduction::Sum, group.size())),
    ("sum to 0 of one more", |group| group.reduce(&mut [1.0_f32; 9], Reduction::Sum, 0)),
    ("sum to 0 of f64", |group| group.reduce(&mut [1.0_f64; 8], Reduction::Sum, 0)),
    ("min to 0", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Min, 0)),
    ("max to 0", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Max, 0)),
    ("product to 0", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Product, 0)),
    ("mean to 0", |group| group.reduce(&mut [1.0_f32; 8], Reduction::Mean, 0)),
    ("all_gather of u8", |group| all_gather(group, &[1_u8; 8])),
    ("all_gather of one more", |group| all_gather(group, &[1_u8; 9])),
    ("all_gather of i8", |group| all_gather(group, &[1_i8; 8])),
    ("all_gather without room", |group| group.all_gather_into(&[1_u8; 8], &mut [])),
    ("gather to 0", |group| gather(group, &[1_u8; 8], 0)),
    ("gather to 1", |group| gather(group, &[1_u8; 8], 1)),
    ("gather to 0 of one more", |group| gather(group, &[1_u8; 9], 0)),
    ("gather to 0 of i8", |group| gather(group, &[1_i8; 8], 0)),
    ("gather to no rank", |group| gather(group, &[1_u8; 8], group.size())),
    ("scatter from 0", |group| scatter::<u8>(group, 8, 0)),
    ("scatter from 1", |group| scatter::<u8>(group, 8, 1)),
    ("scatter from 0 of one more", |group| scatter::<u8>(group, 9, 0)),
    ("scatter from 0 of i8", |group| scatter::<i8>(group, 8, 0)),
    ("scatter from no rank", |group| scatter::<u8>(group, 8, group.size())),
    ("sum in parts", |group| sum_in_parts(group, 4)),
    ("sum in parts of no number", |group| sum_in_parts(group, 0)),
    ("all_to_all of u8", |group| all_to_all::<u8>(group, 8)),
    ("all_to_all of 9 u8", |group| all_to_all::<u8>(group, 9)),
    ("all_to_all of i8", |group| all_to_all::<i8>(group, 8)),
];

/// Calls in which every rank sends a message to the next, and their parameters. Over MPI, a rank
/// that makes another call is noticed only after the timeout.
pub(crate) const RINGS: &[(&str, Made)] = &[
    ("messages", |group| ring(group, &[1_u8; 8], 1)),
    ("messages of one more", |group| ring(group, &[1_u8; 9], 1)),
    ("messages of i8", |group| ring(group, &[1_i8; 8], 1)),
    ("messages the other way", |group| ring(group, &[1_u8; 8], group.size() - 1)),
];

fn part(group: &mut Group, by: Reduction) -> Result<(), CollectiveError> {
    let mut part = vec![0.0; group.rank().share_of(8).len()];
    group.reduce_scatter_into(&[1.0_f32; 8], &mut part, by)
}

fn all_gather<T: Element>(group: &mut Group, values: &[T]) -> Result<(), CollectiveError> {
    group.all_gather_into(values, &mut vec![T::default(); values.len() * group.size() as usize])
}

fn sum_in_parts(group: &mut Group, part: usize) -> Result<(), CollectiveError> {
    let compute = |_, part: &mut [f32]| part.fill(1.0);
    group.all_reduce_in_parts(&mut [0.0_f32; 10], Reduction::Sum, part, compute)
}

fn gather<T: Element>(group: &mut Group, values: &[T], root: u32) -> Result<(), CollectiveError> {
    let mut all = vec![T::default(); values.len() * group.size() as usize];
    group.gather(values, &mut all, root)
}

fn scatter<T: Element>(group: &mut Group, count: usize, root: u32) -> Result<(), CollectiveError> {
    let all = vec![T::default(); count * group.size() as usize];
    group.scatter(&all, &mut vec![T::default(); count], root)
}

fn all_to_all<T: Element>(group: &mut Group, count: usize) -> Result<(), CollectiveError> {
    let all = vec![T::default(); count * group.size() as usize];
    group.all_to_all_into(&all, &mut all.clone())
}

fn ring<T: Element>(group: &mut Group, values: &[T], by: u32) -> Result<(), CollectiveError> {
    let (own, size) = (group.rank().index(), group.size());
    let mut into = vec![T::default(); values.len()];
    group.send_receive(values, (own + by) % size, &mut into, (own + size - by) % size)
}

/// Returns whether an error names what differs between ranks, or what is wrong with the rank's own
/// arguments.
pub(crate) fn is_named(error: &CollectiveError) -> bool {
    error.to_string().contains(" called ") || matches!(error, CollectiveError::Argument { .. })
}
