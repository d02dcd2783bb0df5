//! A group of ranks, as a program uses it.

use std::fmt;

use super::alone::Alone;
use super::builder::GroupBuilder;
use super::call::{Call, Operation};
use super::element::{Element, Numbers, Reduction};
use super::error::{CollectiveError, ConnectError, Result};
use super::transport::Transport;
use crate::cluster::info::ClusterInfo;
use crate::value::rank::Rank;

/// Ranks that make the same calls in the same order: all ranks of a job, or those of a
/// [`split`](Group::split).
///
/// A group stays in the thread that connected it: it is neither `Send` nor `Sync`. Dropping a group
/// leaves the job cleanly, but over MPI use [`close`](Group::close), which waits for the other
/// ranks.
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
}

impl Group {
    /// Connects all ranks of the job, with the defaults of [`Group::builder`], which include
    /// [warnings](ClusterInfo::warn) on stderr.
    ///
    /// # Errors
    /// If a rank does not arrive within 60 s, or the ranks cannot be connected.
    pub fn connect(info: &ClusterInfo) -> Result<Group, ConnectError> {
        Group::builder(info).connect()
    }

    /// Returns a builder that connects all ranks of the job with other settings.
    pub fn builder(info: &ClusterInfo) -> GroupBuilder<'_> {
        GroupBuilder::new(info)
    }

    /// A group of this process alone, for a program that was started without a launcher.
    #[must_use]
    pub fn alone() -> Group {
        Group::new(Box::new(Alone))
    }

    pub(super) fn new(transport: Box<dyn Transport>) -> Group {
        Group { transport }
    }

    pub(super) fn into_transport(self) -> Box<dyn Transport> {
        self.transport
    }

    /// This rank and the size of the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.transport.rank()
    }

    /// The number of ranks.
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

    /// Adds the ranks' `values` element by element, in place. Every rank gets the sum.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks.
    /// let mut values = [f64::from(group.rank().index()), 10.0];
    /// group.all_reduce_sum(&mut values)?;
    /// assert_eq!(values, [3.0, 30.0]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// If a rank is lost, hangs, passes another length or makes another call. The values are then
    /// undefined.
    pub fn all_reduce_sum<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.transport.all_reduce(Numbers::new(values), Reduction::Sum)
    }

    /// Every rank gets the smallest of the ranks' values, element by element; NaN if one is NaN.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks.
    /// let mut samples_left = [10 - group.rank().index()];
    /// group.all_reduce_min(&mut samples_left)?;
    /// assert_eq!(samples_left, [8]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn all_reduce_min<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.transport.all_reduce(Numbers::new(values), Reduction::Min)
    }

    /// Every rank gets the largest of the ranks' values, element by element; NaN if one is NaN.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks.
    /// let mut seconds = [0.5 * f64::from(group.rank().index())];
    /// group.all_reduce_max(&mut seconds)?;
    /// assert_eq!(seconds, [1.0]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn all_reduce_max<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.transport.all_reduce(Numbers::new(values), Reduction::Max)
    }

    /// Adds the ranks' `values` and returns this rank's part of the sum: the numbers from
    /// `rank * count / size` to `(rank + 1) * count / size`, so that parts differ by one number at
    /// most.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let part = group.reduce_scatter_sum(&[1.0_f32, 2.0, 3.0])?;
    /// assert_eq!(part, if group.rank().is_first() { vec![2.0] } else { vec![4.0, 6.0] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn reduce_scatter_sum<T: Element>(&mut self, values: &[T]) -> Result<Vec<T>> {
        let rank = self.rank();
        let mut values = values.to_vec();
        self.transport.reduce_scatter(Numbers::new(&mut values), Reduction::Sum)?;
        let part = rank.share_of(values.len());
        values.truncate(part.end);
        values.drain(..part.start);
        Ok(values)
    }

    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let name = format!("rank {}", group.rank().index());
    /// assert_eq!(group.all_gather(name.as_bytes())?, [b"rank 0", b"rank 1"]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.transport.all_gather(bytes)
    }

    /// Sends part r to rank r and returns the parts that every rank sent to this one, in rank
    /// order. All parts on all ranks must have the same length.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let own = group.rank().index() as u8;
    /// let received = group.all_to_all(&[vec![own, 0], vec![own, 1]])?;
    /// assert_eq!(received, [[0, own], [1, own]]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if the number of parts is not
    /// the number of ranks, or the parts on this rank have different lengths.
    pub fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let size = self.size();
        let call = Operation::AllToAll;
        if parts.len() != size as usize {
            return Err(self.refuse(call, format!("{} parts for {size} ranks", parts.len())));
        }
        if let Some(pair) = parts.windows(2).find(|pair| pair[0].len() != pair[1].len()) {
            return Err(self
                .refuse(call, format!("parts of {} and {} bytes", pair[0].len(), pair[1].len())));
        }
        self.transport.all_to_all(parts)
    }

    /// Replaces every rank's bytes with those of rank `root`.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// let mut id = if group.rank().is_first() { b"id of NCCL".to_vec() } else { Vec::new() };
    /// group.broadcast(&mut id, 0)?;
    /// assert_eq!(id, b"id of NCCL");
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `root` is not a rank of the
    /// group.
    pub fn broadcast(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        let size = self.size();
        if root >= size {
            let reason = format!("rank {root} of a group of {size}");
            return Err(self.refuse(Operation::Broadcast, reason));
        }
        self.transport.broadcast(bytes, root)
    }

    /// Tells the others that this rank refuses its arguments. Ranks that make another call get an
    /// error.
    fn refuse(&mut self, operation: Operation, reason: String) -> CollectiveError {
        let call = Call::refused(operation);
        match self.transport.meet(call) {
            Err(fork @ CollectiveError::Forked { .. }) => fork,
            _ => CollectiveError::Argument { call: call.name(), reason },
        }
    }

    /// Returns once every rank has made this call.
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
    pub fn barrier(&mut self) -> Result<()> {
        self.transport.meet(Call::BARRIER)
    }

    /// Splits the group into one group for each `color`, ordered by `key`, then by rank. Returns
    /// this rank's new group.
    ///
    /// Both groups can be used afterwards, in any order that is the same on all their ranks. Errors
    /// name ranks by their number in the job.
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
    /// # })?.into_iter().collect::<Result<(), _>>().expect("the ranks make the same calls");
    /// # Ok::<(), mpienv::RankError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn split(&mut self, color: u32, key: u32) -> Result<Group> {
        self.transport.split(color, key).map(Group::new)
    }

    /// Closes the group. Over MPI, waits for all ranks first; groups split from this one cannot be
    /// used afterwards.
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn close(self) -> Result<()> {
        self.transport.close()
    }

    /// Tells the other ranks of the job that this one fails on its own, so that they do not wait
    /// for it.
    ///
    /// Their calls fail at once, with an error that names this rank and `code`, which this rank is
    /// about to exit with. Over MPI, where a blocked call cannot fail, this calls `last_words`, and
    /// then exits all ranks of the job, including this one, with `code`. Over threads, it reaches
    /// the ranks of this group.
    ///
    /// ```
    /// # use mpienv::collective::Group;
    /// # let mut group = Group::alone();
    /// group.abort(3, &mut || eprintln!("the loss is NaN"));
    /// // std::process::exit(3);
    /// ```
    pub fn abort(&mut self, code: u8, last_words: &mut dyn FnMut()) {
        self.transport.abort(code, last_words);
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
