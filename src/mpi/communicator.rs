//! Ranks that call MPI together. Their calls here return once they are done, and keep a core busy
//! until then.

#![expect(unsafe_code, reason = "MPI uses the caller's memory, and its handles move")]

use std::ffi::c_int;
use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::abi::{Comm, Constants, Op, Status};
use super::api::{Api, Buffer, Element, Value, int};
use super::error::{MpiError, Result};
use super::session::Session;
use mpienv_core::Rank;

/// The most elements that one call takes: well within an `int`.
const MOST: usize = 1 << 30;

/// Ranks that call MPI together: all ranks, or those of a [`split`](Communicator::split).
///
/// All ranks of a communicator must make the same calls in the same order; messages are calls of
/// two ranks. A blocking call keeps a core busy until the other ranks have made it, and waits
/// forever if one of them hangs. A `start_...` call returns at once. Its
/// [`Request`](super::Request) can wait with a time limit.
///
/// # Lengths
/// Ranks must also agree on lengths, which MPI does not compare, in messages and in calls of all
/// ranks, blocking or started:
/// - A message that is longer than its receiver expects is an error, and only what fits is written.
///   Open MPI alone would write all of one of 4 KiB or more over the memory behind the receiver's
///   buffer: [`World`](super::World) therefore lets it copy through shared memory only. This is
///   off if a program says [`Hints::single_copy`](super::Hints::single_copy), or the environment
///   chooses: `OMPI_MCA_btl_vader_single_copy_mechanism` (Open MPI 4), `OMPI_MCA_smsc` (5).
/// - A sum of different counts may return wrong numbers without an error: of 10 values on one rank
///   and 9 on another, MPICH adds some.
/// - A [`broadcast`](Communicator::broadcast) of fewer bytes than a rank expects leaves its other
///   bytes as they were, without an error.
///
/// If lengths may differ, exchange and compare them first, as `mpienv::collective` does.
///
/// # Threads
/// A communicator may move to another thread: it is `Send`, but not `Sync`. While a call waits for
/// other ranks, calls of MPI in other threads of the process wait too. If the library provides less
/// than `MPI_THREAD_SERIALIZED`, calls from any thread but the one that initialized MPI are errors.
///
/// ```no_run
/// use std::time::Duration;
/// use mpienv::mpi::{Communicator, MpiError};
///
/// fn talk(world: &Communicator) -> Result<(), MpiError> {
///     let mut seed = [17];
///     world.broadcast(&mut seed, 0)?;
///
///     // Ranks with even numbers sum by themselves, and so do the others.
///     let rank = world.rank().index();
///     let half = world.split(rank % 2, rank)?;
///     let mut count = [1.0];
///     half.all_reduce_sum(&mut count)?;
///     assert_eq!(count[0], f64::from(half.size()));
///
///     // One part for each rank: of a sum, and of bytes.
///     let (parts, mut part) = (vec![1.0_f32; world.size() as usize], [0.0]);
///     world.reduce_scatter_sum(&parts, &mut part)?;
///     let bytes = world.start_all_to_all(vec![0; world.size() as usize])?.wait()?;
///     let mut received = vec![0; bytes.len()];
///     world.all_to_all(&bytes, &mut received)?;
///     world.all_gather_into(&[7], &mut received)?;
///     world.start_reduce_scatter_sum(parts)?.wait()?;
///
///     // A message around the ring of ranks.
///     let size = world.size();
///     let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
///     let received = world.start_receive(vec![0.0_f64; 5], before, 0)?;
///     let sent = world.start_send(vec![f64::from(rank); 5], next, 0)?;
///     assert_eq!(received.wait()?, [f64::from(before); 5]);
///     sent.wait()?;
///     let mut received = [0; 5];
///     world.send_receive(b"again", next, &mut received, before, 0)?;
///
///     let names = world.all_gather(format!("rank {rank}").as_bytes())?;
///     assert_eq!(names[0], b"rank 0");
///     world.all_gather_within(b"done", Duration::from_secs(60))?;
///     // `None` if the function returns true first, for example after a signal:
///     let all = world.all_gather_unless(b"done", Duration::from_secs(60), &|| false)?;
///     assert_eq!(all.map(|all| all.len()), Some(world.size() as usize));
///     world.barrier()
/// }
/// ```
pub struct Communicator {
    pub(super) session: Arc<Session>,
    pub(super) comm: Comm,
    rank: Rank,
    /// Whether a split made the communicator, so that it must be freed.
    is_own: bool,
}

