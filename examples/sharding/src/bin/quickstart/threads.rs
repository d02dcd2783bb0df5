//! All ranks as threads of this process.

use std::io::{self, Write};
use std::sync::{Arc, Barrier, PoisonError, RwLock, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};

use mpienv::collective::threads;
use mpienv_sharding::execute::ExecuteError;

use crate::options::Training;
use crate::{Prepared, QuickstartError, train_rank};

/// Memory in bytes, set aside so that started threads can exit if no further thread can be started.
const RESERVE: usize = 8 << 20;
/// Memory in bytes that must be free to start a thread. Of more than 32 MiB, glibc keeps nothing
/// when it is freed.
const ROOM: usize = 33 << 20;

type Worker<'scope> = ScopedJoinHandle<'scope, Result<(), QuickstartError>>;

/// Trains `count` ranks and writes their lines in turn.
pub fn train(options: &Training, count: u32, out: &mut dyn Write) -> Result<(), QuickstartError> {
    let prepared = Prepared::new(options, count)?;
    let ranks = threads::group(count, options.timeout)?;
    // Ranks start to work only after every thread has started. If memory runs out while threads are
    // being started, a working rank would run out of memory too, which aborts the process.
    let all_started = RwLock::new(true);
    let mut starting = all_started.write().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let (mut lines, mut workers, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        let mut reserve = Vec::<u8>::with_capacity(RESERVE);
        for (index, rank) in (0..).zip(ranks) {
            let (sender, receiver) = mpsc::channel();
            let (prepared, all_started) = (&prepared, &all_started);
            let work = move || {
                if !*all_started.read().unwrap_or_else(PoisonError::into_inner) {
                    return Ok(());
                }
                train_rank(options, Ok(prepared), &mut rank.into(), |line| {
                    // If the output is closed, the receiver is gone, and the run ends.
                    let gone = |_| QuickstartError::Output(io::ErrorKind::BrokenPipe.into());
                    sender.send(line).map_err(gone)
                })
            };
            match start(scope, work) {
                Ok(worker) => {
                    lines.push(receiver);
                    workers.push(worker);
                }
                Err(error) => {
                    *starting = false;
                    reserve = Vec::new();
                    errors.push(QuickstartError::Thread { rank: index, count, error });
                    break;
                }
            }
        }
        drop(reserve);
        drop(starting);
        errors.extend(print_in_order(lines, out).err());
        errors.extend(workers.into_iter().filter_map(|worker| match worker.join() {
            Ok(result) => result.err(),
            Err(panic) => std::panic::resume_unwind(panic),
        }));
        // If one rank fails, the others report it as lost. The cause is that rank's error.
        let cause = errors.into_iter().min_by_key(|error| {
            use QuickstartError::{Collective, Execute, OtherRank};
            matches!(error, Collective(_) | Execute(ExecuteError::Collective(_)) | OtherRank(_))
        });
        cause.map_or(Ok(()), Err)
    })
}

/// Starts a thread if it has enough memory to start: one that has only its stack aborts the
/// process.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<(), QuickstartError> + Send + 'scope,
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

/// Writes one line of each rank in turn, until any rank has no more.
fn print_in_order(
    lines: Vec<mpsc::Receiver<String>>,
    out: &mut dyn Write,
) -> Result<(), QuickstartError> {
    loop {
        for receiver in &lines {
            let Ok(line) = receiver.recv() else {
                return out.flush().map_err(QuickstartError::Output);
            };
            out.write_all(line.as_bytes()).map_err(QuickstartError::Output)?;
        }
    }
}
