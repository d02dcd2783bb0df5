//! The calls that reduce numbers.

use bytemuck::cast_slice;

use super::Group;
use crate::call::{Reduce, Results};
use crate::element::Element;
use crate::error::Result;
use crate::numbers::Numbers;
use crate::reduction::Reduction;
use crate::transport::Transport;

/// Ends all later calls if the caller's code panics within a call: other ranks may be reading what
/// this one was about to complete.
struct LeavingOnPanic<'a>(&'a mut dyn Transport);

impl Drop for LeavingOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.leave_panicking();
        }
    }
}

impl Group {
    /// Adds the ranks' `values` element by element, in place. Every rank gets the sum.
    ///
    /// ```
    /// # mpienv::collective::threads::run(3, std::time::Duration::from_secs(10), |group| {
    /// // Three ranks.
    /// let mut values = [f64::from(group.rank().index()), 10.0];
    /// group.all_reduce_sum(&mut values)?;
    /// assert_eq!(values, [3.0, 30.0]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// If a rank is lost, hangs, passes another length or makes another call. The values are then
    /// undefined.
    #[doc(alias("MPI_SUM"))]
    pub fn all_reduce_sum<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, Reduction::Sum)
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
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    #[doc(alias("MPI_MIN"))]
    pub fn all_reduce_min<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, Reduction::Min)
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
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    #[doc(alias("MPI_MAX"))]
    pub fn all_reduce_max<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        self.all_reduce(values, Reduction::Max)
    }

    /// Reduces the ranks' `values` element by element, in place. Every rank gets the result.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// use mpienv::collective::Reduction;
    /// use mpienv::collective::half::bf16;
    ///
    /// let own = group.rank().index() as f32;
    /// let mut gradients = [1.0, 3.0 * own].map(bf16::from_f32);
    /// group.all_reduce(&mut gradients, Reduction::Mean)?;
    /// assert_eq!(gradients.map(bf16::to_f32), [1.0, 1.5]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`Argument`] for a mean of integers or `bool`.
    ///
    /// [`Argument`]: crate::CollectiveError::Argument
    #[doc(alias("Allreduce", "MPI_Allreduce"))]
    pub fn all_reduce<T: Element>(&mut self, values: &mut [T], by: Reduction) -> Result<()> {
        T::with_bytes(values, |bytes| self.reduce_untyped(Numbers::of(T::KIND, bytes), by, None))
    }

    /// Like [`all_reduce`](Group::all_reduce) of values that this rank computes only now, `part` at
    /// a time. While a rank computes a part, the ranks of a host already reduce those before it, so
    /// that less time is left for the reduction once the last part is there.
    ///
    /// `compute` gets the index of the part's first value and the part, which it must overwrite:
    /// what is in it before is unspecified. All ranks need as many values, but the length of their
    /// parts may differ. The result has the same bits as that of `all_reduce`, which other ranks
    /// may call instead.
    ///
    /// Parts are reduced early over shared memory, if each rank has at most 512 KiB (of more than
    /// 63 ranks on a host, less). Otherwise, this call computes all parts first. If more than two
    /// ranks have over 64 KiB together, each reduces only its share of the result.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// use mpienv::collective::Reduction;
    ///
    /// let own = group.rank().index() as f32;
    /// let mut gradients = vec![0.0; 7850];
    /// // The gradient of one output after the other.
    /// group.all_reduce_in_parts(&mut gradients, Reduction::Sum, 785, |first, part| {
    ///     part.fill(own + (first / 785) as f32);
    /// })?;
    /// assert_eq!([gradients[0], gradients[7849]], [1.0, 19.0]);
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce`]; [`Argument`] for parts of 0 values. If `compute` panics, all later
    /// calls fail on all ranks.
    ///
    /// [`Argument`]: crate::CollectiveError::Argument
    pub fn all_reduce_in_parts<T: Element>(
        &mut self,
        values: &mut [T],
        by: Reduction,
        part: usize,
        compute: impl FnMut(usize, &mut [T]),
    ) -> Result<()> {
        self.all_reduce_in_parts_while(values, by, part, compute, || ())
    }

    /// Like [`all_reduce_in_parts`](Group::all_reduce_in_parts), and does `other_work` while the
    /// other ranks compute their last parts: work that does not need the result, such as loading the
    /// next samples. A rank that is ahead then waits less.
    ///
    /// `other_work` is called once, after this rank has computed its last part. Where parts are not
    /// reduced early, the reduction begins after it. Where each of more than two ranks reduces a
    /// share of the result, this rank's follows its `other_work`, so the others wait for that too.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// use mpienv::collective::Reduction;
    ///
    /// let (batch, mut next) = ([1.0, 2.0, 3.0], [0.0; 3]);
    /// let mut sum = [0.0];
    /// group.all_reduce_in_parts_while(
    ///     &mut sum,
    ///     Reduction::Sum,
    ///     1,
    ///     |_, part| part[0] = batch.iter().sum(),
    ///     || next = [4.0, 5.0, 6.0],
    /// )?;
    /// assert_eq!((sum, next), ([12.0], [4.0, 5.0, 6.0]));
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_in_parts`], also if `other_work` panics.
    pub fn all_reduce_in_parts_while<T: Element>(
        &mut self,
        values: &mut [T],
        by: Reduction,
        part: usize,
        mut compute: impl FnMut(usize, &mut [T]),
        other_work: impl FnOnce(),
    ) -> Result<()> {
        let reduce = Reduce::new(by, Results::ToAll, T::KIND, values.len());
        self.check_mean(reduce)?;
        if part == 0 {
            let reason = "parts of 0 numbers".to_owned();
            return Err(self.refuse_as("all_reduce_in_parts", reduce.call.operation, reason));
        }
        let part = part.min(values.len().max(1)) * size_of::<T>();
        let leaving = LeavingOnPanic(self.next());
        let mut compute = |at: usize, bytes: &mut [u8]| {
            T::overwrite(bytes, |part| compute(at / size_of::<T>(), part));
        };
        let mut other_work = Some(other_work);
        let mut other_work = || other_work.take().map_or((), |work| work());
        T::with_bytes(values, |bytes| {
            let numbers = Numbers::of(T::KIND, bytes);
            leaving.0.reduce_in_parts(reduce, numbers, part, &mut compute, &mut other_work)
        })
    }

    /// Like [`all_reduce`](Group::all_reduce), but only rank `root` gets the result. The values of
    /// the other ranks do not change.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// use mpienv::collective::Reduction;
    ///
    /// let mut factors = [2_u8, 5];
    /// group.reduce(&mut factors, Reduction::Product, 1)?;
    /// assert_eq!(factors, if group.rank().is_first() { [2, 5] } else { [4, 25] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`Argument`] if `root` is not a rank of the
    /// group, or for a mean of integers or `bool`.
    ///
    /// [`Argument`]: crate::CollectiveError::Argument
    #[doc(alias("MPI_Reduce"))]
    pub fn reduce<T: Element>(&mut self, values: &mut [T], by: Reduction, root: u32) -> Result<()> {
        let root = Some(root);
        T::with_bytes(values, |bytes| self.reduce_untyped(Numbers::of(T::KIND, bytes), by, root))
    }

    /// Reduces the ranks' `values` and returns this rank's part of the result in `part`: the
    /// numbers from `rank * count / size` to `(rank + 1) * count / size`. [`rank`](Group::rank) has
    /// `share_of`, which returns this range.
    ///
    /// ```
    /// # mpienv::collective::threads::run(2, std::time::Duration::from_secs(10), |group| {
    /// // Two ranks.
    /// use mpienv::collective::Reduction;
    ///
    /// let mut part = vec![0.0; group.rank().share_of(3).len()];
    /// group.reduce_scatter_into(&[1.0_f32, 2.0, 3.0], &mut part, Reduction::Sum)?;
    /// assert_eq!(part, if group.rank().is_first() { vec![2.0] } else { vec![4.0, 6.0] });
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`]; [`Argument`] if `part` has another length, or for
    /// a mean of integers or `bool`.
    ///
    /// [`Argument`]: crate::CollectiveError::Argument
    #[doc(alias("MPI_Reduce_scatter", "MPI_Reduce_scatter_block"))]
    pub fn reduce_scatter_into<T: Element>(
        &mut self,
        values: &[T],
        part: &mut [T],
        by: Reduction,
    ) -> Result<()> {
        T::with_bytes(part, |bytes| {
            self.reduce_scatter_untyped(cast_slice(values), Numbers::of(T::KIND, bytes), by)
        })
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
    /// # })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), mpienv::collective::CollectiveError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce_sum`].
    pub fn reduce_scatter_sum<T: Element>(&mut self, values: &[T]) -> Result<Vec<T>> {
        let mut part = vec![T::default(); self.rank().share_of(values.len()).len()];
        self.reduce_scatter_into(values, &mut part, Reduction::Sum)?;
        Ok(part)
    }

    /// Fails if the numbers have no mean, and it is asked for.
    pub(super) fn check_mean(&mut self, Reduce { call, by }: Reduce) -> Result<()> {
        match call.kind {
            Some(kind) if by == Reduction::Mean && !kind.has_fractions() => {
                let reason = format!("{} has no mean: sum the values and divide", kind.name());
                Err(self.refuse(call.operation, reason))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Reductions of values that ranks compute part by part.

    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::tcp::tests::numbers;
    use crate::tests::{bits, over_each, sum_in_order};

    #[test]
    fn a_sum_in_parts_has_the_bits_of_one_at_once_whatever_the_parts_of_each_rank() {
        // Two ranks reduce up to 512 KiB while they compute. More ranks reduce all of up to 64 KiB
        // together, and otherwise each its share.
        let lengths = [0, 1, 7_852, 1 << 17, (1 << 17) + 1];
        let all = lengths.map(|length| (2, length)).into_iter().chain([
            (3, 5_000),
            (3, 7_852),
            (4, 20_000),
        ]);
        for (size, length) in all {
            let expected = sum_in_order(0..size, length);
            for (over, sums) in over_each(size, |group| {
                let own = group.rank().index();
                let numbers = numbers(own, length);
                let mut sums = Vec::new();
                for turn in 0..4 {
                    let mut values = vec![f32::NAN; length];
                    if own == 0 && turn == 3 {
                        values.copy_from_slice(&numbers);
                        group.all_reduce_sum(&mut values).unwrap();
                    } else {
                        let part = [length + 1, 3_920, 1_000 + own as usize, 4_096][turn];
                        let compute = |first: usize, part: &mut [f32]| {
                            part.copy_from_slice(&numbers[first..][..part.len()]);
                            if own as usize == turn {
                                // The others have long completed their parts, or not begun.
                                thread::sleep(Duration::from_micros(200));
                            }
                        };
                        group
                            .all_reduce_in_parts(&mut values, Reduction::Sum, part, compute)
                            .unwrap();
                    }
                    sums.push(bits(&values));
                }
                sums
            }) {
                for sum in sums.into_iter().flatten() {
                    assert!(sum == expected, "{over}: {size} ranks, {length} numbers");
                }
            }
        }
    }

    #[test]
    fn other_work_is_done_once_after_the_last_part() {
        // Parts of 7,852 numbers are reduced early, those of more than 512 KiB are not.
        for length in [0, 1, 7_852, (1 << 17) + 1] {
            for (over, sums) in over_each(2, |group| {
                let mut values = vec![f32::NAN; length];
                let (mut computed, mut done) = (0, Vec::new());
                let computed = Cell::from_mut(&mut computed);
                let compute = |_, part: &mut [f32]| {
                    part.fill(1.0);
                    computed.set(computed.get() + part.len());
                };
                let other_work = || done.push(computed.get());
                group
                    .all_reduce_in_parts_while(
                        &mut values,
                        Reduction::Sum,
                        1_000,
                        compute,
                        other_work,
                    )
                    .unwrap();
                (values, done)
            }) {
                for (sum, done) in sums {
                    assert!(sum == vec![2.0; length], "{over}: {length} numbers");
                    assert_eq!(done, [length], "{over}: {length} numbers");
                }
            }
        }
    }

    /// Checks that all ranks name rank 1, which panics in this sum. `after` is what the others call
    /// next if they already have what they need from the rank.
    fn check_that_a_panic_is_named(
        sum: impl Fn(&mut Group) -> Result<()> + Sync,
        after: fn(&mut Group) -> Result<()>,
    ) {
        for (over, errors) in over_each(3, |group| {
            if group.rank().index() == 1 {
                assert!(catch_unwind(AssertUnwindSafe(|| sum(group))).is_err());
                return group.barrier().unwrap_err().to_string();
            }
            sum(group).and_then(|()| after(group)).unwrap_err().to_string()
        }) {
            for error in errors {
                let is_named = error.starts_with("rank 1 on ");
                assert!(is_named && error.contains(" is lost: it panicked"), "{over}: {error}");
            }
        }
    }

    #[test]
    fn all_others_name_a_rank_that_panics_in_its_other_work() {
        // Over shared memory, the others already have what they need of a short sum from the rank.
        for length in [1_000, 7_850] {
            let sum = |group: &mut Group| {
                let own = group.rank().index();
                let (values, fill) = (&mut vec![0.0; length], |_, part: &mut [f32]| part.fill(1.0));
                group.all_reduce_in_parts_while(values, Reduction::Sum, 785, fill, || {
                    assert!(own != 1, "a panic that this test expects");
                })
            };
            check_that_a_panic_is_named(sum, Group::barrier);
        }
    }

    #[test]
    fn all_others_name_a_rank_that_panics_while_it_computes_a_part() {
        let sum = |group: &mut Group| {
            let own = group.rank().index();
            group.all_reduce_in_parts(&mut [0.0; 7_850], Reduction::Sum, 785, |first, part| {
                assert!(own != 1 || first < 1_570, "a panic that this test expects");
                part.fill(1.0);
            })
        };
        check_that_a_panic_is_named(sum, |_| Ok(()));
    }

    #[test]
    fn a_rank_without_others_says_that_it_panicked_in_an_earlier_call() {
        let mut group = Group::alone();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            group.all_reduce_in_parts(&mut [0.0], Reduction::Sum, 1, |_, _| {
                panic!("a panic that this test expects");
            })
        }));
        assert!(panics.is_err());
        let error = group.barrier().unwrap_err().to_string();
        assert_eq!(error, "rank 0 on this host is lost: it panicked");
    }
}
