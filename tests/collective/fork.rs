//! One rank of the jobs in which tests/it/collective.rs and tests/it/mpi.rs fork a rank that has
//! connected.
//!
//! `collective_fork tcp|shared-memory|mpi`. The last rank forks twice: one child calls its parent's
//! group, the other only drops it. The job then goes on.

use std::error::Error;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{Backend, CollectiveError, Group, Reduction, threads};

/// The C library's functions, which need no crate.
#[expect(unsafe_code, reason = "Rust has no fork")]
mod process {
    mod c {
        unsafe extern "C" {
            pub(super) fn fork() -> i32;
            pub(super) fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
            pub(super) fn _exit(code: i32) -> !;
        }
    }

    /// Runs `work` in a forked child, and returns whether it has succeeded.
    pub(crate) fn run_forked(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: this process has one thread, or all others only sleep in MPI's library and hold
        // no lock of Rust's.
        match unsafe { c::fork() } {
            // SAFETY: the function has no requirements. It does not run what the parent runs when
            // it exits.
            0 => unsafe { c::_exit(i32::from(!work())) },
            child => {
                let mut status = -1;
                // SAFETY: the pointer is to an int.
                child > 0
                    && unsafe { c::waitpid(child, &raw mut status, 0) } == child
                    && status == 0
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let backend = match std::env::args().nth(1).as_deref() {
        Some("tcp") => Backend::Tcp,
        Some("mpi") => Backend::Mpi,
        _ => Backend::SharedMemory,
    };
    let info = ClusterInfo::from_env()?;
    let mut group =
        Group::builder(&info).backend(backend).timeout(Duration::from_secs(1200)).connect()?;
    println!("{}", group.describe());
    let mut part = group.split(0, 0)?;
    sum(&mut group)?;
    sum(&mut part)?;
    if group.rank().index() + 1 == group.size() {
        // The children own what they drop: in the parent, nothing of it is dropped.
        let mut groups = Some((group, part));
        let of_threads = &mut Some(threads::group(2, Duration::from_secs(1200))?);
        let does_refuse = process::run_forked(|| {
            let refuses = groups.take().is_some_and(|(group, part)| refuse(group) && refuse(part));
            let threads = of_threads.take().into_iter().flatten();
            refuses && threads.map(Group::from).all(refuse)
        });
        let does_drop = process::run_forked(|| {
            drop((groups.take(), of_threads.take()));
            true
        });
        if !does_refuse || !does_drop {
            return Err(format!("a child failed: {:?}", [does_refuse, does_drop]).into());
        }
        (group, part) = groups.ok_or("the parent has its groups")?;
    }
    sum(&mut part)?;
    sum(&mut group)?;
    drop(part);
    group.close()?;
    println!("summed");
    Ok(())
}

/// Whether every call refuses to be made by a child, and nothing is sent.
fn refuse(mut group: Group) -> bool {
    let sent = group.bytes_sent();
    let is_fork = |result: Result<(), CollectiveError>| match result {
        Err(CollectiveError::Forked { connected, .. }) => {
            connected == std::os::unix::process::parent_id()
        }
        other => {
            eprintln!("a child got {other:?}");
            false
        }
    };
    let results = [
        group.all_reduce_sum(&mut [1.0_f32; 8]),
        group.all_reduce_sum(&mut [1_u64; 8]),
        group.reduce_scatter_sum(&[1.0_f32; 8]).map(drop),
        group.all_gather(b"x").map(drop),
        group.all_to_all(&vec![Vec::<u8>::new(); group.size() as usize]).map(drop),
        group.broadcast_vec(&mut Vec::<u8>::new(), 0),
        group.broadcast(&mut [0_u8], group.size()),
        group.reduce(&mut [1.0_f32; 8], Reduction::Sum, 0),
        group.gather(&[1.0_f32; 8], &mut vec![0.0; 8 * group.size() as usize], 0),
        group.scatter(&vec![1_u8; group.size() as usize], &mut [0], 0),
        group.send(&[1_u8], (group.rank().index() + 1) % group.size()),
        group.barrier(),
        group.split(0, 0).map(drop),
    ];
    group.abort(9, "a child aborts the job");
    let has_sent = group.bytes_sent() != sent;
    // Without MPI, closing is no more than dropping.
    let closed = group.close();
    !has_sent && results.into_iter().all(is_fork) && (closed.is_ok() || is_fork(closed))
}

fn sum(group: &mut Group) -> Result<(), Box<dyn Error>> {
    let mut values = [1.0_f32; 8];
    group.all_reduce_sum(&mut values)?;
    let expected = group.size() as f32;
    if values == [expected; 8] {
        Ok(())
    } else {
        Err(format!("{values:?} instead of {expected}").into())
    }
}
