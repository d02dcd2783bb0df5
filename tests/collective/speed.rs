//! One rank that tests/real_programs/collectives starts: it measures calls of all ranks.
//!
//! `collective_speed shared-memory|tcp|mpi`, or `collective_speed threads RANKS` for ranks that are
//! threads. Rank 0 prints `CALL BYTES MICROSECONDS` as the programs beside that script do: the
//! median of the times until the last rank has returned.

use std::error::Error;
use std::time::{Duration, Instant};

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group, Reduction, threads};

/// The bytes of the longest buffer of a rank.
const LENGTHS: [usize; 4] = [8, 31_400, 1 << 20, 64 << 20];
/// The calls before the measured ones.
const WARM: usize = 4;
/// What the measured calls of one kind and length may take together with their barriers, in
/// seconds.
const BUDGET: f64 = 0.25;
/// How many calls are measured.
const FEWEST: usize = 5;
const MOST: usize = 1000;
const TIMEOUT: Duration = Duration::from_secs(120);

type Call = fn(&mut Group, &mut [f32], &mut [f32]) -> Result<(), CollectiveError>;

/// The calls, with a buffer and a rank's part of it.
const CALLS: [(&str, Call); 7] = [
    ("all_reduce", |group, all, _| group.all_reduce_sum(all)),
    ("broadcast", |group, all, _| group.broadcast(all, 0)),
    ("all_gather", |group, all, part| group.all_gather_into(part, all)),
    ("reduce_scatter", |group, all, part| group.reduce_scatter_into(all, part, Reduction::Sum)),
    ("all_to_all", |group, all, _| {
        let (sent, received) = all.split_at_mut(all.len() / 2);
        group.all_to_all_into(sent, received)
    }),
    ("send_receive", |group, all, _| {
        let (own, size) = (group.rank().index(), group.size());
        let (sent, received) = all.split_at_mut(all.len() / 2);
        group.send_receive(sent, (own + 1) % size, received, (own + size - 1) % size)
    }),
    ("barrier", |group, _, _| group.barrier()),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let backend = match arguments.next().as_deref() {
        Some("shared-memory") => Backend::SharedMemory,
        Some("tcp") => Backend::Tcp,
        Some("mpi") => Backend::Mpi,
        Some("threads") => {
            let ranks = arguments.next().ok_or("threads: how many?")?.parse()?;
            for result in threads::run(ranks, TIMEOUT, measure)? {
                result?;
            }
            return Ok(());
        }
        _ => return Err("usage: collective_speed shared-memory|tcp|mpi|threads RANKS".into()),
    };
    let info = ClusterInfo::from_env()?;
    let mut group = Group::builder(&info).backend(backend).timeout(TIMEOUT).connect()?;
    measure(&mut group)?;
    Ok(group.close()?)
}

fn measure(group: &mut Group) -> Result<(), CollectiveError> {
    let size = group.size() as usize;
    for (name, call) in CALLS {
        for &bytes in if name == "barrier" { &[0][..] } else { &LENGTHS } {
            let part = (bytes / size_of::<f32>() / size).max(1);
            // These send as many bytes as they receive.
            let both = if matches!(name, "all_to_all" | "send_receive") { 2 } else { 1 };
            let (mut all, mut part) = (vec![1.0; both * part * size], vec![1.0; part]);
            let mut timed = |group: &mut Group| {
                all.fill(1.0);
                group.barrier()?;
                let begun = Instant::now();
                call(group, &mut all, &mut part)?;
                Ok(begun.elapsed().as_secs_f64())
            };
            let begun = Instant::now();
            for _ in 0..WARM {
                timed(group)?;
            }
            let mut slowest = [begun.elapsed().as_secs_f64() / WARM as f64];
            group.all_reduce_max(&mut slowest)?;
            let times = ((BUDGET / slowest[0]) as usize).clamp(FEWEST, MOST);
            let taken: Result<Vec<f64>, CollectiveError> =
                (0..times).map(|_| timed(group)).collect();
            let mut taken = taken?;
            group.all_reduce_max(&mut taken)?;
            taken.sort_by(f64::total_cmp);
            if group.rank().is_first() {
                println!("{name} {bytes} {:.2}", taken[times / 2] * 1e6);
            }
        }
    }
    Ok(())
}
