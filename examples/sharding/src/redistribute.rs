//! Redistributes a tensor from one layout to another.

use super::mesh::{Axis, Layout, Mesh};
use std::ops::AddAssign;

/// A step that all ranks perform on the parts of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: Kind,
    /// The axes that the step cuts by, sums over or joins. If anything is sent, the exchanging ranks
    /// differ in them alone.
    pub axes: Vec<Axis>,
}

/// What a step does with its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keeps a slice of each part: the axes cut `dim` in addition to those that already do. Sends
    /// nothing.
    Slice { dim: usize },
    /// Sums over the axes. All ranks keep the whole sum.
    AllReduce,
    /// Sums over the axes, which then cut `dim`.
    ReduceScatter { dim: usize },
    /// Concatenates `dim` over the axes, which are the last ones that cut it.
    AllGather { dim: usize },
    /// Concatenates the dimension `from` over the axes, which then cut `to`.
    AllToAll { from: usize, to: usize },
}

impl Step {
    /// The axes in which the exchanging ranks differ. Empty if nothing is sent.
    pub fn group(&self) -> &[Axis] {
        if matches!(self.kind, Kind::Slice { .. }) { &[] } else { &self.axes }
    }

    /// Applies the step to a layout.
    pub fn apply(&self, Layout { dims, partial }: &mut Layout) {
        let is_other = |axis: &Axis| !self.axes.contains(axis);
        match self.kind {
            Kind::Slice { dim } => dims[dim].extend(&self.axes),
            Kind::AllReduce => partial.retain(is_other),
            Kind::ReduceScatter { dim } => {
                partial.retain(is_other);
                dims[dim].extend(&self.axes);
            }
            Kind::AllGather { dim } => dims[dim].retain(is_other),
            Kind::AllToAll { from, to } => {
                dims[from].retain(is_other);
                dims[to].extend(&self.axes);
            }
        }
    }

    /// Returns the traffic if every rank's part has `bytes` bytes before the step.
    pub fn traffic(&self, mesh: &Mesh, bytes: u64) -> Traffic {
        let ranks = u64::from(mesh.size(self.group()));
        let whole = match self.kind {
            Kind::Slice { .. } => return Traffic::default(),
            // A reduce-scatter, and then an all-gather of the sums.
            Kind::AllReduce => 2 * bytes,
            Kind::ReduceScatter { .. } | Kind::AllToAll { .. } => bytes,
            Kind::AllGather { .. } => ranks * bytes,
        };
        Traffic::of_rings(mesh.world().into(), ranks, whole)
    }

    /// Replaces the step with sums and gathers, which send more: a reduce-scatter becomes a sum and
    /// a slice, and an all-to-all becomes a gather and a slice.
    pub fn lowered(self) -> Vec<Step> {
        let two = |first, dim| {
            [first, Kind::Slice { dim }].map(|kind| Step { kind, axes: self.axes.clone() }).into()
        };
        match self.kind {
            Kind::ReduceScatter { dim } => two(Kind::AllReduce, dim),
            Kind::AllToAll { from, to } => two(Kind::AllGather { dim: from }, to),
            _ => vec![self],
        }
    }
}

/// Returns the steps from the layout `from` to the layout `to`, which must not have pending sums.
///
/// Both layouts must have the same number of dimensions and the same mesh.
pub fn redistribute(from: &Layout, to: &Layout) -> Vec<Step> {
    let mut work = Work { now: from.clone(), to, steps: Vec::new() };
    // Slice first: data sliced off before a sum or a gather need not be sent.
    while let Some(step) = work
        .slice()
        .or_else(|| work.reduce_scatter())
        .or_else(|| work.all_reduce())
        .or_else(|| work.all_to_all())
        .or_else(|| work.all_gather())
    {
        step.apply(&mut work.now);
        work.steps.push(step);
    }
    work.steps
}

struct Work<'a> {
    now: Layout,
    to: &'a Layout,
    steps: Vec<Step>,
}

