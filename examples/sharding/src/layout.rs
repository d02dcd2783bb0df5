//! Describes how a tensor is distributed over the ranks.

use std::fmt;

use super::mesh::{Axis, Mesh};
use crate::join;

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
