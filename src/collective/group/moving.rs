//! The calls that move values from rank to rank.

use bytemuck::cast_slice;

use super::Group;
use crate::call::{Call, Operation, SEND_RECEIVE};
use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::transport::{gather_any, make_room, rooms};

/// `bytes` in one part for each of `size` ranks.
fn parts(bytes: &mut [u8], size: usize) -> Vec<&mut [u8]> {
    let (length, mut rest) = (bytes.len() / size, bytes);
    (0..size).map(|_| rest.split_off_mut(..length).unwrap_or_default()).collect()
}

/// Part r of `bytes` for each rank r of `size`.
fn parts_of(bytes: &[u8], length: usize, size: usize) -> Vec<&[u8]> {
    (0..size).map(|rank| &bytes[rank * length..(rank + 1) * length]).collect()
}

impl Group {
    /// Replaces every rank's `values` with those of rank `root`. If only the root knows how
    /// many, use [`Group::broadcast_vec`].
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let mut weights = if group.rank().is_first() { [0.5_f32, 0.25] } else { [0.0; 2] };
    /// group.broadcast(&mut weights, 0)?;
    /// assert_eq!(weights, [0.5, 0.25]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `root` is not a rank of the
    /// group.
    #[doc(alias("Bcast", "MPI_Bcast"))]
    pub fn broadcast<T: Element>(&mut self, values: &mut [T], root: u32) -> Result<()> {
        T::with_bytes(values, |bytes| self.broadcast_untyped(T::KIND, bytes, root))
    }

    /// Replaces every rank's values with those of rank `root`. Only the root knows how many.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let mut id = if group.rank().is_first() { b"id of NCCL".to_vec() } else { Vec::new() };
    /// group.broadcast_vec(&mut id, 0)?;
    /// assert_eq!(id, b"id of NCCL");
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `root` is not a rank of the
    /// group.
    pub fn broadcast_vec<T: Element>(&mut self, values: &mut Vec<T>, root: u32) -> Result<()> {
        if root >= self.size() {
            let reason = self.no_rank(root);
            return Err(self.refuse_as("broadcast_vec", Operation::Broadcast, reason));
        }
        let is_root = self.rank().index() == root;
        let (call, transport) =
            (Call::of_any(Operation::Broadcast, T::KIND).with(root), self.next());
        let mut count = (values.len() as u64).to_le_bytes();
        transport.broadcast(call, &mut count, root)?;
        if !is_root {
            make_room(transport, root, values, count)?;
        }
        if values.is_empty() {
            return Ok(());
        }
        T::with_bytes(values, |bytes| transport.broadcast(call, bytes, root))
    }

    /// Every rank gets the values of all ranks in `all`, in rank order. All ranks must
    /// pass the same number of values. Use it for numbers; if their count differs, use
    /// [`Group::all_gather`].
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let mut all = [0; 4];
    /// group.all_gather_into(&[group.rank().index(), 7], &mut all)?;
    /// assert_eq!(all, [0, 7, 1, 7]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `all` has no room for as many
    /// values of each rank.
    #[doc(alias("Allgather", "MPI_Allgather"))]
    pub fn all_gather_into<T: Element>(&mut self, values: &[T], all: &mut [T]) -> Result<()> {
        self.check_parts("all_gather_into", Operation::AllGather, values.len(), all.len())?;
        let size = self.size() as usize;
        T::with_bytes(all, |all| {
            self.gather_untyped(T::KIND, cast_slice(values), &mut parts(all, size), None)
        })
    }

    /// Every rank gets the values of every rank, in rank order. Each rank may pass another number of
    /// values.
    ///
    /// Names and serialized values are `u8`. If all ranks pass the same number of values,
    /// [`Group::all_gather_into`] sends one message less.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks: parts of two values and of one.
    /// let own: &[f64] = if group.rank().is_first() { &[0.5, 1.0] } else { &[1.5] };
    /// let parts = group.all_gather(own)?;
    /// assert_eq!(parts, [vec![0.5, 1.0], vec![1.5]]);
    /// assert_eq!(parts.concat(), [0.5, 1.0, 1.5]);
    ///
    /// let name = format!("rank {}", group.rank().index());
    /// assert_eq!(group.all_gather(name.as_bytes())?, [b"rank 0", b"rank 1"]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    #[doc(alias("Allgatherv", "MPI_Allgatherv", "MPI_Gatherv"))]
    pub fn all_gather<T: Element>(&mut self, values: &[T]) -> Result<Vec<Vec<T>>> {
        gather_any(self.next(), Call::of_any(Operation::AllGather, T::KIND), values)
    }

