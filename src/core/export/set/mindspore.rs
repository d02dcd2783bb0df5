//! What programs written for MindSpore's msrun read.
//!
//! The variables are those that [msrun] sets for its workers and its scheduler. MindSpore's own CPU
//! build exits in `init()` if it finds Open MPI's.
//!
//! [msrun]: https://www.mindspore.cn/tutorials/en/master/parallel/msrun_launcher.html

use super::{Set, addition, master_addr, master_port, rank, size};
use crate::launcher::msrun::{ROLE, ROLES, SCHED_HOST, SCHED_PORT, WORKER, WORKERS};

const PAGE: &str =
    "[msrun](https://www.mindspore.cn/tutorials/en/master/parallel/msrun_launcher.html)";

pub(super) const SET: Set = Set {
    name: "mindspore",
    title: "MindSpore",
    note: "; exec and launch start rank 0's command a second time as the scheduler",
    page: PAGE,
    additions: &[
        size(WORKERS),
        addition(SCHED_HOST, "the host of rank 0", master_addr),
        addition(SCHED_PORT, "the port at the host of rank 0", master_port),
        rank(WORKER),
        addition(ROLE, "`MS_WORKER`", |_| Ok(Some(ROLES[0].to_owned()))),
    ],
    unset: &["OMPI_", "PMIX_", "PMI_"],
    scheduler: Some(SCHEDULER),
    ..Set::PLAIN
};

/// The scheduler has no rank. All its other variables are those of rank 0's worker.
const SCHEDULER: &[(&str, Option<&str>)] = &[(ROLE, Some(ROLES[1])), (WORKER, None)];
