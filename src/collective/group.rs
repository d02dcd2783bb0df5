//! A group of ranks, as a program uses it.

mod moving;
mod reducing;
mod untyped;

use std::fmt;

use super::builder::GroupBuilder;
use super::call::{Call, Operation};
use super::cancel::Canceller;
use super::error::{CollectiveError, Result};
use super::transport::{Alone, Transport};
use crate::cluster::info::ClusterInfo;
use crate::value::rank::Rank;
use mpienv_core::seam::RANKS;

pub use untyped::Announced;

/// Ranks that make the same calls in the same order: all ranks of a job, or those of a
/// [`split`](Group::split).
///
/// Methods with `&mut self` are calls of all ranks and block, but `send`, `receive` and
/// `send_receive` are calls of two ranks, and `abort` is one of this rank alone. Methods with
/// `&self` are local.
///
/// A group is `Send`, but not `Sync`. It shares connections with the groups that are split from it:
/// together they make one call at a time, in an order that is the same on all ranks. Over MPI, a
/// group can move to another thread only if the library supports `MPI_THREAD_SERIALIZED`;
/// otherwise, its calls there are errors. So are calls that two threads make at the same time.
///
/// Dropping a group leaves the job cleanly, but over MPI use [`close`](Group::close), which waits
/// for the other ranks. If it is dropped because the thread panics, the other ranks get an error
/// that says so, and the groups that share its connections fail; over MPI, the other ranks end when
/// the process exits.
///
/// ```no_run
/// use mpienv::ClusterInfo;
/// use mpienv::collective::Group;
///
/// let info = ClusterInfo::from_env()?;
/// let mut group = Group::connect(&info)?;
/// eprintln!("{} of {} over {}", group.rank().index(), group.size(), group.describe());
///
/// let mut gradients = vec![0.5_f32; 7850];
/// group.all_reduce_sum(&mut gradients)?;
/// group.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    transport: Box<dyn Transport>,
    /// Whether this group was split from another.
    is_part: bool,
    /// How many calls of all ranks this group has made.
    made: u32,
    /// The number of the type that the caller of untyped calls means; 0 if it is the one that
    /// travels.
    meant: u8,
}

impl Group {
    /// Connects all ranks of the job, each of which must call this, with the defaults of
    /// [`Group::builder`]. Prints [warnings](ClusterInfo::warn) on stderr.
    ///
    /// This and each later call wait at most 60 s for another rank: a rank that computes or writes
    /// for longer between two calls ends the job. [`GroupBuilder::timeout`] sets this limit, and
    /// [`GroupBuilder::connect_timeout`] another one for connecting.
    ///
    /// A job that needs several groups [splits](Group::split) one, or connects them one after the
    /// other, in the same order on all ranks. Two threads of a rank that connect at the same time
    /// get an error.
    ///
    /// # Errors
    /// If a rank does not arrive within 60 s, or the ranks cannot be connected.
    #[doc(alias("MPI_Init"))]
    pub fn connect(info: &ClusterInfo) -> Result<Group, CollectiveError> {
        Group::builder(info).connect()
    }

