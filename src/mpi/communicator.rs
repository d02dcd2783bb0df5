//! Ranks that call MPI together.

#![expect(unsafe_code, reason = "MPI's handles move to other threads")]

use std::fmt;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::abi::Comm;
use super::error::Result;
use super::session::{About, Session};
use mpienv_core::Rank;

/// Ranks that call MPI together: all ranks, or those of a [`split`](Communicator::split).
///
/// Every rank of a communicator must make the same calls in the same order. A blocking call keeps a
/// core busy until the other ranks have made it, and waits forever if one of them hangs. A started
/// call ([`start_all_reduce_sum`](Communicator::start_all_reduce_sum), ...) can be waited for with
/// a time limit.
///
/// A communicator may move to another thread: it is `Send`, but not `Sync`. The threads of a
/// process call MPI one at a time. If the library supports only one thread (less than
/// `MPI_THREAD_SERIALIZED`), calls from any thread but the one that initialized MPI are errors.
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
///     let sent = world.start_send(b"hello".to_vec(), next, 0)?;
///     let received = world.start_receive(vec![0; 5], before, 0)?;
///     assert_eq!(received.wait()?, b"hello");
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
    pub(super) fn world(session: Session) -> Result<Communicator> {
        let (comm, rank) = session.run(|api| Ok((api.world(), api.rank(api.world())?)))?;
        Ok(Communicator { session: Arc::new(session), comm, rank, is_own: false })
    }

    /// This process's rank in the communicator, according to MPI.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
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

    /// Exits this process and all other ranks of the job (`MPI_Abort`), with this exit code if MPI
    /// supports it.
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

    pub(super) fn about(&self) -> &About {
        &self.session.about
    }

    pub(super) fn end(&self, limit: Duration) -> Result<()> {
        self.session.end(limit)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("abi", &self.about().abi)
            .finish()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_own && self.session.is_sound() {
            // If this fails, the communicator is freed when the process exits.
            let _ = self.session.run(|api| api.free(self.comm));
        }
    }
}
