//! Arranges ranks as a grid, and tensors on it.

use std::fmt;

use crate::join;

/// A dimension of a [`Mesh`], counted from 0.
pub type Axis = usize;

/// The ranks of a world as a grid in row-major order: the last axis varies fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    dims: Vec<u32>,
}

impl Mesh {
    /// Creates a grid with the given size along each axis.
    pub fn new(dims: Vec<u32>) -> Mesh {
        Mesh { dims }
    }

    /// Returns the coarsest grid of `world` ranks in which each arrangement's dimensions are whole
    /// axes, if any.
    ///
    /// An arrangement is itself a grid of all ranks. `[2, 4]` and `[8]` result in the mesh 2 x 4,
    /// and `[4, 2]` and `[2, 4]` in 2 x 2 x 2. `[3, 4]` and `[2, 6]` have no common grid.
    pub fn refining<'a>(
        world: u32,
        arrangements: impl IntoIterator<Item = &'a [u32]>,
    ) -> Option<Mesh> {
        let mut cuts = vec![1, world];
        for arrangement in arrangements {
            let mut product = 1;
            for size in arrangement.iter().rev() {
                product *= size;
                cuts.push(product);
            }
        }
        cuts.sort_unstable_by(|a, b| b.cmp(a));
        cuts.dedup();
        let sizes = cuts.windows(2).map(|cut| (cut[0] % cut[1] == 0).then(|| cut[0] / cut[1]));
        Some(Mesh { dims: sizes.collect::<Option<_>>()? })
    }

    /// Returns the axes of each dimension of an arrangement that this mesh refines. A dimension of
    /// size 1 has none.
    pub fn axes_of(&self, arrangement: &[u32]) -> Vec<Vec<Axis>> {
        let mut next = 0;
        let mut axes_of = |&size: &u32| {
            let mut axes = Vec::new();
            let mut product = 1;
            while product < size && next < self.dims.len() {
                product *= self.dims[next];
                axes.push(next);
                next += 1;
            }
            axes
        };
        arrangement.iter().map(&mut axes_of).collect()
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.dims.iter().product()
    }

    /// The number of ranks that differ only in `axes`, which is also the number of parts that the
    /// axes cut.
    pub fn size(&self, axes: &[Axis]) -> u32 {
        axes.iter().map(|&axis| self.dims[axis]).product()
    }

    /// The difference in rank between neighbors on `axis`.
    fn stride(&self, axis: Axis) -> u32 {
        self.dims[axis + 1..].iter().product()
    }

    /// Returns the index of `rank` among the ranks that differ only in `axes`. The first of `axes`
    /// varies slowest.
    pub fn index(&self, rank: u32, axes: &[Axis]) -> u32 {
        axes.iter().fold(0, |index, &axis| {
            index * self.dims[axis] + rank / self.stride(axis) % self.dims[axis]
        })
    }

    /// Returns `rank` and the ranks that differ from it only in `axes`, in the order of
    /// [`Mesh::index`].
    pub fn group(&self, rank: u32, axes: &[Axis]) -> Vec<u32> {
        let first = self.origin(rank, axes);
        let mut ranks: Vec<u32> =
            (0..self.world()).filter(|&other| self.origin(other, axes) == first).collect();
        ranks.sort_by_key(|&other| self.index(other, axes));
        ranks
    }

    /// Returns the first rank of the group, which identifies the group.
    pub fn origin(&self, rank: u32, axes: &[Axis]) -> u32 {
        axes.iter().fold(rank, |rank, &axis| {
            rank - rank / self.stride(axis) % self.dims[axis] * self.stride(axis)
        })
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", join(&self.dims, ","))
    }
}

/// The mesh axes that cut each dimension of a tensor, and the axes over which its values must still
/// be summed.
///
/// Ranks that differ only in any other axis are replicas: they hold the same part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The axes that cut each dimension, outermost first.
    pub dims: Vec<Vec<Axis>>,
    /// The axes over which the ranks' values must still be summed, in ascending order.
    pub partial: Vec<Axis>,
}

impl Layout {
    /// Creates a layout without pending sums.
    pub fn new(dims: Vec<Vec<Axis>>) -> Layout {
        Layout { dims, partial: Vec::new() }
    }

    /// Returns the same cuts without pending sums.
    pub fn complete(&self) -> Layout {
        Layout::new(self.dims.clone())
    }

    /// Returns whether an axis neither cuts the tensor nor has a pending sum.
    pub fn is_free(&self, axis: Axis) -> bool {
        !self.partial.contains(&axis) && !self.dims.iter().any(|axes| axes.contains(&axis))
    }