    /// Returns a builder that connects all ranks of the job with other settings.
    pub fn builder(info: &ClusterInfo) -> GroupBuilder<'_> {
        GroupBuilder::new(info)
    }

    /// A group of this process alone, for a program that was started without a launcher.
    #[must_use]
    pub fn alone() -> Group {
        Group::new(Box::new(Alone::default()))
    }

    /// A group over a transport.
    #[doc(hidden)]
    #[must_use]
    pub fn new(transport: Box<dyn Transport>) -> Group {
        Group { transport, is_part: false, made: 0, meant: 0 }
    }

    /// What carries the calls.
    #[doc(hidden)]
    #[must_use]
    pub fn into_transport(self) -> Box<dyn Transport> {
        self.transport
    }

    /// This rank and the size of the group.
    #[doc(alias("Comm_rank", "MPI_Comm_rank"))]
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.transport.rank()
    }

    /// The number of ranks.
    #[doc(alias("Comm_size", "MPI_Comm_size"))]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.rank().size()
    }

    /// What carries the calls and why it was chosen, for a log line: `shared memory`,
    /// `TCP (built without MPI)`, `MPI (libmpi.so.40, Open MPI v4.1.4)`.
    #[must_use]
    pub fn describe(&self) -> String {
        self.transport.describe()
    }

    /// The connections to the other ranks, by rank.
    #[doc(hidden)]
    #[must_use]
    pub fn connections(&self) -> Vec<Option<super::transport::Connection>> {
        self.transport.connections()
    }

    /// Sets how long each later call waits for another rank.
    #[doc(hidden)]
    pub fn set_timeout(&mut self, timeout: std::time::Duration) {
        self.transport.set_timeout(timeout);
    }

    /// Lets a call that waits ask, in its own thread, whether it is canceled. It asks several times
    /// a second, over TCP and over shared memory. A group keeps its first question.
    #[doc(hidden)]
    pub fn ask_while_waiting(&self, is_canceled: impl Fn() -> bool + Send + Sync + 'static) {
        self.transport.cancel().ask(is_canceled);
    }

    /// What carries the next call of all ranks.
    fn next(&mut self) -> &mut dyn Transport {
        self.transport.note(self.made);
        self.made = self.made.wrapping_add(1);
        &mut *self.transport
    }

    /// Tells the others that this rank refuses its arguments. Ranks that make another call get an
    /// error.
    fn refuse(&mut self, operation: Operation, reason: String) -> CollectiveError {
        self.refuse_as(operation.name(), operation, reason)
    }

    /// Like [`Group::refuse`], where the user calls the operation by another name.
    fn refuse_as(
        &mut self,
        call: &'static str,
        operation: Operation,
        reason: String,
    ) -> CollectiveError {
        match self.next().meet(Call::refused(operation, call)) {
            Err(own @ (CollectiveError::Forked { .. } | CollectiveError::Canceled)) => own,
            _ => CollectiveError::Argument { call, reason },
        }
    }

    /// Returns once every rank has made this call. A rank that came much earlier may have timed out
    /// since: the next call says so, and so does [`close`](Group::close).
    ///
    /// ```
    /// # use mpienv::collective::{CollectiveError, Group};
    /// # let mut group = Group::alone();
    /// group.barrier()?;
    /// # Ok::<(), CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    #[doc(alias("MPI_Barrier"))]
    pub fn barrier(&mut self) -> Result<()> {
        self.next().meet(Call::BARRIER)
    }

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    ///
    /// Both groups can be used afterwards, one call at a time and in any order that is the same on
    /// all their ranks. Arguments are numbers of the group's ranks, from 0. Errors name ranks by
    /// their number in the job; one about an argument has both numbers.
    ///
    /// ```
    /// # mpienv::collective::threads::run(4, std::time::Duration::from_secs(10), |group| {
    /// // Four ranks: 0 and 2, 1 and 3.
    /// let own = group.rank().index();
    /// let mut half = group.split(own % 2, own)?;
    /// let mut ranks = [own];
    /// half.all_reduce_sum(&mut ranks)?;
    /// assert_eq!((half.size(), ranks), (2, [2 + 2 * (own % 2)]));
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    #[doc(alias("Comm_split", "MPI_Comm_split"))]
    pub fn split(&mut self, color: u32, key: u32) -> Result<Group> {
        let part = self.next().split(color, key)?;
        Ok(Group { is_part: true, ..Group::new(part) })
    }

    /// Closes the group. Over MPI, closing the group of all ranks waits for all of them and
    /// finalizes MPI: groups split from it cannot be used afterwards. So close it last.
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`], also if another rank has given up or aborted since the last
    /// call. If an earlier call failed, of this group or of one that shares connections with it,
    /// [`CollectiveError::Earlier`] with that error, although the group is closed: a program that
    /// ends with this call does not report success after a failure. To leave a failed group without
    /// an error, drop it.
    #[doc(alias("MPI_Finalize"))]
    pub fn close(self) -> Result<()> {
        self.transport.close()
    }

    /// Tells the other ranks of the job that this one fails on its own, and why, so that they do
    /// not wait for it.
    ///
    /// Their calls fail at once, with an error that names this rank, `code` and `reason`: its first
    /// 900 bytes, and [`printable`](mpienv_core::printable) characters only. This call returns;
    /// then exit with `code`. A `code` of 0, which would hide the failure, counts as 3.
    ///
    /// Over MPI, a blocked call cannot fail. This rank prints the reason to stderr, unless it is
    /// empty, and exits all ranks of the job, including itself, with `code`: this call does not
    /// return.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::collective::threads;
    ///
    /// let errors = threads::run(2, Duration::from_secs(10), |group| {
    ///     if group.rank().index() == 1 {
    ///         group.abort(3, "the matrix is singular");
    ///         // std::process::exit(3);
    ///     }
    ///     group.barrier().unwrap_err().to_string()
    /// })?;
    /// assert_eq!(
    ///     errors[0],
    ///     "rank 1 on a thread of this process is lost: it aborted with exit code 3: the matrix is singular"
    /// );
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    #[doc(alias("MPI_Abort"))]
    pub fn abort(&mut self, code: u8, reason: &str) {
        self.transport.abort(if code == 0 { RANKS } else { code }, reason);
    }

    /// Returns a handle that ends the calls of this group from another thread.
    ///
    /// The call that runs fails with [`CollectiveError::Canceled`], and so does every later one,
    /// also of groups that share connections with this one. The other ranks get an error that names
    /// this rank. Over MPI, a call that is canceled ends at once only if ranks share cores; if
    /// every rank has its own, MPI itself waits, and the call fails once the other ranks have made
    /// it. The other ranks notice when this one exits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mpienv::collective::{Canceller, CollectiveError, Group, threads};
    ///
    /// let mut ranks = threads::group(2, Duration::from_secs(60))?;
    /// // Rank 1 does not arrive.
    /// let mut group = Group::from(ranks.remove(0));
    /// let canceller: Canceller = group.canceller();
    /// let call = std::thread::spawn(move || group.barrier());
    /// canceller.cancel();
    /// let error = call.join().expect("the call does not panic").unwrap_err();
    /// assert!(matches!(error, CollectiveError::Canceled));
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(self.transport.cancel())
    }

    /// How many bytes this rank has written to other ranks since it connected, including the
    /// protocol and all groups that share its connections; `None` over MPI.
    ///
    /// ```
    /// assert_eq!(mpienv::collective::Group::alone().bytes_sent(), Some(0));
    /// ```
    #[must_use]
    pub fn bytes_sent(&self) -> Option<u64> {
        self.transport.bytes_sent()
    }

    /// How many connections this rank rejected while connecting, because they did not come from
    /// ranks of this job but, for example, from a port scanner, a health check or another job.
    ///
    /// ```
    /// assert_eq!(mpienv::collective::Group::alone().rejected(), 0);
    /// ```
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.transport.rejected()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank())
            .field("transport", &self.describe())
            .finish()
    }
}
