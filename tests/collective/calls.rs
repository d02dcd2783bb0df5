//! One rank of the jobs that tests/it/mpi.rs starts over MPI. With the argument `values`, the ranks
//! make the same calls; with `fails`, they close a group that has failed; otherwise, one rank after
//! the other makes another call than the rest.

use std::error::Error;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Element, Group, Reduction, half};

#[path = "../../src/collective/tests/calls.rs"]
mod calls;
#[path = "../../src/collective/tests/values.rs"]
mod values;

use calls::{CALLS, RINGS};

fn main() -> Result<(), Box<dyn Error>> {
    let info = ClusterInfo::from_env()?;
    let mut group =
        Group::builder(&info).backend(Backend::Mpi).timeout(Duration::from_secs(1200)).connect()?;
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("values") {
        for count in [0, 1, 5000] {
            values::check_all(&mut group, count)?;
        }
        if group.size() == 4 {
            // Ranks that share a core move such numbers, of more than 4 MiB, a piece at a time.
            values::check::<f64>(&mut group, 550_000)?;
        }
        if group.size() == 2 {
            // More than one call of MPI moves.
            let whole: Vec<f64> = (0..9_000_000).map(f64::from).collect();
            let twice: Vec<f64> = whole.iter().map(|value| 2.0 * value).collect();
            let (mut sum, mut part) = (whole.clone(), vec![0.0; whole.len() / 2]);
            group.all_reduce_sum(&mut sum)?;
            group.reduce_scatter_into(&whole, &mut part, Reduction::Sum)?;
            let own = group.rank().index() as usize * part.len();
            let mut sent = if own == 0 { whole.clone() } else { vec![0.0; whole.len()] };
            group.broadcast(&mut sent, 0)?;
            if sum != twice || part != twice[own..][..part.len()] || sent != whole {
                return Err("the values of a long buffer are wrong".into());
            }
        }
        println!("values are right");
        return Ok(group.close()?);
    }
    let (own, size) = (group.rank().index(), group.size());
    if argument.as_deref() == Some("fails") {
        let first = if own == 0 { group.barrier() } else { group.all_gather(b"x").map(drop) };
        let [first, closed] = [first, group.close()].map(Result::unwrap_err);
        let is_same = (first.kind(), first.rank()) == (closed.kind(), closed.rank());
        println!("closed with the error of the call: {is_same}");
        return Ok(());
    }
    let mut odd = 0;
    // A message where others make a call of all ranks would be noticed only after the timeout.
    let pairs_of = |calls: &'static [(&'static str, calls::Made)]| {
        let pairs = calls.iter().enumerate();
        pairs.flat_map(|(index, one)| calls[index + 1..].iter().map(move |other| (one, other)))
    };
    for (one, other) in pairs_of(CALLS).chain(pairs_of(RINGS)) {
        // With two ranks, the last is rank 1, and the next is the one before.
        let is_same = [
            ("broadcast from 1", "broadcast from the last"),
            ("messages", "messages the other way"),
        ];
        if size == 2 && is_same.contains(&(one.0, other.0)) {
            continue;
        }
        odd = (odd + 1) % size;
        let call = if own == odd { other.1 } else { one.1 };
        let result = call(&mut group);
        if !result.as_ref().is_err_and(calls::is_named) {
            return Err(format!("{}, and on rank {odd} {}: {result:?}", one.0, other.0).into());
        }
    }
    // MPI has seen no call that differs, so it still works.
    let all = group.all_gather(&[own as u8])?.concat();
    let is_right = all.iter().copied().map(u32::from).eq(0..size);
    println!("compared: {is_right}");
    let result = if own == 0 { group.close() } else { group.barrier() };
    println!("close compared: {}", result.is_err_and(|error| calls::is_named(&error)));
    Ok(())
}
