//! Computes the heat of a square plate, of which each rank has a block:
//! `mpirun -n 4 target/debug/examples/heat2d`, or with `mpienv launch --nproc-per-node 4 --` in
//! place of `mpirun -n 4`, or alone.
//!
//! Build it with `cargo build --features collective --example heat2d`. Any number of ranks whose
//! grid fits on the plate prints the same numbers. With the feature `mpi`, the launcher's MPI carries the
//! messages between hosts.

use std::error::Error;
use std::process::ExitCode;

use mpienv::collective::{CollectiveError, Group};
use mpienv::{ClusterInfo, Rank};

/// The cells along each side of the plate.
const SIDE: usize = 48;
/// The largest change of a cell in the last step.
const TOLERANCE: f64 = 1e-4;

/// A rank's part of the plate, in a frame of the cells beside it: the neighbors' halos, and the
/// plate's edges. The upper edge is kept at 1, the others at 0.
struct Block {
    rows: usize,
    columns: usize,
    /// The block and its frame, row by row.
    cells: Vec<f64>,
    /// The ranks above, below, to the left and to the right. `None` at an edge of the plate.
    neighbors: [Option<u32>; 4],
    /// Where the middle of the plate is in `cells`, if it is in this block.
    middle: Option<usize>,
}

impl Block {
    /// Lays the ranks out as a grid that is as square as their number allows.
    fn new(rank: Rank) -> Result<Block, Box<dyn Error>> {
        let size = rank.size();
        let down =
            (1..=size).rfind(|&down| size.is_multiple_of(down) && down <= size / down).unwrap_or(1);
        let across = size / down;
        // On all ranks, so that none waits for one that has failed.
        if across as usize > SIDE {
            return Err(format!("{down} x {across} ranks are too many for a side of {SIDE}").into());
        }
        let (row, column) = (rank.index() / across, rank.index() % across);
        // The cells of the blocks in this row and in this column. Shares may differ by one.
        let of_row = Rank::new(row, down)?.share_of(SIDE);
        let of_column = Rank::new(column, across)?.share_of(SIDE);
        let (rows, columns) = (of_row.len(), of_column.len());
        let mut cells = vec![0.0; (rows + 2) * (columns + 2)];
        if row == 0 {
            cells[..columns + 2].fill(1.0);
        }
        let neighbors = [
            (row > 0).then(|| rank.index() - across),
            (row + 1 < down).then(|| rank.index() + across),
            (column > 0).then(|| rank.index() - 1),
            (column + 1 < across).then(|| rank.index() + 1),
        ];
        let middle = SIDE / 2;
        let is_here = of_row.contains(&middle) && of_column.contains(&middle);
        let middle = is_here
            .then(|| (middle - of_row.start + 1) * (columns + 2) + middle - of_column.start + 1);
        Ok(Block { rows, columns, cells, neighbors, middle })
    }

    /// Gets the halos. All ranks exchange the directions in the same order.
    fn exchange(&mut self, group: &mut Group) -> Result<(), CollectiveError> {
        let [above, below, left, right] = self.neighbors;
        let (rows, columns, width) = (self.rows, self.columns, self.columns + 2);
        // A row of the block is one piece of memory, from which a message can go.
        let row = |row: usize| row * width + 1..row * width + 1 + columns;
        for (from_row, to, into_row, from) in [(1, above, rows + 1, below), (rows, below, 0, above)]
        {
            let sent = self.cells[row(from_row)].to_vec();
            group.send_receive(&sent, to, &mut self.cells[row(into_row)], from)?;
        }
        // A column is not, so it is copied out of the block and into it.
        let mut halo = vec![0.0; rows];
        for (from_column, to, into_column, from) in
            [(1, left, columns + 1, right), (columns, right, 0, left)]
        {
            let column = |column: usize| (1..=rows).map(move |row| row * width + column);
            let sent: Vec<_> = column(from_column).map(|cell| self.cells[cell]).collect();
            group.send_receive(&sent, to, &mut halo, from)?;
            if from.is_some() {
                column(into_column).zip(&halo).for_each(|(cell, &heat)| self.cells[cell] = heat);
            }
        }
        Ok(())
    }

    /// Makes each cell the mean of the four beside it, and returns the largest change.
    fn step(&mut self) -> f64 {
        let (width, before) = (self.columns + 2, self.cells.clone());
        let mut change: f64 = 0.0;
        for row in 1..=self.rows {
            for cell in row * width + 1..=row * width + self.columns {
                let vertical = before[cell - width] + before[cell + width];
                self.cells[cell] = 0.25 * (vertical + before[cell - 1] + before[cell + 1]);
                change = change.max((self.cells[cell] - before[cell]).abs());
            }
        }
        change
    }
}

fn solve() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    let mut group = Group::connect(&info)?;
    let mut block = Block::new(group.rank())?;
    let mut steps = 0;
    loop {
        block.exchange(&mut group)?;
        let mut change = [block.step()];
        steps += 1;
        // All ranks stop at the same step, because all get the same number.
        group.all_reduce_max(&mut change)?;
        if change[0] < TOLERANCE {
            break;
        }
    }
    let mut middle = [block.middle.map_or(f64::NEG_INFINITY, |cell| block.cells[cell])];
    group.all_reduce_max(&mut middle)?;
    if group.rank().is_first() {
        println!("{steps} steps; the middle has {:.10}", middle[0]);
    }
    group.close()?;
    Ok(())
}

fn main() -> ExitCode {
    match solve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            // The code tells what failed: a rank was lost, a time limit, or an argument.
            let kind = error.downcast_ref::<CollectiveError>().map(CollectiveError::kind);
            kind.map_or(ExitCode::FAILURE, |kind| ExitCode::from(kind.exit_code()))
        }
    }
}
