//! One rank that tests/real_programs/collectives starts: it measures calls of all ranks.
//!
//! `collective_speed shared-memory|tcp|mpi` prints `CALL BYTES MICROSECONDS` on rank 0, as the other
//! programs there do: medians, of which each is the time until the last rank has returned.

use std::error::Error;
use std::time::{Duration, Instant};

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group, Reduction};

/// The bytes of the longest buffer of a rank, and the number of measurements.
const LENGTHS: [(usize, usize); 4] = [(8, 1000), (31_400, 500), (1 << 20, 100), (64 << 20, 7)];

type Call = fn(&mut Group, &mut [f32], &mut [f32]) -> Result<(), CollectiveError>;

/// The calls, with a buffer and a rank's part of it.
const CALLS: [(&str, Call); 5] = [
    ("all_reduce", |group, all, _| group.all_reduce_sum(all)),
    ("broadcast", |group, all, _| group.broadcast(all, 0)),
    ("all_gather", |group, all, part| group.all_gather_into(part, all)),
    ("reduce_scatter", |group, all, part| group.reduce_scatter_into(all, part, Reduction::Sum)),
    ("all_to_all", |group, all, _| {
        let (sent, received) = all.split_at_mut(all.len() / 2);
        group.all_to_all_into(sent, received)
    }),
];

fn main() -> Result<(), Box<dyn Error>> {
    let backend = match std::env::args().nth(1).as_deref() {
        Some("shared-memory") => Backend::SharedMemory,
        Some("tcp") => Backend::Tcp,
        Some("mpi") => Backend::Mpi,
        _ => return Err("usage: collective_speed shared-memory|tcp|mpi".into()),
    };
    let info = ClusterInfo::from_env()?;
    let builder = Group::builder(&info).backend(backend).timeout(Duration::from_secs(120));
    let mut group = builder.connect()?;
    let size = group.size() as usize;
    for (name, call) in CALLS {
        for (bytes, times) in LENGTHS {
            let part = (bytes / size_of::<f32>() / size).max(1);
            // An all-to-all sends as many bytes as it receives.
            let both = if name == "all_to_all" { 2 } else { 1 };
            let (mut all, mut part) = (vec![1.0; both * part * size], vec![1.0; part]);
            let mut taken = Vec::new();
            for _ in 0..times + times / 10 + 1 {
                all.fill(1.0);
                group.barrier()?;
                let begun = Instant::now();
                call(&mut group, &mut all, &mut part)?;
                taken.push(begun.elapsed().as_secs_f64());
            }
            group.all_reduce_max(&mut taken)?;
            // The first ones warm up.
            let taken = &mut taken[times / 10 + 1..];
            taken.sort_by(f64::total_cmp);
            if group.rank().is_first() {
                println!("{name} {bytes} {:.1}", taken[times / 2] * 1e6);
            }
        }
    }
    Ok(group.close()?)
}
