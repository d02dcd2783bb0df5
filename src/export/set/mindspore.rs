//! What programs written for MindSpore's msrun read.
//!
//! The variables are those that [msrun] sets for its workers and its scheduler; MindSpore's own
//! CPU build ends in `init()` where it meets Open MPI's.
//!
//! [msrun]: https://www.mindspore.cn/tutorials/en/master/parallel/msrun_launcher.html

use super::Additions;

pub(super) const ADDITIONS: Additions = Additions {
    variables: &[
        ("MS_WORKER_NUM", |info| Ok(info.world_size().to_string())),
        ("MS_SCHED_HOST", |info| Ok(info.master_addr()?.to_string())),
        ("MS_SCHED_PORT", |info| Ok(info.master_port().to_string())),
        ("MS_NODE_ID", |info| Ok(info.rank().to_string())),
        ("MS_ROLE", |_| Ok("MS_WORKER".to_owned())),
    ],
    place: None,
    unset: &["OMPI_", "PMIX_", "PMI_"],
};

/// The scheduler has no rank; all else is as rank 0's worker has it.
pub(super) const SCHEDULER: &[(&str, Option<&str>)] = &[("MS_ROLE", Some("MS_SCHED")), ("MS_NODE_ID", None)];