impl Work<'_> {
    /// Returns the axes that must cut a dimension next. Empty if other axes must be removed first.
    fn missing(&self, dim: usize) -> &[Axis] {
        self.to.dims[dim].strip_prefix(self.now.dims[dim].as_slice()).unwrap_or_default()
    }

    /// Returns the axes to be removed from a dimension: the first wrong one and all after it.
    fn surplus(&self, dim: usize) -> &[Axis] {
        let (now, to) = (&self.now.dims[dim], &self.to.dims[dim]);
        let common = now.iter().zip(to).take_while(|(a, b)| a == b).count();
        &now[common..]
    }

    fn dims(&self) -> std::ops::Range<usize> {
        0..self.to.dims.len()
    }

    /// Returns the first dimension whose missing axes begin with such axes, and these.
    fn missing_while(&self, takes: impl Fn(Axis) -> bool) -> Option<(usize, Vec<Axis>)> {
        self.dims().find_map(|dim| {
            let such = self.missing(dim).iter().take_while(|axis| takes(**axis));
            let axes: Vec<Axis> = such.copied().collect();
            (!axes.is_empty()).then_some((dim, axes))
        })
    }

    /// Cuts a dimension by its missing axes that are free.
    fn slice(&self) -> Option<Step> {
        let (dim, axes) = self.missing_while(|axis| self.now.is_free(axis))?;
        Some(Step { kind: Kind::Slice { dim }, axes })
    }

    /// Sums over axes that must cut a dimension next.
    fn reduce_scatter(&self) -> Option<Step> {
        let (dim, axes) = self.missing_while(|axis| self.now.partial.contains(&axis))?;
        Some(Step { kind: Kind::ReduceScatter { dim }, axes })
    }

    /// Sums over the axes of all sums that are left.
    fn all_reduce(&self) -> Option<Step> {
        let axes = self.now.partial.clone();
        (!axes.is_empty()).then_some(Step { kind: Kind::AllReduce, axes })
    }

    /// Moves the longest run of axes that ends one dimension's surplus and begins another's missing
    /// axes.
    fn all_to_all(&self) -> Option<Step> {
        self.dims().find_map(|from| {
            let surplus = self.surplus(from);
            let fits = |axes: &[Axis], to| to != from && self.missing(to).starts_with(axes);
            (0..surplus.len()).find_map(|start| {
                let axes = &surplus[start..];
                let to = self.dims().find(|&to| fits(axes, to))?;
                Some(Step { kind: Kind::AllToAll { from, to }, axes: axes.to_vec() })
            })
        })
    }

    fn all_gather(&self) -> Option<Step> {
        let dim = self.dims().find(|&dim| !self.surplus(dim).is_empty())?;
        Some(Step { kind: Kind::AllGather { dim }, axes: self.surplus(dim).to_vec() })
    }
}

/// The number of collective calls of a rank, and the bytes that all ranks send in them.
///
/// In a ring of p ranks, a rank sends 2(p-1)/p of the bytes of an all-reduce, (p-1)/p of the bytes
/// of a reduce-scatter or an all-to-all, and p-1 times its own bytes in an all-gather. The total
/// over all ranks is a whole number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// The bytes that all ranks of the world send.
    pub bytes: u64,
    /// The number of calls of each rank.
    pub calls: u64,
}

impl Traffic {
    /// The traffic of a call in each group of `ranks` ranks, out of `world` ranks. Every rank sends
    /// all but its own part of `bytes` bytes.
    pub fn of_rings(world: u64, ranks: u64, bytes: u64) -> Traffic {
        Traffic { bytes: world / ranks * (ranks - 1) * bytes, calls: 1 }
    }

    /// Returns the mean number of bytes per rank.
    pub fn bytes_per_rank(self, world: u32) -> f64 {
        self.bytes as f64 / f64::from(world)
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.bytes += other.bytes;
        self.calls += other.calls;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[&[Axis]], partial: &[Axis]) -> Layout {
        Layout { dims: dims.iter().map(|axes| axes.to_vec()).collect(), partial: partial.to_vec() }
    }

    fn step(kind: Kind, axes: &[Axis]) -> Step {
        Step { kind, axes: axes.to_vec() }
    }

    #[test]
    fn the_quick_starts_tensors_move_as_in_its_graph() {
        // The samples, from rows on every rank to blocks for the matrix product.
        let steps = redistribute(&layout(&[&[0, 1], &[]], &[]), &layout(&[&[0], &[1]], &[]));
        assert_eq!(steps, [step(Kind::AllToAll { from: 0, to: 1 }, &[1])]);
        let lowered = [step(Kind::AllGather { dim: 0 }, &[1]), step(Kind::Slice { dim: 1 }, &[1])];
        assert_eq!(steps.into_iter().flat_map(Step::lowered).collect::<Vec<_>>(), lowered);
        // The product's sum.
        let steps = redistribute(&layout(&[&[0], &[]], &[1]), &layout(&[&[0], &[1]], &[]));
        assert_eq!(steps, [step(Kind::ReduceScatter { dim: 1 }, &[1])]);
    }

    #[test]
    fn sums_over_axes_that_cut_nothing_are_made_at_once() {
        let steps = redistribute(&layout(&[&[1], &[]], &[0, 2]), &layout(&[&[1], &[]], &[]));
        assert_eq!(steps, [step(Kind::AllReduce, &[0, 2])]);
    }

    #[test]
    fn what_is_cut_off_is_not_sent() {
        let steps = redistribute(&layout(&[&[], &[0]], &[]), &layout(&[&[1], &[]], &[]));
        let expected = [step(Kind::Slice { dim: 0 }, &[1]), step(Kind::AllGather { dim: 1 }, &[0])];
        assert_eq!(steps, expected);
    }

    #[test]
    fn axes_in_another_order_are_gathered_and_cut_again() {
        let steps = redistribute(&layout(&[&[0, 1]], &[]), &layout(&[&[1, 0]], &[]));
        let expected =
            [step(Kind::AllGather { dim: 0 }, &[0, 1]), step(Kind::Slice { dim: 0 }, &[1, 0])];
        assert_eq!(steps, expected);
    }
}
