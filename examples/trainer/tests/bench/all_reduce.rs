//! Measures the median time of an all-reduce of 8 bytes to 64 MB, with 2 and 4 ranks on one
//! machine, by transport.

#[path = "job.rs"]
mod job;

use std::time::Instant;

use job::Failure;
use mpienv::collective::Group;

/// The bytes to sum and the number of measurements. The linear model's gradient has 31,400 bytes.
const SUMS: [(usize, usize); 8] = [
    (8, 3000),
    (1 << 10, 3000),
    (8 << 10, 3000),
    (31_400, 3000),
    (256 << 10, 500),
    (1 << 20, 300),
    (8 << 20, 50),
    (64 << 20, 15),
];

fn main() -> Result<(), Failure> {
    job::run(
        "| over | ranks | bytes | us | GB/s bus |\n| --- | --- | --- | --- | --- |",
        &[2, 4],
        measure,
    )
}

fn measure(group: &mut Group, over: &str) -> Result<(), Failure> {
    let rank = group.rank();
    for (bytes, times) in SUMS {
        let mut values = vec![0.5; bytes / size_of::<f32>()];
        let mut taken = Vec::with_capacity(times + times / 10);
        for _ in 0..times + times / 10 {
            let begun = Instant::now();
            group.all_reduce_sum(&mut values)?;
            taken.push(begun.elapsed());
            values.fill(0.5);
        }
        group.barrier()?;
        // Discard the warm-up.
        let mut taken = taken.split_off(times / 10);
        taken.sort();
        let seconds = taken[times / 2].as_secs_f64();
        let size = f64::from(rank.size());
        let bus = 2.0 * (size - 1.0) / size * bytes as f64 / seconds / 1e9;
        if rank.is_first() {
            println!("| {over} | {size} | {bytes} | {:.1} | {bus:.2} |", seconds * 1e6);
        }
    }
    Ok(())
}
