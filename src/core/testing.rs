//! Property tests over environments: any job of any launcher, for your own tests.
//!
//! The strategies are those of proptest, which your tests also need:
//!
//! ```toml
//! [dev-dependencies]
//! proptest = "1.12"
//! ```
//!
//! ```
//! use mpienv::ClusterInfo;
//! use mpienv::testing::any_job;
//! use proptest::prelude::*;
//!
//! proptest!(|(job in any_job())| {
//!     for (rank, vars) in job.environments().enumerate() {
//!         prop_assert_eq!(ClusterInfo::from_vars(vars)?.rank().index() as usize, rank);
//!     }
//! });
//! ```

use proptest::prelude::*;

use crate::simulate::{Job, JobBuilder};

/// Returns a strategy for jobs of every launcher: up to 4 nodes with up to 5 ranks each, not always
/// the same number. Ranks are assigned to nodes in blocks or one by one, and local ranks may be
/// rotated.
pub fn any_job() -> impl Strategy<Value = Job> {
    prop::sample::select(Job::of_each().collect::<Vec<_>>()).prop_flat_map(any_shape)
}

/// Returns a strategy for jobs of one launcher with any shape, as in [`any_job`].
///
/// ```
/// use mpienv::simulate::Job;
/// use mpienv::testing::any_shape;
///
/// let slurm_jobs = any_shape(Job::slurm());
/// ```
pub fn any_shape(job: JobBuilder) -> impl Strategy<Value = Job> {
    let counts = prop::collection::vec(1u32..6, 1..5);
    (counts, any::<bool>(), 0u32..6).prop_filter_map(
        "a shape that the launcher can start",
        move |shape| {
            let (counts, by_node, rotation) = shape;
            let job = job.clone().rotate_local_ranks(rotation);
            let job = if by_node { job.by_node() } else { job };
            let ones = vec![1; counts.len()];
            // Some launchers start only one process per node, and some only one in total.
            let on_one_node = counts[..1].to_vec();
            let shapes = [counts, ones, on_one_node, vec![1]];
            shapes.into_iter().find_map(|counts| job.clone().counts(counts).build().ok())
        },
    )
}