    /// Rank `root` gets the values of all ranks in `all`, in rank order. All ranks must
    /// pass the same number of values. On the other ranks, `all` is not used and may be empty.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let mut all = if group.rank().is_first() { vec![0.0; 2] } else { vec![] };
    /// group.gather(&[0.5 * f64::from(group.rank().index())], &mut all, 0)?;
    /// assert_eq!(all, if group.rank().is_first() { vec![0.0, 0.5] } else { vec![] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `root` is not a rank of the
    /// group, or if `all` has no room on the root for as many values of each rank.
    #[doc(alias("MPI_Gather"))]
    pub fn gather<T: Element>(&mut self, values: &[T], all: &mut [T], root: u32) -> Result<()> {
        let is_root = self.rank().index() == root;
        if is_root {
            self.check_parts("gather", Operation::Gather, values.len(), all.len())?;
        }
        let (all, size) = (if is_root { all } else { &mut [] }, self.size() as usize);
        T::with_bytes(all, |all| {
            self.gather_untyped(T::KIND, cast_slice(values), &mut parts(all, size), Some(root))
        })
    }

    /// Rank `root` sends part r of its `values` to rank r, which gets it in `part`. All parts have
    /// the same length. On the other ranks, `values` is not used and may be empty.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let values: &[i64] = if group.rank().is_first() { &[1, 2, 3, 4] } else { &[] };
    /// let mut part = [0; 2];
    /// group.scatter(values, &mut part, 0)?;
    /// assert_eq!(part, if group.rank().is_first() { [1, 2] } else { [3, 4] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `root` is not a rank of the
    /// group, or if the root does not have as many values for each rank.
    #[doc(alias("MPI_Scatter"))]
    pub fn scatter<T: Element>(&mut self, values: &[T], part: &mut [T], root: u32) -> Result<()> {
        let is_root = self.rank().index() == root;
        if is_root {
            self.check_parts("scatter", Operation::Scatter, part.len(), values.len())?;
        }
        let size = if is_root { self.size() as usize } else { 0 };
        T::with_bytes(part, |part| {
            let sent = parts_of(cast_slice(values), part.len(), size);
            self.scatter_untyped(T::KIND, &sent, &mut [part], Some(root))
        })
    }

    /// Sends part r of `values` to rank r, and gets the parts that all ranks sent to this one in
    /// `into`, in rank order. All parts on all ranks have the same length.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// let own = group.rank().index();
    /// let mut into = [0; 2];
    /// group.all_to_all_into(&[10 * own, 10 * own + 1], &mut into)?;
    /// assert_eq!(into, [own, 10 + own]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if the lengths differ or do not
    /// divide among the ranks.
    #[doc(alias("Alltoall", "MPI_Alltoall"))]
    pub fn all_to_all_into<T: Element>(&mut self, values: &[T], into: &mut [T]) -> Result<()> {
        let (size, length) = (self.size() as usize, values.len());
        if length != into.len() {
            let reason =
                format!("{length} values, and room for {}: both must be the same", into.len());
            return Err(self.refuse_as("all_to_all_into", Operation::AllToAll, reason));
        }
        if !length.is_multiple_of(size) {
            let reason = format!("{length} values, which {size} ranks cannot share equally");
            return Err(self.refuse_as("all_to_all_into", Operation::AllToAll, reason));
        }
        T::with_bytes(into, |into| {
            let sent = parts_of(cast_slice(values), into.len() / size, size);
            self.scatter_untyped(T::KIND, &sent, &mut parts(into, size), None)
        })
    }