// SAFETY: the handle is a number or an address that only the library uses, and the session lets one
// thread at a time call it.
unsafe impl Send for Communicator {}

impl Communicator {
    /// The communicator of all ranks.
    pub(super) fn world(session: Session) -> Communicator {
        let (comm, rank) = (session.loaded.api.constants.comm_world, session.rank);
        Communicator { session: Arc::new(session), comm, rank, is_own: false }
    }

    /// This process's rank in the communicator, according to MPI.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Notes whether the last call which consists of MPI's has failed: dropping the world then
    /// hardly waits for the other ranks, which may not come, and does not warn, because the caller
    /// has an error.
    #[doc(hidden)]
    pub fn note_failed(&self, has_failed: bool) {
        self.session.has_failed.store(has_failed, Ordering::Relaxed);
    }

    /// How many ranks the communicator has, according to MPI.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.rank().size()
    }

    /// Splits the ranks into one communicator for each `color` (`MPI_Comm_split`).
    ///
    /// The ranks of a new communicator are ordered by `key`, then by their current rank. The call
    /// waits for the other ranks without a time limit.
    ///
    /// # Errors
    /// Returns an error if MPI returns an error, or if `color` or `key` is 2^31 or more.
    pub fn split(&self, color: u32, key: u32) -> Result<Communicator> {
        let (comm, rank) = self.session.run(|api| {
            let comm = api.split(self.comm, color, key)?;
            Ok((comm, api.rank(comm)?))
        })?;
        Ok(Communicator { session: Arc::clone(&self.session), comm, rank, is_own: true })
    }

    /// Adds the `values` of all ranks element by element, in place (`MPI_Allreduce`). Every rank
    /// gets the sum.
    ///
    /// All ranks must pass the same number of values. The library chooses the order of the
    /// additions, which may differ between libraries and sizes.
    ///
    /// # Errors
    /// If MPI returns an error; the values are then undefined.
    pub fn all_reduce_sum<T: Element>(&self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, |constants| constants.sum)
    }

    /// Like [`all_reduce_sum`](Communicator::all_reduce_sum), but every rank gets the smallest of
    /// the ranks' values (`MPI_MIN`). MPI leaves open what a NaN results in: any number, perhaps
    /// another on each rank.
    ///
    /// # Errors
    /// As [`all_reduce_sum`](Communicator::all_reduce_sum).
    pub fn all_reduce_min<T: Element>(&self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, |constants| constants.min)
    }

    /// Like [`all_reduce_min`](Communicator::all_reduce_min), with the largest (`MPI_MAX`).
    ///
    /// # Errors
    /// As [`all_reduce_sum`](Communicator::all_reduce_sum).
    pub fn all_reduce_max<T: Element>(&self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, |constants| constants.max)
    }

    fn all_reduce<T: Element>(&self, values: &mut [T], by: fn(&Constants) -> Op) -> Result<()> {
        const CALL: &str = "MPI_Allreduce";
        for part in chunks(values) {
            self.call(CALL, |api| {
                let Buffer { first, count, datatype } =
                    api.buffer(CALL, part.as_mut_ptr(), part.len())?;
                let (in_place, by) = (api.constants.in_place, by(&api.constants));
                // SAFETY: MPI reads and writes these values in place, until it returns.
                Ok(unsafe {
                    api.functions.allreduce(in_place, first, count, datatype, by, self.comm)
                })
            })?;
        }
        Ok(())
    }

    /// Adds the ranks' `values` element by element and divides the sum into one equal part for each
    /// rank, which gets its `part` (`MPI_Reduce_scatter_block`).
    ///
    /// # Errors
    /// If the values are not as many as a part for each rank, a part has 2^31 values or more, or
    /// MPI returns an error; the part is then undefined.
    pub fn reduce_scatter_sum<T: Element>(&self, values: &[T], part: &mut [T]) -> Result<()> {
        const CALL: &str = "MPI_Reduce_scatter_block";
        self.check_parts(CALL, values.len(), part.len())?;
        self.call(CALL, |api| {
            let Buffer { first: from, .. } = api.buffer(CALL, values.as_ptr(), part.len())?;
            let Buffer { first, count, datatype } =
                api.buffer(CALL, part.as_mut_ptr(), part.len())?;
            let (functions, sum) = (&api.functions, api.constants.sum);
            // SAFETY: MPI reads `count` values for each rank and writes `count` values until it
            // returns.
            Ok(unsafe {
                functions.reduce_scatter_block(from, first, count, datatype, sum, self.comm)
            })
        })
    }

    /// Every rank gets the values of every rank in `all`, in rank order (`MPI_Allgather`). All ranks
    /// must pass the same number of values.
    ///
    /// # Errors
    /// If `all` has not as many values for each rank, a rank has more than MPI's 32-bit numbers
    /// count, or MPI returns an error; `all` is then undefined.
    pub fn all_gather_into<T: Value>(&self, values: &[T], all: &mut [T]) -> Result<()> {
        const CALL: &str = "MPI_Allgather";
        self.check_parts(CALL, all.len(), values.len())?;
        self.call(CALL, |api| {
            let Buffer { first: from, .. } = api.buffer(CALL, values.as_ptr(), values.len())?;
            let Buffer { first, count, datatype: of } =
                api.buffer(CALL, all.as_mut_ptr(), values.len())?;
            // SAFETY: MPI reads `count` values and writes `count` values for each rank until it
            // returns.
            Ok(unsafe { api.functions.allgather(from, count, of, first, count, of, self.comm) })
        })
    }

    /// Divides the values into one equal part for each rank and sends part r to rank r. Part r of
    /// `received` is what rank r sent (`MPI_Alltoall`). All ranks must pass the same number of
    /// values.
    ///
    /// # Errors
    /// If the values do not divide into equal parts, `received` has another length, a part has more
    /// values than MPI's 32-bit numbers count, or MPI returns an error; `received` is then
    /// undefined.
    pub fn all_to_all<T: Value>(&self, values: &[T], received: &mut [T]) -> Result<()> {
        const CALL: &str = "MPI_Alltoall";
        let part = received.len() / self.size() as usize;
        self.check_parts(CALL, received.len(), part)?;
        self.check_parts(CALL, values.len(), part)?;
        self.call(CALL, |api| {
            let Buffer { first: from, .. } = api.buffer(CALL, values.as_ptr(), part)?;
            let Buffer { first, count, datatype: of } =
                api.buffer(CALL, received.as_mut_ptr(), part)?;
            // SAFETY: MPI reads and writes `count` values for each rank until it returns.
            Ok(unsafe { api.functions.alltoall(from, count, of, first, count, of, self.comm) })
        })
    }

    /// Sends values to rank `to`, and meanwhile receives as many as `received` has from rank `from`,
    /// both with this `tag` (`MPI_Sendrecv`). Every MPI has tags up to 32,767. `None` stands for a
    /// neighbor that is missing, as at the ends of a chain (`MPI_PROC_NULL`): nothing is sent there,
    /// or `received` stays as it was.
    ///
    /// # Errors
    /// If rank `from` sends fewer values than `received` has, if MPI returns an error, as for more
    /// values, or if there are 2 GiB or more; `received` is then undefined.
    pub fn send_receive<T: Value>(
        &self,
        values: &[T],
        to: impl Into<Option<u32>>,
        received: &mut [T],
        from: impl Into<Option<u32>>,
        tag: u16,
    ) -> Result<()> {
        const CALL: &str = "MPI_Sendrecv";
        let (to, from, expected) = (to.into(), from.into(), size_of_val(received));
        self.session.run(|api| {
            let mut status = Status::default();
            let none = api.constants.proc_null;
            let number = |rank: Option<u32>| rank.map_or(Ok(none), |rank| int(CALL, rank));
            let (to, source, tag) = (number(to)?, number(from)?, int(CALL, tag)?);
            // A status counts the bytes.
            int(CALL, expected)?;
            let Buffer { first: sent, count: length, .. } =
                api.buffer(CALL, values.as_ptr(), values.len())?;
            let Buffer { first, count, datatype: of } =
                api.buffer(CALL, received.as_mut_ptr(), received.len())?;
            let (functions, comm, place) = (&api.functions, self.comm, status.place());
            // SAFETY: MPI reads `length` values and writes `count` values, which the other rank
            // sends, and the status until it returns.
            let code = unsafe {
                functions
                    .sendrecv(sent, length, of, to, tag, first, count, of, source, tag, comm, place)
            };
            api.check(CALL, code)?;
            from.map_or(Ok(()), |from| api.check_length(CALL, status, from, expected))
        })
    }

    /// Every rank gets the values of rank `root` (`MPI_Bcast`). All ranks must pass the same number
    /// of values.
    ///
    /// # Errors
    /// If MPI returns an error, for example because `root` is not a rank; the values are then
    /// undefined.
    pub fn broadcast<T: Value>(&self, values: &mut [T], root: u32) -> Result<()> {
        const CALL: &str = "MPI_Bcast";
        for part in chunks(values) {
            self.call(CALL, |api| {
                let root = int(CALL, root)?;
                let Buffer { first, count, datatype } =
                    api.buffer(CALL, part.as_mut_ptr(), part.len())?;
                // SAFETY: MPI reads or writes these values until it returns.
                Ok(unsafe { api.functions.bcast(first, count, datatype, root, self.comm) })
            })?;
        }
        Ok(())
    }

    /// Returns once every rank has made this call (`MPI_Barrier`).
    ///
    /// # Errors
    /// If MPI returns an error.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the handle is a communicator's.
        self.call("MPI_Barrier", |api| Ok(unsafe { api.functions.barrier(self.comm) }))
    }

    /// Makes a call that returns an error code.
    fn call(&self, name: &'static str, call: impl FnOnce(&Api) -> Result<c_int>) -> Result<()> {
        self.session.run(|api| api.check(name, call(api)?))
    }

    /// Fails unless `length` values are parts of this length for all ranks: MPI would read or write
    /// what follows them.
    fn check_parts(&self, call: &'static str, length: usize, part: usize) -> Result<()> {
        let size = self.size() as usize;
        if part.checked_mul(size) == Some(length) {
            Ok(())
        } else {
            Err(MpiError::Indivisible { call, length, size, part: Some(part) })
        }
    }

    /// Exits this process and all other ranks of the job (`MPI_Abort`), with this exit code if MPI
    /// supports it. A code of 0 counts as 3.
    ///
    /// No values are dropped, and no buffer of this process is flushed. This call first waits for
    /// 0.1 s, so that the launcher can pass on what this process has written. Without the wait,
    /// Hydra loses about one last line in ten.
    pub fn abort(&self, code: i32) -> ! {
        thread::sleep(Duration::from_millis(100));
        self.session.abort(code);
        // Reached if MPI is already finalized or cannot abort.
        process::abort()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("library", &self.session.loaded.file)
            .field("version", &self.session.loaded.version)
            .finish()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Open MPI crashes in a started call whose communicator is freed.
        let is_unused = self.session.started.load(Ordering::Relaxed) == 0;
        if self.is_own && is_unused && self.session.is_sound() {
            // If this fails, the communicator is freed when the process exits.
            let _ = self.session.run(|api| api.free(self.comm));
        }
    }
}

/// As many values at a time as a call takes. Without values, none once: the call is made all the
/// same, because other ranks wait for it.
fn chunks<T: Value>(values: &mut [T]) -> impl Iterator<Item = &mut [T]> {
    let none = values.is_empty().then_some(&mut [] as &mut [T]);
    none.into_iter().chain(values.chunks_mut(MOST / T::COUNT))
}
