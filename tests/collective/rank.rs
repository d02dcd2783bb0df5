//! One rank of the jobs that tests/it/collective.rs and tests/it/kills.rs start: it makes calls
//! until it or another rank is killed.
//!
//! `collective_rank NUMBERS TIMEOUT [BACKEND [ABSENT]]`, with a timeout in seconds. Without a
//! backend, it only sums, over shared memory. The rank ABSENT connects and then makes no call, as
//! in tests/it/stalls.rs.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group, Reduction};

fn main() -> ExitCode {
    let info = ClusterInfo::from_env().unwrap();
    let word = |index| std::env::args().nth(index);
    let [count, timeout] = [1, 2].map(|index| word(index).unwrap().parse().unwrap());
    let backend = word(3);
    let builder = Group::builder(&info).timeout(Duration::from_secs(timeout));
    let connected = match backend.as_deref() {
        None | Some("shared-memory") => builder.backend(Backend::SharedMemory),
        Some("mpi") => builder.backend(Backend::Mpi),
        Some(_) => builder.backend(Backend::Tcp),
    }
    .connect();
    let mut group = match connected {
        Ok(group) => group,
        Err(error) => return failed(&error),
    };
    println!("{}", group.describe());
    if word(4).is_some_and(|absent| absent == info.rank().to_string()) {
        std::thread::sleep(Duration::from_secs(3000));
    }
    let mut values = vec![1.0_f32; count as usize];
    for turn in 0.. {
        let made = match backend {
            None => group.all_reduce_sum(&mut values),
            Some(_) => make_each(&mut group, &mut values, turn),
        };
        if let Err(error) = made {
            return failed(&error);
        }
        values.fill(1.0);
        if turn == 9 {
            // A reader may stop after the last line.
            println!("process {} of rank {}", std::process::id(), info.rank());
            println!("sums");
            std::io::stdout().flush().unwrap();
        }
    }
    ExitCode::SUCCESS
}

/// Makes every call once. The root is another rank each time.
fn make_each(group: &mut Group, values: &mut [f32], turn: u32) -> Result<(), CollectiveError> {
    let (own, size) = (group.rank().index(), group.size());
    let (root, ranks) = (turn % size, size as usize);
    let mut all = vec![0.0; values.len() * ranks];
    let mut part = vec![0.0; group.rank().share_of(values.len()).len()];
    group.all_reduce_sum(values)?;
    group.broadcast(values, root)?;
    group.reduce(values, Reduction::Max, root)?;
    group.all_gather_into(values, &mut all)?;
    group.reduce_scatter_into(values, &mut part, Reduction::Mean)?;
    group.gather(values, if own == root { &mut all } else { &mut [] }, root)?;
    let mut received = vec![0.0; all.len()];
    group.all_to_all_into(&all, &mut received)?;
    group.scatter(if own == root { &all } else { &[] }, values, root)?;
    group.send_receive(
        values,
        (own + 1) % size,
        &mut received[..values.len()],
        (own + size - 1) % size,
    )?;
    group.barrier()
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(3)
}