    /// Sends part r to rank r, and returns the parts that all ranks sent to this one, in rank order.
    /// Each part may have another number of values.
    ///
    /// If all parts of all ranks have the same length, [`Group::all_to_all_into`] is faster.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks: particles that leave their rank's part of space.
    /// let parts = match group.rank().index() {
    ///     0 => [vec![0.1, 0.2], vec![0.7]],
    ///     _ => [vec![], vec![0.8, 0.9]],
    /// };
    /// let particles = group.all_to_all(&parts)?.concat();
    /// match group.rank().index() {
    ///     0 => assert_eq!(particles, [0.1, 0.2]),
    ///     _ => assert_eq!(particles, [0.7, 0.8, 0.9]),
    /// }
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if there is not one part for each
    /// rank.
    #[doc(alias("Alltoallv", "MPI_Alltoallv"))]
    pub fn all_to_all<T: Element>(&mut self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let (own, size) = (self.rank().index() as usize, self.size() as usize);
        self.check_one_each(Operation::AllToAll, parts.len())?;
        let counts: Vec<_> = parts.iter().map(|part| (part.len() as u64).to_le_bytes()).collect();
        let mut announced = counts.clone();
        let sent: Vec<&[u8]> = counts.iter().map(<[u8; 8]>::as_slice).collect();
        let mut into: Vec<_> = announced.iter_mut().map(<[u8; 8]>::as_mut_slice).collect();
        let call = Call::of_any(Operation::AllToAll, T::KIND);
        self.next().scatter(call, &sent, &mut into)?;
        let mut all = rooms(&mut *self.transport, announced)?;
        all[own].clone_from(&parts[own]);
        let sent: Vec<&[u8]> = parts.iter().map(|part| cast_slice(part)).collect();
        if T::with_parts(&mut all, |into| self.transport.scatter_any(call, &sent, into))? {
            return Ok(all);
        }
        // Each rank sends one step ahead of itself, then two. Both ranks of a part know whether it
        // is empty.
        for step in 1..size {
            let (to, from) = ((own + step) % size, (own + size - step) % size);
            let (part, into) = (&parts[to], &mut all[from]);
            let to = (!part.is_empty()).then_some(to as u32);
            let from = (!into.is_empty()).then_some(from as u32);
            self.send_receive(part, to, into, from)?;
        }
        Ok(all)
    }

    /// Sends `values` to rank `to`, which calls [`receive`](Group::receive) for as many values of
    /// the same type. Waits until that rank has begun to receive them, as `MPI_Ssend` does.
    ///
    /// Only these two ranks make the call. Messages between two ranks are received in the order in
    /// which they are sent. Two ranks that send to each other, or ranks that send in a ring, call
    /// [`send_receive`](Group::send_receive) instead, because each of them would wait for the
    /// other.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks.
    /// let mut values = [0.0_f32; 2];
    /// match group.rank().index() {
    ///     0 => group.send(&[0.5_f32, 0.25], 2)?,
    ///     2 => group.receive(&mut values, 0)?,
    ///     _ => {}
    /// }
    /// assert_eq!(values, if group.rank().index() == 2 { [0.5, 0.25] } else { [0.0; 2] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`CollectiveError::Argument`] if `to` is not another rank of
    /// the group. If one rank sends where the other makes a call of all ranks, both get an error at
    /// once; over MPI, after the timeout.
    #[doc(alias("Ssend", "MPI_Send", "MPI_Ssend"))]
    pub fn send<T: Element>(&mut self, values: &[T], to: u32) -> Result<()> {
        self.pass_untyped(T::KIND, Some((cast_slice(values), to)), None)
    }

    /// Receives the values that rank `from` [sends](Group::send) to this one. Both ranks pass the
    /// same number of values of the same type.
    ///
    /// # Errors
    /// As [`Group::send`].
    #[doc(alias("Recv", "MPI_Recv"))]
    pub fn receive<T: Element>(&mut self, values: &mut [T], from: u32) -> Result<()> {
        T::with_bytes(values, |bytes| self.pass_untyped(T::KIND, None, Some((bytes, from))))
    }

