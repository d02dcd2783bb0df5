//! All ranks as threads of this process.

use std::io::{self, Write};
use std::sync::{Arc, Barrier, Mutex, PoisonError, RwLock};
use std::thread::{self, Scope, ScopedJoinHandle};

use mpienv::collective::threads;
use mpienv_sharding::error::{Error, Reach};

use crate::options::Training;
use crate::{Prepared, print, train_rank};

/// Memory in bytes, set aside so that started threads can exit if no further thread can be started.
const RESERVE: usize = 8 << 20;
/// Memory in bytes that must be free to start a thread. Of more than 32 MiB, glibc keeps nothing
/// when it is freed.
const ROOM: usize = 33 << 20;

type Worker<'scope> = ScopedJoinHandle<'scope, Result<(), Error>>;

/// Trains `count` ranks. Rank 0 writes the lines of all.
pub fn train(options: &Training, count: u32, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let out = Mutex::new(out);
    let prepared = Prepared::new(options, count)?;
    let ranks = threads::group(count, options.timeout).map_err(|error| {
        Error::input(format!(
            "the threads of {count} ranks cannot be connected: {error}; use fewer --threads, or \
             raise the limits (`ulimit -n`)"
        ))
    })?;
    // Ranks start to work only after every thread has started. If memory runs out while threads are
    // being started, a working rank would run out of memory too, which aborts the process.
    let all_started = RwLock::new(true);
    let mut starting = all_started.write().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let (mut workers, mut errors) = (Vec::new(), Vec::new());
        let mut reserve = Vec::<u8>::with_capacity(RESERVE);
        for (index, rank) in (0..).zip(ranks) {
            let (prepared, all_started, out) = (&prepared, &all_started, &out);
            let work = move || {
                if !*all_started.read().unwrap_or_else(PoisonError::into_inner) {
                    return Ok(());
                }
                train_rank(options, Ok(prepared), &mut rank.into(), |line, group| {
                    let lines = group.all_gather(line.as_bytes())?.concat();
                    if !group.rank().is_first() {
                        return Ok(());
                    }
                    print(&lines, *out.lock().unwrap_or_else(PoisonError::into_inner))
                })
            };
            match start(scope, work) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    *starting = false;
                    reserve = Vec::new();
                    errors.push(Error::input(format!(
                        "rank {index} of {count} cannot be started: {error}; use fewer --threads, \
                         or raise the limits (`ulimit -u`, `ulimit -v`)"
                    )));
                    break;
                }
            }
        }
        drop(reserve);
        drop(starting);
        errors.extend(workers.into_iter().filter_map(|worker| match worker.join() {
            Ok(result) => result.err(),
            Err(panic) => std::panic::resume_unwind(panic),
        }));
        // If one rank fails, the others report it as lost. The cause is that rank's error.
        let cause = errors
            .into_iter()
            .min_by_key(|error| matches!(error.reach, Reach::Lost | Reach::Other));
        cause.map_or(Ok(()), Err)
    })
}

/// Starts a thread if it has enough memory to start: one that has only its stack aborts the
/// process.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<(), Error> + Send + 'scope,
) -> io::Result<Worker<'scope>> {
    Vec::<u8>::new().try_reserve_exact(ROOM)?;
    let has_started = Arc::new(Barrier::new(2));
    let started = Arc::clone(&has_started);
    let worker = thread::Builder::new().spawn_scoped(scope, move || {
        started.wait();
        work()
    })?;
    // What the thread allocates to start is no longer free when the next one is checked.
    has_started.wait();
    Ok(worker)
}
