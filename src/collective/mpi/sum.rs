//! The calls that reduce numbers: MPI's own sums, and every rank's own order for all others.

use mpienv_mpi::Element;

use super::{Mpi, PIECE};
use crate::error::Result;
use crate::numbers::Numbers;
use crate::reduction::{Reduction, aligned, in_rank_order};
use crate::transport::Transport as _;

/// The buffers that MPI uses during a sum, one for each type. Most programs use only one.
#[derive(Debug, Default)]
pub(super) struct Sum {
    singles: Vec<f32>,
    doubles: Vec<f64>,
}

impl Mpi {
    /// Reduces the numbers of all ranks, which have agreed on the call.
    pub(super) fn reduce_all(&mut self, mut numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        if matches!(by, Reduction::Sum | Reduction::Mean) {
            let is_summed = if let Some(values) = numbers.as_mut::<f32>() {
                let buffer = std::mem::take(&mut self.sum.singles);
                self.sum.singles = sum(self, values, buffer)?;
                true
            } else if let Some(values) = numbers.as_mut::<f64>() {
                let buffer = std::mem::take(&mut self.sum.doubles);
                self.sum.doubles = sum(self, values, buffer)?;
                true
            } else {
                false
            };
            if is_summed {
                numbers.kind().divide(by, self.rank().size(), numbers.bytes());
                return Ok(());
            }
        }
        // MPI does not define what the smallest number is if one is NaN, that integers wrap around,
        // or how half-precision numbers are rounded. So every rank gets all numbers of a block and
        // reduces them itself.
        let most = (PIECE / self.rank().size() as usize / 8).max(1) * 8;
        for mut block in numbers.blocks(most).filter(|block| block.count() > 0) {
            let all = self.gather_equal(block.bytes())?;
            in_rank_order(block.kind(), by, all.iter().map(Vec::as_slice), block.bytes());
        }
        Ok(())
    }

    /// Sums this rank's part of the numbers of all ranks, if MPI can: returns whether it has.
    pub(super) fn sum_part(
        &mut self,
        values: &[u8],
        part: &mut Numbers<'_>,
        by: Reduction,
    ) -> Result<bool> {
        // MPI's call takes parts of one length. That of another rank may be longer than this one's.
        let count = values.len() / part.kind().size();
        let is_even = count.is_multiple_of(self.rank().size() as usize);
        if !is_even || !matches!(by, Reduction::Sum | Reduction::Mean) {
            return Ok(false);
        }
        if let Some(part) = part.as_mut::<f32>() {
            let buffer = std::mem::take(&mut self.sum.singles);
            self.sum.singles = sum_part(self, &aligned(values), part, buffer)?;
        } else if let Some(part) = part.as_mut::<f64>() {
            let buffer = std::mem::take(&mut self.sum.doubles);
            self.sum.doubles = sum_part(self, &aligned(values), part, buffer)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Sums `values` over all ranks, in place. Returns the buffer for the next sum.
fn sum<T: Element>(mpi: &Mpi, values: &mut [T], mut buffer: Vec<T>) -> Result<Vec<T>> {
    for piece in values.chunks_mut(PIECE / size_of::<T>()) {
        if mpi.job.spins {
            mpi.call(|ranks| ranks.all_reduce_sum(piece))?;
            continue;
        }
        buffer.clear();
        buffer.extend_from_slice(piece);
        buffer = mpi.wait(|ranks| ranks.start_all_reduce_sum(buffer))?;
        piece.copy_from_slice(&buffer);
    }
    Ok(buffer)
}

/// Sums `values` over all ranks into this rank's `part`: of each rank's part, a piece at a time. One
/// that is waited for in naps stays in the processor's cache. Returns the buffer for the next sum.
fn sum_part<T: Element>(
    mpi: &Mpi,
    values: &[T],
    part: &mut [T],
    mut buffer: Vec<T>,
) -> Result<Vec<T>> {
    let spins = mpi.job.spins;
    if spins && size_of_val(values) <= PIECE {
        mpi.call(|ranks| ranks.reduce_scatter_sum(values, part))?;
        return Ok(buffer);
    }
    let most = if spins { PIECE / mpi.rank().size() as usize } else { mpi.piece() };
    let (length, most) = (part.len(), (most / size_of::<T>()).max(1));
    for (index, into) in part.chunks_mut(most).enumerate() {
        let piece = index * most..index * most + into.len();
        buffer.clear();
        for values in values.chunks(length) {
            buffer.extend_from_slice(&values[piece.clone()]);
        }
        if spins {
            mpi.call(|ranks| ranks.reduce_scatter_sum(&buffer, into))?;
            continue;
        }
        buffer = mpi.wait(|ranks| ranks.start_reduce_scatter_sum(buffer))?;
        into.copy_from_slice(&buffer[..into.len()]);
    }
    Ok(buffer)
}