    /// Sends `values` to rank `to`, and meanwhile receives those that rank `from` sends to this one
    /// in `into`. If both are this rank, it copies the values.
    ///
    /// `None` stands for a neighbor that is missing, as `MPI_PROC_NULL` does: at the ends of a chain,
    /// this only [sends](Group::send) or only [receives](Group::receive). Without both, it does
    /// nothing.
    ///
    /// If `to` and `from` are two ranks, each of them may call this, or `receive` and `send`. If they
    /// are one rank, it must call this too: `send` and then `receive` are an error.
    ///
    /// In a ring of two ranks, both must exchange the directions in the same order: messages have
    /// no tags, so that the two are otherwise swapped without an error. The guide has an exchange
    /// of halos: `mpienv::guide::rust`.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks, in a ring.
    /// let own = group.rank().index();
    /// let mut left = [0];
    /// group.send_receive(&[own], (own + 1) % 3, &mut left, (own + 2) % 3)?;
    /// assert_eq!(left, [(own + 2) % 3]);
    ///
    /// // In a chain, of which rank 0 is the left end and rank 2 the right one.
    /// let (before, after) = (own.checked_sub(1), Some(own + 1).filter(|&rank| rank < 3));
    /// let mut left = [100];
    /// group.send_receive(&[own], after, &mut left, before)?;
    /// assert_eq!(left, [before.unwrap_or(100)]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::send`]; [`CollectiveError::Argument`] if only one of the ranks is this one, or
    /// if both are and the lengths differ.
    #[doc(alias("Sendrecv", "MPI_Sendrecv", "MPI_PROC_NULL"))]
    pub fn send_receive<T: Element>(
        &mut self,
        values: &[T],
        to: impl Into<Option<u32>>,
        into: &mut [T],
        from: impl Into<Option<u32>>,
    ) -> Result<()> {
        let (own, to, from) = (self.rank().index(), to.into(), from.into());
        if (to, from) == (None, None) {
            return Ok(());
        }
        if (to, from) == (Some(own), Some(own)) {
            let (sent, room) = (values.len(), into.len());
            if sent != room {
                let reason = format!("{sent} values, and room for {room}: both must be the same");
                return Err(CollectiveError::Argument { call: SEND_RECEIVE, reason });
            }
            into.copy_from_slice(values);
            return Ok(());
        }
        let send = to.map(|to| (cast_slice(values), to));
        T::with_bytes(into, |bytes| {
            self.pass_as(true, T::KIND, send, from.map(|from| (bytes, from)))
        })
    }

    /// Fails unless `other` is another rank of the group. The error reaches this rank alone,
    /// because it is unknown which other rank waits for the message.
    pub(super) fn check_other(&self, call: &'static str, other: u32) -> Result<()> {
        let (size, own) = (self.size(), self.rank().index());
        let reason = match other {
            _ if other >= size => self.no_rank(other),
            _ if other == own && self.is_part => format!(
                "rank {own} of this group of {size} (rank {} of the job) is this rank itself: name another one",
                self.transport.number(own)
            ),
            _ if other == own => format!("rank {other} is this rank itself: name another one"),
            _ => return Ok(()),
        };
        Err(CollectiveError::Argument { call, reason })
    }

    /// Fails unless `root`, if there is one, is a rank of the group.
    pub(super) fn check_root(&mut self, operation: Operation, root: Option<u32>) -> Result<()> {
        let size = self.size();
        match root.filter(|&root| root >= size) {
            Some(root) => Err(self.refuse(operation, self.no_rank(root))),
            None => Ok(()),
        }
    }

    /// Why `rank` cannot be the root or the other rank of a call.
    fn no_rank(&self, rank: u32) -> String {
        let ranks = match self.size() {
            1 => "rank 0 only".to_owned(),
            2 => "ranks 0 and 1".to_owned(),
            size => format!("ranks 0 to {}", size - 1),
        };
        let group =
            if self.is_part { "the group, which was split from another," } else { "the group" };
        format!("there is no rank {rank}: {group} has {ranks}")
    }

    /// Fails unless `all` values are `part` values for each rank.
    fn check_parts(
        &mut self,
        call: &'static str,
        operation: Operation,
        part: usize,
        all: usize,
    ) -> Result<()> {
        let size = self.size();
        let needed = part.checked_mul(size as usize);
        if needed == Some(all) {
            return Ok(());
        }
        let needed = needed.map_or("more than fit into memory".to_owned(), |all| all.to_string());
        let reason =
            format!("{all} values where {needed} are needed: {part} for each of {size} ranks");
        Err(self.refuse_as(call, operation, reason))
    }
}