    /// Returns the shape of each rank's part of a tensor of `shape`.
    pub fn local_shape(&self, mesh: &Mesh, shape: &[usize]) -> Vec<usize> {
        shape.iter().zip(&self.dims).map(|(size, axes)| size / mesh.size(axes) as usize).collect()
    }

    /// Returns the offset of the part of `rank` in a tensor of `shape`.
    pub fn offset(&self, mesh: &Mesh, shape: &[usize], rank: u32) -> Vec<usize> {
        let local = self.local_shape(mesh, shape);
        local
            .iter()
            .zip(&self.dims)
            .map(|(size, axes)| size * mesh.index(rank, axes) as usize)
            .collect()
    }

    /// Returns the index of the part of `rank`, in row-major order, and the number of parts.
    pub fn part(&self, mesh: &Mesh, rank: u32) -> (u32, u32) {
        let axes = self.dims.concat();
        (mesh.index(rank, &axes), mesh.size(&axes))
    }
}

impl fmt::Display for Layout {
    /// Writes, for example, `[0 1, -] partial 2`: axes 0 and 1 cut dimension 0, dimension 1 is
    /// whole, and a sum over axis 2 is pending.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self
            .dims
            .iter()
            .map(|axes| if axes.is_empty() { "-".to_owned() } else { join(axes, " ") });
        write!(f, "[{}]", join(dims, ", "))?;
        if self.partial.is_empty() {
            Ok(())
        } else {
            write!(f, " partial {}", join(&self.partial, " "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refining(world: u32, arrangements: &[&[u32]]) -> Option<Vec<u32>> {
        Mesh::refining(world, arrangements.iter().copied()).map(|mesh| mesh.dims)
    }

    #[test]
    fn arrangements_have_a_common_refinement_or_none() {
        assert_eq!(refining(8, &[&[2, 4], &[8]]), Some(vec![2, 4]));
        assert_eq!(refining(8, &[&[4, 2, 1], &[2, 4]]), Some(vec![2, 2, 2]));
        assert_eq!(refining(1, &[&[1, 1]]), Some(vec![]));
        assert_eq!(refining(12, &[&[3, 4], &[2, 6]]), None);
        assert_eq!(refining(12, &[&[3, 4], &[6, 2]]), Some(vec![3, 2, 2]));
    }

    #[test]
    fn the_last_axis_is_the_fastest() {
        let mesh = Mesh::new(vec![2, 4]);
        assert_eq!(mesh.group(0, &[1]), [0, 1, 2, 3]);
        assert_eq!(mesh.group(6, &[1]), [4, 5, 6, 7]);
        assert_eq!(mesh.group(6, &[0]), [2, 6]);
        assert_eq!(mesh.group(6, &[1, 0]), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(mesh.group(6, &[]), [6]);
    }

    #[test]
    fn a_rank_stands_in_its_group_at_its_index() {
        let mesh = Mesh::new(vec![2, 3, 2]);
        for axes in [&[0, 1, 2][..], &[2, 0], &[1], &[]] {
            for rank in 0..12 {
                let group = mesh.group(rank, axes);
                assert_eq!(group[mesh.index(rank, axes) as usize], rank);
                assert_eq!(mesh.origin(rank, axes), group[0]);
                assert!(group.iter().all(|&other| mesh.group(other, axes) == group));
            }
        }
    }

    #[test]
    fn a_dimension_of_an_arrangement_is_whole_axes() {
        let mesh = Mesh::new(vec![2, 2, 2]);
        assert_eq!(mesh.axes_of(&[2, 4]), [vec![0], vec![1, 2]]);
        assert_eq!(mesh.axes_of(&[4, 1, 2]), [vec![0, 1], vec![], vec![2]]);
        assert_eq!(mesh.axes_of(&[8]), [vec![0, 1, 2]]);
    }

    #[test]
    fn each_rank_has_its_part() {
        let mesh = Mesh::new(vec![2, 4]);
        let layout = Layout::new(vec![vec![0], vec![1]]);
        assert_eq!(layout.local_shape(&mesh, &[16, 16]), [8, 4]);
        assert_eq!(layout.offset(&mesh, &[16, 16], 6), [8, 8]);
        assert_eq!(layout.part(&mesh, 6), (6, 8));
        let rows = Layout::new(vec![vec![1], vec![]]);
        assert_eq!(rows.part(&mesh, 6), (2, 4));
        assert!(rows.is_free(0) && !rows.is_free(1));
    }

    #[test]
    fn a_layout_is_printed_with_its_axes() {
        let layout = Layout { dims: vec![vec![0, 1], vec![]], partial: vec![2] };
        assert_eq!(layout.to_string(), "[0 1, -] partial 2");
        assert_eq!(layout.complete().to_string(), "[0 1, -]");
    }
}
